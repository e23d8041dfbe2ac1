use std::num::NonZeroU64;
use std::time::Duration;

use crate::raft_types::{LogGroup, Member, ReplicaId};

/// Default of [`Config::heartbeat`].
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Default of [`Config::election_timeout`].
pub const ELECTION_TIMEOUT: Duration = Duration::from_millis(800);

/// Default of [`Config::entry_cache_bytes`].
const ENTRY_CACHE_BYTES: usize = 4 << 20;

/// Default of [`Config::snapshot_piece_bytes`]. Small enough that a frame of the control lane delays no other for long.
const SNAPSHOT_PIECE_BYTES: usize = 128 << 10;

/// Default of [`Config::copy_rate`].
const COPY_RATE: NonZeroU64 = NonZeroU64::new(32 << 20).expect("not 0");

/// Default of [`Config::snapshot_bytes_in_flight`].
pub(crate) const SNAPSHOT_BYTES_IN_FLIGHT: usize = 2 << 20;

/// Time for which a link may stall without an election.
const STALL: Duration = Duration::from_millis(1000);
const _: () = assert!(
    STALL.as_millis() + HEARTBEAT.as_millis() < 3 * ELECTION_TIMEOUT.as_millis(),
    "a stall would cause an election"
);

/// Identity and timing of a replica.
#[derive(Clone, Debug)]
pub struct Config {
    pub group: LogGroup,
    pub id: ReplicaId,
    /// Node of this replica.
    pub own: Member,
    /// Interval of a leader's heartbeats. They are sent at multiples of it on the clock of the owner, so those of all
    /// groups of a node go together. Longer than a round trip to any other replica: a request without an answer is
    /// repeated after three quarters of it.
    pub heartbeat: Duration,
    /// Base of the election time-outs. Longer than `heartbeat` and than two round trips.
    ///
    /// Replicas ignore other candidates until the leader has been silent for twice this time. One to two times this
    /// later, the replica with the shortest random time-out starts an election. So a new leader is elected three to
    /// four times this after the last message of the lost one, plus three round trips. A split vote costs one to two
    /// times this.
    pub election_timeout: Duration,
    /// Number of entries between two snapshots.
    pub snapshot_after: u64,
    /// Number of entries before a snapshot that are kept for replicas that lag.
    pub keep_entries: u64,
    /// Maximum size of the newest entries that are kept in memory. Older ones are read from the log. Entries that are
    /// not durable stay in memory whatever their size.
    pub entry_cache_bytes: usize,
    /// Maximum number of bytes of a snapshot from another replica. It goes to the log as it arrives.
    pub snapshot_bytes_max: u64,
    /// Number of bytes of a snapshot in one frame.
    pub snapshot_piece_bytes: usize,
    /// Maximum number of bytes that are sent in a second to a replica that lacks them: of a snapshot, and of the
    /// entries that the log has when the copy to a replica without a vote begins. So a copy leaves room to everything
    /// else on the link and on both nodes.
    pub copy_rate: NonZeroU64,
    /// Number of bytes of a snapshot on their way to the log up to which further parts are written.
    pub snapshot_bytes_in_flight: usize,
    /// Maximum number of proposals and requests of other replicas that wait for an answer. Further proposals are
    /// refused, and further requests are not answered. Also the maximum number of commands of
    /// [`Replica::write`](crate::Replica::write) that wait, which are counted apart.
    pub waiting_max: usize,
    /// Number of committed entries after which the index of the last one is written, together with the next entries.
    /// With 0 it is written at once, which costs a sync for each commit. A replica that restarts applies what is known
    /// to be committed, and the rest when a leader reports it.
    pub save_committed_after: u64,
    /// True if entries are sent to a replica before it has confirmed earlier ones. An entry is committed one round trip
    /// after it was proposed then, and not up to two. For groups with many entries.
    pub sends_ahead: bool,
    /// True if the owner keeps what its state needs of the entries in a segment of the log that is to be freed. See
    /// [`Replica::poll_vacate`](crate::Replica::poll_vacate).
    pub keeps_bodies: bool,
    /// True if a follower reports entries that it has in memory to the leader, before its disk has them. So the leader
    /// knows them earlier ([`Replica::held_writes`](crate::Replica::held_writes)). Replicas may differ: a leader counts
    /// the reports of the others whatever its own setting is.
    pub reports_held: bool,
    /// Bytes at the beginning of each frame that the replica sends
    /// ([`Replica::poll_transmit`](crate::Replica::poll_transmit)). By these, its owner can tell such frames from its
    /// other frames, and need not copy them. The owner removes them from a frame that it receives.
    pub frame_prefix: &'static [u8],
    pub seed: u64,
}

impl Config {
    /// Time after the last message of a leader in which replicas ignore other candidates.
    pub(crate) fn lease(&self) -> Duration {
        self.election_timeout * 2
    }

    /// Time that the copy of so many bytes takes at [`Self::copy_rate`].
    pub fn copy_time(rate: NonZeroU64, bytes: u64) -> Duration {
        Duration::from_micros(bytes.saturating_mul(1_000_000) / rate)
    }

    pub fn new(group: LogGroup, id: ReplicaId, own: Member, seed: u64) -> Self {
        Self {
            group,
            id,
            own,
            heartbeat: HEARTBEAT,
            election_timeout: ELECTION_TIMEOUT,
            snapshot_after: 5000,
            keep_entries: 1000,
            entry_cache_bytes: ENTRY_CACHE_BYTES,
            snapshot_bytes_max: 1 << 30,
            snapshot_piece_bytes: SNAPSHOT_PIECE_BYTES,
            copy_rate: COPY_RATE,
            snapshot_bytes_in_flight: SNAPSHOT_BYTES_IN_FLIGHT,
            waiting_max: 4096,
            save_committed_after: 0,
            sends_ahead: false,
            keeps_bodies: false,
            reports_held: false,
            frame_prefix: &[],
            seed,
        }
    }
}
