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

QUEUED, BYTES and OLDEST are of the messages that wait for the other broker. DROPPED has those that were not passed on or
that the queue has dropped (--json has the causes), and REFUSED those that one of the brokers refused for good. In a
cluster a bridge runs on one node. A session whose bridge is not configured any more is listed, too.")]
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
            right("BYTES"),
            right("OLDEST"),
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
    let is_off = bridge.truth("configured") && !bridge.truth("enabled");
    let oldest = bridge.field("oldest_s");
    vec![
        bridge.cell("name"),
        bridge.cell("node"),
        if is_off { "disabled".to_owned() } else { bridge.cell("state") },
        if since.is_null() { NOTHING.to_owned() } else { bridge.seconds_cell("connected_s") },
        bridge.cell("queued_messages"),
        bridge.bytes_cell("queued_bytes"),
        if oldest.is_null() { NOTHING.to_owned() } else { bridge.seconds_cell("oldest_s") },
        bridge.cell("messages_out"),
        bridge.cell("messages_in"),
        bridge.cell("refused"),
        bridge.cell("dropped"),
        bridge.cell("reconnects"),
    ]
}
