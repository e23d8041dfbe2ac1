//! Nodes that write, restart, die, and feed each other over queues that are lost and made again, compared with plain
//! maps.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use random::Random;
use replog::{
    Batching, Change, Delta, Feed, Incarnation, NotApplied, Position, Replica, SourceId, Value, WriterId,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flags(u8);

impl Value for Flags {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(Self(*first))
    }
}

type Map = BTreeMap<Vec<u8>, Flags>;

/// A node that writes one map and reads all of them.
struct Node {
    replica: Replica<Flags>,
    /// Changes that its replica reported, by writer.
    mirror: BTreeMap<WriterId, Map>,
    /// Keys that it wrote in this incarnation.
    written: Map,
    incarnation: Incarnation,
}

/// Queue from one node to another.
struct Wire {
    from: usize,
    to: usize,
    feed: Feed,
    queue: VecDeque<Vec<u8>>,
    /// True while nothing arrives from it.
    is_silent: bool,
}

struct World {
    nodes: Vec<Node>,
    wires: Vec<Wire>,
    now: u64,
    tombstones_max: usize,
    counts: BTreeMap<&'static str, u64>,
}

fn batching() -> Batching {
    Batching { interval: Duration::from_micros(3), bytes_max: 40, in_flight_max: 200 }
}

fn writer(node: usize) -> WriterId {
    WriterId(node as u64 + 1)
}

fn note(mirror: &mut BTreeMap<WriterId, Map>, change: &Change<'_, Flags>) {
    let map = mirror.entry(change.writer).or_default();
    match change.value {
        Some(value) => drop(map.insert(change.key.to_vec(), *value)),
        None => drop(map.remove(change.key)),
    }
}

impl World {
    fn new(nodes: usize, tombstones_max: usize) -> Self {
        let mut world =
            Self { nodes: Vec::new(), wires: Vec::new(), now: 0, tombstones_max, counts: BTreeMap::new() };
        for node in 0..nodes {
            let started = world.start(node, Incarnation(1));
            world.nodes.push(started);
        }
        // The nodes form a ring, both ways: each change reaches every node by two ways and returns to its writer.
        for node in 0..nodes {
            let next = (node + 1) % nodes;
            for (from, to) in [(node, next), (next, node)] {
                let feed = Feed::new(batching(), []);
                world.wires.push(Wire { from, to, feed, queue: VecDeque::new(), is_silent: false });
            }
        }
        world
    }

    fn start(&self, node: usize, incarnation: Incarnation) -> Node {
        let mut replica = Replica::new(1, self.tombstones_max);
        replica.own(writer(node), incarnation);
        Node { replica, mirror: BTreeMap::new(), written: BTreeMap::new(), incarnation }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn write(&mut self, node: usize, random: &mut Random) {
        let key = format!("k/{}", random.below(30)).into_bytes();
        let value = (random.below(3) > 0).then(|| Flags(random.below(3) as u8));
        let node_state = &mut self.nodes[node];
        let position = node_state.replica.set(writer(node), &key, value);
        let changes = node_state.written.get(&key) != value.as_ref();
        assert_eq!(position.is_some(), changes, "only changes have positions");
        match value {
            Some(value) => drop(node_state.written.insert(key, value)),
            None => drop(node_state.written.remove(&key)),
        }
    }

    fn feed(&mut self, at: usize) {
        let Wire { from, feed, queue, is_silent, .. } = &mut self.wires[at];
        if let Some(delta) = feed.poll(self.now, &self.nodes[*from].replica, |_| true) {
            if *is_silent {
                return feed.unsent(&self.nodes[*from].replica, &delta);
            }
            let mut bytes = Vec::new();
            delta.encode(&mut bytes);
            queue.push_back(bytes);
        }
    }

    fn deliver(&mut self, at: usize, twice: bool) {
        let is_open = |wire: &mut Wire| (!wire.is_silent).then(|| wire.queue.pop_front()).flatten();
        let Some(bytes) = is_open(&mut self.wires[at]) else { return };
        for _ in 0..=usize::from(twice) {
            let delta: Delta<Flags> = Delta::decode(&bytes).expect("our own bytes");
            let (id, incarnation) = (delta.writer, delta.incarnation);
            let cost = Feed::cost(&delta);
            let node = &mut self.nodes[self.wires[at].to];
            let mirror = &mut node.mirror;
            let what = match node.replica.apply(SourceId(at as u64), delta, |change| note(mirror, &change)) {
                Ok(_) => "applied",
                Err(NotApplied::Own) => "own",
                Err(NotApplied::Dead) => "dead",
                Err(NotApplied::Old { .. }) => "old",
                Err(NotApplied::Gap { position }) => {
                    self.wires[at].feed.rewind(id, incarnation, position);
                    "gap"
                }
                Err(NotApplied::Copying) => "copying",
            };
            self.wires[at].feed.acknowledged(cost);
            self.count(what);
        }
        let reader = self.wires[at].to;
        for wire in (0..self.wires.len()).filter(|wire| self.wires[*wire].is_silent) {
            self.nodes[reader].replica.source_down(SourceId(wire as u64));
        }
        self.listen_again(reader);
    }

    /// Restarts the feeds of sources that were refused during another source's copy.
    fn listen_again(&mut self, reader: usize) {
        while let Some(source) = self.nodes[reader].replica.poll_refused_source() {
            self.count("read again");
            self.reconnect(source.0 as usize);
        }
    }

    /// Silences a wire with its contents, or resumes it.
    fn silence(&mut self, at: usize) {
        let Wire { to, is_silent, .. } = &mut self.wires[at];
        *is_silent = !*is_silent;
        if *is_silent {
            let reader = *to;
            self.nodes[reader].replica.source_down(SourceId(at as u64));
            self.listen_again(reader);
            self.count("silent");
        }
    }

    /// Loses a link and makes it again.
    fn reconnect(&mut self, at: usize) {
        let replica = &mut self.nodes[self.wires[at].to].replica;
        replica.lost(SourceId(at as u64));
        let vector: Vec<_> = replica.vector().collect();
        let Wire { feed, queue, .. } = &mut self.wires[at];
        queue.clear();
        *feed = Feed::new(batching(), vector);
        self.count("reconnected");
    }

    /// Restarts a node, and reports the end of its previous incarnation to some nodes.
    fn restart(&mut self, node: usize, random: &mut Random) {
        let before = self.nodes[node].incarnation;
        self.nodes[node] = self.start(node, Incarnation(before.0 + 1));
        for at in 0..self.wires.len() {
            if self.wires[at].from == node || self.wires[at].to == node {
                self.reconnect(at);
            }
        }
        for other in 0..self.nodes.len() {
            if other != node && random.below(2) == 0 {
                self.nodes[other].replica.declare_dead(writer(node), before);
            }
        }
        self.count("restarted");
    }

    fn forget(&mut self, node: usize, count: usize) {
        let Node { replica, mirror, .. } = &mut self.nodes[node];
        replica.forget_some(count, |_, _| true, |change| note(mirror, &change));
    }

    fn check(&self) {
        for node in &self.nodes {
            node.replica.check_invariants();
        }
    }

    /// Heals the remaining wires and checks that every node ends with the maps of all writers. The wires are all of
    /// them, or one of the two ways round the ring while the other stays silent for ever. Feeds restart only by
    /// themselves.
    fn heal(&mut self, is_one_way: bool) {
        for at in 0..self.wires.len() {
            if self.wires[at].is_silent != (is_one_way && at % 2 == 1) {
                self.silence(at);
            }
        }
        for _ in 0..400 {
            self.now += 10;
            for at in 0..self.wires.len() {
                self.feed(at);
                while !self.wires[at].is_silent && !self.wires[at].queue.is_empty() {
                    self.deliver(at, false);
                }
            }
        }
        for reader in 0..self.nodes.len() {
            for _ in 0..50 {
                self.forget(reader, 100);
            }
            self.check();
            assert!(is_one_way || !self.nodes[reader].replica.is_copying());
            for node in 0..self.nodes.len() {
                let entries = self.nodes[reader].replica.entries(writer(node));
                let held: Map = entries.map(|(key, value)| (key.to_vec(), *value)).collect();
                assert_eq!(held, self.nodes[node].written, "reader {reader}, writer {node}");
                if reader != node {
                    let mirrored = self.nodes[reader].mirror.get(&writer(node)).cloned().unwrap_or_default();
                    assert_eq!(mirrored, held, "reported changes agree");
                }
            }
        }
    }
}

#[test]
fn every_replica_ends_with_the_maps_of_the_writers() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("MERIDIAN_REPLOG_SEED").unwrap_or(0);
    let mut counts = BTreeMap::new();
    for seed in first..first + number("MERIDIAN_REPLOG_SEEDS").unwrap_or(150) {
        let mut random = Random::new(seed);
        let mut world = World::new(2 + random.below(3), random.below(8));
        for _ in 0..600 {
            let node = random.below(world.nodes.len());
            let wire = random.below(world.wires.len());
            match random.below(100) {
                0..40 => world.write(node, &mut random),
                40..65 => world.feed(wire),
                65..90 => world.deliver(wire, random.below(8) == 0),
                90..94 => world.reconnect(wire),
                94 => world.restart(node, &mut random),
                95..97 => world.forget(node, 1 + random.below(5)),
                97 => world.silence(wire),
                _ => world.now += random.below(6) as u64,
            }
            if random.below(10) == 0 {
                world.check();
            }
        }
        let is_one_way = random.below(2) == 0;
        let heal = std::panic::AssertUnwindSafe(|| world.heal(is_one_way));
        if let Err(panic) = std::panic::catch_unwind(heal) {
            eprintln!("again: MERIDIAN_REPLOG_SEED={seed} MERIDIAN_REPLOG_SEEDS=1 cargo test -p replog");
            std::panic::resume_unwind(panic);
        }
        for (what, count) in world.counts {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    let all = [
        "applied",
        "own",
        "dead",
        "old",
        "gap",
        "copying",
        "reconnected",
        "restarted",
        "silent",
        "read again",
    ];
    for what in all {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "{what} never happened: {counts:?}");
    }
}

fn one_to_one() -> (Replica<Flags>, Replica<Flags>) {
    let mut writer = Replica::new(1, 4);
    writer.own(WriterId(1), Incarnation(1));
    (writer, Replica::new(1, 4))
}

fn set(replica: &mut Replica<Flags>, key: &str, value: Option<u8>) {
    replica.set(WriterId(1), key.as_bytes(), value.map(Flags));
}

/// Sends all deltas, and returns their number and whether any belonged to a whole copy.
fn feed_all(now: u64, feed: &mut Feed, from: &Replica<Flags>, to: &mut Replica<Flags>) -> usize {
    let mut deltas = 0;
    for step in 0..10_000 {
        let Some(delta) = feed.poll(now + step * 1_000_000, from, |_| true) else { break };
        feed.acknowledged(Feed::cost(&delta));
        to.apply(SourceId(1), delta, |_| {}).expect("in order");
        deltas += 1;
    }
    deltas
}

#[test]
fn a_lone_change_leaves_at_once_and_many_leave_together() {
    let (mut writer, mut reader) = one_to_one();
    let mut feed = Feed::new(Batching { interval: Duration::from_millis(1), ..Batching::default() }, []);
    assert_eq!(feed_all(0, &mut feed, &writer, &mut reader), 1, "the existence of a writer");
    set(&mut writer, "a", Some(1));
    let now = 1_000_000_000;
    assert!(feed.poll(now, &writer, |_| true).is_some());
    for key in 0..100 {
        set(&mut writer, &format!("k{key}"), Some(1));
    }
    assert!(feed.poll(now + 10, &writer, |_| true).is_none(), "it gathers");
    let together = feed.poll(feed.due(), &writer, |_| true).expect("it is time");
    assert_eq!(together.operations.len(), 100);
}

#[test]
fn unsent_changes_of_one_key_are_sent_as_one() {
    let (mut writer, mut reader) = one_to_one();
    for round in 0..50 {
        set(&mut writer, "a", (round % 2 == 0).then_some(round));
    }
    let mut feed = Feed::new(Batching::default(), []);
    let delta = feed.poll(0, &writer, |_| true).expect("news");
    assert_eq!((delta.operations.len(), delta.upto), (1, Position(50)));
    reader
        .apply(SourceId(1), delta, |_| panic!("a deletion of a key that never existed"))
        .expect("contiguous");
}

#[test]
fn a_reader_that_missed_too_many_deletions_gets_a_copy_and_loses_nothing_meanwhile() {
    let (mut writer, mut reader) = one_to_one();
    for key in 0..200 {
        set(&mut writer, &format!("k{key}"), Some(1));
    }
    let mut feed = Feed::new(batching(), []);
    feed_all(0, &mut feed, &writer, &mut reader);
    let vector: Vec<_> = reader.vector().collect();
    for key in 0..100 {
        set(&mut writer, &format!("k{key}"), None);
    }
    let mut feed = Feed::new(batching(), vector);
    let mut lowest = usize::MAX;
    for step in 0..1_000 {
        let Some(delta) = feed.poll(step * 1_000_000, &writer, |_| true) else { break };
        feed.acknowledged(Feed::cost(&delta));
        reader.apply(SourceId(1), delta, |_| {}).expect("in order");
        lowest = lowest.min(reader.size(WriterId(1)).0);
    }
    assert_eq!(lowest, 100, "keys that are still set were there all the time");
    assert_eq!(reader.size(WriterId(1)).0, 100);
    assert!(!reader.is_copying());
}

#[test]
fn a_feed_without_answers_stops_at_its_bound() {
    let (mut writer, _) = one_to_one();
    for key in 0..1_000 {
        set(&mut writer, &format!("k{key}"), Some(1));
    }
    let mut feed = Feed::new(batching(), []);
    let mut deltas = 0;
    while feed.poll(deltas * 1_000_000, &writer, |_| true).is_some() {
        deltas += 1;
    }
    assert!((4..10).contains(&deltas), "{deltas}");
    feed.acknowledged(1_000);
    assert!(feed.poll(u64::MAX / 2, &writer, |_| true).is_some());
}

/// Returns the first deltas of two feeds of a map whose deletions are forgotten: two parts of a whole copy each.
fn two_copies() -> (Replica<Flags>, [Vec<Delta<Flags>>; 2]) {
    let mut writer = Replica::new(1, 0);
    writer.own(WriterId(1), Incarnation(1));
    set(&mut writer, "gone", Some(1));
    set(&mut writer, "gone", None);
    for key in 0..3 {
        set(&mut writer, &format!("key/{key}"), Some(1));
    }
    let copy = |_| {
        let mut feed = Feed::new(Batching { bytes_max: 20, ..Batching::default() }, []);
        let copy: Vec<_> = std::iter::from_fn(|| feed.poll(0, &writer, |_| true)).collect();
        assert_eq!(copy.len(), 2);
        copy
    };
    let copies = [0, 1].map(copy);
    (writer, copies)
}

const A: SourceId = SourceId(1);
const B: SourceId = SourceId(2);

/// Returns a reader that has the first part of both copies and has refused the rest of the first.
fn reader_of_two() -> (Replica<Flags>, Delta<Flags>) {
    let (_, [of_a, of_b]) = two_copies();
    let mut reader = Replica::new(1, 0);
    let mut apply = |source, delta: &Delta<Flags>| reader.apply(source, delta.clone(), |_| {});
    assert!(apply(A, &of_a[0]).is_ok());
    assert!(apply(B, &of_b[0]).is_ok(), "the other may have stopped");
    assert_eq!(apply(A, &of_a[1]), Err(NotApplied::Copying));
    assert_eq!(apply(A, &of_a[1]), Err(NotApplied::Copying));
    assert_eq!(reader.poll_refused_source(), None);
    reader.check_invariants();
    (reader, of_b[1].clone())
}

#[test]
fn a_source_refused_during_a_copy_is_read_again_when_the_copy_ends_or_is_given_up() {
    type End = fn(&mut Replica<Flags>, Delta<Flags>);
    let ends: [End; 3] = [
        |reader, rest| {
            reader.apply(B, rest, |_| {}).expect("it is whole");
        },
        |reader, _| reader.lost(B),
        |reader, _| reader.source_down(B),
    ];
    for end in ends {
        let (mut reader, rest) = reader_of_two();
        end(&mut reader, rest);
        assert!(!reader.is_copying());
        assert_eq!(reader.poll_refused_source(), Some(A));
        assert_eq!(reader.poll_refused_source(), None, "once");
    }
    let (mut reader, rest) = reader_of_two();
    reader.lost(A);
    reader.apply(B, rest, |_| {}).expect("it is whole");
    assert_eq!(reader.poll_refused_source(), None, "it has begun again meanwhile");
    assert_eq!(reader.size(WriterId(1)).0, 3);
}

/// A short cut of a link must not restart a copy of a million keys.
#[test]
fn a_copy_that_refuses_no_other_source_survives_silence() {
    let (_, [of_a, _]) = two_copies();
    let mut reader = Replica::new(1, 0);
    reader.apply(A, of_a[0].clone(), |_| {}).expect("it begins");
    reader.source_down(A);
    reader.apply(A, of_a[1].clone(), |_| {}).expect("it goes on");
    assert_eq!(reader.size(WriterId(1)).0, 3);
}

#[test]
fn a_copy_that_has_begun_is_finished_although_it_is_not_wanted_any_more() {
    let (writer, _) = two_copies();
    let mut feed = Feed::new(Batching { bytes_max: 20, ..Batching::default() }, []);
    let mut reader = Replica::new(1, 0);
    assert!(feed.poll(0, &writer, |_| false).is_none());
    assert!(feed.next_due(&writer, |_| false).is_none());
    feed.wants_changed();
    let first = feed.poll(0, &writer, |_| true).expect("a part");
    reader.apply(A, first, |_| {}).expect("it begins");
    assert!(feed.next_due(&writer, |_| false).is_some());
    let rest = feed.poll(0, &writer, |_| false).expect("the end");
    reader.apply(A, rest, |_| {}).expect("it ends");
    assert!(!reader.is_copying());
    assert!(feed.poll(0, &writer, |_| false).is_none());
}

#[test]
fn a_part_of_a_copy_that_the_link_refused_is_sent_again_as_one() {
    let (writer, _) = two_copies();
    for unsent in [0, 1] {
        let mut feed = Feed::new(Batching { bytes_max: 20, ..Batching::default() }, []);
        let mut reader = Replica::new(1, 0);
        for part in 0..2 {
            let mut delta = feed.poll(0, &writer, |_| true).expect("a part");
            if part == unsent {
                feed.unsent(&writer, &delta);
                let again = feed.poll(0, &writer, |_| true);
                assert_eq!(again.as_ref(), Some(&delta));
                delta = again.expect("it is there");
            }
            reader.apply(A, delta, |_| {}).expect("in order");
        }
        assert!(!reader.is_copying() && feed.poll(0, &writer, |_| true).is_none());
        assert_eq!(reader.digest(WriterId(1)), writer.digest(WriterId(1)));
    }
}

/// Readers would otherwise keep the entries of the previous incarnation for ever.
#[test]
fn an_empty_new_incarnation_is_announced_again_when_the_link_refused_it() {
    let mut writer = Replica::<Flags>::new(1, 4);
    writer.own(WriterId(1), Incarnation(2));
    let mut feed = Feed::new(Batching::default(), [(WriterId(1), Incarnation(1), Position(9))]);
    let news = feed.poll(0, &writer, |_| true).expect("a new incarnation");
    feed.unsent(&writer, &news);
    assert_eq!(feed.poll(u64::MAX, &writer, |_| true), Some(news));
}

/// A writer has lost its number with its disk, and its clock was ahead before.
#[test]
fn an_incarnation_with_a_smaller_number_is_accepted_once_the_greater_one_is_over() {
    let id = WriterId(1);
    let incarnation = |number: u64, key: &str| {
        let mut writer = Replica::<Flags>::new(1, 4);
        writer.own(id, Incarnation(number));
        set(&mut writer, key, Some(1));
        let delta = Feed::new(batching(), []).poll(0, &writer, |_| true).expect("a change");
        (writer, delta)
    };
    let ((_, ahead), (behind, delta), (_, next)) =
        (incarnation(51, "a"), incarnation(1, "b"), incarnation(2, "c"));
    let mut reader = Replica::<Flags>::new(1, 4);
    reader.apply(A, ahead.clone(), |_| {}).expect("the first");
    reader.declare_dead(id, Incarnation(51));
    assert!(reader.revive(id, Incarnation(1)) && !reader.revive(id, Incarnation(1)));
    // Another node does not know yet that it is over.
    assert_eq!(reader.apply(B, ahead.clone(), |_| {}), Err(NotApplied::Dead));
    reader.apply(A, delta.clone(), |_| {}).expect("it goes on");
    assert_eq!(reader.digest(id), behind.digest(id));
    // That node reports its position, and learns of the incarnation that continues.
    let mut feed = Feed::new(batching(), [(id, Incarnation(51), Position(1))]);
    assert!(feed.poll(0, &reader, |_| true).is_some_and(|told| told.incarnation == Incarnation(1)));
    // The writer knows that even without having received the later one.
    let mut feed = Feed::new(batching(), [(id, Incarnation(51), Position(1))]);
    assert!(feed.poll(0, &behind, |_| true).is_some_and(|told| told.incarnation == Incarnation(1)));
    let mut other = Replica::<Flags>::new(1, 4);
    other.apply(B, ahead, |_| {}).expect("the first");
    assert_eq!(other.apply(A, delta.clone(), |_| {}), Err(NotApplied::Old { known: Incarnation(51) }));
    assert!(other.discard_later(id, Incarnation(1)) && !other.discard_later(id, Incarnation(1)));
    assert_eq!(other.vector().collect::<Vec<_>>(), [(id, Incarnation(1), Position(0))]);
    other.apply(A, delta, |_| {}).expect("it goes on");
    for mut replica in [reader, other] {
        assert_eq!(replica.apply(A, next.clone(), |_| {}), Err(NotApplied::Dead), "not named yet");
        assert!(replica.revive(id, Incarnation(2)));
        replica.apply(A, next.clone(), |_| {}).expect("it goes on");
        assert_eq!(replica.entries(id).count(), 1);
        assert!(replica.is_dead(id, Incarnation(1)) && replica.is_dead(id, Incarnation(51)));
        replica.check_invariants();
    }
}
