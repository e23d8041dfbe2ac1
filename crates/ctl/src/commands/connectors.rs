//! `meridian ctl connectors`: systems outside the broker that actions write to.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::entries::{Entries, TenantArgs, origin, settings};
use super::settings_file::{self, SettingsFile};
use super::{Command, without_list_flags};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::List;
use crate::query::Query;
use crate::table::left;

/// List, put, test and remove connectors: systems that actions write to
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  meridian ctl connectors
  meridian ctl connectors warehouse                         the same as `connectors show warehouse`
  meridian ctl connectors test --file warehouse.toml        before it is put
  meridian ctl connectors put warehouse --file warehouse.toml
  meridian ctl connectors test warehouse
  meridian ctl connectors remove warehouse

The file has the settings of [[connector]] (docs/configuration.md), in TOML or JSON:
  kind = \"postgresql\"
  address = \"db.example.com:5432\"
  database = \"plant\"
  username = \"meridian\"
  password_file = \"/etc/meridian/db-password\"      on each node; the secret itself is never sent
A test connects and logs in, and writes nothing. A connector of the configuration file is changed there."
)]
pub struct ConnectorsArgs {
    /// Name of a connector to show
    name: Option<String>,
    #[command(flatten)]
    shown: TenantArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List connectors (the default)
    List {
        #[command(flatten)]
        shown: TenantArgs,
    },
    /// Show one connector
    Show {
        /// Name of the connector
        name: String,
    },
    /// Add or replace a connector
    Put {
        /// Name of the connector
        name: String,
        #[command(flatten)]
        file: SettingsFile,
    },
    /// Connect to the system and log in, without writing anything
    Test {
        /// Name of a connector that exists
        #[arg(required_unless_present = "file")]
        name: Option<String>,
        /// File with settings to test instead, in TOML or JSON; with a name they replace settings of the connector
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Remove a connector that no action uses
    Remove {
        /// Name of the connector
        name: String,
    },
}

const CONNECTORS: Entries = Entries { path: "/api/v1/connectors", list: "connector", texts: &[] };

impl Command for ConnectorsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() && self.name.is_none() || self.shown.plain())?;
        match (self.verb, self.name) {
            (None, None) => list(console, &self.shown),
            (None, Some(name)) | (Some(Verb::Show { name }), _) => show(console, &name),
            (Some(Verb::List { shown }), _) => list(console, &shown),
            (Some(Verb::Put { name, file }), _) => {
                let put = CONNECTORS.put(console, &name, file.read(CONNECTORS.list)?)?;
                console.done(&put, &format!("connector {name}: {}", put.cell("kind")))
            }
            (Some(Verb::Test { name, file }), _) => {
                let settings = file.map(|file| settings_file::read(&file, CONNECTORS.list)).transpose()?;
                test(console, &json!({"name": name, "settings": settings}))
            }
            (Some(Verb::Remove { name }), _) => {
                confirm(console, &format!("Remove the connector {name}?"))?;
                let answer = CONNECTORS.remove(console, &name, &Query::new())?;
                console.done(&answer, &format!("connector {name} is removed"))
            }
        }
    }
}

fn test(console: &mut Console, body: &Value) -> Result<(), Failure> {
    let tested = CONNECTORS.test(console, body)?;
    let sentence = format!("{} ({})", tested.text("message"), tested.ms_cell("took_ms"));
    if tested.truth("ok") {
        return console.done(&tested, &sentence);
    }
    if console.json {
        console.document(&tested)?;
    }
    Err(Failure::Failed(sentence))
}

fn list(console: &mut Console, shown: &TenantArgs) -> Result<(), Failure> {
    let columns = [
        left("CONNECTOR"),
        left("KIND"),
        left("TO"),
        left("USED BY"),
        left("SOURCE"),
        left("BY"),
        left("FAULT"),
    ];
    let row = |connector: &Value| {
        vec![
            connector.cell("name"),
            connector.cell("kind"),
            target(connector),
            names(connector.list("used_by")),
            connector.cell("source"),
            connector.text("author"),
            connector.text("fault"),
        ]
    };
    List {
        path: CONNECTORS.path,
        query: shown.query(),
        noun: "connectors",
        columns: &columns,
        row: &row,
        keep: None,
    }
    .show(console, &shown.page)
}

/// Address, URL or directory of the system.
fn target(connector: &Value) -> String {
    let all = ["settings.url", "settings.address", "settings.directory"].map(|key| connector.text(key));
    all.into_iter().find(|text| !text.is_empty()).unwrap_or_else(|| connector.cell("settings.url"))
}

fn names(names: &[Value]) -> String {
    names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn show(console: &mut Console, name: &str) -> Result<(), Failure> {
    let connector = CONNECTORS.get(console, name)?;
    if console.json {
        return console.document(&connector);
    }
    let mut pairs = vec![
        ("connector", connector.cell("name")),
        ("kind", connector.cell("kind")),
        ("used by", names(connector.list("used_by"))),
    ];
    pairs.extend(origin(&connector));
    console.pairs(&pairs)?;
    settings(console, &connector)
}
