//! The node's part in its cluster, as operators see it.

use std::time::Duration;

use api::{
    ClusterView, GrantView, LaneView, LinkView, MemberView, MembershipView, NodeRoutes, ReplicaView, Role,
    ShardsView, TransportView, UnjoinedPeerView,
};
use serde_json::{Value, json};

use crate::operators::client::{Client, With};
use crate::support::Server;

/// A node `a` that does not reach `b`, and is attached to `c`.
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
    let transport = TransportView {
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
        commands: 60,
        bbr: true,
    };
    ClusterView {
        node: "a".to_owned(),
        role: "core",
        region: "north".to_owned(),
        incarnation: 9,
        attached_to: None,
        acknowledging: false,
        lease_s: Some(0.0),
        lease_granted_by: Vec::new(),
        leases_granted: vec![GrantView { node: "c".to_owned(), left_s: 1.5 }],
        clock_offset_s: None,
        subacks_waiting_core: 2,
        subacks_waiting_region: 3,
        subacks_waiting_cluster: 5,
        subacks_overdue: 1,
        routes_applied: 8,
        routes_refused: 0,
        routes_unindexed: 0,
        dropped_qos0: 0,
        dropped_suspect: 0,
        refused: 0,
        shard_frames_refused: 0,
        malformed: 0,
        unauthenticated_closed: 7,
        requests_sent: 6,
        requests_unanswered: 1,
        requests_received: 4,
        requests_refused: 0,
        compressed_before_bytes: 900,
        compressed_after_bytes: 300,
        routes: vec![routes("a", false), routes("b", true), routes("c", false)],
        links: vec![link("b", "suspect", None), link("c", "up", Some(1.5))],
        unjoined_peers: vec![UnjoinedPeerView {
            address: "10.0.0.7".to_owned(),
            name: Some("z".to_owned()),
            reason: "another secret: check its file".to_owned(),
            last_s: 2.0,
            count: 12,
        }],
        transport,
        membership: no_members(),
        shards: None,
    }
}

/// Membership of a node that knows no members yet.
fn no_members() -> MembershipView {
    MembershipView {
        stale: false,
        cluster_uid: None,
        index: 0,
        joined: false,
        waits_for: None,
        members: Vec::new(),
        replica: None,
    }
}

/// The same node with the members on which the cores agree: it is the leader, `b` is dead, `c` is alive, and `stuck` is
/// dead and cannot be removed.
pub fn agreed() -> ClusterView {
    let member = |node: &str, role, state, votes, leads| MemberView {
        node: node.to_owned(),
        role,
        region: "north".to_owned(),
        address: format!("{node}:7883"),
        incarnation: 9,
        state,
        votes,
        leads,
    };
    let replica = ReplicaView {
        raft_state: "leader",
        term: 3,
        leader: Some("a".to_owned()),
        leader_via: None,
        last_index: 41,
        applied_index: 40,
        quorum: true,
        voters: 3,
        learners: 0,
        failure: None,
    };
    let membership = MembershipView {
        stale: false,
        cluster_uid: Some("00ff".to_owned()),
        index: 40,
        joined: true,
        waits_for: None,
        members: vec![
            member("a", "core", "alive", true, true),
            member("b", "core", "dead", true, false),
            member("c", "core", "alive", true, false),
            member("d", "replicant", "suspect", false, false),
            member("stuck", "replicant", "dead", false, false),
        ],
        replica: Some(replica),
    };
    ClusterView { membership, ..view() }
}

/// The same node when it reaches no other core.
pub fn cut_off() -> ClusterView {
    ClusterView { links: vec![link("b", "suspect", None)], ..agreed() }
}

/// The same node with a change of its membership.
fn agreed_but(change: impl FnOnce(&mut MembershipView)) -> ClusterView {
    let mut view = agreed();
    change(&mut view.membership);
    view
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
        clock_ahead_s: round_trip_ms.map(|_| -3600.5),
        clock_differs: round_trip_ms.is_some(),
        bytes_sent: 9000,
        bytes_received: 8000,
        connected: 4,
        timeouts: 0,
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
fn a_node_shows_its_links_and_the_routes_of_each_node() {
    let server = Server::in_cluster(Some(view()));
    let shown = server.get("/api/v1/cluster").is(200);
    assert_eq!((&shown["node"], &shown["acknowledging"]), (&"a".into(), &false.into()));
    assert_eq!((&shown["links"][0]["node"], &shown["links"][0]["state"]), (&"b".into(), &"suspect".into()));
    assert_eq!(shown["links"][1]["lanes"][0]["class"], "assured");
    let apart = &shown["unjoined_peers"][0];
    assert_eq!(
        (&apart["address"], &apart["name"], &apart["count"]),
        (&"10.0.0.7".into(), &"z".into(), &12.into())
    );
    assert_eq!((&shown["leases_granted"][0]["node"], &shown["lease_s"]), (&"c".into(), &0.0.into()));
    assert_eq!((&shown["links"][0]["clock_ahead_s"], &shown["clock_offset_s"]), (&Value::Null, &Value::Null));
    let c = &shown["links"][1];
    assert_eq!((&c["clock_ahead_s"], &c["clock_differs"]), (&(-3600.5).into(), &true.into()));
    let nodes = server.get("/api/v1/nodes").is(200);
    let part = &nodes["items"][0]["cluster"];
    let c = &part["links"][1];
    assert_eq!((&c["clock_ahead_s"], &c["clock_differs"]), (&(-3600.5).into(), &true.into()));
    assert_eq!((&part["links"][0]["clock_ahead_s"], &part["clock_offset_s"]), (&Value::Null, &Value::Null));
    assert_eq!(
        (&shown["routes"][1]["suspect"], &shown["routes"][1]["digest"]),
        (&true.into(), &"00000000000000ff".into())
    );
}

#[test]
fn a_node_alone_says_that_it_belongs_to_no_cluster() {
    let detail = Server::start().get("/api/v1/cluster").problem(404, "not-found");
    assert!(detail.contains("cluster.listen"), "{detail}");
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

#[test]
fn a_node_shows_the_members_that_the_cores_agree_on() {
    let shown = Server::in_cluster(Some(agreed())).get("/api/v1/cluster").is(200);
    let membership = &shown["membership"];
    assert_eq!((&membership["index"], &membership["waits_for"]), (&40.into(), &Value::Null));
    let b = &membership["members"][1];
    assert_eq!((&b["node"], &b["state"], &b["votes"]), (&"b".into(), &"dead".into(), &true.into()));
    assert_eq!(
        (&membership["members"][0]["leads"], &membership["replica"]["term"]),
        (&true.into(), &3.into())
    );
}

#[test]
fn only_a_dead_member_is_removed() {
    let server = Server::in_cluster(Some(agreed()));
    let remove = |name: &str| server.write("DELETE", &format!("/api/v1/cluster/nodes/{name}"), None);
    assert_eq!(remove("b").status, 204);
    let members = server.get("/api/v1/cluster").is(200)["membership"]["members"].to_string();
    assert!(!members.contains("\"node\":\"b\""), "it is gone when the answer says so: {members}");
    let unknown = remove("e").problem(404, "not-found");
    assert!(unknown.contains("`e`") && unknown.contains("a, c, d, stuck"), "{unknown}");
    let alive = remove("c").problem(409, "conflict");
    assert!(alive.contains("stop it first"), "{alive}");
    let suspect = remove("d").problem(409, "conflict");
    assert!(suspect.contains("wait until"), "{suspect}");
    let stuck = remove("stuck").problem(503, "unavailable");
    assert!(stuck.contains("nobody leads"), "{stuck}");
    let audit = server.get("/api/v1/audit").is(200).to_string();
    assert!(audit.contains("/cluster/nodes/b"), "{audit}");
    let late = Server::in_cluster(Some(agreed_but(|membership| membership.members[1].incarnation = 8)));
    let back = late.write("DELETE", "/api/v1/cluster/nodes/b", None).problem(409, "conflict");
    assert!(back.contains("joined again") && !back.contains("may still do so"), "{back}");
}

#[test]
fn a_node_without_members_removes_none() {
    let remove = |server: Server| server.write("DELETE", "/api/v1/cluster/nodes/b", None);
    let unknown = remove(Server::in_cluster(Some(view()))).problem(404, "not-found");
    assert!(unknown.contains("none yet"), "{unknown}");
    remove(Server::start()).problem(404, "not-found");
    remove(Server::in_cluster(None)).problem(503, "unavailable");
}

#[test]
fn nodes_are_removed_by_admins_only() {
    let server = Server::with_keys(|_| ());
    for (role, status) in [(Role::Viewer, 403), (Role::Operator, 403), (Role::Admin, 404)] {
        let token = format!("Bearer {}", server.token(role));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        let answer = server.request("DELETE", "/api/v1/cluster/nodes/b", &headers, None);
        assert_eq!(answer.status, status, "{role:?}");
    }
}

#[test]
fn the_lead_goes_to_a_core_that_has_a_vote() {
    let server = Server::in_cluster(Some(agreed_but(|membership| membership.members[2].votes = false)));
    let lead = |server: &Server, node: &str| {
        server.write("PUT", "/api/v1/cluster/leader", Some(&json!({ "node": node })))
    };
    assert_eq!(lead(&Server::in_cluster(Some(agreed())), "c").status, 204);
    assert!(lead(&server, "c").problem(409, "conflict").contains("no vote yet"));
    assert!(lead(&server, "b").problem(409, "conflict").contains("not alive"));
    assert!(lead(&server, "d").problem(409, "conflict").contains("only a core can be the leader"));
    lead(&server, "e").problem(404, "not-found");
}

#[test]
fn a_node_leaves_a_cluster_that_can_go_on_without_it() {
    let leave = |view: ClusterView, body: Value| {
        Server::in_cluster(Some(view)).write("POST", "/api/v1/cluster/leave", Some(&body))
    };
    assert_eq!(leave(agreed(), json!({})).status, 202);
    leave(agreed(), json!({"discard": true})).problem(422, "invalid");
    let last = agreed_but(|membership| membership.members[2].state = "suspect");
    assert!(leave(last, json!({})).problem(409, "conflict").contains("nobody to agree"));
    let refused = agreed_but(|it| it.waits_for = Some("its sessions cannot be merged".to_owned()));
    assert_eq!(leave(refused, json!({})).status, 202, "it is a member");
    let none = agreed_but(|it| it.joined = false);
    assert!(leave(none, json!({})).problem(409, "conflict").contains("no member"));
    leave(view(), json!({})).problem(409, "conflict");
    Server::start().write("POST", "/api/v1/cluster/leave", Some(&json!({}))).problem(404, "not-found");
}

#[test]
fn a_node_with_sessions_leaves_if_other_cores_have_them_or_the_loss_is_confirmed() {
    let replicas =
        || ShardsView { replicas: 3, index: 9, transfers: 0, transfers_failed: 0, items: Vec::new() };
    let with_session = |view: ClusterView| {
        let server = Server::in_cluster(Some(view));
        let durable = With { expiry: 3600, ..With::default() };
        Client::connect(server.mqtt, "durable", durable).expect("it connects").disconnect();
        server
    };
    let leave = |server: &Server, body: Value| server.write("POST", "/api/v1/cluster/leave", Some(&body));
    let has_replicas = with_session(ClusterView { shards: Some(replicas()), ..agreed() });
    assert_eq!(leave(&has_replicas, json!({})).status, 202);
    let own = agreed_but(|it| it.waits_for = Some("its sessions cannot be merged".to_owned()));
    for view in [agreed(), ClusterView { shards: Some(replicas()), ..own }] {
        let server = with_session(view);
        assert!(leave(&server, json!({})).problem(409, "conflict").contains("would be lost"));
        assert_eq!(leave(&server, json!({"discard_sessions": true})).status, 202);
    }
}

#[test]
fn a_node_that_leaves_says_so_again_and_one_that_stops_does_not_leave() {
    let leave = |server: &Server| server.write("POST", "/api/v1/cluster/leave", Some(&json!({})));
    let leaves = Server::in_cluster(Some(agreed()));
    assert_eq!((leave(&leaves).status, leave(&leaves).status), (202, 202));
    leaves.stopping();
    assert_eq!(leave(&leaves).status, 202);
    let stops = Server::in_cluster(Some(agreed()));
    stops.stopping();
    let detail = leave(&stops).problem(409, "conflict");
    assert!(detail.contains("begun to stop") && detail.contains("stays a member"), "{detail}");
}

#[test]
fn a_node_that_waits_for_its_cluster_accepts_addresses() {
    let join = |view: ClusterView, addresses: &[&str]| {
        let body = json!({ "addresses": addresses });
        Server::in_cluster(Some(view)).write("POST", "/api/v1/cluster/join", Some(&body))
    };
    let waits = || {
        agreed_but(|it| {
            (it.waits_for, it.joined) = (Some("others".to_owned()), false);
        })
    };
    assert_eq!(join(waits(), &["h:7883", "[::1]:7883"]).status, 204);
    for bad in ["h", "h:", ":7883", "h:0", "h:70000", "[::1", "h:port"] {
        join(waits(), &[bad]).problem(422, "invalid");
    }
    let detail = join(waits(), &["h:1", "http://10.0.0.1:7883"]).problem(422, "invalid");
    assert!(detail.contains("a scheme is not allowed: write 10.0.0.1:7883"), "{detail}");
    join(waits(), &[]).problem(422, "invalid");
    join(waits(), &["h:1"; 17]).problem(422, "invalid");
    assert!(join(agreed(), &["h:1"]).problem(409, "conflict").contains("already"));
    let refused = agreed_but(|it| it.waits_for = Some("its sessions cannot be merged".to_owned()));
    assert!(join(refused, &["h:1"]).problem(409, "conflict").contains("already"));
    let alone = agreed_but(|membership| membership.members.truncate(1));
    assert!(join(alone, &["h:1"]).problem(409, "conflict").contains("cannot move to another one"));
    assert_eq!(join(cut_off(), &["h:1"]).status, 204);
}

#[test]
fn replicants_are_balanced_wherever_there_is_a_cluster() {
    let balance = |server: Server| server.write("POST", "/api/v1/cluster/balance", None);
    assert_eq!(balance(Server::in_cluster(Some(view()))).status, 204);
    assert_eq!(balance(Server::in_cluster(Some(agreed()))).status, 204);
    balance(Server::start()).problem(404, "not-found");
}

/// Checks the status code, the name of the state, and a part of the reason.
#[track_caller]
fn quorum(server: &Server, code: u16, status: &str, part: &str) {
    let body = server.get("/health/quorum").is(code);
    assert_eq!(body["status"], status);
    assert_eq!(body["detail"].is_null(), code == 200, "{body}");
    assert!(body["detail"].as_str().unwrap_or_default().contains(part), "{body}");
}

#[test]
fn health_reports_whether_a_majority_of_cores_supports_the_node() {
    let node = |view: ClusterView| Server::in_cluster(Some(ClusterView { acknowledging: true, ..view }));
    quorum(&node(agreed()), 200, "quorum", "");
    quorum(&Server::in_cluster(Some(agreed())), 503, "no_quorum", "including those without a vote");
    let cut_off = agreed_but(|it| it.replica.as_mut().unwrap().quorum = false);
    quorum(&node(cut_off), 503, "no_quorum", "no majority of the 3 voters");
    let stopped = agreed_but(|it| it.replica.as_mut().unwrap().failure = Some("its disk failed".to_owned()));
    quorum(&node(stopped), 503, "no_quorum", "its disk failed");
    let waits = agreed_but(|it| {
        (it.waits_for, it.joined) = (Some("the cores have not met".to_owned()), false);
    });
    quorum(&node(waits), 503, "joining", "no member yet: the cores have not met");
    let refused = agreed_but(|it| it.waits_for = Some("its sessions cannot be merged".to_owned()));
    quorum(&node(refused), 503, "waiting", "serves no client: its sessions cannot be merged");
}

/// A load balancer or a monitor needs no key for that.
#[test]
fn health_names_the_cores_that_a_node_does_not_reach() {
    let replicant = |links: Vec<LinkView>| {
        let mut view = agreed_but(|it| it.replica = None);
        view.links = links;
        view.links.push(LinkView { role: "replicant", ..link("d", "suspect", None) });
        ClusterView { role: "replicant", ..view }
    };
    let cut_off =
        || replicant(vec![link("a", "dead", None), link("b", "suspect", None), link("c", "up", None)]);
    let near = || replicant(vec![link("c", "up", None)]);
    let says = |server: &Server, path: &str| server.get(path).is(503)["detail"].to_string();
    quorum(&Server::in_cluster(Some(cut_off())), 503, "no_quorum", "wait; it does not reach a, b (meridian");
    assert!(
        !says(&Server::in_cluster(Some(near())), "/health/quorum").contains("reach"),
        "it carries nobody"
    );
    let core = agreed_but(|it| it.replica.as_mut().unwrap().quorum = false);
    quorum(&Server::in_cluster(Some(core)), 503, "no_quorum", "wait; it does not reach b (");
    let ready = |view| says(&Server::starting_in_cluster(view), "/health/ready");
    assert!(ready(cut_off()).contains("that the cores agree on; it does not reach a, b"));
    assert!(ready(near()).ends_with("that the cores agree on\""));
    let waits = agreed_but(|it| it.waits_for = Some("no node was met".to_owned()));
    assert!(ready(waits).contains("agree on; this node is a member that serves no client: no node was met"));
    let waits = agreed_but(|it| {
        (it.waits_for, it.joined) = (Some("no node was met yet at h:7883".to_owned()), false);
    });
    assert!(ready(waits).contains("agree on; this node is no member yet: no node was met yet at h:7883"));
}

#[test]
fn without_a_replica_health_depends_on_acknowledging() {
    quorum(&Server::start(), 200, "alone", "");
    quorum(&Server::in_cluster(None), 503, "starting", "yet");
    let replicant = || agreed_but(|it| it.replica = None);
    for mut view in [view(), replicant()] {
        view.acknowledging = true;
        quorum(&Server::in_cluster(Some(view.clone())), 200, "quorum", "");
        view.acknowledging = false;
        quorum(&Server::in_cluster(Some(view)), 503, "no_quorum", "no majority");
    }
}

#[test]
fn a_silent_thread_of_links_makes_the_node_unhealthy() {
    let silent = |silence| {
        Server::in_silent_cluster(
            Some(ClusterView { acknowledging: true, ..agreed() }),
            Duration::from_millis(silence),
        )
    };
    let server = silent(4_999);
    quorum(&server, 200, "quorum", "");
    assert_eq!(server.get("/health/ready").is(200)["status"], "ready");
    let server = silent(5_000);
    quorum(&server, 503, "stuck", "been silent for 5 s");
    let ready = server.get("/health/ready").is(503);
    assert_eq!(ready["status"], "stuck");
    assert!(ready["detail"].as_str().unwrap_or_default().contains("restart"), "{ready}");
    server.stopping();
    assert_eq!(server.get("/health/ready").is(503)["status"], "stopping");
    assert_eq!(server.get("/health/live").is(200)["status"], "live");
}
