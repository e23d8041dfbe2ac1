//! The node's index, and the changes of it for other nodes.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use mqtt::TopicFilter;
use routing::{Destination as _, Index, IndexFull, Inserted, Removed};

use crate::groups::{GroupDirectory, LinkedPrefix};
use crate::ids::{ShardId, ShardSet};
use crate::interest::InterestChanges;
use crate::peers::{Members, NodeIndex, Peers, Wants};
use crate::retained;
use crate::route::{Route, RouteKind};
use crate::store::SHARDS;

/// Index from Topic Filters to connections and shards of this node, and to other nodes of the cluster.
///
/// **Invariant:** the index is changed before the change is noted. A reader that takes a note and then looks at the
/// index sees the current state, or another note follows.
pub struct Routes {
    index: Arc<Index<Route>>,
    changes: Mutex<Vec<RouteChange>>,
    /// Listener for changes; none on a node without others.
    peers: OnceLock<Arc<dyn Peers>>,
    /// Number of pairs of filter and other node in the index.
    of_peers: AtomicUsize,
    /// Number of changes of members on other nodes that shards have not handled yet.
    joining: AtomicUsize,
    /// Nodes that are not reachable, as bits. Nodes with greater indexes count as reachable.
    down: [AtomicU64; 16],
    /// Filters and shared groups of other nodes for which the index has no room, by node. Empty, unless the index is
    /// full.
    unrouted: Mutex<BTreeSet<(NodeIndex, Box<str>)>>,
    /// Size of `unrouted`.
    unrouted_len: AtomicUsize,
    /// Number of times that another node has lost messages on the way to it, and the number of the last time for each
    /// node.
    losses: AtomicU32,
    lost: [AtomicU32; 1024],
    /// Shared groups, by the shard of their names.
    groups: Box<[GroupDirectory]>,
    /// Bits of the groups whose hosts have shards with more than their share of requests.
    full_for_groups: AtomicU32,
    /// The shards belong to the cluster: every node knows which of them have durable sessions in a group.
    are_shards_agreed: bool,
    /// Filters whose messages get their origin.
    origins: Mutex<BTreeSet<Box<str>>>,
    interest: InterestChanges,
    /// Beginning of the names of groups that have one member over all linked clusters.
    linked: OnceLock<LinkedPrefix>,
}

/// Maximum number of filters of a shard that are tried again at once.
const RETRIED_AT_ONCE: usize = 1000;

/// Returns an index that stands for a shard of the cluster, among nodes with filters for which the index has no room.
fn index_of_shard(shard: ShardId) -> NodeIndex {
    NodeIndex(u16::MAX - shard.0)
}

/// A change for other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// This node wants a filter for one more receiver, or for one fewer.
    Filter { filter: Box<str>, wants: Wants, is_added: bool },
    /// A shared group, `$share/{ShareName}/{filter}`, has these members here.
    Group { text: Box<str>, members: Members },
}

impl Routes {
    /// `hash_key` is unknown to clients. `are_shards_agreed`: the shards belong to the cluster.
    pub(crate) fn new(index: Index<Route>, hash_key: [u8; 16], are_shards_agreed: bool) -> Self {
        Self {
            index: Arc::new(index),
            changes: Mutex::default(),
            peers: OnceLock::new(),
            of_peers: AtomicUsize::new(0),
            joining: AtomicUsize::new(0),
            down: Default::default(),
            unrouted: Mutex::default(),
            unrouted_len: AtomicUsize::new(0),
            losses: AtomicU32::new(0),
            lost: [const { AtomicU32::new(0) }; 1024],
            groups: (0..SHARDS).map(|shard| GroupDirectory::new(ShardId(shard), hash_key)).collect(),
            full_for_groups: AtomicU32::new(0),
            are_shards_agreed,
            origins: Mutex::default(),
            interest: InterestChanges::default(),
            linked: OnceLock::new(),
        }
    }

    /// Sets the beginning of the ShareNames of groups that have one member over all linked clusters, once and before
    /// there are groups.
    pub(crate) fn set_linked_prefix(&self, prefix: LinkedPrefix) {
        if self.linked.set(prefix).is_err() {
            debug_assert!(false, "the names of linked groups do not change");
        }
    }

    /// Returns whether groups with this ShareName have one member over all linked clusters.
    pub(crate) fn is_linked(&self, share: &str) -> bool {
        self.linked.get().is_some_and(|prefix| prefix.includes(share))
    }

    /// Beginning of the ShareNames of groups that have one member over all linked clusters.
    pub(crate) fn linked_prefix(&self) -> &str {
        self.linked.get().map_or("", LinkedPrefix::as_str)
    }

    /// Sets the shards with more than their share of requests of the worker that hosts groups.
    pub(crate) fn set_full_for_groups(&self, groups: ShardId, full: ShardSet) {
        self.groups(groups).set_full(full);
        let bit = 1 << groups.0;
        match full.is_empty() {
            true => self.full_for_groups.fetch_and(!bit, Relaxed),
            false => self.full_for_groups.fetch_or(bit, Relaxed),
        };
    }

    /// Returns whether a host of groups has shards with more than their share of requests.
    pub(crate) fn is_full_for_groups(&self) -> bool {
        self.full_for_groups.load(Relaxed) != 0
    }

    /// Changes for links to other clusters.
    pub(crate) fn interest(&self) -> &InterestChanges {
        &self.interest
    }

    /// Replaces the filters whose messages get their origin.
    ///
    /// # Errors
    /// Returns the number of filters for which the index has no room. A further call tries them again.
    pub(crate) fn set_origins(&self, wanted: &BTreeSet<Box<str>>) -> Result<(), usize> {
        let mut origins = sync::lock(&self.origins);
        let key = Route::of_origin().key();
        for gone in origins.difference(wanted).filter_map(|filter| TopicFilter::parse(filter).ok()) {
            self.index.remove(gone, key);
        }
        origins.retain(|filter| wanted.contains(filter));
        let mut failed = 0;
        for text in wanted {
            let Ok(filter) = TopicFilter::parse(text) else { continue };
            if origins.contains(text) {
                continue;
            }
            match self.index.insert(filter, Route::of_origin()) {
                Ok(_) => drop(origins.insert(text.clone())),
                Err(_) => failed += 1,
            }
        }
        if failed == 0 { Ok(()) } else { Err(failed) }
    }

    /// Texts of all groups that have one member over all linked clusters, and clients as members.
    pub(crate) fn linked_groups(&self) -> Vec<String> {
        let groups = self.groups.iter().flat_map(GroupDirectory::linked_with_clients);
        groups.map(|name| name.text()).collect()
    }

    /// Shared groups whose names hash to a shard.
    pub(crate) fn groups(&self, shard: ShardId) -> &GroupDirectory {
        &self.groups[shard.index()]
    }

    /// Returns whether the shards belong to the cluster.
    pub(crate) fn are_shards_agreed(&self) -> bool {
        self.are_shards_agreed
    }

    /// Connects the listener for changes. Only the first call has an effect.
    pub(crate) fn connect_peers(&self, peers: Arc<dyn Peers>) {
        if self.peers.set(peers).is_err() {
            debug_assert!(false, "a node belongs to one cluster");
        }
    }

    pub(crate) fn peers(&self) -> Option<&Arc<dyn Peers>> {
        self.peers.get()
    }

    pub(crate) fn insert(&self, filter: TopicFilter<'_>, route: Route) -> Result<(), IndexFull> {
        self.index.insert(filter, route)?;
        self.note(filter, route.kind, true);
        Ok(())
    }

    pub(crate) fn remove(&self, filter: TopicFilter<'_>, key: <Route as routing::Destination>::Key) {
        if self.index.remove(filter, key) != Removed::NotFound {
            self.note(filter, key.0, false);
        }
    }

    /// Adds the route to a shard that has a replica here. Other nodes that have one know the filter themselves.
    ///
    /// # Errors
    /// If the index is full. It is noted: see [`Self::unrouted`].
    pub(crate) fn insert_of_replica(&self, filter: TopicFilter<'_>, route: Route) -> Result<(), IndexFull> {
        let inserted = self.index.insert(filter, route);
        self.interest.note(filter);
        self.note_routed_of_shard(ShardId(route.index), filter.as_str(), inserted.is_ok());
        inserted.map(|_| ())
    }

    pub(crate) fn remove_of_replica(
        &self,
        filter: TopicFilter<'_>,
        key: <Route as routing::Destination>::Key,
    ) {
        self.index.remove(filter, key);
        self.interest.note(filter);
        self.note_routed_of_shard(ShardId(key.1), filter.as_str(), true);
    }

    /// Returns some of the filters and shared groups of a shard for which the index had no room, to try them again.
    pub(crate) fn some_unrouted_of_shard(&self, shard: ShardId) -> Vec<Box<str>> {
        let node = index_of_shard(shard);
        let unrouted = sync::lock(&self.unrouted);
        let from = unrouted.range((node, Box::default())..);
        let of_shard = from.take_while(|(of, _)| *of == node).take(RETRIED_AT_ONCE);
        of_shard.map(|(_, text)| text.clone()).collect()
    }

    /// Sets what another node wants of a filter; replaces what it wanted before.
    ///
    /// # Errors
    /// If the index is full, which is noted: see [`Self::unrouted`].
    pub fn set_peer(&self, filter: TopicFilter<'_>, node: NodeIndex, wants: Wants) -> Result<(), IndexFull> {
        let route = Route::of_node(node, wants);
        if wants.is_nothing() {
            if self.index.remove(filter, route.key()) != Removed::NotFound {
                self.of_peers.fetch_sub(1, Relaxed);
                self.interest.note(filter);
            }
            self.note_routed(node, filter.as_str(), true);
            return Ok(());
        }
        let inserted = self.index.insert(filter, route);
        self.interest.note(filter);
        self.note_routed(node, filter.as_str(), inserted.is_ok());
        if inserted? != Inserted::Replaced {
            self.of_peers.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Records whether a filter or `$share/{ShareName}/{filter}` of another node is settled: it is in the index, or no
    /// longer wanted.
    pub(crate) fn note_routed(&self, node: NodeIndex, text: &str, is_routed: bool) {
        if is_routed && self.unrouted_len.load(Acquire) == 0 {
            return;
        }
        let mut unrouted = sync::lock(&self.unrouted);
        if is_routed {
            unrouted.remove(&(node, text.into()));
        } else {
            unrouted.insert((node, text.into()));
        }
        self.unrouted_len.store(unrouted.len(), Release);
    }

    /// Records whether a filter or `$share/{ShareName}/{filter}` of a shard of the cluster is settled.
    pub(crate) fn note_routed_of_shard(&self, shard: ShardId, text: &str, is_routed: bool) {
        self.note_routed(index_of_shard(shard), text, is_routed);
    }

    /// Number of filters and shared groups of other nodes for which the index has no room. While there are any, this
    /// node does not know all receivers and must not acknowledge messages.
    pub fn unrouted(&self) -> usize {
        self.unrouted_len.load(Acquire)
    }

    /// Any one of those that [`Self::unrouted`] counts.
    pub fn any_unrouted(&self) -> Option<Box<str>> {
        let unrouted = sync::lock(&self.unrouted);
        unrouted.first().map(|(_, text)| text.clone())
    }

    /// Number of unusual arrangements of wildcards for which the node has room.
    pub fn shapes_free(&self) -> usize {
        self.index.limits().shapes_max.saturating_sub(self.index.unusual_shapes())
    }

    /// Records that a shard is notified of members on another node; [`Self::joined`] follows when the shard has handled
    /// that.
    pub(crate) fn joins(&self) {
        self.joining.fetch_add(1, Relaxed);
    }

    /// Records that a shard has handled members on another node. It is called after the index has the resulting change.
    pub(crate) fn joined(&self) {
        self.joining.fetch_sub(1, Release);
    }

    /// Returns whether the index still lacks members of groups on other nodes, which shards are about to handle.
    pub fn are_joining(&self) -> bool {
        self.joining.load(Acquire) > 0
    }

    /// Number of pairs of filter and destination on this node, without those of other nodes.
    pub(crate) fn own_len(&self) -> usize {
        let others = self.of_peers.load(Relaxed) + sync::lock(&self.origins).len();
        self.index.len().saturating_sub(others)
    }

    /// Changes since the last call, in the order of the notes.
    pub fn take_changes(&self) -> Vec<RouteChange> {
        std::mem::take(&mut *sync::lock(&self.changes))
    }

    /// Returns whether this node wants these messages of a filter now.
    pub fn is_wanted(&self, filter: TopicFilter<'_>, wants: Wants) -> bool {
        self.index.any_of(filter, |route| wants_of(route.kind) == wants)
    }

    /// Calls `f` for each destination of each filter: of this node (`None`) and of others.
    pub fn for_each_wanted(&self, mut f: impl FnMut(&str, Option<NodeIndex>, Wants)) {
        let reader = self.index.reader();
        self.index.for_each(&reader, |filter, route| match route.kind {
            RouteKind::Node => f(filter, Some(NodeIndex(route.index)), route.wants()),
            kind if !wants_of(kind).is_nothing() => f(filter, None, wants_of(kind)),
            _ => {}
        });
    }

    fn note(&self, filter: TopicFilter<'_>, kind: RouteKind, is_added: bool) {
        self.interest.note(filter);
        let Some(peers) = self.peers.get() else { return };
        let (wants, text) = (wants_of(kind), filter.as_str());
        // Messages that a node publishes about itself stay on that node. Bridges publish about themselves as clients.
        let is_own = text.starts_with(retained::SYS) && !text.starts_with(retained::BRIDGES);
        if wants.is_nothing() || is_own {
            return;
        }
        self.push(&**peers, RouteChange::Filter { filter: text.into(), wants, is_added });
    }

    /// Records new members of a shared group on this node.
    pub(crate) fn note_group(&self, text: &str, members: Members) {
        if let Some(peers) = self.peers.get() {
            self.push(&**peers, RouteChange::Group { text: text.into(), members });
        }
    }

    fn push(&self, peers: &dyn Peers, change: RouteChange) {
        let mut changes = sync::lock(&self.changes);
        let is_first = changes.is_empty();
        changes.push(change);
        drop(changes);
        if is_first {
            peers.routes_changed();
        }
    }

    /// Sets whether another node is reachable.
    pub fn set_reachable(&self, node: NodeIndex, is_up: bool) {
        let Some(word) = self.down.get(usize::from(node.0 / 64)) else { return };
        let bit = 1 << (node.0 % 64);
        if is_up {
            word.fetch_and(!bit, Relaxed)
        } else {
            word.fetch_or(bit, Relaxed)
        };
    }

    /// Records that another node has lost or refused messages on the way to it. A publisher that got no acknowledgement
    /// sends its message again, and that message is then forwarded to this node again.
    pub fn has_lost(&self, node: NodeIndex) {
        if let Some(lost) = self.lost.get(usize::from(node.0)) {
            lost.store(self.losses.fetch_add(1, Relaxed) + 1, Release);
        }
    }

    /// Number of losses so far, for [`Self::may_have_lost`].
    pub(crate) fn losses(&self) -> u32 {
        self.losses.load(Relaxed)
    }

    /// Returns whether a node may have lost a message that was sent when there were `losses` losses. A node that has no
    /// slot here may have.
    pub(crate) fn may_have_lost(&self, node: NodeIndex, losses: u32) -> bool {
        self.lost.get(usize::from(node.0)).is_none_or(|lost| lost.load(Acquire) > losses)
    }

    pub(crate) fn is_up(&self, node: NodeIndex) -> bool {
        self.down
            .get(usize::from(node.0 / 64))
            .is_none_or(|word| word.load(Relaxed) & 1 << (node.0 % 64) == 0)
    }
}

impl Deref for Routes {
    type Target = Arc<Index<Route>>;

    fn deref(&self) -> &Self::Target {
        &self.index
    }
}

fn wants_of(kind: RouteKind) -> Wants {
    match kind {
        RouteKind::Connection => Wants::ALL,
        RouteKind::ConnectionQos0 => Wants::QOS0,
        RouteKind::ConnectionLink => Wants::LINK,
        RouteKind::Shard => Wants::STORED,
        RouteKind::Origin
        | RouteKind::ShardGroups
        | RouteKind::Session
        | RouteKind::Group
        | RouteKind::Node => Wants::NOTHING,
    }
}
