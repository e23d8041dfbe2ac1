//! Check of the model test: each fault put into the handling of requests that come again is noticed by random programs.
//! It has a process of its own, because a fault affects the whole process.

#[path = "../fuzz/model.rs"]
mod model;
#[path = "../fuzz/program.rs"]
mod program;

use random::Random;
use shard::Mutation;

#[test]
fn faults_with_requests_that_come_again_are_noticed() {
    for mutation in [
        Mutation::FlipAgain,
        Mutation::FinishAgain,
        Mutation::TakeBack,
        Mutation::ForgetProducers,
        Mutation::ForgetNumbers,
    ] {
        shard::mutate(Some(mutation));
        let is_noticed = (0..300).any(|seed| std::panic::catch_unwind(|| run(seed)).is_err());
        shard::mutate(None);
        assert!(is_noticed, "{mutation:?} is not noticed");
    }
    run(0);
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let program: Vec<u8> = (0..4_000).map(|_| random.byte()).collect();
    program::run(&program);
    program::run_repeats(&program);
}
