use std::collections::{BTreeMap, BTreeSet};

use crate::raft_types::{LogId, Member, ReplicaId, Types};

/// Role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Gets all entries and has no vote.
    Learner,
    Follower,
    Candidate,
    Leader,
    /// Failed or ended: nothing is committed here any more.
    Stopped,
}

/// State of a group as one replica knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub role: Role,
    pub term: u64,
    /// Leader of that term, if it is known here.
    pub leader: Option<ReplicaId>,
    pub voters: BTreeSet<ReplicaId>,
    pub learners: BTreeSet<ReplicaId>,
    pub members: Vec<(ReplicaId, Member)>,
    /// True while a change of the voters is not complete.
    pub is_changing: bool,
    /// Index of the last entry in the log, of the last one that is applied, and of the last one in the snapshot.
    pub last: Option<u64>,
    pub applied: Option<u64>,
    pub snapshot: Option<u64>,
    /// Microseconds since a majority last answered this leader.
    pub quorum_age: Option<u64>,
    /// Progress of all replicas, if this one leads.
    pub progress: Vec<Progress>,
    /// Reason why the replica has stopped.
    pub failure: Option<String>,
}

/// Progress of a replica as the leader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub replica: ReplicaId,
    /// Index of its last entry.
    pub last: Option<u64>,
    /// Microseconds since its last answer.
    pub silence: Option<u64>,
}

impl Status {
    pub(crate) fn new(metrics: &openraft::RaftMetrics<Types>, now: link::Time) -> Self {
        use openraft::ServerState;
        let membership = metrics.membership_config.membership();
        let index = |log_id: &Option<LogId>| log_id.as_ref().map(|log_id| log_id.index);
        let role = match (&metrics.running_state, metrics.state) {
            (Err(_), _) | (_, ServerState::Shutdown) => Role::Stopped,
            (_, ServerState::Learner) => Role::Learner,
            (_, ServerState::Follower) => Role::Follower,
            (_, ServerState::Candidate) => Role::Candidate,
            (_, ServerState::Leader) => Role::Leader,
        };
        let since = |acked: link::Time| now.since(acked);
        let answered = metrics.heartbeat.iter().flatten();
        let answered: BTreeMap<_, _> =
            answered.filter_map(|(id, acked)| Some((*id, since((*acked)?.into_inner().0)))).collect();
        let progress = |(id, last): (&ReplicaId, &Option<LogId>)| Progress {
            replica: *id,
            last: index(last),
            silence: answered.get(id).copied(),
        };
        Self {
            role,
            term: metrics.current_term,
            leader: metrics.current_leader,
            voters: membership.voter_ids().collect(),
            learners: membership.learner_ids().collect(),
            members: membership.nodes().map(|(id, member)| (*id, *member)).collect(),
            is_changing: membership.get_joint_config().len() > 1,
            last: metrics.last_log_index,
            applied: index(&metrics.last_applied),
            snapshot: index(&metrics.snapshot),
            quorum_age: metrics.last_quorum_acked.map(|acked| since(acked.into_inner().0)),
            progress: metrics.replication.iter().flatten().map(progress).collect(),
            failure: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }
}
