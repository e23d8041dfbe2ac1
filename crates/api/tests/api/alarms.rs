//! Alarms, in the list that the dashboard, `top`, `ctl status` and `ctl cluster` show.

use std::time::Duration;

use api::{ClusterView, MembershipView, Role, ShardView, ShardsView, UnjoinedPeerView};
use serde_json::Value;

use crate::cluster::{agreed, view};
use crate::support::Server;

/// Returns `severity code text` of each alarm.
fn lines(server: &Server) -> Vec<String> {
    let page = server.get("/api/v1/alarms").is(200);
    let text = |alarm: &Value, field: &str| alarm[field].as_str().unwrap().to_owned();
    let items = page["items"].as_array().unwrap().clone();
    let line = |it: &Value| format!("{} {} {}", text(it, "severity"), text(it, "code"), text(it, "text"));
    items.iter().map(line).collect()
}

fn of(view: ClusterView) -> Vec<String> {
    lines(&Server::in_cluster(Some(view)))
}

#[track_caller]
fn has(lines: &[String], start: &str, part: &str) {
    assert!(
        lines.iter().any(|line| line.starts_with(start) && line.contains(part)),
        "{start} .. {part}: {lines:#?}"
    );
}

#[track_caller]
fn has_not(lines: &[String], part: &str) {
    assert!(!lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
}

#[test]
fn a_full_disk_is_an_error_with_what_to_do_and_comes_first() {
    let server = Server::start();
    has_not(&lines(&server), "storage");
    std::fs::write(server.directory.join("full"), "").unwrap();
    let lines = lines(&server);
    assert!(lines[0].starts_with("error storage the disk of "), "{lines:#?}");
    has(&lines, "error storage", "Free some space");
}

#[test]
fn a_node_without_keys_is_open_and_one_with_keys_is_not() {
    has(&lines(&Server::start()), "warning open", "meridian key add");
    let server = Server::with_keys(|_| ());
    assert_eq!(server.get("/api/v1/alarms").status, 401);
    let token = format!("Bearer {}", server.token(Role::Viewer));
    let answer = server.request("GET", "/api/v1/alarms", &[("Authorization", token.as_str())], None);
    assert!(!answer.is(200).to_string().contains("\"open\""), "{}", answer.text());
}

#[test]
fn messages_that_an_action_and_a_link_have_lost_are_alarms() {
    let lines = lines(&Server::start());
    has(&lines, "warning dropping the action alarms has lost 7 messages", "(meridian ctl actions alarms");
    has(&lines, "warning dropping the link from the cluster munich with messages of munich has lost 4", "");
    has_not(&lines, "bridge");
}

#[test]
fn a_certificate_that_has_expired_is_an_error_with_its_file() {
    has(&lines(&Server::start()), "error certificate", "a.crt (b) has expired: renew the file");
}

#[test]
fn dead_nodes_unreachable_nodes_and_nodes_that_have_not_joined_are_each_named_once() {
    let mut view = agreed();
    view.links[0].state = "dead";
    let lines = of(view.clone());
    has(&lines, "error dead b is dead", "meridian ctl cluster remove b");
    has_not(&lines, "silent for");
    has(&lines, "warning unjoined_peers 10.0.0.7 (z): another secret", "(12 times, last 2s ago)");
    // Any host that reaches the port may claim any name.
    view.unjoined_peers[0].name = Some("z\n! n8".to_owned());
    has(&of(view), "warning unjoined_peers 10.0.0.7 (z\\n! n8)", "");

    let mut view = crate::cluster::view();
    view.links[0].last_error = Some("no route".to_owned());
    view.links[0].last_error_s = Some(3.0);
    has(&of(view.clone()), "error link b (127.0.0.1:7883): silent for 12s; 3s ago: no route", "firewall");
    view.unjoined_peers = vec![UnjoinedPeerView {
        address: "127.0.0.1:7883".to_owned(),
        name: Some("b".to_owned()),
        reason: "no route".to_owned(),
        last_s: 2.0,
        count: 1,
    }];
    let lines = of(view);
    has_not(&lines, "silent for");
    assert_eq!(lines.iter().filter(|line| line.contains("no route")).count(), 1, "{lines:#?}");
    has(&lines, "warning unjoined_peers", "(once, last 2s ago)");
}

#[test]
fn alarms_report_a_missing_quorum_and_the_reason_of_a_node_that_is_no_member() {
    let but = |change: fn(&mut MembershipView)| {
        let mut view = agreed();
        change(&mut view.membership);
        of(view)
    };
    has_not(&but(|_| ()), "no quorum");
    has(
        &but(|it| it.replica.as_mut().unwrap().quorum = false),
        "error quorum no quorum",
        "Start the missing cores",
    );
    let failed = but(|it| it.replica.as_mut().unwrap().failure = Some("disk on fire".to_owned()));
    has(&failed, "error quorum", "disk on fire. Check its disk and restart it");
    let waiting = but(|it| {
        (it.waits_for, it.joined) = (Some("2 of 3 cores have met".to_owned()), false);
    });
    has(&waiting, "error membership no member yet: 2 of 3", "");
    has_not(&waiting, "not acknowledging");
    // A core that votes, and whose sessions are refused.
    let voter = but(|it| it.waits_for = Some("other sessions".to_owned()));
    has(&voter, "error membership a member that serves no client: other sessions", "");
    has(
        &of(view()),
        "error acknowledging not acknowledging, though a majority",
        "publishers of QoS 1 and 2 wait",
    );
    let alone = ClusterView { links: view().links[..1].to_vec(), ..view() };
    has(
        &of(alone),
        "error acknowledging not acknowledging: no majority of cores is reached",
        "without_quorum",
    );
    let replicant = ClusterView { role: "replicant", ..view() };
    has(&of(replicant), "error acknowledging attached to no core", "");
}

#[test]
fn shards_without_a_leader_are_reported_with_the_cores_that_have_to_return() {
    let shard = |shard, leader: Option<&str>| ShardView {
        shard,
        leader: leader.map(str::to_owned),
        replicas: ["a", "b", "c"].map(str::to_owned).to_vec(),
        joining: None,
        leaving: None,
    };
    let with = |leader: Option<&str>| {
        let items = vec![shard(0, Some("a")), shard(1, leader)];
        ClusterView {
            shards: Some(ShardsView { replicas: 3, index: 9, transfers: 0, transfers_failed: 0, items }),
            ..agreed()
        }
    };
    has_not(&of(with(Some("c"))), "shards");
    // The others elect one.
    has(&of(with(None)), "error shards 1 of 2 shards have no leader", "An election takes seconds");
    let mut no_majority = with(None);
    no_majority.membership.members[2].state = "suspect";
    has(&of(no_majority), "error shards 1 of 2 shards have no leader", "Start these cores again: b, c");
    let mut all_are_there = with(None);
    all_are_there.membership.members[1].state = "alive";
    has(&of(all_are_there), "error shards 1 of 2 shards have no leader", "meridian ctl links");
}

#[test]
fn clocks_that_differ_are_named_with_what_sets_them() {
    let with = |own: Option<f64>, c: f64, differs: bool| {
        let mut view = view();
        view.clock_offset_s = own;
        view.links[1].clock_ahead_s = Some(c);
        view.links[1].clock_differs = differs;
        of(view)
    };
    has(
        &with(None, -3600.5, true),
        "warning clock the clock of c is 1h behind that of this node: timedatectl",
        "",
    );
    let lines = with(Some(3600.0), -3600.0, false);
    has(&lines, "warning clock the clock of this node (a) is 1h ahead of those of most nodes", "");
    has_not(&lines, "clock of c");
    has(
        &with(Some(3600.0), -7200.0, true),
        "warning clock the clock of c is 1h behind those of most nodes",
        "",
    );
    has_not(&with(None, 0.25, false), "clock");
}

#[test]
fn unindexed_routes_are_an_error_and_slow_links_a_warning() {
    let mut view = view();
    view.routes_unindexed = 1;
    view.refused = 1;
    view.transport.bbr = false;
    view.links[1].lanes[0].oldest_s = 6.0;
    view.links[1].connections = 1;
    let lines = of(view);
    has(&lines, "error routes_unindexed", "publishers of QoS 1 and 2 wait here");
    has(&lines, "notice refused", "cluster.buffer_max");
    has(&lines, "warning link c: frames have waited for 6s", "");
    has(&lines, "warning link c: 1 of 4 connections", "");
    has(&lines, "warning link c: frames are sent again", "");
    has(&lines, "notice bbr", "modprobe tcp_bbr");
}

#[test]
fn a_thread_of_links_that_is_stuck_is_an_error() {
    let server = Server::in_silent_cluster(Some(view()), Duration::from_secs(7));
    has(&lines(&server), "error node the thread that carries this node's links", "restart the node");
}
