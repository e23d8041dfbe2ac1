//! Shards that a worker hosts, with the events of the log that wait for them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use shard::NodeIncarnation;

use crate::batch::WorkerCommand;
use crate::counters::StoreCounters;
use crate::groups::{GroupHost, GroupRequest};
use crate::ids::{SessionId, ShardId, ShardSet, Time, WorkerId};
use crate::peers::MemberIncarnations;
use crate::settings::Settings;
use crate::store::{
    Follower, Incarnation, Numbered, Producer, ReplicaCounters, ReplicaRoutes, Request, ShardHost,
    ShardOutput, StoreEvent,
};

#[cfg(test)]
pub(super) mod tests;

/// Approximate maximum number of effects of log events in one turn.
const EFFECTS_AT_ONCE: usize = 8192;

/// Shards of one worker. What they want to send is in their common output, until the worker takes it.
pub(super) struct HostedShards {
    /// Shards that this node leads.
    hosts: Vec<(ShardId, ShardHost)>,
    /// Shared groups of the worker.
    groups: Vec<GroupHost>,
    /// Shards that another node leads, or none does now.
    followers: Vec<(ShardId, Follower)>,
    output: Box<ShardOutput>,
    /// Memory of an output that is used again.
    spare: Option<Box<ShardOutput>>,
    /// Events of the log that are not handled yet. The batches and reads in progress bound their number.
    events: VecDeque<(ShardId, StoreEvent)>,
    /// Shards whose agreements have something to handle, or may have steps for their replicas.
    agreements: ShardSet,
    /// Counters of replicas that have ended here. Sums of counters never go back.
    ended: (StoreCounters, ReplicaCounters),
    /// A shard with retained messages has got a host.
    has_taken_over: bool,
    /// Shards that this node leads since a while, with the term, or not any more.
    led: Vec<(ShardId, Option<u64>)>,
    /// Members of the last roster.
    members: Arc<MemberIncarnations>,
}

impl HostedShards {
    /// Takes the shards of a worker. A shard that is on this node alone has a host from the beginning, any other one
    /// when this node leads it.
    pub fn new(shards: impl Iterator<Item = Follower>, groups: Vec<GroupHost>) -> Self {
        let (mut hosts, mut followers) = (Vec::new(), Vec::new());
        for shard in shards {
            match shard.is_agreed() {
                true => followers.push((shard.id(), shard)),
                false => hosts.push((shard.id(), shard.into_host())),
            }
        }
        Self {
            hosts,
            followers,
            groups,
            output: Box::default(),
            spare: None,
            events: VecDeque::new(),
            agreements: ShardSet::EMPTY,
            ended: Default::default(),
            has_taken_over: false,
            led: Vec::new(),
            members: Arc::default(),
        }
    }

    /// Adds a replica of a shard that begins on this node.
    pub fn add(&mut self, mut replica: Follower) {
        let id = replica.id();
        debug_assert!(self.state(id).is_none(), "a shard has one replica on a node");
        replica.recall();
        self.agreements.insert(id);
        self.followers.push((id, replica));
    }

    /// Ends the replica of a shard. Returns its route position and the filters whose routes it leaves in the index.
    pub fn remove(&mut self, id: ShardId) -> Option<(u64, BTreeSet<Box<str>>)> {
        if let Some(at) = self.hosts.iter().position(|(shard, _)| *shard == id) {
            let (_, host) = self.hosts.swap_remove(at);
            self.followers.push((id, host.into_follower()));
            self.led.push((id, None));
        }
        let replica = self.followers.iter().position(|(shard, _)| *shard == id);
        let (_, replica) = replica.map(|at| self.followers.swap_remove(at))?;
        self.events.retain(|(shard, _)| *shard != id);
        self.agreements.remove(id);
        let (counters, replicas) = &mut self.ended;
        // The queues are not here any more.
        counters.add(&StoreCounters { queued_messages: 0, queued_bytes: 0, ..replica.counters().clone() });
        *replicas = replicas.plus(replica.replica_counters());
        Some((replica.route_position(), replica.end()))
    }

    /// Route positions of the replicas, which this node leads or not.
    pub fn route_positions(&self) -> impl Iterator<Item = (ShardId, u64)> {
        let of_hosts = self.hosts.iter().map(|(id, host)| (*id, host.route_position()));
        of_hosts.chain(self.followers.iter().map(|(id, follower)| (*id, follower.route_position())))
    }

    /// Reaches a route position of another node, if there is a replica that has made all changes up to it.
    pub fn reach_route_position(&mut self, id: ShardId, index: u64) {
        let Self { hosts, followers, .. } = self;
        if let Some((_, host)) = hosts.iter_mut().find(|(shard, _)| *shard == id) {
            host.reach_route_position(index);
        } else if let Some((_, follower)) = followers.iter_mut().find(|(shard, _)| *shard == id) {
            follower.reach_route_position(index);
        }
    }

    /// Routes and state of a replica.
    pub fn routes_mut(&mut self, id: ShardId) -> Option<(&mut ReplicaRoutes, &shard::Shard)> {
        let Self { hosts, followers, .. } = self;
        if let Some((_, host)) = hosts.iter_mut().find(|(shard, _)| *shard == id) {
            return Some(host.routes_mut());
        }
        followers.iter_mut().find(|(shard, _)| *shard == id).map(|(_, follower)| follower.routes_mut())
    }

    pub fn get(&self, id: ShardId) -> Option<&ShardHost> {
        self.hosts.iter().find(|(shard, _)| *shard == id).map(|(_, shard)| shard)
    }

    pub fn get_mut(&mut self, id: ShardId) -> Option<&mut ShardHost> {
        self.hosts.iter_mut().find(|(shard, _)| *shard == id).map(|(_, shard)| shard)
    }

    /// State of a shard, and the time by which the shard is ahead of this node, in milliseconds.
    pub fn timed_state(&self, id: ShardId) -> Option<(&shard::Shard, i64)> {
        let follower = || self.followers.iter().find(|(shard, _)| *shard == id);
        let host = self.get(id).map(|host| (host.state(), host.ahead_ms()));
        host.or_else(|| follower().map(|(_, follower)| (follower.state(), follower.ahead_ms())))
    }

    /// State of a shard, whether this node leads it or not.
    pub fn state(&self, id: ShardId) -> Option<&shard::Shard> {
        let follower = || self.followers.iter().find(|(shard, _)| *shard == id);
        self.get(id).map(ShardHost::state).or_else(|| follower().map(|(_, follower)| follower.state()))
    }

    /// Counters of all replicas.
    pub fn replica_counters(&self) -> ReplicaCounters {
        let of_hosts = self.iter().map(ShardHost::replica_counters);
        let of_followers = self.followers.iter().map(|(_, follower)| follower.replica_counters());
        of_hosts.chain(of_followers).fold(self.ended.1, ReplicaCounters::plus)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ShardHost> {
        self.hosts.iter().map(|(_, shard)| shard)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ShardHost> {
        self.hosts.iter_mut().map(|(_, shard)| shard)
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Adds the counters of all shards.
    pub fn add_counters(&self, sum: &mut StoreCounters) {
        sum.add(&self.ended.0);
        self.iter().for_each(|shard| sum.add(&shard.counters));
        self.followers.iter().for_each(|(_, follower)| sum.add(follower.counters()));
        self.groups.iter().for_each(|groups| sum.add(&groups.counters));
        sum.read_repaired += self.replica_counters().repaired;
    }

    pub fn groups(&self) -> &[GroupHost] {
        &self.groups
    }

    pub fn groups_mut(&mut self) -> &mut [GroupHost] {
        &mut self.groups
    }

    /// Reports to the log how much of it each shard needs, whether this node leads it or not.
    pub fn report_live(&self) {
        self.iter().for_each(ShardHost::report_live);
        self.followers.iter().for_each(|(_, follower)| follower.report_live());
    }

    /// Publishes the retained messages of each replica.
    pub fn tend_retained(&self) {
        self.iter().for_each(ShardHost::tend_retained);
        self.followers.iter().for_each(|(_, follower)| follower.tend_counts());
    }

    /// Number of the retained messages of all replicas, and their bytes.
    pub fn retained_figures(&self) -> (u64, u64) {
        let of_hosts = self.iter().map(ShardHost::state);
        let states = of_hosts.chain(self.followers.iter().map(|(_, follower)| follower.state()));
        states.map(shard::Shard::retained_counts).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    /// Returns the sum of a figure of all shards.
    pub fn sum(&self, figure: impl Fn(&ShardHost) -> usize) -> u64 {
        self.iter().map(|shard| figure(shard) as u64).sum()
    }

    /// Takes the output if it is one command or nothing; `None` if there is more.
    pub fn take_only_command(&mut self) -> Option<Option<(WorkerId, WorkerCommand)>> {
        let ShardOutput { commands, requests, acknowledged, .. } = &*self.output;
        let is_short = commands.len() <= 1
            && requests.is_empty()
            && acknowledged.is_empty()
            && !self.output.has_rare_parts();
        is_short.then(|| self.output.commands.pop())
    }

    /// Takes the output of the shards. [`Self::recycle`] gets its memory back.
    pub fn take_output(&mut self) -> Box<ShardOutput> {
        let spare = self.spare.take().unwrap_or_default();
        std::mem::replace(&mut self.output, spare)
    }

    pub fn recycle(&mut self, output: Box<ShardOutput>) {
        self.spare = Some(std::mem::replace(&mut self.output, output));
    }

    pub fn recall(&mut self) {
        let Self { hosts, followers, .. } = self;
        hosts.iter_mut().for_each(|(_, shard)| shard.recall());
        followers.iter_mut().for_each(|(_, follower)| follower.recall());
    }

    pub fn start(&mut self, now: Time, incarnation: Incarnation) {
        let Self { hosts, output, .. } = self;
        hosts.iter_mut().for_each(|(_, shard)| shard.start(now, incarnation, output));
    }

    pub fn set_settings(&mut self, now: Time, settings: &Arc<Settings>) {
        let Self { hosts, followers, groups, output, .. } = self;
        groups.iter_mut().for_each(|groups| groups.set_settings(settings.clone()));
        hosts.iter_mut().for_each(|(_, shard)| shard.set_settings(now, settings.clone(), output));
        followers.iter_mut().for_each(|(_, follower)| follower.set_settings(settings.clone()));
    }

    /// Passes a request to its shard. Only a shard that this node leads takes one.
    pub fn apply(&mut self, now: Time, id: ShardId, request: Request) {
        match self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
            Some((_, host)) => host.apply(now, request, &mut self.output),
            None => {
                let is_here = self.followers.iter().any(|(shard, _)| *shard == id);
                debug_assert!(is_here, "a request for a shard of another worker");
            }
        }
    }

    /// Passes a request to the shared groups that belong to a shard of this worker.
    pub fn apply_to_groups(&mut self, now: Time, id: ShardId, request: GroupRequest) {
        let groups = self.groups.iter_mut().find(|groups| groups.id() == id);
        debug_assert!(groups.is_some(), "a request for groups of another worker");
        if let Some(groups) = groups {
            groups.apply(now, request, &mut self.output);
        }
    }

    /// Passes a request of a producer to its shard, if this node leads that. Returns the last batch with a command of
    /// the request; `None` if the request waits, see [`ShardOutput::late`].
    pub fn apply_of(
        &mut self,
        now: Time,
        id: ShardId,
        producer: (WorkerId, Producer),
        request: Numbered,
    ) -> Option<u64> {
        let Some((_, host)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) else { return Some(0) };
        host.apply_of(now, producer, request, &mut self.output)
    }

    /// Notes that a producer has reported all its connections to a shard.
    pub fn worker_reported(&mut self, now: Time, id: ShardId, producer: (WorkerId, Producer)) {
        if let Some((_, host)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
            host.worker_reported(now, producer, &mut self.output);
        }
    }

    /// Forgets a lane whose worker is gone, or has begun another round.
    pub fn forget_worker(&mut self, now: Time, id: ShardId, lane: WorkerId) {
        if let Some((_, host)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
            host.forget_worker(now, lane, &mut self.output);
        }
    }

    /// Passes the members of a new roster to the shards that this node leads, now or later.
    pub fn set_members(&mut self, now: Time, members: &Arc<MemberIncarnations>) {
        self.members = members.clone();
        let Self { hosts, output, .. } = self;
        hosts.iter_mut().for_each(|(_, host)| host.set_members(now, members.clone(), output));
    }

    /// Notes that the host of a shard in this term knows each roster that an earlier leader may have known.
    pub fn members_settled(&mut self, now: Time, id: ShardId, term: u64) {
        let host = self.hosts.iter_mut().find(|(shard, host)| *shard == id && host.term() == term);
        if let Some((_, host)) = host {
            host.members_settled(now, &mut self.output);
        }
    }

    /// Returns the last known incarnation of a node if `owner` can own no sessions of a shard: it is over, or a later
    /// one is known.
    pub fn ended_by(&self, id: ShardId, owner: NodeIncarnation) -> Option<u64> {
        let by_members = self.members.has_ended(owner).then_some(owner.incarnation);
        by_members.max(self.get(id).and_then(|host| host.ended_by(owner)))
    }

    /// Takes the shards that this node leads since the last call, with the term, or not any more.
    pub fn take_led(&mut self) -> Vec<(ShardId, Option<u64>)> {
        std::mem::take(&mut self.led)
    }

    /// Ends a session for an operator. Returns false if the shard does not know it.
    pub fn kick_session(&mut self, now: Time, id: ShardId, session: SessionId) -> bool {
        let host = self.hosts.iter_mut().find(|(shard, _)| *shard == id);
        host.is_some_and(|(_, host)| host.kick_session(now, session, &mut self.output))
    }

    /// Performs the timed work of the shard at an index. Returns false if none is due.
    pub fn tick(&mut self, at: usize, now: Time, judged: Time) -> bool {
        let (_, shard) = &mut self.hosts[at];
        if shard.next_deadline() > now {
            return false;
        }
        shard.tick(now, judged, &mut self.output);
        if shard.is_agreed() {
            self.agreements.insert(shard.id());
        }
        true
    }

    /// Performs the timed work of shared groups. Returns false if none is due.
    pub fn tick_groups(&mut self, now: Time) -> bool {
        let mut is_due = false;
        for groups in self.groups.iter_mut().filter(|groups| groups.next_deadline() <= now) {
            groups.tick(now, &mut self.output);
            is_due = true;
        }
        is_due
    }

    /// Performs the timed work of the shards that this node does not lead.
    pub fn tick_followers(&mut self, now: Time) {
        for (id, follower) in &mut self.followers {
            if follower.next_deadline() <= now {
                follower.tick(now);
                self.agreements.insert(*id);
            }
        }
    }

    /// Returns the time at which the next timed work of a shard or of groups is due.
    pub fn next_deadline(&self) -> Time {
        let hosts = self.iter().map(ShardHost::next_deadline);
        hosts
            .chain(self.followers.iter().map(|(_, follower)| follower.next_deadline()))
            .chain(self.groups.iter().map(GroupHost::next_deadline))
            .min()
            .unwrap_or(Time::NEVER)
    }

    /// Queues events of the log. Those for agreements are handled at once, which is short: other replicas wait for
    /// their answers, however many effects are left.
    pub fn queue_events(&mut self, events: Vec<(ShardId, StoreEvent)>) {
        for (id, event) in events {
            if !event.is_for_agreement() {
                self.events.push_back((id, event));
                continue;
            }
            self.agreements.insert(id);
            if let Some((_, host)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
                host.handle_log_event(event);
            } else if let Some((_, follower)) = self.followers.iter_mut().find(|(shard, _)| *shard == id) {
                follower.handle_log_event(event);
            }
        }
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.agreements.is_empty()
    }

    /// Runs the agreements that have something to handle. Their steps become events of their shards.
    fn run_agreements(&mut self, now: Time) {
        for id in std::mem::take(&mut self.agreements).iter() {
            let has_event = if let Some((_, host)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
                host.run_agreement(now, &mut self.output);
                host.has_event()
            } else if let Some((_, follower)) = self.followers.iter_mut().find(|(shard, _)| *shard == id) {
                follower.run_agreement(now);
                follower.has_event()
            } else {
                false
            };
            self.take_frames(id);
            let is_more =
                |(shard, event): &(ShardId, StoreEvent)| *shard == id && matches!(event, StoreEvent::More);
            if has_event && !self.events.iter().any(is_more) {
                self.events.push_back((id, StoreEvent::More));
            }
        }
    }

    /// Passes events of the log to their shards. One message may be for very many sessions, so this stops after
    /// [`EFFECTS_AT_ONCE`] effects and leaves the rest to the next turn.
    pub fn process_events(&mut self, now: Time) {
        self.run_agreements(now);
        let mut effects = 0;
        while effects < EFFECTS_AT_ONCE
            && let Some((id, event)) = self.events.pop_front()
        {
            let effects_max = EFFECTS_AT_ONCE - effects;
            let (had, is_more) =
                if let Some((_, host)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
                    let result = host.store_event(now, event, effects_max, &mut self.output);
                    self.take_frames(id);
                    self.follow(id);
                    result
                } else {
                    self.follower_event(now, id, event, effects_max)
                };
            effects += had;
            if is_more {
                // Steps without effects take time, too.
                effects += if had == 0 { EFFECTS_AT_ONCE / 8 } else { 0 };
                self.events.push_front((id, StoreEvent::More));
            }
        }
    }

    /// Passes an event of the log to a shard that this node does not lead.
    fn follower_event(
        &mut self,
        now: Time,
        id: ShardId,
        event: StoreEvent,
        effects_max: usize,
    ) -> (usize, bool) {
        let Some(at) = self.followers.iter().position(|(shard, _)| *shard == id) else { return (0, false) };
        let (_, follower) = &mut self.followers[at];
        let result = follower.store_event(now, event, effects_max);
        let leads = follower.take_leads(now);
        self.take_frames(id);
        if let Some(term) = leads {
            let (_, follower) = self.followers.swap_remove(at);
            let mut host = follower.into_host();
            host.recall();
            host.serve(now, term, &mut self.output);
            host.set_members(now, self.members.clone(), &mut self.output);
            self.led.push((id, Some(term)));
            self.has_taken_over |= host.retained_len() > 0;
            self.hosts.push((id, host));
        }
        result
    }

    /// Ends the host of a shard that this node does not lead any more.
    fn follow(&mut self, id: ShardId) {
        let Some(at) = self.hosts.iter().position(|(shard, host)| *shard == id && host.has_ended()) else {
            return;
        };
        let (_, host) = self.hosts.swap_remove(at);
        self.followers.push((id, host.into_follower()));
        self.led.push((id, None));
    }

    /// Takes the frames of a shard for its other replicas.
    fn take_frames(&mut self, id: ShardId) {
        let Self { hosts, followers, output, .. } = self;
        if let Some((_, host)) = hosts.iter_mut().find(|(shard, _)| *shard == id) {
            output.frames.extend(std::iter::from_fn(|| host.poll_frame()).map(|frame| (id, frame)));
        } else if let Some((_, follower)) = followers.iter_mut().find(|(shard, _)| *shard == id) {
            output.frames.extend(std::iter::from_fn(|| follower.poll_frame()).map(|frame| (id, frame)));
        }
    }

    /// Ends a turn. Shards that can wait are flushed together, for one sync.
    pub fn end_turn(&mut self, now: Time, is_stopping: bool) {
        let all = is_stopping || self.iter().any(|shard| shard.batch_is_due(now));
        self.iter_mut().for_each(|shard| shard.end_turn(now, all));
        for at in 0..self.hosts.len() {
            let (id, host) = &self.hosts[at];
            if host.is_agreed() {
                if host.has_event() {
                    self.agreements.insert(*id);
                }
                self.take_frames(*id);
            }
        }
    }

    /// Returns whether a shard with retained messages has got a host since the last call.
    pub fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.has_taken_over)
    }

    /// Returns whether frames for other replicas wait.
    pub fn has_frames(&self) -> bool {
        !self.output.frames.is_empty()
    }
}
