//! A host that runs one replica at a time: its disk, and the current replica.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use consensus::{Config, Group, LogGroup, LogRead, Member, ReplicaId, Role, StorageGroups};
use link::{NodeId, Time};
use storage::fault::FaultDisk;
use storage::{ForEachEvent, GroupId, Keeper, Log, LogEvent, LogListener, Options, Writer};

use super::neighbour::{self, Neighbour};
use super::proposal_log::ProposalLog;
use crate::report::Report;
use crate::schedule::Micros;
use random::Random;

pub const STORAGE_GROUPS: StorageGroups = StorageGroups { entries: GroupId(1), votes: GroupId(2) };
/// Urgent groups of the log: those of [`STORAGE_GROUPS`], as on a core.
const URGENT: [GroupId; 2] = [STORAGE_GROUPS.entries, STORAGE_GROUPS.votes];
pub const GROUP: LogGroup = LogGroup(0);

/// Events of the log that the replica has not handled yet.
#[derive(Clone, Default)]
pub struct LogEventQueue(Arc<Mutex<Vec<LogEvent>>>);

impl LogEventQueue {
    pub fn listener(&self) -> Box<dyn LogListener> {
        let queue = self.clone();
        Box::new(ForEachEvent(move |event| queue.push(event)))
    }

    fn push(&self, event: LogEvent) {
        sync::lock(&self.0).push(event);
    }

    fn take(&self) -> Vec<LogEvent> {
        std::mem::take(&mut *sync::lock(&self.0))
    }
}

/// Parameters of all replicas.
#[derive(Clone, Debug)]
pub struct ReplicaParameters {
    pub heartbeat: Duration,
    pub election_timeout: Duration,
    pub snapshot_after: u64,
    pub keep_entries: u64,
    pub entry_cache_bytes: usize,
    pub snapshot_piece_bytes: usize,
    pub snapshot_bytes_in_flight: usize,
    pub segment_bytes: u64,
    pub low_bytes_per_commit: u64,
    pub sync_max: Micros,
}

impl ReplicaParameters {
    pub fn options(&self, entropy: [u8; 48]) -> Options {
        Options {
            segment_bytes: self.segment_bytes,
            reserve_bytes: 2 * self.segment_bytes,
            urgent: &URGENT,
            low_bytes_per_commit: self.low_bytes_per_commit,
            entropy: Some(entropy),
            ..Options::default()
        }
    }
}

/// Process of a replica.
pub struct Replica {
    pub group: Group<ProposalLog>,
    pub log: Log,
    pub writer: Writer,
    pub keeper: Keeper,
    log_events: LogEventQueue,
    pub neighbour: Neighbour,
    /// True if a commit of the log is scheduled.
    pub commits: bool,
    /// Time at which a write without room is repeated.
    pub retry_at: Micros,
    /// Time until which the process stands still.
    pub paused_until: Micros,
    /// Time of the scheduled turn.
    pub turn_at: Micros,
    /// True if its disk has failed.
    pub has_failed: bool,
    /// Reads of the log, and the times at which they end.
    pub log_reads: Vec<(Micros, LogRead)>,
    /// True if the next read of the log fails.
    pub read_fails: bool,
    /// Term in which the replica says that it leads.
    pub leads: Option<u64>,
}

impl Replica {
    /// Ends reads of the log that are due.
    pub fn end_log_reads(&mut self, now: Micros, report: &mut Report) {
        let due: Vec<_> = self.log_reads.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, read) in due {
            if !std::mem::take(&mut self.read_fails) {
                self.group.handle_read(read.run(&self.log));
                continue;
            }
            self.group.handle_read(read.fail("the disk fails to read"));
            let status = self.group.status(Time(now));
            let why = status.failure.as_deref();
            assert!(status.role == Role::Stopped && why == Some("the disk fails to read"), "{status:?}");
            self.has_failed = true;
            report.quorum_check_unreadable += 1;
        }
    }

    /// Handles the events of the log.
    pub fn handle_log_events(&mut self, now: Micros, report: &mut Report) {
        let events = self.log_events.take();
        // Groups that become durable together are reported one after the other.
        let stays = |event: &LogEvent| !matches!(event, LogEvent::Durable(neighbour::GROUP, _));
        let overtakes = self.neighbour.is_stalled() && events.iter().all(stays);
        for event in events {
            match event {
                LogEvent::Durable(neighbour::GROUP, index) => self.neighbour.durable(index),
                LogEvent::Durable(group, index) => {
                    report.quorum_check_full += u64::from(overtakes);
                    self.group.durable(group, index);
                }
                LogEvent::Checkpointed(neighbour::GROUP, index) => self.neighbour.checkpoint_durable(index),
                LogEvent::Checkpointed(group, index) => self.group.checkpoint_durable(group, index),
                LogEvent::PartsDurable(neighbour::GROUP, _) => {}
                LogEvent::PartsDurable(group, parts) => self.group.parts_durable(group, parts),
                LogEvent::Vacate(vacate) if vacate.group == neighbour::GROUP => self.neighbour.vacate(vacate),
                LogEvent::Vacate(vacate) => self.group.vacate(vacate),
                LogEvent::BodiesDurable(..) => unreachable!("no group here has bodies"),
                LogEvent::Dropped(_) => unreachable!("no group here is dropped"),
                LogEvent::Full(_) => report.quorum_disks_full += 1,
                LogEvent::Room => report.quorum_disks_room += 1,
                LogEvent::Failed(why) => {
                    self.has_failed = true;
                    self.group.fail(&why);
                }
            }
        }
        self.neighbour.tidy(now);
    }
}

pub struct Host {
    pub disk: FaultDisk,
    pub replica: Option<Replica>,
    /// Number of the process.
    pub incarnation: u32,
    /// Id of the replica. It changes when the disk is replaced.
    pub id: ReplicaId,
    /// Last applied index when the process was killed with everything written. The next process must have it.
    pub had_applied: Option<u64>,
    pub sync_fails: bool,
    /// Damage of the disk: lost writes, or a flipped bit. The log may be unreadable.
    pub damage: Option<Damage>,
}

/// Damage of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Lied,
    Rotten,
}

/// Reason why a replica did not start.
pub enum NotStarted {
    /// The disk has failed meanwhile.
    Failed,
    /// The data on the disk is damaged.
    Refused(String),
}

pub fn node(host: usize) -> NodeId {
    NodeId(host as u64 + 1)
}

impl Host {
    pub fn new(seed: u64, id: ReplicaId) -> Self {
        Self {
            disk: FaultDisk::new(seed),
            replica: None,
            incarnation: 0,
            id,
            had_applied: None,
            sync_fails: false,
            damage: None,
        }
    }

    /// Opens the log and starts from its end.
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn start(
        &mut self,
        at: usize,
        now: Time,
        parameters: &ReplicaParameters,
        random: &mut Random,
    ) -> Result<(), NotStarted> {
        self.incarnation += 1;
        let mut entropy = [0; 48];
        entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let options = parameters.options(entropy);
        let log_events = LogEventQueue::default();
        let opened = storage::open(Arc::new(self.disk.clone()), options, log_events.listener(), &mut |_| {});
        let opened = opened.map_err(|error| match self.damage {
            Some(_) => NotStarted::Refused(error.to_string()),
            None => NotStarted::Failed,
        })?;
        let storage::Opened { log, writer, keeper, recovery } = opened;
        let config = Config {
            heartbeat: parameters.heartbeat,
            election_timeout: parameters.election_timeout,
            snapshot_after: parameters.snapshot_after,
            keep_entries: parameters.keep_entries,
            entry_cache_bytes: parameters.entry_cache_bytes,
            snapshot_piece_bytes: parameters.snapshot_piece_bytes,
            snapshot_bytes_in_flight: parameters.snapshot_bytes_in_flight,
            sends_ahead: self.id.0.is_multiple_of(2),
            ..Config::new(GROUP, self.id, Member { node: node(at) }, random.draw())
        };
        let neighbour = Neighbour::new(log.clone(), parameters.segment_bytes, &recovery.groups);
        let group =
            Group::start(now, config, log.clone(), STORAGE_GROUPS, &recovery.groups, ProposalLog::default());
        let mut group = match group {
            Err(why) if self.damage.is_some() => return Err(NotStarted::Refused(why.to_string())),
            group => group.expect("the written log can be read"),
        };
        group.state_mut().restores = 0;
        self.replica = Some(Replica {
            group,
            log,
            writer,
            keeper,
            log_events,
            neighbour,
            commits: false,
            retry_at: 0,
            paused_until: 0,
            turn_at: Micros::MAX,
            has_failed: false,
            log_reads: Vec::new(),
            read_fails: false,
            leads: None,
        });
        Ok(())
    }
}
