//! One of the two connections of a relay.

use mqtt::{Outgoing, QoS, ReasonCode};

use super::interface::{ConnectionId, Output};
use crate::client::{Client, Limits};
use crate::message::Terms;
use crate::time::Time;

/// A connection that was requested, is opening or is open.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) id: ConnectionId,
    /// Client side of the connection; `None` until it is open.
    pub(super) client: Option<Client>,
    /// Time at which the CONNACK must have arrived, and when subscriptions are registered also the SUBACK.
    pub(super) deadline: Time,
    /// True when all subscriptions were sent.
    pub(super) is_subscribed: bool,
}

impl Wire {
    pub(super) fn new(id: ConnectionId, deadline: Time) -> Self {
        Self { id, client: None, deadline, is_subscribed: false }
    }

    /// Limits of the broker; `None` before its CONNACK and after the end.
    pub(super) fn limits(&self) -> Option<&Limits> {
        self.client.as_ref().and_then(Client::limits)
    }

    pub(super) fn terms(&self) -> Option<Terms> {
        let client = self.client.as_ref()?;
        let limits = client.limits()?;
        Some(Terms {
            version: client.version(),
            maximum_qos: limits.maximum_qos,
            retain_available: limits.retain_available,
            packet_size_max: limits.packet_size_max,
            receive_maximum: limits.receive_maximum,
        })
    }

    pub(super) fn outgoing_len(&self) -> usize {
        self.client.as_ref().map_or(0, |client| client.unsent().len())
    }

    /// Publishes a retained state message. QoS 0 needs no Packet Identifier, whose space belongs to the other broker.
    /// A message that is lost with its connection is replaced by the Will.
    pub(super) fn notify(&mut self, now: Time, topic: Option<&str>, presence: Presence) {
        let (Some(topic), Some(terms)) = (topic, self.terms()) else { return };
        let Some(client) = &mut self.client else { return };
        let message = Outgoing {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: terms.retain_available,
            packet_id: None,
            topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: &[],
            payload: presence.payload(),
        };
        if message.encoded_len(terms.version) <= terms.packet_size_max as usize {
            message.encode(terms.version, client.unsent_mut().buffer());
            client.note_sent(now);
        }
    }

    /// Ends the connection, with a DISCONNECT if it is connected.
    pub(super) fn close(mut self) -> Output {
        let rest = match &mut self.client {
            Some(client) => {
                client.disconnect(ReasonCode::Success);
                client.unsent_mut().take()
            }
            None => Vec::new(),
        };
        Output::Close { connection: self.id, rest }
    }
}

/// Content of a state message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Connected,
    Disconnected,
}

impl Presence {
    pub(super) fn payload(self) -> &'static [u8] {
        match self {
            Self::Connected => b"1",
            Self::Disconnected => b"0",
        }
    }
}
