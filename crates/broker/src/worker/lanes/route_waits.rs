//! Completions of this worker's connections that wait until nodes know the routes of a shard.
//!
//! A CONNACK or SUBACK of a durable session is sent when this node has reached the route position of the shard's
//! leader, and then the other nodes. The worker of the connection keeps the completion, and drops it with the
//! connection. The worker of the shard only remembers which workers want to know its position ([`Askers`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{ConnectionId, ShardId, Time, WorkerId};
use crate::store::{Completion, SHARDS};

/// Slot and generation of a connection of this worker.
type Key = (u32, u32);

/// Completions that wait, by connection.
///
/// **Invariant:** only connections that are not closed have entries. What one of them has is bounded: a client may send
/// few SUBSCRIBEs and UNSUBSCRIBEs that are not answered, and a session has a window.
#[derive(Default)]
pub(super) struct RouteWaits {
    /// Route positions of this node, as far as this worker knows them.
    reached: [u64; SHARDS as usize],
    /// Positions that this worker has asked for.
    asked: [u64; SHARDS as usize],
    connections: BTreeMap<Key, OfConnection>,
    /// First completion of each connection that waits for this node, by its position and by its age.
    by_position: BTreeSet<(ShardId, u64, Key)>,
    by_age: BTreeSet<(Time, Key)>,
}

#[derive(Default)]
struct OfConnection {
    /// Completions that wait for this node, in their order.
    waiting: VecDeque<Waiting>,
    /// The Claim that waits for other nodes, with its position.
    announced: Option<(ShardId, u64, Completion)>,
    /// Completions that came after that of the Claim, which waits; `None` when none waits.
    held: Option<Vec<Completion>>,
}

struct Waiting {
    shard: ShardId,
    index: u64,
    since: Time,
    completion: Completion,
}

/// Result of adding a completion that may have to wait for this node.
pub(super) enum Added {
    /// The completion need not wait.
    Known(Box<Completion>),
    /// The completion waits. `asks`: whether the worker of the shard has to be asked for the position.
    Waits { asks: bool },
}

fn key(ConnectionId { slot, generation, .. }: ConnectionId) -> Key {
    (slot, generation)
}

impl RouteWaits {
    /// Number of completions that wait for this node or for others.
    pub fn len(&self) -> usize {
        let of = |it: &OfConnection| it.waiting.len() + usize::from(it.announced.is_some());
        self.connections.values().map(of).sum()
    }

    /// Number of completions that wait behind a Claim.
    pub fn held(&self) -> usize {
        self.connections.values().filter_map(|it| it.held.as_ref()).map(Vec::len).sum()
    }

    /// Holds the completions of a connection that come from now on, because its Claim waits.
    pub fn hold(&mut self, connection: ConnectionId) {
        self.connections.entry(key(connection)).or_default().held.get_or_insert_default();
    }

    /// Adds a completion if those of the connection are held. Returns it otherwise.
    pub fn add_held(&mut self, completion: Completion) -> Option<Completion> {
        let of = self.connections.get_mut(&key(completion.connection()));
        match of.and_then(|of| of.held.as_mut()) {
            Some(held) => {
                held.push(completion);
                None
            }
            None => Some(completion),
        }
    }

    /// Ends the wait of a Claim. Returns the completions that came after it.
    pub fn take_held(&mut self, connection: ConnectionId) -> Vec<Completion> {
        let key = key(connection);
        let held = self.connections.get_mut(&key).and_then(|of| of.held.take());
        self.forget_if_done(key);
        held.unwrap_or_default()
    }

    /// Adds a completion that waits until this node has reached an index. Those of one connection stay in order.
    pub fn add(&mut self, now: Time, (shard, index): (ShardId, u64), completion: Completion) -> Added {
        let key = key(completion.connection());
        let waits = self.connections.get(&key).is_some_and(|of| !of.waiting.is_empty());
        if !waits && self.reached[shard.index()] >= index {
            return Added::Known(Box::new(completion));
        }
        let waiting = Waiting { shard, index, since: now, completion };
        if !waits {
            self.by_position.insert((shard, index, key));
            self.by_age.insert((now, key));
        }
        self.connections.entry(key).or_default().waiting.push_back(waiting);
        let asked = &mut self.asked[shard.index()];
        let asks = index > *asked && index > self.reached[shard.index()];
        *asked = index.max(*asked);
        Added::Waits { asks }
    }

    /// Handles that this node has reached a position. Returns the completions that need not wait for it any more, with
    /// their positions.
    pub fn reach(&mut self, shard: ShardId, position: u64) -> Vec<(ShardId, u64, Completion)> {
        let reached = &mut self.reached[shard.index()];
        *reached = position.max(*reached);
        let until = (shard, *reached, (u32::MAX, u32::MAX));
        let mut known = Vec::new();
        while let Some((.., key)) = self.by_position.range((shard, 0, (0, 0))..=until).next().copied() {
            known.extend(self.pop(key).map(|it| (it.shard, it.index, it.completion)));
        }
        known
    }

    /// Takes a completion that has waited for this node since `since` or longer.
    pub fn take_overdue(&mut self, since: Time) -> Option<(ShardId, u64, Completion)> {
        let (_, key) = self.by_age.first().copied().filter(|(first, _)| *first <= since)?;
        self.pop(key).map(|it| (it.shard, it.index, it.completion))
    }

    /// Notes that a Claim waits for other nodes.
    pub fn announce(&mut self, (shard, index): (ShardId, u64), completion: Completion) {
        let of = self.connections.entry(key(completion.connection())).or_default();
        of.announced = Some((shard, index, completion));
    }

    /// Takes the Claim that has waited for other nodes.
    pub fn take_announced(&mut self, connection: ConnectionId) -> Option<(ShardId, u64, Completion)> {
        let key = key(connection);
        let announced = self.connections.get_mut(&key)?.announced.take();
        self.forget_if_done(key);
        announced
    }

    /// Forgets a connection that is closed.
    pub fn end(&mut self, connection: ConnectionId) {
        let key = key(connection);
        self.unlink(key);
        self.connections.remove(&key);
    }

    /// Takes the first completion of a connection that waits for this node.
    fn pop(&mut self, key: Key) -> Option<Waiting> {
        self.unlink(key);
        let waiting = &mut self.connections.get_mut(&key)?.waiting;
        let first = waiting.pop_front();
        if let Some(next) = waiting.front() {
            self.by_position.insert((next.shard, next.index, key));
            self.by_age.insert((next.since, key));
        }
        self.forget_if_done(key);
        first
    }

    fn unlink(&mut self, key: Key) {
        if let Some(first) = self.connections.get(&key).and_then(|of| of.waiting.front()) {
            self.by_position.remove(&(first.shard, first.index, key));
            self.by_age.remove(&(first.since, key));
        }
    }

    fn forget_if_done(&mut self, key: Key) {
        let is_done =
            |of: &OfConnection| of.waiting.is_empty() && of.announced.is_none() && of.held.is_none();
        if self.connections.get(&key).is_some_and(is_done) {
            self.connections.remove(&key);
        }
    }
}

/// Workers that want to know route positions of the shards of this worker, with the greatest that each waits for.
#[derive(Default)]
pub(super) struct Askers(BTreeMap<(ShardId, WorkerId), u64>);

impl Askers {
    pub fn add(&mut self, shard: ShardId, worker: WorkerId, index: u64) {
        let asked = self.0.entry((shard, worker)).or_default();
        *asked = index.max(*asked);
    }

    /// Returns the workers to tell of a position that this node has reached.
    pub fn reach(&mut self, shard: ShardId, position: u64) -> Vec<WorkerId> {
        let of_shard = (shard, WorkerId(0))..=(shard, WorkerId(u16::MAX));
        let workers = self.0.range(of_shard).map(|((_, worker), _)| *worker).collect();
        self.0.retain(|(of, _), index| *of != shard || *index > position);
        workers
    }
}

#[cfg(test)]
mod tests {
    use mqtt::PacketId;
    use random::Random;

    use super::*;
    use crate::ids::Ticket;

    const SHARD: ShardId = ShardId(3);

    fn connection(slot: u32) -> ConnectionId {
        ConnectionId { worker: WorkerId(0), slot, generation: 1 }
    }

    /// Completion of the SUBSCRIBE with this Packet Identifier.
    fn subscribed(slot: u32, packet_id: u16) -> Completion {
        let ticket = Ticket::of(PacketId::new(packet_id).expect("not 0"));
        Completion::Subscribed { connection: connection(slot), ticket, results: Vec::new() }
    }

    fn id(completion: &Completion) -> (u32, u16) {
        match completion {
            Completion::Subscribed { connection, ticket, .. } => {
                (connection.slot, ticket.packet_id().map_or(0, PacketId::get))
            }
            _ => panic!("a SUBSCRIBE"),
        }
    }

    fn ids(known: Vec<(ShardId, u64, Completion)>) -> Vec<(u32, u16)> {
        known.iter().map(|(.., completion)| id(completion)).collect()
    }

    fn overdue(waits: &mut RouteWaits, since: u64) -> Vec<(u32, u16)> {
        ids(std::iter::from_fn(|| waits.take_overdue(Time(since))).collect())
    }

    fn waits(added: Added) -> bool {
        match added {
            Added::Known(_) => panic!("it has to wait"),
            Added::Waits { asks } => asks,
        }
    }

    #[test]
    fn a_completion_waits_until_the_node_has_reached_its_position() {
        let mut routes = RouteWaits::default();
        assert!(waits(routes.add(Time(1), (SHARD, 5), subscribed(1, 1))), "the position is unknown");
        assert!(!waits(routes.add(Time(2), (SHARD, 4), subscribed(2, 1))), "a greater one was asked for");
        assert!(waits(routes.add(Time(3), (SHARD, 7), subscribed(1, 2))));
        assert!(waits(routes.add(Time(3), (ShardId(4), 1), subscribed(3, 1))), "of another shard");
        assert_eq!(ids(routes.reach(SHARD, 4)), [(2, 1)]);
        assert_eq!(ids(routes.reach(SHARD, 9)), [(1, 1), (1, 2)], "in their order");
        assert!(matches!(routes.add(Time(4), (SHARD, 9), subscribed(1, 3)), Added::Known(_)));
        assert_eq!(routes.len(), 1);
    }

    /// A leader that has just begun may answer with a smaller index than the last one.
    #[test]
    fn completions_of_one_connection_do_not_overtake_each_other() {
        let mut routes = RouteWaits::default();
        routes.reach(SHARD, 3);
        waits(routes.add(Time(1), (SHARD, 5), subscribed(1, 1)));
        waits(routes.add(Time(1), (SHARD, 2), subscribed(1, 2)));
        assert!(routes.reach(SHARD, 4).is_empty());
        assert_eq!(ids(routes.reach(SHARD, 5)), [(1, 1), (1, 2)]);
    }

    #[test]
    fn what_waits_too_long_is_taken_once_and_oldest_first() {
        let mut routes = RouteWaits::default();
        waits(routes.add(Time(10), (SHARD, 5), subscribed(1, 1)));
        waits(routes.add(Time(20), (SHARD, 4), subscribed(2, 1)));
        waits(routes.add(Time(30), (SHARD, 6), subscribed(1, 2)));
        assert!(overdue(&mut routes, 9).is_empty());
        assert_eq!(overdue(&mut routes, 20), [(1, 1), (2, 1)]);
        assert_eq!(ids(routes.reach(SHARD, 6)), [(1, 2)], "it has waited for a shorter time");
        assert!(overdue(&mut routes, 99).is_empty() && routes.len() == 0);
    }

    #[test]
    fn nothing_is_left_of_a_closed_connection() {
        let mut routes = RouteWaits::default();
        routes.hold(connection(1));
        waits(routes.add(Time(1), (SHARD, 5), subscribed(1, 1)));
        routes.announce((SHARD, 5), subscribed(1, 2));
        assert!(routes.add_held(subscribed(1, 3)).is_none() && routes.held() == 1);
        assert!(routes.add_held(subscribed(2, 1)).is_some(), "nothing of this connection is held");
        routes.end(connection(1));
        assert_eq!((routes.len(), routes.held()), (0, 0));
        assert!(routes.connections.is_empty() && routes.reach(SHARD, 9).is_empty());
        assert!(routes.take_announced(connection(1)).is_none());
    }

    #[test]
    fn workers_are_told_of_each_step_until_nothing_waits_there() {
        let mut askers = Askers::default();
        askers.add(SHARD, WorkerId(1), 5);
        askers.add(SHARD, WorkerId(1), 3);
        askers.add(SHARD, WorkerId(2), 8);
        askers.add(ShardId(4), WorkerId(2), 1);
        assert_eq!(askers.reach(SHARD, 4), [WorkerId(1), WorkerId(2)]);
        assert_eq!(askers.reach(SHARD, 5), [WorkerId(1), WorkerId(2)]);
        assert_eq!(askers.reach(SHARD, 8), [WorkerId(2)]);
        assert!(askers.reach(SHARD, 9).is_empty());
    }

    /// Compares with a list that is searched from its beginning.
    #[test]
    fn each_completion_leaves_once_by_one_of_the_three_ways() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut routes = RouteWaits::default();
            // Index, id and time of each.
            let mut list = Vec::<(u64, (u32, u16), u64)>::new();
            let mut reached = 0_u64;
            for step in 1..200_u16 {
                let now = u64::from(step);
                let slot = random.below(5) as u32;
                match random.below(8) {
                    0..4 => {
                        let index = reached.saturating_sub(2) + random.below(6) as u64;
                        let is_first = list.iter().all(|(_, (of, _), _)| *of != slot);
                        match routes.add(Time(now), (SHARD, index), subscribed(slot, step)) {
                            Added::Known(_) => assert!(is_first && index <= reached),
                            Added::Waits { .. } => list.push((index, (slot, step), now)),
                        }
                    }
                    4 => {
                        list.retain(|(_, (of, _), _)| *of != slot);
                        routes.end(connection(slot));
                    }
                    5 => {
                        let since = now.saturating_sub(random.below(40) as u64);
                        let due = list.extract_if(.., |(.., of)| *of <= since);
                        let mut due: Vec<_> = due.map(|(_, id, _)| id).collect();
                        due.sort_by_key(|(_, step)| *step);
                        assert_eq!(overdue(&mut routes, since), due, "seed {seed}");
                    }
                    _ => {
                        reached += random.below(4) as u64;
                        let mut known = ids(routes.reach(SHARD, reached));
                        let (mut blocked, mut expected) = (BTreeSet::new(), Vec::new());
                        list.retain(|(index, id, _)| {
                            let stays = blocked.contains(&id.0) || *index > reached;
                            match stays {
                                true => drop(blocked.insert(id.0)),
                                false => expected.push(*id),
                            }
                            stays
                        });
                        known.sort_unstable();
                        expected.sort_unstable();
                        assert_eq!(known, expected, "seed {seed}");
                    }
                }
                assert_eq!(routes.len(), list.len());
                assert_eq!(routes.by_age.len(), routes.connections.len());
            }
        }
    }
}
