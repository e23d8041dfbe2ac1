//! QoS 2 publishes of clients, and messages that are accepted once.

use crate::support::*;
use mqtt::PacketId;
use shard::{Answer, Command, Identity};

fn id(value: u16) -> PacketId {
    PacketId::new(value).expect("not 0")
}

/// [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12]
#[test]
fn a_packet_identifier_is_a_new_one_after_each_release() {
    let mut host = Host::default();
    let (session, epoch) = host.claim("c");
    let packet_id = id(5);
    let receive = Command::Receive { session, epoch, packet_id };
    let released = Command::Released { session, epoch, packet_id };
    assert_eq!(host.answer(&receive), Answer::Received { toggle: false, again: false });
    assert_eq!(host.answer(&receive), Answer::Received { toggle: false, again: true });
    assert_eq!(host.answer(&released), Answer::Done);
    assert_eq!(host.answer(&released), Answer::Unknown);
    assert_eq!(host.answer(&receive), Answer::Received { toggle: true, again: false });
    assert_eq!(host.answer(&Command::Refuse { session, epoch, packet_id }), Answer::Done);
    assert_eq!(host.answer(&receive), Answer::Received { toggle: true, again: false });
}

#[test]
fn a_resumed_session_knows_its_received_identifiers() {
    let mut host = Host::default();
    let (session, epoch) = host.claim("c");
    for packet_id in [id(9), id(2)] {
        host.answer(&Command::Receive { session, epoch, packet_id });
    }
    host.release((session, epoch));
    host.claim("c");
    let view = host.shard.session(session).expect("is there");
    assert_eq!(view.received().collect::<Vec<_>>(), [(id(9), false), (id(2), false)]);
}

#[test]
fn a_message_with_an_identity_is_accepted_once() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.subscribe(owner, "#", 1);
    let publish = |number| {
        let identity = Some(Identity { origin: 8, number });
        Command::Publish { message: view("a"), wait: true, identity }
    };
    assert_eq!(host.answer(&publish(10)), Answer::Published { matched: 1 });
    assert_eq!(host.answer(&publish(10)), Answer::Repeated);
    assert_eq!(host.answer(&publish(12)), Answer::Published { matched: 1 });
    // The Packet Identifier is used again after its release: the previous message is forgotten.
    assert_eq!(host.answer(&publish(11)), Answer::Published { matched: 1 });
    assert_eq!(host.shard.identities(), 2);
    assert_eq!(host.answer(&publish(10)), Answer::Published { matched: 1 });
    host.answer(&Command::Forget(Identity { origin: 8, number: 12 }));
    assert_eq!(host.answer(&publish(12)), Answer::Published { matched: 1 });
    host.answer(&Command::ForgetOrigin { origin: 7 });
    assert_eq!(host.shard.identities(), 2);
    host.answer(&Command::ForgetOrigin { origin: 8 });
    assert_eq!((host.shard.identities(), host.shard.counts().repeated), (0, 1));
}
