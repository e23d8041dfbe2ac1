//! `meridian ctl cluster`: how the node's part in its cluster is, in short.

use clap::Args;
use serde_json::Value;

use super::Command;
use crate::client::Client;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::human;
use crate::query::Query;

/// Say how the node's part in its cluster is, and what to do when something is wrong
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl cluster
  meridian ctl cluster --json | jq .fresh
  meridian ctl links            each link in a line
  meridian ctl routes --nodes   what is known of each node's routes

Exit code 4: the node belongs to no cluster.")]
pub struct ClusterArgs {}

pub const CLUSTER: &str = "/api/v1/cluster";
/// Frames that wait so long are a sign of a link that is too slow for what is published.
const AGE_MAX: f64 = 5.0;
/// Percent of frames that were sent again. Without trouble there are none.
const RETRANSMITTED_MAX: f64 = 1.0;

impl Command for ClusterArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let view = console.client.get(CLUSTER, &Query::new())?;
        if console.json {
            return console.document(&view);
        }
        console.pairs(&about(&view))?;
        console.flush()?;
        for hint in hints(&view) {
            console.note(&hint);
        }
        Ok(())
    }
}

/// `None` when the node belongs to no cluster, or is too old to know of one.
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

/// In a line, for `ctl status`.
pub fn line(view: &Value) -> String {
    let fresh = if view.truth("fresh") { "fresh" } else { "NOT fresh" };
    format!("{}; nodes: {}; {fresh}", view.cell("role"), nodes(view))
}

/// Whether `ctl cluster` has a hint.
pub fn is_in_trouble(view: &Value) -> bool {
    !hints(view).is_empty()
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
    let fresh = if view.truth("fresh") {
        "yes: messages of QoS 1 and 2 are acknowledged"
    } else {
        "no: publishers at QoS 1 and 2 wait, as somebody may have subscribed elsewhere of whom this node has not heard"
    };
    let filters: u64 =
        view.list("routes").iter().filter_map(|of| of.whole("filters")).fold(0, u64::saturating_add);
    vec![
        ("node", format!("{} ({}{region})", view.cell("node"), view.cell("role"))),
        ("attached to", attached),
        ("fresh", fresh.to_owned()),
        ("nodes", nodes(view)),
        ("cores", cores(view)),
        ("routes", format!("{} filters of {} nodes", human::count(filters), view.list("routes").len())),
        (
            "SUBACKs",
            format!(
                "{} wait for the core, {} for the cluster; {} were not in time",
                count("subacks_waiting_core"),
                count("subacks_waiting_cluster"),
                count("subacks_overdue")
            ),
        ),
        (
            "gave up",
            format!(
                "{} of QoS 0; of QoS 1 and 2, {} for nodes that are cut off, and {} refused",
                count("dropped_qos0"),
                count("dropped_suspect"),
                count("refused")
            ),
        ),
    ]
}

/// This one included.
fn nodes(view: &Value) -> String {
    let links = view.list("links");
    let suspects: Vec<String> =
        links.iter().filter(|link| link.text("state") != "up").map(|link| link.cell("node")).collect();
    let all = links.len() + 1;
    match suspects.len() {
        0 => format!("{all}, all up"),
        n => format!("{all}: {} up, {n} suspect ({})", all - n, suspects.join(", ")),
    }
}

/// Cores that this node reaches, itself included, and all.
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

fn cores(view: &Value) -> String {
    let (up, all) = reached(view);
    format!("{up} of {all} reached, a majority is {}", all / 2 + 1)
}

/// What is wrong with one link, if anything is.
pub fn trouble(link: &Value) -> Option<String> {
    let node = link.cell("node");
    if link.text("state") == "up" {
        let (there, wanted) = (link.whole("connections")?, link.whole("connections_wanted")?);
        return (there < wanted)
            .then(|| format!("! {node}: {there} of {wanted} connections are there{}", why(link)));
    }
    Some(format!(
        "! {node} ({}): nothing is heard of it for {}{}",
        link.cell("address"),
        link.seconds_cell("state_s"),
        why(link)
    ))
}

fn why(link: &Value) -> String {
    match link.text("last_error") {
        error if error.is_empty() => String::new(),
        error => format!("; {} ago: {error}", link.seconds_cell("last_error_s")),
    }
}

fn hints(view: &Value) -> Vec<String> {
    let some = |path: &str| view.whole(path).is_some_and(|count| count > 0);
    let mut hints = Vec::new();
    let (up, all) = reached(view);
    if !view.truth("fresh") {
        hints.push(if up > all / 2 {
            "! not fresh, though a majority of cores is reached: routes are still taken in (meridian ctl routes --nodes), links are \
             slow (meridian ctl links), or a core that began anew waits for a node that is missing, up to cluster.suback_wait"
                .to_owned()
        } else {
            "! not fresh: no majority of cores is reached. Bring them back; cluster.without_quorum = \"serve\" goes on without, and \
             may miss subscribers elsewhere"
                .to_owned()
        });
    }
    if view.text("role") == "replicant" && view.text("attached_to").is_empty() {
        hints.push(
            "! attached to no core: it hears nothing of subscriptions elsewhere until one is up".to_owned(),
        );
    }
    hints.extend(view.list("links").iter().filter_map(trouble));
    if view.list("links").iter().any(|link| link.text("state") != "up") {
        hints.push(
            "! of a node that is not heard of: does it run (its `meridian ctl health`), does its address lead there, does the firewall \
             let it through, and are cluster.id, secret and TLS the same?"
                .to_owned(),
        );
    }
    for link in view.list("links") {
        let node = link.cell("node");
        let oldest = link.list("lanes").iter().filter_map(|lane| lane.number("oldest_s")).fold(0.0, f64::max);
        if link.text("state") == "up" && oldest > AGE_MAX {
            hints.push(format!(
                "! {node}: frames have waited for {}: the link or the node is slower than what is published for it",
                human::seconds(oldest)
            ));
        }
        if link.number("retransmitted_percent").is_some_and(|share| share > RETRANSMITTED_MAX) {
            hints.push(format!(
                "! {node}: frames are sent again, as connections to it are lost: look at the network between"
            ));
        }
    }
    if some("refused") || some("dropped_suspect") {
        hints.push("! messages of QoS 1 and 2 found no place on the way to another node: cluster.buffer_max is the place".to_owned());
    }
    if some("routes_refused") {
        hints.push("! routes of other nodes found no place: messages for them are missed (the node's log says which)".to_owned());
    }
    if view.field("carrier.bbr").as_bool() == Some(false) {
        hints.push("! links do not use BBR: over long distances bulk is slow (modprobe tcp_bbr)".to_owned());
    }
    hints
}
