//! `meridian ctl links`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Command;
use super::cluster::{CLUSTER, clock_difference};
use super::external_links::ExternalArgs;
use crate::alarms;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING, take};
use crate::human;
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};

/// List this node's links to the other nodes of its cluster, and manage links to other clusters
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl links
  meridian ctl links --json | jq -r '.items[] | select(.state != \"up\") | .node'
  meridian ctl links external                  links to other clusters: `links external --help` has more

CLOCK is the offset of the other node's clock from this node's. SENT and RECEIVED are bytes on the wire.
RETRANSMITTED is the share of frames that were sent again because a connection was lost. WAITING has the frames that wait to
be sent, by class, and the age of the oldest. STALLS counts how often frames waited because the other node had not read
enough. DROPS counts the frames that were refused because the buffer was full, or were lost.")]
pub struct LinksArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    External(ExternalArgs),
}

impl Command for LinksArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        if let Some(Verb::External(args)) = self.verb {
            return args.run(console);
        }
        let mut view = console.client.get(CLUSTER, &Query::new())?;
        let listed = json!({"items": take(&mut view, "links")});
        let columns = [
            left("NODE"),
            left("ROLE"),
            left("REGION"),
            left("STATE"),
            right("SINCE"),
            right("RTT"),
            right("CLOCK"),
            right("CONNECTIONS"),
            right("SENT"),
            right("RECEIVED"),
            right("RETRANSMITTED"),
            right("STALLS"),
            right("DROPS"),
            left("WAITING"),
        ];
        show_whole(console, &listed, "links", &columns, row)?;
        if !console.json {
            alarms::note(console, |alarm| {
                matches!(&alarm.text("code")[..], "link" | "unjoined_peers" | "dead" | "clock")
            })?;
        }
        Ok(())
    }
}

fn row(link: &Value) -> Vec<String> {
    let region = link.text("region");
    vec![
        link.cell("node"),
        link.cell("role"),
        if region.is_empty() { NOTHING.to_owned() } else { region },
        link.cell("state"),
        link.seconds_cell("state_s"),
        round_trip(link),
        clock(link),
        format!("{}/{}", link.cell("connections"), link.cell("connections_wanted")),
        link.bytes_cell("bytes_sent"),
        link.bytes_cell("bytes_received"),
        link.number("retransmitted_percent")
            .map_or_else(|| NOTHING.to_owned(), |share| format!("{share:.2} %")),
        human::count(sum(link, &["stalled"])),
        human::count(sum(link, &["refused", "lost"])),
        waiting(link),
    ]
}

/// Formats a round-trip time. Links within a data center need fractions of milliseconds.
fn round_trip(link: &Value) -> String {
    match link.number("round_trip_ms") {
        Some(ms) if ms < 10.0 => format!("{ms:.2}ms"),
        _ => link.ms_cell("round_trip_ms"),
    }
}

fn clock(link: &Value) -> String {
    link.number("clock_ahead_s").map_or_else(
        || NOTHING.to_owned(),
        |ahead| {
            let sign = if ahead < 0.0 { "-" } else { "+" };
            format!("{sign}{}", clock_difference(ahead))
        },
    )
}

/// Adds up figures of all classes.
fn sum(link: &Value, figures: &[&str]) -> u64 {
    let each =
        link.list("lanes").iter().flat_map(|lane| figures.iter().filter_map(|figure| lane.whole(figure)));
    each.fold(0, u64::saturating_add)
}

fn waiting(link: &Value) -> String {
    let lanes = link.list("lanes").iter().filter(|lane| lane.whole("waiting_frames").is_some_and(|n| n > 0));
    let each: Vec<String> = lanes
        .map(|lane| {
            format!(
                "{} {} ({})",
                lane.cell("class"),
                lane.bytes_cell("waiting_bytes"),
                lane.seconds_cell("oldest_s")
            )
        })
        .collect();
    if each.is_empty() { NOTHING.to_owned() } else { each.join(", ") }
}
