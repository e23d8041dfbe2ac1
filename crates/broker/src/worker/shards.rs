//! Shards that a worker hosts, with the events of the log that wait for them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch::WorkerCommand;
use crate::ids::{SessionId, ShardId, Time, WorkerId};
use crate::settings::Settings;
use crate::store::{Incarnation, Request, ShardHost, ShardOutput, StoreEvent};

/// Approximate maximum number of effects of log events in one turn.
const EFFECTS_AT_ONCE: usize = 8192;

/// Shards of one worker. What they want to send is in their common output, until the worker takes it.
pub(super) struct HostedShards {
    hosts: Vec<(ShardId, ShardHost)>,
    output: ShardOutput,
    /// Events of the log that are not handled yet. The batches and reads in progress bound their number.
    events: VecDeque<(ShardId, StoreEvent)>,
}

impl HostedShards {
    pub fn new(hosts: Vec<(ShardId, ShardHost)>) -> Self {
        Self { hosts, output: ShardOutput::default(), events: VecDeque::new() }
    }

    pub fn get(&self, id: ShardId) -> Option<&ShardHost> {
        self.hosts.iter().find(|(shard, _)| *shard == id).map(|(_, shard)| shard)
    }

    pub fn get_mut(&mut self, id: ShardId) -> Option<&mut ShardHost> {
        self.hosts.iter_mut().find(|(shard, _)| *shard == id).map(|(_, shard)| shard)
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

    /// Returns the sum of a figure of all shards.
    pub fn sum(&self, figure: impl Fn(&ShardHost) -> usize) -> u64 {
        self.iter().map(|shard| figure(shard) as u64).sum()
    }

    /// Takes the output if it is one command or nothing; `None` if there is more.
    pub fn take_only_command(&mut self) -> Option<Option<(WorkerId, WorkerCommand)>> {
        let ShardOutput { commands, requests, acknowledged, wills, offered, deleted, propagated } =
            &mut self.output;
        let is_short = commands.len() <= 1
            && requests.is_empty()
            && acknowledged.is_empty()
            && wills.is_empty()
            && offered.is_empty()
            && deleted.is_empty()
            && propagated.is_empty();
        is_short.then(|| commands.pop())
    }

    /// Takes the output of the shards. [`Self::recycle`] gets its memory back.
    pub fn take_output(&mut self) -> ShardOutput {
        std::mem::take(&mut self.output)
    }

    pub fn recycle(&mut self, output: ShardOutput) {
        self.output = output;
    }

    pub fn recall(&mut self) {
        let Self { hosts, output, .. } = self;
        hosts.iter_mut().for_each(|(_, shard)| shard.recall(output));
    }

    pub fn start(&mut self, now: Time, incarnation: Incarnation) {
        let Self { hosts, output, .. } = self;
        hosts.iter_mut().for_each(|(_, shard)| shard.start(now, incarnation, output));
    }

    pub fn set_settings(&mut self, now: Time, settings: &Arc<Settings>) {
        let Self { hosts, output, .. } = self;
        hosts.iter_mut().for_each(|(_, shard)| shard.set_settings(now, settings.clone(), output));
    }

    /// Passes a request to its shard.
    pub fn apply(&mut self, now: Time, id: ShardId, request: Request) {
        match self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
            Some((_, host)) => host.apply(now, request, &mut self.output),
            None => debug_assert!(false, "request for a shard of another worker"),
        }
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
        true
    }

    /// Returns the time at which the next timed work of a shard is due.
    pub fn next_deadline(&self) -> Time {
        self.iter().map(ShardHost::next_deadline).min().unwrap_or(Time::NEVER)
    }

    /// Queues events of the log.
    pub fn queue_events(&mut self, events: Vec<(ShardId, StoreEvent)>) {
        self.events.extend(events);
    }

    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Passes events of the log to their shards. One message may be for very many sessions, so this stops after
    /// [`EFFECTS_AT_ONCE`] effects and leaves the rest to the next turn.
    pub fn process_events(&mut self, now: Time) {
        let mut effects = 0;
        while effects < EFFECTS_AT_ONCE
            && let Some((id, event)) = self.events.pop_front()
        {
            if let Some((_, shard)) = self.hosts.iter_mut().find(|(shard, _)| *shard == id) {
                let effects_max = EFFECTS_AT_ONCE - effects;
                let (had, rest) = shard.store_event(now, event, effects_max, &mut self.output);
                effects += had;
                if let Some(rest) = rest {
                    self.events.push_front((id, rest));
                }
            }
        }
    }

    /// Ends a turn. Shards that can wait are flushed together, for one sync.
    pub fn end_turn(&mut self, now: Time, is_stopping: bool) {
        let all = is_stopping || self.iter().any(|shard| shard.batch_is_due(now));
        self.iter_mut().for_each(|shard| shard.end_turn(all));
    }
}
