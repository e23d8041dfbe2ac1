//! QoS 1 and QoS 2 publishes of one client: acknowledgements in order, identities of QoS 2, the Receive Maximum.

use std::collections::VecDeque;

use mqtt::{PacketId, QoS, ReasonCode};

use crate::Toggles;

/// Publishes of a client whose exchange has not ended.
///
/// PUBACK and PUBREC are sent in the order of the PUBLISH packets [MQTT-4.6.0-2] [MQTT-4.6.0-3], each when everything
/// it waits for has completed. So there is one queue for both.
///
/// `S` is the broker's set of shards. This crate only keeps such sets.
#[derive(Debug, Default)]
pub struct Inbound<S> {
    waiting: VecDeque<Waiting<S>>,
    /// Sequence number of the first entry of `waiting`.
    first: u32,
    /// Identifiers of QoS 2 messages received and not released [MQTT-4.3.3-10]. First are those of previous connections
    /// that were not sent again on this one.
    received: VecDeque<u16>,
    /// Number of these. They do not count against the Receive Maximum, which starts again with each connection (4.9).
    restored: usize,
    /// Number of QoS 1 entries of `waiting`.
    unacknowledged: u32,
    /// Number of entries of `waiting` that are released.
    early: u32,
    /// Identifiers that are released, and whose PUBCOMP waits for the store.
    releasing: Vec<u16>,
    /// Sum of the bytes of `waiting`.
    bytes: u64,
    /// Elements of `received` that a previous connection received, in a cluster: what another node has done about their
    /// messages is unknown.
    earlier: Vec<u16>,
    /// Identity, one of two, of the next message with a QoS 2 identifier.
    pub toggles: Toggles,
    /// QoS 2 messages that a previous connection dispatched and the session does not remember: they are sent again.
    dispatched: Vec<Dispatched<S>>,
    /// Shards that still remember identities of messages that were sent again.
    pub lingering: S,
}

#[derive(Debug)]
struct Waiting<S> {
    packet_id: PacketId,
    qos: QoS,
    /// Number of completions that have not arrived.
    outstanding: u32,
    reason: ReasonCode,
    keep: Keep,
    shards: S,
    may_be_partial: bool,
    losses: u32,
    /// PUBREL has arrived already.
    is_released: bool,
    /// Value of [`Inbound::charge_last`].
    bytes: u32,
}

impl<S> Waiting<S> {
    fn is_exchange(&self, packet_id: PacketId) -> bool {
        self.qos == QoS::ExactlyOnce && self.packet_id == packet_id
    }
}

/// Time at which the identifier of a QoS 2 message is remembered beyond the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The identifier is not remembered.
    Never,
    /// The identifier is remembered when everything else that the message waits for is done: [`Inbound::complete`] says
    /// so. `unsynced`: its acknowledgement does not wait for the disk.
    Last { unsynced: bool },
    /// The identifier is being remembered, which is one of the outstanding completions.
    Requested,
    /// The message is refused. That the session gives the identifier another identity is the last outstanding
    /// completion: see [`Inbound::end_refused`].
    Ending,
    /// The message goes to nobody, and its acknowledgement does not say so. Its identifier is being remembered, as with
    /// [`Self::Requested`].
    Ignored,
}

impl Keep {
    /// Returns whether the next connection has to know that the message was dispatched. A refused message is a new one
    /// when it is sent again.
    fn is_for_next(self) -> bool {
        match self {
            Self::Last { .. } | Self::Requested => true,
            Self::Never | Self::Ending | Self::Ignored => false,
        }
    }
}

/// A QoS 2 message that was dispatched and whose identifier the session may not remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatched<S> {
    pub packet_id: PacketId,
    /// Shards that have it.
    pub shards: S,
    /// Number of losses of other nodes at the time of the dispatch. A node that has lost messages later may have lost
    /// this one.
    pub losses: u32,
}

/// A QoS 2 identifier to be remembered now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueIdentifier {
    pub packet_id: PacketId,
    /// Value of [`Keep::Last`].
    pub unsynced: bool,
}

/// Action for a PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    New,
    /// The QoS 2 message is known [MQTT-4.3.3-10]: it is not dispatched again, and its PUBREC is due again.
    Repeated,
    /// The QoS 2 message is known, and its PUBREC has not been sent yet.
    RepeatedEarly,
}

/// Action for a PUBREL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    Released,
    Unknown,
    /// PUBREC was not sent yet. The message is released when [`Completion::is_released`] says so.
    Early,
    /// The message is released already, and its PUBCOMP waits for the store.
    Waits,
}

/// An acknowledgement that may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion<S> {
    pub packet_id: PacketId,
    pub qos: QoS,
    pub reason: ReasonCode,
    /// State of remembering the identifier.
    pub keep: Keep,
    /// Shards that have the message and know its identity.
    pub shards: S,
    /// Set by [`Inbound::mark_last_partial`].
    pub may_be_partial: bool,
    /// Number of losses, as in [`Dispatched`].
    pub losses: u32,
    /// PUBREL has arrived already: the message is released as soon as the acknowledgement was sent.
    pub is_released: bool,
}

impl<S: Copy + Default + PartialEq> Inbound<S> {
    /// Number of publishes that count against the announced Receive Maximum [MQTT-3.3.4-7].
    pub fn inflight(&self) -> usize {
        self.unacknowledged as usize + self.received.len() - self.restored
    }

    /// Returns whether no publish waits, so that an acknowledgement may be sent at once.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.received.is_empty() && self.releasing.is_empty()
    }

    /// Returns whether it contains nothing that later packets depend on.
    pub fn is_forgettable(&self) -> bool {
        self.is_empty()
            && self.toggles.is_empty()
            && self.dispatched.is_empty()
            && self.lingering == S::default()
    }

    /// Sequence number for completions of the next publish.
    pub fn next_sequence(&self) -> u32 {
        self.first.wrapping_add(self.waiting.len() as u32)
    }

    /// Checks whether this QoS 2 identifier is known, and remembers it when it is not.
    pub fn receive(&mut self, packet_id: PacketId) -> Received {
        match self.received.iter().position(|&id| id == packet_id.get()) {
            None => {
                self.received.push_back(packet_id.get());
                Received::New
            }
            Some(at) if at < self.restored => {
                // The message was sent again on this connection, so it counts from now on.
                self.received.remove(at);
                self.restored -= 1;
                self.received.push_back(packet_id.get());
                Received::Repeated
            }
            Some(_) if self.awaits_pub_rec(packet_id) => Received::RepeatedEarly,
            Some(_) => Received::Repeated,
        }
    }

    fn awaits_pub_rec(&self, packet_id: PacketId) -> bool {
        self.waiting.iter().any(|waiting| waiting.is_exchange(packet_id))
    }

    /// Returns whether PUBREL has arrived for this identifier, and PUBCOMP was not sent: PUBREC was not sent either, or
    /// the store has not released the identifier. The next PUBLISH with it is a different message, and has to wait.
    pub fn is_being_released(&self, packet_id: PacketId) -> bool {
        let is_early = |waiting: &Waiting<S>| waiting.is_released && waiting.is_exchange(packet_id);
        self.releasing.contains(&packet_id.get()) || self.early > 0 && self.waiting.iter().any(is_early)
    }

    /// Returns whether a PUBLISH has to wait until identifiers are released: its own one, or some of `max`. A client
    /// that does not wait for PUBCOMP could release any number while the store does not answer.
    pub fn waits_for_release(&self, packet_id: PacketId, max: usize) -> bool {
        self.releasing.len() >= max || self.is_being_released(packet_id)
    }

    /// Returns whether a QoS 2 message with this identifier was received and not released.
    pub fn has_received(&self, packet_id: PacketId) -> bool {
        self.received.contains(&packet_id.get())
    }

    /// Restores the identifiers that a resumed session has received and not released.
    pub fn restore(&mut self, received: impl IntoIterator<Item = u16>) {
        debug_assert!(self.is_empty(), "it is called before anything is received");
        self.received.extend(received);
        self.restored = self.received.len();
    }

    /// Notes that another node may have received the identifiers that were restored.
    pub fn note_earlier(&mut self) {
        self.earlier = self.received.iter().take(self.restored).copied().collect();
    }

    /// Returns whether a previous connection received this identifier, as noted by [`Self::note_earlier`]. Such an
    /// identifier is returned once.
    pub fn take_earlier(&mut self, packet_id: PacketId) -> bool {
        let Some(at) = self.earlier.iter().position(|&id| id == packet_id.get()) else { return false };
        self.earlier.swap_remove(at);
        true
    }

    /// Restores messages that a previous connection dispatched, as returned by [`Self::unfinished`].
    pub fn restore_dispatched(&mut self, dispatched: Vec<Dispatched<S>>) {
        self.dispatched = dispatched;
    }

    /// Message with this identifier that a previous connection dispatched.
    pub fn dispatched(&self, packet_id: PacketId) -> Option<&Dispatched<S>> {
        self.dispatched.iter().find(|dispatched| dispatched.packet_id == packet_id)
    }

    /// Removes a message that a previous connection dispatched. Returns the shards that have it; `None` when there is
    /// none.
    pub fn take_dispatched(&mut self, packet_id: PacketId) -> Option<S> {
        let at = self.dispatched.iter().position(|dispatched| dispatched.packet_id == packet_id)?;
        Some(self.dispatched.swap_remove(at).shards)
    }

    /// Records that an acknowledgement is not sent, because the connection ends before.
    pub fn leave_unfinished(&mut self, done: &Completion<S>) {
        if done.keep.is_for_next() {
            let Completion { packet_id, shards, losses, .. } = *done;
            self.dispatched.push(Dispatched { packet_id, shards, losses });
        }
    }

    /// QoS 2 messages that were dispatched and not acknowledged, for the next connection.
    pub fn unfinished(&self) -> impl Iterator<Item = Dispatched<S>> {
        let here = self.waiting.iter().filter(|waiting| waiting.keep.is_for_next());
        let here =
            here.map(|&Waiting { packet_id, shards, losses, .. }| Dispatched { packet_id, shards, losses });
        here.chain(self.dispatched.iter().copied())
    }

    /// Records that a PUBLISH was dispatched. It waits for `outstanding` completions and for earlier publishes.
    pub fn wait(&mut self, packet_id: PacketId, qos: QoS, outstanding: u32, reason: ReasonCode) {
        let dispatched = Dispatched { packet_id, shards: S::default(), losses: 0 };
        self.push_waiting(dispatched, qos, outstanding, reason, Keep::Never);
    }

    /// Records a QoS 2 message of a session that outlives the connection, like [`Self::wait`].
    pub fn wait_and_keep(
        &mut self,
        dispatched: Dispatched<S>,
        outstanding: u32,
        reason: ReasonCode,
        keep: Keep,
    ) {
        debug_assert!(outstanding > 0, "remembering its identifier is one completion");
        self.push_waiting(dispatched, QoS::ExactlyOnce, outstanding, reason, keep);
    }

    fn push_waiting(
        &mut self,
        Dispatched { packet_id, shards, losses }: Dispatched<S>,
        qos: QoS,
        outstanding: u32,
        reason: ReasonCode,
        keep: Keep,
    ) {
        let (may_be_partial, is_released) = (false, false);
        self.push(Waiting {
            packet_id,
            qos,
            outstanding,
            reason,
            keep,
            shards,
            may_be_partial,
            losses,
            is_released,
            bytes: 0,
        });
    }

    /// Puts a refused QoS 2 message back that [`Self::poll`] has returned. Its PUBREC, and all later ones, wait for one
    /// more completion. Returns the sequence number for that.
    pub fn end_refused(&mut self, done: &Completion<S>) -> u32 {
        let Completion { packet_id, qos, reason, losses, is_released, .. } = *done;
        self.received.push_back(packet_id.get());
        self.early += u32::from(is_released);
        self.first = self.first.wrapping_sub(1);
        self.waiting.push_front(Waiting {
            packet_id,
            qos,
            outstanding: 1,
            reason,
            keep: Keep::Ending,
            shards: S::default(),
            may_be_partial: false,
            losses,
            is_released,
            bytes: 0,
        });
        self.first
    }

    /// Marks the last PUBLISH as sent to several receivers: one may have it and another not.
    pub fn mark_last_partial(&mut self) {
        if let Some(waiting) = self.waiting.back_mut() {
            waiting.may_be_partial = true;
        }
    }

    /// Charges the last PUBLISH with the bytes that are kept for it until it is acknowledged.
    pub fn charge_last(&mut self, bytes: u32) {
        if let Some(waiting) = self.waiting.back_mut() {
            let before = waiting.bytes;
            waiting.bytes = before.saturating_add(bytes);
            self.bytes += u64::from(waiting.bytes - before);
        }
    }

    /// Bytes that are kept for publishes that are not acknowledged, as far as [`Self::charge_last`] was called.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, waiting: Waiting<S>) {
        self.unacknowledged += u32::from(waiting.qos == QoS::AtLeastOnce);
        self.waiting.push_back(waiting);
    }

    /// Records one completion of publish `sequence`. `reason` replaces Success; the first error stays. Returns the
    /// identifier when it must now be remembered, which adds one completion.
    pub fn complete(&mut self, sequence: u32, reason: ReasonCode) -> Option<DueIdentifier> {
        let at = sequence.wrapping_sub(self.first) as usize;
        let waiting = self.waiting.get_mut(at)?;
        waiting.outstanding = waiting.outstanding.saturating_sub(1);
        if !waiting.reason.is_error() && reason != ReasonCode::Success {
            waiting.reason = reason;
        }
        let Keep::Last { unsynced } = waiting.keep else { return None };
        let is_due = waiting.outstanding == 0 && !waiting.reason.is_error();
        is_due.then(|| {
            waiting.keep = Keep::Requested;
            waiting.outstanding = 1;
            DueIdentifier { packet_id: waiting.packet_id, unsynced }
        })
    }

    /// Returns whether a new message may be accepted: fewer than `receive_max` are open, and no identifier is being
    /// released.
    #[inline]
    pub fn has_room(&self, receive_max: usize) -> bool {
        self.inflight() < receive_max && self.early == 0 && self.releasing.is_empty()
    }

    /// The next acknowledgement that may be sent, if it is a PUBACK of success.
    #[inline]
    pub fn poll_pub_ack(&mut self) -> Option<PacketId> {
        let is_success = |waiting: &mut Waiting<S>| {
            waiting.qos == QoS::AtLeastOnce
                && waiting.outstanding == 0
                && waiting.reason == ReasonCode::Success
                && waiting.keep == Keep::Never
        };
        let waiting = self.waiting.pop_front_if(is_success)?;
        self.first = self.first.wrapping_add(1);
        self.unacknowledged -= 1;
        self.bytes -= u64::from(waiting.bytes);
        Some(waiting.packet_id)
    }

    /// The next acknowledgement that may be sent.
    pub fn poll(&mut self) -> Option<Completion<S>> {
        self.waiting.front().filter(|waiting| waiting.outstanding == 0)?;
        let waiting = self.waiting.pop_front()?;
        self.bytes -= u64::from(waiting.bytes);
        let Waiting { packet_id, qos, reason, keep, shards, may_be_partial, losses, is_released, .. } =
            waiting;
        self.early -= u32::from(is_released);
        self.first = self.first.wrapping_add(1);
        match qos {
            QoS::AtLeastOnce => self.unacknowledged -= 1,
            // A refused QoS 2 message ends with its PUBREC [MQTT-4.3.3-9].
            QoS::ExactlyOnce if reason.is_error() => {
                self.forget(packet_id);
            }
            // An earlier attempt may have been dispatched. The session knows the identifier now.
            QoS::ExactlyOnce if keep == Keep::Ignored => {
                self.take_dispatched(packet_id);
            }
            QoS::AtMostOnce | QoS::ExactlyOnce => {}
        }
        Some(Completion { packet_id, qos, reason, keep, shards, may_be_partial, losses, is_released })
    }

    /// Handles PUBREL: the identifier may be used for a new message from now on [MQTT-4.3.3-11].
    pub fn release(&mut self, packet_id: PacketId) -> Released {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.is_exchange(packet_id)) {
            self.early += u32::from(!std::mem::replace(&mut waiting.is_released, true));
            return Released::Early;
        }
        match self.forget(packet_id) {
            true => Released::Released,
            false if self.releasing.contains(&packet_id.get()) => Released::Waits,
            false => Released::Unknown,
        }
    }

    /// Records that the PUBCOMP of an identifier that [`Self::release`] has released waits for the store.
    pub fn await_store(&mut self, packet_id: PacketId) {
        debug_assert!(!self.releasing.contains(&packet_id.get()), "its next message waits");
        self.releasing.push(packet_id.get());
    }

    /// Records that the store has released an identifier. Its next message has the other identity. Returns false if
    /// nothing waits for that.
    pub fn end_release(&mut self, packet_id: PacketId) -> bool {
        let Some(at) = self.releasing.iter().position(|id| *id == packet_id.get()) else { return false };
        self.releasing.swap_remove(at);
        self.toggles.flip(packet_id);
        true
    }

    /// Forgets a QoS 2 identifier, because its message was released or refused. Returns false when it was not known.
    fn forget(&mut self, packet_id: PacketId) -> bool {
        let Some(at) = self.received.iter().position(|&id| id == packet_id.get()) else { return false };
        self.received.remove(at);
        self.restored -= usize::from(at < self.restored);
        true
    }

    pub fn shrink(&mut self) {
        self.waiting.shrink_to_fit();
        self.received.shrink_to_fit();
        self.releasing.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Inbound = super::Inbound<u16>;

    fn id(value: u16) -> PacketId {
        PacketId::new(value).expect("not 0")
    }

    fn polled(inbound: &mut Inbound) -> Vec<u16> {
        std::iter::from_fn(|| inbound.poll()).map(|completion| completion.packet_id.get()).collect()
    }

    /// [MQTT-4.6.0-2] [MQTT-4.6.0-3]
    #[test]
    fn acknowledgements_are_sent_in_the_order_of_the_publishes() {
        let mut inbound = Inbound::default();
        let first = inbound.next_sequence();
        inbound.wait(id(7), QoS::AtLeastOnce, 1, ReasonCode::Success);
        inbound.wait(id(3), QoS::AtLeastOnce, 2, ReasonCode::Success);
        inbound.wait(id(9), QoS::AtLeastOnce, 0, ReasonCode::Success);
        assert_eq!(inbound.complete(first.wrapping_add(1), ReasonCode::Success), None);
        assert_eq!(inbound.complete(first.wrapping_add(1), ReasonCode::Success), None);
        assert_eq!(polled(&mut inbound), []);
        assert_eq!(inbound.complete(first, ReasonCode::Success), None);
        assert_eq!(polled(&mut inbound), [7, 3, 9]);
        assert!(inbound.is_empty());
    }

    #[test]
    fn a_publish_is_charged_until_it_is_acknowledged() {
        let mut inbound = Inbound::default();
        for (value, qos) in [(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce), (3, QoS::ExactlyOnce)] {
            inbound.receive(id(value));
            inbound.wait(id(value), qos, 1, ReasonCode::Success);
            inbound.charge_last(10 * u32::from(value));
        }
        assert_eq!(inbound.bytes(), 60);
        inbound.complete(0, ReasonCode::Success);
        inbound.complete(1, ReasonCode::QuotaExceeded);
        assert_eq!((inbound.poll_pub_ack(), inbound.bytes()), (Some(id(1)), 50));
        let refused = inbound.poll().expect("it is complete");
        let sequence = inbound.end_refused(&refused);
        assert_eq!(inbound.bytes(), 30);
        inbound.complete(sequence, ReasonCode::Success);
        inbound.complete(2, ReasonCode::Success);
        assert_eq!(polled(&mut inbound), [2, 3]);
        assert_eq!(inbound.bytes(), 0);
    }

    /// [MQTT-4.3.3-10]
    #[test]
    fn a_qos_2_message_is_new_until_it_is_released() {
        let mut inbound = Inbound::default();
        assert_eq!(inbound.receive(id(1)), Received::New);
        inbound.wait(id(1), QoS::ExactlyOnce, 1, ReasonCode::Success);
        assert_eq!(inbound.receive(id(1)), Received::RepeatedEarly);
        inbound.complete(0, ReasonCode::Success);
        assert_eq!(polled(&mut inbound), [1]);
        assert_eq!(inbound.receive(id(1)), Received::Repeated);
        assert_eq!(inbound.inflight(), 1);
        assert_eq!(inbound.release(id(1)), Released::Released);
        assert_eq!(inbound.release(id(1)), Released::Unknown);
        assert_eq!(inbound.receive(id(1)), Received::New);
    }

    /// [MQTT-4.3.3-3]: otherwise a client could have as many messages in flight as it likes.
    #[test]
    fn a_message_is_not_released_before_its_pubrec() {
        let mut inbound = Inbound::default();
        inbound.receive(id(1));
        inbound.wait(id(1), QoS::ExactlyOnce, 1, ReasonCode::Success);
        assert!(!inbound.is_being_released(id(1)));
        assert_eq!(inbound.release(id(1)), Released::Early);
        assert_eq!(inbound.release(id(1)), Released::Early, "sent again");
        assert!(inbound.is_being_released(id(1)));
        assert_eq!(inbound.inflight(), 1);
    }

    /// [MQTT-4.3.3-11] [MQTT-4.3.3-12]: each release flips the identity once, whatever comes again.
    #[test]
    fn the_next_message_of_an_identifier_waits_until_the_store_has_released_it() {
        let mut inbound = Inbound::default();
        for value in [1, 2] {
            inbound.receive(id(value));
            assert_eq!(inbound.release(id(value)), Released::Released);
            inbound.await_store(id(value));
        }
        assert_eq!(inbound.release(id(1)), Released::Waits, "sent again");
        assert!(inbound.is_being_released(id(1)) && !inbound.is_being_released(id(3)));
        assert!(!inbound.has_room(10) && !inbound.is_empty());
        assert!(inbound.waits_for_release(id(1), 10) && !inbound.waits_for_release(id(3), 3));
        assert!(inbound.waits_for_release(id(3), 2), "so many are released already");
        assert!(!inbound.toggles.get(id(1)));
        assert!(inbound.end_release(id(1)));
        assert!(!inbound.end_release(id(1)), "an answer that comes again");
        assert!(inbound.toggles.get(id(1)) && !inbound.toggles.get(id(2)));
        assert!(!inbound.is_being_released(id(1)) && inbound.is_being_released(id(2)));
        assert_eq!(inbound.release(id(1)), Released::Unknown);
        assert!(inbound.end_release(id(2)));
        assert!(inbound.has_room(10) && inbound.is_empty());
    }

    #[test]
    fn a_message_of_a_previous_connection_counts_when_it_is_sent_again() {
        let mut inbound = Inbound::default();
        inbound.restore([7, 8, 9]);
        assert_eq!(inbound.inflight(), 0);
        assert_eq!(inbound.receive(id(8)), Received::Repeated);
        assert_eq!(inbound.receive(id(1)), Received::New);
        assert_eq!(inbound.inflight(), 2);
        assert_eq!(inbound.release(id(7)), Released::Released);
        assert_eq!(inbound.release(id(8)), Released::Released);
        assert_eq!(inbound.inflight(), 1);
        assert_eq!(inbound.receive(id(9)), Received::Repeated);
        assert_eq!(inbound.inflight(), 2);
    }

    /// [MQTT-4.3.3-8]: the identifier is remembered last. A receiver that gets the message again then either has all of
    /// it, or knows that it has not.
    #[test]
    fn an_identifier_is_remembered_when_everything_else_is_done() {
        let mut inbound = Inbound::default();
        inbound.receive(id(5));
        let five = Dispatched { packet_id: id(5), shards: 0b101, losses: 9 };
        inbound.wait_and_keep(five, 2, ReasonCode::Success, Keep::Last { unsynced: true });
        let unfinished = [five];
        assert_eq!(inbound.complete(0, ReasonCode::Success), None);
        let due = DueIdentifier { packet_id: id(5), unsynced: true };
        assert_eq!(inbound.complete(0, ReasonCode::Success), Some(due));
        assert_eq!(polled(&mut inbound), []);
        assert!(inbound.unfinished().eq(unfinished));
        assert_eq!(inbound.complete(0, ReasonCode::Success), None);
        assert_eq!(inbound.poll().map(|done| (done.keep, done.shards)), Some((Keep::Requested, 0b101)));
        assert_eq!(inbound.unfinished().count(), 0);
        assert_eq!(inbound.receive(id(5)), Received::Repeated);
    }

    #[test]
    fn a_refused_message_is_not_remembered() {
        let mut inbound = Inbound::default();
        inbound.receive(id(5));
        let five = Dispatched { packet_id: id(5), shards: 1, losses: 0 };
        inbound.wait_and_keep(five, 2, ReasonCode::Success, Keep::Last { unsynced: false });
        assert_eq!(inbound.complete(0, ReasonCode::QuotaExceeded), None);
        assert_eq!(inbound.complete(0, ReasonCode::Success), None);
        let done = inbound.poll().expect("all completions have arrived");
        assert_eq!((done.reason, done.keep), (ReasonCode::QuotaExceeded, Keep::Last { unsynced: false }));
        assert_eq!(inbound.receive(id(5)), Received::New);
    }

    /// [MQTT-4.3.3-9] [MQTT-4.6.0-3]
    #[test]
    fn a_refused_message_keeps_its_identifier_and_its_turn_until_its_exchange_has_ended() {
        let mut inbound = Inbound::default();
        for value in [5, 6] {
            inbound.receive(id(value));
            inbound.wait(id(value), QoS::ExactlyOnce, 1, ReasonCode::Success);
        }
        inbound.complete(0, ReasonCode::QuotaExceeded);
        let done = inbound.poll().expect("it is complete");
        let sequence = inbound.end_refused(&done);
        assert_eq!(inbound.receive(id(5)), Received::RepeatedEarly);
        assert_eq!((inbound.inflight(), inbound.next_sequence()), (2, 2));
        inbound.complete(1, ReasonCode::Success);
        assert_eq!(inbound.poll(), None, "the later one waits, too");
        assert_eq!(inbound.unfinished().count(), 0, "it is a new message when it comes again");
        inbound.complete(sequence, ReasonCode::Success);
        let done = inbound.poll().expect("it has ended");
        assert_eq!((done.reason, done.keep), (ReasonCode::QuotaExceeded, Keep::Ending));
        assert_eq!(polled(&mut inbound), [6]);
        assert_eq!((inbound.inflight(), inbound.receive(id(5))), (1, Received::New));
    }

    /// A message that an earlier connection has dispatched stays known until the session has the identifier.
    #[test]
    fn an_ignored_message_is_not_one_that_was_dispatched() {
        let five = Dispatched { packet_id: id(5), shards: 3, losses: 4 };
        for earlier in [vec![], vec![five]] {
            let mut inbound = Inbound::default();
            inbound.restore_dispatched(earlier.clone());
            inbound.receive(id(5));
            let all = Dispatched { packet_id: id(5), shards: u16::MAX, losses: 0 };
            inbound.wait_and_keep(all, 1, ReasonCode::Success, Keep::Ignored);
            assert!(inbound.unfinished().eq(earlier.clone()));
            inbound.complete(0, ReasonCode::Success);
            assert_eq!(inbound.poll().map(|done| (done.keep, done.shards)), Some((Keep::Ignored, u16::MAX)));
            assert_eq!((inbound.unfinished().count(), inbound.receive(id(5))), (0, Received::Repeated));
        }
    }

    #[test]
    fn an_identifier_of_a_previous_connection_is_told_apart_once() {
        let mut inbound = Inbound::default();
        inbound.restore([7]);
        assert!(!inbound.take_earlier(id(7)), "a node alone knows what it has done");
        inbound.note_earlier();
        inbound.receive(id(8));
        assert_eq!(inbound.receive(id(7)), Received::Repeated);
        assert!(inbound.take_earlier(id(7)) && !inbound.take_earlier(id(7)) && !inbound.take_earlier(id(8)));
    }

    #[test]
    fn a_message_that_a_previous_connection_dispatched_is_known_once() {
        let mut inbound = Inbound::default();
        let (five, six) = (
            Dispatched { packet_id: id(5), shards: 3, losses: 4 },
            Dispatched { packet_id: id(6), shards: 0, losses: 5 },
        );
        inbound.restore_dispatched(vec![five, six]);
        assert_eq!((inbound.dispatched(id(5)), inbound.dispatched(id(7))), (Some(&five), None));
        assert_eq!(inbound.take_dispatched(id(7)), None);
        assert_eq!(inbound.take_dispatched(id(5)), Some(3));
        assert_eq!(inbound.take_dispatched(id(5)), None);
        assert!(inbound.unfinished().eq([six]), "the client has not sent it again so far");
        assert!(!inbound.is_forgettable());
    }

    /// [MQTT-4.3.3-9]
    #[test]
    fn a_refused_qos_2_message_frees_its_identifier() {
        let mut inbound = Inbound::default();
        inbound.receive(id(5));
        inbound.wait(id(5), QoS::ExactlyOnce, 1, ReasonCode::Success);
        inbound.complete(0, ReasonCode::QuotaExceeded);
        assert_eq!(inbound.poll().map(|done| done.reason), Some(ReasonCode::QuotaExceeded));
        assert_eq!(inbound.inflight(), 0);
    }

    #[test]
    fn a_late_completion_of_a_finished_publish_changes_nothing() {
        let mut inbound = Inbound::default();
        inbound.wait(id(5), QoS::AtLeastOnce, 0, ReasonCode::Success);
        inbound.poll();
        inbound.complete(0, ReasonCode::QuotaExceeded);
        inbound.complete(77, ReasonCode::QuotaExceeded);
        assert!(inbound.is_empty());
    }
}
