//! The node's index, and what other nodes are to hear of its changes.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mqtt::TopicFilter;
use routing::{Destination as _, Index, IndexFull, Inserted, Removed};

use crate::peers::{Members, NodeIndex, Peers, Wants};
use crate::retained;
use crate::route::{Route, RouteKind};

/// Who wants a topic: connections and shards of this node, and other nodes of a cluster.
///
/// **Invariant:** what is in the index was changed before the change was noted, so that whoever reads a note and then looks at the index
/// sees what is so now, or another note follows.
pub struct Routes {
    index: Arc<Index<Route>>,
    changes: Mutex<Vec<RouteChange>>,
    /// Whoever hears of changes; nobody on a node without others.
    peers: OnceLock<Arc<dyn Peers>>,
    /// Pairs of filter and other node in the index.
    of_peers: AtomicUsize,
    /// Members of groups on other nodes that shards have not heard of yet.
    joining: AtomicUsize,
    /// Nodes that are cut off, as bits; those beyond are taken to be there.
    down: [AtomicU64; 16],
    /// What other nodes want and this one has no room for: filters and shared groups by node. Empty, unless the index is full.
    unrouted: Mutex<BTreeSet<(NodeIndex, Box<str>)>>,
    /// Size of `unrouted`.
    unrouted_len: AtomicUsize,
    /// How often another node has lost what was on its way to it, and which time of these was the last of each.
    losses: AtomicU32,
    lost: [AtomicU32; 1024],
}

/// What other nodes are to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// This node has somebody more, or somebody less, who wants a filter.
    Filter { filter: Box<str>, wants: Wants, is_added: bool },
    /// A shared group, `$share/{ShareName}/{filter}`, has these members here.
    Group { text: Box<str>, members: Members },
}

impl Routes {
    pub(crate) fn new(index: Index<Route>) -> Self {
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
        }
    }

    /// Somebody hears of changes from now on. The first call counts.
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

    /// Another node wants this of a filter; replaces what it wanted before.
    ///
    /// # Errors
    /// When the index is full, which is noted: see [`Self::unrouted`].
    pub fn set_peer(&self, filter: TopicFilter<'_>, node: NodeIndex, wants: Wants) -> Result<(), IndexFull> {
        let route = Route::of_node(node, wants);
        if wants.is_nothing() {
            if self.index.remove(filter, route.key()) != Removed::NotFound {
                self.of_peers.fetch_sub(1, Relaxed);
            }
            self.note_routed(node, filter.as_str(), true);
            return Ok(());
        }
        let inserted = self.index.insert(filter, route);
        self.note_routed(node, filter.as_str(), inserted.is_ok());
        if inserted? != Inserted::Replaced {
            self.of_peers.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Notes whether what another node wants, a filter or `$share/{ShareName}/{filter}`, is in the index, or wanted no more.
    pub(crate) fn note_routed(&self, node: NodeIndex, text: &str, is_routed: bool) {
        if is_routed && self.unrouted_len.load(Acquire) == 0 {
            return;
        }
        let mut unrouted = self.unrouted.lock().unwrap_or_else(PoisonError::into_inner);
        if is_routed {
            unrouted.remove(&(node, text.into()));
        } else {
            unrouted.insert((node, text.into()));
        }
        self.unrouted_len.store(unrouted.len(), Release);
    }

    /// Number of filters and shared groups of other nodes that the index has no room for. While there are any, this node must not
    /// acknowledge messages: it does not know everybody who wants them.
    pub fn unrouted(&self) -> usize {
        self.unrouted_len.load(Acquire)
    }

    /// One of those that [`Self::unrouted`] counts.
    pub fn any_unrouted(&self) -> Option<Box<str>> {
        let unrouted = self.unrouted.lock().unwrap_or_else(PoisonError::into_inner);
        unrouted.first().map(|(_, text)| text.clone())
    }

    /// Unusual arrangements of wildcards that the node still takes.
    pub fn shapes_free(&self) -> usize {
        self.index.limits().shapes_max.saturating_sub(self.index.unusual_shapes())
    }

    /// A shard is told of members on another node, and [`Self::joined`] when it has dealt with that.
    pub(crate) fn joins(&self) {
        self.joining.fetch_add(1, Relaxed);
    }

    /// After the index has what follows from it.
    pub(crate) fn joined(&self) {
        self.joining.fetch_sub(1, Release);
    }

    /// Whether what other nodes want is in the index but for members of groups, of which shards are about to hear.
    pub fn are_joining(&self) -> bool {
        self.joining.load(Acquire) > 0
    }

    /// Pairs of filter and destination on this node: without what other nodes want.
    pub(crate) fn own_len(&self) -> usize {
        self.index.len().saturating_sub(self.of_peers.load(Relaxed))
    }

    /// What has changed since the last call, in the order of the notes.
    pub fn take_changes(&self) -> Vec<RouteChange> {
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether somebody on this node wants this of a filter now.
    pub fn is_wanted(&self, filter: TopicFilter<'_>, wants: Wants) -> bool {
        self.index.any_of(filter, |route| wants_of(route.kind) == wants)
    }

    /// Who wants what, of this node (`None`) and of the others: each filter as often as somebody wants it.
    pub fn for_each_wanted(&self, mut f: impl FnMut(&str, Option<NodeIndex>, Wants)) {
        let reader = self.index.reader();
        self.index.for_each(&reader, |filter, route| match route.kind {
            RouteKind::Node => f(filter, Some(NodeIndex(route.index)), route.wants()),
            kind if !wants_of(kind).is_nothing() => f(filter, None, wants_of(kind)),
            _ => {}
        });
    }

    fn note(&self, filter: TopicFilter<'_>, kind: RouteKind, is_added: bool) {
        let Some(peers) = self.peers.get() else { return };
        let (wants, text) = (wants_of(kind), filter.as_str());
        // What a node publishes about itself stays on that node. Bridges publish about themselves as clients.
        let is_own = text.starts_with(retained::SYS) && !text.starts_with(retained::BRIDGES);
        if wants.is_nothing() || is_own {
            return;
        }
        self.push(&**peers, RouteChange::Filter { filter: text.into(), wants, is_added });
    }

    /// A shared group has other members here than before.
    pub(crate) fn note_group(&self, text: &str, members: Members) {
        if let Some(peers) = self.peers.get() {
            self.push(&**peers, RouteChange::Group { text: text.into(), members });
        }
    }

    fn push(&self, peers: &dyn Peers, change: RouteChange) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = changes.is_empty();
        changes.push(change);
        drop(changes);
        if is_first {
            peers.routes_changed();
        }
    }

    /// Whether another node is there, or cut off.
    pub fn set_reachable(&self, node: NodeIndex, is_up: bool) {
        let Some(word) = self.down.get(usize::from(node.0 / 64)) else { return };
        let bit = 1 << (node.0 % 64);
        if is_up {
            word.fetch_and(!bit, Relaxed)
        } else {
            word.fetch_or(bit, Relaxed)
        };
    }

    /// Another node has lost, or not taken, what was on its way to it: a message whose publisher was not told of it, and says it again, goes there again.
    pub fn has_lost(&self, node: NodeIndex) {
        if let Some(lost) = self.lost.get(usize::from(node.0)) {
            lost.store(self.losses.fetch_add(1, Relaxed) + 1, Release);
        }
    }

    /// For [`Self::may_have_lost`].
    pub(crate) fn losses(&self) -> u32 {
        self.losses.load(Relaxed)
    }

    /// Whether a node may have lost what was sent to it when there had been so many losses. One for which there is no place here may have.
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
        RouteKind::Shard => Wants::STORED,
        RouteKind::ShardGroups | RouteKind::Session | RouteKind::Group | RouteKind::Node => Wants::NOTHING,
    }
}
