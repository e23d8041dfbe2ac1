//! One replica of one group, as its owner drives it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use link::{NodeId, Time};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, LinearizableReadError, RaftError};
use openraft::{AsyncRuntime, ChangeMembers, Precondition, SnapshotPolicy};
use storage::{GroupId, Log, RecoveredGroup, Vacate};

use crate::config::Config;
use crate::machine::{Machine, Shared, State, StateMachine, UNSUPPORTED_VERSION};
use crate::mutation::{Mutation, mutated};
use crate::network::{Network, Transmit};
use crate::raft_log::{StorageGroups, Store, Unreadable};
use crate::runtime::{Runtime, lock};
use crate::serve::Server;
use crate::status::{Role, Status};
use crate::raft_types::{Command, Member, ReplicaId, Types};
use crate::wire;

pub(crate) type Raft = openraft::Raft<Types, Machine>;

/// Something that was asked of a group, until its [`Event`] comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// How a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub request: RequestId,
    pub outcome: Result<Outcome, Undecided>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command is committed and applied here: its index, and what the state said.
    Applied(u64, Vec<u8>),
    /// The state here has everything that was committed when the barrier was asked for.
    Readable,
    /// The members are as was asked.
    Changed,
    /// This replica does not lead any more.
    Transferred,
}

/// Why a request has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Nothing has happened: this replica does not lead. Who does, if that is known.
    NotLeader(Option<(ReplicaId, Member)>),
    /// Nothing has happened, and why.
    Refused(String),
    /// It may happen yet, or have happened.
    Unknown,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader(Some((leader, _))) => write!(f, "replica {leader} leads"),
            Self::NotLeader(None) => f.write_str("nobody leads"),
            Self::Refused(why) => f.write_str(why),
            Self::Unknown => f.write_str("it may happen yet, or have happened"),
        }
    }
}

impl std::error::Error for Undecided {}

/// How the members of a group are to change. One change at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The replica gets all entries, and has no vote.
    AddLearner(ReplicaId, Member),
    /// These vote, and nobody else: they are learners already. Those that lose their votes leave. It goes by way of both majorities
    /// ([`Status::is_changing`]); where the leader went half-way, the next one is to be asked again.
    SetVoters(BTreeSet<ReplicaId>),
    /// The learner leaves.
    RemoveLearner(ReplicaId),
}

/// A [`Replica`] and the state that it makes.
pub struct Group<S> {
    replica: Replica,
    state: Arc<Mutex<S>>,
}

/// An `openraft` node, its log, and its state.
///
/// Its owner hands it frames ([`Self::receive`]) and what the log tells, calls [`Self::turn`] after any of it and when [`Self::timeout`] is
/// due, and takes frames and events from it.
pub struct Replica {
    config: Config,
    storage_groups: StorageGroups,
    runtime: Runtime,
    raft: Raft,
    network: Network,
    store: Store,
    state: Arc<Mutex<State>>,
    server: Arc<Server>,
    events: Arc<Mutex<VecDeque<Event>>>,
    requests: u64,
    waiting: Arc<AtomicUsize>,
    /// A snapshot was asked for that stands for this entry.
    snapshot_requested: Option<u64>,
    counters: Counters,
}

/// What a replica has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub received: u64,
    /// Bytes that were no message of this version, or for another replica.
    pub malformed: u64,
    /// Questions that were not answered because too many waited.
    pub overrun: u64,
}

/// It cannot begin.
#[derive(Debug)]
pub enum StartError {
    Unreadable(Unreadable),
    /// A later version of the program wrote it.
    UnsupportedVersion,
    Failed(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::UnsupportedVersion => f.write_str(UNSUPPORTED_VERSION),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StartError {}

fn settings(config: &Config) -> Result<openraft::Config, StartError> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let settings = openraft::Config {
        cluster_name: format!("group {}", config.group.0),
        heartbeat_interval: millis(config.heartbeat),
        election_timeout_min: millis(config.election_timeout),
        election_timeout_max: millis(config.election_timeout) * 2,
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_after),
        max_in_snapshot_log_to_keep: config.keep_entries,
        enable_pre_vote: Some(!mutated(Mutation::SkipPreVote)),
        // A leader sends entries before its own disk has them. One that lost some and led on would send others in their places.
        enable_leader_restore: Some(mutated(Mutation::LeadOn)),
        // A disk may lose what it had said to have. The others give it again: otherwise the one that leads would take a replica for one that has it.
        allow_log_reversion: Some(!mutated(Mutation::KeepToPromises)),
        ..openraft::Config::default()
    };
    settings.validate().map_err(|error| StartError::Failed(error.to_string()))
}

impl<S: StateMachine> Group<S> {
    /// Begins where the log ends. `machine` is empty.
    ///
    /// # Errors
    /// What the log has is damaged or of a later version: the replica must not vote, and comes back as another one.
    pub fn start(
        now: Time,
        config: Config,
        log: Log,
        storage_groups: StorageGroups,
        recovered: &[RecoveredGroup],
        machine: S,
    ) -> Result<Self, StartError> {
        let state = Arc::new(Mutex::new(machine));
        let shared = Box::new(Shared(state.clone()));
        Ok(Self { replica: Replica::start(now, config, log, storage_groups, recovered, shared)?, state })
    }

    /// The state, as far as it is applied here.
    pub fn state(&self) -> StateGuard<'_, S> {
        StateGuard(lock(&self.state))
    }
}

impl<S> std::ops::Deref for Group<S> {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl<S> std::ops::DerefMut for Group<S> {
    fn deref_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }
}

impl Replica {
    fn start(
        now: Time,
        config: Config,
        log: Log,
        storage_groups: StorageGroups,
        recovered: &[RecoveredGroup],
        machine: Box<dyn StateMachine>,
    ) -> Result<Self, StartError> {
        let store = Store::recover(log, storage_groups, recovered).map_err(StartError::Unreadable)?;
        let mut runtime = Runtime::new(now, config.seed);
        let network = Network::new(config.group, config.id, config.seed as u32);
        let (machine, state) = Machine::new(machine, store.clone());
        let settings = Arc::new(settings(&config)?);
        let raft = Raft::new(config.id, settings, network.clone(), store.clone(), machine);
        let raft = runtime.run_until(raft).map_err(|error| match lock(&state).is_outdated {
            true => StartError::UnsupportedVersion,
            false => StartError::Failed(error.to_string()),
        })?;
        runtime.run(now);
        let server = Arc::new(Server::new(store.clone(), config.snapshot_bytes_max));
        Ok(Self {
            config,
            storage_groups,
            runtime,
            raft,
            network,
            store,
            state,
            server,
            events: Arc::default(),
            requests: 0,
            waiting: Arc::default(),
            snapshot_requested: None,
            counters: Counters::default(),
        })
    }

    pub fn id(&self) -> ReplicaId {
        self.config.id
    }

    pub fn storage_groups(&self) -> StorageGroups {
        self.storage_groups
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A frame of another node's replica.
    pub fn receive(&mut self, from: NodeId, frame: &[u8]) {
        let message = match wire::decode(frame) {
            Some(message) if (message.group, message.to) == (self.config.group, self.config.id) => message,
            _ => {
                self.counters.malformed += 1;
                return;
            }
        };
        self.counters.received += 1;
        if message.body.is_answer() {
            return self.network.answered(from, message.call, message.body);
        }
        let Some(ticket) = self.ticket() else {
            self.counters.overrun += 1;
            return;
        };
        let (raft, network, server) = (self.raft.clone(), self.network.clone(), self.server.clone());
        self.runtime.spawn(async move {
            let _ticket = ticket;
            let question = (message.from, message.call);
            let answer = server.serve(&raft, message.from, message.body).await;
            network.answer(from, &question, answer);
        });
    }

    /// The node is cut off, or began anew.
    pub fn lost(&mut self, node: NodeId) {
        self.network.lost(node);
    }

    /// The log has written an entry of one of [`Self::storage_groups`], and all before it.
    pub fn durable(&mut self, group: GroupId, index: u64) {
        self.store.lock().durable(group, index);
    }

    pub fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        self.store.lock().checkpointed(group, index);
    }

    /// The log wants a segment back.
    pub fn vacate(&mut self, vacate: Vacate) {
        self.store.lock().vacate(vacate);
    }

    /// The log has failed: the replica stops. It leads no more, and others, who hear nothing of it, elect another leader.
    pub fn fail(&mut self, why: &str) {
        self.store.lock().fail(why);
        let raft = self.raft.clone();
        self.runtime.spawn(async move {
            // It has stopped by itself when something waited for the log.
            let _ = raft.shutdown().await;
        });
    }

    pub fn turn(&mut self, now: Time) {
        self.free_segments();
        self.runtime.run(now);
    }

    /// When [`Self::turn`] is due at the latest.
    pub fn timeout(&self) -> Time {
        self.runtime.due()
    }

    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.network.poll_transmit()
    }

    /// A replica that lacks what it had confirmed to this one, which leads and gives it that again. What it promised is worth nothing: its disk does not keep what it says,
    /// or its log is an older copy.
    pub fn poll_regressed(&mut self) -> Option<ReplicaId> {
        self.network.poll_regressed()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        lock(&self.events).pop_front()
    }

    pub fn status(&self, now: Time) -> Status {
        let mut status = Status::new(&self.raft.metrics().borrow_watched(), now);
        if let Some(panic) = self.runtime.panic() {
            status.role = Role::Stopped;
            status.failure = Some(panic.to_owned());
        }
        if let Some(why) = self.store.lock().failed() {
            status.role = Role::Stopped;
            status.failure = Some(why.to_owned());
        }
        if lock(&self.state).is_outdated {
            status.failure = Some(UNSUPPORTED_VERSION.to_owned());
        }
        status
    }

    /// Makes the first members of a group that has none, once, on one of them; on others it does nothing.
    pub fn initialize(&mut self, members: BTreeMap<ReplicaId, Member>) -> RequestId {
        self.request(|raft| async move {
            match raft.initialize(members).await {
                Ok(()) | Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => {
                    Ok(Outcome::Changed)
                }
                Err(error) => Err(Undecided::Refused(error.to_string())),
            }
        })
    }

    /// Has the command agreed upon, if this replica leads. After `limit` its fate is unknown.
    pub fn propose(&mut self, command: Vec<u8>, limit: Duration) -> RequestId {
        self.request(move |raft| async move {
            match Runtime::timeout(limit, raft.client_write(Command(command))).await {
                Ok(Ok(written)) => Ok(Outcome::Applied(written.log_id.index, written.data.0)),
                Ok(Err(RaftError::APIError(error))) => Err(undecided(error)),
                Ok(Err(RaftError::Fatal(_))) | Err(_) => Err(Undecided::Unknown),
            }
        })
    }

    /// Asks a majority whether this replica still leads: what its state says after the event was true at some time after the question.
    pub fn read_barrier(&mut self, limit: Duration) -> RequestId {
        self.request(move |raft| async move {
            let read = raft.ensure_linearizable(openraft::raft::ReadPolicy::ReadIndex);
            match Runtime::timeout(limit, read).await {
                Ok(Ok(_)) => Ok(Outcome::Readable),
                Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to)))) => {
                    Err(Undecided::NotLeader(to.leader_id.zip(to.leader_node)))
                }
                Ok(Err(error)) => Err(Undecided::Refused(error.to_string())),
                Err(_) => Err(Undecided::Refused("no majority has answered".into())),
            }
        })
    }

    /// Changes the members, if this replica leads and they are still what it knows. One that has given up its vote leads on for a moment, and changes them no more: `openraft`
    /// asserts that whoever does has a vote. One whose vote ends with the change that is under way completes that, whatever it is asked for: the next leader does the rest.
    pub fn change_members(&mut self, change: Change, limit: Duration) -> RequestId {
        self.request(move |raft| async move {
            let metrics = raft.metrics().borrow_watched().clone();
            if !metrics.membership_config.voter_ids().any(|voter| voter == metrics.id) {
                return Err(Undecided::NotLeader(None));
            }
            let configs = metrics.membership_config.membership().get_joint_config();
            let change = match configs.last() {
                Some(target) if configs.len() > 1 && !target.contains(&metrics.id) => {
                    Change::SetVoters(target.clone())
                }
                _ => change,
            };
            let last_membership_log_id = *metrics.membership_config.log_id();
            let known = [Precondition::LastMembershipLogId { last_membership_log_id }];
            let (change, keeps) = match change {
                Change::AddLearner(id, member) => {
                    (ChangeMembers::AddNodes(BTreeMap::from([(id, member)])), true)
                }
                Change::SetVoters(voters) => (ChangeMembers::ReplaceAllVoters(voters), false),
                Change::RemoveLearner(id) => (ChangeMembers::RemoveNodes(BTreeSet::from([id])), false),
            };
            match Runtime::timeout(limit, raft.change_membership_if(change, keeps, known)).await {
                Ok(Ok(_)) => Ok(Outcome::Changed),
                Ok(Err(RaftError::APIError(error))) => Err(undecided(error)),
                Ok(Err(RaftError::Fatal(_))) | Err(_) => Err(Undecided::Unknown),
            }
        })
    }

    /// Has another voter lead, if this replica does. Meanwhile nothing is agreed upon: one that does not take over within twice
    /// [`Config::election_timeout`] is not waited for.
    pub fn transfer(&mut self, to: ReplicaId) -> RequestId {
        let timeout = self.config.election_timeout * 2;
        self.request(move |raft| async move {
            let metrics = raft.metrics().borrow_watched().clone();
            if !raft.is_leader() {
                return Err(Undecided::NotLeader(None));
            }
            let is_voter = metrics.membership_config.voter_ids().any(|voter| voter == to);
            if !is_voter || to == metrics.id {
                return Err(Undecided::Refused(format!("{to} is not another voter")));
            }
            let stopped = |fatal: openraft::errors::Fatal<Types>| Undecided::Refused(fatal.to_string());
            raft.trigger().transfer_leader(to).await.map_err(stopped)?;
            let term = metrics.current_term;
            let gone = raft
                .wait(Some(timeout))
                .metrics(
                    |now| now.current_term > term || now.state != openraft::ServerState::Leader,
                    "handed over",
                )
                .await;
            if gone.is_ok() && !raft.is_leader() {
                return Ok(Outcome::Transferred);
            }
            // It would wait for the other for ever.
            raft.trigger().elect(false).await.map_err(stopped)?;
            Err(Undecided::Refused(format!("{to} has not taken over")))
        })
    }

    /// One that would wait too long is refused at once.
    fn request<F>(&mut self, ask: impl FnOnce(Raft) -> F) -> RequestId
    where
        F: Future<Output = Result<Outcome, Undecided>> + Send + 'static,
    {
        self.requests += 1;
        let request = RequestId(self.requests);
        let events = self.events.clone();
        let Some(ticket) = self.ticket() else {
            let outcome = Err(Undecided::Refused("too many proposals wait".into()));
            lock(&events).push_back(Event { request, outcome });
            return request;
        };
        let future = ask(self.raft.clone());
        self.runtime.spawn(async move {
            let _ticket = ticket;
            let outcome = future.await;
            lock(&events).push_back(Event { request, outcome });
        });
        request
    }

    fn ticket(&self) -> Option<Ticket> {
        if self.waiting.load(Ordering::Relaxed) >= self.config.waiting_max {
            return None;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Ticket(self.waiting.clone()))
    }

    /// Segments go when a snapshot stands for what they hold.
    fn free_segments(&mut self) {
        let Some(wanted) = self.store.lock().wanted_snapshot() else { return };
        let applied = lock(&self.state).applied.map(|applied| applied.index);
        if applied < Some(wanted) || self.snapshot_requested >= applied {
            return;
        }
        self.snapshot_requested = applied;
        let raft = self.raft.clone();
        self.runtime.spawn(async move {
            if let Err(fatal) = raft.trigger().snapshot().await {
                tracing::error!(%fatal, "no snapshot");
            }
        });
    }
}

fn undecided(error: ClientWriteError<Types>) -> Undecided {
    match error {
        ClientWriteError::ForwardToLeader(to) => Undecided::NotLeader(to.leader_id.zip(to.leader_node)),
        ClientWriteError::LogEntryDiscarded(_) => Undecided::Unknown,
        ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)) => {
            Undecided::Refused("another change of the members is in progress".into())
        }
        other => Undecided::Refused(other.to_string()),
    }
}

/// One of those that wait.
struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of a replica, for as long as it is looked at.
pub struct StateGuard<'a, S>(MutexGuard<'a, S>);

impl<S> std::ops::Deref for StateGuard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S> std::ops::DerefMut for StateGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}
