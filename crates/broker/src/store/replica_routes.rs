//! Routes of a replica, with its route position and the last changes.

use std::collections::{BTreeSet, VecDeque};

use super::shard_routes::ShardRoutes;

/// Routes of the Topic Filters of a shard, as a replica on this node applies them.
///
/// The *route position* of a node is an index of the shard's log: the node has made all changes of the shard's filters
/// up to it. That of a replica is the index of the last record that added or removed a filter, or of the last entry of
/// the agreement's own. Both are the same on all replicas that have applied them, so each replica reaches the position
/// of the leader. A restored state has all changes up to its own index.
///
/// Nodes without a replica learn the changes from any leader: every replica keeps the last ones.
pub(crate) struct ReplicaRoutes {
    routes: ShardRoutes,
    /// Index of the last record with changes, or of the state that was restored.
    position: u64,
    /// Index of the record that is being applied, and whether it has changed anything.
    current: (u64, bool),
    /// Last changes, oldest first: all with an index above `complete_after`.
    changes: VecDeque<RouteChange>,
    /// Bytes of the filters in `changes`.
    bytes: usize,
    complete_after: u64,
    /// Filters that were removed while a learner kept the routes of the shard, too. They are in the index still, unless
    /// they were added again.
    held: Option<BTreeSet<Box<str>>>,
}

/// A Topic Filter that the first session of a shard has subscribed to, or the last one has unsubscribed from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteChange {
    /// Index of the record.
    pub index: u64,
    pub is_added: bool,
    pub filter: Box<str>,
}

/// Maximum number of changes that a replica keeps, and their maximum bytes. A node that lacks more gets a copy.
const CHANGES_MAX: usize = 4096;
const CHANGES_BYTES_MAX: usize = 1024 * 1024;

impl ReplicaRoutes {
    pub fn new(routes: ShardRoutes) -> Self {
        Self {
            routes,
            position: 0,
            current: (0, false),
            changes: VecDeque::new(),
            bytes: 0,
            complete_after: 0,
            held: None,
        }
    }

    /// Changes the routes to those of a state that replaces another one.
    pub fn restore(&mut self, before: &BTreeSet<Box<str>>, state: &shard::Shard) {
        match &mut self.held {
            Some(held) => {
                state.filters().into_iter().for_each(|filter| {
                    self.routes.add(&filter);
                });
                held.extend(before.iter().cloned());
            }
            None => self.routes.replace(before, state),
        }
        self.position = self.position.max(state.applied());
        self.current = (0, false);
        self.changes.clear();
        (self.bytes, self.complete_after) = (0, self.position);
    }

    /// Begins to apply a record, or continues.
    pub fn begin(&mut self, index: u64) {
        if self.current.0 != index {
            self.current = (index, false);
        }
    }

    /// Adds the route of a filter. Returns the filter when the index has no room.
    pub fn add(&mut self, filter: Box<str>) -> Option<Box<str>> {
        let unrouted = (!self.routes.add(&filter)).then(|| filter.clone());
        self.note(true, filter);
        unrouted
    }

    pub fn remove(&mut self, filter: Box<str>) {
        match &mut self.held {
            Some(held) => drop(held.insert(filter.clone())),
            None => self.routes.remove(&filter),
        }
        self.note(false, filter);
    }

    /// Ends a record that has been applied as a whole.
    pub fn end(&mut self) {
        let (index, has_changed) = std::mem::take(&mut self.current);
        if has_changed {
            self.position = index;
        }
    }

    /// Index up to which all changes are made. `passed_over`: of the last entry of the agreement's own.
    pub fn position(&self, passed_over: u64) -> u64 {
        self.position.max(passed_over)
    }

    /// Moves the position to an index that another node has, if all changes up to it are made. `passed_on`: index up to
    /// which the replica has passed on its changes.
    pub fn reach(&mut self, index: u64, passed_on: u64) {
        let is_complete = match self.current {
            (0, _) => index <= passed_on,
            (current, _) => index < current,
        };
        if is_complete {
            self.position = self.position.max(index);
        }
    }

    /// Position after all changes whose effects have begun: that of a record that is applied in part, too.
    pub fn position_begun(&self, passed_over: u64) -> u64 {
        match self.current {
            (index, true) => index,
            _ => self.position(passed_over),
        }
    }

    /// Index after which no change is missing here.
    pub fn complete_after(&self) -> u64 {
        self.complete_after
    }

    /// Changes of records with a greater index, in their order.
    pub fn changes_after(&self, index: u64) -> impl Iterator<Item = &RouteChange> {
        let from = self.changes.partition_point(|change| change.index <= index);
        self.changes.range(from..)
    }

    /// Keeps removed filters in the index until [`Self::release`]: a learner of this node may know newer routes.
    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Removes the routes of filters that are not in the state: those that were held, and those of the learner.
    pub fn release(&mut self, learned: BTreeSet<Box<str>>, state: &shard::Shard) {
        let mut gone = self.held.take().unwrap_or_default();
        gone.extend(learned);
        let filters = state.filters();
        gone.iter()
            .filter(|filter| !filters.contains(&***filter))
            .for_each(|filter| self.routes.remove(filter));
    }

    /// Filters that are in the index for this replica only because they are held, for a learner that has removed one.
    pub fn held_mut(&mut self) -> Option<&mut BTreeSet<Box<str>>> {
        self.held.as_mut()
    }

    /// Filters that a replica that ends leaves in the index.
    pub fn into_filters(self, state: &shard::Shard) -> BTreeSet<Box<str>> {
        let mut filters = self.held.unwrap_or_default();
        filters.extend(state.filters().into_iter().map(|text| text.into_owned().into()));
        filters
    }

    fn note(&mut self, is_added: bool, filter: Box<str>) {
        if !self.routes.is_agreed() {
            return;
        }
        self.current.1 = true;
        self.bytes += filter.len();
        self.changes.push_back(RouteChange { index: self.current.0, is_added, filter });
        while self.changes.len() > CHANGES_MAX || self.bytes > CHANGES_BYTES_MAX {
            self.drop_record();
        }
    }

    /// Drops the changes of the oldest record.
    fn drop_record(&mut self) {
        let Some(first) = self.changes.front() else { return };
        self.complete_after = first.index;
        while let Some(change) = self.changes.pop_front_if(|change| change.index <= self.complete_after) {
            self.bytes -= change.filter.len();
        }
    }
}
