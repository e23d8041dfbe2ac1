use std::collections::{BTreeMap, VecDeque};

use broker::{ConnectionId, ShardId, Ticket};
use link::Time;
use replog::Position;

use crate::view::SubacksWaiting;

/// Nodes that must know a subscription before its SUBACK is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Core that this replicant is attached to.
    Core,
    /// Nodes of this node's region.
    Region,
    /// All nodes that may acknowledge.
    Cluster,
}

/// Positions of this node's changes that the nodes of each scope know.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownBy {
    pub core: Position,
    pub region: Position,
    pub cluster: Position,
}

/// SUBACKs that wait until the nodes of their scope know this node's changes up to a position, and SUBACKs of durable
/// sessions, which wait until all nodes that may acknowledge know the changes of a shard.
#[derive(Debug, Default)]
pub struct Subacks {
    core: Queue,
    region: Queue,
    cluster: Queue,
    /// Position that cores were last asked to settle.
    asked: Position,
    of_shards: BTreeMap<ShardId, OfShard>,
}

/// SUBACKs for the changes of one shard.
#[derive(Debug, Default)]
struct OfShard {
    queue: Queue,
    /// Position of the shard that cores were last asked to settle.
    asked: Position,
}

impl Subacks {
    /// Adds a SUBACK. Positions never decrease within a scope.
    pub fn push(
        &mut self,
        scope: Scope,
        position: Position,
        (connection, ticket): (ConnectionId, Ticket),
        deadline: Time,
    ) {
        let queue = match scope {
            Scope::Core => &mut self.core,
            Scope::Region => &mut self.region,
            Scope::Cluster => &mut self.cluster,
        };
        queue.push(Waiting { scope, position, connection, ticket, deadline });
    }

    /// Adds a SUBACK for changes of a shard. It waits for all nodes that may acknowledge: those of a region are not
    /// asked about shards. Workers report positions in any order, so one waits for greater ones before it, too.
    pub fn push_of_shard(
        &mut self,
        scope: Scope,
        (shard, position): (ShardId, Position),
        (connection, ticket): (ConnectionId, Ticket),
        deadline: Time,
    ) {
        let queue = &mut self.of_shards.entry(shard).or_default().queue;
        let position = queue.last().map_or(position, |last| last.max(position));
        queue.push(Waiting { scope, position, connection, ticket, deadline });
    }

    /// Takes the next SUBACK whose position of a shard is known.
    pub fn pop_known_of_shard(&mut self, shard: ShardId, known: Position) -> Option<(ConnectionId, Ticket)> {
        let waiting = self.of_shards.get_mut(&shard)?.queue.pop_known(known)?;
        Some((waiting.connection, waiting.ticket))
    }

    /// Returns the shards that SUBACKs wait for.
    pub fn shards_waiting(&self) -> Vec<ShardId> {
        let waiting = self.of_shards.iter().filter(|(_, it)| it.queue.last().is_some());
        waiting.map(|(shard, _)| *shard).collect()
    }

    /// Returns the positions of shards that cores must be asked to settle, once.
    pub fn shards_to_settle(&mut self) -> Vec<(ShardId, Position)> {
        let to_settle = self.of_shards.iter_mut().filter_map(|(shard, it)| {
            let wanted = it.queue.last().filter(|wanted| it.asked < *wanted)?;
            it.asked = wanted;
            Some((*shard, wanted))
        });
        to_settle.collect()
    }

    /// Takes the next SUBACK whose position is known.
    pub fn pop_known(&mut self, known: &KnownBy) -> Option<(ConnectionId, Ticket)> {
        let waiting = self.core.pop_known(known.core);
        let waiting = waiting.or_else(|| self.region.pop_known(known.region));
        let waiting = waiting.or_else(|| self.cluster.pop_known(known.cluster))?;
        Some((waiting.connection, waiting.ticket))
    }

    /// Takes the next SUBACK that has waited for too long.
    pub fn pop_overdue(&mut self, now: Time) -> Option<(Scope, ConnectionId, Ticket)> {
        let of_nodes = [&mut self.core, &mut self.region, &mut self.cluster].into_iter();
        let of_shards = self.of_shards.values_mut().map(|it| &mut it.queue);
        let waiting = of_nodes.chain(of_shards).find_map(|queue| queue.pop_overdue(now))?;
        Some((waiting.scope, waiting.connection, waiting.ticket))
    }

    /// Returns the time by which [`Self::pop_overdue`] must be called.
    pub fn deadline(&self) -> Time {
        let of_shards = self.of_shards.values().map(|it| it.queue.deadline());
        let of_nodes = [&self.core, &self.region, &self.cluster].map(Queue::deadline);
        of_shards.chain(of_nodes).min().unwrap_or(Time::NEVER)
    }

    /// Adjusts all positions after this node's changes were renumbered, up to `last`. The cores have settled none of
    /// them. Changes of shards keep their numbers.
    pub fn rebase(&mut self, last: Position) {
        self.ask_again();
        [&mut self.core, &mut self.region, &mut self.cluster]
            .into_iter()
            .for_each(|queue| queue.rebase(last));
    }

    /// Returns the position that the last SUBACK for the region waits for.
    pub fn wanted_in_region(&self) -> Option<Position> {
        self.region.last()
    }

    /// Returns the position that the last SUBACK for the cluster waits for.
    pub fn wanted_in_cluster(&self) -> Option<Position> {
        self.cluster.last()
    }

    /// Returns a position that cores must be asked to settle, once. A change that all lease holders know counts for
    /// the region, too, which may have an unreachable node.
    pub fn ask_to_settle(&mut self) -> Option<Position> {
        let wanted = self.cluster.last().max(self.region.last()).filter(|wanted| self.asked < *wanted)?;
        self.asked = wanted;
        Some(wanted)
    }

    /// Notes that cores may have missed, ignored or forgotten the last request to settle.
    pub fn ask_again(&mut self) {
        self.asked = Position::default();
        self.of_shards.values_mut().for_each(|it| it.asked = Position::default());
    }

    /// Returns whether a SUBACK waits for nodes that report their positions to cores.
    pub fn wait_for_others(&self) -> bool {
        self.region.last().or(self.cluster.last()).is_some()
            || self.of_shards.values().any(|it| it.queue.last().is_some())
    }

    /// Returns the numbers of waiting SUBACKs.
    pub fn counts(&self) -> SubacksWaiting {
        SubacksWaiting {
            core: self.core.waiting.len() as u64,
            region: self.region.waiting.len() as u64,
            cluster: self.cluster.waiting.len() as u64
                + self.of_shards.values().map(|it| it.queue.waiting.len() as u64).sum::<u64>(),
        }
    }
}

/// SUBACKs of one scope, in the order of their positions.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    scope: Scope,
    position: Position,
    connection: ConnectionId,
    ticket: Ticket,
    deadline: Time,
}

impl Queue {
    fn push(&mut self, waiting: Waiting) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.position <= waiting.position));
        self.waiting.push_back(waiting);
    }

    fn rebase(&mut self, last: Position) {
        self.waiting.iter_mut().for_each(|waiting| waiting.position = last);
    }

    fn pop_known(&mut self, known: Position) -> Option<Waiting> {
        self.waiting.pop_front_if(|waiting| waiting.position <= known)
    }

    fn pop_overdue(&mut self, now: Time) -> Option<Waiting> {
        self.waiting.pop_front_if(|waiting| waiting.deadline <= now)
    }

    fn last(&self) -> Option<Position> {
        self.waiting.back().map(|waiting| waiting.position)
    }

    fn deadline(&self) -> Time {
        self.waiting.front().map_or(Time::NEVER, |waiting| waiting.deadline)
    }
}

#[cfg(test)]
mod tests {
    use broker::WorkerId;

    use super::*;

    /// Returns SUBACKs of the given scopes and positions. The slot of a connection is its index in the list.
    fn waiting(subacks: &[(Scope, u64)]) -> Subacks {
        let mut waiting = Subacks::default();
        for (slot, (scope, position)) in subacks.iter().enumerate() {
            let connection = ConnectionId { worker: WorkerId(0), slot: slot as u32, generation: 0 };
            let ticket = Ticket::of(mqtt::PacketId::new(1).unwrap());
            waiting.push(*scope, Position(*position), (connection, ticket), Time(100 + slot as u64));
        }
        waiting
    }

    fn known(subacks: &mut Subacks, known: KnownBy) -> Vec<u32> {
        std::iter::from_fn(|| subacks.pop_known(&known)).map(|(connection, _)| connection.slot).collect()
    }

    #[test]
    fn each_scope_waits_for_its_own_nodes() {
        let mut subacks =
            waiting(&[(Scope::Cluster, 1), (Scope::Region, 2), (Scope::Core, 3), (Scope::Core, 4)]);
        let at = |core, region, cluster| KnownBy {
            core: Position(core),
            region: Position(region),
            cluster: Position(cluster),
        };
        assert!(known(&mut subacks, at(2, 1, 0)).is_empty());
        assert_eq!(known(&mut subacks, at(3, 2, 0)), [2, 1]);
        assert_eq!(subacks.deadline(), Time(100));
        assert_eq!(known(&mut subacks, at(0, 0, 1)), [0]);
        assert_eq!(subacks.pop_overdue(Time(102)), None);
        assert!(matches!(subacks.pop_overdue(Time(103)), Some((Scope::Core, ..))));
        assert_eq!(subacks.deadline(), Time::NEVER);
    }

    #[test]
    fn cores_are_asked_to_settle_a_position_once_until_they_may_have_forgotten_it() {
        let mut subacks = waiting(&[(Scope::Core, 9), (Scope::Region, 5), (Scope::Cluster, 4)]);
        assert_eq!(subacks.ask_to_settle(), Some(Position(5)));
        assert_eq!(subacks.ask_to_settle(), None);
        subacks.ask_again();
        assert_eq!(subacks.ask_to_settle(), Some(Position(5)));
        subacks.rebase(Position(2));
        assert_eq!(
            subacks.ask_to_settle(),
            Some(Position(2)),
            "the numbers of a new incarnation are smaller"
        );
        assert_eq!(known(&mut subacks, KnownBy { core: Position(2), ..KnownBy::default() }), [0]);
    }

    #[test]
    fn a_suback_of_a_shard_waits_for_the_changes_of_that_shard() {
        let (mut subacks, shards) = (Subacks::default(), [3, 5].map(ShardId));
        let id = |slot| ConnectionId { worker: WorkerId(0), slot, generation: 0 };
        let ticket = Ticket::of(mqtt::PacketId::new(1).unwrap());
        for (slot, shard, position) in [(0, shards[0], 8), (1, shards[0], 7), (2, shards[1], 4)] {
            let deadline = Time(100 + u64::from(slot));
            let at = (shard, Position(position));
            subacks.push_of_shard(Scope::Cluster, at, (id(slot), ticket), deadline);
        }
        assert_eq!(subacks.shards_to_settle(), [(shards[0], Position(8)), (shards[1], Position(4))]);
        assert!(subacks.shards_to_settle().is_empty());
        assert!(subacks.wait_for_others() && subacks.counts().cluster == 3);
        assert_eq!(subacks.pop_known_of_shard(shards[0], Position(7)), None, "they are in one order");
        assert_eq!(subacks.pop_known_of_shard(shards[0], Position(8)), Some((id(0), ticket)));
        subacks.rebase(Position(2));
        assert_eq!(
            subacks.shards_to_settle(),
            [(shards[0], Position(8)), (shards[1], Position(4))],
            "an incarnation of the node does not renumber the changes of a shard"
        );
        assert_eq!((subacks.deadline(), subacks.pop_overdue(Time(100))), (Time(101), None));
        assert_eq!(subacks.pop_overdue(Time(101)), Some((Scope::Cluster, id(1), ticket)));
        assert_eq!(subacks.shards_waiting(), [shards[1]]);
    }
}
