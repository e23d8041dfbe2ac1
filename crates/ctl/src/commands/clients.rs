//! `meridian ctl clients` and `sessions`.

use std::time::SystemTime;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::{List, PageArgs};
use crate::query::Query;
use crate::table::{Column, left, right};

/// List clients: connected ones, and absent ones that have a durable session
#[derive(Args, Debug)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  meridian ctl clients
  meridian ctl clients --search sensor- --connected
  meridian ctl clients --address 10.1.0.0/16 --version 3.1.1
  meridian ctl clients --min-queued 1000            slow clients
  meridian ctl clients --all --json | jq -r 'select(.durable) | .client_id'"
)]
pub struct ClientsArgs {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    page: PageArgs,
}

/// List durable sessions, of connected and absent clients
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl sessions --offline --min-queued 1
  meridian ctl sessions --all --json")]
pub struct SessionsArgs {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Args, Debug)]
struct Choice {
    /// Show clients whose Client Identifier contains this text
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Show clients that logged in with this user name
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// Show clients at this IP address or in this network
    #[arg(long, value_name = "IP|CIDR")]
    address: Option<String>,
    /// Show connected clients only
    #[arg(long, conflicts_with = "offline")]
    connected: bool,
    /// Show clients that are not connected only
    #[arg(long)]
    offline: bool,
    /// Show clients of this protocol version
    #[arg(long, value_enum)]
    version: Option<Version>,
    /// Show clients with at least this many queued messages
    #[arg(long, value_name = "N")]
    min_queued: Option<u64>,
    /// Show clients with at least this many messages in flight
    #[arg(long, value_name = "N")]
    min_inflight: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Version {
    #[value(name = "3.1")]
    V31,
    #[value(name = "3.1.1")]
    V311,
    #[value(name = "5.0", alias = "5")]
    V50,
}

impl Choice {
    fn query(&self) -> Query {
        let connected = match (self.connected, self.offline) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let version = self.version.and_then(|version| version.to_possible_value());
        Query::new()
            .maybe("search", self.search.as_ref())
            .maybe("username", self.username.as_ref())
            .maybe("address", self.address.as_ref())
            .maybe("connected", connected)
            .maybe("version", version.map(|version| version.get_name().to_owned()))
            .maybe("min_queued", self.min_queued)
            .maybe("min_inflight", self.min_inflight)
    }
}

const CLIENTS: [Column; 11] = [
    left("CLIENT"),
    left("STATE"),
    left("NODE"),
    left("ADDRESS"),
    left("USER"),
    left("MQTT"),
    right("SINCE"),
    right("SUBS"),
    right("QUEUED"),
    right("IN"),
    right("OUT"),
];

const SESSIONS: [Column; 8] = [
    left("CLIENT"),
    left("STATE"),
    left("NODE"),
    right("SUBS"),
    right("INFLIGHT"),
    right("QUEUED"),
    right("BYTES"),
    left("USER"),
];

fn state(client: &Value) -> String {
    match (client.truth("connected"), client.truth("durable")) {
        (true, true) => "durable",
        (true, false) => "connected",
        (false, _) => "absent",
    }
    .to_owned()
}

impl Command for ClientsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let now = SystemTime::now();
        let row = |client: &Value| {
            vec![
                client.cell("client_id"),
                state(client),
                client.cell("node"),
                client.cell("address"),
                client.cell("username"),
                client.cell("version"),
                client.age_cell("connected_at", now),
                client.count_cell("subscriptions"),
                client.count_cell("queued_messages"),
                client.count_cell("messages_received"),
                client.count_cell("messages_sent"),
            ]
        };
        let query = self.choice.query();
        List { path: "/api/v1/clients", query, noun: "clients", columns: &CLIENTS, row: &row, keep: None }
            .show(console, &self.page)
    }
}

impl Command for SessionsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let row = |client: &Value| {
            vec![
                client.cell("client_id"),
                if client.truth("connected") { "connected" } else { "absent" }.to_owned(),
                client.cell("node"),
                client.count_cell("subscriptions"),
                client.count_cell("inflight"),
                client.count_cell("queued_messages"),
                client.bytes_cell("queued_bytes"),
                client.cell("username"),
            ]
        };
        let (query, keep) = (self.choice.query(), Some(durable as fn(&Value) -> bool));
        List { path: "/api/v1/clients", query, noun: "durable sessions", columns: &SESSIONS, row: &row, keep }
            .show(console, &self.page)
    }
}

fn durable(client: &Value) -> bool {
    client.truth("durable")
}
