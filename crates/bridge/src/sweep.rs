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
    /// Number of attempts to release them.
    attempts: u8,
}

/// Maximum number of attempts to release the identifiers of one session. A broker that closes the connection each time
/// would otherwise never get a message.
const ATTEMPTS_MAX: u8 = 10;

impl Unreleased {
    pub(crate) fn insert(&mut self, id: PacketId) {
        self.ids.insert(id);
    }

    pub(crate) fn remove(&mut self, id: PacketId) {
        self.ids.remove(&id);
    }

    /// Notes that the receiver has a new session: nothing is kept.
    pub(crate) fn receiver_restarted(&mut self) {
        *self = Self { is_complete: true, ..Self::default() };
    }

    /// Notes that the receiver is another broker than before, with a session from an earlier time.
    pub(crate) fn receiver_replaced(&mut self) {
        *self = Self { is_stale: true, ..Self::default() };
    }

    /// Notes that the sender has a new session.
    pub(crate) fn sender_restarted(&mut self) {
        (self.is_stale, self.attempts) = (true, 0);
    }

    /// Returns the identifiers to be released, if they must be and were not tried too often.
    pub(crate) fn sweep(&mut self) -> Option<Sweep> {
        self.is_stale &= self.attempts < ATTEMPTS_MAX;
        if !self.is_stale {
            return None;
        }
        self.attempts += 1;
        Some(Sweep::new(self))
    }

    /// Gives up: the receiver does not answer.
    pub(crate) fn abandon(&mut self) {
        self.is_stale = false;
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
    fn new(unreleased: &Unreleased) -> Self {
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

    /// Number of identifiers that were not answered.
    pub(crate) fn remaining(&self) -> usize {
        self.waiting.len() + self.unanswered
    }

    /// Ends the sweep when all identifiers were answered.
    pub(crate) fn is_done(&self, unreleased: &mut Unreleased) -> bool {
        let is_done = self.remaining() == 0;
        if is_done {
            unreleased.released();
        }
        is_done
    }
}
