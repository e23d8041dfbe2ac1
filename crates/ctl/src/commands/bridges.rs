//! `meridian ctl bridges`.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::Command;
use super::entries::{Entries, SettingsArgs, messages, origin, settings};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING};
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};

/// List, set and remove bridges to other brokers: connections, what waits, what went through
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  meridian ctl bridges
  meridian ctl bridges plant                               the same as `bridges show plant`
  meridian ctl bridges --json | jq -r '.items[] | select(.connected | not) | .name'
  meridian ctl bridges set plant address=mqtt.example.com:8883 tls=true topics='sensors/# out 1'
  meridian ctl bridges set plant enabled=false             the other settings stay
  meridian ctl bridges set plant --file plant.toml         replaces all settings
  meridian ctl bridges remove plant                        messages that wait stay, for a bridge of this name
  meridian ctl bridges remove plant --delete-messages
  meridian ctl client '$bridge/NAME'                       the session in which messages wait for the other broker

The settings are those of [[bridge]] (docs/configuration.md). Secrets are names of files on each node. A bridge of the
configuration file is changed there.

QUEUED, BYTES and OLDEST are of the messages that wait for the other broker. DROPPED has those that were not passed on or
that the queue has dropped (--json has the causes), and REFUSED those that one of the brokers refused for good. In a
cluster a bridge runs on one node. A session whose bridge is not configured any more is listed, too."
)]
pub struct BridgesArgs {
    /// Name of a bridge to show
    name: Option<String>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List bridges (the default)
    List,
    /// Show the settings and the state of one bridge
    Show {
        /// Name of the bridge
        name: String,
    },
    /// Add a bridge, or change settings of it, with the keys of [[bridge]]
    #[command(visible_alias = "put")]
    Set {
        /// Name of the bridge
        name: String,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Remove a bridge
    Remove {
        /// Name of the bridge
        name: String,
        /// End its session, with the messages that wait for the other broker
        #[arg(long)]
        delete_messages: bool,
    },
}

const BRIDGES: Entries = Entries {
    path: "/api/v1/bridges",
    list: "bridge",
    texts: &["client_id", "username", "topics", "tls_server_name", "state_topic_local", "state_topic_remote"],
};

impl Command for BridgesArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match (self.verb, self.name) {
            (None, None) | (Some(Verb::List), _) => list(console),
            (None, Some(name)) | (Some(Verb::Show { name }), _) => show(console, &name),
            (Some(Verb::Set { name, settings }), _) => {
                let bridge = BRIDGES.set(console, &name, &settings)?;
                let state = if bridge.truth("enabled") { "" } else { " (disabled)" };
                console.done(&bridge, &format!("bridge {name}{state} to {}", bridge.cell("settings.address")))
            }
            (Some(Verb::Remove { name, delete_messages }), _) => {
                let with = match delete_messages {
                    true => " with its session and the messages that wait in it",
                    false => "",
                };
                confirm(console, &format!("Remove the bridge {name}{with}?"))?;
                let answer = BRIDGES.remove(console, &name, &messages(delete_messages))?;
                console.done(&answer, &format!("the bridge {name} is removed"))
            }
        }
    }
}

fn views(console: &Console) -> Result<Value, Failure> {
    console.client.get(BRIDGES.path, &Query::new().with("limit", 1_000))
}

fn list(console: &mut Console) -> Result<(), Failure> {
    let listed = views(console)?;
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

fn show(console: &mut Console, name: &str) -> Result<(), Failure> {
    let bridge = BRIDGES.get(console, name)?;
    if console.json {
        return console.document(&bridge);
    }
    let listed = views(console)?;
    let runs = listed.list("items").iter().find(|view| view.text("name") == name);
    let unknown = Value::Null;
    let runs = runs.unwrap_or(&unknown);
    let mut pairs = vec![
        ("bridge", bridge.cell("name")),
        ("state", if bridge.truth("enabled") { runs.text("state") } else { "disabled".to_owned() }),
        ("node", runs.text("node")),
        ("last error", runs.text("last_error")),
    ];
    pairs.extend(origin(&bridge));
    console.pairs(&pairs)?;
    settings(console, &bridge)
}
