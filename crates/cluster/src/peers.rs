use std::collections::{BTreeMap, VecDeque, btree_map};
use std::iter::Copied;

use broker::peers::NodeIndex;
use link::{NodeId, Time};
use replog::{Incarnation, WriterId};

use crate::config::NodeInfo;
use crate::peer::Peer;

/// Other nodes of the cluster, by id and by the index under which the broker knows them.
#[derive(Debug, Default)]
pub struct Peers {
    by_id: BTreeMap<NodeId, Peer>,
    /// Nodes by their index; `None` for an index that stands for no node.
    by_index: Vec<Option<NodeId>>,
    /// Free indices, with the time since which they are free, the oldest first.
    free: VecDeque<(Time, NodeIndex)>,
}

/// Time in microseconds for which a free index is not used again: messages in transit to its last node would reach
/// another one.
const INDEX_REUSE_DELAY: u64 = 30_000_000;

impl Peers {
    /// Adds a node under a new index.
    pub fn add(&mut self, now: Time, id: NodeId, info: NodeInfo) -> &mut Peer {
        let free = self.free.pop_front_if(|(since, _)| now.since(*since) > INDEX_REUSE_DELAY);
        let index = free.map_or(NodeIndex(self.by_index.len() as u16), |(_, index)| index);
        match self.by_index.get_mut(usize::from(index.0)) {
            Some(free) => *free = Some(id),
            None => self.by_index.push(Some(id)),
        }
        self.by_id.entry(id).insert_entry(Peer::new(info, index)).into_mut()
    }

    /// Removes a node. Its index stands for no node until another one gets it: a broadcast would otherwise reach both
    /// when the node returns under another index.
    pub fn remove(&mut self, now: Time, id: NodeId) -> Option<Peer> {
        let peer = self.by_id.remove(&id)?;
        self.by_index[usize::from(peer.index.0)] = None;
        self.free.push_back((now, peer.index));
        Some(peer)
    }

    /// Returns the node with an index.
    pub fn node_at(&self, index: NodeIndex) -> Option<NodeId> {
        self.by_index.get(usize::from(index.0)).copied().flatten()
    }

    /// Returns the number of indices, free ones included.
    pub fn index_count(&self) -> u16 {
        self.by_index.len() as u16
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn contains(&self, id: NodeId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub fn get(&self, id: &NodeId) -> Option<&Peer> {
        self.by_id.get(id)
    }

    pub fn get_mut(&mut self, id: &NodeId) -> Option<&mut Peer> {
        self.by_id.get_mut(id)
    }

    pub fn ids(&self) -> Copied<btree_map::Keys<'_, NodeId, Peer>> {
        self.by_id.keys().copied()
    }

    pub fn iter(&self) -> btree_map::Iter<'_, NodeId, Peer> {
        self.by_id.iter()
    }

    pub fn iter_mut(&mut self) -> btree_map::IterMut<'_, NodeId, Peer> {
        self.by_id.iter_mut()
    }

    pub fn values(&self) -> btree_map::Values<'_, NodeId, Peer> {
        self.by_id.values()
    }

    pub fn values_mut(&mut self) -> btree_map::ValuesMut<'_, NodeId, Peer> {
        self.by_id.values_mut()
    }

    /// Returns the cores whose links are up.
    pub fn reachable_cores(&self) -> Vec<NodeId> {
        self.iter().filter(|(_, peer)| peer.is_core() && peer.is_up).map(|(id, _)| *id).collect()
    }

    /// Returns the incarnation of a node that is a member.
    pub fn member_incarnation(&self, writer: WriterId) -> Option<Incarnation> {
        self.get(&NodeId(writer.0)).and_then(|peer| peer.member)
    }

    /// Returns whether an incarnation of a member is declared dead: its messages are ignored.
    pub fn is_dead_incarnation(&self, writer: WriterId, incarnation: Incarnation) -> bool {
        self.get(&NodeId(writer.0)).is_some_and(|peer| peer.dead.is_some_and(|dead| incarnation <= dead))
    }

    /// Returns whether the cores agree that an unreachable member is dead.
    pub fn is_known_dead(&self, id: NodeId) -> bool {
        self.get(&id).is_some_and(|peer| peer.dead.is_some() && !peer.is_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    fn info() -> NodeInfo {
        NodeInfo { name: "n".into(), role: Role::Core, region: "r".into(), address: "a".into() }
    }

    #[test]
    fn an_index_stands_for_one_node_and_is_used_again_after_a_while() {
        let mut peers = Peers::default();
        let ids = [1, 2, 3, 4].map(NodeId);
        let index = |peers: &mut Peers, seconds, id| peers.add(at(seconds), id, info()).index.0;
        assert_eq!([index(&mut peers, 0, ids[0]), index(&mut peers, 0, ids[1])], [0, 1]);
        assert!(peers.remove(at(10), ids[0]).is_some());
        assert!(peers.remove(at(10), ids[0]).is_none());
        assert_eq!(peers.node_at(NodeIndex(0)), None);
        assert_eq!(index(&mut peers, 40, ids[2]), 2, "a message to the last node may be in transit");
        assert_eq!(index(&mut peers, 41, ids[3]), 0);
        assert_eq!(peers.node_at(NodeIndex(0)), Some(ids[3]));
        assert_eq!((peers.index_count(), peers.node_at(NodeIndex(3))), (3, None));
    }
}
