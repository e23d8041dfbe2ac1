//! A durable subscriber's session: QoS 2 messages that it has received and the broker has not yet released.

use crate::codec;
use std::collections::HashSet;

/// Session of a subscriber. It acknowledges messages and hides the repetitions that the QoS 2 handshake hides.
#[derive(Default)]
pub struct Subscriber {
    /// True when SUBACK has arrived in the current session.
    pub subscribed: bool,
    /// Packet Identifiers between PUBREC and PUBREL; 65,535 at most.
    held: HashSet<u16>,
    pub hidden: u64,
}

impl Subscriber {
    pub fn session_lost(&mut self) {
        self.subscribed = false;
        self.held.clear();
    }

    /// Answers a PUBLISH. Returns whether it is passed to the application.
    pub fn take(&mut self, qos: u8, id: u16, out: &mut Vec<u8>) -> bool {
        match qos {
            0 => true,
            1 => {
                codec::ack(out, codec::PUBACK, id);
                true
            }
            _ => {
                codec::ack(out, codec::PUBREC, id);
                let new = self.held.insert(id);
                self.hidden += u64::from(!new);
                new
            }
        }
    }

    /// Answers a PUBREL, known or not [MQTT-4.3.3-11].
    pub fn release(&mut self, id: u16, out: &mut Vec<u8>) {
        self.held.remove(&id);
        codec::ack(out, codec::PUBCOMP, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_publish_before_pubrel_is_hidden_also_after_a_reconnect() {
        let (mut subscriber, mut out) = (Subscriber::default(), vec![]);
        assert!(subscriber.take(2, 7, &mut out));
        assert!(!subscriber.take(2, 7, &mut out));
        subscriber.release(7, &mut out);
        assert!(subscriber.take(2, 7, &mut out), "the identifier is free again");
        assert_eq!(subscriber.hidden, 1);
        assert_eq!(out, [0x50, 2, 0, 7, 0x50, 2, 0, 7, 0x70, 2, 0, 7, 0x50, 2, 0, 7]);
    }

    #[test]
    fn a_lost_session_hides_nothing() {
        let (mut subscriber, mut out) = (Subscriber { subscribed: true, ..Subscriber::default() }, vec![]);
        subscriber.take(2, 7, &mut out);
        subscriber.session_lost();
        assert!(!subscriber.subscribed && subscriber.take(2, 7, &mut out));
    }

    #[test]
    fn qos_1_hides_nothing() {
        let (mut subscriber, mut out) = (Subscriber::default(), vec![]);
        assert!(
            subscriber.take(1, 7, &mut out)
                && subscriber.take(1, 7, &mut out)
                && subscriber.take(0, 0, &mut out)
        );
        assert_eq!(out, [0x40, 2, 0, 7, 0x40, 2, 0, 7]);
    }
}
