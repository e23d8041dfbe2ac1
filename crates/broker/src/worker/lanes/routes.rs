//! Routes of shards that have no replica on this node: the worker of the shard learns them from its leader.
//!
//! The worker asks, and the leader answers with a page. Each request says what the worker has, so the leader keeps
//! nothing between two requests, and any leader can continue. When there is nothing new, the leader keeps the request
//! and answers it at the next change. A node that lacks more changes than the replicas keep gets a copy of all filters,
//! and then the changes since the copy was begun.
//!
//! A replica that lacks changes for long has a learner next to it. So has one that begins here.
//!
//! While nobody leads a shard, a node that has restarted learns its routes from any node that has gone on: positions
//! are indexes of the shard's log, which mean the same on all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use shard::{Mutation, NodeIncarnation, mutated};

use super::Lanes;
use super::frame::{Page, PageFlags, Progress, RoutesWanted};
use crate::ids::{ShardId, Time, WorkerId};
use crate::node::Node;
use crate::peers::{MemberIncarnations, Port};
use crate::store::{Follower, ReplicaRoutes, ShardHost, ShardRoutes};
use crate::worker::Worker;

/// Route learners of a worker.
#[derive(Default)]
pub(super) struct Learning {
    learners: BTreeMap<ShardId, Learner>,
    /// Number of the last request.
    last: u64,
    /// Shards whose replica on this node lacks changes that other nodes have made.
    lacking: BTreeMap<ShardId, Lacking>,
}

/// Changes that a replica lacks: those up to an index that another node has named at some time.
struct Lacking {
    index: u64,
    since: Time,
}

/// Time for which a replica may lack changes before the worker learns them from the leader. A replica applies in less
/// time what it receives, unless it installs a state.
const LEARN_AFTER: Duration = Duration::from_secs(1);

/// Routes of a shard that has no replica on this node, or one that has not caught up yet.
struct Learner {
    routes: ShardRoutes,
    filters: BTreeSet<Box<str>>,
    /// All changes up to this index are made, and so many of those that follow.
    position: u64,
    taken: u32,
    /// Part of a copy that has come, and the position of the leader when it was begun. It takes effect as a whole.
    copy: Option<(u64, BTreeSet<Box<str>>)>,
    /// Node that has the last request, and the number of that.
    asked: Option<(u64, u64)>,
    /// Node that knows more, while nobody leads the shard.
    source: Option<u64>,
    /// Index up to which the replica on this node lacks changes; 0 if it need not reach one.
    until: u64,
}

/// Requests for routes that the shards of this worker answer.
#[derive(Default)]
pub(super) struct Sharing {
    /// Last request of each node, until it is answered.
    kept: BTreeMap<(ShardId, u64), RoutesWanted>,
    /// Filters of shards while nodes copy them.
    copies: BTreeMap<ShardId, RouteCopy>,
}

/// Routes of a shard that this node leads, or knows while nobody leads it.
struct Source<'a> {
    shard: ShardId,
    /// Route position of this node.
    position: u64,
    /// Last changes, if this node has a replica.
    routes: Option<&'a ReplicaRoutes>,
    /// Collects all filters, in their order.
    filters: &'a dyn Fn() -> Vec<Box<str>>,
}

/// All filters of a shard, in their order.
struct RouteCopy {
    /// Route position at which they were collected.
    position: u64,
    filters: Vec<Box<str>>,
}

impl Learning {
    /// Goes on in another incarnation of this node. Leaders are announced again.
    pub fn restart(&mut self) {
        self.learners.values_mut().for_each(|learner| learner.asked = None);
    }
}

impl Learner {
    fn new(routes: ShardRoutes, position: u64, filters: BTreeSet<Box<str>>) -> Self {
        Self { routes, filters, position, taken: 0, copy: None, asked: None, source: None, until: 0 }
    }

    fn progress(&self) -> Progress {
        match self.copy.as_ref().and_then(|(position, filters)| Some((*position, filters.last()?.clone()))) {
            Some((position, filter)) => Progress::Copy { position, filter },
            None => Progress::Changes { position: self.position, taken: self.taken },
        }
    }

    /// Returns whether a replica with this position knows all that the learner does, or is about to. If another node
    /// than the leader was asked, the learner knows no more than the replica until that answers.
    fn is_reached(&self, position: u64) -> bool {
        let waits_for_source = self.source.is_some() && self.asked.is_some();
        self.position.max(self.until) <= position && !waits_for_source
    }

    /// Takes a page that answers the last request. `held`: filters that the index keeps for the replica of the shard
    /// here, if there is one.
    fn take(&mut self, page: &Page<'_>, mut held: Option<&mut BTreeSet<Box<str>>>) {
        let mut remove = |routes: &ShardRoutes, filter: &str| match &mut held {
            Some(held) => drop(held.insert(filter.into())),
            None => routes.remove(filter),
        };
        if !page.flags.is_copy {
            for (is_added, filter) in page.routes() {
                if is_added {
                    self.routes.add(filter);
                    self.filters.insert(filter.into());
                } else {
                    remove(&self.routes, filter);
                    self.filters.remove(filter);
                }
            }
            (self.position, self.taken) = (self.position.max(page.position), page.taken);
            return;
        }
        let is_begun = self.copy.as_ref().is_some_and(|(position, _)| *position == page.position);
        if page.flags.is_first || !is_begun {
            self.copy = Some((page.position, BTreeSet::new()));
        }
        let Some((_, filters)) = &mut self.copy else { return };
        filters.extend(page.routes().map(|(_, filter)| Box::from(filter)));
        if !page.flags.is_last {
            return;
        }
        let filters = self.copy.take().map(|(_, filters)| filters).unwrap_or_default();
        filters.difference(&self.filters).for_each(|filter| {
            self.routes.add(filter);
        });
        self.filters.difference(&filters).for_each(|filter| remove(&self.routes, filter));
        self.filters = filters;
        (self.position, self.taken) = (self.position.max(page.position), 0);
    }
}

impl Sharing {
    /// Drops what waits for a shard that this node does not lead any more.
    pub fn end_shard(&mut self, shard: ShardId) {
        self.kept.retain(|(of, _), _| *of != shard);
        self.copies.remove(&shard);
    }

    /// Drops the requests of a node whose link is down.
    pub fn end_node(&mut self, node: u64) {
        self.kept.retain(|(_, of), _| *of != node);
        // Another node that copies gets a new list.
        self.copies.clear();
    }

    /// Drops the requests of incarnations that are over by a new roster.
    pub fn end_incarnations(&mut self, members: &MemberIncarnations) {
        let owner = |node, wanted: &RoutesWanted| NodeIncarnation { node, incarnation: wanted.incarnation };
        self.kept.retain(|(_, node), wanted| !members.has_ended(owner(*node, wanted)));
    }

    /// Answers the requests for a shard that can be answered now. Returns the nodes and workers with their frames.
    fn answer(&mut self, shard: ShardId, host: &ShardHost) -> Vec<(u64, WorkerId, Vec<u8>)> {
        let Self { kept, copies } = self;
        let mut frames = Vec::new();
        let filters = || host.state().filters().into_iter().map(|text| text.into_owned().into()).collect();
        let (position, routes) = (host.route_position(), host.routes());
        let source = Source { shard, position, routes: Some(routes), filters: &filters };
        kept.retain(|(of, node), wanted| {
            let page = if *of == shard { source.page(wanted, copies) } else { None };
            let is_kept = page.is_none();
            frames.extend(page.map(|bytes| (*node, WorkerId(wanted.worker), bytes)));
            is_kept
        });
        frames
    }
}

impl Source<'_> {
    /// Makes the next page for a node; `None` when there is nothing new.
    fn page(&self, wanted: &RoutesWanted, copies: &mut BTreeMap<ShardId, RouteCopy>) -> Option<Vec<u8>> {
        let complete_after = self.complete_after();
        match &wanted.progress {
            // One record has more changes than a replica keeps, and is applied in part.
            _ if complete_after > self.position => None,
            Progress::Changes { position, .. } if *position >= self.position => None,
            Progress::Changes { position, taken } if *position >= complete_after => {
                Some(self.changes_page(wanted, (*position, *taken)))
            }
            Progress::Copy { position, filter } if (complete_after..=self.position).contains(position) => {
                Some(self.copy_page(wanted, Some((*position, filter)), copies))
            }
            _ => Some(self.copy_page(wanted, None, copies)),
        }
    }

    /// Index after which no change is missing in the list of changes.
    fn complete_after(&self) -> u64 {
        self.routes.map_or(self.position, ReplicaRoutes::complete_after)
    }

    /// Makes a page of changes.
    fn changes_page(&self, wanted: &RoutesWanted, (from, skip): (u64, u32)) -> Vec<u8> {
        let (mut items, mut reached, mut last) = (Vec::new(), (from, skip), u64::MAX);
        let changes = self.routes.into_iter().flat_map(|routes| routes.changes_after(from));
        let changes = changes.take_while(|change| change.index <= self.position);
        let mut is_whole = true;
        for change in changes.skip(skip as usize) {
            if !Page::push(change.is_added, &change.filter, &mut items) {
                is_whole = false;
                break;
            }
            reached = if last < change.index { (last, 1) } else { (reached.0, reached.1 + 1) };
            last = change.index;
        }
        let reached = if is_whole { (self.position, 0) } else { reached };
        let id = (self.shard, wanted.number);
        Page::new(wanted.incarnation, id, PageFlags::default(), reached, &items).encode()
    }

    /// Makes a page of a copy. `progress`: position at which the node has begun it, and the last filter that it has;
    /// `None` at the beginning. The list may be newer than that position: the node gets the changes after it, too.
    fn copy_page(
        &self,
        wanted: &RoutesWanted,
        progress: Option<(u64, &str)>,
        copies: &mut BTreeMap<ShardId, RouteCopy>,
    ) -> Vec<u8> {
        let needed = progress.map_or(self.complete_after(), |(position, _)| position);
        if copies.get(&self.shard).is_some_and(|copy| copy.position < needed) {
            copies.remove(&self.shard);
        }
        let copy = copies
            .entry(self.shard)
            .or_insert_with(|| RouteCopy { position: self.position, filters: (self.filters)() });
        let (position, filter) = progress.unwrap_or((copy.position, ""));
        let from = copy.filters.partition_point(|known| **known <= *filter);
        let mut items = Vec::new();
        let is_last = copy.filters[from..].iter().all(|filter| Page::push(true, filter, &mut items));
        if is_last {
            copies.remove(&self.shard);
        }
        let flags = PageFlags { is_copy: true, is_first: progress.is_none(), is_last };
        Page::new(wanted.incarnation, (self.shard, wanted.number), flags, (position, 0), &items).encode()
    }
}

impl Lanes {
    /// Begins to learn the routes of a shard that has no replica on this node.
    pub(in crate::worker) fn learn(&mut self, node: &Arc<Node>, shard: ShardId) {
        let learner = Learner::new(ShardRoutes::new(node.routes.clone(), shard, true), 0, BTreeSet::new());
        self.learning.learners.entry(shard).or_insert(learner);
    }
}

impl Worker {
    /// Adds a replica of a shard that begins on this node. The learner of the shard ends when the replica has caught
    /// up with it.
    pub(in crate::worker) fn learn_until_known(&mut self, shard: ShardId, mut replica: Follower) {
        let is_learned =
            self.lanes.as_ref().is_some_and(|lanes| lanes.learning.learners.contains_key(&shard));
        if is_learned {
            replica.routes_mut().0.hold();
        }
        self.shards.add(replica);
    }

    /// Ends the replica of a shard. A learner continues with its routes.
    pub(in crate::worker) fn stop_replica_and_learn(&mut self, shard: ShardId) {
        let Some((position, filters)) = self.shards.remove(shard) else { return };
        let Some(lanes) = &mut self.lanes else { return };
        match lanes.learning.learners.get(&shard) {
            // The replica had not caught up.
            Some(learner) => {
                filters.difference(&learner.filters).for_each(|filter| learner.routes.remove(filter))
            }
            None => {
                let routes = ShardRoutes::new(self.node.routes.clone(), shard, true);
                let learner = Learner::new(routes, position, filters);
                lanes.learning.learners.insert(shard, learner);
                self.ask_routes(shard);
            }
        }
    }

    /// Adds routes of this worker's shards for which the index had no room. Publishers wait on this node meanwhile.
    pub(in crate::worker) fn retry_routes(&self) {
        if self.lanes.is_none() || self.node.routes.unrouted() == 0 {
            return;
        }
        for shard in self.node.hosted(self.id) {
            ShardRoutes::new(self.node.routes.clone(), shard, true).retry();
        }
    }

    /// Asks a node that knows more routes of a shard than this one, while nobody leads the shard. A replica of this
    /// node applies nothing without a leader, so a learner goes on in its place.
    pub(in crate::worker) fn routes_known_by(&mut self, shard: ShardId, node: u64) {
        let Some(lanes) = &self.lanes else { return };
        if lanes.asking.leader(shard).is_some() || self.shards.get(shard).is_some() {
            return;
        }
        if let Some(learner) = self.learn_next_to_replica(shard) {
            learner.source = Some(node);
            self.ask_routes(shard);
        }
    }

    /// Handles that another node has made all changes of a shard up to this index. If the replica of this node lacks
    /// some for long, the worker learns them from the leader: until the node knows them, it has no lease, and a replica
    /// that installs a state may need minutes for the messages.
    pub(in crate::worker) fn routes_known_up_to(&mut self, shard: ShardId, index: u64) {
        self.shards.reach_route_position(shard, index);
        let is_hosted = self.shards.get(shard).is_some();
        let Some(lanes) = self.lanes.as_mut().filter(|_| !is_hosted) else { return };
        let replica = self.shards.route_positions().find(|(known, _)| *known == shard);
        let Some((_, position)) = replica else { return };
        let (now, Learning { learners, lacking, .. }) = (self.clock.now(), &mut lanes.learning);
        if position >= index || learners.contains_key(&shard) {
            lacking.remove(&shard);
            return;
        }
        let known = lacking.entry(shard).or_insert(Lacking { index, since: now });
        if known.index <= position {
            *known = Lacking { index, since: now };
        }
        if known.since.after(LEARN_AFTER) > now {
            return;
        }
        lacking.remove(&shard);
        lanes.counters.learned_for_replicas += 1;
        if let Some(learner) = self.learn_next_to_replica(shard) {
            learner.until = index;
            self.ask_routes(shard);
        }
    }

    /// Begins to learn the routes of a shard next to a replica of this node. The learner begins with the replica's
    /// filters: it goes on alone if the replica ends.
    fn learn_next_to_replica(&mut self, shard: ShardId) -> Option<&mut Learner> {
        let learners = &mut self.lanes.as_mut()?.learning.learners;
        let position = self.shards.route_positions().find(|(known, _)| *known == shard);
        let position = position.map_or(0, |(_, position)| position);
        let replica = self.shards.routes_mut(shard);
        Some(learners.entry(shard).or_insert_with(|| {
            let filters = replica.map(|(routes, state)| {
                routes.hold();
                state.filters().into_iter().map(|text| text.into_owned().into()).collect()
            });
            let routes = ShardRoutes::new(self.node.routes.clone(), shard, true);
            Learner::new(routes, position, filters.unwrap_or_default())
        }))
    }

    /// Asks the leader of a shard for the routes that this node lacks.
    pub(super) fn ask_routes(&mut self, shard: ShardId) {
        let Some(lanes) = &mut self.lanes else { return };
        let Learning { learners, last, .. } = &mut lanes.learning;
        let Some(learner) = learners.get_mut(&shard) else { return };
        let leader = lanes.asking.leader(shard);
        learner.source.take_if(|_| leader.is_some());
        let Some(node) = leader.or(learner.source) else { return };
        *last += 1;
        if mutated(Mutation::SkipRouteChanges) && learner.asked.is_some_and(|(asked, _)| asked != node) {
            learner.taken += 1;
        }
        learner.asked = Some((node, *last));
        let wanted = RoutesWanted {
            incarnation: lanes.own.incarnation,
            worker: self.id.0,
            number: *last,
            progress: learner.progress(),
        };
        self.send_frame(node, Port::Shard(shard), wanted.encode());
    }

    /// Handles a request for routes. Without a host, a node answers at once if it knows all that it has to know, and
    /// more than the other one. Otherwise it does not answer: the next leader is announced.
    pub(super) fn take_routes_wanted(&mut self, node: u64, shard: ShardId, wanted: RoutesWanted) {
        let owner = NodeIncarnation { node, incarnation: wanted.incarnation };
        let is_led = self.shards.get(shard).is_some_and(|host| host.term() > 0);
        let Some(lanes) = &mut self.lanes else { return };
        if node == 0 {
            lanes.counters.malformed += 1;
        } else if is_led && self.shards.ended_by(shard, owner).is_none() {
            lanes.sharing.kept.insert((shard, node), wanted);
            self.share_routes(shard);
        } else if !is_led && self.node.knows_routes() && self.shards.ended_by(shard, owner).is_none() {
            self.share_known_routes(node, shard, &wanted);
        }
    }

    /// Answers a request for routes of a shard that this node does not lead.
    fn share_known_routes(&mut self, node: u64, shard: ShardId, wanted: &RoutesWanted) {
        let Some(lanes) = &mut self.lanes else { return };
        let learner = lanes.learning.learners.get(&shard);
        let replica = self.shards.route_positions().find(|(known, _)| *known == shard);
        let replica = replica.zip(self.shards.routes_mut(shard));
        let filters = || -> Vec<Box<str>> {
            let of_state = replica.iter().flat_map(|(_, (_, state))| state.filters());
            match learner {
                Some(learner) => learner.filters.iter().cloned().collect(),
                None => of_state
                    .map(|text| text.into_owned().into())
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect(),
            }
        };
        let (position, routes) = match (learner, &replica) {
            (Some(learner), _) => (learner.position, None),
            (None, Some(((_, position), (routes, _)))) => (*position, Some(&**routes)),
            (None, None) => return,
        };
        let source = Source { shard, position, routes, filters: &filters };
        if let Some(bytes) = source.page(wanted, &mut lanes.sharing.copies) {
            self.send_frame(node, Port::Worker(WorkerId(wanted.worker)), bytes);
        }
    }

    /// Answers the requests for routes of a shard that this node leads.
    fn share_routes(&mut self, shard: ShardId) {
        let Some(lanes) = &mut self.lanes else { return };
        let Some(host) = self.shards.get(shard) else { return };
        for (node, worker, bytes) in lanes.sharing.answer(shard, host) {
            self.send_frame(node, Port::Worker(worker), bytes);
        }
    }

    /// Handles a page of routes. Drops one that answers no request.
    pub(super) fn take_routes(&mut self, node: u64, page: &Page<'_>) {
        let Some(lanes) = &mut self.lanes else { return };
        let Some(learner) = lanes.learning.learners.get_mut(&page.shard) else { return };
        if page.incarnation != lanes.own.incarnation || learner.asked != Some((node, page.number)) {
            return;
        }
        learner.asked = None;
        let routes = self.shards.routes_mut(page.shard);
        learner.take(page, routes.and_then(|(routes, _)| routes.held_mut()));
        self.routes_moved();
        self.ask_routes(page.shard);
    }

    /// Reports the route positions that have changed, and releases what has waited for them.
    pub(in crate::worker) fn routes_moved(&mut self) {
        let Some(lanes) = &mut self.lanes else { return };
        let Learning { learners, .. } = &mut lanes.learning;
        // A replica that has all changes up to an index, and none at it, is not at that position by itself.
        for (shard, learner) in learners.iter() {
            self.shards.reach_route_position(*shard, learner.position.max(learner.until));
        }
        // Most calls find that nothing has moved.
        let (mut moved, mut ended) = (Vec::new(), Vec::new());
        let learned = learners.iter().map(|(shard, learner)| (*shard, learner.position));
        for (shard, position) in self.shards.route_positions().chain(learned) {
            let reached = &mut lanes.reached[shard.index()];
            if position > *reached {
                *reached = position;
                moved.push((shard, position));
            }
        }
        for (shard, position) in self.shards.route_positions() {
            if learners.get(&shard).is_some_and(|learner| learner.is_reached(position)) {
                ended.push(shard);
            }
        }
        for shard in ended {
            let learner = learners.remove(&shard);
            if let Some((learner, (routes, state))) = learner.zip(self.shards.routes_mut(shard)) {
                routes.release(learner.filters, state);
            }
        }
        self.peers.outbound.route_positions.extend(&moved);
        for (shard, position) in moved {
            self.share_routes(shard);
            self.tell_reached(shard, position);
        }
    }
}

#[cfg(test)]
mod tests {
    use random::Random;
    use routing::{Index, IndexLimits};

    use super::super::frame::{ToWorker, decode_answers};
    use super::*;
    use crate::routes::Routes;

    const SHARD: ShardId = ShardId(3);

    type Filters = BTreeSet<Box<str>>;

    /// A record with changes.
    struct Record {
        index: u64,
        changes: Vec<(bool, Box<str>)>,
    }

    /// A replica of a shard whose records change filters only.
    struct Replica {
        routes: ReplicaRoutes,
        filters: Filters,
        /// Number of records that it has applied.
        applied: usize,
        copies: BTreeMap<ShardId, RouteCopy>,
    }

    fn index() -> ShardRoutes {
        let index = Index::new([7; 16], IndexLimits::default());
        ShardRoutes::new(Arc::new(Routes::new(index, [7; 16], true)), SHARD, true)
    }

    impl Replica {
        fn new() -> Self {
            let routes = ReplicaRoutes::new(index());
            Self { routes, filters: Filters::new(), applied: 0, copies: BTreeMap::new() }
        }

        fn apply(&mut self, log: &[Record]) {
            for record in &log[self.applied..] {
                self.routes.begin(record.index);
                for (is_added, filter) in record.changes.iter().cloned() {
                    if is_added {
                        self.filters.insert(filter.clone());
                        self.routes.add(filter);
                    } else {
                        self.filters.remove(&filter);
                        self.routes.remove(filter);
                    }
                }
                self.routes.end();
            }
            self.applied = log.len();
        }

        fn answer(&mut self, progress: Progress) -> Option<Vec<u8>> {
            let filters = || self.filters.iter().cloned().collect();
            let position = self.routes.position(0);
            let source = Source { shard: SHARD, position, routes: Some(&self.routes), filters: &filters };
            source.page(&RoutesWanted { incarnation: 1, worker: 0, number: 1, progress }, &mut self.copies)
        }
    }

    fn take(learner: &mut Learner, page: &[u8]) {
        let Ok(ToWorker::Routes(page)) = decode_answers(page) else { panic!("a page") };
        learner.take(&page, None);
    }

    /// Filters that nobody has changed after a route position, and that exist.
    fn unchanged(log: &[Record], position: u64) -> Filters {
        let mut filters = Filters::new();
        for record in log {
            for (is_added, filter) in &record.changes {
                match *is_added && record.index <= position {
                    true => drop(filters.insert(filter.clone())),
                    false => drop(filters.remove(filter)),
                }
            }
        }
        filters
    }

    fn record(random: &mut Random, index: u64, filters: &mut Filters) -> Record {
        let count = *random.pick(&[1, 1, 3, 50, 1500]);
        let mut change = |random: &mut Random| {
            let number = random.below(4000);
            let filter: Box<str> = format!("{}/{number}", "f".repeat(number % 400)).into();
            let is_added = !filters.remove(&filter);
            if is_added {
                filters.insert(filter.clone());
            }
            (is_added, filter)
        };
        Record { index, changes: std::iter::repeat_with(|| change(random)).take(count).collect::<Vec<_>>() }
    }

    /// Answers are lost, and other nodes lead.
    #[test]
    fn a_learner_has_the_routes_of_the_leader_up_to_its_position() {
        let (mut pages, mut copies) = (0, 0);
        for seed in 0..30 {
            let mut random = Random::new(seed);
            let (mut log, mut filters) = (Vec::new(), Filters::new());
            let (mut leader, mut other) = (Replica::new(), Replica::new());
            let mut learner = Learner::new(index(), 0, Filters::new());
            for _ in 0..120 {
                match random.below(10) {
                    0..3 => {
                        for _ in 0..1 + random.below(6) {
                            log.push(record(&mut random, 2 * log.len() as u64 + 2, &mut filters));
                        }
                    }
                    3 => {
                        other.apply(&log);
                        std::mem::swap(&mut leader, &mut other);
                    }
                    _ => {
                        leader.apply(&log);
                        let Some(page) = leader.answer(learner.progress()) else { continue };
                        if random.below(5) > 0 {
                            take(&mut learner, &page);
                        }
                        pages += 1;
                        copies += usize::from(learner.copy.is_some());
                        let missing = unchanged(&log, learner.position);
                        assert!(missing.is_subset(&learner.filters), "seed {seed}");
                    }
                }
            }
            leader.apply(&log);
            while let Some(page) = leader.answer(learner.progress()) {
                take(&mut learner, &page);
            }
            assert_eq!(learner.position, log.last().map_or(0, |record| record.index));
            assert!(learner.filters == filters && learner.filters == leader.filters, "seed {seed}");
        }
        assert!(pages > 500 && copies > 20, "{pages} pages, {copies} of them of copies");
    }

    /// A page has a limit, so one record may need several.
    #[test]
    fn a_record_with_many_changes_needs_several_pages() {
        let filter = |number: usize| format!("{}/{number}", "f".repeat(300)).into();
        let changes: Vec<(bool, Box<str>)> = (0..2000).map(|number| (true, filter(number))).collect();
        let log = [Record { index: 5, changes }];
        let mut leader = Replica::new();
        leader.apply(&log);
        let mut learner = Learner::new(index(), 0, Filters::new());
        let mut pages = 0;
        while let Some(page) = leader.answer(learner.progress()) {
            assert!(page.len() <= super::super::frame::FULL + 100);
            take(&mut learner, &page);
            pages += 1;
            assert_eq!(learner.position == 5, learner.filters.len() == 2000);
        }
        assert_eq!(pages, 3);
    }

    /// A node without a replica answers while nobody leads the shard.
    #[test]
    fn a_learner_has_the_routes_of_another_learner_up_to_its_position() {
        for filters in [0, 1, 5000] {
            let name = |number: usize| -> Box<str> { format!("{}/{number:04}", "f".repeat(300)).into() };
            let known: Filters = (0..filters).map(name).collect();
            let all = || known.iter().cloned().collect();
            let source = Source { shard: SHARD, position: 7, routes: None, filters: &all };
            // The other one has a route that is gone.
            let mut learner = Learner::new(index(), 4, ["old".into()].into());
            let (mut copies, mut pages) = (BTreeMap::new(), 0);
            let mut answer = |progress| {
                let wanted = RoutesWanted { incarnation: 1, worker: 0, number: 1, progress };
                source.page(&wanted, &mut copies)
            };
            while let Some(page) = answer(learner.progress()) {
                assert!(learner.position == 4 && learner.filters.contains("old"), "a copy is not complete");
                take(&mut learner, &page);
                pages += 1;
            }
            assert_eq!((learner.position, &learner.filters), (7, &known));
            assert_eq!(pages > 1, filters == 5000);
            assert!(answer(Progress::Changes { position: 8, taken: 0 }).is_none(), "it knows less");
        }
    }

    #[test]
    fn a_learner_keeps_its_routes_until_a_copy_is_complete() {
        let mut leader = Replica::new();
        let name = |number: usize| -> Box<str> { format!("{}/{number:04}", "f".repeat(300)).into() };
        let mut log = vec![Record { index: 1, changes: vec![(true, "old".into())] }];
        leader.apply(&log);
        let mut learner = Learner::new(index(), 0, Filters::new());
        let page = leader.answer(learner.progress()).expect("a change");
        take(&mut learner, &page);
        let mut changes = vec![(false, "old".into())];
        changes.extend((0..3000).map(|number| (true, name(number))));
        log.push(Record { index: 2, changes });
        log.push(Record { index: 3, changes: (3000..5000).map(|number| (true, name(number))).collect() });
        leader.apply(&log);
        let page = leader.answer(learner.progress()).expect("more than a replica keeps");
        take(&mut learner, &page);
        assert!(learner.copy.is_some() && learner.position == 1);
        assert!(learner.filters.contains("old"), "a copy is not complete");
        while let Some(page) = leader.answer(learner.progress()) {
            take(&mut learner, &page);
        }
        assert!(learner.position == 3 && learner.filters == leader.filters);
    }
}
