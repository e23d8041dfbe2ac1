//! `meridian ctl routes`.

mod nodes;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::Command;
use crate::args::token_of_file;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, take};
use crate::human;
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};
use crate::url::Url;

/// Show filters with their destinations, or the receivers of one topic
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl routes --match building/3/temp    receivers of a message on this topic, and their filters
  meridian ctl routes --prefix building/         filters with this beginning
  meridian ctl routes --filter 'building/#'
  meridian ctl routes --nodes                    in a cluster: the routes of each node that this node knows
  meridian ctl routes --diff http://10.0.0.2:18083   compare with the node there; exit code 1 when they differ")]
pub struct RoutesArgs {
    /// Show the receivers of a message on this topic
    #[arg(long = "match", value_name = "TOPIC", conflicts_with_all = ["filter", "prefix"])]
    topic: Option<String>,
    /// Show exactly this Topic Filter
    #[arg(long, conflicts_with = "prefix")]
    filter: Option<String>,
    /// Show Topic Filters that begin with this
    #[arg(long)]
    prefix: Option<String>,
    /// List the nodes of the cluster, with the routes of each that this node knows
    #[arg(long, conflicts_with_all = ["topic", "filter", "prefix"])]
    nodes: bool,
    /// Compare the routes of each node that this node knows with those that the node at this URL knows
    #[arg(long, value_name = "URL", value_parser = Url::parse, conflicts_with_all = ["topic", "filter", "prefix", "nodes"])]
    diff: Option<Url>,
    /// File with the token for the node of --diff; default: the same token as for this node
    #[arg(long, value_name = "FILE", requires = "diff")]
    diff_token_file: Option<PathBuf>,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

impl Command for RoutesArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        if self.nodes {
            return nodes::list(console);
        }
        if let Some(url) = self.diff {
            let token = self.diff_token_file.as_deref().map(token_of_file).transpose()?;
            return nodes::diff(console, url, token);
        }
        let query = Query::new().with("limit", self.limit);
        let (answer, noun) = match &self.topic {
            Some(topic) => (receivers(console, &query.with("topic", topic))?, "receivers"),
            None => {
                let query = query.maybe("filter", self.filter.as_ref()).maybe("prefix", self.prefix.as_ref());
                let answer = console.client.get("/api/v1/routes", &query)?;
                let columns = [left("FILTER"), left("DESTINATIONS")];
                show_whole(console, &answer, "routes", &columns, |route| {
                    vec![route.cell("filter"), destinations(route)]
                })?;
                (answer, "routes")
            }
        };
        if !console.json && answer.truth("truncated") {
            console.flush()?;
            let of =
                answer.whole("total").map(|total| format!(" of {}", human::count(total))).unwrap_or_default();
            console.note(&format!("the first {}{of} {noun}; --limit N shows up to 1,000", self.limit));
        }
        Ok(())
    }
}

fn receivers(console: &mut Console, query: &Query) -> Result<Value, Failure> {
    let mut answer = console.client.get("/api/v1/routes/match", query)?;
    if console.json {
        console.document(&answer)?;
        return Ok(answer);
    }
    // The list has its own name here.
    let listed = json!({"items": take(&mut answer, "receivers")});
    let columns = [left("CLIENT"), left("STATE"), left("NODE"), right("QOS"), left("SHARE"), left("FILTERS")];
    show_whole(console, &listed, "receivers", &columns, |receiver| {
        let filters: Vec<&str> = receiver.list("filters").iter().filter_map(Value::as_str).collect();
        vec![
            receiver.cell("client_id"),
            if receiver.truth("connected") { "connected" } else { "absent" }.to_owned(),
            receiver.cell("node"),
            receiver.cell("qos"),
            receiver.text("share"),
            filters.join(" "),
        ]
    })?;
    Ok(answer)
}

/// Shows the destinations of one route on one line; a filter with thousands of them is cut.
fn destinations(route: &Value) -> String {
    const SHOWN: usize = 8;
    let all = route.list("destinations");
    let mut shown: Vec<String> = all
        .iter()
        .take(SHOWN)
        .map(|destination| match &destination.text("kind")[..] {
            "client" => format!("client {}", destination.cell("client_id")),
            "session_qos0" => format!("client {} (QoS 0)", destination.cell("client_id")),
            "shard" => format!("sessions of shard {}", destination.cell("shard")),
            "shard_groups" => format!("shared groups of shard {}", destination.cell("shard")),
            other => other.to_owned(),
        })
        .collect();
    if all.len() > SHOWN {
        shown.push(format!(".. {} more", all.len() - SHOWN));
    }
    shown.join(", ")
}
