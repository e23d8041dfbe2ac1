//! Answers to publishers whose messages are for other nodes. The test plays the cluster.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::peers::{
    Copies, Forward, Forwarded, Inbound, Members, NodeIndex, Outbound, Peers, Wants, decode,
};
use broker::settings::SharedStrategy;
use broker::{Node, Time, WorkerId};
use bytes::Bytes;
use mqtt::QoS::{AtLeastOnce, ExactlyOnce};
use mqtt::Version::V5;
use mqtt::{ReasonCode, TopicFilter};
use testkit::packets::*;

use crate::net::{Net, everywhere, everywhere_with};

/// Other nodes: keeps what workers have for them.
#[derive(Default)]
pub struct Others(Mutex<Vec<Outbound>>);

impl Peers for Others {
    fn connect(&self, _: &Arc<Node>, _: broker::Instant) -> Result<(), String> {
        Ok(())
    }

    fn submit(&self, outbound: Outbound) {
        self.0.lock().expect("one thread").push(outbound);
    }

    fn backlog(&self) -> usize {
        0
    }

    fn routes_changed(&self) {}

    fn suback_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// Passes what a node has for others to a worker of another node.
pub fn pass_on(from: &mut Net, others: &Others, to: &mut Net) {
    from.send_to_peers();
    for outbound in std::mem::take(&mut *others.0.lock().expect("one thread")) {
        let frame = |forward: &Forward| Bytes::copy_from_slice(&outbound.frames[forward.frame.clone()]);
        let message = |forward| Forwarded { frame: frame(forward), ticket: None };
        let messages = outbound.forwards.iter().map(message).collect();
        to.node.post_inbound(WorkerId(0), Inbound { messages, ..Inbound::default() });
    }
    to.run();
}

/// Connects `count` other nodes, which want `a/#`.
pub fn joined(net: &Net, count: u16) -> Arc<Others> {
    joined_wanting(net, count, Wants::ALL)
}

fn joined_wanting(net: &Net, count: u16, wants: Wants) -> Arc<Others> {
    let others = Arc::<Others>::default();
    net.node.join_cluster(others.clone(), broker::Instant::now()).expect("joined");
    let filter = TopicFilter::parse("a/#").expect("a filter");
    for index in 0..count {
        net.node.routes.set_peer(filter, NodeIndex(index), wants).expect("room");
    }
    others
}

/// Ends their interest in `a/#`.
pub fn leave(net: &Net, count: u16) {
    let filter = TopicFilter::parse("a/#").expect("a filter");
    for index in 0..count {
        net.node.routes.set_peer(filter, NodeIndex(index), Wants::NOTHING).expect("room");
    }
}

/// Properties of all forwarded messages, which are not acknowledged.
pub fn forwarded_properties(net: &mut Net, others: &Others) -> Vec<Vec<u8>> {
    net.send_to_peers();
    let sent = std::mem::take(&mut *others.0.lock().expect("one thread"));
    let mut all = Vec::new();
    for Outbound { frames, forwards, .. } in &sent {
        for forward in forwards {
            let framed = decode(&frames[forward.frame.clone()], Time(0)).expect("a message");
            all.push(framed.view.properties.to_vec());
        }
    }
    all
}

/// Answers all forwarded messages for the other nodes. Returns whether each message was for its node alone.
pub fn answer(net: &mut Net, others: &Others, reason: ReasonCode) -> Vec<bool> {
    net.send_to_peers();
    let mut alone = Vec::new();
    for outbound in std::mem::take(&mut *others.0.lock().expect("one thread")) {
        let WorkerId(worker) = outbound.worker;
        let mut inbound = Inbound::default();
        for forward in outbound.forwards {
            alone.push(forward.is_alone);
            inbound.acknowledged.push((forward.token.expect("its publisher waits"), reason));
        }
        net.node.post_inbound(WorkerId(worker), inbound);
    }
    net.run();
    alone
}

/// Nodes that messages were forwarded to; the messages are not acknowledged.
fn take_places(net: &mut Net, others: &Others) -> Vec<u16> {
    net.send_to_peers();
    let sent = std::mem::take(&mut *others.0.lock().expect("one thread"));
    sent.iter().flat_map(|outbound| &outbound.forwards).map(|forward| forward.to.0).collect()
}

/// Nodes that are offered messages of groups, one after the other, when all of them answer the same.
fn offers(net: &mut Net, others: &Others, reason: ReasonCode) -> Vec<u16> {
    let mut offered = Vec::new();
    loop {
        net.send_to_peers();
        let sent = std::mem::take(&mut *others.0.lock().expect("one thread"));
        if sent.iter().all(|outbound| outbound.forwards.is_empty()) {
            return offered;
        }
        for Outbound { worker: WorkerId(worker), forwards, .. } in sent {
            let mut inbound = Inbound::default();
            for forward in forwards.iter().filter(|forward| forward.for_group) {
                offered.push(forward.to.0);
                inbound.acknowledged.push((forward.token.expect("its publisher waits"), reason));
            }
            net.node.post_inbound(WorkerId(worker), inbound);
        }
        net.run();
    }
}

#[test]
fn a_refusal_reaches_the_publisher_if_the_message_had_no_other_receiver() {
    everywhere(|net| {
        let publisher = net.connect(0, v5("p"));
        let others = joined(net, 1);
        net.send(publisher, message("a/1", 1).qos1(1));
        assert_eq!(net.received(publisher), []);
        assert_eq!(answer(net, &others, ReasonCode::QuotaExceeded), [true]);
        assert_eq!(net.received(publisher), [Sent::PubAck(1, ReasonCode::QuotaExceeded)]);
        leave(net, 1);
    });
}

/// A message that others may have is neither acknowledged nor refused: the connection ends.
#[test]
fn a_message_that_a_receiver_may_have_is_not_refused() {
    for (subscribers, nodes) in [(1, 1), (0, 2)] {
        everywhere(|net| {
            let publisher = net.connect(0, v5("p"));
            for number in 0..subscribers {
                let client = net.connect(1, v5(&format!("s{number}")));
                net.send(client, subscribe(1).to("a/1", AtLeastOnce));
            }
            let others = joined(net, nodes);
            net.send(publisher, message("a/1", 1).qos1(1));
            assert_eq!(net.received(publisher), []);
            let alone = answer(net, &others, ReasonCode::UnspecifiedError);
            assert_eq!(alone, vec![false; usize::from(nodes)]);
            let sent = net.received(publisher);
            let is_closed = matches!(
                sent.as_slice(),
                [Sent::Disconnect { reason: ReasonCode::ServerBusy, .. }, Sent::Closed]
            );
            assert!(is_closed, "{sent:?}");
            leave(net, nodes);
        });
    }
}

/// [MQTT-4.3.3-8]: its publisher got no answer. Nodes that have the message do not get it twice.
#[test]
fn a_qos_2_message_that_a_node_has_lost_is_sent_again_to_that_node_only() {
    for is_stored_here in [true, false] {
        everywhere(|net| {
            if is_stored_here {
                let subscriber = net.connect(1, durable(V5, "s"));
                net.subscribe(subscriber, "a/#", ExactlyOnce);
            }
            let publisher = net.connect(0, durable(V5, "p"));
            let others = joined_wanting(net, 2, Wants::STORED);
            net.send(publisher, message("a/1", "once").qos2(7));
            net.node.routes.has_lost(NodeIndex(1));
            assert_eq!(answer(net, &others, ReasonCode::UnspecifiedError).len(), 2);
            assert!(net.received(publisher).contains(&Sent::Closed));
            for again in [1, 0] {
                let publisher = net.resume(2, durable(V5, "p"));
                net.send(publisher, message("a/1", "once").qos2(7).dup());
                assert_eq!(take_places(net, &others), [1][..again], "a lost message is sent again, once");
                if again > 0 {
                    net.lose(publisher);
                } else {
                    assert_eq!(net.received(publisher), [pubrec(7)]);
                }
            }
            leave(net, 2);
        });
    }
}

/// Each node is offered a group's message once, whatever the strategy prefers, and there is no other member.
#[test]
fn a_node_that_has_refused_a_groups_message_is_not_offered_it_again() {
    const GROUP: &str = "$share/g/a/#";
    const NODES: u16 = 3;
    let refusals = [
        (ReasonCode::ServerUnavailable, ReasonCode::Success),
        (ReasonCode::QuotaExceeded, ReasonCode::QuotaExceeded),
        (ReasonCode::ImplementationSpecificError, ReasonCode::ImplementationSpecificError),
    ];
    for (strategy, (refusal, heard)) in
        SharedStrategy::ALL.into_iter().flat_map(|it| refusals.map(|of| (it, of)))
    {
        let of_strategy = |settings: &mut broker::settings::Settings| settings.shared.strategy = strategy;
        everywhere_with(of_strategy, |net| {
            let others = joined(net, 0);
            let members = |net: &mut Net, count| {
                for index in (0..NODES).map(NodeIndex) {
                    net.node.routes.set_reachable(index, count > 0);
                    net.node.members_of_peer(GROUP, index, Members { count, are_connected: count > 0 });
                }
                net.run();
            };
            members(net, 5);
            let publisher = net.connect(0, v5("p"));
            for packet_id in 1..=4 {
                net.send(publisher, message("a/1", packet_id).qos1(packet_id));
                let mut offered = offers(net, &others, refusal);
                offered.sort_unstable();
                assert_eq!(offered, [0, 1, 2], "each node once, {strategy:?}");
                assert_eq!(net.received(publisher), [Sent::PubAck(packet_id, heard)]);
            }
            members(net, 0);
        });
    }
}

/// A linked cluster that is connected to another node comes after all connected clients of this cluster.
#[test]
fn linked_clusters_on_other_nodes_come_after_clients_of_the_cluster() {
    const CLIENTS: &str = "$share/linked:g/a/#";
    const LINKS: &str = "$share/$link:linked:g/a/#";
    everywhere(|net| {
        let client = net.connect(1, v5("c"));
        net.subscribe(client, CLIENTS, AtLeastOnce);
        let others = joined(net, 0);
        let members = |net: &mut Net, group: &str, node: u16, count: u32| {
            net.node.routes.set_reachable(NodeIndex(node), true);
            net.node.members_of_peer(group, NodeIndex(node), Members { count, are_connected: count > 0 });
            net.run();
        };
        members(net, LINKS, 0, 3);
        let publisher = net.connect(0, v5("p"));
        let publish = |net: &mut Net, packet_id: u16, answer| {
            net.send(publisher, message("a/1", packet_id).qos1(packet_id));
            let offered = offers(net, &others, answer);
            assert_eq!(net.received(publisher), [puback(packet_id)]);
            offered
        };
        assert!(publish(net, 1, ReasonCode::Success).is_empty(), "a client here");
        assert_eq!(net.payloads(client), ["1"]);
        net.send(client, puback(1));
        net.lose(client);
        members(net, CLIENTS, 1, 1);
        for packet_id in 2..=3 {
            assert_eq!(publish(net, packet_id, ReasonCode::Success), [1], "clients come first");
        }
        assert_eq!(publish(net, 4, ReasonCode::ServerUnavailable), [1, 0], "then linked clusters");
        members(net, CLIENTS, 1, 0);
        assert_eq!(publish(net, 5, ReasonCode::Success), [0]);
        members(net, LINKS, 0, 0);
    });
}

/// The subscription is neither granted nor refused, because it is unknown whether other nodes know it.
#[test]
fn a_subscription_that_others_do_not_know_in_time_ends_its_connection_with_a_reason() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        let others = joined(net, 1);
        net.send(client, subscribe(1).to("x", AtLeastOnce));
        assert_eq!(net.received(client), []);
        net.send_to_peers();
        let outbound = std::mem::take(&mut *others.0.lock().expect("one thread"));
        for Outbound { worker: WorkerId(worker), announces, .. } in outbound {
            let announced =
                announces.into_iter().map(|announce| (announce.connection, announce.ticket, false)).collect();
            net.node.post_inbound(WorkerId(worker), Inbound { announced, ..Inbound::default() });
        }
        net.run();
        assert_eq!(net.closed(client), Some(Some(ReasonCode::ServerBusy)));
        let text = String::from_utf8_lossy(&net.client(client).last).into_owned();
        assert!(text.contains("know the subscription; subscribe again"), "{text}");
        leave(net, 1);
    });
}

/// A message is dispatched to the nodes that are known, and retained by the worker that hosts its topic. That worker
/// may learn of one more node before the message arrives. One of the two sends it to that node.
#[test]
fn a_message_on_its_way_to_be_retained_is_copied_to_a_node_that_joins() {
    everywhere(|net| {
        let others = Arc::<Others>::default();
        net.node.join_cluster(others.clone(), broker::Instant::now()).expect("joined");
        net.node.stamp_retained(0, 0);
        net.node.set_other_nodes(1);
        let topics: Vec<String> = (0..16).map(|number| format!("r/{number}")).collect();
        let publishers = [0, 1, 2].map(|index| net.connect(index, v5(&format!("p{index}"))));
        for (topic, publisher) in topics.iter().zip(publishers.iter().cycle()) {
            net.send_without_running(*publisher, message(topic, 1).retain());
        }
        let joined = NodeIndex(1);
        net.node.set_other_nodes(2);
        for worker in (0..net.node.workers).map(WorkerId) {
            let copies = vec![(joined, Copies::All)];
            net.node.post_inbound(worker, Inbound { copies, ..Inbound::default() });
        }
        net.run();
        net.send_to_peers();
        let mut sent = Vec::new();
        for Outbound { frames, forwards, .. } in &*others.0.lock().expect("one thread") {
            for forward in forwards.iter().filter(|forward| forward.to == joined) {
                let framed = decode(&frames[forward.frame.clone()], Time(0)).expect("a message");
                sent.push(framed.view.topic.to_owned());
            }
        }
        let unsent: Vec<_> = topics.iter().filter(|topic| !sent.contains(topic)).collect();
        assert!(unsent.is_empty(), "the new node did not get {unsent:?}");
    });
}
