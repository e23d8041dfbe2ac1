//! Agreement of the replicas of a shard: a group of `consensus`, whose jobs the replica of the broker does.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use broker::{
    Agreement, AgreementEvent, CommittedBatch, Condition, Frame, PeerFrame, ReplicaProgress, ShardId, Step,
    StoreEvent, Time,
};
use consensus::{
    Answer, Committed, Config, GivenUp, Group, Job, Leadership, LogGroup, LogRead, LogReadResult, Outcome,
    ReplicaId, RequestId, SnapshotError, StartError, StateMachine, StorageGroups, Transmit, Undecided,
    UnsupportedVersion, WriteParts, Written, log_index,
};
use link::NodeId;
use shard::{MessageKey, Mutation, PartId, Shard, mutated};
use storage::{Log, LogEvent, RecoveredGroup, SegmentId};

use crate::bodies::{BodiesRead, BodiesReadResult, Exchange, readable_keys};
use crate::frame::ShardFrame;
use crate::log::{RecordForm, group_of, votes_of};
use crate::members::{Next, TargetMembers};
use crate::seeking::{self, Seeking};
use crate::transfer::{LeadershipTransfer, NO_ROOM_AGAIN, TransferPermit};

#[cfg(test)]
mod tests;

/// An event for the agreement of a shard.
#[derive(Debug)]
pub enum AgreementInput {
    /// Event of the log about a group of the shard.
    Log(LogEvent),
    /// Result of a read from the log.
    Read(LogReadResult),
    /// Messages for another replica.
    Bodies(BodiesReadResult),
    /// Members that the group should have. The leader makes the changes.
    Target(TargetMembers),
    /// Node whose replica should lead; `None` if any may. A leader transfers its leadership.
    PreferredLeader(Option<NodeId>),
}

impl From<AgreementInput> for StoreEvent {
    fn from(input: AgreementInput) -> Self {
        Self::Agreement(Box::new(input))
    }
}

/// A read from the log for an agreement, on a thread that may wait for the disk.
#[derive(Debug)]
pub struct AgreementRead {
    data: Requested,
    /// Shared with the agreement: another replica of the shard begins when the agreement has the result.
    _exists: Arc<()>,
}

#[derive(Debug)]
enum Requested {
    Log(LogRead),
    Bodies(BodiesRead),
}

impl AgreementRead {
    /// Reads, and passes the result to `deliver`, for the agreement of the shard.
    pub fn run(self, log: &Log, deliver: impl FnOnce(AgreementInput)) {
        deliver(match self.data {
            Requested::Log(read) => AgreementInput::Read(read.run(log)),
            Requested::Bodies(read) => AgreementInput::Bodies(read.run(log)),
        });
    }

    /// Ends the read of messages as on a disk that returns none of them. Another read is done.
    pub fn cannot_read(self, log: &Log, deliver: impl FnOnce(AgreementInput)) {
        match self.data {
            Requested::Bodies(read) => deliver(AgreementInput::Bodies(read.cannot_read())),
            Requested::Log(_) => self.run(log, deliver),
        }
    }

    /// Ends the read as on a disk that fails to read.
    pub fn fail(self, why: &str, deliver: impl FnOnce(AgreementInput)) {
        deliver(match self.data {
            Requested::Log(read) => AgreementInput::Read(read.fail(why)),
            Requested::Bodies(read) => AgreementInput::Bodies(read.fail()),
        });
    }
}

/// Functions of the owner. They are called on the thread of the shard's worker.
pub struct AgreementOwner {
    /// Schedules a read on a thread that may wait for the disk.
    pub schedule_read: Box<dyn Fn(ShardId, AgreementRead) + Send>,
    /// Reports, on the leader, that the group has the members of this epoch. Repeated until
    /// [`TargetMembers::is_settled`].
    pub report_reached: Box<dyn Fn(ShardId, u64) + Send>,
    /// Shared by all shards of the core.
    pub transfer_permit: Arc<TransferPermit>,
}

/// State of a snapshot that is being prepared.
struct Preparing {
    /// Index in the log and term of the last entry that it includes.
    last: u64,
    term: u64,
    answer: Answer<Result<(), GivenUp>>,
}

/// The agreement of one shard on this node.
pub struct ShardAgreement {
    shard: ShardId,
    replica: consensus::Replica,
    owner: AgreementOwner,
    role: Role,
    members: MemberChanges,
    transfer: LeadershipTransfer,
    /// Time of the next [`ShardFrame::NoRoom`], while the log is full.
    no_room_due: link::Time,
    /// Batches that wait until the replica takes them.
    proposals: VecDeque<Arc<Vec<u8>>>,
    /// Sizes of own batches that are not committed, and their sum.
    uncommitted: (VecDeque<usize>, usize),
    /// Number of uncommitted batches of an earlier host in this term. They are committed first, if at all.
    earlier: usize,
    /// Number of commands that the group was given in this term.
    taken: u64,
    /// Number of the first own batch since this replica leads, and [`Self::taken`] before it.
    first: Option<(u64, u64)>,
    /// Steps that need no end.
    steps: VecDeque<Step>,
    /// Number of a read barrier of the owner. It is requested, or is to be at this time.
    reading: Option<(u64, Result<RequestId, link::Time>)>,
    job: Option<Current>,
    /// A state that is being prepared. Other jobs come meanwhile.
    preparing: Option<Preparing>,
    /// Parts of a snapshot that are being written.
    parts: Option<WriteParts>,
    exchange: Exchange,
    seeking: Seeking,
    /// Batches with messages that no voter has, in this period of leadership.
    lost: BTreeSet<u64>,
    frames: VecDeque<Frame>,
    /// Node that has sent the last frame of the group.
    heard: Option<NodeId>,
    /// Index of the last state that was received, or of the checkpoint at the start: the log has its messages.
    complete: u64,
    /// Index up to which the state has applied everything.
    applied: u64,
    exists: Arc<()>,
    form: RecordForm,
    /// The time of the last turn.
    now: link::Time,
}

/// Members that the group should have, and the change that is being made.
struct MemberChanges {
    target: Option<TargetMembers>,
    change: Option<RequestId>,
    /// Time of the next look at the members. Only a leader looks.
    due: link::Time,
}

impl MemberChanges {
    /// Time of the next look, if nothing else has to happen before.
    fn next_look(&self) -> link::Time {
        if self.target.is_some() && self.change.is_none() { self.due } else { link::Time::NEVER }
    }
}

/// Role of the replica, as its owner knows it.
enum Role {
    Follows,
    /// The replica leads, but its state may lack entries. A barrier is requested, or is to be at this time.
    CatchingUp {
        term: u64,
        barrier: Result<RequestId, link::Time>,
    },
    /// The replica leads. The next batch of its own has this number.
    Leads {
        term: u64,
        next: Option<u64>,
    },
}

/// A job that is being done.
enum Current {
    Apply {
        /// Commands that are left.
        commands: std::vec::IntoIter<Committed>,
        /// Last entry of the job.
        last: u64,
        answer: Answer<Result<(), UnsupportedVersion>>,
        /// A step was made of the last entry.
        is_over: bool,
    },
    Begin(Answer<()>),
    Part(Answer<Result<(), SnapshotError>>),
    /// The index of the state that is taken.
    Restored(u64, Answer<Result<(), SnapshotError>>),
}

/// Maximum time that a leader waits for the answers to a barrier.
const BARRIER_LIMIT: Duration = Duration::from_secs(2);
/// Maximum time that a change of the members takes.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks at the members while they are not as they should be, and the time after which a leader looks
/// again, or repeats its report.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const REPORT_AGAIN: Duration = Duration::from_secs(5);
/// Number of bytes of own batches that are not committed beyond which the replica serves nobody, until a majority
/// answers.
const UNCOMMITTED_MAX: usize = 64 << 20;
/// [`Config::save_committed_after`] of shards. A sync for each commit would double their number.
const SAVE_COMMITTED_AFTER: u64 = 100;
/// Maximum number of [`ShardAgreement::lost`]. Beyond it, the voters are asked once more.
const LOST_MAX: usize = 1 << 16;
/// Time after which a barrier that failed is requested again.
const BARRIER_AGAIN: Duration = Duration::from_millis(100);

fn link_time(now: Time) -> link::Time {
    link::Time(now.0.saturating_mul(1000))
}

/// Returns the groups of the log that the agreement of a shard uses.
pub fn storage_groups(shard: ShardId) -> StorageGroups {
    StorageGroups { entries: group_of(shard), votes: votes_of(shard) }
}

/// Returns the number of a shard's group.
pub fn log_group(shard: ShardId) -> LogGroup {
    LogGroup(shard.0 + 1)
}

/// State of a shard while its replica starts, or is read.
pub(crate) struct Restoring {
    pub shard: Shard,
    pub hash_key: [u8; 16],
}

impl StateMachine for Restoring {
    type Effect = ();

    fn apply(&mut self, committed: &Committed, _: &mut Vec<()>) -> Result<(), UnsupportedVersion> {
        let index = log_index(committed.index);
        if index > self.shard.applied() + 1 {
            self.shard.pass_over(index - 1);
        }
        let applied = self.shard.apply(index, &committed.command, &mut Vec::new());
        applied.map_err(|error| {
            tracing::error!(%error, shard = self.shard.id(), "a batch of a shard cannot be read");
            UnsupportedVersion
        })
    }

    fn begin_checkpoint(&mut self) {
        self.shard.begin_checkpoint();
    }

    fn write_parts(&mut self, budget: usize, out: &mut dyn FnMut(u32, &[u8])) -> bool {
        self.shard.write_parts(budget, &mut |part, bytes| out(part.as_u32(), bytes))
    }

    fn begin_restore(&mut self) {
        self.shard = Shard::new(self.shard.id(), self.hash_key);
    }

    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        let restored = self.shard.restore_part(PartId::from_u32(part), bytes);
        restored.map_err(|_| SnapshotError::Invalid)
    }

    fn restored(&mut self, index: u64) -> Result<(), SnapshotError> {
        self.shard.restored(log_index(index)).map_err(|_| SnapshotError::Invalid)
    }
}

impl ShardAgreement {
    /// Starts the replica of a shard from the log. Returns its state, too. Nothing is written before the first turn.
    ///
    /// # Errors
    /// The log is damaged or of a later version. The replica must not vote, and comes back under another id.
    pub fn start(
        now: Time,
        shard: ShardId,
        config: Config,
        log: Log,
        recovered: &[RecoveredGroup],
        hash_key: [u8; 16],
        owner: AgreementOwner,
    ) -> Result<(Shard, Self), StartError> {
        let machine = Restoring { shard: Shard::new(shard.0, hash_key), hash_key };
        let config = Config {
            group: log_group(shard),
            save_committed_after: SAVE_COMMITTED_AFTER,
            sends_ahead: true,
            keeps_bodies: true,
            frame_prefix: ShardFrame::REPLICA,
            ..config
        };
        let (now, copy_rate) = (link_time(now), config.copy_rate);
        let group = Group::start(now, config, log, storage_groups(shard), recovered, machine)?;
        let (replica, Restoring { shard: mut state, .. }) = group.into_parts();
        // The state includes entries that are no batches, too.
        let applied = replica.status(now).applied.map_or(0, log_index);
        state.pass_over(applied);
        let found = recovered.iter().find(|found| found.group == group_of(shard));
        let complete = found.and_then(|found| found.checkpoint).unwrap_or(0);
        let this = Self {
            shard,
            replica,
            owner,
            role: Role::Follows,
            members: MemberChanges { target: None, change: None, due: link::Time::NEVER },
            transfer: LeadershipTransfer::new(),
            no_room_due: link::Time::NEVER,
            proposals: VecDeque::new(),
            uncommitted: (VecDeque::new(), 0),
            earlier: 0,
            taken: 0,
            first: None,
            steps: VecDeque::new(),
            reading: None,
            job: None,
            preparing: None,
            parts: None,
            exchange: Exchange::with_rate(copy_rate),
            seeking: Seeking::default(),
            lost: BTreeSet::new(),
            frames: VecDeque::new(),
            heard: None,
            complete,
            applied,
            exists: Arc::default(),
            form: RecordForm::AGREED,
            now,
        };
        Ok((state, this))
    }

    /// Sets the form of the shard's records in the log, before the first turn.
    #[must_use]
    pub fn with_records(self, form: RecordForm) -> Self {
        Self { form, ..self }
    }

    fn handle_log_event(&mut self, event: LogEvent) {
        match event {
            LogEvent::Durable(group, index) => self.replica.durable(group, index),
            LogEvent::Checkpointed(group, index) => self.replica.checkpoint_durable(group, index),
            LogEvent::PartsDurable(group, parts) => self.replica.parts_durable(group, parts),
            LogEvent::Vacate(vacate) => self.replica.vacate(vacate),
            LogEvent::Failed(_) => self.replica.fail("the disk has failed"),
            LogEvent::BodiesDurable(..) | LogEvent::Dropped(_) | LogEvent::Full(_) | LogEvent::Room => {}
        }
    }

    fn handle_frame(&mut self, from: NodeId, bytes: &[u8]) {
        match ShardFrame::decode(bytes) {
            Some(ShardFrame::Replica(frame)) => {
                self.heard = Some(from);
                self.replica.receive(from, frame);
            }
            Some(ShardFrame::Fetch { number, keys }) => self.fetched(from, number, keys),
            Some(ShardFrame::NoRoom) => self.transfer.has_no_room(self.now, from),
            Some(ShardFrame::Bodies(piece)) if Seeking::has_asked(piece.number) => {
                self.seeking.received(self.now, from, piece);
            }
            Some(ShardFrame::Bodies(piece)) => {
                let bodies = self.exchange.received(self.now, from, piece);
                self.steps.extend(bodies.map(Step::Bodies));
            }
            None => tracing::debug!(shard = self.shard.0, %from, "a frame of a shard that cannot be decoded"),
        }
    }

    /// Handles another replica's request for messages.
    fn fetched(&mut self, from: NodeId, number: u64, keys: Vec<MessageKey>) {
        let (same, last) = self.replica.entries_as_of(self.preparing.as_ref().map(|it| it.term));
        // Only what is committed or applied is sure to be the same everywhere.
        let same = same.max(self.applied).min(self.durable());
        if let Some(keys) = readable_keys(keys, (same, last))
            && let Some(read) = self.exchange.asked(self.now, (self.shard, self.form), (from, number), keys)
        {
            self.schedule(Requested::Bodies(read));
        }
    }

    /// Follows the changes of the replica's role. The replica serves when its state has everything that was committed
    /// before it led.
    fn follow_role(&mut self) {
        while let Some(change) = self.replica.poll_leadership() {
            if matches!(self.role, Role::Leads { .. }) {
                self.steps.push_back(Step::Follows);
            }
            self.proposals.clear();
            self.uncommitted = (VecDeque::new(), 0);
            self.earlier = 0;
            (self.taken, self.first) = (0, None);
            self.reading = None;
            self.lost.clear();
            self.transfer.leads(self.now, false);
            (self.role, self.members.due) = match change {
                Leadership::Leads(term) => (Role::CatchingUp { term, barrier: Err(self.now) }, self.now),
                Leadership::Follows => (Role::Follows, link::Time::NEVER),
            };
        }
        if let Role::Leads { term, .. } = self.role
            && self.uncommitted.1 > UNCOMMITTED_MAX
        {
            // No majority answers, and more clients than have room here wait for one.
            self.steps.push_back(Step::Follows);
            self.earlier += self.uncommitted.0.len() - self.proposals.len();
            self.proposals.clear();
            self.uncommitted = (VecDeque::new(), 0);
            self.first = None;
            self.reading = None;
            self.transfer.leads(self.now, false);
            self.role = Role::CatchingUp { term, barrier: Err(self.now) };
        }
        if let Role::CatchingUp { term, .. } = self.role
            && mutated(Mutation::SkipBarrier)
        {
            self.leads(term);
        }
        if let Role::CatchingUp { barrier: barrier @ Err(_), .. } = &mut self.role
            && *barrier <= Err(self.now)
        {
            *barrier = Ok(self.replica.read_barrier(BARRIER_LIMIT));
            self.replica.turn(self.now);
        }
        if let Some((_, barrier @ Err(_))) = &mut self.reading
            && *barrier <= Err(self.now)
        {
            *barrier = Ok(self.replica.read_barrier(BARRIER_LIMIT));
            self.replica.turn(self.now);
        }
        while let Some(event) = self.replica.poll_event() {
            if self.members.change == Some(event.request) {
                // Its outcome shows in the members.
                let pause = if event.outcome.is_ok() { Duration::ZERO } else { LOOK_AGAIN };
                (self.members.change, self.members.due) = (None, self.now.after(pause));
                continue;
            }
            if self.transfer.ended(self.now, event.request) {
                self.transfer_ended(&event.outcome);
                continue;
            }
            if let Some((number, barrier)) = &mut self.reading
                && *barrier == Ok(event.request)
            {
                if event.outcome == Ok(Outcome::Readable) {
                    self.steps.push_back(Step::Readable(*number));
                    self.reading = None;
                } else {
                    *barrier = Err(self.now.after(BARRIER_AGAIN));
                }
                continue;
            }
            let Role::CatchingUp { term, barrier } = &mut self.role else { continue };
            if *barrier != Ok(event.request) {
                continue;
            }
            match event.outcome {
                Ok(Outcome::Readable) => {
                    let term = *term;
                    self.leads(term);
                }
                _ => *barrier = Err(self.now.after(BARRIER_AGAIN)),
            }
        }
    }

    /// Lets the owner serve clients in a term.
    fn leads(&mut self, term: u64) {
        self.steps.push_back(Step::Leads { term });
        self.role = Role::Leads { term, next: None };
        self.transfer.leads(self.now, true);
    }

    /// Returns whether the owner proposes for a period of leadership that is over, because it has not taken
    /// [`Step::Follows`] yet. Another period may have begun since.
    fn is_outdated(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Follows))
    }

    /// Returns a reference that ends with the agreement.
    pub(crate) fn exists(&self) -> Weak<()> {
        Arc::downgrade(&self.exists)
    }

    /// Makes the next change of the members, if this replica leads and they are not as they should be.
    fn change_members(&mut self) {
        let MemberChanges { target: Some(target), change: None, due } = &mut self.members else { return };
        if *due > self.now {
            return;
        }
        match target.next(&self.replica.status(self.now)) {
            Some(Next::Make(change)) => {
                tracing::info!(shard = self.shard.0, ?change, "the replicas of a shard change");
                *due = link::Time::NEVER;
                self.members.change = Some(self.replica.change_members(change, CHANGE_LIMIT));
                self.replica.turn(self.now);
            }
            Some(Next::Wait) => *due = self.now.after(LOOK_AGAIN),
            Some(Next::Reached) => {
                if !target.is_settled {
                    (self.owner.report_reached)(self.shard, target.epoch);
                }
                *due = self.now.after(REPORT_AGAIN);
            }
            None => *due = link::Time::NEVER,
        }
    }

    /// Time of the next look at the preferred leader, if no change of the members has to end before.
    fn next_transfer(&self) -> link::Time {
        if self.members.change.is_none() { self.transfer.due() } else { link::Time::NEVER }
    }

    /// Transfers the leadership if another replica should lead and can take over now.
    fn transfer_leadership(&mut self) {
        if self.transfer.due() > self.now || self.members.change.is_some() {
            return;
        }
        let (own, status) = (self.replica.id(), self.replica.status(self.now));
        let Some(to) = self.transfer.next(self.now, own, &status, &self.owner.transfer_permit) else {
            return;
        };
        self.transfer.begun(self.replica.transfer(to));
        self.replica.turn(self.now);
    }

    /// Says to the leader that this replica should not lead, because its log is full.
    fn report_no_room(&mut self) {
        if !self.transfer.is_full() || self.no_room_due > self.now {
            return;
        }
        self.no_room_due = self.now.after(NO_ROOM_AGAIN);
        if let Some(to) = self.leader().filter(|_| matches!(self.role, Role::Follows)) {
            self.frames.push_back(Frame::new(to.0, ShardFrame::NoRoom.encode()));
        }
    }

    fn transfer_ended(&self, outcome: &Result<Outcome, Undecided>) {
        let shard = self.shard.0;
        match outcome {
            Ok(_) if self.transfer.is_full() => {
                tracing::warn!(
                    shard,
                    "the leadership of a shard was transferred: the disk of this core is full"
                );
            }
            Ok(_) => tracing::info!(shard, "the leadership of a shard was transferred: leaders are spread"),
            Err(why) => {
                tracing::warn!(shard, %why, "transfer of the leadership of a shard given up; it is tried again")
            }
        }
        self.owner.transfer_permit.give_back(self.now, outcome.is_ok());
    }

    fn set_target(&mut self, target: TargetMembers) {
        if !target.founders.is_empty() {
            // A group that has members already keeps them.
            self.replica.initialize(target.founders.clone());
        }
        self.members.target = Some(target);
        if !matches!(self.role, Role::Follows) {
            self.members.due = self.now;
        }
    }

    fn send_proposals(&mut self) {
        while let Some(batch) = self.proposals.front()
            && self.replica.write(batch.clone())
        {
            self.proposals.pop_front();
            self.taken += 1;
        }
    }

    fn schedule(&self, data: Requested) {
        (self.owner.schedule_read)(self.shard, AgreementRead { data, _exists: self.exists.clone() });
    }

    /// Takes the output of the replica for others.
    fn take_output(&mut self) {
        while let Some(read) = self.replica.poll_read() {
            self.schedule(Requested::Log(read));
        }
        while let Some(vacate) = self.replica.poll_vacate() {
            let storage::Vacate { segment, entries, bodies, .. } = vacate;
            let vacate = broker::Vacate { segment: segment.0, batches: entries, kept: bodies };
            self.steps.push_back(Step::Vacate(vacate));
        }
        while let Some(transmit) = self.replica.poll_transmit() {
            // The frame begins with [`ShardFrame::REPLICA`] already.
            let Transmit { to, frame, is_heartbeat } = transmit;
            self.frames.push_back(Frame { to: to.0, bytes: frame, is_heartbeat });
        }
    }

    /// Returns the node that leads. A replica that has no state yet does not know the members: for it, it is the node
    /// that has sent something.
    fn leader(&self) -> Option<NodeId> {
        let status = self.replica.status(self.now);
        let leader = status.leader?;
        let known = status.members.iter().find(|(id, _)| *id == leader).map(|(_, member)| member.node);
        known.or(self.heard)
    }

    /// Asks the leader for messages, if the request or its answer may be lost.
    fn fetch_again(&mut self) {
        if self.exchange.due() > self.now {
            return;
        }
        let leader = self.leader();
        if let Some((to, frame)) = self.exchange.ask(self.now, leader) {
            self.frames.push_back(Frame::new(to.0, frame));
        }
    }

    /// Asks the next voter for messages that the disk of this node cannot return, or passes on those that were found.
    fn seek_again(&mut self) {
        if self.seeking.due() > self.now {
            return;
        }
        let (own, status) = (self.replica.id(), self.replica.status(self.now));
        let is_other = |id: &ReplicaId| *id != own && status.voters.contains(id);
        let voters = status.members.iter().filter(|(id, _)| is_other(id)).map(|(_, member)| member.node);
        match self.seeking.next(self.now, &voters.collect()) {
            Some(seeking::Next::Ask(to, frame)) => {
                self.frames.push_back(Frame::new(to.0, frame));
            }
            Some(seeking::Next::Found(bodies, missing)) => {
                if self.lost.len() > LOST_MAX {
                    self.lost.clear();
                }
                self.lost.extend(missing.iter().map(|key| key.index()));
                self.steps.push_back(Step::Sought(bodies));
            }
            None => {}
        }
    }

    /// Answers another replica's request, unless the messages have to be sought first.
    fn answer_bodies(&mut self, mut result: BodiesReadResult) {
        let follows = matches!(self.role, Role::Follows);
        // Others that seek messages ask a follower. They want to know at once that it has none. A new replica that asks
        // has not noticed yet that another one leads.
        let may_leave_out = follows && self.exchange.number(&result).is_some_and(Seeking::has_asked);
        if !may_leave_out && !mutated(Mutation::SkipUnreadable) {
            let lost = &self.lost;
            let unreadable = result.take_unreadable(|key| lost.contains(&key.index()));
            if !unreadable.is_empty() && !follows {
                self.steps.push_back(Step::Unreadable(unreadable));
            }
        }
        let frames = self.exchange.answer(self.now, result).into_iter();
        self.frames.extend(frames.map(|(to, bytes)| Frame::new(to.0, bytes)));
    }

    /// Takes the next job, and returns its first step.
    fn next_job(&mut self) -> Option<Step> {
        loop {
            let job = self.replica.poll_job()?;
            let (current, step) = match job {
                Job::Apply { commands, last, answer } => {
                    let commands = commands.into_iter();
                    self.job = Some(Current::Apply { commands, last, answer, is_over: false });
                    match self.next_command() {
                        Some(step) => return Some(step),
                        None => continue,
                    }
                }
                Job::WriteParts(parts) => {
                    self.parts = Some(parts);
                    return Some(Step::WriteParts { budget: WriteParts::BUDGET });
                }
                Job::BeginCheckpoint { answer, .. } => (Current::Begin(answer), Step::BeginCheckpoint),
                Job::BeginRestore { answer } => (Current::Begin(answer), Step::BeginRestore),
                Job::RestorePart { part, bytes, answer } => {
                    (Current::Part(answer), Step::RestorePart { part, bytes })
                }
                Job::Prepare { last, term, answer } => {
                    let last = log_index(last);
                    self.preparing = Some(Preparing { last, term, answer });
                    return Some(Step::Prepare { index: last });
                }
                Job::Restored { last, answer } => {
                    (Current::Restored(log_index(last), answer), Step::Restored)
                }
                Job::AbandonRestore => {
                    self.exchange.forget();
                    self.preparing = None;
                    return Some(Step::AbandonRestore);
                }
            };
            self.job = Some(current);
            return Some(step);
        }
    }

    /// Makes the step of the next command of the current job, and answers the job after the last one.
    fn next_command(&mut self) -> Option<Step> {
        let Some(Current::Apply { commands, last, is_over, .. }) = &mut self.job else { return None };
        if let Some(Committed { index, term, command }) = commands.next() {
            *is_over = index == *last;
            let is_earlier = self.earlier > 0
                && matches!(self.role, Role::Leads { term: own, .. } | Role::CatchingUp { term: own, .. } if own == term);
            self.earlier -= usize::from(is_earlier);
            let number = match &mut self.role {
                _ if is_earlier => None,
                Role::Leads { term: own, next: Some(next) } if *own == term => {
                    *next += 1;
                    self.uncommitted.1 -= self.uncommitted.0.pop_front().unwrap_or_default();
                    Some(*next - 1)
                }
                _ => None,
            };
            return Some(Step::Commit(CommittedBatch { index: log_index(index), number, bytes: command }));
        }
        if !std::mem::replace(is_over, true) {
            return Some(Step::PassOver(log_index(*last)));
        }
        if let Some(Current::Apply { answer, last, .. }) = self.job.take() {
            self.applied = log_index(last);
            answer.send(Ok(()));
        }
        None
    }
}

impl Agreement for ShardAgreement {
    fn handle(&mut self, event: AgreementEvent) {
        let Ok(input) = event.downcast::<AgreementInput>() else {
            debug_assert!(false, "an event of something else");
            return;
        };
        match *input {
            AgreementInput::Log(event) => self.handle_log_event(event),
            AgreementInput::Read(result) => self.replica.handle_read(result),
            AgreementInput::Target(target) => self.set_target(target),
            AgreementInput::PreferredLeader(preferred) => self.transfer.prefer(self.now, preferred),
            AgreementInput::Bodies(result) => self.answer_bodies(result),
        }
    }

    fn receive(&mut self, frame: PeerFrame) {
        self.handle_frame(NodeId(frame.from), &frame.bytes);
    }

    fn link_lost(&mut self, node: u64) {
        self.replica.lost(NodeId(node));
    }

    fn set_condition(&mut self, condition: Condition) {
        let is_full = condition == Condition::Full;
        if is_full != self.transfer.is_full() {
            self.transfer.set_full(self.now, is_full);
            self.no_room_due = if is_full { self.now } else { link::Time::NEVER };
        }
    }

    fn turn(&mut self, now: Time) {
        self.now = self.now.max(link_time(now));
        self.replica.turn(self.now);
        self.follow_role();
        self.change_members();
        self.transfer_leadership();
        self.report_no_room();
        if !self.proposals.is_empty() {
            self.send_proposals();
            self.replica.turn(self.now);
        }
        self.fetch_again();
        self.seek_again();
        while let Some(read) = self.exchange.read_again(self.now, (self.shard, self.form)) {
            self.schedule(Requested::Bodies(read));
        }
        self.take_output();
    }

    fn timeout(&self) -> Time {
        let barrier = match &self.role {
            Role::CatchingUp { barrier: Err(at), .. } => *at,
            _ => link::Time::NEVER,
        };
        let reading = match self.reading {
            Some((_, Err(at))) => at,
            _ => link::Time::NEVER,
        };
        let due = self
            .replica
            .timeout()
            .min(barrier)
            .min(reading)
            .min(self.exchange.due())
            .min(self.exchange.read_due())
            .min(self.seeking.due())
            .min(self.members.next_look())
            .min(self.next_transfer())
            .min(self.no_room_due);
        // Rounded up: a turn in the same millisecond would come too early.
        if due == link::Time::NEVER { Time::NEVER } else { Time(due.0.div_ceil(1000)) }
    }

    fn poll_frame(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    fn durable(&self) -> u64 {
        self.replica.durable_in_log().max(self.complete)
    }

    fn propose(&mut self, number: u64, batch: Arc<Vec<u8>>) {
        if self.is_outdated() {
            return;
        }
        let Role::Leads { next, .. } = &mut self.role else { return };
        next.get_or_insert(number);
        self.first.get_or_insert((number, self.taken));
        self.uncommitted.0.push_back(batch.len());
        self.uncommitted.1 += batch.len();
        self.proposals.push_back(batch);
    }

    fn read_barrier(&mut self, number: u64) {
        if matches!(self.role, Role::Leads { .. }) && !self.is_outdated() {
            self.reading = Some((number, Err(self.now)));
        }
    }

    fn poll(&mut self) -> Option<Step> {
        let step = self.steps.pop_front();
        step.or_else(|| if self.job.is_none() { self.next_job() } else { None })
    }

    fn done(&mut self) {
        match self.job.take() {
            Some(job @ Current::Apply { .. }) => {
                self.job = Some(job);
                let next = self.next_command();
                self.steps.extend(next);
            }
            Some(Current::Begin(answer)) => answer.send(()),
            Some(Current::Part(answer)) => answer.send(Ok(())),
            Some(Current::Restored(index, answer)) => {
                self.applied = index;
                answer.send(Ok(()));
            }
            None => debug_assert!(false, "no step is being done"),
        }
    }

    fn put(&mut self, part: u32, bytes: &[u8]) {
        if let Some(parts) = &mut self.parts {
            parts.put(part, bytes);
        }
    }

    fn wrote(&mut self, is_last: bool) {
        if let Some(parts) = self.parts.take() {
            parts.answer(if is_last { Written::All } else { Written::Some });
        }
    }

    fn refuse(&mut self, why: &str) {
        tracing::error!(shard = self.shard.0, why, "the replica of a shard stops");
        match self.job.take() {
            Some(Current::Part(answer) | Current::Restored(_, answer)) => {
                answer.send(Err(SnapshotError::Invalid));
            }
            Some(Current::Apply { answer, .. }) => answer.send(Err(UnsupportedVersion)),
            Some(Current::Begin(answer)) => answer.send(()),
            None => {}
        }
        self.replica.fail(why);
    }

    fn fetch(&mut self, keys: Vec<MessageKey>) {
        self.exchange.fetch(self.now, keys);
        self.fetch_again();
    }

    fn seek(&mut self, keys: Vec<MessageKey>) {
        self.seeking.begin(self.now, keys);
    }

    fn prepared(&mut self, is_complete: bool) {
        self.exchange.forget();
        if let Some(Preparing { last, answer, .. }) = self.preparing.take() {
            if is_complete {
                self.complete = self.complete.max(last);
            }
            answer.send(if is_complete { Ok(()) } else { Err(GivenUp) });
        }
    }

    fn progress(&self) -> Vec<ReplicaProgress> {
        let Role::Leads { .. } = self.role else { return Vec::new() };
        let status = self.replica.status(self.now);
        let others = status.progress.iter().filter(|progress| progress.replica != self.replica.id());
        let of = |progress: &consensus::Progress| {
            let (_, member) = status.members.iter().find(|(id, _)| *id == progress.replica)?;
            let behind = progress.last.map(|last| status.last.unwrap_or(0).saturating_sub(last));
            let silence = progress.silence.map(Duration::from_micros);
            Some(ReplicaProgress { node: member.node.0, behind, silence })
        };
        others.filter_map(of).collect()
    }

    fn held(&mut self) -> u64 {
        // A batch of the owner before `first` may never have been proposed to the group.
        let Some((first, before)) = self.first.filter(|_| !self.is_outdated()) else { return 0 };
        if mutated(Mutation::AcknowledgeAlone) {
            return first + self.taken.saturating_sub(before + 1);
        }
        (first + self.replica.held_writes().saturating_sub(before)).saturating_sub(1)
    }

    fn bodies_kept(&mut self, segment: u64) {
        self.replica.bodies_kept(SegmentId(segment));
    }
}
