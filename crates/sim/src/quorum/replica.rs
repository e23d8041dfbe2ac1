//! A place where replicas live, one at a time: its disk, and the one that runs now.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use consensus::{Config, Group, LogGroup, Member, Places, ReplicaId};
use link::{NodeId, Time};
use storage::fault::FaultDisk;
use storage::{GroupId, Keeper, Log, LogEvents, Options, Vacate, Writer};

use super::ledger::Ledger;
use super::neighbour::{self, Neighbour};
use crate::random::Random;
use crate::report::Report;
use crate::schedule::Micros;

pub const PLACES: Places = Places { entries: GroupId(1), votes: GroupId(2) };
/// Of [`PLACES`], as those of a core's.
const URGENT: [GroupId; 2] = [PLACES.entries, PLACES.votes];
pub const GROUP: LogGroup = LogGroup(0);

/// What the log tells, until the replica takes it.
#[derive(Clone, Default)]
pub struct Told(Arc<Mutex<Vec<Tale>>>);

pub enum Tale {
    Durable(GroupId, u64),
    Checkpoint(GroupId, u64),
    Vacate(Vacate),
    Full,
    Room,
    Failed(String),
}

impl Told {
    fn tell(&self, tale: Tale) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(tale);
    }

    fn take(&self) -> Vec<Tale> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LogEvents for Told {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        groups.iter().for_each(|(group, index)| self.tell(Tale::Durable(*group, *index)));
    }

    fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        self.tell(Tale::Checkpoint(group, index));
    }

    fn vacate(&mut self, vacate: Vacate) {
        self.tell(Tale::Vacate(vacate));
    }

    fn full(&mut self, _: storage::Lack) {
        self.tell(Tale::Full);
    }

    fn room(&mut self) {
        self.tell(Tale::Room);
    }

    fn failed(&mut self, error: &storage::Error) {
        self.tell(Tale::Failed(error.to_string()));
    }
}

/// What a seed decides of all replicas.
#[derive(Clone, Debug)]
pub struct Tempo {
    pub heartbeat: Duration,
    pub election_timeout: Duration,
    pub snapshot_after: u64,
    pub keep_entries: u64,
    pub segment_bytes: u64,
    pub low_bytes_per_commit: u64,
    pub sync_max: Micros,
}

impl Tempo {
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

/// A process.
pub struct Replica {
    pub group: Group<Ledger>,
    pub log: Log,
    pub writer: Writer,
    pub keeper: Keeper,
    told: Told,
    pub neighbour: Neighbour,
    /// A commit of the log is on its way.
    pub commits: bool,
    /// What found no room is tried again then.
    pub retry_at: Micros,
    /// Nothing of it happens until then.
    pub paused_until: Micros,
    /// When the turn is that is on its way.
    pub turn_at: Micros,
    /// The disk has failed under it.
    pub has_failed: bool,
}

impl Replica {
    /// Takes in what the log has told.
    pub fn hear(&mut self, now: Micros, report: &mut Report) {
        let tales = self.told.take();
        // What is durable at one time is told one after the other.
        let stays = |tale: &Tale| !matches!(tale, Tale::Durable(neighbour::GROUP, _));
        let overtakes = self.neighbour.is_stalled() && tales.iter().all(stays);
        for tale in tales {
            match tale {
                Tale::Durable(neighbour::GROUP, index) => self.neighbour.durable(index),
                Tale::Durable(group, index) => {
                    report.quorum_check_full += u64::from(overtakes);
                    self.group.durable(group, index);
                }
                Tale::Checkpoint(neighbour::GROUP, index) => self.neighbour.checkpoint_durable(index),
                Tale::Checkpoint(group, index) => self.group.checkpoint_durable(group, index),
                Tale::Vacate(vacate) if vacate.group == neighbour::GROUP => self.neighbour.vacate(vacate),
                Tale::Vacate(vacate) => self.group.vacate(vacate),
                Tale::Full => report.quorum_disks_full += 1,
                Tale::Room => report.quorum_disks_room += 1,
                Tale::Failed(why) => {
                    self.has_failed = true;
                    self.group.fail(&why);
                }
            }
        }
        self.neighbour.tidy(now);
    }
}

pub struct Place {
    pub disk: FaultDisk,
    pub replica: Option<Replica>,
    /// Counts processes.
    pub life: u32,
    /// What its log is: another one after the disk was lost.
    pub id: ReplicaId,
    /// It had applied so much when it was killed with everything written: it has it when it starts.
    pub had_applied: Option<u64>,
    pub sync_fails: bool,
    /// The disk has lost what it had said to have, or a bit of it is another one: it may not be read any more.
    pub damage: Option<Damage>,
}

/// What became of a disk by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Lied,
    Rotten,
}

/// Why a replica does not begin.
pub enum NotStarted {
    /// The disk has failed meanwhile.
    Failed,
    /// What is on it is damaged.
    Refused(String),
}

pub fn node(place: usize) -> NodeId {
    NodeId(place as u64 + 1)
}

impl Place {
    pub fn new(seed: u64, id: ReplicaId) -> Self {
        Self {
            disk: FaultDisk::new(seed),
            replica: None,
            life: 0,
            id,
            had_applied: None,
            sync_fails: false,
            damage: None,
        }
    }

    /// Opens the log and begins where it ends.
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn start(
        &mut self,
        at: usize,
        now: Time,
        tempo: &Tempo,
        random: &mut Random,
    ) -> Result<(), NotStarted> {
        self.life += 1;
        let mut entropy = [0; 48];
        entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let options = tempo.options(entropy);
        let told = Told::default();
        let opened = storage::open(Arc::new(self.disk.clone()), options, Box::new(told.clone()), &mut |_| {});
        let opened = opened.map_err(|error| match self.damage {
            Some(_) => NotStarted::Refused(error.to_string()),
            None => NotStarted::Failed,
        })?;
        let storage::Opened { log, writer, keeper, recovery } = opened;
        let config = Config {
            heartbeat: tempo.heartbeat,
            election_timeout: tempo.election_timeout,
            snapshot_after: tempo.snapshot_after,
            keep_entries: tempo.keep_entries,
            ..Config::new(GROUP, self.id, Member { node: node(at) }, random.draw())
        };
        let neighbour = Neighbour::new(log.clone(), tempo.segment_bytes, &recovery.groups);
        let group = Group::start(now, config, log.clone(), PLACES, &recovery.groups, Ledger::default());
        let group = match group {
            Err(why) if self.damage.is_some() => return Err(NotStarted::Refused(why.to_string())),
            group => group.expect("what was written can be read"),
        };
        self.replica = Some(Replica {
            group,
            log,
            writer,
            keeper,
            told,
            neighbour,
            commits: false,
            retry_at: 0,
            paused_until: 0,
            turn_at: Micros::MAX,
            has_failed: false,
        });
        Ok(())
    }
}
