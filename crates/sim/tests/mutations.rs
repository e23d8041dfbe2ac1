//! The simulator is worth something only if it notices a product that does it wrong. All of the list: `cargo xtask sim --mutations`.

use sim::{Mutation, Simulation};

/// One after the other: a fault is put into the whole process.
#[test]
fn faults_in_the_product_are_noticed() {
    let product = [
        shard::Mutation::AcknowledgeEarly,
        shard::Mutation::IgnoreCleanStart,
        shard::Mutation::ForgetIdentities,
        shard::Mutation::WrongBody,
    ];
    let log = [storage::Mutation::SkipSync, storage::Mutation::SkipDirectorySync];
    let few = product.map(Mutation::Shard).into_iter().chain(log.map(Mutation::Log));
    for mutation in few {
        let noticed = |seed| Simulation { mutation: Some(mutation), ..Simulation::of(seed) }.run().0.is_err();
        assert!((0..60).any(noticed), "{mutation} is not noticed");
    }
    let clean = Simulation::of(0).run().0;
    assert!(clean.is_ok(), "{clean:?}");
}
