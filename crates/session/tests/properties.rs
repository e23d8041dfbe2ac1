//! Random steps, compared with models that keep lists and search them.

use mqtt::{PacketId, QoS, ReasonCode};
use proptest::prelude::*;
use session::{AckOutcome, Completion, Deliveries, Inbound, Keep, PubRecOutcome, Received, Released, Resend};

fn id(value: u16) -> PacketId {
    PacketId::new(value).expect("not 0")
}

fn a_qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

/// Number of Packet Identifiers.
const CIRCLE: u64 = 65_535;

/// A step of a server with deliveries to a client.
#[derive(Clone, Debug)]
enum Delivering {
    Open(QoS, u16),
    PubAck(u16),
    PubRec(u16, bool),
    PubComp(u16),
    Reconnect,
    Resend(u16),
    /// Opens and finishes this number of deliveries, so that Packet Identifiers wrap around.
    Pass(u16),
}

fn delivering() -> impl Strategy<Value = Delivering> {
    use Delivering::*;
    let window = || 0..5_u16;
    // Identifiers are those of the latest deliveries, or any.
    let id = || prop_oneof![9 => 1..12_u16, 1 => any::<u16>()];
    prop_oneof![
        10 => (a_qos(), window()).prop_map(|(qos, window)| Open(qos, window)),
        6 => id().prop_map(PubAck),
        6 => (id(), any::<bool>()).prop_map(|(id, refused)| PubRec(id, refused)),
        5 => id().prop_map(PubComp),
        2 => Just(Reconnect),
        6 => window().prop_map(Resend),
        1 => prop_oneof![1..20_u16, any::<u16>()].prop_map(Pass),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Await {
    Ack,
    Rec,
    Comp,
}

#[derive(Clone, Debug)]
struct Sent {
    number: u64,
    awaits: Await,
    /// The PUBLISH was sent since the client connected; otherwise it has to be sent again.
    counts: bool,
    again: bool,
}

/// Unfinished deliveries in order. A payload is its number among all.
#[derive(Default)]
struct Client {
    sent: Vec<Sent>,
    opened: u64,
    payloads: Vec<u64>,
}

impl Client {
    fn id_of(number: u64) -> PacketId {
        id((number % CIRCLE) as u16 + 1)
    }

    fn inflight(&self) -> usize {
        self.sent.iter().filter(|sent| sent.counts).count()
    }

    fn window_open(&self, window: u16) -> bool {
        let oldest = self.sent.first().map_or(self.opened, |sent| sent.number);
        self.inflight() < usize::from(window)
            && self.opened - oldest < CIRCLE
            && !self.sent.iter().any(|sent| sent.again)
    }

    fn open(&mut self, qos: QoS, payload: u64) -> PacketId {
        let awaits = if qos == QoS::ExactlyOnce { Await::Rec } else { Await::Ack };
        self.sent.push(Sent { number: self.opened, awaits, counts: true, again: false });
        self.payloads.push(payload);
        self.opened += 1;
        Self::id_of(self.opened - 1)
    }

    fn find(&self, id: PacketId, awaits: Await) -> Option<usize> {
        self.sent.iter().position(|sent| Self::id_of(sent.number) == id && sent.awaits == awaits)
    }

    /// Returns whether an unfinished delivery has the identifier, whatever it waits for.
    fn is_used(&self, id: PacketId) -> bool {
        self.sent.iter().any(|sent| Self::id_of(sent.number) == id)
    }

    fn finish(&mut self, id: PacketId, awaits: Await) -> Option<u64> {
        let at = self.find(id, awaits)?;
        self.sent.remove(at);
        Some(self.payloads.remove(at))
    }
}

fn deliver(steps: &[Delivering]) {
    let mut deliveries = Deliveries::<u64>::default();
    let mut client = Client::default();
    let mut payload = 0;
    // The identifiers of the tests' steps are counted from about where the deliveries are.
    let near = |client: &Client, offset: u16| {
        let first = client.sent.first().map_or(client.opened, |sent| sent.number);
        Client::id_of(first + u64::from(offset) - 1 + CIRCLE)
    };
    for step in steps {
        match step.clone() {
            Delivering::Open(qos, window) => {
                assert_eq!(deliveries.window_open(window), client.window_open(window));
                if client.window_open(window) {
                    payload += 1;
                    assert_eq!(deliveries.open(qos, Some(payload)), client.open(qos, payload));
                }
            }
            Delivering::PubAck(offset) => {
                let id = near(&client, offset.max(1));
                let expected = match client.finish(id, Await::Ack) {
                    Some(payload) => AckOutcome::Finished(Some(payload)),
                    None if client.is_used(id) => AckOutcome::WrongKind,
                    None => AckOutcome::Unknown,
                };
                assert_eq!(deliveries.pub_ack(id), expected);
            }
            Delivering::PubRec(offset, refused) => {
                let id = near(&client, offset.max(1));
                let expected = match (client.find(id, Await::Rec), refused) {
                    (Some(_), true) => PubRecOutcome::Refused(client.finish(id, Await::Rec)),
                    (Some(at), false) => {
                        client.sent[at].awaits = Await::Comp;
                        PubRecOutcome::Release(Some(client.payloads[at]))
                    }
                    (None, false) if client.find(id, Await::Comp).is_some() => PubRecOutcome::ReleaseAgain,
                    (None, _) if client.is_used(id) => PubRecOutcome::WrongKind,
                    (None, _) => PubRecOutcome::Unknown,
                };
                assert_eq!(deliveries.pub_rec(id, refused), expected);
            }
            Delivering::PubComp(offset) => {
                let id = near(&client, offset.max(1));
                let expected = match client.finish(id, Await::Comp) {
                    // PUBREC returned the value already.
                    Some(_) => AckOutcome::Finished(None),
                    None if client.is_used(id) => AckOutcome::WrongKind,
                    None => AckOutcome::Unknown,
                };
                assert_eq!(deliveries.pub_comp(id), expected);
            }
            Delivering::Reconnect => {
                deliveries.reconnect();
                for sent in &mut client.sent {
                    (sent.counts, sent.again) = (false, true);
                }
            }
            Delivering::Resend(window) => {
                let full = client.inflight() >= usize::from(window);
                let next = client.sent.iter_mut().zip(&client.payloads).find(|(sent, _)| sent.again);
                let expected =
                    next.filter(|(sent, _)| sent.awaits == Await::Comp || !full).map(|(sent, payload)| {
                        sent.again = false;
                        sent.counts = sent.awaits != Await::Comp;
                        let packet_id = Client::id_of(sent.number);
                        match sent.awaits {
                            Await::Ack => Resend::Publish { packet_id, qos: QoS::AtLeastOnce, payload },
                            Await::Rec => Resend::Publish { packet_id, qos: QoS::ExactlyOnce, payload },
                            Await::Comp => Resend::PubRel { packet_id },
                        }
                    });
                assert_eq!(deliveries.resend_next(window), expected);
            }
            Delivering::Pass(count) => {
                for _ in 0..count {
                    assert_eq!(deliveries.window_open(u16::MAX), client.window_open(u16::MAX));
                    if !client.window_open(u16::MAX) {
                        break;
                    }
                    let id = client.open(QoS::AtLeastOnce, 0);
                    assert_eq!(deliveries.open(QoS::AtLeastOnce, Some(0)), id);
                    assert_eq!(deliveries.pub_ack(id), AckOutcome::Finished(client.finish(id, Await::Ack)));
                }
            }
        }
        deliveries.check_invariants();
        assert_eq!(deliveries.inflight(), client.inflight());
        assert_eq!(deliveries.is_empty(), client.sent.is_empty());
    }
    let unsettled = |(sent, payload): (&Sent, &u64)| (sent.awaits == Await::Ack).then_some(*payload);
    let unfinished = client.sent.iter().zip(&client.payloads).filter_map(unsettled);
    assert!(deliveries.into_unfinished().eq(unfinished), "QoS 2 in flight goes to no other client");
}

/// A step of a client with its publishes, or of the broker with their completions.
#[derive(Clone, Debug)]
enum Publishing {
    Publish(QoS, u16, u32, bool),
    /// One completion of one of the waiting publishes.
    Complete(usize, bool),
    Poll,
    Release(u16),
    Reconnect,
}

fn publishing() -> impl Strategy<Value = Publishing> {
    use Publishing::*;
    let id = || 1..6_u16;
    prop_oneof![
        6 => (a_qos(), id(), 0..4_u32, prop::bool::weighted(0.2)).prop_map(|(q, i, n, e)| Publish(q, i, n, e)),
        9 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(at, fails)| Complete(at, fails)),
        6 => Just(Poll),
        4 => id().prop_map(Release),
        1 => Just(Reconnect),
    ]
}

#[derive(Default)]
struct Publisher {
    /// Sequence number, identifier, QoS, outstanding completions, reason.
    waiting: Vec<(u32, u16, QoS, u32, ReasonCode)>,
    /// QoS 2 identifiers that are known, and whether they were seen on this connection.
    received: Vec<(u16, bool)>,
    /// Sequence numbers of publishes whose PUBREL arrived before their PUBREC was sent.
    released_early: Vec<u32>,
    next: u32,
}

impl Publisher {
    fn awaits_pub_rec(&self, id: u16) -> bool {
        self.waiting.iter().any(|(_, other, qos, ..)| *other == id && *qos == QoS::ExactlyOnce)
    }

    fn forget(&mut self, id: u16) -> bool {
        let before = self.received.len();
        self.received.retain(|(known, _)| *known != id);
        self.received.len() < before
    }

    fn inflight(&self) -> usize {
        let unacknowledged = self.waiting.iter().filter(|(_, _, qos, ..)| *qos == QoS::AtLeastOnce).count();
        unacknowledged + self.received.iter().filter(|(_, here)| *here).count()
    }
}

fn publish(steps: &[Publishing]) {
    let mut inbound = Inbound::default();
    let mut client = Publisher::default();
    for step in steps {
        match *step {
            Publishing::Publish(qos, packet_id, outstanding, refused) => {
                if qos == QoS::ExactlyOnce {
                    let early = client.awaits_pub_rec(packet_id);
                    let known = client.received.iter_mut().find(|(known, _)| *known == packet_id);
                    let expected = match &known {
                        None => Received::New,
                        Some(_) if early => Received::RepeatedEarly,
                        Some(_) => Received::Repeated,
                    };
                    match known {
                        None => client.received.push((packet_id, true)),
                        Some((_, here)) => *here = true,
                    }
                    assert_eq!(inbound.receive(id(packet_id)), expected);
                    assert!(inbound.has_received(id(packet_id)));
                    if expected != Received::New {
                        continue;
                    }
                }
                let reason = if refused { ReasonCode::NotAuthorized } else { ReasonCode::Success };
                assert_eq!(inbound.next_sequence(), client.next);
                inbound.wait(id(packet_id), qos, outstanding, reason);
                client.waiting.push((client.next, packet_id, qos, outstanding, reason));
                client.next += 1;
            }
            Publishing::Complete(at, fails) => {
                let reason = if fails { ReasonCode::QuotaExceeded } else { ReasonCode::Success };
                let open = client.waiting.iter_mut().filter(|(_, _, _, outstanding, _)| *outstanding > 0);
                let mut open: Vec<_> = open.collect();
                if open.is_empty() {
                    // A late completion of a publish that has ended.
                    inbound.complete(client.next.wrapping_sub(20), reason);
                    continue;
                }
                let at = at % open.len();
                let (sequence, _, _, outstanding, known) = &mut *open[at];
                *outstanding -= 1;
                if fails && !known.is_error() {
                    *known = reason;
                }
                inbound.complete(*sequence, reason);
            }
            Publishing::Poll => {
                let ready = client.waiting.first().filter(|(_, _, _, outstanding, _)| *outstanding == 0);
                let expected = ready.copied().map(|(sequence, packet_id, qos, _, reason)| {
                    client.waiting.remove(0);
                    if qos == QoS::ExactlyOnce && reason.is_error() {
                        client.forget(packet_id);
                    }
                    Completion {
                        packet_id: id(packet_id),
                        qos,
                        reason,
                        keep: Keep::Never,
                        shards: 0,
                        may_be_partial: false,
                        losses: 0,
                        is_released: client.released_early.contains(&sequence),
                    }
                });
                assert_eq!(inbound.poll(), expected);
            }
            Publishing::Release(packet_id) => {
                let same = |waiting: &&(u32, u16, QoS, u32, ReasonCode)| {
                    waiting.1 == packet_id && waiting.2 == QoS::ExactlyOnce
                };
                let exchange = client.waiting.iter().find(same).map(|(sequence, ..)| *sequence);
                let expected = match exchange {
                    Some(sequence) => {
                        client.released_early.push(sequence);
                        Released::Early
                    }
                    None if client.forget(packet_id) => Released::Released,
                    None => Released::Unknown,
                };
                assert_eq!(inbound.release(id(packet_id)), expected);
            }
            Publishing::Reconnect => {
                inbound = Inbound::default();
                inbound.restore(client.received.iter().map(|(id, _)| *id));
                client.waiting.clear();
                client.released_early.clear();
                client.next = 0;
                for (_, here) in &mut client.received {
                    *here = false;
                }
            }
        }
        assert_eq!(inbound.inflight(), client.inflight());
        assert_eq!(inbound.is_idle(), client.waiting.is_empty());
        assert_eq!(inbound.is_empty(), client.waiting.is_empty() && client.received.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// [MQTT-2.2.1-3] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.9.0-2]
    #[test]
    fn deliveries_match_a_model_with_lists(steps in prop::collection::vec(delivering(), 1..120)) {
        deliver(&steps);
    }

    /// [MQTT-4.3.3-10] [MQTT-4.6.0-2] [MQTT-4.6.0-3]
    #[test]
    fn publishes_are_acknowledged_as_in_a_model_with_lists(steps in prop::collection::vec(publishing(), 1..120)) {
        publish(&steps);
    }
}
