//! A shard that this node does not lead: it applies what the replicas agree on, and serves nobody.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use shard::{Effect, Shard};

use super::host::{HostContext, ShardHost};
use super::log::{Agreement, Frame, StoreEvent, StoreLog};
use super::replica::{Replica, ReplicaCounters, ReplicaEvent};
use super::replica_routes::ReplicaRoutes;
use super::shard_clock;
use super::shard_routes::ShardRoutes;
use crate::counters::StoreCounters;
use crate::ids::{ShardId, Time};
use crate::settings::Settings;

/// A replica without a host. It becomes a [`ShardHost`] when it leads.
pub struct Follower {
    replica: Replica,
    context: HostContext,
    routes: ReplicaRoutes,
    /// Term in which the replica leads. No later event is handled before there is a host.
    leads: Option<u64>,
    /// Wait for the clock of most nodes, before the replica gets a host.
    wait: Option<ClockWait>,
}

struct ClockWait {
    since: Time,
    /// Time of the next look at the clock.
    look_at: Time,
    is_due: bool,
}

impl Follower {
    pub(super) fn new(replica: Replica, context: HostContext, routes: ReplicaRoutes) -> Self {
        let follower = Self { replica, context, routes, leads: None, wait: None };
        follower.note_sessions(follower.replica.state().counts().sessions);
        follower
    }

    fn note_sessions(&self, sessions: u64) {
        self.context.load.sessions_followed[self.id().index()].store(sessions, Relaxed);
    }

    /// Creates the replica of a shard that begins with a state. `log`: where the state comes from, unless nothing is
    /// kept on disk. `agreement`: with the other replicas, if there are any.
    pub fn open(
        state: Shard,
        log: Option<Arc<dyn StoreLog>>,
        agreement: Option<Box<dyn Agreement>>,
        context: HostContext,
    ) -> Self {
        let replica = Replica::new(state, log, agreement, (context.hash_key, &context.load));
        let routes = ShardRoutes::new(context.node_routes.clone(), replica.id(), replica.is_agreed());
        Self::new(replica, context, ReplicaRoutes::new(routes))
    }

    pub fn id(&self) -> ShardId {
        self.replica.id()
    }

    /// Returns whether other nodes may have replicas of the shard.
    pub fn is_agreed(&self) -> bool {
        self.replica.is_agreed()
    }

    pub fn state(&self) -> &Shard {
        self.replica.state()
    }

    /// Time by which the shard is ahead of this node, in milliseconds.
    pub fn ahead_ms(&self) -> i64 {
        self.replica.read_ahead_ms()
    }

    pub fn replica_counters(&self) -> ReplicaCounters {
        self.replica.counters()
    }

    pub fn into_host(self) -> ShardHost {
        ShardHost::new(self.replica, self.context, self.routes)
    }

    /// Adds the routes of the state with which the node starts.
    pub fn recall(&mut self) {
        self.routes.restore(&BTreeSet::new(), self.replica.state());
    }

    /// Ends the replica on this node. Returns the filters whose routes it leaves in the index.
    pub fn end(self) -> BTreeSet<Box<str>> {
        self.context.load.note_retained(self.id(), (0, 0), &self.context.settings);
        self.note_sessions(0);
        self.routes.into_filters(self.replica.state())
    }

    /// Routes and state of the replica.
    pub fn routes_mut(&mut self) -> (&mut ReplicaRoutes, &Shard) {
        (&mut self.routes, self.replica.state())
    }

    /// Reaches a route position of another node, if the replica has made all changes up to it.
    pub fn reach_route_position(&mut self, index: u64) {
        self.routes.reach(index, self.replica.passed_on());
    }

    /// Route position of the replica.
    pub fn route_position(&self) -> u64 {
        self.routes.position(self.replica.passed_over())
    }

    /// Publishes the numbers of sessions and of retained messages, when the latter has changed and about once a second.
    pub fn tend_counts(&self) {
        self.note_sessions(self.replica.state().counts().sessions);
        let HostContext { load, settings, .. } = &self.context;
        load.note_retained(self.id(), self.replica.state().retained_counts(), settings);
    }

    /// Reports to the log how much of it is needed.
    pub fn report_live(&self) {
        self.replica.report_live();
    }

    /// Counters of earlier hosts of the shard.
    pub fn counters(&self) -> &StoreCounters {
        &self.context.counters
    }

    pub fn set_settings(&mut self, settings: Arc<Settings>) {
        self.context.settings = settings;
    }

    pub fn next_deadline(&self) -> Time {
        let look = self.wait.as_ref().map_or(Time::NEVER, |wait| wait.look_at);
        self.replica.next_deadline().min(look)
    }

    /// Performs the timed work. [`Self::store_event`] must follow.
    pub fn tick(&mut self, now: Time) {
        self.replica.tick(now);
        if let Some(wait) = self.wait.as_mut().filter(|wait| wait.look_at <= now) {
            (wait.is_due, wait.look_at) = (true, Time::NEVER);
        }
    }

    /// Handles an event of the log, like [`ShardHost::store_event`]. Ends when the replica leads.
    pub fn store_event(&mut self, now: Time, event: StoreEvent, effects_max: usize) -> (usize, bool) {
        self.replica.handle_log_event(event);
        let mut effects = 0;
        while effects < effects_max
            && self.leads.is_none()
            && let Some(event) = self.replica.poll_event(now, effects_max - effects)
        {
            match event {
                ReplicaEvent::Leads { term } => self.leads = Some(term),
                ReplicaEvent::Committed(mut committed) => {
                    effects += committed.effects.len().max(1);
                    self.routes.begin(committed.index);
                    for effect in committed.effects.drain(..) {
                        match effect {
                            Effect::FilterAdded { filter } => drop(self.routes.add(filter)),
                            Effect::FilterRemoved { filter } => self.routes.remove(filter),
                            Effect::RetainedChanged { .. } => self.tend_counts(),
                            _ => {}
                        }
                    }
                    if committed.is_whole {
                        self.routes.end();
                    }
                    self.replica.reuse(committed.effects);
                }
                ReplicaEvent::Restored { filters } => {
                    self.routes.restore(&filters, self.replica.state());
                    self.tend_counts();
                }
                // Nobody waits for what an earlier host wanted to read.
                ReplicaEvent::Follows | ReplicaEvent::Read(_) | ReplicaEvent::Readable(_) => {}
            }
        }
        (effects, self.has_event())
    }

    /// Takes the term in which the replica leads, if it does, as soon as the clock of most nodes is known. The time in
    /// which no replica ran must count before anything else of this term. This waits for a bounded time.
    pub fn take_leads(&mut self, now: Time) -> Option<u64> {
        self.leads?;
        let since = self.wait.as_ref().map_or(now, |wait| wait.since);
        let is_late = now >= since.after(shard_clock::WAIT_MAX);
        if is_late && self.replica.awaits_time() {
            self.replica.give_up_time();
        } else if self.replica.awaits_time() {
            self.wait = Some(ClockWait { since, look_at: now.after(shard_clock::WAIT), is_due: false });
            return None;
        }
        self.wait = None;
        self.leads.take()
    }

    /// Returns whether effects of earlier events are left.
    pub fn has_event(&self) -> bool {
        match self.leads {
            Some(_) => self.wait.as_ref().is_none_or(|wait| wait.is_due),
            None => self.replica.has_event(),
        }
    }

    /// Passes an event to the agreement. [`Self::run_agreement`] must follow.
    pub fn handle_log_event(&mut self, event: StoreEvent) {
        self.replica.handle_log_event(event);
    }

    /// Runs the agreement, which may have steps then.
    pub fn run_agreement(&mut self, now: Time) {
        self.replica.run_agreement(now);
    }

    /// Takes a frame for another replica.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.replica.poll_frame()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::Routes;

    /// A replica whose node has not compared its clock yet, and that has just become the leader.
    fn leader() -> Follower {
        let index = routing::Index::new([7; 16], routing::IndexLimits::default());
        let node_routes = Arc::new(Routes::new(index, [7; 16], false));
        let (settings, load, counters) = Default::default();
        let access = Arc::new(crate::access::AllowAll);
        let context = HostContext { settings, node_routes, load, access, hash_key: [7; 16], counters };
        let mut leader = Follower::open(Shard::new(0, [7; 16]), None, None, context);
        leader.context.load.cluster_clock.set(None);
        leader.replica.follow_cluster(leader.context.load.clone());
        leader.replica.lead(3);
        let (_, has_event) = leader.store_event(Time(1_000), StoreEvent::More, 1);
        assert!(has_event);
        leader
    }

    #[test]
    fn a_leader_waits_until_the_clock_of_most_nodes_is_known() {
        let mut leader = leader();
        assert_eq!((leader.take_leads(Time(1_000)), leader.has_event()), (None, false));
        let look_at = leader.next_deadline();
        assert_eq!(look_at, Time(1_000).after(shard_clock::WAIT));
        leader.tick(look_at);
        assert!(leader.has_event() && leader.take_leads(look_at).is_none() && !leader.has_event());
        leader.context.load.cluster_clock.set(Some(5));
        leader.tick(leader.next_deadline());
        assert!(leader.has_event());
        assert_eq!(leader.take_leads(Time(1_100)), Some(3));
    }

    #[test]
    fn a_leader_waits_for_the_clock_for_a_bounded_time() {
        let mut first = leader();
        assert_eq!(first.take_leads(Time(1_000)), None);
        let end = Time(1_000).after(shard_clock::WAIT_MAX);
        assert_eq!(first.take_leads(Time(end.0 - 1)), None);
        assert_eq!(first.take_leads(end), Some(3));
        assert!(!first.replica.awaits_time(), "no other shard of the node waits again");
    }
}
