//! `meridian ctl keys`: API keys.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use ureq::http::Method;

use super::Command;
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::show_whole;
use crate::query::{Query, encode};
use crate::table::left;

/// List, make and remove API keys
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl keys
  meridian ctl keys add grafana --role viewer > grafana.token     the token is shown only once
  meridian ctl keys add temp --role operator --expires 8h
  meridian ctl keys remove grafana

Roles: a viewer reads; an operator also publishes, kicks, bans, traces; an admin also changes configuration and keys.
The first key is made with `meridian key add NAME --role admin` on the node's machine; from then on every request needs one.")]
pub struct KeysArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List keys (the default); tokens are not stored, so they cannot be shown
    List,
    /// Make a key and write its token to standard output
    Add {
        /// Name, for people and for the audit log
        name: String,
        /// Role of the key
        #[arg(long, value_enum)]
        role: Role,
        /// Time after which the key expires, such as 90d
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<Duration>,
    },
    /// Remove a key: its token is refused from now on
    Remove {
        /// Name of the key
        name: String,
    },
}

/// Role of a key or an account.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Role {
    Viewer,
    Operator,
    Admin,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

const PATH: &str = "/api/v1/keys";

impl Command for KeysArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self.verb {
            None | Some(Verb::List) => list(console),
            Some(Verb::Add { name, role, expires }) => add(console, &name, role, expires),
            Some(Verb::Remove { name }) => {
                let path = format!("{PATH}/{}", encode(&name));
                let answer = console.client.send(Method::DELETE, &path, &Query::new(), None)?;
                console.done(&answer, &format!("key {name} is removed"))
            }
        }
    }
}

fn add(console: &mut Console, name: &str, role: Role, expires: Option<Duration>) -> Result<(), Failure> {
    let seconds = expires.map(|time| time.as_millis().div_ceil(1_000) as u64);
    let body = json!({"name": name, "role": role.name(), "expires_in_s": seconds});
    let key = console.client.send(Method::POST, PATH, &Query::new(), Some(&body))?;
    if console.json {
        return console.document(&key);
    }
    // Only the token, so that `> file` makes a token file.
    console.line(&key.text("token"))?;
    console.flush()?;
    let until = match key.field("expires_at") {
        Value::Null => String::new(),
        _ => format!(" until {}", key.time_cell("expires_at")),
    };
    console.note(&format!("key {name}, {}{until}; the token is not shown again", key.cell("role")));
    Ok(())
}

fn list(console: &mut Console) -> Result<(), Failure> {
    let answer = console.client.get(PATH, &Query::new())?;
    let columns = [left("NAME"), left("ROLE"), left("CREATED"), left("EXPIRES"), left("LAST USED")];
    show_whole(console, &answer, "API keys", &columns, |key: &Value| {
        vec![
            key.cell("name"),
            key.cell("role"),
            key.time_cell("created_at"),
            if key.field("expires_at").is_null() { "never".to_owned() } else { key.time_cell("expires_at") },
            key.time_cell("last_used_at"),
        ]
    })
}
