//! Metrics of the node's part in its cluster. Left out where the node belongs to no cluster.

use broker::admin::ShardFigures;

use crate::cluster::{
    ClusterView, LaneView, LinkView, MembershipView, NodeRoutes, ShardView, ShardsView, TransportView,
};
use crate::metrics::{Kind, Text};

/// Writes all of them. The number of series grows with the nodes of the cluster, which have a limit, and not with
/// clients or topics.
pub(super) fn cluster(text: &mut Text, view: &ClusterView, led: &[&ShardFigures]) {
    own(text, view);
    nodes(text, &view.routes);
    links(text, &view.links);
    lanes(text, &view.links);
    transport(text, &view.transport);
    membership(text, &view.membership);
    if let Some(view) = &view.shards {
        shards(text, view, led);
    }
}

/// Writes the numbers of shards by state, and what this node knows of those that it leads.
fn shards(text: &mut Text, view: &ShardsView, led: &[&ShardFigures]) {
    let help = "Shards of the cluster by state: led by this node, with a leader that this node reaches, without \
        one, or with replicas that come or go.";
    let count =
        |is_it: &dyn Fn(&ShardView) -> bool| view.items.iter().filter(|shard| is_it(shard)).count() as f64;
    let mut family = text.family("meridian_cluster_shards", Kind::Gauge, help);
    family.sample(&[("state", "led_here")], led.len() as f64);
    family.sample(&[("state", "led")], count(&|shard| shard.leader.is_some()));
    family.sample(&[("state", "without_leader")], count(&|shard| shard.leader.is_none()));
    family
        .sample(&[("state", "changing")], count(&|shard| shard.joining.is_some() || shard.leaving.is_some()));
    let behind = led.iter().flat_map(|shard| &shard.replicas).filter_map(|replica| replica.behind);
    let help =
        "Greatest number of records that a replica of a shard lacks, among the shards that this node leads.";
    text.one("meridian_cluster_shards_behind_max", Kind::Gauge, help, behind.max().unwrap_or(0) as f64);
    let help =
        "Transfers of the leadership of a shard from this node to the core that should lead it, by result.";
    let mut family = text.family("meridian_cluster_shard_transfers_total", Kind::Counter, help);
    family.sample(&[("result", "done")], view.transfers as f64);
    family.sample(&[("result", "given_up")], view.transfers_failed as f64);
}

/// Writes the figures of the members. Only cores have those of the meta group.
fn membership(text: &mut Text, view: &MembershipView) {
    let help = "Members of the cluster that this node knows, by the state that the cores agree on: alive, \
        leaving, suspect or dead.";
    let mut family = text.family("meridian_cluster_members", Kind::Gauge, help);
    for state in ["alive", "leaving", "suspect", "dead"] {
        let members = view.members.iter().filter(|member| member.state == state).count();
        family.sample(&[("state", state)], members as f64);
    }
    let Some(replica) = &view.replica else { return };
    let truth = |truth: bool| f64::from(u8::from(truth));
    let rows = [
        ("leader", "1 on the leader of the cores, 0 on the others.", truth(replica.raft_state == "leader")),
        (
            "quorum",
            "1 while this core is in contact with a majority of the voters, otherwise 0.",
            truth(replica.quorum),
        ),
        ("term", "Current Raft term of the meta group.", replica.term as f64),
        (
            "applied",
            "Index of the last Raft log entry that this core has applied.",
            replica.applied_index as f64,
        ),
    ];
    for (name, help, value) in rows {
        text.one(&format!("meridian_cluster_meta_{name}"), Kind::Gauge, help, value);
    }
}

fn own(text: &mut Text, view: &ClusterView) {
    let help = "Name, role and region of this node in its cluster; always 1.";
    text.family("meridian_cluster_info", Kind::Gauge, help)
        .sample(&[("node", &view.node), ("role", view.role), ("region", &view.region)], 1.0);
    let help = "1 while the cluster lets the node acknowledge messages of QoS 1 and 2, 0 while the node \
        withholds acknowledgements.";
    text.one("meridian_cluster_acknowledging", Kind::Gauge, help, f64::from(u8::from(view.acknowledging)));
    let help = "Filters and shared groups of other nodes that this node has no room for. It acknowledges no \
        messages while there are any.";
    text.one("meridian_cluster_routes_unindexed", Kind::Gauge, help, view.routes_unindexed as f64);
    let help = "SUBACKs that wait until other nodes know of the subscription, by the nodes that they wait \
        for.";
    let mut family = text.family("meridian_cluster_subacks_waiting", Kind::Gauge, help);
    family.sample(&[("for", "core")], view.subacks_waiting_core as f64);
    family.sample(&[("for", "region")], view.subacks_waiting_region as f64);
    family.sample(&[("for", "cluster")], view.subacks_waiting_cluster as f64);
    let help = "Messages to other nodes that were dropped because a buffer was full, by reason.";
    let mut family = text.family("meridian_cluster_messages_dropped_total", Kind::Counter, help);
    family.sample(&[("reason", "qos0")], view.dropped_qos0 as f64);
    family.sample(&[("reason", "suspect")], view.dropped_suspect as f64);
    for (name, help, value) in [
        (
            "subacks_overdue",
            "SUBACKs for which other nodes did not receive the subscription in time.",
            view.subacks_overdue,
        ),
        ("routes_applied", "Changes of routes applied from other nodes.", view.routes_applied),
        (
            "routes_refused",
            "Routes of other nodes that were refused because the tables are full.",
            view.routes_refused,
        ),
        (
            "messages_refused",
            "Messages of QoS 1 and 2 to other nodes that were refused because a buffer was \
            full.",
            view.refused,
        ),
        (
            "shard_frames_refused",
            "Frames between workers and shards of other nodes that were dropped because a link was down or a \
             buffer was full.",
            view.shard_frames_refused,
        ),
        ("malformed", "Invalid messages received from peers.", view.malformed),
        (
            "unauthenticated_closed",
            "Connections to the cluster port that were closed because too many were unauthenticated.",
            view.unauthenticated_closed,
        ),
        ("requests_sent", "Requests of operators and of links sent to other nodes.", view.requests_sent),
        (
            "requests_unanswered",
            "Requests of operators and of links to other nodes that got no answer.",
            view.requests_unanswered,
        ),
        (
            "requests_received",
            "Requests of operators and of links received from other nodes.",
            view.requests_received,
        ),
        (
            "requests_refused",
            "Requests of other nodes that were refused because too many waited, or because their answers had \
             no room.",
            view.requests_refused,
        ),
    ] {
        text.one(&format!("meridian_cluster_{name}_total"), Kind::Counter, help, value as f64);
    }
    let help = "Bytes of frames to nodes of other regions, before and after compression.";
    let mut family = text.family("meridian_cluster_compressed_bytes_total", Kind::Counter, help);
    family.sample(&[("when", "before")], view.compressed_before_bytes as f64);
    family.sample(&[("when", "after")], view.compressed_after_bytes as f64);
}

/// Writes the figures of each node, including this one.
fn nodes(text: &mut Text, nodes: &[NodeRoutes]) {
    let mut each = |name: &str, help: &str, figure: fn(&NodeRoutes) -> u64| {
        let mut family = text.family(&format!("meridian_cluster_node_{name}"), Kind::Gauge, help);
        nodes.iter().for_each(|node| family.sample(&[("node", &node.node)], figure(node) as f64));
    };
    each("filters", "Topic Filters of the node's clients that this node knows.", |n| n.filters);
    each("route_bytes", "Bytes of those Topic Filters.", |n| n.bytes);
    let help = "Changes of the node's routes received in its present incarnation; starts again with each \
        incarnation.";
    each("position", help, |n| n.position);
    each("tombstones", "Deletions of routes that are remembered for nodes that lack them.", |n| n.tombstones);
    each("suspect", "1 while the node is silent; its routes are kept.", |n| u64::from(n.suspect));
}

fn links(text: &mut Text, links: &[LinkView]) {
    let mut each = |name: &str, kind: Kind, help: &str, figure: fn(&LinkView) -> Option<f64>| {
        let mut family = text.family(&format!("meridian_link_{name}"), kind, help);
        for link in links {
            if let Some(value) = figure(link) {
                family.sample(&[("peer", &link.node)], value);
            }
        }
    };
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    each("up", gauge, "1 while the link to the other node is up, otherwise 0.", |link| {
        Some(f64::from(u8::from(link.state == "up")))
    });
    each("state_seconds", gauge, "Time since the state of the link changed.", |link| Some(link.state_s));
    each("connections", gauge, "Connections that carry frames of the link.", |link| {
        Some(link.connections as f64)
    });
    let help = "Connections that the link should have.";
    each("connections_wanted", gauge, help, |link| Some(link.connections_wanted as f64));
    let help = "Round-trip time of the link; left out while the link is not up.";
    each("round_trip_seconds", gauge, help, |link| link.round_trip_ms.map(|ms| ms / 1e3));
    let help = "Offset of the other node's clock from this node's; less than 0 when the other clock is \
        behind; left out while unknown.";
    each("clock_ahead_seconds", gauge, help, |link| link.clock_ahead_s);
    each("bytes_sent_total", counter, "Bytes sent to the other node.", |link| Some(link.bytes_sent as f64));
    let help = "Bytes received from the other node.";
    each("bytes_received_total", counter, help, |link| Some(link.bytes_received as f64));
    each("connections_opened_total", counter, "Connections of the link that were made.", |link| {
        Some(link.connected as f64)
    });
    let help = "Connections of the link that ended because they were silent for too long.";
    each("timeouts_total", counter, help, |link| Some(link.timeouts as f64));
    each("restarts_total", counter, "Times that the other node restarted.", |link| {
        Some(link.restarts as f64)
    });
    let help = "Bytes that the link received and that are not yet processed.";
    each("unconsumed_bytes", gauge, help, |link| Some(link.unconsumed_bytes as f64));
    let help = "Messages whose publishers wait for the other node.";
    each("unconfirmed_messages", gauge, help, |link| Some(link.unconfirmed as f64));
}

/// Writes the figures of each link by class of frames.
fn lanes(text: &mut Text, links: &[LinkView]) {
    let mut each = |name: &str, kind: Kind, help: &str, figure: fn(&LaneView) -> f64| {
        let mut family = text.family(&format!("meridian_link_{name}"), kind, help);
        for link in links {
            for lane in &link.lanes {
                family.sample(&[("peer", &link.node), ("class", lane.class)], figure(lane));
            }
        }
    };
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    each("frames_sent_total", counter, "Frames sent, by class.", |lane| lane.frames_sent as f64);
    each("frames_received_total", counter, "Frames received, by class.", |lane| lane.frames_received as f64);
    each("frame_bytes_sent_total", counter, "Bytes of the frames sent.", |lane| lane.frame_bytes_sent as f64);
    each("frame_bytes_received_total", counter, "Bytes of the frames received.", |lane| {
        lane.frame_bytes_received as f64
    });
    let help = "Frames sent again because their connection was lost.";
    each("frames_retransmitted_total", counter, help, |lane| lane.retransmitted as f64);
    each("frames_refused_total", counter, "Frames that were refused because the buffer was full.", |lane| {
        lane.refused as f64
    });
    let help = "Frames that were lost with a connection, or forgotten by the other node.";
    each("frames_lost_total", counter, help, |lane| lane.lost as f64);
    each("stalls_total", counter, "Times that frames waited for credit.", |lane| lane.stalled as f64);
    each("queue_bytes", gauge, "Bytes of frames that wait.", |lane| lane.waiting_bytes as f64);
    each("queue_frames", gauge, "Frames that wait.", |lane| lane.waiting_frames as f64);
    let help = "Age of the oldest waiting frame.";
    each("queue_age_seconds", gauge, help, |lane| lane.oldest_s);
}

fn transport(text: &mut Text, transport: &TransportView) {
    let (gauge, counter) = (Kind::Gauge, Kind::Counter);
    let rows = [
        ("connections", gauge, "Connections with other nodes.", transport.connections),
        ("accepted_total", counter, "Connections that other nodes made.", transport.accepted),
        (
            "accept_errors_total",
            counter,
            "Connections of other nodes that could not be accepted.",
            transport.accept_errors,
        ),
        ("dialed_total", counter, "Connections to other nodes that were tried.", transport.dialed),
        (
            "tls_errors_total",
            counter,
            "Connections with other nodes that ended by an error of TLS.",
            transport.tls_errors,
        ),
        ("read_bytes_total", counter, "Bytes read from other nodes.", transport.bytes_read),
        ("written_bytes_total", counter, "Bytes written to other nodes.", transport.bytes_written),
        ("reads_total", counter, "Reads of connections with other nodes.", transport.reads),
        ("writes_total", counter, "Writes to connections with other nodes.", transport.writes),
        ("blocked_total", counter, "Writes that the socket accepted only in part.", transport.blocked),
        ("turns_total", counter, "Turns of the thread that carries links.", transport.turns),
        (
            "wakeups_total",
            counter,
            "Times that other threads woke the thread that carries links.",
            transport.wakeups,
        ),
        (
            "commands_total",
            counter,
            "Commands of other threads to the thread that carries links.",
            transport.commands,
        ),
        (
            "bbr",
            gauge,
            "1 when links use BBR. Without it, bulk transfers over long distances are slow.",
            u64::from(transport.bbr),
        ),
    ];
    for (name, kind, help, value) in rows {
        text.one(&format!("meridian_transport_{name}"), kind, help, value as f64);
    }
}
