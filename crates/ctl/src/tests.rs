//! `meridian ctl` against servers of all kinds.

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

/// Serves ten clients on pages of four, whose cursors are numbers; some pages are empty.
fn pages(request: &Request) -> Reply {
    let ask = |name: &str| {
        let query = request.target.split_once('?').map_or("", |(_, query)| query);
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    let from: usize = ask("cursor").map_or(0, |cursor| cursor.parse().unwrap());
    let limit: usize = ask("limit").unwrap().parse().unwrap();
    // An empty page: the search took too long.
    if from == 4 && limit > 0 {
        return Reply::json(&json!({"items": [], "next": "5"}));
    }
    let items: Vec<Value> = (from..10)
        .take(limit.min(4))
        .map(|i| json!({"client_id": format!("c{i}"), "connected": i % 2 == 0, "durable": i % 3 == 0, "version": "5.0", "queued_messages": i * 1000}))
        .collect();
    let end = from + items.len();
    let next = (end < 10).then(|| end.to_string());
    Reply::json(&json!({"items": items, "next": next}))
}

#[test]
fn a_list_goes_on_until_the_limit() {
    let mock = Mock::serve(pages);
    let outcome = ctl(&mock, "clients --limit 6");
    let text = outcome.out;
    assert_eq!(text.lines().count(), 7, "{text}");
    assert!(text.starts_with("CLIENT"), "{text}");
    assert!(text.contains("c6") && text.contains("6,000") && !text.contains("c7"), "{text}");
    assert!(outcome.notes.contains("the first 6 clients"), "{}", outcome.notes);
    let asked: Vec<String> = mock.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(
        asked,
        ["/api/v1/clients?limit=6", "/api/v1/clients?limit=2&cursor=4", "/api/v1/clients?limit=2&cursor=5"]
    );
}

#[test]
fn a_script_gets_one_document_and_can_go_on() {
    let mock = Mock::serve(pages);
    let document = ctl(&mock, "--json clients --limit 2").json();
    assert_eq!(document["items"].as_array().unwrap().len(), 2);
    assert_eq!(document["next"], "2");
    let document = ctl(&mock, "clients --json --limit 100 --cursor 5").json();
    assert_eq!(document["items"][0]["client_id"], "c5");
    assert_eq!(document["next"], Value::Null);
}

#[test]
fn all_items_are_printed_one_per_line() {
    let mock = Mock::serve(pages);
    let lines = ctl(&mock, "clients --all --json").lines();
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[8]["client_id"], "c9");
    let table = ctl(&mock, "clients --all").out();
    assert_eq!(table.lines().count(), 10, "{table}");
    assert_eq!(table.matches("CLIENT").count(), 1);
}

#[test]
fn nodes_that_did_not_answer_are_named_once() {
    let mock = Mock::serve(|request| match request.target.contains("cursor") {
        false => {
            Reply::json(&json!({"items": [{"client_id": "a", "node": "n1"}], "next": "1", "missing": ["n3"]}))
        }
        true => Reply::json(
            &json!({"items": [{"client_id": "b", "node": "n2"}], "next": null, "missing": ["n3", "n4"]}),
        ),
    });
    let outcome = ctl(&mock, "clients");
    assert!(outcome.out.contains("n1") && outcome.out.contains("n2"), "{}", outcome.out);
    assert_eq!(outcome.notes.matches("no answer of n3, n4").count(), 1, "{}", outcome.notes);
    let document = ctl(&mock, "clients --json").json();
    assert_eq!(document["missing"], json!(["n3", "n4"]));
}

#[test]
fn one_node_is_asked_by_way_of_another() {
    let mock = Mock::serve(pages);
    ctl(&mock, "clients --limit 2 --node n2");
    assert_eq!(mock.request().target, "/api/v1/clients?limit=2&node=n2");
    let mock = Mock::always(Reply::json(&json!({"connection_closed": true, "nodes": ["n2"]})));
    let outcome = ctl(&mock, "kick c --node n2");
    assert_eq!(mock.request().target, "/api/v1/clients/c?node=n2");
    assert_eq!(outcome.out, "c: connection closed (node n2)\n");
}

#[test]
fn filters_reach_the_node() {
    let mock = Mock::always(Reply::json(&json!({"items": [], "next": null})));
    let arguments = "clients --search a/b --username u --address 10.0.0.0/8 --offline --version 3.1.1 --min-queued 5 --min-inflight 2";
    let outcome = ctl(&mock, arguments);
    assert_eq!(outcome.notes, "no clients\n");
    assert_eq!(
        mock.request().target,
        "/api/v1/clients?search=a%2Fb&username=u&address=10.0.0.0%2F8&connected=false&version=3.1.1&min_queued=5&min_inflight=2&limit=100"
    );
}

#[test]
fn a_list_without_end_is_an_error() {
    let mock = Mock::always(Reply::json(&json!({"items": [{"client_id": "c"}], "next": "again"})));
    let outcome = ctl(&mock, "clients --all --json");
    assert_eq!(outcome.code(), 3);
    assert!(outcome.error().contains("does not end"), "{}", outcome.error());
}

#[test]
fn a_client_with_any_name_is_found() {
    let mock = Mock::always(Reply::json(&json!({
        "client_id": "a/b c", "connected": true, "address": "127.0.0.1:4", "version": "5.0", "durable": true,
        "connected_at": "2026-01-31T12:00:00Z", "keep_alive_s": 60, "queued_messages": 3, "queued_bytes": 2048,
        "connection": {
            "worker": 1, "receive_maximum": 10, "unsent_bytes": 0, "publisher_blocked": true, "mountpoint_usage": null,
            "user_usage": {
                "connections": 7, "sessions": 5, "session_bytes": 1024, "queued_bytes": 0, "retained_messages": 12,
                "retained_bytes": 3072,
            },
        },
        "session": {"expiry_s": null, "waiting_publishers": 2},
    })));
    let text = run(&mock.url, &["client", "a/b c"]).out();
    assert_eq!(mock.request().target, "/api/v1/clients/a%2Fb%20c");
    for part in ["a/b c", "127.0.0.1:4", "keep alive", "2.0 KiB", "CONNECTION", "blocked", "SESSION", "never"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let has = "its user has";
    assert!(text.contains(has) && !text.contains("its mountpoint has"), "{text}");
    for part in ["7 connections", "5 sessions (1.0 KiB)", "12 retained messages (3.0 KiB)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_client_that_is_not_there_has_its_exit_code() {
    let mock = Mock::always(Reply::problem(404, "not-found", "no client ghost"));
    let outcome = ctl(&mock, "client ghost");
    assert_eq!((outcome.code(), outcome.error()), (4, "no client ghost".to_owned()));
    assert_eq!(ctl(&mock, "kick ghost").code(), 4);
}

#[test]
fn a_verb_after_the_client_is_explained() {
    let mock = Mock::always(Reply::empty());
    let outcome = ctl(&mock, "client ghost kick x");
    assert_eq!(outcome.code(), 2);
    assert!(outcome.error().contains("the verb comes first"));
}

#[test]
fn irreversible_actions_ask_first() {
    let mock =
        Mock::always(Reply::json(&json!({"connection_closed": false, "session_ended": true, "deleted": 7})));
    for arguments in ["kick c --session", "retained delete a/#", "config rollback 3"] {
        let outcome = ctl(&mock, arguments);
        assert_eq!(outcome.code(), 2, "{arguments}");
        assert!(outcome.error().contains("--yes"), "{}", outcome.error());
    }
    assert!(mock.requests().is_empty());
    assert!(ctl(&mock, "kick c --session --yes").out().contains("session ended"));
    assert_eq!(ctl(&mock, "--yes retained delete a/#").out(), "7 deleted\n");
    let targets: Vec<String> =
        mock.requests().into_iter().map(|r| format!("{} {}", r.method, r.target)).collect();
    assert_eq!(targets, ["DELETE /api/v1/clients/c?session=true", "DELETE /api/v1/retained?filter=a%2F%23"]);
}

/// Flags of a list have no effect before a verb; flags of every command do not count.
#[test]
fn flags_of_a_list_do_not_go_with_a_verb() {
    let mock = Mock::always(Reply::json(&json!({"level": "info"})));
    for arguments in
        ["retained --filter x get y", "log --follow level", "slow --limit 3 clear", "ban --all remove 1"]
    {
        assert_eq!(ctl(&mock, arguments).code(), 2, "{arguments}");
    }
    for arguments in
        ["log --json level", "log level --json", "--json log level", "log --timeout 4s level --json"]
    {
        assert_eq!(ctl(&mock, arguments).json()["level"], "info", "{arguments}");
    }
}

#[test]
fn one_topic_is_deleted_without_a_question() {
    let mock = Mock::always(Reply::json(&json!({"deleted": 1})));
    assert_eq!(ctl(&mock, "retained delete a/b").out(), "1 deleted\n");
    assert_eq!(mock.request().target, "/api/v1/retained?topic=a%2Fb");
}

#[test]
fn every_change_says_that_it_is_json_and_every_request_carries_the_token() {
    let mock = Mock::always(Reply::empty());
    let path = std::env::temp_dir().join(format!("ctl-token-{}", std::process::id()));
    std::fs::write(&path, "\nmrd_secret \n").unwrap();
    let file = path.to_str().unwrap();
    run(&mock.url, &["slow", "clear", "--token-file", file]).out();
    std::fs::remove_file(&path).unwrap();
    let request = mock.request();
    assert_eq!(request.method, "DELETE");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("authorization"), Some("Bearer mrd_secret"));
    assert_eq!(run(&mock.url, &["status", "--token-file", file]).code(), 1);
}

#[test]
fn a_publish_matches_the_command_line() {
    let mock = Mock::always(Reply::json(&json!({"reason_code": 16, "reason": "no matching subscribers"})));
    assert_eq!(ctl(&mock, "publish -t a/b -m x -q 1 -r").out(), "a/b: no matching subscribers\n");
    let request = mock.request();
    assert_eq!((&request.method[..], request.path()), ("POST", "/api/v1/publish"));
    assert_eq!(request.json(), json!({"topic": "a/b", "qos": 1, "retain": true, "payload": "x"}));
}

#[test]
fn a_publish_that_was_refused_is_a_failure() {
    let mock = Mock::always(Reply::json(&json!({"reason_code": 151, "reason": "quota exceeded"})));
    let outcome = ctl(&mock, "publish -t a -m x");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.error().contains("quota exceeded"));
}

#[test]
fn status_is_one_screen() {
    let mock = Mock::serve(|request| {
        Reply::json(&match request.path() {
            "/api/v1/node" => {
                json!({"name": "n1", "state": "ready", "version": "0.1.0", "commit": "abc", "uptime_s": 3725,
                "started_at": "2026-01-31T12:00:00Z", "connections_max": 100,
                "listeners": [{"name": "tcp", "address": "127.0.0.1:1883", "connections": 99}]})
            }
            "/api/v1/stats" => {
                json!({"connections": 99, "uptime_s": 100, "dropped": {"total": 3, "by_reason": {"expired": 3, "queue_full": 0}},
                "workers": [{"worker": 0, "busy_us": 50_000_000, "turn_us_p99": 1234}]})
            }
            "/api/v1/cluster" => cluster("n1", 4),
            "/api/v1/nodes" => json!({
                "items": [{"name": "n1", "state": "ready", "connections": 1234, "cluster": {"role": "core", "acknowledging": true}},
                    {"name": "n2", "state": "ready", "cluster": {"role": "core", "acknowledging": false}}],
                "next": null, "missing": ["n3"]}),
            "/api/v1/alarms" => alarms(),
            _ => json!({"name": null, "role": "admin", "open": true}),
        })
    });
    let outcome = ctl(&mock, "status");
    for part in [
        "1,234",
        "not acknowledging",
        "no answer",
        "n1 (ready)",
        "1h 2m",
        "99 of 100",
        "3 (expired 3)",
        "127.0.0.1:1883",
        "50 %",
        "1ms",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert_eq!(outcome.notes.lines().next(), Some("! n3 is dead: start it again"), "{}", outcome.notes);
    assert!(
        outcome.notes.contains("! there is no API key") && !outcome.notes.contains("BBR"),
        "{}",
        outcome.notes
    );
    assert!(
        outcome.out.contains("replicant; nodes: 3: 2 up, 1 suspect (n3); NOT acknowledging"),
        "{}",
        outcome.out
    );
    assert!(outcome.notes.contains("no answer of n3"), "{}", outcome.notes);
    let document = ctl(&mock, "status --json").json();
    assert_eq!(
        (&document["stats"]["connections"], &document["alarms"][0]["code"]),
        (&json!(99), &json!("dead"))
    );
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

#[test]
fn the_cluster_is_shown_with_all_alarms_and_links_with_those_of_links() {
    let mock = Mock::serve(|request| {
        Reply::json(&if request.path() == "/api/v1/alarms" { alarms() } else { cluster("n1", 4) })
    });
    let notes = ctl(&mock, "cluster").notes;
    assert_eq!(
        notes,
        "! n3 is dead: start it again\n! n4 (10.0.0.4:7883): silent for 12s; no route\\u{1b}\n! there is no \
         API key\n! links do not use BBR\n"
    );
    let notes = ctl(&mock, "links").notes;
    assert_eq!(notes.lines().count(), 2, "{notes}");
    assert_eq!(mock.requests().iter().filter(|request| request.path() == "/api/v1/alarms").count(), 2);
}

#[test]
fn a_node_of_an_earlier_version_has_no_list_of_alarms_and_is_shown_all_the_same() {
    let mock = Mock::serve(|request| match request.path() {
        "/api/v1/alarms" => Reply::problem(404, "not-found", "there is no such path"),
        _ => Reply::json(&cluster("n1", 4)),
    });
    let outcome = ctl(&mock, "cluster");
    assert_eq!((outcome.code(), &outcome.notes[..]), (0, ""));
}

#[test]
fn storage_is_shown_with_its_rate_and_its_trouble() {
    let asked = std::sync::atomic::AtomicU64::new(0);
    let mock = Mock::serve(move |_| {
        let commits = 100 * asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Reply::json(&json!({"durability": "local-disk", "log": {
            "state": "full", "commits": commits, "segments": 5, "bytes": 5 << 20, "sync": {"p99_us": 1500},
            "recovery": {"read_s": 0.25, "truncated_bytes": 48}, "backup_dir": "/b", "backup": null}}))
    });
    let outcome = ctl(&mock, "storage");
    for part in ["full", "5, 5.0 MiB", "p99 1ms", "48 B", "directory /b"] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert!(outcome.notes.contains("the disk is full"), "{}", outcome.notes);
    let memory = Mock::always(Reply::json(&json!({"durability": "memory", "log": null})));
    assert!(ctl(&memory, "storage").out.contains("nothing is kept on disk"));
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
             "connections_wanted": 4, "address": "10.0.0.3:7883", "last_error": "no route", "last_error_s": 3, "lanes": []}]})
}

#[test]
fn links_are_a_line_each() {
    let mock = Mock::serve(|_| Reply::json(&cluster("n1", 4)));
    let outcome = ctl(&mock, "links");
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", outcome.out);
    for part in ["n2", "core", "up", "1m", "0.25ms", "4/4", "2.0 KiB", "0.50 %", "assured 1.5 KiB (1.5s)"] {
        assert!(lines[1].contains(part), "{part}: {}", outcome.out);
    }
    assert!(lines[2].contains("suspect") && lines[2].contains("south"), "{}", outcome.out);
    assert_eq!(ctl(&mock, "links --json").json()["items"][1]["node"], "n3");
}

#[test]
fn a_clock_that_differs_is_a_column_of_links() {
    let with = |n2: f64| {
        let mock = Mock::serve(move |_| {
            let mut view = cluster("n1", 4);
            view["links"][0]["clock_ahead_s"] = n2.into();
            Reply::json(&view)
        });
        ctl(&mock, "links").out
    };
    let links = with(-3600.5);
    let cell = |line: usize| links.lines().nth(line).unwrap().contains(" -1h ");
    assert!(cell(1) && !cell(2) && links.contains("CLOCK"), "{links}");
    let links = with(0.25);
    assert!(links.contains("+250ms"), "{links}");
}

#[test]
fn the_cluster_is_shown_in_short() {
    let mock = Mock::serve(|_| Reply::json(&cluster("n1", 4)));
    let outcome = ctl(&mock, "cluster");
    for part in [
        "n1 (replicant, region north)",
        "core n2",
        "no: publishers",
        "1 of 2 reached, a majority is 2",
        "12 filters",
        "3 wait",
        "2,000 of QoS 0",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert_eq!(ctl(&mock, "cluster --json").json()["attached_to"], "n2");
    let alone = Mock::always(Reply::problem(404, "not-found", "there is no [[cluster_node]]"));
    let outcome = ctl(&alone, "cluster");
    assert_eq!(outcome.code(), 4);
    assert!(outcome.error().contains("[[cluster_node]]"), "{}", outcome.error());
}

/// The same view, of a core of a cluster with a meta group: `n2` is the leader, and `n3` is dead.
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

#[test]
fn the_members_are_shown_with_their_leader() {
    let mock = Mock::serve(|_| Reply::json(&replicated(true)));
    let outcome = ctl(&mock, "cluster status");
    for part in [
        "yes: n2 leads since term 1,234; 3 vote, a majority is 2; change 40 of 41",
        "3: 2 alive, 0 suspect, 1 dead",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    let row = |node: &str| {
        let line = outcome.out.lines().find(|line| line.starts_with(&format!("{node} ")));
        line.unwrap_or_else(|| panic!("{node}: {}", outcome.out)).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("NODE"), ["NODE", "ROLE", "REGION", "ADDRESS", "STATE", "VOTE", "INCARNATION"]);
    assert_eq!(row("n1"), ["n1", "core", "-", "n1:7883", "alive", "no", "7"]);
    assert_eq!(row("n2"), ["n2", "core", "-", "n2:7883", "alive", "leads", "7"]);
    assert_eq!(row("n3"), ["n3", "core", "-", "n3:7883", "dead", "votes", "7"]);
    assert_eq!(ctl(&mock, "cluster").out, outcome.out, "without a verb it is the same");
    let by_another = Mock::serve(|_| {
        let mut view = replicated(true);
        view["membership"]["replica"]["leader_via"] = "n3".into();
        Reply::json(&view)
    });
    let outcome = ctl(&by_another, "cluster status");
    assert!(outcome.out.contains("n2 leads, reached through n3 since"), "{}", outcome.out);
}

#[test]
fn dead_nodes_are_not_suspect_and_leases_are_named() {
    let mock = Mock::serve(|_| {
        let mut view = replicated(true);
        view["links"][1]["state"] = "dead".into();
        view["acknowledging"] = true.into();
        view["lease_s"] = 1.5.into();
        view["lease_granted_by"] = json!([{"node": "n2", "left_s": 1.5}, {"node": "n4", "left_s": 1.6}]);
        view["leases_granted"] = json!([{"node": "n5", "left_s": 2.0}]);
        Reply::json(&view)
    });
    let out = ctl(&mock, "cluster").out;
    for part in ["3: 2 up, 1 dead (n3)", "by leases of n2, n4, for 1.5s", "n5"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains("1 suspect"), "{out}");
}

#[test]
fn a_node_without_a_majority_shows_the_last_known_leader_and_members() {
    let mock = Mock::serve(|_| {
        let mut view = replicated(false);
        view["membership"]["stale"] = true.into();
        Reply::json(&view)
    });
    let out = ctl(&mock, "cluster").out;
    for part in [
        "NO: n2 led, as last known, since",
        "3: 2 alive, 0 suspect, 1 dead (as last known)",
        "alive (as last known)  led (as last known)",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let mock = Mock::serve(|_| {
        let mut view = replicated(false);
        view["membership"]["stale"] = true.into();
        view["membership"]["replica"] = Value::Null;
        Reply::json(&view)
    });
    assert!(ctl(&mock, "cluster").out.contains("NO: this node reaches no majority of cores"));
}

#[test]
fn a_node_that_is_no_member_shows_the_reason() {
    let outcome = ctl(&Mock::serve(|_| Reply::json(&replicated(false))), "cluster status");
    assert!(outcome.out.contains("NO: n2 led"), "{}", outcome.out);
    let waiting = Mock::serve(|_| {
        let mut view = replicated(false);
        view["membership"]["waits_for"] = "2 of 3 cores have met".into();
        view["membership"]["members"] = json!([]);
        Reply::json(&view)
    });
    let outcome = ctl(&waiting, "cluster status");
    assert!(outcome.out.contains("2 of 3 cores have met"), "{}", outcome.out);
    assert!(!outcome.out.contains("INCARNATION"), "{}", outcome.out);
    let of_list = ctl(&Mock::serve(|_| Reply::json(&cluster("n1", 4))), "cluster status");
    assert!(!of_list.out.contains("quorum") && !of_list.out.contains("members"), "{}", of_list.out);
}

#[test]
fn a_node_is_removed_after_confirmation() {
    let mock = Mock::always(Reply::empty());
    let outcome = ctl(&mock, "cluster remove n/3");
    assert_eq!((outcome.code(), mock.requests().len()), (2, 0), "nobody can be asked");
    assert!(outcome.error().contains("n/3") && outcome.error().contains("--yes"), "{}", outcome.error());
    let outcome = ctl(&mock, "--yes cluster remove n/3");
    assert_eq!(outcome.out(), "node n/3 is removed\n");
    let requests = mock.requests();
    assert_eq!((&requests[0].method[..], requests[0].path()), ("DELETE", "/api/v1/cluster/nodes/n%2F3"));
    assert_eq!(requests[0].target, "/api/v1/cluster/nodes/n%2F3", "it is the node that is asked who does it");
    let alive = Mock::always(Reply::problem(409, "conflict", "node `n2` is alive: stop it first"));
    let outcome = ctl(&alive, "--yes cluster remove n2");
    assert!(outcome.code() != 0 && outcome.error().contains("stop it first"), "{}", outcome.error());
}

#[test]
fn a_node_leaves_after_confirmation_and_the_consequence_is_shown() {
    let mock = Mock::serve(|request| match request.method.as_str() {
        "GET" => Reply::json(&replicated(true)),
        _ => Reply::empty(),
    });
    let outcome = ctl(&mock, "cluster leave");
    assert_eq!(outcome.code(), 2, "nobody can be asked");
    assert!(
        outcome.error().contains("Stop node n1") && outcome.error().contains("--yes"),
        "{}",
        outcome.error()
    );
    // The consequence of a core's leave depends on the number of cores; for a replicant there is none.
    for (role, cores, meaning) in [
        ("core", 2, "One core is left"),
        ("core", 3, "Two cores are left"),
        ("core", 4, ""),
        ("replicant", 2, ""),
    ] {
        let mock = Mock::serve(move |_| {
            let member = json!({"node": "n", "role": "core", "state": "alive"});
            Reply::json(&json!({"node": "n1", "role": role, "membership": {"members": vec![member; cores]}}))
        });
        let asked = ctl(&mock, "cluster leave").error();
        let expected = format!(
            "and remove it from the cluster?{}",
            if meaning.is_empty() { String::new() } else { format!(" {meaning}") }
        );
        assert!(asked.contains(&expected), "{asked}");
        assert_eq!(asked.contains("left then"), !meaning.is_empty(), "{asked}");
    }
    let outcome = ctl(&mock, "--yes cluster leave --discard-sessions");
    assert!(outcome.out().contains("node n1 stops and leaves"));
    let last = mock.requests().remove(2);
    assert_eq!((&last.method[..], last.path()), ("POST", "/api/v1/cluster/leave"));
    assert_eq!(last.json(), json!({"discard_sessions": true}));
}

#[test]
fn an_address_that_cannot_be_one_is_not_sent() {
    for (address, says) in
        [("http://h:1", "a scheme is not allowed: write h:1"), ("h", "write h:PORT"), ("[::1", "brackets")]
    {
        let error =
            Line::try_parse_from(["ctl", "cluster", "join", "a:1", address]).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn changes_of_a_cluster_are_sent_to_the_node() {
    let cases = [
        ("cluster transfer n2", "PUT", "/api/v1/cluster/leader", json!({"node": "n2"}), "node n2 leads"),
        (
            "cluster join h:1 i:2",
            "POST",
            "/api/v1/cluster/join",
            json!({"addresses": ["h:1", "i:2"]}),
            "connects there",
        ),
        ("cluster balance", "POST", "/api/v1/cluster/balance", Value::Null, "cluster nodes"),
    ];
    for (line, method, path, body, said) in cases {
        let mock = Mock::always(Reply::empty());
        assert!(ctl(&mock, line).out().contains(said), "{line}");
        let request = mock.requests().pop().unwrap();
        assert_eq!((&request.method[..], request.path()), (method, path), "{line}");
        assert_eq!(if body.is_null() { Value::Null } else { request.json() }, body, "{line}");
    }
}

#[test]
fn nodes_of_a_cluster_are_listed_with_their_core() {
    let mock = Mock::always(Reply::json(&json!({
        "items": [{"name": "n1", "state": "ready", "connections": 4, "cluster": {"role": "replicant", "attached_to": "n2"}}],
        "next": null, "missing": ["n3"]})));
    let outcome = ctl(&mock, "cluster nodes");
    assert!(outcome.out.contains("ATTACHED TO") && outcome.out.contains("n2"), "{}", outcome.out);
    assert!(outcome.out.contains("no answer"), "{}", outcome.out);
    assert_eq!(mock.requests()[0].path(), "/api/v1/nodes");
    assert_eq!(ctl(&mock, "--json cluster nodes").json()["items"][0]["name"], "n1");
}

#[test]
fn nodes_are_listed_with_their_routes() {
    let outcome = ctl(&Mock::serve(|_| Reply::json(&cluster("n1", 4))), "routes --nodes");
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert!(
        lines[0].contains("DIGEST") && lines[3].contains("suspect") && lines[3].contains("cc"),
        "{}",
        outcome.out
    );
}

#[test]
fn two_nodes_that_know_the_same_do_not_differ() {
    let (here, there) =
        (Mock::always(Reply::json(&cluster("n1", 4))), Mock::always(Reply::json(&cluster("n1", 4))));
    let outcome = run(&here.url, &["routes", "--diff", &there.url]);
    assert_eq!(outcome.code(), 0);
    assert_eq!(outcome.out().matches("the same").count(), 3);
    assert_eq!((here.requests().len(), there.requests().len()), (1, 1));
}

#[test]
fn a_node_with_unindexed_routes_is_reported() {
    let mut full = cluster("n1", 4);
    full["routes_unindexed"] = 2.into();
    let (here, there) = (Mock::always(Reply::json(&cluster("n1", 4))), Mock::always(Reply::json(&full)));
    let outcome = run(&here.url, &["routes", "--diff", &there.url]);
    assert_eq!(outcome.code(), 1);
    assert!(outcome.error().contains("has no room in its routing index"), "{}", outcome.error());
}

#[test]
fn a_pending_change_is_waited_for() {
    let asked = std::sync::atomic::AtomicU64::new(3);
    let here = Mock::serve(move |_| {
        Reply::json(&cluster("n1", asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
    });
    let there = Mock::always(Reply::json(&cluster("n1", 4)));
    assert_eq!(run(&here.url, &["routes", "--diff", &there.url]).code(), 0);
    assert_eq!(here.requests().len(), 2);
}

#[test]
fn writers_whose_routes_differ_are_named() {
    let mut other = cluster("n1", 9);
    other["routes"][0]["digest"] = "bb".into();
    other["routes"][2]["incarnation"] = 8.into();
    other["routes"].as_array_mut().unwrap().push(json!({"node": "n4", "digest": "d"}));
    let here = Mock::always(Reply::json(&cluster("n1", 4)));
    let there = Mock::always(Reply::json(&other));
    let outcome = run(&here.url, &["routes", "--diff", &there.url]);
    assert_eq!(outcome.code(), 1);
    for part in [
        "DIFFERENT: aa here, bb there",
        "here: behind by 5",
        "here: of an earlier incarnation",
        "unknown here",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert!(outcome.error().contains("n1, n2, n3, n4"), "{}", outcome.error());
    let document: Value =
        serde_json::from_str(&run(&here.url, &["--json", "routes", "--diff", &there.url]).out).unwrap();
    assert_eq!((&document["differences"], &document["same"]), (&4.into(), &false.into()));
}

#[test]
fn a_token_of_https_is_not_shown_to_http() {
    let outcome = ctl(&Mock::always(Reply::empty()), "routes --diff https://127.0.0.1:1");
    assert_eq!(outcome.code(), 2);
}

#[test]
fn a_backup_is_waited_for_and_its_failure_reported() {
    for (state, code) in [("done", 0), ("failed", 1)] {
        let mock = Mock::serve(move |request| {
            let backup = |state: &str| json!({"name": "b", "path": "/b/b", "state": state, "segments": 3, "bytes": 2048, "error": "no room"});
            Reply::json(&match &request.method[..] {
                "POST" => {
                    assert_eq!(
                        (request.path(), request.json()),
                        ("/api/v1/storage/backups", json!({"name": "b"}))
                    );
                    backup("running")
                }
                _ => json!({"log": {"backup": backup(state)}}),
            })
        });
        let outcome = ctl(&mock, "storage backup b");
        assert_eq!(outcome.code(), code);
        let (text, part) = match code {
            0 => (outcome.out(), "/b/b: 3 segments, 2.0 KiB"),
            _ => (outcome.error(), "no room"),
        };
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn health_distinguishes_states() {
    let ready = Mock::always(Reply::json(&json!({"status": "ready"})));
    assert_eq!(ctl(&ready, "health").out(), "ready\n");
    let starting = Mock::always(Reply::with(503, "application/json", br#"{"status":"starting"}"#));
    let outcome = ctl(&starting, "health");
    assert_eq!((outcome.code(), outcome.error()), (1, "the node is starting".to_owned()));
}

#[test]
fn health_waits_for_a_node_that_becomes_ready() {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let mock = Mock::serve(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 | 1 => Reply::with(503, "application/json", br#"{"status":"starting"}"#),
        _ => Reply::json(&json!({"status": "ready"})),
    });
    assert_eq!(ctl(&mock, "health --wait 60s").out(), "ready\n");
    assert_eq!(mock.requests().len(), 3);
}

#[test]
fn a_trace_is_followed_to_its_end() {
    let mock = Mock::always(Reply::events(&[
        ": keep-alive\n\nevent: tr",
        "ace\ndata: {\"at\":\"2026-01-31T12:00:00.5Z\",\"kind\":\"publish_in\",\"client_id\":\"c\\u001b\",\"detail\":\"a/b\"}\n\n",
        "event: lost\ndata: {\"count\":3}\n\nevent: end\ndata: {\"reason\":\"time\"}\n\n",
    ]));
    let outcome = ctl(&mock, "trace --client c --payload 8 --for 5s --kind publish-in --kind connect");
    assert_eq!(outcome.out, "12:00:00.5    publish-in   c\\u{1b}  a/b\n");
    assert!(outcome.notes.contains("3 events were lost"), "{}", outcome.notes);
    assert_eq!(
        mock.request().target,
        "/api/v1/trace?client_id=c&payload=8&seconds=5&events=10000&kind=publish_in&kind=connect"
    );
    let lines = ctl(&mock, "trace --client c --json").lines();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["event"], &lines[2]["reason"]), (&json!("trace"), &json!("time")));
}

#[test]
fn invalid_streams_are_failures() {
    for reply in [
        Reply::json(&json!({})),
        Reply::events(&["event: trace\ndata: {no json\n\n"]),
        Reply::problem(429, "too-many-requests", "8 traces are running"),
    ] {
        let outcome = ctl(&Mock::always(reply), "trace --client c");
        assert_ne!(outcome.code(), 0);
    }
}

#[test]
fn a_followed_log_shows_each_event_once() {
    let event = |n: u32| json!({"at": format!("2026-01-31T12:00:0{n}Z"), "level": "INFO", "target": "t", "message": format!("m{n}"), "fields": {}});
    let mock = Mock::serve(move |request| match request.path() {
        "/api/v1/log" => Reply::json(&json!({"items": [event(1), event(2)], "next": null})),
        _ => {
            Reply::events(&[&format!("event: log\ndata: {}\n\nevent: log\ndata: {}\n\n", event(2), event(3))])
        }
    });
    let text = ctl(&mock, "log --follow --level info").out();
    let messages: Vec<&str> = text.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(messages, ["m1", "m2", "m3"]);
}

#[test]
fn configuration_is_shown_changed_and_checked() {
    let mock = Mock::serve(|request| {
        Reply::json(&match (&request.method[..], request.path()) {
            ("GET", "/api/v1/config") => {
                json!({"version": 3, "file": null, "refused": [{"name": "a.b", "detail": "no such setting"}], "settings": [
                    {"name": "mqtt.qos_max", "value": "1", "default": "2", "source": "runtime", "doc": "Highest QoS.", "reloadable": true, "choices": null, "range": "0..=2",
                     "cluster": {"value": "0", "by": "ops", "comment": "", "at": "2026-11-22T12:00:00.000Z"}},
                    {"name": "mqtt.retain", "value": "true", "default": "true", "source": "default"},
                ]})
            }
            ("PATCH", _) => {
                json!({"version": 4, "changed": [{"name": "mqtt.qos_max", "before": "1", "after": "2"}], "overridden": [{"name": "a.b", "detail": "overridden"}]})
            }
            (_, "/api/v1/config/validate") => {
                json!({"valid": false, "problems": [{"name": "x", "detail": "no such setting"}]})
            }
            _ => json!({"changed": [], "pending": ["edge.workers"], "files": ["m.toml", "server.crt"]}),
        })
    });
    let changed = ctl(&mock, "config").out();
    assert!(changed.contains("mqtt.qos_max") && !changed.contains("mqtt.retain"), "{changed}");
    assert!(ctl(&mock, "config show mqtt").out().contains("mqtt.retain"));
    assert!(ctl(&mock, "config show mqtt.qos_max").out().contains("Highest QoS."));
    let outcome = ctl(&mock, "config show mqtt.qos_mac");
    assert!(outcome.error().contains("is mqtt.qos_max meant?"), "{}", outcome.error());
    let text = ctl(&mock, "config set mqtt.qos_max=2 a.b=c=d --comment why").out();
    assert_eq!(text, "mqtt.qos_max: 1 -> 2\na.b: overridden\nthis is version 4\n");
    let change = mock.requests().pop().unwrap();
    let sent = json!({"changes": {"mqtt.qos_max": "2", "a.b": "c=d"}, "scope": "node", "comment": "why"});
    assert_eq!(change.json(), sent);
    ctl(&mock, "config unset mqtt.qos_max --cluster").out();
    let sent = mock.requests().pop().unwrap().json();
    assert_eq!((&sent["changes"], &sent["scope"]), (&json!({"mqtt.qos_max": null}), &json!("cluster")));
    let replicated = ctl(&mock, "config get --cluster");
    assert!(replicated.notes.contains("agrees on a.b, and this node cannot apply it: no such setting"));
    let replicated = replicated.out();
    let line = replicated.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(line[..5], ["mqtt.qos_max", "0", "1", "runtime", "ops"]);
    assert!(!replicated.contains("mqtt.retain"));
    let outcome = ctl(&mock, "config validate x=1");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.error().contains("x: no such setting"));
    let text = ctl(&mock, "config reload").out();
    assert_eq!(
        text,
        "no setting changed\nread again: m.toml, server.crt\nafter the next start: edge.workers\n"
    );
}

#[test]
fn a_cluster_change_without_effect_here_gives_the_reason() {
    let held = json!([{"name": "a.b", "detail": "this node goes by --set, which goes over what the cluster agrees on"}]);
    let mock = Mock::always(Reply::json(&json!({"version": 4, "changed": [], "overridden": held})));
    let text = ctl(&mock, "config set --cluster a.b=1").out();
    assert_eq!(
        text,
        "nothing changes on this node\na.b: this node goes by --set, which goes over what the cluster agrees on\nthis is version 4\n"
    );
    let mock = Mock::always(Reply::json(&json!({"version": 4, "changed": [], "overridden": []})));
    assert_eq!(ctl(&mock, "config set a.b=1").out(), "nothing changed\nthis is version 4\n");
}

#[test]
fn retained_payloads_are_shown_harmlessly_and_written_exactly() {
    let mock = Mock::always(Reply::json(
        &json!({"topic": "a", "qos": 1, "payload_base64": "aGkbWzJKCv8=", "age_s": 5, "expires_in_s": null, "user_properties": [["k", "v"]]}),
    ));
    let text = ctl(&mock, "retained get a").out();
    assert!(text.contains("hi\\u{1b}[2J\n\\xff\n") && text.contains("k=v"), "{text}");
    assert_eq!(mock.requests()[0].target, "/api/v1/retained/message?topic=a");
    let args = Line::parse_from(["ctl", "--url", &mock.url, "retained", "get", "a", "--raw"]).args;
    let (result, written, _) = args.run_bytes();
    result.unwrap();
    assert_eq!(written, b"hi\x1b[2J\n\xff");
}

#[test]
fn routes_list_the_receivers() {
    let mock = Mock::serve(|request| {
        Reply::json(&match request.path() {
            "/api/v1/routes/match" => json!({"topic": "a/b", "truncated": true, "total": 1234, "receivers": [
                {"client_id": "c", "connected": true, "durable": false, "filters": ["a/#", "a/+"], "qos": 1, "share": null}]}),
            _ => {
                json!({"items": [{"filter": "a/#", "destinations": [{"kind": "client", "client_id": "c"}, {"kind": "shard", "shard": 3}]}], "truncated": false})
            }
        })
    });
    let outcome = ctl(&mock, "routes --match a/b");
    assert!(outcome.out.contains("a/# a/+"), "{}", outcome.out);
    assert!(outcome.notes.contains("of 1,234"), "{}", outcome.notes);
    assert!(ctl(&mock, "routes --prefix a").out().contains("client c, sessions of shard 3"));
    assert_eq!(ctl(&mock, "routes --match a/b --json").json()["receivers"][0]["client_id"], "c");
}

#[test]
fn a_new_key_is_its_token_and_nothing_else() {
    let mock = Mock::always(Reply::json(
        &json!({"name": "g", "role": "viewer", "expires_at": null, "token": "mrd_x"}),
    ));
    let outcome = ctl(&mock, "keys add g --role viewer --expires 1h");
    assert_eq!(outcome.out, "mrd_x\n");
    assert!(outcome.notes.contains("not shown again"));
    assert_eq!(mock.request().json(), json!({"name": "g", "role": "viewer", "expires_in_s": 3600}));
}

#[test]
fn a_password_comes_from_a_file_and_never_from_the_command_line() {
    let path = std::env::temp_dir().join(format!("meridian-ctl-password-{}", std::process::id()));
    std::fs::write(&path, "hunter2\nmore\n").unwrap();
    let file = path.to_str().unwrap();
    let mock = Mock::always(Reply::json(&json!({"name": "a"})));
    let outcome =
        ctl(&mock, &format!("users add a --password-file {file} --scram --tenant t --attribute k=v=w"));
    assert_eq!(outcome.out(), "user a\n");
    let expected = json!({
        "name": "a", "password": "hunter2", "scram_iterations": 16384, "tenant": "t", "attributes": {"k": "v=w"}
    });
    assert_eq!(mock.requests().pop().unwrap().json(), expected);
    let outcome = ctl(&mock, &format!("users passwd a --password-file {file} --keep-connected"));
    assert_eq!(outcome.out(), "the password of user a is changed\n");
    let request = mock.requests().pop().unwrap();
    assert_eq!((&request.method[..], &request.target[..]), ("PATCH", "/api/v1/users/a?keep_connected=true"));
    std::fs::write(&path, "").unwrap();
    assert!(ctl(&mock, &format!("users passwd a --password-file {file}")).error().contains("empty"));
    std::fs::remove_file(&path).unwrap();
    assert!(ctl(&mock, &format!("users passwd a --password-file {file}")).error().contains("password-file"));
    let line = ["ctl", "users", "add", "a", "--password", "hunter2"];
    assert!(Line::try_parse_from(line).is_err());
}

#[test]
fn the_first_user_is_made_after_a_warning_about_other_clients() {
    let path = std::env::temp_dir().join(format!("meridian-ctl-first-{}", std::process::id()));
    std::fs::write(&path, "hunter2\n").unwrap();
    let add = format!("users add a --password-file {}", path.display());
    let node = |is_open: bool, cluster: Value| {
        Mock::serve(move |request| {
            Reply::json(&match request.path() {
                "/api/v1/node" => {
                    json!({"open_until_first_user": is_open, "connections": 42, "cluster": cluster})
                }
                _ => json!({"name": "a"}),
            })
        })
    };
    let asked = |mock: &Mock| {
        let requests = mock.requests();
        requests.iter().map(|it| format!("{} {}", it.method, it.path())).collect::<Vec<_>>()
    };
    let mock = node(true, Value::Null);
    let outcome = ctl(&mock, &add);
    for part in
        ["first user", "refused (0x87)", "42 are connected", "--allow-anonymous", "auth.allow_anonymous=true"]
    {
        assert!(outcome.notes.contains(part), "{part}: {}", outcome.notes);
    }
    assert_eq!(outcome.out(), "user a\n");
    assert_eq!(asked(&mock), ["GET /api/v1/node", "POST /api/v1/users"]);

    let outcome = ctl(&node(false, Value::Null), &add);
    assert_eq!(outcome.notes, "");

    for (cluster, scope) in [(Value::Null, "node"), (json!({"role": "core"}), "cluster")] {
        let mock = node(true, cluster);
        let outcome = ctl(&mock, &format!("{add} --allow-anonymous"));
        assert_eq!(outcome.notes, "");
        assert_eq!(
            asked(&mock),
            ["GET /api/v1/node", "PATCH /api/v1/config", "POST /api/v1/users"],
            "clients may go on before there is a user"
        );
        let change = mock.requests()[1].json();
        assert_eq!(
            (&change["changes"], &change["scope"]),
            (&json!({"auth.allow_anonymous": "true"}), &json!(scope))
        );
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_first_rule_is_made_after_a_warning_about_refusals() {
    let node = |is_open: bool| {
        Mock::serve(move |request| {
            Reply::json(&match request.path() {
                "/api/v1/node" => json!({"open_until_first_rule": is_open, "connections": 42}),
                _ => json!({"id": "3", "position": 1, "rule": "allow everyone publish a", "enabled": false}),
            })
        })
    };
    let add = "rules add x";
    for line in [add, "rules set 3 --enabled"] {
        let mock = node(true);
        let outcome = ctl(&mock, line);
        for part in ["first rule", "refused (0x87)", "Clients connected now: 42", "auth.no_match=allow"] {
            assert!(outcome.notes.contains(part), "{line}: {part}: {}", outcome.notes);
        }
        assert!(outcome.out().contains("rule 3"));
        let requests = mock.requests();
        let at = |method: &str| requests.iter().position(|request| request.method == method);
        let asked = requests.iter().position(|request| request.path() == "/api/v1/node");
        assert!(asked.is_some() && asked < at("POST").or(at("PUT")), "it is said before");
        assert_eq!(ctl(&node(false), line).notes, "");
    }
    for line in [&format!("{add} --disabled"), "rules set 3 --description x"] {
        assert_eq!(ctl(&node(true), line).notes, "", "{line}: nothing is in force yet");
    }
}

/// Fields without an option stay: the node replaces a user as a whole.
#[test]
fn setting_one_thing_of_a_user_sends_the_others_as_they_are() {
    let user = json!({
        "name": "a", "enabled": true, "superuser": true, "tenant": "t", "attributes": {"k": "v", "l": "w"},
        "rates": null, "rules": ["allow publish x"], "description": "d", "created_at": "x"
    });
    let mock = Mock::always(Reply::json(&user));
    ctl(&mock, "users set a --disabled --attribute k= --messages-per-second 5").out();
    let put = mock.requests().pop().unwrap();
    assert_eq!(put.method, "PUT");
    let expected = json!({
        "enabled": false, "superuser": true, "tenant": "t", "attributes": {"l": "w"},
        "rates": {"messages_per_second": 5}, "rules": ["allow publish x"], "description": "d"
    });
    assert_eq!(put.json(), expected);
}

#[test]
fn rules_are_changed_by_their_id() {
    let rule = json!({"id": "3", "position": 1, "rule": "allow all x", "enabled": true, "description": "d"});
    let mock = Mock::always(Reply::json(&rule));
    let outcome = run(&mock.url, &["rules", "add", "allow all x", "--position", "1", "--disabled"]);
    assert_eq!(outcome.out(), "rule 3, position 1: allow all x\n");
    let expected = json!({"rule": "allow all x", "enabled": false, "description": "", "position": 1});
    assert_eq!(mock.requests().pop().unwrap().json(), expected);
    ctl(&mock, "rules move 3 2").out();
    let request = mock.requests().pop().unwrap();
    assert_eq!((&request.target[..], request.json()), ("/api/v1/rules/3/position", json!({"position": 2})));
    assert!(ctl(&mock, "rules remove 3").error().contains("--yes"));
}

#[test]
fn an_unreachable_node_is_reported() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let outcome = run(&format!("http://127.0.0.1:{port}"), &["status"]);
    assert_eq!(outcome.code(), 3);
    for part in [&port.to_string()[..], "refused", "meridian start", "--url"] {
        assert!(outcome.error().contains(part), "{}", outcome.error());
    }
}

#[test]
fn a_silent_node_times_out() {
    for reply in [
        Reply { pieces: vec![], hang: true },
        Reply::bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":").hanging(),
        Reply::bytes(b"HTTP/1.1 200 OK\r\ncontent-le").hanging(),
    ] {
        let mock = Mock::always(reply);
        let outcome = run(&mock.url, &["whoami", "--timeout", "200ms"]);
        assert_eq!(outcome.code(), 3, "{outcome:?}");
        assert!(outcome.error().contains("did not answer within 200ms"), "{}", outcome.error());
    }
}

#[test]
fn an_invalid_answer_is_reported() {
    let long = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'x'; 1 << 20]].concat();
    for bytes in [
        &b""[..],
        b"\x20\x02\x00\x00",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 404 X\r\n\r\n<html>no such page",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
        b"HTTP/1.1 301 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}",
        &long,
    ] {
        let mock = Mock::always(Reply::bytes(bytes));
        let outcome = ctl(&mock, "whoami");
        assert_eq!(
            outcome.code(),
            3,
            "{:?}: {outcome:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
        );
    }
}

#[test]
fn missing_rights_have_their_exit_code() {
    let outcome = ctl(&Mock::always(Reply::problem(401, "unauthorized", "no token")), "status");
    assert_eq!(outcome.code(), 5);
    assert!(outcome.error().contains("meridian key add"), "{}", outcome.error());
    let outcome = ctl(&Mock::always(Reply::problem(403, "forbidden", "needs operator")), "kick c");
    assert_eq!(outcome.code(), 5);
}

/// Commands that print texts of a server, each once.
const PRINTING: [&str; 28] = [
    "status",
    "whoami",
    "clients",
    "clients --all --json",
    "client c",
    "client subscriptions c",
    "client queue c --payload",
    "sessions",
    "subscriptions",
    "routes",
    "routes --match a",
    "retained",
    "retained get a",
    "ban",
    "config show",
    "config show s",
    "log",
    "slow",
    "top-talkers",
    "audit --json",
    "topic-metrics",
    "users",
    "users show a",
    "rules",
    "keys",
    "cluster",
    "links",
    "routes --nodes",
];

/// Returns whether a terminal would obey a character.
fn obeyed(c: char) -> bool {
    (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c)
}

/// Generates JSON where any position of any answer may hold any string.
fn hostile() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("\x1b]0;owned\x07\u{9b}2J\r\u{202e}".to_owned()),
        "[\\x00-\\x1f\\x7f-\\x9f\u{202e}a-z]{0,6}",
        Just("aGkbWzJK".to_owned()),
        Just("2026-01-31T12:00:00\x1bZ".to_owned()),
    ];
    let leaf = prop_oneof![
        text.prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    let keys = prop::sample::select(vec![
        "client_id",
        "connection",
        "session",
        "topic",
        "filter",
        "filters",
        "receivers",
        "name",
        "value",
        "default",
        "doc",
        "message",
        "fields",
        "level",
        "at",
        "expires_at",
        "payload",
        "payload_base64",
        "destinations",
        "kind",
        "dropped",
        "by_reason",
        "workers",
        "listeners",
        "publishers",
        "address",
        "reason",
        "until",
        "choices",
        "user_properties",
        "links",
        "lanes",
        "routes",
        "node",
        "state",
        "last_error",
        "attached_to",
    ]);
    let tree = leaf.prop_recursive(3, 40, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..8).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    });
    (prop::collection::vec(tree.clone(), 0..3), tree).prop_map(|(items, other)| {
        let mut answer = json!({"items": items, "settings": items, "next": null});
        if let (Value::Object(answer), Value::Object(other)) = (&mut answer, other) {
            answer.extend(other);
        }
        answer
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_answer_panics_a_command_or_reaches_the_terminal_raw(answer in hostile()) {
        let mock = Mock::always(Reply::json(&answer));
        for command in PRINTING {
            let outcome = ctl(&mock, command);
            let mut said = Vec::new();
            if let Err(failure) = &outcome.result {
                failure.report("ctl", false, &mut said);
            }
            let said = String::from_utf8(said).unwrap();
            for text in [&outcome.out, &outcome.notes, &said] {
                prop_assert!(!text.chars().any(obeyed), "{command}: {text:?}");
            }
        }
    }

    #[test]
    fn no_problem_document_reaches_the_terminal_raw(detail in any::<String>(), name in any::<String>()) {
        let body = json!({"type": "urn:meridian:problem:x", "detail": detail, "errors": [{"name": name, "detail": detail}]});
        let mock = Mock::always(Reply::with(422, "application/problem+json", body.to_string().as_bytes()));
        let outcome = ctl(&mock, "whoami");
        for json in [false, true] {
            let mut said = Vec::new();
            outcome.result.as_ref().unwrap_err().report("ctl", json, &mut said);
            let said = String::from_utf8(said).unwrap();
            prop_assert!(!said.chars().any(obeyed), "{said:?}");
        }
    }

    #[test]
    fn no_bytes_panic_the_client(bytes in prop::collection::vec(any::<u8>(), 0..200), body in prop::collection::vec(any::<u8>(), 0..60)) {
        for reply in [Reply::bytes(&bytes), Reply::with(200, "application/json", &body)] {
            let outcome = ctl(&Mock::always(reply), "clients");
            prop_assert!(!outcome.out.chars().any(obeyed));
        }
        let events = [&b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n"[..], &bytes].concat();
        let outcome = ctl(&Mock::always(Reply::bytes(&events)), "trace --client c");
        prop_assert!(!outcome.out.chars().any(obeyed));
    }
}
