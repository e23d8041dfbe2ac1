//! `meridian ctl cluster drain`, `undrain`, `drains` and `rebalance`.

use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::sentences::{self, SENTENCES};
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING};
use crate::human;
use crate::interrupt::Interrupt;
use crate::pages::show_whole;
use crate::query::{Query, encode};
use crate::table::{left, right};

const DRAINS: &str = "/api/v1/drains";
/// Time between two looks at the progress.
const LOOK: Duration = Duration::from_millis(500);

/// Take the clients and shards away from a node gently
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl cluster drain n2                   all clients leave within 5 minutes
  meridian ctl cluster drain n2 --rate 200        200 clients in a second
  meridian ctl cluster drain n2 --for 30m --wait 1m
  meridian ctl cluster drain n2 --to n3,n4        only these nodes get the clients and shards
  meridian ctl cluster drain n2 --detach          return at once; `meridian ctl cluster drains` shows the progress

The node refuses new clients, and /health/ready answers 503. Other cores take over the shards that it leads. After --wait
it disconnects its clients, idle ones first, members of shared groups last. MQTT 5.0 clients get 0x9C (Use another server).
With --to, shards go to the named nodes where these have a replica, and MQTT 5.0 clients get their node.client_address.
Durable sessions lose nothing. The drain pauses by itself while another node is overloaded, or the others have no room:
with --to, only the named nodes count.
It goes on after a restart of the node, until `meridian ctl cluster undrain`. Ctrl-C ends this command, and not the drain.")]
pub struct DrainArgs {
    // Not `node`: that is the flag for the node to ask.
    /// Name of the node
    #[arg(value_name = "NODE")]
    name: String,
    #[command(flatten)]
    pace: Pace,
    /// Time between the refusal of new clients and the first disconnect, for load balancers
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    wait: Duration,
    /// Nodes that get the clients and shards [default: all others]
    #[arg(long, value_name = "NODE,..", value_delimiter = ',')]
    to: Vec<String>,
    /// Return at once
    #[arg(long)]
    detach: bool,
}

#[derive(Args, Debug)]
struct Pace {
    /// Number of clients that are disconnected in a second
    #[arg(long, value_name = "N", conflicts_with = "within")]
    rate: Option<f64>,
    /// Time for all clients
    #[arg(long = "for", id = "within", value_name = "DURATION", default_value = "5m", value_parser = duration)]
    within: Duration,
}

impl Pace {
    fn document(&self) -> Map<String, Value> {
        let mut pace = Map::new();
        pace.insert("within_s".to_owned(), json!(self.within.as_secs()));
        if let Some(rate) = self.rate {
            pace.insert("rate".to_owned(), json!(rate));
        }
        pace
    }
}

/// Spread the clients evenly over the nodes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl cluster rebalance
  meridian ctl cluster rebalance --rate 20 --tolerance 20
  meridian ctl cluster rebalance --dry-run        show the numbers, and disconnect nobody

Each node with more clients than the mean and --tolerance disconnects the others at the given pace. It needs a load balancer
or clients that choose another node. Nodes that are drained do not count.")]
pub struct RebalanceArgs {
    #[command(flatten)]
    pace: Pace,
    /// Part of the mean by which a node may exceed it, in percent
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = clap::value_parser!(u64).range(0..=1_000))]
    tolerance: u64,
    /// Show how many clients each node would keep, and disconnect nobody
    #[arg(long)]
    dry_run: bool,
}

pub fn drain(console: &mut Console, args: &DrainArgs) -> Result<(), Failure> {
    let mut body = args.pace.document();
    body.insert("wait_s".to_owned(), json!(args.wait.as_secs()));
    if !args.to.is_empty() {
        // An earlier version of the node refuses it by name.
        body.insert("to".to_owned(), json!(args.to));
    }
    let path = format!("{DRAINS}/{}", encode(&args.name));
    let answer = console.client.send(Method::PUT, &path, &Query::new(), Some(&Value::Object(body)))?;
    let name = &args.name;
    if args.detach {
        return console.done(
            &answer,
            &format!(
                "{}: `meridian ctl cluster drains` shows it",
                sentences::of(&SENTENCES.drain.begun, name)
            ),
        );
    }
    let interrupt = Interrupt::watch();
    loop {
        thread::park_timeout(LOOK);
        let listed = console.client.get(DRAINS, &Query::new().with("limit", 1_000))?;
        let own = listed.list("items").iter().find(|drain| drain.text("node") == *name);
        match own {
            Some(drain) if drain.text("state") == "drained" => {
                console.progress("");
                warn_of_sessions(console, drain);
                let done =
                    format!("node {name} has no clients any more; {} shards led", drain.cell("shards_led"));
                return console.done(drain, &done);
            }
            Some(drain) => console.progress(&line(drain)),
            None => console.progress(&format!("node {name} has not begun yet")),
        }
        if interrupt.raised() {
            console.progress("");
            console.note("the drain goes on: `meridian ctl cluster drains` shows it, `undrain` cancels it");
            return Ok(());
        }
    }
}

fn warn_of_sessions(console: &mut Console, drain: &Value) {
    if drain.whole("sessions_stay").unwrap_or(0) > 0 {
        console.note(&format!(
            "{} durable sessions stay on the node until it runs again, because cluster.replicas is 0",
            drain.count_cell("sessions_stay")
        ));
    }
}

fn line(drain: &Value) -> String {
    let why = drain.text("paused_because");
    let state = if why.is_empty() { drain.text("state") } else { format!("paused: {why}") };
    let left = match drain.number("left_s") {
        Some(left) => format!(", about {} left", human::seconds(left)),
        None => String::new(),
    };
    format!(
        "{state}; {} of {} clients left, {} shards led{left}",
        drain.count_cell("clients_left"),
        drain.count_cell("clients_before"),
        drain.cell("shards_led")
    )
}

pub fn undrain(console: &mut Console, name: &str) -> Result<(), Failure> {
    let path = format!("{DRAINS}/{}", encode(name));
    let answer = console.client.send(Method::DELETE, &path, &Query::new(), None)?;
    console.done(&answer, &sentences::of(&SENTENCES.drain.cancelled, name))
}

pub fn drains(console: &mut Console) -> Result<(), Failure> {
    let listed = console.client.get(DRAINS, &Query::new().with("limit", 1_000))?;
    let columns = [
        left("NODE"),
        left("KIND"),
        left("TO"),
        left("STATE"),
        right("CLIENTS LEFT"),
        right("OF"),
        right("DISCONNECTED"),
        right("SHARDS"),
        right("PER SECOND"),
        right("TIME LEFT"),
    ];
    show_whole(console, &listed, "drains", &columns, row)
}

fn row(drain: &Value) -> Vec<String> {
    let why = drain.text("paused_because");
    vec![
        drain.cell("node"),
        drain.cell("kind"),
        to(drain),
        if why.is_empty() { drain.cell("state") } else { format!("paused: {why}") },
        drain.count_cell("clients_left"),
        drain.count_cell("clients_before"),
        drain.count_cell("disconnected"),
        drain.cell("shards_led"),
        drain.number("rate").map_or_else(|| NOTHING.to_owned(), human::short),
        if drain.field("left_s").is_null() { NOTHING.to_owned() } else { drain.seconds_cell("left_s") },
    ]
}

fn to(drain: &Value) -> String {
    let names: Vec<&str> = drain.list("to").iter().filter_map(Value::as_str).collect();
    if names.is_empty() { NOTHING.to_owned() } else { names.join(", ") }
}

pub fn rebalance(console: &mut Console, args: &RebalanceArgs) -> Result<(), Failure> {
    let body = json!({
        "tolerance_percent": args.tolerance,
        "dry_run": args.dry_run,
        "pace": args.pace.document(),
    });
    let answer = console.client.send(Method::POST, "/api/v1/rebalance", &Query::new(), Some(&body))?;
    let nodes = answer.list("nodes");
    let silent: Vec<_> = nodes.iter().filter(|node| node.field("connections").is_null()).collect();
    if !silent.is_empty() {
        let names: Vec<String> = silent.into_iter().map(|node| node.text("node")).collect();
        console.note(&format!("no answer from {}: it does not count", names.join(", ")));
    }
    let leaving = nodes.iter().filter(|node| !node.field("keep").is_null());
    let names: Vec<String> =
        leaving.map(|node| format!("{} to {}", node.text("node"), node.cell("keep"))).collect();
    let sentence = match (names.is_empty(), args.dry_run) {
        (true, _) => format!("no node has more than {} % above the mean", args.tolerance),
        (false, true) => format!("clients would leave: {}", names.join(", ")),
        (false, false) => {
            let done = &SENTENCES.rebalance.done;
            format!("{done}: {}; `meridian ctl cluster drains` shows it", names.join(", "))
        }
    };
    console.done(&answer, &sentence)
}
