//! QoS 1 and QoS 2 deliveries to one client: numbers and the in-flight window.

use std::collections::VecDeque;

use mqtt::{PacketId, QoS};

/// Deliveries of one session, numbered. The Packet Identifier of delivery `n` is `1 + n mod 65,535`. Delivery `n` is
/// not opened until every delivery 65,535 or more before it has finished, so an identifier in use is never assigned
/// again [MQTT-2.2.1-3]. `M` is what the owner keeps for a delivery: a message for a session that may have to send it
/// again, nothing for one that ends with its connection.
///
/// **Invariant:** `inflight` is the number of entries of `open` with `counted`, these are unfinished, and the first
/// entry of `open` is unfinished. The entries with `is_kept` have a value in `kept`.
#[derive(Debug)]
pub struct Deliveries<M> {
    open: VecDeque<Open>,
    /// Number of the first entry of `open`.
    first: u64,
    /// Number of the first entry that was not sent on the present connection.
    unsent: u64,
    inflight: u32,
    /// Values that the owner keeps, with the numbers of their deliveries, in the order of these numbers.
    kept: VecDeque<(u64, M)>,
}

/// One delivery in flight. There may be very many, so it has only a few bytes.
#[derive(Debug)]
struct Open {
    phase: Phase,
    /// The PUBLISH was sent on the present connection and so counts against its Receive Maximum.
    counted: bool,
    /// The owner keeps something for the delivery.
    is_kept: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    AwaitPubAck,
    AwaitPubRec,
    AwaitPubComp,
    Finished,
}

/// Result of an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub enum AckOutcome<M> {
    /// The delivery is finished; the value that the owner kept for it is returned.
    Finished(Option<M>),
    /// No unfinished delivery has the identifier.
    Unknown,
    /// The delivery with the identifier waits for another kind of acknowledgement: a Protocol Error.
    WrongKind,
}

/// Result of a PUBREC.
#[derive(Debug, PartialEq, Eq)]
pub enum PubRecOutcome<M> {
    /// Send PUBREL; the message is no longer needed [MQTT-4.3.3-4].
    Release(Option<M>),
    /// PUBREC was repeated: send PUBREL again.
    ReleaseAgain,
    /// The client refused the message with an error Reason Code; the identifier is free [MQTT-4.3.3-4].
    Refused(Option<M>),
    /// No unfinished delivery has the identifier.
    Unknown,
    /// The delivery with the identifier waits for another kind of acknowledgement: a Protocol Error.
    WrongKind,
}

/// One packet to send again after a reconnect; a PUBLISH with DUP [MQTT-4.4.0-1] [MQTT-3.3.1-1].
#[derive(Debug, PartialEq, Eq)]
pub enum Resend<'a, M> {
    Publish { packet_id: PacketId, qos: QoS, payload: &'a M },
    PubRel { packet_id: PacketId },
}

impl<M> Default for Deliveries<M> {
    fn default() -> Self {
        Self { open: VecDeque::new(), first: 0, unsent: 0, inflight: 0, kept: VecDeque::new() }
    }
}

impl<M> Deliveries<M> {
    /// Number of deliveries sent and not finished, which count against the client's Receive Maximum [MQTT-4.9.0-2].
    pub fn inflight(&self) -> usize {
        self.inflight as usize
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns whether a delivery may be opened now, with a window of `window` deliveries. Deliveries that have to be
    /// sent again precede it.
    pub fn window_open(&self, window: u16) -> bool {
        self.inflight < u32::from(window)
            && self.open.len() < PACKET_IDS
            && self.unsent == self.first + self.open.len() as u64
    }

    /// Opens the next delivery at QoS 1 or 2. The window must be open.
    #[inline]
    pub fn open(&mut self, qos: QoS, payload: Option<M>) -> PacketId {
        assert!(self.open.len() < PACKET_IDS, "all packet identifiers are in use");
        let phase = match qos {
            QoS::ExactlyOnce => Phase::AwaitPubRec,
            QoS::AtMostOnce | QoS::AtLeastOnce => Phase::AwaitPubAck,
        };
        let number = self.first + self.open.len() as u64;
        self.open.push_back(Open { phase, counted: true, is_kept: payload.is_some() });
        if let Some(payload) = payload {
            self.kept.push_back((number, payload));
        }
        self.unsent = number + 1;
        self.inflight += 1;
        packet_id(number)
    }

    /// Handles PUBACK: finishes a QoS 1 delivery.
    pub fn pub_ack(&mut self, id: PacketId) -> AckOutcome<M> {
        self.finish(id, Phase::AwaitPubAck)
    }

    /// Handles PUBCOMP: finishes a QoS 2 delivery.
    pub fn pub_comp(&mut self, id: PacketId) -> AckOutcome<M> {
        self.finish(id, Phase::AwaitPubComp)
    }

    pub fn pub_rec(&mut self, id: PacketId, refused: bool) -> PubRecOutcome<M> {
        if refused {
            return match self.finish(id, Phase::AwaitPubRec) {
                AckOutcome::Finished(payload) => PubRecOutcome::Refused(payload),
                AckOutcome::Unknown => PubRecOutcome::Unknown,
                AckOutcome::WrongKind => PubRecOutcome::WrongKind,
            };
        }
        let at = self.index(id);
        match self.open.get_mut(at) {
            Some(entry) if entry.phase == Phase::AwaitPubRec => {
                entry.phase = Phase::AwaitPubComp;
                PubRecOutcome::Release(self.take_kept(at))
            }
            Some(entry) if entry.phase == Phase::AwaitPubComp => PubRecOutcome::ReleaseAgain,
            Some(entry) if entry.phase == Phase::AwaitPubAck => PubRecOutcome::WrongKind,
            _ => PubRecOutcome::Unknown,
        }
    }

    /// Handles a new connection of the session: everything unfinished has to be sent again.
    pub fn reconnect(&mut self) {
        self.unsent = self.first;
        self.inflight = 0;
        for entry in &mut self.open {
            entry.counted = false;
        }
    }

    /// The next packet to send again, oldest first, within the new connection's window [MQTT-4.4.0-1] [MQTT-4.6.0-1]
    /// [MQTT3-4.6.0-1] [MQTT3-4.6.0-4].
    pub fn resend_next(&mut self, window: u16) -> Option<Resend<'_, M>> {
        let at = (self.unsent - self.first) as usize;
        if at == self.open.len() {
            return None;
        }
        if self.open[at].phase != Phase::AwaitPubComp && self.inflight >= u32::from(window) {
            return None;
        }
        let number = self.unsent;
        let packet_id = packet_id(number);
        self.unsent += 1;
        self.pass_finished();
        let entry = &mut self.open[at];
        let kept = self.kept.binary_search_by_key(&number, |(number, _)| *number);
        let payload = kept.ok().map(|at| &self.kept[at].1);
        match (entry.phase, payload) {
            (Phase::AwaitPubAck | Phase::AwaitPubRec, Some(payload)) => {
                entry.counted = true;
                self.inflight += 1;
                let qos = if entry.phase == Phase::AwaitPubRec { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
                Some(Resend::Publish { packet_id, qos, payload })
            }
            (Phase::AwaitPubAck | Phase::AwaitPubRec, None) => {
                unreachable!("a session that resumes keeps payloads")
            }
            (Phase::AwaitPubComp | Phase::Finished, _) => Some(Resend::PubRel { packet_id }),
        }
    }

    /// Dissolves the deliveries at the end of the session. Returns the values of unfinished QoS 1 deliveries. QoS 2
    /// deliveries in flight are dropped: they may go to no other client [MQTT-4.8.2-5].
    pub fn into_unfinished(self) -> impl Iterator<Item = M> {
        let Self { open, first, kept, .. } = self;
        let is_qos1 = move |number: u64| {
            open.get((number - first) as usize).is_some_and(|entry| entry.phase == Phase::AwaitPubAck)
        };
        kept.into_iter().filter(move |(number, _)| is_qos1(*number)).map(|(_, payload)| payload)
    }

    /// Values that are kept for deliveries in flight.
    pub fn inflight_payloads(&self) -> impl Iterator<Item = &M> {
        self.kept.iter().map(|(_, payload)| payload)
    }

    /// Frees memory that an idle session does not need.
    pub fn shrink(&mut self) {
        self.open.shrink_to_fit();
        self.kept.shrink_to_fit();
    }

    pub fn check_invariants(&self) {
        let counted = self.open.iter().filter(|entry| entry.counted).count();
        assert_eq!(counted, self.inflight as usize);
        assert!(self.open.iter().all(|entry| !(entry.counted && entry.phase == Phase::Finished)));
        assert!(self.first <= self.unsent && self.unsent <= self.first + self.open.len() as u64);
        assert!(self.open.front().is_none_or(|entry| entry.phase != Phase::Finished));
        assert!(self.open.len() <= PACKET_IDS);
        let unsent = self.open.get((self.unsent - self.first) as usize);
        assert!(unsent.is_none_or(|entry| entry.phase != Phase::Finished));
        let kept = (self.first..).zip(&self.open).filter(|(_, entry)| entry.is_kept);
        assert!(kept.map(|(number, _)| number).eq(self.kept.iter().map(|(number, _)| *number)));
    }

    /// Index in `open` of the delivery that has the identifier, if there is one.
    #[inline]
    fn index(&self, id: PacketId) -> usize {
        // The distance from the first identifier to this one, around the circle of identifiers.
        let first = (self.first % PACKET_IDS as u64) as usize;
        let at = usize::from(id.get()) - 1;
        if at >= first { at - first } else { at + PACKET_IDS - first }
    }

    /// Removes what the owner keeps for an entry of `open`.
    fn take_kept(&mut self, at: usize) -> Option<M> {
        let number = self.first + at as u64;
        if !std::mem::take(&mut self.open.get_mut(at)?.is_kept) {
            return None;
        }
        // Most deliveries finish in their order.
        if let Some((_, payload)) = self.kept.pop_front_if(|(first, _)| *first == number) {
            return Some(payload);
        }
        let found = self.kept.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.kept.remove(found).map(|(_, payload)| payload)
    }

    #[inline]
    fn finish(&mut self, id: PacketId, phase: Phase) -> AckOutcome<M> {
        let at = self.index(id);
        let Some(entry) = self.open.get_mut(at).filter(|entry| entry.phase != Phase::Finished) else {
            return AckOutcome::Unknown;
        };
        if entry.phase != phase {
            return AckOutcome::WrongKind;
        }
        entry.phase = Phase::Finished;
        self.inflight -= u32::from(std::mem::take(&mut entry.counted));
        let payload = if entry.is_kept { self.take_kept(at) } else { None };
        if at == 0 {
            while self.open.pop_front_if(|entry| entry.phase == Phase::Finished).is_some() {
                self.first += 1;
            }
            self.unsent = self.unsent.max(self.first);
        }
        self.pass_finished();
        AckOutcome::Finished(payload)
    }

    /// Removes finished deliveries at the beginning: they are not sent again, and nothing waits for them.
    fn pass_finished(&mut self) {
        let finished = |entry: &Open| entry.phase == Phase::Finished;
        while self.open.get((self.unsent - self.first) as usize).is_some_and(finished) {
            self.unsent += 1;
        }
    }
}

const PACKET_IDS: usize = u16::MAX as usize;

fn packet_id(number: u64) -> PacketId {
    let id = 1 + (number % PACKET_IDS as u64) as u16;
    PacketId::new(id).unwrap_or_else(|| unreachable!("1 + n mod 65,535 is never 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(value: u16) -> PacketId {
        PacketId::new(value).expect("not 0")
    }

    #[test]
    fn identifiers_are_assigned_in_order_and_not_twice() {
        let mut deliveries = Deliveries::<u32>::default();
        assert_eq!(deliveries.open(QoS::AtLeastOnce, None), id(1));
        assert_eq!(deliveries.open(QoS::AtLeastOnce, None), id(2));
        assert_eq!(deliveries.pub_ack(id(2)), AckOutcome::Finished(None));
        assert_eq!(deliveries.open(QoS::AtLeastOnce, None), id(3));
        assert_eq!(deliveries.inflight(), 2);
        deliveries.check_invariants();
    }

    /// [MQTT-2.2.1-3]: identifiers are not assigned beyond one that is still in use.
    #[test]
    fn no_identifier_is_assigned_beyond_one_in_use() {
        let mut deliveries = Deliveries::<u32>::default();
        deliveries.open(QoS::AtLeastOnce, None);
        for _ in 1..PACKET_IDS {
            let id = deliveries.open(QoS::AtLeastOnce, None);
            deliveries.pub_ack(id);
        }
        assert!(!deliveries.window_open(u16::MAX));
        deliveries.pub_ack(id(1));
        assert!(deliveries.window_open(u16::MAX));
        assert_eq!(deliveries.open(QoS::AtLeastOnce, None), id(1));
        deliveries.check_invariants();
    }

    #[test]
    fn an_acknowledgement_of_another_kind_is_distinguished_from_an_unknown_one() {
        let mut deliveries = Deliveries::<u32>::default();
        let one = deliveries.open(QoS::AtLeastOnce, Some(1));
        let two = deliveries.open(QoS::ExactlyOnce, Some(2));
        assert_eq!(deliveries.pub_rec(one, false), PubRecOutcome::WrongKind);
        assert_eq!(deliveries.pub_rec(one, true), PubRecOutcome::WrongKind);
        assert_eq!(deliveries.pub_comp(one), AckOutcome::WrongKind);
        assert_eq!(deliveries.pub_ack(two), AckOutcome::WrongKind);
        assert_eq!(deliveries.pub_comp(two), AckOutcome::WrongKind);
        assert_eq!(deliveries.pub_ack(id(3)), AckOutcome::Unknown);
        assert_eq!(deliveries.pub_rec(two, false), PubRecOutcome::Release(Some(2)));
        assert_eq!(deliveries.pub_rec(two, false), PubRecOutcome::ReleaseAgain);
        assert_eq!(deliveries.pub_rec(two, true), PubRecOutcome::WrongKind);
        assert_eq!(deliveries.pub_ack(two), AckOutcome::WrongKind);
        assert_eq!(deliveries.pub_comp(two), AckOutcome::Finished(None));
        assert_eq!(deliveries.pub_comp(two), AckOutcome::Unknown);
    }

    /// [MQTT-4.4.0-1]: PUBLISH with DUP and its identifier, PUBREL where PUBREC had arrived.
    #[test]
    fn a_resumed_session_sends_unfinished_deliveries_again_in_order() {
        let mut deliveries = Deliveries::default();
        deliveries.open(QoS::AtLeastOnce, Some("a"));
        deliveries.open(QoS::ExactlyOnce, Some("b"));
        deliveries.open(QoS::ExactlyOnce, Some("c"));
        deliveries.pub_rec(id(2), false);
        deliveries.reconnect();
        assert!(!deliveries.window_open(9), "new messages wait for the old ones");
        let first = Resend::Publish { packet_id: id(1), qos: QoS::AtLeastOnce, payload: &"a" };
        assert_eq!(deliveries.resend_next(1), Some(first));
        assert_eq!(deliveries.resend_next(1), Some(Resend::PubRel { packet_id: id(2) }));
        assert_eq!(deliveries.resend_next(1), None, "the window of the new connection is full");
        deliveries.pub_ack(id(1));
        let last = Resend::Publish { packet_id: id(3), qos: QoS::ExactlyOnce, payload: &"c" };
        assert_eq!(deliveries.resend_next(1), Some(last));
        assert_eq!(deliveries.resend_next(1), None);
        deliveries.check_invariants();
    }

    /// Deliveries for which the owner keeps something, and others, finish in any order.
    #[test]
    fn the_value_of_a_delivery_returns_with_its_acknowledgement() {
        let mut deliveries = Deliveries::default();
        for number in 1..=6 {
            let kept = (number % 2 == 0).then_some(number);
            let qos = if number % 3 == 0 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            assert_eq!(deliveries.open(qos, kept), id(number));
            deliveries.check_invariants();
        }
        assert_eq!(deliveries.inflight_payloads().copied().collect::<Vec<_>>(), [2, 4, 6]);
        assert_eq!(deliveries.pub_ack(id(4)), AckOutcome::Finished(Some(4)));
        assert_eq!(deliveries.pub_ack(id(4)), AckOutcome::Unknown);
        assert_eq!(deliveries.pub_rec(id(3), false), PubRecOutcome::Release(None));
        assert_eq!(deliveries.pub_rec(id(6), true), PubRecOutcome::Refused(Some(6)));
        assert_eq!(deliveries.pub_ack(id(1)), AckOutcome::Finished(None));
        deliveries.check_invariants();
        assert_eq!(deliveries.pub_ack(id(2)), AckOutcome::Finished(Some(2)));
        assert_eq!(deliveries.pub_comp(id(3)), AckOutcome::Finished(None));
        deliveries.check_invariants();
        assert_eq!(deliveries.inflight_payloads().count(), 0);
        assert_eq!(deliveries.inflight(), 1);
    }

    /// [MQTT-4.8.2-5]: a QoS 2 message that was sent goes to no other client.
    #[test]
    fn unfinished_deliveries_do_not_include_qos_2_in_flight() {
        let mut deliveries = Deliveries::default();
        deliveries.open(QoS::AtLeastOnce, Some("a"));
        deliveries.open(QoS::ExactlyOnce, Some("b"));
        assert_eq!(deliveries.into_unfinished().collect::<Vec<_>>(), ["a"]);
    }
}
