//! `meridian ctl` against servers of all kinds, by command.

mod actions;
mod bridges;
mod clients;
mod cluster;
mod config;
mod external_links;
mod failures;
mod hostile;
mod lists;
mod messages;
mod routes;
mod status;
mod streams;
mod users;

use clap::Parser;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::CtlArgs;
use crate::failure::Failure;
use crate::mock::{Mock, Reply, Request};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: CtlArgs,
}

/// Result of a command.
#[derive(Debug)]
struct Outcome {
    result: Result<(), Failure>,
    out: String,
    notes: String,
}

impl Outcome {
    /// Returns the standard output of a command that must succeed.
    fn out(self) -> String {
        self.result.unwrap();
        self.out
    }

    fn json(self) -> Value {
        serde_json::from_str(&self.out()).unwrap()
    }

    fn lines(self) -> Vec<Value> {
        self.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn code(&self) -> u8 {
        self.result.as_ref().map_or_else(Failure::code, |()| 0)
    }

    fn error(&self) -> String {
        self.result.as_ref().unwrap_err().to_string()
    }
}

fn run(url: &str, arguments: &[&str]) -> Outcome {
    let line = ["ctl", "--url", url, "--timeout", "5s"].into_iter().chain(arguments.iter().copied());
    let args = Line::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).args;
    let (result, out, notes) = args.run_captured();
    Outcome { result, out, notes }
}

fn ctl(mock: &Mock, arguments: &str) -> Outcome {
    run(&mock.url, &arguments.split(' ').collect::<Vec<_>>())
}

/// Alarms of a node.
fn alarms() -> Value {
    let alarm = |severity: &str, code: &str, text: &str| json!({"node": "n1", "severity": severity, "code": code, "text": text});
    json!({"items": [
        alarm("error", "dead", "n3 is dead: start it again"),
        alarm("error", "link", "n4 (10.0.0.4:7883): silent for 12s; no route\u{1b}"),
        alarm("warning", "open", "there is no API key"),
        alarm("notice", "bbr", "links do not use BBR"),
    ], "next": null})
}

/// A replicant of two cores, where `n3` is cut off, with `position` changes of `n2`.
fn cluster(node: &str, position: u64) -> Value {
    json!({"node": node, "role": "replicant", "region": "north", "attached_to": "n2", "acknowledging": false,
        "subacks_waiting_core": 3, "subacks_waiting_region": 2, "subacks_waiting_cluster": 1, "dropped_qos0": 2000,
        "routes": [
            {"node": node, "role": "replicant", "position": 1, "filters": 1, "digest": "aa", "incarnation": 7},
            {"node": "n2", "role": "core", "position": position, "filters": 5, "digest": position.to_string(), "incarnation": 7},
            {"node": "n3", "role": "core", "position": 2, "filters": 6, "digest": "cc", "incarnation": 7, "suspect": true}],
        "links": [
            {"node": "n2", "role": "core", "region": "", "state": "up", "state_s": 60, "connections": 4, "connections_wanted": 4,
             "round_trip_ms": 0.25, "bytes_sent": 2048, "retransmitted_percent": 0.5,
             "lanes": [{"class": "assured", "stalled": 3, "refused": 1, "lost": 1, "waiting_frames": 2, "waiting_bytes": 1536, "oldest_s": 1.5}]},
            {"node": "n3", "role": "core", "region": "south", "state": "suspect", "state_s": 12, "connections": 0,
             "connections_wanted": 4, "address": "10.0.0.3:7883", "last_error": "no route", "last_error_s": 3, "lanes": []}],
        "membership": {"cluster_uid": "ff", "index": 40, "stale": true, "waits_for": null, "members": [], "replica": null}})
}

/// The same view, of a core that knows the members: `n2` is the leader, and `n3` is dead.
fn replicated(quorum: bool) -> Value {
    let mut view = cluster("n1", 4);
    let member = |node: &str, state: &str, leads: bool| {
        json!({"node": node, "role": "core", "region": "", "address": format!("{node}:7883"), "incarnation": 7, "state": state,
            "votes": node != "n1", "leads": leads})
    };
    view["membership"] = json!({"cluster_uid": "ff", "index": 40, "waits_for": null,
        "members": [member("n1", "alive", false), member("n2", "alive", true), member("n3", "dead", false)],
        "replica": {"raft_state": "follower", "term": 1234, "leader": "n2", "leader_via": null, "last_index": 41, "applied_index": 40, "quorum": quorum, "voters": 3,
            "learners": 0, "failure": null}});
    view
}
