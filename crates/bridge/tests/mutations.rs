//! Check of the simulation: each fault put into the product is noticed. It has a process of its own, because a fault
//! affects the whole process.

#![cfg(feature = "trial")]

#[allow(dead_code, reason = "this test needs some of it")]
mod world;

use bridge::Mutation;
use world::{Report, run};

/// Maximum number of runs for one fault.
const RUNS: u64 = 2000;

#[test]
fn faults_in_the_relay_are_noticed() {
    std::panic::set_hook(Box::new(|_| ()));
    let mut unnoticed = Vec::new();
    for mutation in Mutation::ALL {
        bridge::mutate(Some(mutation));
        let fails = |seed: &u64| {
            let run = || run(*seed, &mut Report::default());
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        };
        let noticed = (0..RUNS).find(fails);
        bridge::mutate(None);
        assert!(bridge::reached(mutation) > 0);
        match noticed {
            Some(seed) => eprintln!("{mutation:?} is noticed by seed {seed}"),
            None => unnoticed.push(mutation),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
