//! Route positions of shards: up to which change of a shard's Topic Filters this node knows them. In the positions of
//! nodes a shard is one more writer, whose number is less than that of any node.

use broker::{SHARDS, ShardId};
use link::NodeId;
use replog::{Incarnation, Position, WriterId};

/// Route positions of shards on this node.
#[derive(Debug, Default)]
pub struct ShardPositions {
    known: [Option<Position>; SHARDS as usize],
    /// Number of changes so far.
    revision: u64,
}

/// Incarnation of every shard: the changes of a shard are numbered once.
const INCARNATION: Incarnation = Incarnation(1);

/// Least number of a node. Smaller numbers of writers are those of shards.
const NODE_MIN: u64 = 4_096;

const _: () = assert!((SHARDS as u64) <= NODE_MIN);

impl ShardPositions {
    /// Notes that this node knows the routes of a shard up to a position.
    pub fn reach(&mut self, shard: ShardId, position: Position) {
        let Some(known) = self.known.get_mut(usize::from(shard.0)) else {
            debug_assert!(false, "there is no {shard:?}");
            return;
        };
        debug_assert!(known.is_none_or(|known| known <= position), "{shard:?} goes back from {known:?}");
        if known.is_none_or(|known| known < position) {
            *known = Some(position);
            self.revision += 1;
        }
    }

    /// Returns the position of a shard, or `None` while this node knows nothing of its routes.
    pub fn get(&self, shard: ShardId) -> Option<Position> {
        self.known.get(usize::from(shard.0)).copied().flatten()
    }

    /// Iterates over the positions of all shards whose routes this node knows.
    pub fn vector(&self) -> impl Iterator<Item = (WriterId, Incarnation, Position)> {
        let all = (0..).map(ShardId).zip(self.known);
        all.filter_map(|(shard, known)| Some((writer_of(shard), INCARNATION, known?)))
    }

    /// Returns a number that grows with each change.
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

/// Returns the writer that stands for a shard.
pub fn writer_of(shard: ShardId) -> WriterId {
    WriterId(u64::from(shard.0))
}

/// Returns the position of a shard as that of a writer.
pub fn at(position: Position) -> (Incarnation, Position) {
    (INCARNATION, position)
}

/// Returns the shard that a writer stands for, or `None` for a node.
pub fn shard_of(writer: WriterId) -> Option<ShardId> {
    u16::try_from(writer.0).ok().filter(|shard| u64::from(*shard) < NODE_MIN).map(ShardId)
}

/// Asserts that a node's number is not one of those that stand for shards. A number is a hash of the node's name.
pub fn assert_is_node(node: NodeId) {
    assert!(node.0 >= NODE_MIN, "the number of this node is {}: give it another name (node.name)", node.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_a_writer_once_its_position_is_known() {
        let mut positions = ShardPositions::default();
        assert_eq!((positions.vector().count(), positions.get(ShardId(3))), (0, None));
        positions.reach(ShardId(3), Position(0));
        assert_eq!((positions.get(ShardId(3)), positions.revision()), (Some(Position(0)), 1));
        positions.reach(ShardId(3), Position(0));
        assert_eq!(positions.revision(), 1);
        positions.reach(ShardId(3), Position(7));
        let vector: Vec<_> = positions.vector().collect();
        assert_eq!(vector, [(WriterId(3), Incarnation(1), Position(7))]);
        assert_eq!(shard_of(WriterId(3)), Some(ShardId(3)));
        assert_eq!(shard_of(WriterId(NodeId::of_name("a").0)), None);
    }
}
