use std::time::Duration;

use crate::raft_types::{LogGroup, Member, ReplicaId};

/// [`Config::heartbeat`], where nobody says otherwise.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// [`Config::election_timeout`], where nobody says otherwise.
pub const ELECTION_TIMEOUT: Duration = Duration::from_millis(800);

/// A link that stalls for so long deposes nobody.
const STALL: Duration = Duration::from_millis(1000);
/// Two heartbeats are further apart by that, at most: `openraft` looks at its clock no more often.
const TICK_MILLIS: u128 = HEARTBEAT.as_millis() * 13 / 64 + 1;
const _: () = assert!(
    STALL.as_millis() + HEARTBEAT.as_millis() + TICK_MILLIS < 3 * ELECTION_TIMEOUT.as_millis(),
    "a stall would be taken for a death"
);

/// What a replica is, and how patient.
#[derive(Clone, Debug)]
pub struct Config {
    pub group: LogGroup,
    pub id: ReplicaId,
    /// Where it is.
    pub own: Member,
    /// How often a leader shows itself. Longer than a round trip to any other replica: a question that has no answer after three quarters
    /// of it is asked again.
    pub heartbeat: Duration,
    /// Replicas keep to a leader of which they have not heard for twice this time. After that time once to twice again, whoever has drawn least wants to lead.
    /// Another leads so three to four times this after the last word of the one that is lost, and three round trips; votes that are split cost once to twice
    /// this. Longer than `heartbeat` and than two round trips.
    pub election_timeout: Duration,
    /// Entries between one snapshot and the next.
    pub snapshot_after: u64,
    /// Entries before a snapshot that are kept for replicas that are behind.
    pub keep_entries: u64,
    /// Bytes of the largest snapshot that is taken from another replica.
    pub snapshot_bytes_max: u64,
    /// Proposals and questions of other replicas that wait for an answer; what comes beyond it is refused, or not answered.
    pub waiting_max: usize,
    pub seed: u64,
}

impl Config {
    pub fn new(group: LogGroup, id: ReplicaId, own: Member, seed: u64) -> Self {
        Self {
            group,
            id,
            own,
            heartbeat: HEARTBEAT,
            election_timeout: ELECTION_TIMEOUT,
            snapshot_after: 5000,
            keep_entries: 1000,
            snapshot_bytes_max: 1 << 30,
            waiting_max: 4096,
            seed,
        }
    }
}
