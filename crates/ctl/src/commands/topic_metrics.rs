//! `meridian ctl topic-metrics`: counters of chosen filters.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};

/// Count messages of chosen Topic Filters, at most 64
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl topic-metrics add 'building/+/temp'
  meridian ctl topic-metrics
  meridian ctl topic-metrics remove 'building/+/temp'

They are in /metrics too, as meridian_topic_messages_total.")]
pub struct TopicMetricsArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the counted filters (the default)
    List,
    /// Count this filter from now on
    Add {
        /// Topic Filter
        filter: String,
    },
    /// Stop counting this filter
    Remove {
        /// Topic Filter
        filter: String,
    },
}

const PATH: &str = "/api/v1/topic-metrics";

impl Command for TopicMetricsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self.verb {
            None | Some(Verb::List) => list(console),
            Some(Verb::Add { filter }) => {
                let body = json!({"filter": filter});
                let answer = console.client.send(Method::POST, PATH, &Query::new(), Some(&body))?;
                console.done(&answer, &format!("{filter} is counted from now on"))
            }
            Some(Verb::Remove { filter }) => {
                let query = Query::new().with("filter", &filter);
                let answer = console.client.send(Method::DELETE, PATH, &query, None)?;
                console.done(&answer, &format!("{filter} is no longer counted"))
            }
        }
    }
}

fn list(console: &mut Console) -> Result<(), Failure> {
    let answer = console.client.get(PATH, &Query::new())?;
    let columns = [
        left("FILTER"),
        right("RECEIVED"),
        right("BYTES"),
        right("SENT"),
        right("BYTES"),
        right("DROPPED"),
        right("SINCE"),
    ];
    let now = SystemTime::now();
    show_whole(
        console,
        &answer,
        "topic metrics; `topic-metrics add FILTER` starts one",
        &columns,
        |item: &Value| {
            vec![
                item.cell("filter"),
                item.count_cell("received.messages"),
                item.bytes_cell("received.bytes"),
                item.count_cell("sent.messages"),
                item.bytes_cell("sent.bytes"),
                item.count_cell("dropped"),
                item.age_cell("since_at", now),
            ]
        },
    )
}
