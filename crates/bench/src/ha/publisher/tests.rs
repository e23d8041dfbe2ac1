use super::*;
use crate::ha::checker::Shape;

/// A publisher and the other end of its connection.
struct Wire {
    publisher: Publisher,
    checker: Checker,
    payloads: Payloads,
    /// Number of due messages.
    due: usize,
}

/// A sent packet: PUBLISH with identifier, DUP and sequence number, or PUBREL.
#[derive(Debug, PartialEq)]
enum Out {
    Publish(u16, bool, u64),
    Release(u16),
}
use Out::{Publish, Release};

impl Wire {
    fn new(lanes: &[u8], window: usize) -> Wire {
        let topics = lanes.iter().map(|qos| Topic { qos: *qos, name: format!("t/{qos}") }).collect();
        let shape = Shape { publishers: 1, subscribers: 1, lanes: lanes.to_vec(), dealt: false };
        Wire {
            publisher: Publisher::new(0, true, topics, window),
            checker: Checker::new(shape),
            payloads: Payloads::new(1, 0),
            due: 0,
        }
    }

    fn pump(&mut self) -> Vec<Out> {
        let mut out = vec![];
        let due = &mut self.due;
        let next = || {
            *due = due.checked_sub(1)?;
            Some(5)
        };
        self.publisher.pump(&mut self.checker, &self.payloads, next, usize::MAX, &mut out);
        self.read(&out)
    }

    fn publish(&mut self, messages: usize) -> Vec<Out> {
        self.due = messages;
        self.pump()
    }

    fn acknowledge(&mut self, kind: u8, id: u16) -> (Settled, Vec<Out>) {
        self.acknowledge_with(kind, id, 0)
    }

    fn acknowledge_with(&mut self, kind: u8, id: u16, reason: u8) -> (Settled, Vec<Out>) {
        let mut out = vec![];
        let settled = self.publisher.acknowledge(kind, id, reason, &mut self.checker, &mut out);
        (settled, self.read(&out))
    }

    /// Independent decoder of a client's packets.
    fn read(&self, mut bytes: &[u8]) -> Vec<Out> {
        let mut seen = vec![];
        while let Ok(codec::Frame::Have(first, body, end)) = codec::frame(bytes) {
            let packet = &bytes[body..end];
            bytes = &bytes[end..];
            let id = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
            match first >> 4 {
                codec::PUBREL => seen.push(Release(id(0))),
                codec::PUBLISH => {
                    let topic = usize::from(id(0));
                    let message = self.payloads.read(&packet[2 + topic + 3..]).unwrap();
                    seen.push(Publish(id(2 + topic), first & codec::DUP != 0, message.number));
                }
                other => panic!("a packet of type {other}"),
            }
        }
        assert!(bytes.is_empty());
        seen
    }
}

#[test]
fn the_window_is_respected() {
    let mut wire = Wire::new(&[1], 3);
    assert_eq!(wire.publish(5), [Publish(1, false, 0), Publish(2, false, 1), Publish(3, false, 2)]);
    assert_eq!(wire.pump(), []);
    assert_eq!(wire.acknowledge(codec::PUBACK, 2).0, Settled::Acknowledged);
    assert_eq!(wire.pump(), [Publish(4, false, 3)]);
    assert_eq!((wire.publisher.unfinished(), wire.checker.tally().acknowledged), (3, 1));
}

/// Checks [MQTT-4.4.0-1]: PUBLISH and PUBREL again with their identifiers, in their order [MQTT-4.6.0-1].
#[test]
fn a_resumed_session_gets_the_same_identifiers_with_dup() {
    let mut wire = Wire::new(&[2], 10);
    wire.publish(4);
    assert_eq!(wire.acknowledge(codec::PUBREC, 1).1, [Release(1)]);
    assert_eq!(wire.acknowledge(codec::PUBREC, 3).1, [Release(3)]);
    wire.publisher.resumed(100);
    assert_eq!(wire.pump(), [Release(1), Publish(2, true, 1), Release(3), Publish(4, true, 3)]);
    assert_eq!((wire.publisher.resent, wire.publisher.releases_resent), (2, 2));
    assert_eq!(wire.acknowledge(codec::PUBCOMP, 1).0, Settled::Acknowledged);
    assert_eq!(wire.publish(1), [Publish(5, false, 4)]);
}

#[test]
fn a_lost_session_gets_new_messages() {
    let mut wire = Wire::new(&[2], 10);
    wire.publish(3);
    wire.acknowledge(codec::PUBREC, 2);
    wire.publisher.session_lost(100, &mut wire.checker);
    assert_eq!(wire.pump(), [Publish(4, false, 0), Publish(5, false, 2)]);
    assert_eq!(wire.checker.tally().acknowledged, 1, "PUBREC had acknowledged the second");
    assert_eq!(wire.acknowledge(codec::PUBREC, 1).0, Settled::Nothing);
    assert_eq!(wire.publisher.unexpected_acks, 1, "an identifier of the lost session");
    let of = Lane { publisher: 0, lane: 0 };
    wire.checker.delivered(of, 0, 0);
    wire.checker.delivered(of, 0, 0);
    assert_eq!(wire.checker.tally().repeated, 1, "sent twice by us");
}

#[test]
fn repetitions_respect_a_smaller_receive_maximum() {
    let mut wire = Wire::new(&[1], 10);
    wire.publish(4);
    wire.publisher.resumed(2);
    assert_eq!(wire.pump(), [Publish(1, true, 0), Publish(2, true, 1)]);
    wire.acknowledge(codec::PUBACK, 1);
    assert_eq!(wire.pump(), [Publish(3, true, 2)]);
    wire.acknowledge(codec::PUBACK, 2);
    assert_eq!(wire.pump(), [Publish(4, true, 3)]);
}

#[test]
fn a_second_loss_of_the_connection_changes_nothing() {
    let mut wire = Wire::new(&[1], 10);
    wire.publish(3);
    wire.publisher.resumed(1);
    assert_eq!(wire.pump(), [Publish(1, true, 0)]);
    wire.publisher.resumed(100);
    assert_eq!(wire.pump(), [Publish(1, true, 0), Publish(2, true, 1), Publish(3, true, 2)]);
}

#[test]
fn mixed_lanes_take_turns() {
    let mut wire = Wire::new(&[1, 2], 10);
    assert_eq!(
        wire.publish(4),
        [Publish(1, false, 0), Publish(2, false, 0), Publish(3, false, 1), Publish(4, false, 1)]
    );
    assert_eq!(wire.acknowledge(codec::PUBACK, 2).0, Settled::Nothing, "the second is of QoS 2");
    assert_eq!(wire.publisher.unexpected_acks, 1);
    assert_eq!(wire.acknowledge(codec::PUBACK, 1).0, Settled::Acknowledged);
}

#[test]
fn a_refusal_is_not_an_acknowledgement() {
    let mut wire = Wire::new(&[1, 2], 10);
    wire.publish(2);
    assert_eq!(wire.acknowledge_with(codec::PUBACK, 1, 0x97).0, Settled::Refused);
    assert_eq!(wire.acknowledge_with(codec::PUBREC, 2, 0x97), (Settled::Refused, vec![]));
    let tally = wire.checker.tally();
    assert_eq!((tally.acknowledged, tally.refused, wire.publisher.unfinished()), (0, 2, 0));
}

#[test]
fn acknowledgements_without_a_message_are_counted() {
    let mut wire = Wire::new(&[1], 10);
    wire.publish(1);
    for id in [2, 40_000, 65_535] {
        assert_eq!(wire.acknowledge(codec::PUBACK, id).0, Settled::Nothing);
    }
    wire.acknowledge(codec::PUBACK, 1);
    wire.acknowledge(codec::PUBACK, 1);
    assert_eq!((wire.publisher.unexpected_acks, wire.checker.tally().acknowledged), (4, 1));
}

#[test]
fn identifiers_wrap_and_are_never_0() {
    let mut wire = Wire::new(&[1], 1);
    for round in 0..70_000_u64 {
        let id = (round % 65_535) as u16 + 1;
        assert_eq!(wire.publish(1), [Publish(id, false, round)]);
        assert_eq!(wire.acknowledge(codec::PUBACK, id).0, Settled::Acknowledged);
    }
}
