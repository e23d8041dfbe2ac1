//! Check of the tests of links: each fault put into the product is noticed by random runs. It has a process of its own,
//! because a fault affects the whole process.

#![cfg(feature = "trial")]

#[allow(dead_code, reason = "this test needs some of it")]
mod network;

use link::Mutation;
use network::{config, run};

#[test]
fn faults_in_links_are_noticed() {
    for mutation in
        [Mutation::SkipLost, Mutation::NoBound, Mutation::BelieveOldPongs, Mutation::CountOldCredit]
    {
        link::mutate(Some(mutation));
        let is_noticed = (0..300).any(|seed| std::panic::catch_unwind(|| run(seed, &config())).is_err());
        link::mutate(None);
        assert!(is_noticed, "{mutation:?} is not noticed");
    }
}
