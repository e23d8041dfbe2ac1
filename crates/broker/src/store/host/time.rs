//! Timed events: the wait of publishers ends, sessions expire, Wills become due, limits change.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use shard::{Command, Limits, SessionUid};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::ids::{ConnectionId, SessionId, Time};
use crate::settings::QueueFull;
use crate::store::session_uid;

/// Delay after which a client that could not be judged is looked at again.
const JUDGE_AGAIN: Duration = Duration::from_millis(10);
/// Number of sessions that one `Sweep` looks at.
const SWEEP: u32 = 4096;

/// Commands of the host itself that were last proposed.
#[derive(Debug, Default)]
pub(super) struct Proposed {
    /// A `Tick` or `Sweep` is in progress.
    ticking: bool,
    /// Limits as last proposed.
    limits: Option<Limits>,
    /// Value of `absent_give_way` when they were proposed.
    gives_way: bool,
}

impl ShardHost {
    /// Time at which [`Self::tick`] is due; [`Time::NEVER`] without any work.
    pub fn next_deadline(&self) -> Time {
        let waiting = self.appends.next_deadline();
        let due = if self.proposed.ticking {
            Time::NEVER
        } else {
            self.replica.deadline(self.replica.state().next_deadline())
        };
        waiting.min(due).min(self.replica.next_deadline()).min(self.wills.next_deadline())
    }

    /// Handles all work that is due. Everything that clients had sent until `judged` was read.
    pub fn tick(&mut self, now: Time, judged: Time, out: &mut ShardOutput) {
        while let Some((at, uid)) = self.appends.pop_deadline(now) {
            let Some(live) = self.live.get_mut(&uid).filter(|live| live.armed == at) else { continue };
            live.armed = Time::NEVER;
            let due = live.due(&self.settings.queue);
            if due <= judged {
                self.propose(now, &Command::Overdue { session: uid }, Continuation::Overdue(uid));
            } else {
                live.put_off = now.after(JUDGE_AGAIN);
                let again = due.max(live.put_off);
                self.appends.arm(&mut self.live, uid, again);
            }
        }
        if !self.proposed.ticking && self.replica.state().next_deadline() <= self.replica.shard_time(now) {
            self.proposed.ticking = true;
            self.propose(now, &Command::Tick, Continuation::Clock);
        }
        self.send_held_wills(now, out);
        self.replica.tick(now);
        self.apply_at_once(now, out);
    }

    /// Records that a step of the clock is applied. [`Self::committed`] proposes the next Sweep if one is needed.
    pub(super) fn ticked(&mut self) {
        self.proposed.ticking = false;
    }

    /// Releases, in portions, the sessions whose owner is gone, unless a step of the clock is in progress.
    pub(super) fn sweep(&mut self, now: Time) {
        if std::mem::replace(&mut self.proposed.ticking, true) {
            return;
        }
        self.propose(now, &Command::Sweep { count: SWEEP }, Continuation::Clock);
    }

    /// Records that the rule for full queues has decided: no publisher waits for this session any more.
    pub(super) fn overdue_settled(&mut self, now: Time, uid: SessionUid, out: &mut ShardOutput) {
        let waiting = self.waiting_before(uid, u64::MAX).min(u64::from(self.settings.queue.messages_max));
        let Some(live) = self.live.get_mut(&uid) else { return };
        let over = std::mem::take(&mut live.over);
        live.full.ends(now);
        let remember = self.settings.queue.full_penalty;
        if !remember.is_zero() {
            live.drops_from_now(waiting);
            if let Some(session) = self.replica.state().session(uid) {
                self.load.full_queues.note(session.client_id(), None, now, remember);
            }
        }
        for over in over {
            self.one_accepted(now, over.append, out);
        }
    }

    /// Number of connected clients for which messages wait.
    pub fn waiting_clients(&self) -> usize {
        self.backlog.len()
    }

    /// Clients that hold more than `share` of the memory for queues and have acknowledged nothing for
    /// `queue.full_wait`, until they have `to_free` bytes together.
    pub fn hoarders(&self, judged: Time, share: u64, to_free: &mut u64) -> Vec<ConnectionId> {
        let mut found = Vec::new();
        for (slot, generation) in self.backlog.iter() {
            let uid = session_uid(SessionId { shard: self.id, slot, generation });
            let Some(live) = self.live.get(&uid) else { continue };
            let held = live.bodies.bytes();
            if *to_free > 0
                && held >= share.max(1)
                && live.acknowledged.after(self.settings.queue.full_wait) <= judged
            {
                *to_free = to_free.saturating_sub(held);
                found.push(live.connection);
            }
        }
        found
    }

    /// Updates the limits without a log, when messages for absent clients begin or stop to be dropped for lack of
    /// memory.
    pub(super) fn notice_lack_of_memory(&mut self, now: Time) {
        if !self.replica.has_log() && self.load.absent_give_way.load(Relaxed) != self.proposed.gives_way {
            self.configure(now);
        }
    }

    /// Proposes the limits, when they have changed.
    pub(super) fn configure(&mut self, now: Time) {
        self.proposed.gives_way = self.load.absent_give_way.load(Relaxed);
        let limits = self.wanted_limits();
        if self.proposed.limits != Some(limits) {
            self.proposed.limits = Some(limits);
            self.propose(now, &Command::Configure(limits), Continuation::Nobody);
        }
    }

    fn wanted_limits(&self) -> Limits {
        let (queue, session) = (&self.settings.queue, &self.settings.session);
        Limits {
            queue_messages_max: queue.messages_max,
            queue_bytes_max: queue.bytes_max.bytes(),
            queue_age_max_ms: match u64::try_from(queue.age_max.as_millis()) {
                Ok(0) | Err(_) => u64::MAX,
                Ok(millis) => millis,
            },
            queue_full: match queue.full {
                QueueFull::DropOldest => shard::QueueFull::DropOldest,
                QueueFull::DropNewest => shard::QueueFull::DropNewest,
            },
            absent_bytes_max: self.absent_bytes_max(),
            subscriptions_max: session.subscriptions_max,
        }
    }

    /// Maximum number of bytes that may wait for an absent session. When a node without a log has held more than
    /// `limits.memory_queued_max` for long, this is each session's equal share of that.
    fn absent_bytes_max(&self) -> u64 {
        if self.replica.has_log() || !self.load.absent_give_way.load(Relaxed) {
            return u64::MAX;
        }
        let sessions = self.load.sessions.load(Relaxed).max(1);
        self.settings.limits.memory_queued_max.bytes() / sessions
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqtt::QoS;

    use super::*;
    use crate::batch::{SessionDelivery, WorkerCommand};
    use crate::durability::Durability;
    use crate::ids::{ShardSet, WorkerId};
    use crate::message::MessageView;
    use crate::node::OwnerKey;
    use crate::store::{
        Claim, Completion, Follower, HostContext, Incarnation, Release, Request, WillDisposition,
    };

    const HOUR: u64 = 3_600_000;

    fn host_of(state: shard::Shard) -> ShardHost {
        let key = [7; 16];
        let index = routing::Index::new(key, routing::IndexLimits::default());
        let routes = Arc::new(crate::Routes::new(index, [7; 16], false));
        let (settings, load) = Default::default();
        let counters = Default::default();
        let access = Arc::new(crate::access::AllowAll);
        let context = HostContext { settings, node_routes: routes, load, access, hash_key: key, counters };
        Follower::open(state, None, None, context).into_host()
    }

    /// Host of a shard that follows the clock of most nodes, which is ahead of that of its node.
    fn host_in_cluster(state: shard::Shard, ahead_ms: i64) -> ShardHost {
        let mut host = host_of(state);
        host.load.cluster_clock.set(Some(ahead_ms));
        let load = host.load.clone();
        host.replica.follow_cluster(load);
        host
    }

    /// State at a time, with a session of 60 seconds that has a subscription to `t`.
    fn with_session(at: Time) -> shard::Shard {
        let mut host = host_of(shard::Shard::new(0, [7; 16]));
        start(&mut host, at);
        host.apply(at, Request::Claim(Box::new(claim())), &mut ShardOutput::default());
        let session = host.replica.state().session_of("idle").expect("a session");
        let filters = vec![shard::Filter { text: "t", options: 1, id: 0 }];
        let command = Command::Subscribe { session, epoch: 0, filters };
        host.propose(at, &command, Continuation::Nobody);
        host.apply_at_once(at, &mut ShardOutput::default());
        host.replica.into_state()
    }

    /// The clock of the core is a day ahead, and the core leads.
    #[test]
    fn a_session_does_not_expire_by_the_clock_of_one_core() {
        let mut host = host_in_cluster(with_session(Time(HOUR)), -24 * HOUR.cast_signed());
        let began = 25 * HOUR;
        start(&mut host, Time(began));
        assert_eq!((host.replica.state().now(), host.next_deadline()), (HOUR, Time(began + 60_000)));
        let tick = |host: &mut ShardHost, now| host.tick(now, now, &mut ShardOutput::default());
        tick(&mut host, Time(began + 59_999));
        assert_eq!(host.sessions(), 1);
        tick(&mut host, Time(began + 60_000));
        assert_eq!(host.sessions(), 0);
    }

    /// An earlier leader was a day ahead. A message was dropped as expired, and acknowledged.
    #[test]
    fn a_message_has_its_interval_in_a_shard_that_is_ahead() {
        let mut host = host_in_cluster(with_session(Time(25 * HOUR)), 0);
        start(&mut host, Time(HOUR));
        let message = |expires| {
            let view = MessageView {
                topic: "t",
                properties: &[],
                payload: b"x",
                qos: QoS::AtLeastOnce,
                retain: false,
                expires,
                received: Time(HOUR),
                publisher: None,
                publisher_key: 0,
                durability: Durability::LocalDisk,
                span: 0,
            };
            view.to_message()
        };
        for expires in [Time(HOUR + 30_000), Time::NEVER] {
            let append =
                Request::Append { message: message(expires), identity: None, refusal: None, token: None };
            host.apply(Time(HOUR), append, &mut ShardOutput::default());
        }
        let queued = |host: &ShardHost| host.replica.state().counts().queued_messages;
        assert_eq!(queued(&host), 2);
        let mut out = ShardOutput::default();
        host.apply(Time(HOUR + 29_000), Request::Claim(Box::new(claim())), &mut out);
        let delivered: Vec<_> = out
            .commands
            .iter()
            .filter_map(|(_, command)| match command {
                WorkerCommand::Completion(Completion::Deliver { first, more, .. }) => {
                    Some(std::iter::once(first).chain(more))
                }
                _ => None,
            })
            .flatten()
            .filter_map(|delivery| match delivery {
                SessionDelivery::Publish { message, .. } => Some(message.view().expires),
                _ => None,
            })
            .collect();
        assert_eq!(delivered, [Time(HOUR + 30_000), Time::NEVER]);
    }

    fn start(host: &mut ShardHost, began: Time) {
        host.start(began, Incarnation { began, number: 1 }, &mut ShardOutput::default());
    }

    fn claim() -> Claim {
        Claim {
            client_id: "idle".into(),
            connection: ConnectionId { worker: WorkerId(0), slot: 0, generation: 0 },
            user: OwnerKey::NOBODY,
            payers: Default::default(),
            clean_start: false,
            expiry: 60,
            window: 10,
            will: None,
            queue_limits: None,
            number: 0,
        }
    }

    /// The first Claims have batches of their own. When there are many, they share one, which leaves 4 ms after its
    /// first Claim. An orderly end of a connection waits too, and one with a Will does not.
    #[test]
    fn claims_of_very_many_clients_share_a_batch() {
        let mut host = host_of(shard::Shard::new(0, [7; 16]));
        let now = Time(HOUR);
        start(&mut host, now);
        let connection = |n: u32| ConnectionId { worker: WorkerId(0), slot: n, generation: 0 };
        let name = |n: u32| Arc::from(format!("client {n}"));
        let batches: Vec<u64> = (0..30)
            .map(|n| {
                let claim = Claim { client_id: name(n), connection: connection(n), ..claim() };
                host.claim(now, Box::new(claim), &mut ShardOutput::default());
                host.end_turn(now, false);
                host.replica.last_proposal()
            })
            .collect();
        let first = batches[0];
        let expected: Vec<u64> = (0..30).map(|n| first + n.min(9)).collect();
        assert_eq!(batches, expected);
        assert!(!host.batch_is_due(Time(HOUR + 3)) && host.batch_is_due(Time(HOUR + 4)));

        host.apply_at_once(now, &mut ShardOutput::default());
        assert_eq!(host.sessions(), 30);
        let mut ends = |n: u32, will: WillDisposition| {
            let release = Release {
                client_id: name(n),
                connection: connection(n),
                expiry: None,
                will,
                will_owner: None,
                dispatched: None,
                known_to: ShardSet::default(),
                number: 0,
            };
            host.release(now, release, &mut ShardOutput::default());
            (host.batch_is_due(Time(HOUR + 9)), host.batch_is_due(Time(HOUR + 10)))
        };
        assert_eq!(ends(0, WillDisposition::Discard), (false, true));
        assert_eq!(ends(1, WillDisposition::Discard), (false, true));
        let batch = host.replica.last_proposal();
        host.end_turn(now, false);
        host.propose(now, &Command::Tick, Continuation::Nobody);
        assert_eq!(host.replica.last_proposal(), batch, "it is still open");
        host.end_turn(now, false);
        host.propose_later(now, &Command::Tick, Continuation::Nobody);
        assert_eq!(host.replica.last_proposal(), batch + 1, "the urgent command took it along");
    }

    /// A pause that was longer than the clock step of a batch was counted twice.
    #[test]
    fn the_clock_of_a_shard_equals_the_nodes_after_a_long_pause() {
        for hours in [0, 1, 10, 24, 30] {
            let mut host = host_of(shard::Shard::new(0, [7; 16]));
            start(&mut host, Time(hours * HOUR));
            assert_eq!(host.replica.state().now(), hours * HOUR);
        }
    }

    /// Seed 52547: sessions of a shard that was idle before were released in the past, so that Wills and session expiry
    /// came too early.
    #[test]
    fn a_session_of_an_idle_shard_lasts_from_the_start_of_the_next_incarnation() {
        for hours in [0, 10, 24, 25, 48, 1000] {
            let mut host = host_of(shard::Shard::new(0, [7; 16]));
            start(&mut host, Time(0));
            host.apply(Time(0), Request::Claim(Box::new(claim())), &mut ShardOutput::default());
            let mut host = host_of(host.replica.into_state());
            let began = hours * HOUR;
            start(&mut host, Time(began));
            assert_eq!(host.sessions(), 1, "after {hours} hours");
            host.tick(Time(began + 59_999), Time(began + 59_999), &mut ShardOutput::default());
            assert_eq!(host.sessions(), 1, "after {hours} hours and 60 s");
            host.tick(Time(began + 60_000), Time(began + 60_000), &mut ShardOutput::default());
            assert_eq!(host.sessions(), 0);
        }
    }
}
