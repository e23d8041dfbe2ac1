//! Counters of one bridge.

use std::collections::BTreeMap;

use mqtt::{QoS, ReasonCode};

use crate::side::Sides;

/// Counters of one bridge since its start. In `messages`, `refused`, `postponed`, `unmatched`, `dropped` and `held`, a
/// side stands for the broker that the messages come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub messages: Sides<[Traffic; 3]>,
    /// Messages that the other broker refused, by Reason Code.
    pub refused: Sides<BTreeMap<ReasonCode, u64>>,
    /// Times that both connections ended because the other broker refused a message for a reason that may pass. The
    /// message comes again.
    pub postponed: Sides<u64>,
    /// Messages that the other broker accepted although nobody there has subscribed to them.
    pub unmatched: Sides<u64>,
    /// Messages that were not passed on, by cause.
    pub dropped: Sides<[u64; Dropped::ALL.len()]>,
    /// Connections to the remote broker after the first one.
    pub reconnects: u64,
    /// Attempts to connect to the remote broker that failed.
    pub failed_attempts: u64,
    /// Times that the remote broker had lost the bridge's session. Messages may be duplicated then.
    pub remote_sessions_lost: u64,
    /// Times that the remote cluster continued from a backup, of a relay whose subscriptions change. Messages may be
    /// missing or duplicated then. It counts one in ten minutes at most.
    pub remote_restores: u64,
    /// Times that this broker had lost the bridge's session.
    pub local_sessions_lost: u64,
    /// Subscriptions that were refused.
    pub subscriptions_refused: u64,
    /// PUBACK and PUBREC packets that belong to no message.
    pub unexpected_acks: u64,
    /// Packet Identifiers of an earlier session that were released.
    pub released: u64,
    /// Times that a broker did not answer the release of Packet Identifiers.
    pub sweeps_abandoned: u64,
    /// Messages that waited because the other broker's Receive Maximum was reached.
    pub held: Sides<u64>,
    /// Times that the bridge connected again because more messages were in flight than could wait.
    pub restarts: u64,
    /// Times that the bridge released Packet Identifiers at both brokers, and connected again.
    pub resets: u64,
    /// Subscriptions that the remote broker has confirmed, of a relay whose subscriptions change.
    pub subscriptions_made: u64,
    /// Subscriptions whose end the remote broker has confirmed, of a relay whose subscriptions change.
    pub subscriptions_ended: u64,
    /// Subscriptions whose end the remote broker has refused.
    pub ends_refused: u64,
    /// Subscriptions that the remote session still had and that were not wanted.
    pub stale_filters: u64,
    /// Pages of the list of subscriptions that were asked for.
    pub lists_asked: u64,
    /// Lists that the remote broker did not answer in time, or did not allow. Subscriptions that are not wanted may
    /// remain.
    pub lists_unanswered: u64,
    /// Lists with an answer that is not valid. Subscriptions that are not wanted may remain.
    pub lists_invalid: u64,
    /// Pages of a list that were not asked for.
    pub pages_ignored: u64,
}

/// Messages of one direction and QoS, as they were sent to the other broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub messages: u64,
    /// Bytes of whole packets.
    pub bytes: u64,
}

/// Cause for which a message is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The packet exceeds the other broker's Maximum Packet Size, or the one of the bridge.
    TooLarge,
    /// A QoS 0 message does not fit into a buffer.
    BufferFull,
    /// The message has passed too many bridges.
    HopLimit,
    /// The message has already been at the broker that it would be sent to, or has left this one before.
    OwnLoop,
    /// No topic entry matches.
    NotMapped,
    /// The remote broker closed the connection each time that it got the message.
    ClosesConnection,
    /// A QoS 0 message arrived while the bridge registered its subscriptions or released Packet Identifiers.
    NotReady,
    /// The message comes from this cluster.
    OwnOrigin,
    /// The message comes from a cluster whose messages this session does not take.
    OtherOrigin,
}

impl Dropped {
    /// All causes.
    pub const ALL: [Self; 9] = [
        Self::TooLarge,
        Self::BufferFull,
        Self::HopLimit,
        Self::OwnLoop,
        Self::NotMapped,
        Self::ClosesConnection,
        Self::NotReady,
        Self::OwnOrigin,
        Self::OtherOrigin,
    ];

    /// Returns the Reason Code that the sender gets.
    pub(crate) fn reason_code(self) -> ReasonCode {
        match self {
            Self::NotMapped => ReasonCode::TopicNameInvalid,
            Self::TooLarge
            | Self::BufferFull
            | Self::HopLimit
            | Self::OwnLoop
            | Self::ClosesConnection
            | Self::NotReady
            | Self::OwnOrigin
            | Self::OtherOrigin => ReasonCode::ImplementationSpecificError,
        }
    }
}

impl Counters {
    /// Messages from one side that were passed on.
    pub fn traffic(&self, from: crate::Side, qos: QoS) -> Traffic {
        self.messages.of(from)[qos as usize]
    }

    /// Messages from one side that were dropped for this cause.
    pub fn dropped(&self, from: crate::Side, cause: Dropped) -> u64 {
        self.dropped.of(from)[cause as usize]
    }
}
