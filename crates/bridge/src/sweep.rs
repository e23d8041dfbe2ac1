//! Release of Packet Identifiers that an earlier session left open.

use std::collections::{BTreeSet, VecDeque};

use mqtt::{PacketId, PacketType, put_short_ack};

use crate::client::Unsent;

/// Packet Identifiers of QoS 2 messages to one broker that it may keep until their PUBREL.
#[derive(Debug, Default)]
pub(crate) struct Unreleased {
    ids: BTreeSet<PacketId>,
    /// True when the set has all of them, because this process has seen the broker's session from its beginning.
    is_complete: bool,
    /// True when the broker that sends the messages has lost its session. It starts its identifiers again. The receiver
    /// would take a new message for an old one with the same identifier.
    is_stale: bool,
}

impl Unreleased {
    pub(crate) fn insert(&mut self, id: PacketId) {
        self.ids.insert(id);
    }

    pub(crate) fn remove(&mut self, id: PacketId) {
        self.ids.remove(&id);
    }

    /// Notes that the receiver has a new session: nothing is kept.
    pub(crate) fn receiver_restarted(&mut self) {
        *self = Self { ids: BTreeSet::new(), is_complete: true, is_stale: false };
    }

    /// Notes that the sender has a new session.
    pub(crate) fn sender_restarted(&mut self) {
        self.is_stale = true;
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Notes that all identifiers were released.
    fn released(&mut self) {
        self.receiver_restarted();
    }
}

/// PUBREL packets for all identifiers that a receiver may keep. It answers each with PUBCOMP, also those it does not
/// know.
#[derive(Debug)]
pub(crate) struct Sweep {
    waiting: VecDeque<PacketId>,
    unanswered: usize,
}

impl Sweep {
    pub(crate) fn new(unreleased: &Unreleased) -> Self {
        let waiting = if unreleased.is_complete {
            unreleased.ids.iter().copied().collect()
        } else {
            (1..=u16::MAX).filter_map(PacketId::new).collect()
        };
        Self { waiting, unanswered: 0 }
    }

    /// Appends PUBREL packets while fewer than `outgoing_max` bytes wait. Returns their number.
    pub(crate) fn write(&mut self, outgoing_max: usize, out: &mut Unsent) -> u64 {
        let mut written = 0;
        while out.len() < outgoing_max.max(1)
            && let Some(id) = self.waiting.pop_front()
        {
            put_short_ack(PacketType::PubRel, id, out.buffer());
            self.unanswered += 1;
            written += 1;
        }
        written
    }

    /// Handles a PUBCOMP.
    pub(crate) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// Ends the sweep when all identifiers were answered.
    pub(crate) fn is_done(&self, unreleased: &mut Unreleased) -> bool {
        let is_done = self.waiting.is_empty() && self.unanswered == 0;
        if is_done {
            unreleased.released();
        }
        is_done
    }
}
