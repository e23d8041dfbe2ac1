//! Replicas, the network between them, and their proposers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use consensus::{
    Change, Event as GroupEvent, Leadership, Member, Outcome, Progress, ReplicaId, RequestId, Role,
};
use link::Time;

use super::faults::Fault;
use super::neighbour;
use super::oracle::{Oracle, PendingRequest};
use super::proposal_log::command;
use super::replica::{Damage, Host, NotStarted, Replica, ReplicaParameters, node};
use crate::context::Context;
use crate::report::Report;
use crate::schedule::{Event, MILLI, Micros, SECOND, Schedule};
use crate::trace::Trace;
use random::Random;

/// Event of a host. An event of one process does nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start {
        host: usize,
    },
    Turn {
        host: usize,
        incarnation: u32,
    },
    /// Commits the queued records of the log.
    Commit {
        host: usize,
        incarnation: u32,
    },
    Frame {
        number: u64,
    },
    Propose,
    Read,
    /// Compares the members with the wanted ones.
    ReconcileMembers,
    Fault {
        number: usize,
    },
    /// Lets the other user of the log write, until a time.
    Neighbour {
        host: usize,
        incarnation: u32,
        until: Micros,
    },
    /// Removes the limit of room on a disk.
    Room {
        host: usize,
    },
    /// Cuts the power of a lying disk as soon as the others have the data that it loses, but not after a time.
    Lied {
        host: usize,
        incarnation: u32,
        until: Micros,
    },
    /// Cuts the leader and its learner off from the others for a time, as soon as the learner has all entries.
    Learned {
        host: usize,
        time: Micros,
    },
    /// Records the term of a replica that reaches no other, after the last frame has arrived, and checks it at the end.
    Isolated {
        host: usize,
        incarnation: u32,
    },
    Rejoins {
        host: usize,
        incarnation: u32,
        term: u64,
        /// Number of its transfers of the leadership that had ended.
        transfers_ended: u64,
    },
}

struct Frame {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Path {
    cut_until: Micros,
    lossy_until: Micros,
    percent: u8,
    /// Arrival time of the last frame: the order is kept.
    last: Micros,
}

pub struct Quorum {
    pub(super) cx: Context,
    pub(super) parameters: ReplicaParameters,
    pub(super) hosts: Vec<Host>,
    pub(super) oracle: Oracle,
    paths: BTreeMap<(usize, usize), Path>,
    frames: BTreeMap<u64, Frame>,
    sent: u64,
    latency: Micros,
    jitter: Micros,
    pending_request: BTreeMap<(usize, u32, RequestId), PendingRequest>,
    /// Transfers of the leadership that an incarnation of a host has begun, and those of them that have ended.
    transfers: BTreeMap<(usize, u32), (u64, u64)>,
    /// Hosts that are wanted as voters.
    pub(super) wanted_voters: BTreeSet<usize>,
    /// Learner that a fault has added, and the time until which it stays.
    added_learner: Option<(ReplicaId, Micros)>,
    ids: u64,
    proposals: u64,
    pace: Micros,
    padding: usize,
    length: Micros,
    faults: Vec<(Micros, Fault)>,
    pub(super) is_calm: bool,
}

/// Time between two writes of the other user while its disk is full.
const NEIGHBOURS_PACE: Micros = 20 * MILLI;
/// Maximum additional time until a lying disk loses its data.
const LIE_MAX: Micros = 2 * SECOND;
/// Time between two looks at a learner, and the maximum time until it has all entries.
const LEARN_PACE: Micros = 20 * MILLI;
const LEARN_MAX: Micros = 10 * SECOND;
/// Number of entries that are not applied up to which there are more proposals. Replicas with slow disks and small
/// segments apply 25 entries a second, and have to catch up in the end.
const BACKLOG_MAX: u64 = 1_000;
/// Maximum time that a proposal waits.
const LIMIT: Duration = Duration::from_secs(5);

impl Quorum {
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut random = Random::new(seed ^ 0x71);
        let latency = *random.pick(&[100, MILLI, 20 * MILLI, 100 * MILLI]);
        let usual = consensus::ELECTION_TIMEOUT.as_millis() as u64;
        let election = if latency > 10 * MILLI { usual } else { *random.pick(&[150, 500, usual]) };
        let parameters = ReplicaParameters {
            heartbeat: if election == usual {
                consensus::HEARTBEAT
            } else {
                Duration::from_millis(election / 4)
            },
            election_timeout: Duration::from_millis(election),
            snapshot_after: *random.pick(&[20, 100, 1000]),
            keep_entries: *random.pick(&[0, 5, 100]),
            entry_cache_bytes: *random.pick(&[0, 1_000, 20_000]),
            snapshot_piece_bytes: *random.pick(&[2_000, 10_000, 128 << 10]),
            snapshot_bytes_in_flight: *random.pick(&[1, 1_000, 2 << 20]),
            segment_bytes: *random.pick(&[8 << 10, 32 << 10, 256 << 10]),
            low_bytes_per_commit: *random.pick(&[500, 1 << 20]),
            sync_max: *random.pick(&[100, 5 * MILLI, 30 * MILLI]),
        };
        let length = (30 + random.below(60) as u64) * SECOND;
        let hosts = 3 + random.below(4);
        let faults = 4 + random.below(16);
        let mut faults: Vec<_> = (0..faults)
            .map(|_| (random.draw() % length, Fault::any(&mut random, hosts, election * MILLI)))
            .collect();
        // Early, while most groups have three voters and another host.
        if random.percent(50) {
            let time = (10 * election * MILLI).max(5 * SECOND);
            faults.push((random.draw() % (10 * SECOND), Fault::Learn { time }));
        }
        faults.sort_by_key(|(at, _)| *at);
        let voters = *random.pick(&[1, 3, 3, 3, 5]);
        let schedule = Schedule::default();
        let hosts = (0..hosts).map(|at| Host::new(random.draw(), ReplicaId(at as u64 + 1)));
        let hosts: Vec<_> = hosts.collect();
        Self {
            parameters,
            oracle: Oracle::default(),
            paths: BTreeMap::new(),
            frames: BTreeMap::new(),
            sent: 0,
            latency,
            jitter: *random.pick(&[50, 2 * MILLI, 30 * MILLI]),
            pending_request: BTreeMap::new(),
            transfers: BTreeMap::new(),
            wanted_voters: (0..voters.min(hosts.len())).collect(),
            added_learner: None,
            ids: hosts.len() as u64,
            proposals: 0,
            pace: *random.pick(&[5 * MILLI, 50 * MILLI, 300 * MILLI]),
            padding: *random.pick(&[0, 100, 3000]),
            length,
            faults,
            is_calm: false,
            hosts,
            cx: Context { random, schedule, report: Report::default(), trace, has_slow_reads: false },
        }
    }

    pub fn run(&mut self) {
        for host in 0..self.hosts.len() {
            self.start(host);
        }
        let voters: BTreeMap<_, _> =
            self.wanted_voters.iter().map(|at| (self.hosts[*at].id, Member { node: node(*at) })).collect();
        self.ask(0, PendingRequest::Change, |replica| replica.group.initialize(voters));
        for step in [Step::Propose, Step::Read, Step::ReconcileMembers] {
            self.cx.after(0, Event::Quorum(step));
        }
        for (number, (at, _)) in self.faults.iter().enumerate() {
            self.cx.schedule.at(*at, number as u64, Event::Quorum(Step::Fault { number }));
        }
        self.pass(self.length);
        self.settle();
        let report = &mut self.cx.report;
        report.seeds = 1;
        report.seconds = self.cx.schedule.now() / SECOND;
        report.events = self.cx.schedule.handled();
    }

    pub fn report(&self) -> Report {
        self.cx.report.clone()
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.cx.trace.take()
    }

    /// Runs all events until a time.
    pub(super) fn pass(&mut self, until: Micros) {
        while let Some(event) = self.cx.schedule.next(until) {
            if let Event::Quorum(step) = event {
                self.step(step);
            }
        }
        self.cx.schedule.pass_to(until);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start { host } => self.start(host),
            Step::Turn { host, incarnation } => {
                let now = self.cx.now();
                if let Some(replica) = self.replica(host, incarnation)
                    && replica.turn_at <= now
                {
                    replica.turn_at = Micros::MAX;
                    self.turn(host);
                }
            }
            Step::Commit { host, incarnation } => self.commit(host, incarnation),
            Step::Frame { number } => self.arrive(number),
            Step::Propose => {
                self.propose();
                let pace = if self.is_calm { 5 * SECOND } else { self.pace };
                let after = self.cx.between(pace / 2, pace * 2);
                self.cx.after(after, Event::Quorum(Step::Propose));
            }
            Step::Read => {
                let confirmed = self.oracle.last_confirmed();
                let host = self.pick_host();
                self.ask(host, PendingRequest::Barrier { confirmed }, |replica| {
                    replica.group.read_barrier(LIMIT)
                });
                let after = self.cx.between(0, SECOND);
                self.cx.after(after, Event::Quorum(Step::Read));
            }
            Step::ReconcileMembers => {
                self.reconcile_members();
                let after = self.cx.between(SECOND / 10, 2 * SECOND);
                self.cx.after(after, Event::Quorum(Step::ReconcileMembers));
            }
            Step::Fault { number } => {
                let fault = self.faults[number].1.clone();
                self.cx.log(|| format!("{fault:?}"));
                self.fail(fault);
            }
            Step::Neighbour { host, incarnation, until } => self.neighbour(host, incarnation, until),
            Step::Room { host } => self.hosts[host].disk.set_capacity(None),
            Step::Lied { host, incarnation, until } => self.lied(host, incarnation, until),
            Step::Learned { host, time } => self.learned(host, time),
            Step::Isolated { host, incarnation } => self.isolated(host, incarnation),
            Step::Rejoins { host, incarnation, term, transfers_ended } => {
                if let Some(now) = self.term(host, incarnation).filter(|_| !self.is_calm) {
                    // A leader votes once for another replica that has not taken over.
                    let (begun, _) = self.transfers.get(&(host, incarnation)).copied().unwrap_or_default();
                    let allowed = term..=term + begun - transfers_ended;
                    assert!(
                        allowed.contains(&now),
                        "a replica that reached nobody raised its term: {term}, {now}"
                    );
                    self.cx.report.quorum_check_isolated += 1;
                }
            }
        }
    }

    pub(super) fn replica(&mut self, host: usize, incarnation: u32) -> Option<&mut Replica> {
        let host = &mut self.hosts[host];
        host.replica.as_mut().filter(|_| host.incarnation == incarnation)
    }

    fn term(&mut self, host: usize, incarnation: u32) -> Option<u64> {
        let now = Time(self.cx.now());
        let replica = self.replica(host, incarnation)?;
        (!replica.has_failed).then(|| replica.group.status(now).term)
    }

    fn start(&mut self, host: usize) {
        let now = Time(self.cx.now());
        if self.hosts[host].replica.is_some() {
            return;
        }
        let (at, cx) = (&mut self.hosts[host], &mut self.cx);
        match at.start(host, now, &self.parameters, &mut cx.random) {
            Ok(()) => {}
            Err(NotStarted::Failed) => {
                at.disk = at.disk.kill();
                return cx.after(SECOND, Event::Quorum(Step::Start { host }));
            }
            Err(NotStarted::Refused(why)) => return self.is_damaged(host, &why),
        }
        cx.report.starts += 1;
        let applied = at.replica.as_ref().and_then(|replica| replica.group.state().last());
        cx.log(|| format!("{host} starts, with everything up to {applied:?}"));
        if let Some(had) = at.had_applied.take() {
            assert!(applied >= Some(had), "it had applied {had}, and has {applied:?} after the restart");
            cx.report.quorum_check_resumed += 1;
            cx.report.quorum_check_damage_harmless += u64::from(at.damage == Some(Damage::Rotten));
        }
        self.turn(host);
    }

    /// Runs a turn of the replica.
    pub(super) fn turn(&mut self, host: usize) {
        let now = self.cx.now();
        let at = &mut self.hosts[host];
        let (id, incarnation) = (at.id, at.incarnation);
        let Some(replica) = &mut at.replica else { return };
        if replica.paused_until > now {
            let until = replica.paused_until;
            return self.turn_at(host, until);
        }
        replica.handle_log_events(now, &mut self.cx.report);
        let had_failed = replica.has_failed;
        replica.end_log_reads(now, &mut self.cx.report);
        if replica.has_failed && !had_failed {
            // The replica stays stopped until its host restarts it.
            let after = self.cx.between(SECOND, 5 * SECOND);
            return self.kill(host, after);
        }
        replica.group.turn(Time(now));
        let status = replica.group.status(Time(now));
        while let Some(change) = replica.group.poll_leadership() {
            let before = replica.leads;
            replica.leads = match change {
                Leadership::Leads(term) => Some(term),
                Leadership::Follows => None,
            };
            assert!(before.is_some() != replica.leads.is_some(), "{change:?} after {before:?}");
        }
        let leads = (status.role == Role::Leader).then_some(status.term);
        assert_eq!(replica.leads, leads, "{id}: {status:?}");
        if let Some(term) = leads {
            self.oracle.leads(&mut self.cx.report, term, id);
        }
        if status.role == Role::Stopped && !replica.has_failed {
            assert!(at.damage.is_some(), "{id} stopped: {:?}", status.failure);
            at.replica = None;
            return self.is_damaged(host, &format!("{:?}", status.failure));
        }
        let effects: BTreeMap<u64, u64> = replica.group.drain_effects().collect();
        {
            for (index, number) in &effects {
                self.oracle.applied(&mut self.cx.report, id, *index, *number);
            }
            let proposal_log = replica.group.state_mut();
            self.cx.report.quorum_overlapped += std::mem::take(&mut proposal_log.overlaps);
            self.cx.report.quorum_installed += std::mem::take(&mut proposal_log.restores);
            let seen = proposal_log.seen;
            for (index, number) in &proposal_log.entries[seen..] {
                self.oracle.applied(&mut self.cx.report, id, *index, *number);
            }
            proposal_log.seen = proposal_log.entries.len();
        }
        let forgetful: Vec<ReplicaId> = std::iter::from_fn(|| replica.group.poll_regressed()).collect();
        let mut transmits = Vec::new();
        while let Some(transmit) = replica.group.poll_transmit() {
            transmits.push(transmit);
        }
        let mut events = Vec::new();
        while let Some(event) = replica.group.poll_event() {
            events.push(event);
        }
        while let Some(read) = replica.group.poll_read() {
            let is_slow = self.cx.random.percent(5) && !self.is_calm;
            let delay = self.cx.between(50, if is_slow { 2 * SECOND } else { 5 * MILLI });
            replica.log_reads.push((now + delay, read));
            self.cx.report.quorum_log_reads += 1;
        }
        let last = replica.group.state().last();
        let read_due = replica.log_reads.iter().map(|(at, _)| Time(*at)).min().unwrap_or(Time::NEVER);
        let due = replica.group.timeout().min(read_due);
        if !replica.commits {
            replica.commits = true;
            let delay = self.cx.between(10, self.parameters.sync_max);
            self.cx.after(delay, Event::Quorum(Step::Commit { host, incarnation }));
        }
        for of in forgetful {
            let lied = |other: &Host| other.id == of && other.damage == Some(Damage::Lied);
            assert!(self.hosts.iter().any(lied), "{of} is reported to lack entries, and has lost nothing");
            self.cx.report.quorum_check_lied += 1;
        }
        for transmit in transmits {
            self.send(host, transmit.to.0 as usize - 1, transmit.frame);
        }
        for event in events {
            self.event(host, incarnation, last, &effects, event);
        }
        if due != Time::NEVER {
            self.turn_at(host, due.0.max(now + 1));
        }
    }

    fn turn_at(&mut self, host: usize, at: Micros) {
        let incarnation = self.hosts[host].incarnation;
        if let Some(replica) = self.replica(host, incarnation)
            && replica.turn_at > at
        {
            replica.turn_at = at;
            self.cx.at(at, Event::Quorum(Step::Turn { host, incarnation }));
        }
    }

    fn commit(&mut self, host: usize, incarnation: u32) {
        let now = self.cx.now();
        let delay = self.cx.between(10, self.parameters.sync_max);
        let Some(replica) = self.replica(host, incarnation) else { return };
        if replica.paused_until > now {
            let until = replica.paused_until;
            return self.cx.at(until, Event::Quorum(Step::Commit { host, incarnation }));
        }
        match replica.writer.commit_once() {
            Ok(storage::Commit::Idle) => {
                replica.commits = false;
                // The keeper of a node looks for room each second.
                if replica.log.is_full() {
                    replica.keeper.keep();
                }
                return;
            }
            // The next record of the replica is tried at once, because it may have room.
            Ok(storage::Commit::NoRoom) => {
                replica.neighbour.finds_no_room();
                let worked = replica.keeper.keep();
                replica.commits = worked;
                if worked {
                    self.cx.after(delay, Event::Quorum(Step::Commit { host, incarnation }));
                } else if replica.retry_at <= now {
                    replica.retry_at = now + SECOND;
                    self.cx.after(SECOND, Event::Quorum(Step::Commit { host, incarnation }));
                }
                return;
            }
            Ok(_) => {
                let _ = replica.keeper.keep();
                self.cx.after(delay, Event::Quorum(Step::Commit { host, incarnation }));
            }
            // The replica stays stopped until its host restarts it.
            Err(_) => {
                let after = self.cx.between(SECOND, 5 * SECOND);
                self.kill(host, after);
                return;
            }
        }
        self.turn(host);
    }

    fn neighbour(&mut self, host: usize, incarnation: u32, until: Micros) {
        let now = self.cx.now();
        let Some(replica) = self.replica(host, incarnation) else { return };
        if now > until || replica.has_failed {
            return;
        }
        if replica.paused_until <= now {
            replica.neighbour.writes();
            self.turn(host);
        }
        self.cx.after(NEIGHBOURS_PACE, Event::Quorum(Step::Neighbour { host, incarnation, until }));
    }

    fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let now = self.cx.now();
        let path = self.paths.entry((from, to)).or_default();
        let is_lost = path.cut_until > now
            || path.lossy_until > now && self.cx.random.percent(usize::from(path.percent));
        if is_lost && !self.is_calm {
            self.cx.report.quorum_frames_lost += 1;
            return;
        }
        self.sent += 1;
        let late = self.cx.random.draw() % self.jitter;
        path.last = path.last.max(now + self.latency + late);
        let (number, at) = (self.sent, path.last);
        self.frames.insert(number, Frame { from, to, bytes });
        self.cx.at(at, Event::Quorum(Step::Frame { number }));
    }

    fn arrive(&mut self, number: u64) {
        let now = self.cx.now();
        let Some(Frame { from, to, bytes }) = self.frames.remove(&number) else { return };
        let is_cut = self.paths.get(&(from, to)).is_some_and(|path| path.cut_until > now);
        if is_cut && !self.is_calm {
            self.cx.report.quorum_frames_lost += 1;
            return;
        }
        if let Some(replica) = &mut self.hosts[to].replica {
            replica.group.receive(node(from), &bytes);
            self.turn(to);
        }
    }

    /// Makes a request to the replica of a host, if there is one.
    pub(super) fn ask(
        &mut self,
        host: usize,
        pending_request: PendingRequest,
        ask: impl FnOnce(&mut Replica) -> RequestId,
    ) {
        let incarnation = self.hosts[host].incarnation;
        let Some(replica) = self.replica(host, incarnation) else { return };
        let request = ask(replica);
        if pending_request == PendingRequest::Transfer {
            self.transfers.entry((host, incarnation)).or_default().0 += 1;
        }
        self.pending_request.insert((host, incarnation, request), pending_request);
        self.turn(host);
    }

    fn event(
        &mut self,
        host: usize,
        incarnation: u32,
        last: Option<u64>,
        effects: &BTreeMap<u64, u64>,
        event: GroupEvent,
    ) {
        let Some(pending_request) = self.pending_request.remove(&(host, incarnation, event.request)) else {
            return;
        };
        self.cx.log(|| format!("{host}: {pending_request:?}: {:?}", event.outcome));
        if pending_request == PendingRequest::Transfer {
            self.transfers.entry((host, incarnation)).or_default().1 += 1;
        }
        let report = &mut self.cx.report;
        match (pending_request, event.outcome) {
            (PendingRequest::Proposal { number, confirmed }, Ok(Outcome::Applied(index))) => {
                assert_eq!(effects.get(&index), Some(&number), "the effect comes with the outcome");
                self.oracle.decided(report, number, confirmed, index);
            }
            (PendingRequest::Proposal { number, .. }, Err(why)) => {
                self.oracle.undecided(report, number, &why)
            }
            (PendingRequest::Barrier { confirmed }, Ok(Outcome::Readable)) => {
                self.oracle.readable(report, confirmed, last)
            }
            (PendingRequest::Change, Ok(Outcome::Changed)) => report.quorum_changes += 1,
            (PendingRequest::Transfer, Ok(Outcome::Transferred)) => report.quorum_transfers += 1,
            (PendingRequest::Barrier { .. } | PendingRequest::Change | PendingRequest::Transfer, Err(_)) => {}
            (pending_request, outcome) => panic!("{pending_request:?} became {outcome:?}"),
        }
    }

    pub(super) fn leader(&self) -> Option<usize> {
        let now = Time(self.cx.now());
        let leads = |host: &&Host| {
            let replica = host.replica.as_ref().filter(|replica| !replica.has_failed);
            replica.is_some_and(|replica| replica.group.status(now).role == Role::Leader)
        };
        // A former leader may not know yet that it was replaced.
        let term = |host: &&Host| host.replica.as_ref().map(|replica| replica.group.status(now).term);
        let leader = self.hosts.iter().filter(leads).max_by_key(term)?;
        self.hosts.iter().position(|host| host.id == leader.id)
    }

    /// Picks the leader in most cases, and a random host otherwise.
    fn pick_host(&mut self) -> usize {
        let any = self.cx.random.below(self.hosts.len());
        if self.cx.random.percent(80) { self.leader().unwrap_or(any) } else { any }
    }

    /// Number of entries in the log of a host that it has not applied.
    fn backlog(&self, host: usize) -> u64 {
        let Some(replica) = &self.hosts[host].replica else { return 0 };
        let status = replica.group.status(Time(self.cx.now()));
        status.last.unwrap_or(0).saturating_sub(status.applied.unwrap_or(0))
    }

    pub(super) fn propose(&mut self) {
        let host = self.pick_host();
        if self.backlog(host) >= BACKLOG_MAX {
            return;
        }
        self.proposals += 1;
        let (number, confirmed) = (self.proposals, self.oracle.last_confirmed());
        let bytes = command(number, self.padding);
        self.ask(host, PendingRequest::Proposal { number, confirmed }, |replica| {
            replica.group.propose(bytes, LIMIT)
        });
    }

    /// Makes one change towards the wanted members.
    fn reconcile_members(&mut self) {
        let Some(leader) = self.leader() else { return };
        let now = Time(self.cx.now());
        let Some(replica) = &self.hosts[leader].replica else { return };
        let status = replica.group.status(now);
        let wanted_voters: BTreeMap<ReplicaId, usize> =
            self.wanted_voters.iter().map(|at| (self.hosts[*at].id, *at)).collect();
        let missing =
            wanted_voters.iter().find(|(id, _)| !status.voters.contains(id) && !status.learners.contains(id));
        let change = if let Some((id, host)) = missing {
            Change::AddLearner(*id, Member { node: node(*host) })
        } else if status.is_changing || !status.voters.iter().eq(wanted_voters.keys()) {
            // A change may have stopped half-way.
            Change::SetVoters(wanted_voters.keys().copied().collect())
        } else if let Some(gone) = status.learners.iter().find(|id| Some(**id) != self.kept_learner()) {
            Change::RemoveLearner(*gone)
        } else {
            return;
        };
        self.cx.log(|| format!("{leader} is asked for {change:?}"));
        self.ask(leader, PendingRequest::Change, |replica| replica.group.change_members(change, LIMIT));
    }

    /// Kills the process, and restarts it after a time.
    pub(super) fn kill(&mut self, host: usize, after: Micros) {
        let at = &mut self.hosts[host];
        let Some(replica) = at.replica.take() else { return };
        let is_saved = replica.log.queue_records() == 0 && replica.group.has_saved_committed();
        at.had_applied = replica.group.state().last().filter(|_| is_saved && !replica.has_failed);
        if at.sync_fails {
            at.had_applied = None;
        }
        at.disk.catch_up();
        at.disk = at.disk.kill();
        drop(replica);
        self.cx.report.kills += 1;
        self.cx.after(after, Event::Quorum(Step::Start { host }));
    }

    fn cut_power(&mut self, host: usize, after: Micros) {
        let at = &mut self.hosts[host];
        at.replica = None;
        at.had_applied = None;
        at.sync_fails = false;
        at.disk.catch_up();
        at.disk = at.disk.crash();
        self.cx.report.power_cuts += 1;
        self.cx.after(after, Event::Quorum(Step::Start { host }));
    }

    fn cut_path(&mut self, from: usize, to: usize, until: Micros) {
        let path = self.paths.entry((from, to)).or_default();
        path.cut_until = path.cut_until.max(until);
    }

    /// Cuts the network between these hosts and all others.
    fn partition(&mut self, one: &[usize], until: Micros) {
        for from in 0..self.hosts.len() {
            for to in (0..self.hosts.len()).filter(|to| one.contains(&from) != one.contains(to)) {
                self.cut_path(from, to, until);
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        let now = self.cx.now();
        let after = self.cx.between(0, 5 * SECOND);
        match fault {
            Fault::Kill { host } => self.kill(host, after),
            Fault::Cut { host } => self.cut_power(host, after),
            Fault::CutMany { hosts } => {
                for host in hosts {
                    self.cut_power(host, after);
                }
            }
            Fault::Wipe { host } => self.wipe(host, after),
            Fault::Rot { host } => self.rot(host, after),
            Fault::Lie { host, time } => {
                let at = &mut self.hosts[host];
                if at.replica.as_ref().is_some_and(|replica| !replica.has_failed) && !at.sync_fails {
                    at.disk.change_plan(|plan| plan.lies = true);
                    let incarnation = at.incarnation;
                    let until = now + time + LIE_MAX;
                    self.cx.after(time, Event::Quorum(Step::Lied { host, incarnation, until }));
                }
            }
            Fault::FailSync { host } => {
                let at = &mut self.hosts[host];
                at.disk.catch_up();
                let sync_fails_at = Some(at.disk.operations());
                at.disk.change_plan(|plan| plan.sync_fails_at = sync_fails_at);
                at.sync_fails = true;
                self.cx.report.syncs_failed += 1;
            }
            Fault::FailRead { host } => {
                if let Some(replica) = self.hosts[host].replica.as_mut().filter(|replica| !replica.has_failed)
                {
                    replica.read_fails = true;
                }
            }
            Fault::Full { host, room, time, holds } => {
                let at = &mut self.hosts[host];
                at.disk.set_capacity(Some(at.disk.used() + room));
                let (incarnation, until) = (at.incarnation, now + time);
                if let Some(replica) = at.replica.as_mut().filter(|_| holds) {
                    replica.neighbour.holds(until);
                }
                self.cx.after(0, Event::Quorum(Step::Neighbour { host, incarnation, until }));
                self.cx.at(until, Event::Quorum(Step::Room { host }));
            }
            Fault::Pause { host, time } => {
                if let Some(replica) = &mut self.hosts[host].replica {
                    replica.paused_until = now + time;
                    self.cx.report.quorum_pauses += 1;
                }
            }
            Fault::Partition { one, time } => {
                self.partition(&one, now + time);
                self.cx.report.quorum_partitions += 1;
            }
            Fault::Isolate { host, time } => {
                for other in (0..self.hosts.len()).filter(|other| *other != host) {
                    self.cut_path(host, other, now + time);
                    self.cut_path(other, host, now + time);
                }
                let incarnation = self.hosts[host].incarnation;
                self.cx.at(now + self.until_calm(), Event::Quorum(Step::Isolated { host, incarnation }));
                self.cx.report.quorum_isolated += 1;
            }
            Fault::OneWay { from, to, time } => {
                self.cut_path(from, to, now + time);
                self.cx.report.quorum_one_way += 1;
            }
            Fault::Lossy { from, to, percent, time } => {
                let path = self.paths.entry((from, to)).or_default();
                (path.lossy_until, path.percent) = (now + time, percent);
            }
            Fault::Lose { one, other } => {
                self.frames
                    .retain(|_, frame| ![(one, other), (other, one)].contains(&(frame.from, frame.to)));
                for (at, lost) in [(one, other), (other, one)] {
                    if let Some(replica) = &mut self.hosts[at].replica {
                        replica.group.lost(node(lost));
                        self.turn(at);
                    }
                }
                self.cx.report.quorum_connections_lost += 1;
            }
            Fault::Resize { voters } => {
                if self.is_whole() {
                    self.wanted_voters = voters.into_iter().collect();
                    self.cx.report.quorum_resized += 1;
                }
            }
            Fault::Learn { time } => self.learn(time),
            Fault::Transfer { to } => {
                let to = self.hosts[to].id;
                if let Some(leader) = self.leader() {
                    self.ask(leader, PendingRequest::Transfer, |replica| replica.group.transfer(to));
                }
            }
        }
    }

    /// Returns whether the voters are the wanted ones and none of them is known to have lost its log. Damage is noticed
    /// when it is read.
    fn is_whole(&self) -> bool {
        if self.hosts.iter().any(|host| host.damage.is_some()) {
            return false;
        }
        let now = Time(self.cx.now());
        let Some(leader) = self.leader() else { return false };
        let Some(replica) = &self.hosts[leader].replica else { return false };
        let status = replica.group.status(now);
        let wanted_voters: BTreeSet<ReplicaId> =
            self.wanted_voters.iter().map(|at| self.hosts[*at].id).collect();
        !status.is_changing && status.voters == wanted_voters
    }

    /// Replaces one disk at a time, and never those of a majority of the voters.
    fn wipe(&mut self, host: usize, after: Micros) {
        if self.is_whole() && self.wanted_voters.len() >= 3 {
            self.loses_disk(host, after);
        }
    }

    fn loses_disk(&mut self, host: usize, after: Micros) {
        self.ids += 1;
        let (id, seed) = (ReplicaId(self.ids), self.cx.random.draw());
        let incarnation = self.hosts[host].incarnation;
        self.hosts[host] = Host { incarnation, ..Host::new(seed, id) };
        self.cx.report.quorum_wiped += 1;
        self.cx.after(after, Event::Quorum(Step::Start { host }));
    }

    /// Returns the learner that a fault has added and that stays.
    fn kept_learner(&self) -> Option<ReplicaId> {
        self.added_learner.filter(|(_, until)| self.cx.now() < *until).map(|(id, _)| id)
    }

    /// Adds a learner to a group of three voters or more, which can do without the leader.
    fn learn(&mut self, time: Micros) {
        if !self.is_whole() || self.wanted_voters.len() < 3 || self.kept_learner().is_some() {
            return;
        }
        let Some(leader) = self.leader() else { return };
        let Some(host) = (0..self.hosts.len()).find(|host| !self.wanted_voters.contains(host)) else {
            return;
        };
        let id = self.hosts[host].id;
        self.added_learner = Some((id, self.cx.now() + LEARN_MAX));
        let change = Change::AddLearner(id, Member { node: node(host) });
        self.ask(leader, PendingRequest::Change, |replica| replica.group.change_members(change, LIMIT));
        self.cx.after(LEARN_PACE, Event::Quorum(Step::Learned { host, time }));
    }

    fn learned(&mut self, host: usize, time: Micros) {
        let (now, id) = (self.cx.now(), self.hosts[host].id);
        if self.is_calm || self.kept_learner() != Some(id) {
            return;
        }
        let is_ready = |leader: &usize| {
            self.hosts[*leader].replica.as_ref().is_some_and(|replica| {
                let status = replica.group.status(Time(now));
                let has_all = |other: &Progress| other.replica == id && other.last >= status.applied;
                status.learners.contains(&id) && status.progress.iter().any(has_all)
            })
        };
        let Some(leader) = self.leader().filter(is_ready) else {
            return self.cx.after(LEARN_PACE, Event::Quorum(Step::Learned { host, time }));
        };
        self.partition(&[leader, host], now + time);
        self.added_learner = Some((id, now + time));
        self.cx.log(|| format!("{leader} and learner {host} are cut off"));
        self.cx.report.quorum_learner_partitions += 1;
    }

    /// Flips a bit while the process does not run. Never damages the logs of a majority.
    fn rot(&mut self, host: usize, after: Micros) {
        let runs = self.hosts[host].replica.as_ref().is_some_and(|replica| !replica.has_failed);
        if !runs || !self.is_whole() || self.wanted_voters.len() < 3 {
            return;
        }
        self.kill(host, after);
        let at = &mut self.hosts[host];
        // Damage of the last commit would look like a torn write, so the other user of the log writes last.
        neighbour::write_log_end(&at.disk, &self.parameters);
        let mut names = storage::Disk::list(&at.disk).expect("a disk that works");
        names.sort();
        let name = self.cx.random.pick(&names).clone();
        let length = at.disk.contents(&name).map_or(0, |bytes| bytes.len());
        if length > 0 {
            let (offset, bit) = (self.cx.random.below(length), self.cx.random.below(8));
            at.disk.flip(&name, offset as u64, bit as u32);
            at.damage = Some(Damage::Rotten);
            self.cx.log(|| format!("{host}: bit {bit} of byte {offset} of {name} flips"));
            self.cx.report.quorum_bits_flipped += 1;
        }
    }

    fn lied(&mut self, host: usize, incarnation: u32, until: Micros) {
        if self.replica(host, incarnation).is_none() || self.is_calm {
            return;
        }
        if !self.has_nothing_alone(host) {
            if self.cx.now() >= until {
                return self.hosts[host].disk.catch_up();
            }
            return self.cx.after(NEIGHBOURS_PACE, Event::Quorum(Step::Lied { host, incarnation, until }));
        }
        let after = self.cx.between(0, 5 * SECOND);
        let at = &mut self.hosts[host];
        (at.replica, at.had_applied, at.damage) = (None, None, Some(Damage::Lied));
        at.disk = at.disk.crash();
        self.cx.report.quorum_lied += 1;
        self.cx.after(after, Event::Quorum(Step::Start { host }));
    }

    /// Returns whether a majority of the voters, including the leader, has all data on disks that do not lie. Then a
    /// single host may lose its data.
    fn has_nothing_alone(&self, host: usize) -> bool {
        let now = Time(self.cx.now());
        let Some(leader) = self.leader().filter(|leader| *leader != host) else { return false };
        let Some(replica) = &self.hosts[leader].replica else { return false };
        let status = replica.group.status(now);
        let others: Vec<ReplicaId> =
            self.wanted_voters.iter().filter(|at| **at != host).map(|at| self.hosts[*at].id).collect();
        let last = self.hosts[host].replica.as_ref().and_then(|own| own.group.status(now).last);
        let has_all =
            |id: &&ReplicaId| status.progress.iter().any(|other| other.replica == **id && other.last >= last);
        let is_of_term = |at: &Host| {
            at.replica.as_ref().is_some_and(|replica| replica.group.status(now).term == status.term)
        };
        self.is_whole()
            && others.iter().filter(has_all).count() > self.wanted_voters.len() / 2
            && self.hosts.iter().all(is_of_term)
    }

    /// Handles a damaged log: another replica takes the place of this one.
    fn is_damaged(&mut self, host: usize, why: &str) {
        self.cx.log(|| format!("{host}: {why}"));
        self.cx.report.quorum_check_damage_refused += 1;
        self.loses_disk(host, SECOND);
    }

    /// Time after the last frame after which the term of an isolated replica must not change.
    fn until_calm(&self) -> Micros {
        3 * self.parameters.election_timeout.as_micros() as Micros
    }

    fn isolated(&mut self, host: usize, incarnation: u32) {
        // A stopped process reads what has arrived when it resumes.
        let goes_on = self.replica(host, incarnation).map_or(0, |replica| replica.paused_until);
        if goes_on > self.cx.now() {
            let calm = self.until_calm();
            return self.cx.at(goes_on + calm, Event::Quorum(Step::Isolated { host, incarnation }));
        }
        let until = (0..self.hosts.len())
            .filter(|other| *other != host)
            .flat_map(|other| [(host, other), (other, host)])
            .map(|path| self.paths.get(&path).map_or(0, |path| path.cut_until))
            .min();
        let alone = self.wanted_voters.len() == 1;
        let (Some(until), Some(term), false) = (until, self.term(host, incarnation), alone) else { return };
        if until > self.cx.now() {
            let (_, transfers_ended) = self.transfers.get(&(host, incarnation)).copied().unwrap_or_default();
            let rejoins = Step::Rejoins { host, incarnation, term, transfers_ended };
            self.cx.at(until - 1, Event::Quorum(rejoins));
        }
    }
}

#[cfg(test)]
mod tests;
