//! Tests that the simulator notices mutations of the product. `cargo xtask sim --mutations` tries all of them.

use sim::{Mutation, Simulation, Trial};

/// One test for all, because a mutation applies to the whole process.
#[test]
fn mutations_of_the_product_are_noticed() {
    for trial in Trial::all() {
        assert!(trial.is_detected(true), "{} is not noticed in its scenario", trial.mutation);
        assert!(!trial.is_detected(false), "the scenario of {} fails without the mutation", trial.mutation);
    }
    let product = [
        shard::Mutation::AcknowledgeEarly,
        shard::Mutation::IgnoreCleanStart,
        shard::Mutation::ForgetIdentities,
        shard::Mutation::WrongBody,
        shard::Mutation::ApplyTwice,
        shard::Mutation::ServeBeforeRecall,
        shard::Mutation::StandStill,
        shard::Mutation::KeepFirst,
        shard::Mutation::PublishDeniedWills,
        shard::Mutation::JudgeUnread,
        shard::Mutation::ForgetWalks,
        shard::Mutation::DropBodies,
        shard::Mutation::ReadEarly,
        shard::Mutation::AcknowledgeAlone,
        shard::Mutation::SkipBarrier,
        shard::Mutation::SkipUnreadable,
        shard::Mutation::ReadStale,
        shard::Mutation::ForgetUnanswered,
        shard::Mutation::ForgetConnections,
        shard::Mutation::ForgetOwners,
        shard::Mutation::KeepEpoch,
        shard::Mutation::ReleaseOther,
        shard::Mutation::SkipRevoke,
        shard::Mutation::KeepTurnTime,
        shard::Mutation::ForgetEphemeralWills,
        shard::Mutation::ServeEarly,
        shard::Mutation::ServeFrozen,
        shard::Mutation::IgnoreLastExpiry,
        shard::Mutation::ReleaseKnown,
        shard::Mutation::KeepIncarnation,
        shard::Mutation::SkipRouteChanges,
        shard::Mutation::FollowOwnClock,
        shard::Mutation::ForgetGroups,
    ];
    let log = [
        storage::Mutation::SkipSync,
        storage::Mutation::SkipDirectorySync,
        storage::Mutation::CutTooMuch,
        storage::Mutation::NoChecksum,
    ];
    let between = [
        cluster::Mutation::SubackEarly,
        cluster::Mutation::ForgetHello,
        cluster::Mutation::GiveTwice,
        cluster::Mutation::ForgetCopies,
        cluster::Mutation::AlwaysBrief,
        cluster::Mutation::ForgetRemoved,
    ];
    let few = product.map(Mutation::Shard).into_iter().chain(log.map(Mutation::Log));
    let few = few.chain(between.map(Mutation::Cluster)).chain([Mutation::Link(link::Mutation::SkipLost)]);
    let among = [
        consensus::Mutation::ForgetCommitted,
        consensus::Mutation::SkipPreVote,
        consensus::Mutation::CountLearner,
    ];
    let few = few.chain(among.map(Mutation::Consensus));
    for mutation in few {
        let of = |seed| Simulation { shape: mutation.shape(), ..Simulation::of(seed) };
        let noticed = |seed| Simulation { mutation: Some(mutation), ..of(seed) }.run().0.is_err();
        let first = first_seed(mutation);
        assert!((first..first + 200).any(noticed), "{mutation} is not noticed");
    }
    let clean = Simulation::of(0).run().0;
    assert!(clean.is_ok(), "{clean:?}");
}

/// First seed to try: one that is known to notice a mutation that few seeds notice.
fn first_seed(mutation: Mutation) -> u64 {
    match mutation {
        Mutation::Shard(shard::Mutation::SkipRouteChanges) => 9,
        _ => 0,
    }
}
