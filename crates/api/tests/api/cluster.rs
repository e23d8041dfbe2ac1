//! What operators see of the node's part in its cluster.

use api::{CarrierView, ClusterView, LaneView, LinkView, NodeRoutes, Role};

use crate::support::Server;

/// A node `a` that is cut off from `b`, and hears from `c`.
pub fn view() -> ClusterView {
    let routes = |node: &str, suspect| NodeRoutes {
        node: node.to_owned(),
        role: "core",
        incarnation: 9,
        position: 4,
        filters: 3,
        tombstones: 1,
        bytes: 30,
        digest: "00000000000000ff".to_owned(),
        suspect,
    };
    let carrier = CarrierView {
        connections: 4,
        accepted: 4,
        accept_errors: 0,
        dialed: 9,
        tls_errors: 0,
        bytes_read: 1000,
        bytes_written: 2000,
        reads: 10,
        writes: 20,
        blocked: 1,
        turns: 100,
        wakeups: 50,
        letters: 60,
        bbr: true,
    };
    ClusterView {
        node: "a".to_owned(),
        role: "core",
        region: "north".to_owned(),
        incarnation: 9,
        attached_to: None,
        fresh: false,
        subacks_waiting_core: 2,
        subacks_waiting_cluster: 5,
        subacks_overdue: 1,
        routes_applied: 8,
        routes_refused: 0,
        dropped_qos0: 0,
        dropped_suspect: 0,
        refused: 0,
        malformed: 0,
        asks: 6,
        asks_unanswered: 1,
        asked: 4,
        asked_refused: 0,
        compressed_before_bytes: 900,
        compressed_after_bytes: 300,
        routes: vec![routes("a", false), routes("b", true), routes("c", false)],
        links: vec![link("b", "suspect", None), link("c", "up", Some(1.5))],
        carrier,
    }
}

fn link(node: &str, state: &'static str, round_trip_ms: Option<f64>) -> LinkView {
    let lane = LaneView {
        class: "assured",
        frames_sent: 70,
        frame_bytes_sent: 7000,
        frames_received: 7,
        frame_bytes_received: 700,
        retransmitted: 7,
        refused: 0,
        lost: 0,
        stalled: 1,
        waiting_bytes: 300,
        waiting_frames: 3,
        oldest_s: 2.5,
    };
    LinkView {
        node: node.to_owned(),
        address: "127.0.0.1:7883".to_owned(),
        role: "core",
        region: "north".to_owned(),
        state,
        state_s: 12.0,
        dials: true,
        connections: 4,
        connections_wanted: 4,
        version: 1,
        features: 0,
        round_trip_ms,
        bytes_sent: 9000,
        bytes_received: 8000,
        connected: 4,
        silent: 0,
        restarts: 0,
        unconsumed_bytes: 0,
        unconfirmed: 3,
        retransmitted_percent: 10.0,
        lanes: vec![lane],
        last_error: None,
        last_error_s: None,
    }
}

#[test]
fn a_node_shows_its_links_and_what_it_knows_of_each_node() {
    let server = Server::in_cluster(Some(view()));
    let shown = server.get("/api/v1/cluster").is(200);
    assert_eq!((&shown["node"], &shown["fresh"]), (&"a".into(), &false.into()));
    assert_eq!((&shown["links"][0]["node"], &shown["links"][0]["state"]), (&"b".into(), &"suspect".into()));
    assert_eq!(shown["links"][1]["lanes"][0]["class"], "assured");
    assert_eq!(
        (&shown["routes"][1]["suspect"], &shown["routes"][1]["digest"]),
        (&true.into(), &"00000000000000ff".into())
    );
}

#[test]
fn a_node_alone_says_that_it_belongs_to_no_cluster() {
    let detail = Server::start().get("/api/v1/cluster").problem(404, "not-found");
    assert!(detail.contains("[[cluster_node]]"), "{detail}");
}

#[test]
fn a_node_that_does_not_take_its_part_yet_says_so() {
    let detail = Server::in_cluster(None).get("/api/v1/cluster").problem(503, "unavailable");
    assert!(detail.contains("yet"), "{detail}");
}

#[test]
fn viewers_may_look_and_nobody_without_a_token() {
    let server = Server::with_keys(|_| ());
    for (role, status) in [(Role::Viewer, 404), (Role::Operator, 404), (Role::Admin, 404)] {
        let token = format!("Bearer {}", server.token(role));
        let answer = server.request("GET", "/api/v1/cluster", &[("Authorization", token.as_str())], None);
        assert_eq!(answer.status, status, "{role:?}: through the gate, to a node without a cluster");
    }
    assert_eq!(server.get("/api/v1/cluster").status, 401);
}
