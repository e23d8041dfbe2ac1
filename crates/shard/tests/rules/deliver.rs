//! Deliveries at QoS 1 and 2.

use crate::support::*;
use shard::{Acknowledgement::*, Answer, Command, Effect, MessageView, Phase};

fn host(options: u8) -> (Host, (shard::SessionUid, u32)) {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.subscribe(owner, "#", options);
    (host, owner)
}

/// [MQTT-4.9.0-2]: at most Receive Maximum deliveries are open, the others wait.
#[test]
fn the_window_of_the_connection_opens_waiting_deliveries_in_order() {
    let (mut host, owner) = host(1);
    assert_eq!(describe(&host.publish("a")), ["queued 0 pinned"]);
    assert_eq!(describe(&host.publish("b")), ["queued 1 pinned"]);
    assert_eq!(describe(&host.publish("c")), ["queued 2"]);
    assert_eq!(describe(&host.publish("d")), ["queued 3"]);
    let (answer, effects) = host.ack_effects(owner, 2, PubAck);
    assert_eq!((answer, describe(&effects)), (Answer::Finished { n: 1 }, vec!["pinned 2..3".to_owned()]));
    assert_eq!(host.queue(owner.0), ["a", "c", "d"]);
    assert_eq!(host.ack(owner, 2, PubAck), Answer::Unknown, "once");
    assert_eq!(host.ack(owner, 4, PubAck), Answer::Unknown, "never sent");
}

/// Receive Maximum is up to 65,535. A linked cluster is far away, so more messages are on their way to it.
#[test]
fn a_linked_cluster_has_more_open_deliveries_than_a_client() {
    for (client_id, pinned_max) in [("c", shard::PINNED_MAX), ("$link/c", shard::LINK_PINNED_MAX)] {
        let mut host = Host::default();
        let owner = host.claim_as(&shard::Claim { window: u16::MAX, ..claim(client_id) });
        host.subscribe(owner, "#", 1);
        let is_pinned = |effect: &Effect| matches!(effect, Effect::Queued { pinned: true, .. });
        let batches = usize::from(pinned_max) / 128;
        let effects = (0..batches).flat_map(|_| host.apply(&vec![publish("a"); 128]));
        assert_eq!(effects.filter(is_pinned).count(), usize::from(pinned_max));
        assert_eq!(describe(&host.publish("a")), [format!("queued {pinned_max}")], "{client_id}");
        // A replica that restores the session has the same window.
        host.shard = restore(&host.whole_checkpoint(), host.log.len() as u64);
        let (_, effects) = host.ack_effects(owner, 1, PubAck);
        assert_eq!(describe(&effects), [format!("pinned {pinned_max}..{}", pinned_max + 1)], "{client_id}");
    }
}

/// [MQTT-4.3.3-4]: each PUBREC is answered with PUBREL; the identifier is in use until PUBCOMP.
#[test]
fn qos_2_goes_through_its_phases() {
    let (mut host, owner) = host(2);
    host.publish("a");
    assert_eq!(host.ack(owner, 1, PubAck), Answer::WrongKind);
    assert_eq!(host.ack(owner, 1, PubComp), Answer::WrongKind);
    assert_eq!(host.ack(owner, 1, PubRec), Answer::Release { n: 0, again: false });
    assert_eq!(host.ack(owner, 1, PubRec), Answer::Release { n: 0, again: true });
    let session = host.shard.session(owner.0).expect("is there");
    assert_eq!(session.entry(0).map(|entry| entry.phase), Some(Phase::Received));
    assert_eq!((session.unfinished(), session.pinned_bytes(), host.shard.counts().held_bytes), (1, 0, 0));
    assert_eq!(host.ack(owner, 1, PubRecRefused), Answer::WrongKind);
    assert_eq!(host.ack(owner, 1, PubAck), Answer::WrongKind);
    assert_eq!(host.ack(owner, 1, PubComp), Answer::Finished { n: 0 });
    assert_eq!(host.ack(owner, 1, PubComp), Answer::Unknown);
}

/// [MQTT-4.3.3-4]: PUBREC with an error ends the delivery.
#[test]
fn a_refused_qos_2_delivery_is_finished() {
    let (mut host, owner) = host(2);
    host.publish("a");
    assert_eq!(host.ack(owner, 1, PubRecRefused), Answer::Finished { n: 0 });
    assert!(host.queue(owner.0).is_empty());
}

/// [MQTT-4.4.0-1] [MQTT-4.6.0-1]: unfinished deliveries are sent again, in order, with their identifiers, the
/// newest last.
#[test]
fn a_resumed_session_reports_all_open_deliveries() {
    let (mut host, owner) = host(2);
    for topic in ["a", "b", "c"] {
        host.publish(topic);
    }
    host.ack(owner, 1, PubRec);
    host.release(owner);
    let (answer, effects) = host.submit(&Command::Claim(shard::Claim { window: 3, ..claim("c") }));
    assert_eq!(answer, Answer::Claimed { session: Some(owner.0), epoch: 2, present: true });
    assert_eq!(describe(&effects), ["pinned 0..2", "pinned 2..3"]);
    let session = host.shard.session(owner.0).expect("is there");
    let dup = |n| session.entry(n).map(|entry| (entry.phase, entry.dup));
    assert_eq!(dup(0), Some((Phase::Received, true)));
    assert_eq!(dup(1), Some((Phase::Pinned, true)), "[MQTT-3.3.1-1]");
    assert_eq!(dup(2), Some((Phase::Pinned, false)));
}

#[test]
fn a_finished_delivery_is_not_reported_again() {
    let (mut host, owner) = host(1);
    let owner_3 = host.claim_as(&shard::Claim { window: 3, ..claim("c") });
    assert_eq!(owner_3.1, owner.1 + 1);
    for topic in ["a", "b", "c"] {
        host.publish(topic);
    }
    host.ack(owner_3, 2, PubAck);
    let effects = host.effects(&Command::Claim(claim("c")));
    assert_eq!(describe(&effects), ["pinned 0..1", "pinned 2..3"]);
}

/// A connection that is no longer the owner, or never was, changes nothing.
#[test]
fn commands_of_a_previous_owner_are_stale() {
    let (mut host, owner) = host(1);
    host.publish("a");
    host.claim("c");
    assert_eq!(host.ack(owner, 1, PubAck), Answer::Stale);
    assert_eq!(host.ack((owner.0, 9), 1, PubAck), Answer::Stale);
    let gone = shard::SessionUid::from_u64(owner.0.as_u64() + (1 << 24));
    assert_eq!(host.ack((gone, 1), 1, PubAck), Answer::Gone);
    assert_eq!((host.queue(owner.0).len(), host.shard.counts().stale), (1, 2));
}

/// [MQTT-3.3.2-5]: a message that expires while it waits is not delivered. It is dropped when its turn comes.
#[test]
fn an_expired_message_is_dropped_at_its_turn_and_counted() {
    let (mut host, owner) = host(1);
    host.publish("a");
    host.publish("b");
    for topic in ["c", "d"] {
        let message = MessageView { expires: 5_000, ..view(topic) };
        host.effects(&Command::Publish { message, wait: true, identity: None });
    }
    host.publish("e");
    host.now = 5_000;
    let (_, effects) = host.ack_effects(owner, 1, PubAck);
    assert_eq!(describe(&effects), ["dropped 2..4 Expired", "pinned 4..5"]);
    assert_eq!(host.shard.counts().dropped_expired, 2);
    assert_eq!(host.ack(owner, 3, PubAck), Answer::Unknown, "its identifier was never used");
    assert_eq!(host.ack(owner, 5, PubAck), Answer::Finished { n: 4 });
}

#[test]
fn a_message_that_is_expired_on_arrival_frees_its_slot_soon() {
    let (mut host, owner) = host(1);
    host.tick(5_000);
    let message = MessageView { expires: 5_000, ..view("a") };
    let effects = host.effects(&Command::Publish { message, wait: true, identity: None });
    assert_eq!(describe(&effects), ["queued 0", "dropped 0..1 Expired"]);
    assert!(host.queue(owner.0).is_empty());
}

/// A pinned message may have been sent, so it neither expires nor is it dropped; only its owner may skip it.
#[test]
fn a_pinned_message_stays_until_its_owner_skips_it() {
    let (mut host, owner) = host(1);
    let message = MessageView { expires: 5_000, ..view("a") };
    host.effects(&Command::Publish { message, wait: true, identity: None });
    host.tick(6_000);
    assert_eq!(host.queue(owner.0), ["a"]);
    assert_eq!(host.ack(owner, 1, Skip), Answer::Finished { n: 0 });
    assert_eq!(host.shard.counts().skipped, 1);
}

/// Ticks drop the messages of a queue with very many expired ones, not a single Claim.
#[test]
fn many_expired_messages_are_dropped_in_portions() {
    let limits = shard::Limits { queue_messages_max: 10_000, ..Default::default() };
    let mut host = Host::with(limits);
    let owner = host.claim("c");
    host.subscribe(owner, "#", 1);
    host.release(owner);
    let message = MessageView { expires: 1_000, ..view("a") };
    let one = Command::Publish { message, wait: true, identity: None };
    host.apply(&vec![one; 9_000]);
    host.publish("b");
    host.now = 2_000;
    let first = describe(&host.effects(&Command::Claim(claim("c"))));
    assert_eq!(first, ["dropped 0..4096 Expired"]);
    assert_eq!(host.shard.next_deadline(), 0);
    host.tick(2_000);
    assert_eq!(describe(&host.tick(2_000)), ["dropped 8192..9000 Expired", "pinned 9000..9001"]);
    assert!(host.shard.next_deadline() > 2_000);
}
