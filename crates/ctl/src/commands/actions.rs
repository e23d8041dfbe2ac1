//! `meridian ctl actions`: rules whose outputs are written to systems outside, or published at the broker.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::entries::{Entries, TenantArgs, messages, origin, settings};
use super::settings_file::{self, SettingsFile};
use super::{Command, without_list_flags};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, take};
use crate::pages::List;
use crate::table::{left, right};

/// List, put, test and remove actions: rules whose outputs are written elsewhere
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  meridian ctl actions
  meridian ctl actions rows                                the same as `actions show rows`
  meridian ctl actions test --file rows.toml --topic sensors/7 --payload '{\"temp\": 81}'
  meridian ctl actions put rows --file rows.toml
  meridian ctl actions test rows --live                    with the next message that arrives
  meridian ctl actions remove rows                         messages that wait stay, for an action of this name
  meridian ctl actions remove rows --delete-messages
  meridian ctl client '$action/rows'                       the session in which messages wait

The file has the settings of [[action]] (docs/configuration.md), in TOML or JSON:
  rule = 'SELECT clientid, payload.temp AS temp FROM \"sensors/#\" WHERE temp > 80'
  connector = \"warehouse\"
  statement = \"INSERT INTO hot (sensor, temp) VALUES (${clientid}, ${temp})\"
Without a connector, outputs are published at this broker: set topic.
A test writes nothing. WAITING has the messages in the session, LOST those that were dropped for good.
An action of the configuration file is changed there."
)]
pub struct ActionsArgs {
    /// Name of an action to show
    name: Option<String>,
    #[command(flatten)]
    shown: TenantArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List actions (the default)
    List {
        #[command(flatten)]
        shown: TenantArgs,
    },
    /// Show one action
    Show {
        /// Name of the action
        name: String,
    },
    /// Add or replace an action
    Put {
        /// Name of the action
        name: String,
        #[command(flatten)]
        file: SettingsFile,
    },
    Test(TestArgs),
    /// Remove an action
    Remove {
        /// Name of the action
        name: String,
        /// Delete the messages that wait for it, too
        #[arg(long)]
        delete_messages: bool,
    },
}

/// Evaluate the rule of an action with a message, and show what it would write
#[derive(Args, Debug)]
struct TestArgs {
    /// Name of an action that exists
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    /// File with the settings to test, in TOML or JSON; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Topic of the message
    #[arg(long, required_unless_present_any = ["message", "live"], conflicts_with_all = ["message", "live"])]
    topic: Option<String>,
    /// Payload of the message
    #[arg(long, requires = "topic")]
    payload: Option<String>,
    /// Fields of the message or event: a JSON object with topic, payload, qos, clientid, ...
    #[arg(long, value_name = "JSON", value_parser = object, conflicts_with = "live")]
    message: Option<Map<String, Value>>,
    /// Event that the message is, such as '$events/client/connected'
    #[arg(long, value_name = "EVENT", requires = "message")]
    event: Option<String>,
    /// Wait up to 10 s for the next message that a filter of the rule matches
    #[arg(long)]
    live: bool,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("expected a JSON object such as {{\"topic\": \"a\", \"payload\": \"21\"}}: {error}")
    })
}

const ACTIONS: Entries = Entries { path: "/api/v1/actions", list: "action", texts: &[] };

impl Command for ActionsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() && self.name.is_none() || self.shown.plain())?;
        match (self.verb, self.name) {
            (None, None) => list(console, &self.shown),
            (None, Some(name)) | (Some(Verb::Show { name }), _) => show(console, &name),
            (Some(Verb::List { shown }), _) => list(console, &shown),
            (Some(Verb::Put { name, file }), _) => {
                let put = ACTIONS.put(console, &name, file.read(ACTIONS.list)?)?;
                console.done(&put, &format!("action {name}: {}", put.cell("rule")))
            }
            (Some(Verb::Test(args)), _) => args.run(console),
            (Some(Verb::Remove { name, delete_messages }), _) => {
                let with = if delete_messages { " and the messages that wait for it" } else { "" };
                confirm(console, &format!("Remove the action {name}{with}?"))?;
                let answer = ACTIONS.remove(console, &name, &messages(delete_messages))?;
                console.done(&answer, &format!("action {name} is removed"))
            }
        }
    }
}

impl TestArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let settings = match (&self.file, &self.name) {
            (Some(file), _) => settings_file::read(file, ACTIONS.list)?.into(),
            (None, Some(name)) => take(&mut ACTIONS.get(console, name)?, "settings"),
            (None, None) => return Err(Failure::Usage("name an action or a file".to_owned())),
        };
        let message = match (self.message, self.topic) {
            (Some(message), _) => Some(Value::from(message)),
            (None, Some(topic)) => {
                Some(json!({"topic": topic, "payload": self.payload.unwrap_or_default(), "qos": 0}))
            }
            (None, None) => None,
        };
        let body = json!({"settings": settings, "message": message, "event": self.event, "live": self.live});
        let tested = ACTIONS.test(console, &body)?;
        if console.json {
            console.document(&tested)?;
        } else {
            tell(console, &tested, self.live)?;
        }
        match tested.field("error") {
            Value::Null => Ok(()),
            error => Err(Failure::Failed(format!("{}: {}", error.text("where"), error.text("message")))),
        }
    }
}

/// Writes the result of a test for a person.
fn tell(console: &mut Console, tested: &Value, is_live: bool) -> Result<(), Failure> {
    if is_live && tested.field("message").is_null() {
        return console.line("no message came within 10 s");
    }
    if is_live {
        console.line(&format!("message: {}", tested.field("message")))?;
    }
    if !tested.truth("matched") && tested.field("error").is_null() {
        return console.line("the rule does not select this message");
    }
    for output in tested.list("outputs") {
        console.line(&format!("output: {output}"))?;
    }
    for record in tested.list("records") {
        console.line("record:")?;
        for field in record.list("fields") {
            console.line(&format!("  {}: {}", field.text("name"), field.cell("value")))?;
        }
    }
    Ok(())
}

fn list(console: &mut Console, shown: &TenantArgs) -> Result<(), Failure> {
    let columns = [
        left("ACTION"),
        left("KIND"),
        left("NODE"),
        left("STATE"),
        right("WAITING"),
        right("RECEIVED"),
        right("WRITTEN"),
        right("RETRIES"),
        right("LOST"),
        left("SOURCE"),
        left("FAULT"),
    ];
    let row = |action: &Value| {
        vec![
            action.cell("name"),
            action.cell("kind"),
            action.cell("status.node"),
            state(action),
            action.count_cell("status.queued_messages"),
            action.count_cell("status.received"),
            action.count_cell("status.written"),
            action.count_cell("status.retries"),
            action.count_cell("status.dropped"),
            action.cell("source"),
            fault(action),
        ]
    };
    List {
        path: ACTIONS.path,
        query: shown.query(),
        noun: "actions",
        columns: &columns,
        row: &row,
        keep: None,
    }
    .show(console, &shown.page)
}

fn state(action: &Value) -> String {
    match (action.truth("enabled"), action.truth("status.failing")) {
        (false, _) => "disabled".to_owned(),
        (true, true) => format!("{}, failing", action.cell("status.state")),
        (true, false) => action.cell("status.state"),
    }
}

/// Reason why the action cannot run, or does not write at present.
fn fault(action: &Value) -> String {
    match action.text("fault") {
        fault if fault.is_empty() && action.truth("status.failing") => action.text("status.last_error"),
        fault => fault,
    }
}

fn show(console: &mut Console, name: &str) -> Result<(), Failure> {
    let action = ACTIONS.get(console, name)?;
    if console.json {
        return console.document(&action);
    }
    let mut pairs = vec![("action", action.cell("name")), ("kind", action.cell("kind"))];
    pairs.extend(origin(&action));
    console.pairs(&pairs)?;
    settings(console, &action)?;
    let status = action.field("status");
    if status.is_null() {
        return console.line("no node that answered runs it");
    }
    console.pairs(&[
        ("node", status.cell("node")),
        ("state", format!("{} for {}", state(&action), status.seconds_cell("since_s"))),
        ("last error", status.text("last_error")),
        ("session", status.cell("session")),
        ("waiting", waiting(status)),
        ("in flight", status.count_cell("in_flight")),
    ])?;
    let counters: Vec<(&str, String)> =
        COUNTERS.iter().map(|(label, key)| (*label, status.count_cell(key))).collect();
    console.pairs(&counters)
}

/// Messages that wait in the session, their bytes and the age of the oldest one.
fn waiting(status: &Value) -> String {
    let messages = status.count_cell("queued_messages");
    match status.field("oldest_s") {
        Value::Null => messages,
        _ => format!(
            "{messages} ({}), the oldest for {}",
            status.bytes_cell("queued_bytes"),
            status.seconds_cell("oldest_s")
        ),
    }
}

/// Counters since the start of the node, with their labels.
const COUNTERS: [(&str, &str); 18] = [
    ("received", "received"),
    ("not selected", "not_selected"),
    ("rule failed", "evaluation_errors"),
    ("template failed", "render_errors"),
    ("records", "records"),
    ("written", "written"),
    ("bytes", "bytes"),
    ("batches", "batches"),
    ("retries", "retries"),
    ("refused", "refused"),
    ("expired", "expired"),
    ("given up", "given_up"),
    ("dead letters", "dead_letters"),
    ("to the fallback", "fallbacks"),
    ("dropped", "dropped"),
    ("by the queue", "dropped_queue"),
    ("QoS 0, no room", "dropped_qos0"),
    ("loops", "loops"),
];
