//! `meridian ctl cluster`: the node's part in its cluster, its members, and changes of them.

mod backup;
mod drain;
mod sentences;

use std::iter;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use settings::HostPort;
use ureq::http::Method;

use self::sentences::SENTENCES;
use super::{Command, status as nodes_table};
use crate::alarms;
use crate::client::Client;
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING};
use crate::human;
use crate::query::{Query, encode};
use crate::table::{Column, Table, left, right};

/// Show cluster status and members, and change the members
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl cluster
  meridian ctl cluster --json | jq .acknowledging
  meridian ctl cluster nodes        clients of each node, and the core of each replicant
  meridian ctl cluster shards       leader and replicas of each shard of the session store
  meridian ctl cluster leave        stop this node permanently and remove it from the cluster
  meridian ctl cluster remove n3    a dead node that does not return
  meridian ctl cluster transfer n2  make another core the leader, before a long maintenance of this one
  meridian ctl cluster balance      spread the replicants evenly, after cores were down
  meridian ctl cluster drain n2     take the clients away from a node gently, before a maintenance
  meridian ctl cluster undrain n2   let it accept clients again
  meridian ctl cluster rebalance    spread the clients evenly over the nodes
  meridian ctl cluster backup 2026-01-31    copy what the cores have on disk, while they run
  meridian ctl cluster join 10.0.0.7:7883   give the address of another node to a waiting node
  meridian ctl links            one link per line
  meridian ctl routes --nodes   the routes of each node that this node knows

The members are those that the cores agree on: `alive`, `suspect` when no core reaches a node, `dead` once a majority has
declared its incarnation dead. A dead node that starts again joins again; remove only a node that does not return.
VOTE shows which cores vote and which one is the leader; a replicant does not know, and shows `-` for cores.

Exit code 4: the node belongs to no cluster.")]
pub struct ClusterArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show cluster status (the default)
    Status,
    /// List the nodes, each as it sees itself
    Nodes,
    /// List the shards of the session store with their leaders, replicas and sizes
    #[command(after_help = "\
Durable sessions and retained messages are divided into shards by their names. With cluster.replicas each shard has
replicas on so many cores, and one of them leads. A shard without a leader waits for a majority of its replicas. BEHIND
names the replicas that lack records or do not answer. `meridian ctl session CLIENT` shows the shard of a session.")]
    Shards,
    /// Give addresses of other nodes to a node that waits for its cluster or reaches no core
    #[command(
        after_help = "The addresses are used until the process ends; the setting cluster.join is permanent."
    )]
    Join {
        /// Cluster ports of the other nodes, HOST:PORT
        #[arg(required = true, value_name = "ADDRESS")]
        addresses: Vec<HostPort>,
    },
    /// Stop this node permanently and remove it from the cluster; its clients are disconnected
    #[command(after_help = "\
A node that is only stopped stays a member: a stopped core still counts in every majority. A core that leaves gives up its
vote first, so that the majority of the others becomes smaller; that can take half a minute. When the node starts again it
joins as a new node.

With cluster.replicas, a core leaves when other cores have its durable sessions. With cluster.replicas = 0, durable
sessions on the node's disk do not move to other nodes: --discard-sessions confirms that they may be lost.")]
    Leave {
        #[arg(long, help = SENTENCES.leave.discard_sessions.as_str())]
        discard_sessions: bool,
    },
    Drain(drain::DrainArgs),
    /// Let a drained node accept clients again
    Undrain {
        // Not `node`: that is the flag for the node to ask.
        /// Name of the node
        #[arg(value_name = "NODE")]
        name: String,
    },
    /// List the drains of all nodes with their progress
    Drains,
    Rebalance(drain::RebalanceArgs),
    Backup(backup::BackupArgs),
    #[command(about = SENTENCES.transfer.about.as_str(), after_help = SENTENCES.transfer.effect.as_str())]
    Transfer {
        // Not `node`: that is the flag for the node to ask.
        /// Name of the core
        #[arg(value_name = "NODE")]
        name: String,
    },
    #[command(about = SENTENCES.balance.about.as_str(), after_help = SENTENCES.balance.effect.as_str())]
    Balance,
    /// Remove a dead node: nothing is kept for it any more
    Remove {
        // Not `node`: that is the flag for the node to ask.
        /// Name of the node
        #[arg(value_name = "NODE")]
        name: String,
    },
}

pub const CLUSTER: &str = "/api/v1/cluster";

impl Command for ClusterArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self.verb {
            None | Some(Verb::Status) => status(console),
            Some(Verb::Nodes) => nodes_of(console),
            Some(Verb::Shards) => shards(console),
            Some(Verb::Join { addresses }) => join(console, &addresses),
            Some(Verb::Leave { discard_sessions }) => leave(console, discard_sessions),
            Some(Verb::Drain(args)) => drain::drain(console, &args),
            Some(Verb::Undrain { name }) => drain::undrain(console, &name),
            Some(Verb::Drains) => drain::drains(console),
            Some(Verb::Rebalance(args)) => drain::rebalance(console, &args),
            Some(Verb::Backup(args)) => backup::backup(console, &args),
            Some(Verb::Transfer { name }) => transfer(console, &name),
            Some(Verb::Balance) => balance(console),
            Some(Verb::Remove { name }) => remove(console, &name),
        }
    }
}

const SHARDS: &[Column] = &[
    right("SHARD"),
    left("LEADER"),
    left("REPLICAS"),
    left("BEHIND"),
    right("SESSIONS"),
    right("QUEUED"),
    right("RETAINED"),
    left("CHANGE"),
];

fn shards(console: &mut Console) -> Result<(), Failure> {
    let view = console.client.get(CLUSTER, &Query::new())?;
    let shards = view.field("shards");
    if shards.is_null() {
        if console.json {
            return console.document(shards);
        }
        return console.line(
            "each node keeps the sessions of its own clients (cluster.replicas = 0), or the cores have not placed the \
             shards yet",
        );
    }
    let nodes = console.client.get("/api/v1/nodes", &Query::new().with("limit", 1_000))?;
    let led = led_shards(&nodes);
    if console.json {
        let mut document = shards.clone();
        if let Some(items) = document["items"].as_array_mut() {
            for shard in items {
                shard["figures"] = figures_of(&led, shard).cloned().unwrap_or_default();
            }
        }
        return console.document(&document);
    }
    let mut table = Table::new(SHARDS);
    for shard in view.list("shards.items") {
        let change = [("joining", "joins"), ("leaving", "leaves")];
        let change = change.into_iter().filter(|(field, _)| !shard.field(field).is_null());
        let change: Vec<String> =
            change.map(|(field, does)| format!("{} {does}", shard.cell(field))).collect();
        let replicas: Vec<String> =
            shard.list("replicas").iter().filter_map(Value::as_str).map(Into::into).collect();
        let figures = figures_of(&led, shard);
        let figure = |of: &dyn Fn(&Value) -> String| figures.map_or_else(|| NOTHING.to_owned(), of);
        table.row(vec![
            shard.cell("shard"),
            shard.cell("leader"),
            replicas.join(", "),
            figure(&behind),
            figure(&|of| of.count_cell("sessions")),
            figure(&|of| of.count_cell("queued_messages")),
            figure(&|of| of.count_cell("retained_messages")),
            if change.is_empty() { NOTHING.to_owned() } else { change.join(", ") },
        ]);
    }
    console.table(&mut table)?;
    alarms::note(console, |alarm| alarm.text("code") == "shards")
}

/// Returns the shards that each node leads, as that node knows them.
fn led_shards(nodes: &Value) -> Vec<(String, Value)> {
    let of_node = |node: &Value| {
        let name = node.text("name");
        let shards = node.list("cluster.shards").to_vec();
        shards.into_iter().map(move |shard| (name.clone(), shard))
    };
    nodes.list("items").iter().flat_map(of_node).collect()
}

/// Returns what the leader of a shard knows about it.
fn figures_of<'a>(led: &'a [(String, Value)], shard: &Value) -> Option<&'a Value> {
    let (leader, number) = (shard.text("leader"), shard.whole("shard"));
    let found = led.iter().find(|(node, of)| *node == leader && of.whole("shard") == number);
    found.map(|(_, of)| of)
}

/// Time in seconds after which a replica that does not answer is shown.
const SILENT: f64 = 2.0;
/// Number of records that a replica may lack for a moment.
const BEHIND: u64 = 100;

/// Names the replicas that lack records or do not answer.
fn behind(figures: &Value) -> String {
    let of = |replica: &Value| {
        let (behind, silent) = (replica.whole("behind"), replica.number("silent_s"));
        let name = replica.cell("node");
        match (behind, silent) {
            (_, Some(silent)) if silent > SILENT => {
                Some(format!("{name} silent for {}", human::seconds(silent)))
            }
            (_, None) => Some(format!("{name} does not answer")),
            (None, _) => Some(format!("{name} has nothing yet")),
            (Some(behind), _) if behind > BEHIND => Some(format!("{name} by {}", human::count(behind))),
            _ => None,
        }
    };
    let late: Vec<String> = figures.list("replicas").iter().filter_map(of).collect();
    if late.is_empty() { NOTHING.to_owned() } else { late.join(", ") }
}

/// Counts the shards that have a leader.
fn shards_line(view: &Value) -> String {
    let shards = view.list("shards.items");
    if shards.is_empty() {
        return String::new();
    }
    let led = shards.iter().filter(|shard| !shard.field("leader").is_null()).count();
    let moving =
        shards.iter().filter(|shard| !shard.field("joining").is_null() || !shard.field("leaving").is_null());
    format!(
        "{}: {led} have a leader, {} change; {} replicas each",
        shards.len(),
        moving.count(),
        view.count_cell("shards.replicas")
    )
}

const MEMBERS: &[Column] = &[
    left("NODE"),
    left("ROLE"),
    left("REGION"),
    left("ADDRESS"),
    left("STATE"),
    left("VOTE"),
    right("INCARNATION"),
];

fn status(console: &mut Console) -> Result<(), Failure> {
    let view = console.client.get(CLUSTER, &Query::new())?;
    if console.json {
        return console.document(&view);
    }
    console.pairs(&about(&view))?;
    let members = view.list("membership.members");
    if !members.is_empty() {
        console.line("")?;
        let known = Knowledge {
            votes: !view.field("membership.replica").is_null(),
            is_stale: view.truth("membership.stale"),
        };
        let mut table = Table::new(MEMBERS);
        members.iter().for_each(|member| table.row(row(member, known)));
        console.table(&mut table)?;
    }
    alarms::note(console, |_| true)
}

/// Knowledge of the asked node about the members.
#[derive(Clone, Copy)]
struct Knowledge {
    votes: bool,
    /// True while it reaches no majority of cores.
    is_stale: bool,
}

/// Suffix of a state that may be outdated.
const STALE: &str = " (as last known)";

fn row(member: &Value, known: Knowledge) -> Vec<String> {
    let vote = match (member.truth("leads"), member.truth("votes")) {
        (true, _) if known.is_stale => "led (as last known)",
        (true, _) => "leads",
        (false, true) => "votes",
        // Replicants never vote, so every node knows the answer for them.
        (false, false) if known.votes || member.text("role") == "replicant" => "no",
        (false, false) => NOTHING,
    };
    let region = member.text("region");
    vec![
        member.cell("node"),
        member.cell("role"),
        if region.is_empty() { NOTHING.to_owned() } else { region },
        member.cell("address"),
        match member.cell("state") {
            state if known.is_stale && state == "alive" => state + STALE,
            state => state,
        },
        vote.to_owned(),
        member.cell("incarnation"),
    ]
}

fn remove(console: &mut Console, node: &str) -> Result<(), Failure> {
    confirm(console, &sentences::of(&SENTENCES.remove.question, node))?;
    let path = format!("{CLUSTER}/nodes/{}", encode(node));
    let answer = console.client.send(Method::DELETE, &path, &Query::new(), None)?;
    console.done(&answer, &sentences::of(&SENTENCES.remove.done, node))
}

fn nodes_of(console: &mut Console) -> Result<(), Failure> {
    let nodes = console.client.get("/api/v1/nodes", &Query::new().with("limit", 1_000))?;
    if console.json {
        return console.document(&nodes);
    }
    nodes_table::members(console, &nodes)?;
    console.flush()
}

fn join(console: &mut Console, addresses: &[HostPort]) -> Result<(), Failure> {
    let addresses: Vec<_> = addresses.iter().map(HostPort::as_str).collect();
    let body = json!({ "addresses": addresses });
    let answer = console.client.send(Method::POST, &format!("{CLUSTER}/join"), &Query::new(), Some(&body))?;
    console.done(&answer, "the node connects there, too; `meridian ctl cluster` shows when it is a member")
}

fn leave(console: &mut Console, discard_sessions: bool) -> Result<(), Failure> {
    let view = console.client.get(CLUSTER, &Query::new())?;
    let node = view.cell("node");
    let cores = view.list("membership.members");
    let cores = cores.iter().filter(|it| it.text("role") == "core" && it.text("state") == "alive").count();
    let is_core = view.text("role") == "core";
    confirm(console, &SENTENCES.leave.asked(&node, is_core.then_some(cores)))?;
    let body = json!({ "discard_sessions": discard_sessions });
    let path = format!("{CLUSTER}/leave");
    let answer = console.client.send(Method::POST, &path, &Query::new(), Some(&body))?;
    console
        .done(&answer, &format!("{}: {}", sentences::of(&SENTENCES.leave.done, &node), SENTENCES.leave.see))
}

fn transfer(console: &mut Console, node: &str) -> Result<(), Failure> {
    let path = format!("{CLUSTER}/leader");
    let answer = console.client.send(Method::PUT, &path, &Query::new(), Some(&json!({ "node": node })))?;
    console.done(&answer, &sentences::of(&SENTENCES.transfer.done, node))
}

fn balance(console: &mut Console) -> Result<(), Failure> {
    let answer = console.client.send(Method::POST, &format!("{CLUSTER}/balance"), &Query::new(), None)?;
    console.done(&answer, &format!("{}: {}", SENTENCES.balance.done, SENTENCES.balance.see))
}

/// Returns the view; `None` when the node belongs to no cluster, or is of a version without clusters.
///
/// # Errors
/// Those of the client.
pub fn view(client: &Client) -> Result<Option<Value>, Failure> {
    match client.get(CLUSTER, &Query::new()) {
        Ok(view) => Ok(Some(view)),
        Err(Failure::Refused(problem)) if matches!(problem.status, 404 | 503) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns one line for `ctl status`.
pub fn line(view: &Value) -> String {
    let acknowledging = if view.truth("acknowledging") { "acknowledging" } else { "NOT acknowledging" };
    format!("{}; nodes: {}; {acknowledging}", view.cell("role"), nodes(view))
}

fn about(view: &Value) -> Vec<(&'static str, String)> {
    let count = |path: &str| view.count_cell(path);
    let region = match view.text("region") {
        region if region.is_empty() => String::new(),
        region => format!(", region {region}"),
    };
    let attached = match (&view.text("role")[..], view.text("attached_to")) {
        ("replicant", core) if core.is_empty() => "no core".to_owned(),
        ("replicant", core) => format!("core {core}"),
        _ => String::new(),
    };
    let acknowledging = if view.truth("acknowledging") {
        let by = match view.text("role") == "core" {
            true => iter::once("itself".to_owned()).chain(names(view, "lease_granted_by")).collect(),
            false => names(view, "lease_granted_by"),
        };
        let until = match view.number("lease_s") {
            Some(left) if left > 0.0 => format!(
                " by leases of {}, for {} unless they are renewed",
                by.join(", "),
                human::seconds(left)
            ),
            _ => String::new(),
        };
        format!("yes: messages of QoS 1 and 2 are acknowledged{until}")
    } else {
        "no: publishers at QoS 1 and 2 wait, as this node may not know subscriptions of other nodes"
            .to_owned()
    };
    let filters: u64 =
        view.list("routes").iter().filter_map(|of| of.whole("filters")).fold(0, u64::saturating_add);
    vec![
        ("node", format!("{} ({}{region})", view.cell("node"), view.cell("role"))),
        ("attached to", attached),
        ("acknowledging", acknowledging),
        ("grants to", names(view, "leases_granted").join(", ")),
        ("waits for", view.text("membership.waits_for")),
        ("nodes", nodes(view)),
        ("cores", cores(view)),
        ("quorum", quorum(view)),
        ("members", members(view)),
        ("shards", shards_line(view)),
        ("routes", format!("{} filters of {} nodes", human::count(filters), view.list("routes").len())),
        (
            "SUBACKs",
            format!(
                "{} wait for the core, {} for the region, {} for the cluster; {} timed out",
                count("subacks_waiting_core"),
                count("subacks_waiting_region"),
                count("subacks_waiting_cluster"),
                count("subacks_overdue")
            ),
        ),
        (
            "gave up",
            format!(
                "{} of QoS 0; of QoS 1 and 2, {} to suspect nodes, and {} refused",
                count("dropped_qos0"),
                count("dropped_suspect"),
                count("refused")
            ),
        ),
    ]
}

/// Names of the nodes in a list.
fn names(view: &Value, list: &str) -> Vec<String> {
    view.list(list).iter().map(|one| one.cell("node")).collect()
}

/// Describes the nodes, including this one.
fn nodes(view: &Value) -> String {
    let links = view.list("links");
    let of = |is_it: &dyn Fn(&str) -> bool| -> Vec<String> {
        links.iter().filter(|link| is_it(&link.text("state"))).map(|link| link.cell("node")).collect()
    };
    let kinds =
        [("suspect", of(&|state| state != "up" && state != "dead")), ("dead", of(&|state| state == "dead"))];
    let all = links.len() + 1;
    let away: usize = kinds.iter().map(|(_, nodes)| nodes.len()).sum();
    if away == 0 {
        return format!("{all}, all up");
    }
    let some = kinds.iter().filter(|(_, nodes)| !nodes.is_empty());
    let away_of: String =
        some.map(|(state, nodes)| format!(", {} {state} ({})", nodes.len(), nodes.join(", "))).collect();
    format!("{all}: {} up{away_of}", all - away)
}

/// Returns the number of cores that this node reaches, itself included, and the number of all cores.
fn reached(view: &Value) -> (usize, usize) {
    let own = usize::from(view.text("role") == "core");
    let cores = view.list("links").iter().filter(|link| link.text("role") == "core");
    let (mut up, mut all) = (own, own);
    for core in cores {
        all += 1;
        up += usize::from(core.text("state") == "up");
    }
    (up, all)
}

/// Describes the meta group and its leader, as far as this node knows.
fn quorum(view: &Value) -> String {
    let replica = view.field("membership.replica");
    if replica.is_null() {
        return match view.truth("membership.stale") {
            false => "yes: a majority of cores lets this node acknowledge".to_owned(),
            true => "NO: this node reaches no majority of cores; members are as last known".to_owned(),
        };
    }
    let voters = replica.whole("voters").unwrap_or(0);
    let leads = if replica.truth("quorum") { "leads" } else { "led, as last known," };
    let leader = match (&replica.text("raft_state")[..], replica.text("leader")) {
        ("leader", _) => format!("this node {leads}"),
        (_, leader) if leader.is_empty() => "nobody leads".to_owned(),
        (_, leader) => match replica.text("leader_via") {
            by if by.is_empty() => format!("{leader} {leads}"),
            by => format!("{leader} {leads}, reached through {by}"),
        },
    };
    let has = if replica.truth("quorum") { "yes" } else { "NO" };
    format!(
        "{has}: {leader} since term {}; {voters} vote, a majority is {}; change {} of {} applied",
        replica.count_cell("term"),
        voters / 2 + 1,
        replica.count_cell("applied_index"),
        replica.count_cell("last_index")
    )
}

/// Counts the members by state.
fn members(view: &Value) -> String {
    let members = view.list("membership.members");
    let of = |state: &str| members.iter().filter(|member| member.text("state") == state).count();
    let leaving = match of("leaving") {
        0 => String::new(),
        some => format!("{some} leaving, "),
    };
    format!(
        "{}: {} alive, {leaving}{} suspect, {} dead{}",
        members.len(),
        of("alive"),
        of("suspect"),
        of("dead"),
        if view.truth("membership.stale") { STALE } else { "" }
    )
}

fn cores(view: &Value) -> String {
    let (up, all) = reached(view);
    format!("{up} of {all} reached, a majority is {}", all / 2 + 1)
}

/// Formats the difference of two clocks, which is not exact to the millisecond.
pub fn clock_difference(ahead: f64) -> String {
    let seconds = ahead.abs();
    human::seconds(if seconds < 10.0 { seconds } else { seconds.round() })
}
