//! Messages of one direction that are not complete.

use std::collections::{BTreeMap, VecDeque};

use mqtt::{PacketId, QoS};

use crate::sweep::Unreleased;

/// State of the messages from one broker to the other, on the present pair of connections. The sessions of the brokers
/// hold what must survive a connection. Only `unreleased` is kept longer.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    steps: BTreeMap<PacketId, Step>,
    /// Identifiers in the order of their PUBLISH packets. Those at the front were not acknowledged.
    order: VecDeque<PacketId>,
    /// Number of acknowledgements of the receiver on the present connection.
    pub(crate) acknowledgements: u64,
    /// Number of messages that count against the receiver's Receive Maximum.
    counted: usize,
    /// Packets that wait because the Receive Maximum is reached, oldest first.
    held: VecDeque<Vec<u8>>,
    held_bytes: usize,
    is_skipping: bool,
    pub(crate) unreleased: Unreleased,
}

/// Step that an incomplete message has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The PUBLISH was sent with the QoS `went`. It came with `came`, which may be higher.
    Published { came: QoS, went: QoS },
    /// The receiver's PUBREC was passed on, and the sender's PUBREL is expected.
    Received,
    /// The sender's PUBREL was passed on.
    Released { counted: bool },
    /// The receiver has finished, and the sender's PUBREL is expected. It is answered here.
    EndsHere,
}

impl Step {
    fn is_counted(self) -> bool {
        match self {
            Self::Published { .. } | Self::Received => true,
            Self::Released { counted } => counted,
            Self::EndsHere => false,
        }
    }
}

impl Lane {
    /// Forgets everything that belongs to the connections.
    pub(crate) fn reset(&mut self) {
        let unreleased = std::mem::take(&mut self.unreleased);
        *self = Self { unreleased, ..Self::default() };
    }

    pub(crate) fn step(&self, id: PacketId) -> Option<Step> {
        self.steps.get(&id).copied()
    }

    pub(crate) fn set(&mut self, id: PacketId, step: Step) {
        let before = self.steps.insert(id, step);
        self.counted += usize::from(step.is_counted());
        self.counted -= usize::from(before.is_some_and(Step::is_counted));
    }

    /// Notes that a PUBLISH was sent.
    pub(crate) fn publish(&mut self, id: PacketId, step: Step) {
        while self.order.front().is_some_and(|id| !self.is_unacknowledged(*id)) {
            self.order.pop_front();
        }
        self.order.push_back(id);
        self.set(id, step);
    }

    /// Returns the oldest message without any acknowledgement.
    pub(crate) fn oldest(&self) -> Option<PacketId> {
        self.order.iter().copied().find(|id| self.is_unacknowledged(*id))
    }

    /// Number of messages without any acknowledgement.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.steps.values().filter(|step| matches!(step, Step::Published { .. })).count()
    }

    fn is_unacknowledged(&self, id: PacketId) -> bool {
        matches!(self.steps.get(&id), Some(Step::Published { .. }))
    }

    pub(crate) fn remove(&mut self, id: PacketId) {
        let before = self.steps.remove(&id);
        self.counted -= usize::from(before.is_some_and(Step::is_counted));
    }

    /// Number of messages that count against the receiver's Receive Maximum.
    pub(crate) fn counted(&self) -> usize {
        self.counted
    }

    /// Number of incomplete messages, with those that wait.
    pub(crate) fn in_flight(&self) -> usize {
        self.steps.len() + self.held.len()
    }

    /// Returns whether the receiver has acknowledged a message on the present connection.
    pub(crate) fn has_progress(&self) -> bool {
        self.acknowledgements > 0
    }

    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Holds a packet, and returns whether it did. When more than `bytes_max` bytes wait already, the packet is left to
    /// the sender's session, and all that follow it too, so that the order is kept. A message of QoS 0 is lost then.
    ///
    /// It would be wrong to stop reading instead: a PUBREL that makes room can be behind the packet.
    pub(crate) fn hold(&mut self, qos: QoS, packet: Vec<u8>, bytes_max: usize) -> bool {
        if self.held_bytes > bytes_max {
            self.is_skipping |= qos > QoS::AtMostOnce;
            return false;
        }
        self.held_bytes += packet.len();
        self.held.push_back(packet);
        true
    }

    /// Returns whether messages that need an acknowledgement are left to the sender's session, until the next
    /// connection.
    pub(crate) fn is_skipping(&self) -> bool {
        self.is_skipping
    }

    /// Returns the oldest packet that waits.
    pub(crate) fn unhold(&mut self) -> Option<Vec<u8>> {
        let packet = self.held.pop_front()?;
        self.held_bytes -= packet.len();
        Some(packet)
    }

    pub(crate) fn check_invariants(&self) {
        let counted = self.steps.values().filter(|step| step.is_counted()).count();
        assert_eq!(counted, self.counted, "the number of counted messages");
        let bytes: usize = self.held.iter().map(Vec::len).sum();
        assert_eq!(bytes, self.held_bytes, "the number of held bytes");
    }
}
