//! Drains: the order in which clients are disconnected, refusals, and Wills.

use broker::WorkerId;
use broker::admin::{DrainClass, DrainStep, Drained};
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;

use crate::net::{Net, everywhere};
use testkit::packets::*;

/// Runs one step on each worker, and returns the sum.
fn drain(net: &mut Net, limit: u32, class: DrainClass, hurries: bool) -> Drained {
    let workers: Vec<WorkerId> = net.admin().workers().collect();
    let mut sum = Drained { disconnected: 0, is_exhausted: true };
    for worker in workers {
        let step = DrainStep { limit, class, hurries, reason: ReasonCode::UseAnotherServer };
        let drained = net.ask(|admin, reply| admin.drain_some(worker, step, reply)).expect("an answer");
        sum.disconnected += drained.disconnected;
        sum.is_exhausted &= drained.is_exhausted;
    }
    sum
}

fn is_sent_away(net: &mut Net, peer: crate::net::Peer) -> bool {
    net.closed(peer) == Some(Some(ReasonCode::UseAnotherServer))
}

#[test]
fn idle_clients_leave_first_and_members_of_shared_groups_one_by_one() {
    everywhere(|net| {
        let idle = net.connect(0, v5("idle"));
        let old = net.connect(1, v3("old"));
        let members: Vec<_> = (0..3).map(|at| net.connect(at, v5(&format!("member-{at}")))).collect();
        for member in &members {
            net.subscribe(*member, "$share/g/t", AtLeastOnce);
        }
        net.pass(6_000);
        let busy = net.connect(0, v5("busy"));
        net.subscribe(busy, "t", AtMostOnce);
        assert_eq!(drain(net, 9, DrainClass::Idle, false).disconnected, 2);
        assert!(is_sent_away(net, idle));
        assert_eq!(net.closed(old), Some(None), "MQTT 3.1.1 has no DISCONNECT of the server");
        assert!(net.closed(busy).is_none() && net.closed(members[0]).is_none());
        let done = drain(net, 9, DrainClass::Idle, false);
        assert_eq!(done, Drained { disconnected: 0, is_exhausted: true });
        assert_eq!(drain(net, 9, DrainClass::Unshared, false).disconnected, 1);
        assert!(is_sent_away(net, busy));
        // One member leaves, and the next one after a pause.
        assert_eq!(drain(net, 9, DrainClass::All, false).disconnected, 1);
        assert_eq!(drain(net, 9, DrainClass::All, false).disconnected, 0);
        net.pass(500);
        assert_eq!(drain(net, 9, DrainClass::All, false).disconnected, 1);
        assert_eq!(drain(net, 9, DrainClass::All, true).disconnected, 1, "the time is over");
        assert!(members.iter().all(|member| is_sent_away(net, *member)));
        assert_eq!(drain(net, 9, DrainClass::All, true), Drained { disconnected: 0, is_exhausted: true });
        assert_eq!(net.counter(|counters| counters.drained), 6);
        net.pass(1_100);
        assert_eq!(net.admin().connected_clients(), 0);
    });
}

#[test]
fn a_step_disconnects_no_more_than_its_limit() {
    everywhere(|net| {
        let clients: Vec<_> = (0..9).map(|at| net.connect(0, v5(&format!("c{at}")))).collect();
        assert_eq!(
            drain(net, 2, DrainClass::Unshared, false),
            Drained { disconnected: 2, is_exhausted: false }
        );
        assert_eq!(clients.iter().filter(|client| net.closed(**client).is_some()).count(), 2);
    });
}

#[test]
fn a_node_that_is_drained_refuses_clients_and_accepts_them_afterwards() {
    everywhere(|net| {
        net.admin().refuse_clients(true);
        let refused = net.connecting(0, v5("c"));
        net.run();
        let answers = net.received(refused);
        let is_refusal = |sent: &Sent| format!("{sent:?}").contains("UseAnotherServer");
        assert!(answers.iter().any(is_refusal), "{answers:?}");
        assert!(net.is_over(refused) || answers.contains(&Sent::Closed));
        net.admin().refuse_clients(false);
        net.connect(0, v5("c"));
    });
}

/// The client is expected on another node. Its Will with a delay tells others if it does not come [MQTT-3.1.3-9].
#[test]
fn a_drain_publishes_only_wills_with_a_delay() {
    everywhere(|net| {
        let watcher = net.connect(0, v5("watcher"));
        net.subscribe(watcher, "$share/g/will", AtMostOnce);
        let ephemeral = net.connect(1, v5("e").will(message("will", "e")));
        let durable_one = net.connect(2, durable(V5, "d").will(message("will", "d")));
        let delayed = net.connect(0, durable(V5, "late").delayed_will(message("will", "late"), 10));
        let returning = net.connect(1, durable(V5, "back").delayed_will(message("will", "back"), 10));
        assert_eq!(drain(net, 9, DrainClass::Unshared, false).disconnected, 4);
        for peer in [ephemeral, durable_one, delayed, returning] {
            assert!(is_sent_away(net, peer));
        }
        net.resume(2, durable(V5, "back"));
        net.pass(5_000);
        assert_eq!(net.payloads(watcher), Vec::<String>::new());
        net.jump(10);
        assert_eq!(net.payloads(watcher), ["late"]);
    });
}
