//! `meridian ctl bridges`.

use clap::Args;
use serde_json::Value;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING};
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};

/// List the bridges to other brokers: connections, what waits, what went through
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl bridges
  meridian ctl bridges --json | jq -r '.items[] | select(.connected | not) | .name'
  meridian ctl client '$bridge/NAME'     the session in which messages wait for the other broker

QUEUED has the messages that wait for the other broker. DROPPED has those that were not passed on, and REFUSED those that
one of the brokers refused. In a cluster a bridge runs on one node.")]
pub struct BridgesArgs {}

impl Command for BridgesArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let listed = console.client.get("/api/v1/bridges", &Query::new().with("limit", 1_000))?;
        let columns = [
            left("BRIDGE"),
            left("NODE"),
            left("STATE"),
            right("SINCE"),
            right("QUEUED"),
            right("OUT"),
            right("IN"),
            right("REFUSED"),
            right("DROPPED"),
            right("RECONNECTS"),
        ];
        show_whole(console, &listed, "bridges", &columns, row)
    }
}

fn row(bridge: &Value) -> Vec<String> {
    let since = bridge.field("connected_s");
    vec![
        bridge.cell("name"),
        bridge.cell("node"),
        if bridge.truth("enabled") { bridge.cell("state") } else { "disabled".to_owned() },
        if since.is_null() { NOTHING.to_owned() } else { bridge.seconds_cell("connected_s") },
        bridge.cell("queued_messages"),
        bridge.cell("messages_out"),
        bridge.cell("messages_in"),
        bridge.cell("refused"),
        bridge.cell("dropped"),
        bridge.cell("reconnects"),
    ]
}
