//! `meridian ctl top-talkers`: the busiest clients and topics of the last seconds.

use clap::Args;
use serde_json::Value;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;
use crate::table::{Table, left, right};

/// List the busiest publishers, subscribers and topics
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl top-talkers
  meridian ctl top-talkers --limit 50 --json | jq -r '.publishers[].client_id'

The node samples the messages, so the rates are estimates. `meridian top` shows them live.")]
pub struct TopTalkersArgs {
    /// Show at most this many of each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    limit: u32,
}

impl Command for TopTalkersArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let answer = console.client.get("/api/v1/top", &Query::new().with("limit", self.limit))?;
        if console.json {
            return console.document(&answer);
        }
        for (title, list, name) in [
            ("PUBLISHER", "publishers", "client_id"),
            ("SUBSCRIBER", "subscribers", "client_id"),
            ("TOPIC", "topics", "topic"),
        ] {
            let mut table = Table::new(&[right("MESSAGES/S"), right("BYTES/S"), left(title)]);
            for item in answer.list(list) {
                table.row(vec![
                    item.rate_cell("messages_per_s"),
                    item.bytes_cell("bytes_per_s"),
                    item.cell(name),
                ]);
            }
            match answer.list(list) {
                [] => console.line(&format!("no {list}"))?,
                _ => console.table(&mut table)?,
            }
            console.line("")?;
        }
        console.flush()?;
        console.note(&note(&answer));
        Ok(())
    }
}

fn note(answer: &Value) -> String {
    format!("the last {} s, from one message of {}", answer.cell("window_s"), answer.cell("sample"))
}
