//! `meridian ctl slow`: subscribers with slow deliveries.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use serde_json::Value;
use ureq::http::Method;

use super::{Command, without_list_flags};
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};

/// List the subscribers with the longest time from a message's arrival to its delivery
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl slow --limit 20
  meridian ctl slow clear        forget them and measure again")]
pub struct SlowArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List slow subscribers (the default)
    List(ListArgs),
    /// Forget all slow subscribers
    Clear,
}

const PATH: &str = "/api/v1/slow-subscribers";

impl Command for SlowArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() || self.list.limit == 10)?;
        match self.verb {
            None => self.list.run(console),
            Some(Verb::List(list)) => list.run(console),
            Some(Verb::Clear) => {
                let answer = console.client.send(Method::DELETE, PATH, &Query::new(), None)?;
                console.done(&answer, "forgotten")
            }
        }
    }
}

impl Command for ListArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let answer = console.client.get(PATH, &Query::new().with("limit", self.limit))?;
        let noun = format!("subscribers slower than {}", answer.ms_cell("threshold_ms"));
        let columns = [left("CLIENT"), right("LATENCY"), right("AGO"), left("UNTIL"), left("TOPIC")];
        let now = SystemTime::now();
        show_whole(console, &answer, &noun, &columns, |item: &Value| {
            vec![
                item.cell("client_id"),
                item.ms_cell("latency_ms"),
                item.age_cell("at", now),
                if item.truth("acknowledged") { "acknowledged" } else { "sent" }.to_owned(),
                item.cell("topic"),
            ]
        })
    }
}
