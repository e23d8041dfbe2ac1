//! Mutations of all crates in one list.

use std::fmt;

use crate::simulation::Shape;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Fault in the log.
    Log(storage::Mutation),
    /// Fault in a shard, its host, or between them and the log.
    Shard(shard::Mutation),
    /// Fault between a node's workers and its links.
    Cluster(cluster::Mutation),
    /// Fault in links between nodes.
    Link(link::Mutation),
    /// Fault in a consensus group.
    Consensus(consensus::Mutation),
}

/// Mutations of the log that clients of a node notice. The others are for the log's own tests.
const LOG_MUTATIONS: [storage::Mutation; 9] = [
    storage::Mutation::SkipSync,
    storage::Mutation::ReportBeforeSync,
    storage::Mutation::SkipDirectorySync,
    storage::Mutation::NoChecksum,
    storage::Mutation::CutTooMuch,
    storage::Mutation::UnfinishedPartCounts,
    storage::Mutation::FreeTooEarly,
    storage::Mutation::ForgetParts,
    storage::Mutation::DropWhenFull,
];

/// Mutations of links that clients of a cluster notice. The others are for the tests of `link`.
const LINK_MUTATIONS: [link::Mutation; 3] =
    [link::Mutation::SkipLost, link::Mutation::NoBound, link::Mutation::SkipProof];

/// Mutations of shards that have replicas on several nodes.
const SHARDS_MUTATIONS: [shard::Mutation; 22] = [
    shard::Mutation::ReadStale,
    shard::Mutation::DropBodies,
    shard::Mutation::ReadEarly,
    shard::Mutation::AcknowledgeAlone,
    shard::Mutation::SkipBarrier,
    shard::Mutation::SkipUnreadable,
    shard::Mutation::ForgetUnanswered,
    shard::Mutation::ForgetConnections,
    shard::Mutation::ForgetOwners,
    shard::Mutation::KeepEpoch,
    shard::Mutation::ReleaseOther,
    shard::Mutation::SkipRevoke,
    shard::Mutation::KeepTurnTime,
    shard::Mutation::ForgetEphemeralWills,
    shard::Mutation::IgnoreLastExpiry,
    shard::Mutation::ServeEarly,
    shard::Mutation::ServeFrozen,
    shard::Mutation::ReleaseKnown,
    shard::Mutation::KeepIncarnation,
    shard::Mutation::SkipRouteChanges,
    shard::Mutation::FollowOwnClock,
    shard::Mutation::ForgetGroups,
];

/// Mutations of shards that the tests of `shard` notice.
const SHARD_TEST_MUTATIONS: [shard::Mutation; 5] = [
    shard::Mutation::FlipAgain,
    shard::Mutation::FinishAgain,
    shard::Mutation::TakeBack,
    shard::Mutation::ForgetProducers,
    shard::Mutation::ForgetNumbers,
];

impl Mutation {
    /// All mutations.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_log = LOG_MUTATIONS.into_iter().map(Self::Log);
        let of_cluster = cluster::Mutation::ALL.into_iter().map(Self::Cluster);
        let of_link = LINK_MUTATIONS.into_iter().map(Self::Link);
        let of_consensus = consensus::Mutation::ALL.into_iter().map(Self::Consensus);
        let of_shard = shard::Mutation::ALL.into_iter().filter(|it| !SHARD_TEST_MUTATIONS.contains(it));
        let of_node = of_shard.map(Self::Shard).chain(of_log);
        of_node.chain(of_cluster).chain(of_link).chain(of_consensus)
    }

    /// Number of times that this process has reached the place of the mutation. `None` for the log, whose tests count
    /// their own.
    pub fn reached(self) -> Option<u64> {
        match self {
            Self::Log(_) => None,
            Self::Shard(mutation) => Some(shard::reached(mutation)),
            Self::Cluster(mutation) => Some(cluster::reached(mutation)),
            Self::Link(mutation) => Some(link::reached(mutation)),
            Self::Consensus(mutation) => Some(consensus::reached(mutation)),
        }
    }

    /// Mutations that a simulation of this shape can reach, with the number of times that each place was reached.
    pub fn all_reached(shape: Shape) -> impl Iterator<Item = (Self, u64)> {
        let shape = match shape {
            Shape::FullCluster => Shape::Cluster,
            Shape::MovingShards => Shape::Shards,
            other => other,
        };
        let of_tests =
            link::Mutation::ALL.into_iter().filter(|it| !LINK_MUTATIONS.contains(it)).map(Self::Link);
        let those = Self::all().chain(of_tests).filter(move |it| it.shape() == shape);
        those.filter_map(|it| Some((it, it.reached()?)))
    }

    /// Shape of the simulation that has to notice the mutation.
    pub fn shape(self) -> Shape {
        match self {
            Self::Shard(mutation) if SHARDS_MUTATIONS.contains(&mutation) => Shape::Shards,
            Self::Log(_) | Self::Shard(_) => Shape::Node,
            Self::Cluster(_) | Self::Link(_) => Shape::Cluster,
            Self::Consensus(_) => Shape::Quorum,
        }
    }
}

/// A scenario that notices a mutation.
pub struct Trial {
    pub mutation: Mutation,
    scenario: fn(),
}

impl Trial {
    /// All trials.
    pub fn all() -> impl Iterator<Item = Self> {
        let those = crate::cluster::TRIALS.into_iter();
        those.map(|(mutation, scenario)| Self { mutation: Mutation::Cluster(mutation), scenario })
    }

    /// Returns whether the scenario fails, with the mutation or without it.
    pub fn is_detected(&self, with_fault: bool) -> bool {
        activate(with_fault.then_some(self.mutation));
        let result = std::panic::catch_unwind(self.scenario);
        activate(None);
        result.is_err()
    }
}

/// Activates a mutation for the whole process, or none. Mutations of the log are set on each log instead.
pub fn activate(mutation: Option<Mutation>) {
    let (mut of_shard, mut of_cluster, mut of_link, mut of_consensus) = (None, None, None, None);
    match mutation {
        Some(Mutation::Shard(mutation)) => of_shard = Some(mutation),
        Some(Mutation::Cluster(mutation)) => of_cluster = Some(mutation),
        Some(Mutation::Link(mutation)) => of_link = Some(mutation),
        Some(Mutation::Consensus(mutation)) => of_consensus = Some(mutation),
        Some(Mutation::Log(_)) | None => {}
    }
    shard::mutate(of_shard);
    cluster::mutate(of_cluster);
    link::mutate(of_link);
    consensus::mutate(of_consensus);
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(mutation) => write!(f, "{mutation:?}"),
            Self::Shard(mutation) => write!(f, "{mutation:?}"),
            Self::Cluster(mutation) => write!(f, "{mutation:?}"),
            Self::Link(mutation) => write!(f, "{mutation:?}"),
            Self::Consensus(mutation) => write!(f, "{mutation:?}"),
        }
    }
}
