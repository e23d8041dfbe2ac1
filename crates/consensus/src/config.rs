use std::time::Duration;

use crate::vocabulary::{LogGroup, Member, ReplicaId};

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
    /// A replica that has not heard of a leader for this long, or up to twice as long, wants to be one.
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
            heartbeat: Duration::from_millis(500),
            election_timeout: Duration::from_secs(2),
            snapshot_after: 5000,
            keep_entries: 1000,
            snapshot_bytes_max: 1 << 30,
            waiting_max: 4096,
            seed,
        }
    }
}
