//! Two links, the connections between them, and the guarantees that each end has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use link::{
    BufferMax, ChannelId, Class, Config, Credit, Established, Event, Frame, Handshake, Identity, Lane, Link,
    LinkId, Output, Progress, Refused, SHARD_LANES_MAX, Secret, Time, VERSION,
};

use random::Random;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// One node's end, with the frames that it sent and received since its peer last forgot the link.
struct End {
    link: Link,
    sent: BTreeMap<Lane, Vec<u64>>,
    /// Number of frames that are not for the peer's next incarnation, while a restart is expected.
    expected: Option<BTreeMap<Lane, usize>>,
    received: BTreeMap<Lane, Vec<u64>>,
    acknowledged: BTreeMap<Lane, u64>,
    /// Credits, each with the epoch of the link and the bytes that it is for.
    credits: VecDeque<(u32, u64, Credit)>,
    /// Number of times that the peer has forgotten the link.
    epoch: u32,
    /// Bytes that arrived in this epoch and were not consumed.
    unconsumed: u64,
    /// Bytes written before the peer was expected to restart, by connection.
    written_before: Vec<u64>,
    arrivals: Vec<Lane>,
    wakeups: u64,
}

struct Connection {
    ends: [ChannelId; 2],
    /// Bytes on the way to A, and to B.
    wires: [VecDeque<u8>; 2],
    /// Bytes that each end has written, and the part of them written before time last passed.
    written: [u64; 2],
    written_before: [u64; 2],
}

impl Connection {
    /// Returns how many bytes written by an end have arrived.
    fn arrived(&self, from: usize) -> u64 {
        self.written[from] - self.wires[1 - from].len() as u64
    }
}

pub struct Pair {
    ends: [End; 2],
    /// Version of the protocol that the two agree on.
    pub version: u16,
    connections: Vec<Option<Connection>>,
    config: Config,
    pub now: Time,
    /// Number of the next frame.
    frames: u64,
    /// Lanes in the records that were written without a limit.
    lanes_written: BTreeSet<u8>,
    retransmitted_before: u64,
    gone_on: u64,
    stale_credits: u64,
}

impl End {
    fn new(link: Link) -> Self {
        Self {
            link,
            sent: BTreeMap::new(),
            expected: None,
            received: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            credits: VecDeque::new(),
            epoch: 0,
            unconsumed: 0,
            written_before: Vec::new(),
            arrivals: Vec::new(),
            wakeups: 0,
        }
    }

    fn forget(&mut self) {
        let expected = self.expected.take();
        self.sent.retain(|lane, sent| {
            let Some(expected) = expected.as_ref().filter(|_| lane.class() == Class::Assured) else {
                return false;
            };
            let before = expected.get(lane).copied().unwrap_or(0);
            let arrived = self.acknowledged.get(lane).map_or(0, |next| *next as usize);
            sent.drain(..before.max(arrived));
            !sent.is_empty()
        });
        self.received.clear();
        self.acknowledged.clear();
        self.epoch += 1;
        self.unconsumed = 0;
    }
}

/// Maximum size of a frame in a random run, in bytes.
const FRAME_MOST: u64 = 6_200;

/// Returns a configuration that is small enough for short runs to reach every bound.
pub fn config() -> Config {
    Config {
        window: 2_000,
        buffer_max: BufferMax {
            control: 10_000,
            claims: 10_000,
            agreement: 10_000,
            requests: 10_000,
            routes: 10_000,
            assured: 20_000,
            best_effort: 5_000,
        },
        ..Config::default()
    }
}

/// Returns a lane for a random run.
fn some_lane(random: &mut Random) -> Lane {
    match random.below(8) {
        0 => Lane::CONTROL,
        1 => Lane::CLAIMS,
        2 => Lane::ROUTES,
        3 => Lane::best_effort(random.below(3) as u8),
        4 => Lane::agreement(random.below(3) as u16),
        5 => Lane::requests(random.below(3) as u16),
        _ => Lane::assured(random.below(3) as u8),
    }
}

/// Counts of the events in a random run.
#[derive(Default)]
pub struct Happened {
    pub cuts: u64,
    pub restarts: u64,
    pub retransmitted: u64,
    pub refused: u64,
    /// Frames for shards that arrived, and those that were refused because the peer has no lanes for them.
    pub for_shards: u64,
    pub unsupported: u64,
    /// Peers that were expected to restart and continued as before.
    pub gone_on: u64,
    /// Frames of an incarnation of the peer that were consumed when it had restarted.
    pub stale_credits: u64,
}

impl Happened {
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.restarts += other.restarts;
        self.retransmitted += other.retransmitted;
        self.refused += other.refused;
        self.for_shards += other.for_shards;
        self.unsupported += other.unsupported;
        self.gone_on += other.gone_on;
        self.stale_credits += other.stale_credits;
    }
}

/// Runs random events that follow from a seed, then heals.
///
/// # Panics
/// A link violates its guarantees.
pub fn run(seed: u64, config: &Config) -> Happened {
    let mut random = Random::new(seed);
    let mut happened = Happened::default();
    let mut pair = Pair::new(config.clone(), 1 + random.below(4) as u8, &mut random);
    if seed % 4 == 3 {
        pair.version = 1;
    }
    for _ in 0..400 {
        let side = if random.below(2) == 0 { Side::A } else { Side::B };
        match random.below(100) {
            0..40 => {
                let lane = some_lane(&mut random);
                let longest = if random.below(10) == 0 { 6_000 } else { 200 };
                let length = 8 + random.below(longest);
                match pair.send(side, lane, length) {
                    Ok(()) => {}
                    Err(Refused::Unsupported) => happened.unsupported += 1,
                    Err(_) => happened.refused += 1,
                }
            }
            40..70 => pair.carry(&mut random),
            70..85 => pair.consume(side, random.below(8)),
            85..93 => pair.dial(&mut random),
            93..97 => {
                happened.cuts += 1;
                pair.cut(&mut random);
            }
            97 => {
                happened.restarts += 1;
                pair.restart(side, &mut random);
            }
            98 => pair.expect_restart(side),
            _ => pair.pass(random.below(3_000) as u64),
        }
        pair.check();
    }
    pair.heal(&mut random);
    happened.retransmitted = pair.retransmitted();
    happened.for_shards = pair.for_shards();
    assert!(pair.version > 1 || happened.for_shards == 0, "an earlier version has no lanes for shards");
    (happened.gone_on, happened.stale_credits) = (pair.gone_on, pair.stale_credits);
    happened
}

/// Notes the lanes of whole records.
fn note_lanes(mut records: &[u8], lanes: &mut BTreeSet<u8>) {
    while let [kind, lane, _, _, a, b, c, d, _, _, _, _, rest @ ..] = records {
        lanes.insert(*lane);
        let (body, after) = rest.split_at(u32::from_le_bytes([*a, *b, *c, *d]) as usize);
        if *kind == 5 {
            lanes.extend(body.chunks(25).map(|resume_point| resume_point[0]));
        }
        records = after;
    }
}

fn link_id(random: &mut Random) -> LinkId {
    LinkId(u128::from(random.draw()) << 64 | u128::from(random.draw()))
}

impl Pair {
    pub fn new(config: Config, channels: u8, random: &mut Random) -> Self {
        let mut end = || End::new(Link::new(link_id(random), config.clone()));
        Self {
            ends: [end(), end()],
            version: VERSION,
            connections: (0..channels).map(|_| None).collect(),
            config: config.clone(),
            now: Time(1_000_000),
            frames: 0,
            lanes_written: BTreeSet::new(),
            retransmitted_before: 0,
            gone_on: 0,
            stale_credits: 0,
        }
    }

    pub fn link(&self, side: Side) -> &Link {
        &self.ends[side as usize].link
    }

    pub fn send(&mut self, side: Side, lane: Lane, length: usize) -> Result<(), Refused> {
        self.frames += 1;
        let mut frame = self.frames.to_le_bytes().to_vec();
        frame.resize(length.max(8), 0);
        let end = &mut self.ends[side as usize];
        // The receiver gets the same bytes, whatever the length of the head is.
        let head = (self.frames % 8) as usize;
        let frame = Frame::new(&frame[..head], Bytes::copy_from_slice(&frame[head..]));
        let number = end.link.send(self.now, lane, frame)?;
        let sent = end.sent.entry(lane).or_default();
        if lane.class().is_resumed() {
            assert_eq!(number, sent.len() as u64, "numbers count frames");
        }
        sent.push(self.frames);
        Ok(())
    }

    /// Expects a restart: frames that a side sends in assured lanes from now on are for the other's next incarnation,
    /// until that is known to continue.
    pub fn expect_restart(&mut self, side: Side) {
        let end = &mut self.ends[side as usize];
        end.link.expect_restart(self.now);
        // A ping at this very moment may be taken for one that leaves after it.
        let written = |it: &Option<Connection>| it.as_ref().map_or(0, |it| it.written_before[side as usize]);
        end.written_before = self.connections.iter().map(written).collect();
        let sent = &end.sent;
        end.expected.get_or_insert_with(|| sent.iter().map(|(lane, sent)| (*lane, sent.len())).collect());
    }

    /// Returns credit for up to `count` frames.
    pub fn consume(&mut self, side: Side, count: usize) {
        let end = &mut self.ends[side as usize];
        for (epoch, bytes, credit) in end.credits.drain(..count.min(end.credits.len())) {
            let is_stale = epoch != end.epoch;
            self.stale_credits += u64::from(is_stale);
            end.unconsumed -= if is_stale { 0 } else { bytes };
            end.link.consume(credit);
        }
    }

    /// Makes one connection that is missing.
    pub fn dial(&mut self, random: &mut Random) {
        let index = random.below(self.connections.len());
        self.connect(index, random);
    }

    /// Returns the number of wake-ups of each side, and the bytes that both have sent.
    pub fn spent(&self) -> ([u64; 2], u64) {
        let bytes = self.ends.iter().map(|end| end.link.counters().bytes_sent).sum();
        (self.ends.each_ref().map(|end| end.wakeups), bytes)
    }

    pub fn connect_all(&mut self, random: &mut Random) {
        for index in 0..self.connections.len() {
            self.connect(index, random);
        }
        self.carry_all();
    }

    fn connect(&mut self, index: usize, random: &mut Random) {
        if self.connections[index].is_some() {
            return;
        }
        let channel_of_link = (index as u8, self.connections.len() as u8);
        let (to_b, to_a) = self.shake_hands(channel_of_link, random);
        // The acceptor goes first: it knew the dialer before the dialer knew that.
        let at_b = self.ends[1].link.attach(self.now, &to_a);
        let at_a = self.ends[0].link.attach(self.now, &to_b);
        self.ends.iter_mut().filter_map(|end| end.written_before.get_mut(index)).for_each(|it| *it = 0);
        let ends = [at_a, at_b];
        let (wires, written) = (Default::default(), [0; 2]);
        self.connections[index] = Some(Connection { ends, wires, written, written_before: written });
        self.settle();
    }

    fn shake_hands(&mut self, channel_of_link: (u8, u8), random: &mut Random) -> (Established, Established) {
        let identity = |name: &str| Identity {
            name: name.into(),
            cluster: [1; 16],
            features: 0,
            descriptor: Bytes::new(),
        };
        let secret = Secret::new(b"secret");
        let nonce = [random.draw() as u8; 32];
        let (mut a_says, mut b_says) = (Output::default(), Output::default());
        let ids = [self.ends[0].link.id(), self.ends[1].link.id()];
        let mut a =
            Handshake::dial(&identity("a"), secret.clone(), ids[0], channel_of_link, nonce, &mut a_says);
        let mut b = Handshake::accept(&identity("b"), secret, nonce);
        let bytes = |output: &mut Output| Bytes::from(output.take().concat());
        let mut hello = bytes(&mut a_says);
        assert_eq!(b.input(&mut hello, &mut b_says), Ok(Progress::Named("a".into())));
        assert_eq!(b.answer(ids[1], &mut hello, &mut b_says), Ok(Progress::NeedsMore));
        let Ok(Progress::Done(mut of_b)) = a.input(&mut bytes(&mut b_says), &mut a_says) else {
            panic!("the dialer knows the acceptor")
        };
        let Ok(Progress::Done(mut of_a)) = b.input(&mut bytes(&mut a_says), &mut b_says) else {
            panic!("the acceptor knows the dialer")
        };
        (of_a.version, of_b.version) = (self.version, self.version);
        (*of_b, *of_a)
    }

    /// Ends one connection, with the bytes in transit; each end notices it.
    pub fn cut(&mut self, random: &mut Random) {
        self.cut_at(random.below(self.connections.len()));
    }

    /// Restarts one node, which ends its connections.
    pub fn restart(&mut self, side: Side, random: &mut Random) {
        for index in 0..self.connections.len() {
            if let Some(connection) = self.connections[index].take() {
                self.ends[side.other() as usize].link.detach(connection.ends[side.other() as usize]);
            }
        }
        self.settle();
        self.check_next_incarnation(side);
        self.retransmitted_before += self.retransmitted_of(side);
        self.ends[side as usize] = End::new(Link::new(link_id(random), self.config.clone()));
    }

    /// Checks that a side that dies has received no frames for its next incarnation.
    fn check_next_incarnation(&self, side: Side) {
        let (end, other) = (&self.ends[side as usize], &self.ends[side.other() as usize]);
        let is_about = |one: &End, other: &End| one.link.peer() == Some(other.link.id());
        let Some(expected) = other.expected.as_ref().filter(|_| is_about(end, other) && is_about(other, end))
        else {
            return;
        };
        for (lane, received) in end.received.iter().filter(|(lane, _)| lane.class() == Class::Assured) {
            let before = expected.get(lane).copied().unwrap_or(0);
            assert!(received.len() <= before, "it arrives at two incarnations");
        }
    }

    /// Moves all bytes one way, and none back.
    pub fn carry_to(&mut self, side: Side) {
        for index in 0..self.connections.len() {
            self.write(index, usize::MAX);
            self.arrive(index, side as usize, usize::MAX);
        }
    }

    /// Moves some bytes over one connection.
    pub fn carry(&mut self, random: &mut Random) {
        let index = random.below(self.connections.len());
        self.write(index, 1 + random.below(3_000));
        let (to, count) = (random.below(2), 1 + random.below(1_500));
        self.arrive(index, to, count);
    }

    /// Moves all bytes over all connections, until none are left.
    pub fn carry_all(&mut self) {
        loop {
            let mut moved = false;
            for index in 0..self.connections.len() {
                self.write(index, usize::MAX);
                for to in [0, 1] {
                    moved |= self.arrive(index, to, usize::MAX);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Writes everything to the wire of one connection. Nothing arrives.
    pub fn write_to_wire(&mut self, index: usize) {
        self.write(index, usize::MAX);
    }

    fn write(&mut self, index: usize, budget: usize) {
        let Some(connection) = self.connections[index].as_mut() else { return };
        for from in [0, 1] {
            let mut out = Output::default();
            self.ends[from].link.output(self.now, connection.ends[from], budget, &mut out);
            let bytes = out.take().concat();
            if budget == usize::MAX {
                note_lanes(&bytes, &mut self.lanes_written);
            }
            connection.written[from] += bytes.len() as u64;
            connection.wires[1 - from].extend(bytes);
        }
    }

    fn arrive(&mut self, index: usize, to: usize, count: usize) -> bool {
        let Some(connection) = self.connections[index].as_mut() else { return false };
        let wire = &mut connection.wires[to];
        let bytes: Vec<u8> = wire.drain(..count.min(wire.len())).collect();
        if bytes.is_empty() {
            return false;
        }
        let channel = connection.ends[to];
        self.ends[to].link.input(self.now, channel, bytes.into()).expect("the peer is one of ours");
        self.settle();
        true
    }

    pub fn acknowledge(&mut self, side: Side) {
        self.ends[side as usize].link.acknowledge();
    }

    /// Lets the time pass for which an acknowledgement waits.
    pub fn pass_until_acknowledged(&mut self) {
        self.pass(40);
        self.carry_all();
    }

    pub fn pass(&mut self, milliseconds: u64) {
        self.now = Time(self.now.0 + milliseconds * 1_000);
        if milliseconds > 0 {
            self.connections.iter_mut().flatten().for_each(|it| it.written_before = it.written);
        }
        for end in &mut self.ends {
            if end.link.timeout() <= self.now {
                end.link.handle_timeout(self.now);
                end.wakeups += 1;
            }
        }
        self.settle();
    }

    /// Lets time pass while nothing arrives.
    pub fn pass_in_silence(&mut self, milliseconds: u64) {
        for _ in 0..10 {
            self.pass(milliseconds / 10);
        }
    }

    /// Polls the events of both links and checks that they are allowed.
    fn settle(&mut self) {
        for side in [Side::A, Side::B] {
            while let Some(event) = self.ends[side as usize].link.poll_event() {
                self.happened(side, event);
            }
        }
    }

    fn happened(&mut self, side: Side, event: Event) {
        let end = &mut self.ends[side as usize];
        match event {
            Event::Received { lane, number, frame, credit } => {
                let id = u64::from_le_bytes(*frame.first_chunk().expect("frames begin with their number"));
                let received = end.received.entry(lane).or_default();
                if lane.class().is_resumed() {
                    assert_eq!(number, received.len() as u64, "every number once");
                }
                received.push(id);
                end.arrivals.push(lane);
                end.credits.push_back((end.epoch, frame.len() as u64, credit));
                end.unconsumed += frame.len() as u64;
            }
            Event::Acknowledged { lane, next } => {
                let before = end.acknowledged.insert(lane, next);
                assert!(before.is_none_or(|before| before < next), "acknowledgements go on");
                let arrived =
                    self.ends[side.other() as usize].received.get(&lane).map_or(0, |all| all.len() as u64);
                assert!(next <= arrived, "acknowledged frames have arrived");
            }
            Event::Restarted => {
                end.forget();
            }
            Event::Silent { channel } => {
                for connection in &mut self.connections {
                    if connection.as_ref().is_some_and(|it| it.ends[side as usize] == channel) {
                        let other = connection.take().expect("it is there").ends[side.other() as usize];
                        self.ends[side.other() as usize].link.detach(other);
                    }
                }
            }
            Event::Continued => {
                end.expected = None;
                self.gone_on += 1;
                let connections = self.connections.iter().zip(&end.written_before);
                let mut arrived = connections.filter_map(|(it, before)| Some((it.as_ref()?, *before)));
                assert!(
                    arrived.any(|(it, before)| it.arrived(side as usize) > before),
                    "a peer that continues has answered a ping"
                );
            }
            Event::Up | Event::Suspect => {}
        }
    }

    pub fn check(&self) {
        for side in [Side::A, Side::B] {
            let (end, peer) = (&self.ends[side as usize], &self.ends[side.other() as usize]);
            end.link.check_invariants();
            assert_eq!(end.link.unconsumed(), end.unconsumed, "credit counts in its own incarnation");
            for class in Class::ALL {
                let (held, ..) = end.link.waiting(self.now, class);
                let bound = self.config.buffer_max.of(class);
                let most = if class == Class::Requests { bound + FRAME_MOST } else { bound.max(FRAME_MOST) };
                assert!(held <= most, "{held} bytes of {class:?} wait, {most} may");
            }
            let lanes = 35 + 2 * u64::from(SHARD_LANES_MAX);
            assert!(end.link.unconsumed() <= lanes * (self.config.window + FRAME_MOST), "memory has a bound");
            for (lane, received) in &end.received {
                let nothing = Vec::new();
                let sent = peer.sent.get(lane).unwrap_or(&nothing);
                if lane.class().is_resumed() {
                    // A peer that has not yet noticed a restart still has frames of the previous incarnation.
                    if self.is_joined() {
                        assert!(sent.starts_with(received), "in order, nothing twice, nothing missing");
                    }
                } else {
                    let mut before = 0;
                    for id in received {
                        assert!(*id > before, "in order, nothing twice");
                        before = *id;
                    }
                }
            }
        }
    }

    /// Returns whether both ends belong to the same two incarnations.
    fn is_joined(&self) -> bool {
        self.link(Side::A).is_up() && self.link(Side::B).is_up()
    }

    /// Heals the connections: every frame that must arrive does, and is acknowledged.
    pub fn heal(&mut self, random: &mut Random) {
        for _ in 0..200 {
            self.connect_all(random);
            self.carry_all();
            for side in [Side::A, Side::B] {
                self.consume(side, usize::MAX);
            }
        }
        self.pass_until_acknowledged();
        self.check();
        for side in [Side::A, Side::B] {
            let (end, peer) = (&self.ends[side as usize], &self.ends[side.other() as usize]);
            for (lane, sent) in &end.sent {
                if lane.class().is_resumed() {
                    assert_eq!(peer.received.get(lane), Some(sent), "nothing is missing");
                    assert_eq!(end.acknowledged.get(lane), Some(&(sent.len() as u64)));
                }
            }
            for class in Class::ALL.into_iter().filter(|class| *class != Class::Control) {
                assert_eq!(end.link.waiting(self.now, class), (0, 0, 0), "nothing waits: {class:?}");
            }
            assert_eq!(end.link.unconsumed(), 0);
        }
    }

    pub fn retransmitted(&self) -> u64 {
        self.retransmitted_before + self.retransmitted_of(Side::A) + self.retransmitted_of(Side::B)
    }

    fn retransmitted_of(&self, side: Side) -> u64 {
        let counters = self.link(side).counters();
        [Class::Claims, Class::Requests, Class::Routes, Class::Assured]
            .iter()
            .map(|class| counters.of(*class).retransmitted)
            .sum()
    }

    /// Returns how many frames for shards have arrived since each end was created.
    fn for_shards(&self) -> u64 {
        let of = |side, class| self.link(side).counters().of(class).received;
        let sides = [Side::A, Side::B].into_iter();
        sides.map(|side| of(side, Class::Agreement) + of(side, Class::Requests)).sum()
    }

    /// Returns the lanes that the records on the wires were about.
    pub fn lanes_written(&self) -> Vec<u8> {
        self.lanes_written.iter().copied().collect()
    }

    /// Ends one connection, with the bytes in transit.
    pub fn cut_at(&mut self, index: usize) {
        if let Some(connection) = self.connections[index].take() {
            for (end, channel) in self.ends.iter_mut().zip(connection.ends) {
                end.link.detach(channel);
            }
            self.settle();
        }
    }

    /// Returns how many frames of a lane have arrived.
    pub fn delivered(&self, side: Side, lane: Lane) -> usize {
        self.ends[side as usize].received.get(&lane).map_or(0, Vec::len)
    }

    /// Returns the lanes of all frames that have arrived, in order.
    pub fn arrivals(&self, side: Side) -> &[Lane] {
        &self.ends[side as usize].arrivals
    }
}
