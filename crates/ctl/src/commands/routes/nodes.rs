//! `meridian ctl routes --nodes` and `--diff`: the routes of each node, as a node of the cluster knows them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::commands::cluster::CLUSTER;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING, take};
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{Table, left, right};
use crate::url::Url;

/// Number of comparisons of two nodes before a difference is reported. A change that only one of them has received may
/// still be on its way.
const POLLS_MAX: u32 = 6;
/// Time between comparisons. Nodes update their views twice a second.
const POLL_INTERVAL: Duration = Duration::from_millis(600);

/// # Errors
/// Those of the client and of standard output.
pub fn list(console: &mut Console) -> Result<(), Failure> {
    let mut view = console.client.get(CLUSTER, &Query::new())?;
    let listed = json!({"items": take(&mut view, "routes")});
    let columns = [
        left("NODE"),
        left("ROLE"),
        right("FILTERS"),
        right("BYTES"),
        right("POSITION"),
        right("TOMBSTONES"),
        left("DIGEST"),
        left("POSITION"),
    ];
    show_whole(console, &listed, "nodes", &columns, |node| {
        vec![
            node.cell("node"),
            node.cell("role"),
            node.count_cell("filters"),
            node.bytes_cell("bytes"),
            node.count_cell("position"),
            node.count_cell("tombstones"),
            node.cell("digest"),
            if node.truth("suspect") { "no: suspect" } else { "yes" }.to_owned(),
        ]
    })
}

/// # Errors
/// [`Failure::Failed`] when they know different routes, and those of the client and of standard output.
pub fn diff(console: &mut Console, url: Url, token: Option<String>) -> Result<(), Failure> {
    let other = console.client.at(url, token)?;
    if other.reveals_token() {
        console.note(&format!("the token goes to {} unencrypted", other.url()));
    }
    let mut compared = compare(&console.client, &other)?;
    for look in 1..POLLS_MAX {
        if compared.differences == 0 {
            break;
        }
        console.progress(&format!("{} differ, look {look} ..", compared.differences));
        // Nothing unparks this thread: pending changes need time to arrive.
        thread::park_timeout(POLL_INTERVAL);
        compared = compare(&console.client, &other)?;
    }
    console.progress("");
    let Compared { here, there, writers, differences, routes_unindexed } = compared;
    if console.json {
        console.document(
            &json!({"here": here, "there": there, "same": differences == 0 && routes_unindexed.is_empty(), "differences": differences, "routes_unindexed": routes_unindexed, "items": writers}),
        )?;
    } else {
        let mut table = Table::new(&[
            left("WRITER"),
            right("POSITION HERE"),
            right("THERE"),
            right("FILTERS HERE"),
            right("THERE"),
            left("RESULT"),
        ]);
        for writer in &writers {
            table.row(vec![
                writer.cell("node"),
                writer.count_cell("here.position"),
                writer.count_cell("there.position"),
                writer.count_cell("here.filters"),
                writer.count_cell("there.filters"),
                writer.cell("result"),
            ]);
        }
        console.table(&mut table)?;
    }
    console.flush()?;
    if !routes_unindexed.is_empty() {
        return Err(Failure::Failed(format!(
            "{} has no room in its routing index for routes of other nodes: publishers of QoS 1 and 2 wait \
             there. Spread the clients over more nodes, then restart it",
            routes_unindexed.join(" and ")
        )));
    }
    if differences == 0 {
        return Ok(());
    }
    let names: Vec<String> =
        writers.iter().filter(|writer| !writer.truth("same")).map(|writer| writer.cell("node")).collect();
    Err(Failure::Failed(format!(
        "{here} and {there} know different routes of {}. A node that is behind catches up when its links do \
         (meridian ctl links on both). When the positions are equal and the routes differ, restart the node \
         that is wrong, which then takes a copy, and report the defect",
        names.join(", ")
    )))
}

/// Comparison of two nodes.
struct Compared {
    here: String,
    there: String,
    writers: Vec<Value>,
    differences: usize,
    /// Nodes that know routes and have no room to index them.
    routes_unindexed: Vec<String>,
}

fn compare(client: &Client, other: &Client) -> Result<Compared, Failure> {
    let (here, there) = (client.get(CLUSTER, &Query::new())?, other.get(CLUSTER, &Query::new())?);
    let (of_here, of_there) = (by_name(&here), by_name(&there));
    let names: BTreeMap<&String, ()> = of_here.keys().chain(of_there.keys()).map(|name| (name, ())).collect();
    let writers: Vec<Value> = names
        .into_keys()
        .map(|name| {
            let (a, b) = (of_here.get(name).copied(), of_there.get(name).copied());
            let result = result(a, b);
            json!({"node": name, "same": result == SAME, "result": result, "here": a, "there": b})
        })
        .collect();
    let differences = writers.iter().filter(|writer| !writer.truth("same")).count();
    let name = |view: &Value| view.text("node");
    let is_full = |view: &&Value| {
        view.number("routes_unindexed").is_some_and(|routes_unindexed| routes_unindexed > 0.0)
    };
    let routes_unindexed = [&here, &there].into_iter().filter(is_full).map(name).collect();
    Ok(Compared { here: name(&here), there: name(&there), writers, differences, routes_unindexed })
}

fn by_name(view: &Value) -> BTreeMap<String, &Value> {
    view.list("routes").iter().map(|node| (node.text("node"), node)).collect()
}

const SAME: &str = "the same";

/// Compares one writer's routes, as two nodes know them.
fn result(here: Option<&Value>, there: Option<&Value>) -> String {
    let (Some(here), Some(there)) = (here, there) else {
        return format!(
            "unknown {}: the lists of nodes differ",
            if here.is_none() { "here" } else { "there" }
        );
    };
    let incarnation = |of: &Value| of.whole("incarnation");
    let position = |of: &Value| of.whole("position").unwrap_or(0);
    match (incarnation(here).cmp(&incarnation(there)), position(here).cmp(&position(there))) {
        (std::cmp::Ordering::Less, _) => "here: of an earlier incarnation".to_owned(),
        (std::cmp::Ordering::Greater, _) => "there: of an earlier incarnation".to_owned(),
        _ if !here.text("digest").is_empty() && here.text("digest") == there.text("digest") => {
            SAME.to_owned()
        }
        (_, std::cmp::Ordering::Less) => format!("here: behind by {}", position(there) - position(here)),
        (_, std::cmp::Ordering::Greater) => format!("there: behind by {}", position(here) - position(there)),
        (_, std::cmp::Ordering::Equal) => {
            format!("DIFFERENT: {} here, {} there", digest(here), digest(there))
        }
    }
}

fn digest(of: &Value) -> String {
    match of.text("digest") {
        digest if digest.is_empty() => NOTHING.to_owned(),
        digest => digest,
    }
}
