//! `meridian ctl ban`: clients that may not connect.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use ureq::http::Method;

use super::{Command, without_list_flags};
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::human;
use crate::pages::{List, PageArgs};
use crate::query::{Query, encode};
use crate::table::left;

/// Ban clients, and list bans
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl ban                                             list bans
  meridian ctl ban add client-id sensor-17 --for 1h --reason 'sends garbage'
  meridian ctl ban add username 'guest-*'                      every name with this beginning
  meridian ctl ban add address 10.1.0.0/16
  meridian ctl ban remove 3                                    by its ID

Connected clients are disconnected within seconds, in a cluster on every node.")]
pub struct BanArgs {
    #[command(flatten)]
    page: PageArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List bans (the default)
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Add a ban
    Add {
        /// Property of the clients to ban
        #[arg(value_enum)]
        kind: Kind,
        /// A Client Identifier or user name, where * at the end matches every rest; an IP address or network
        value: String,
        /// Reason, for people
        #[arg(long, default_value = "")]
        reason: String,
        /// Duration; without it, the ban ends when it is removed
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        time: Option<Duration>,
    },
    /// Remove a ban
    Remove {
        /// ID of the ban, as the list shows it
        id: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    #[value(alias = "client", alias = "client_id")]
    ClientId,
    #[value(alias = "user")]
    Username,
    #[value(alias = "ip")]
    Address,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ClientId => "client_id",
            Self::Username => "username",
            Self::Address => "address",
        }
    }
}

impl Command for BanArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() || self.page.plain())?;
        match self.verb {
            None => list(console, &self.page),
            Some(Verb::List { page }) => list(console, &page),
            Some(Verb::Add { kind, value, reason, time }) => {
                let seconds = time.map(|time| time.as_millis().div_ceil(1_000) as u64);
                let body = json!({"kind": kind.name(), "value": value, "reason": reason, "for_s": seconds});
                let ban = console.client.send(Method::POST, "/api/v1/bans", &Query::new(), Some(&body))?;
                let time = time.map(|time| format!(" for {}", human::duration(time))).unwrap_or_default();
                let sentence = format!("ban {}: {} {value}{time}", ban.cell("id"), kind.name());
                console.done(&ban, &sentence)
            }
            Some(Verb::Remove { id }) => {
                let path = format!("/api/v1/bans/{}", encode(&id));
                let answer = console.client.send(Method::DELETE, &path, &Query::new(), None)?;
                console.done(&answer, &format!("ban {id} lifted"))
            }
        }
    }
}

fn list(console: &mut Console, page: &PageArgs) -> Result<(), Failure> {
    let columns = [left("ID"), left("KIND"), left("VALUE"), left("ENDS"), left("BY"), left("REASON")];
    let row = |ban: &Value| {
        vec![
            ban.cell("id"),
            ban.cell("kind"),
            ban.cell("value"),
            if ban.field("until").is_null() { "never".to_owned() } else { ban.time_cell("until") },
            ban.cell("by"),
            ban.text("reason"),
        ]
    };
    List { path: "/api/v1/bans", query: Query::new(), noun: "bans", columns: &columns, row: &row, keep: None }
        .show(console, page)
}
