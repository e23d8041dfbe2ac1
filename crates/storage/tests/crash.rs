//! Crash tests: every crash point of seeded workloads, and random ones, within seconds. The long form: `cargo run
//! -p storage --example crash -- --help`.

use storage::Mutation;
use storage::trial::{Scenario, Tally, Trial};

#[test]
fn random_trials_find_nothing_wrong_and_test_everything() {
    let mut all = Tally::default();
    for seed in 0..150 {
        all.add(&Trial::random(seed).run().unwrap_or_else(|why| panic!("{why}")));
    }
    assert_eq!(all.idle(), [""; 0], "{all:#?}");
}

#[test]
fn a_crash_at_each_operation_of_an_incarnation_loses_nothing() {
    let mut drops = 0;
    for seed in 1000..1003 {
        let whole = Trial { incarnations: 1, steps: 60, cut_at: Some(u64::MAX), ..Trial::random(seed) };
        let tally = whole.run().unwrap_or_else(|why| panic!("{why}"));
        let operations = tally.operations;
        drops += tally.drops;
        assert!(operations > 40, "{operations}");
        for cut in 1..=operations {
            let trial = Trial { incarnations: 2, cut_at: Some(cut), ..whole };
            trial.run().unwrap_or_else(|why| panic!("the power fails at operation {cut}: {why}"));
        }
    }
    assert!(drops > 0, "no group was dropped");
}

#[test]
fn the_log_survives_each_scenario() {
    for scenario in Scenario::ALL {
        scenario.play(None).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// The trials are useful only if they notice a log with a fault.
#[test]
fn each_mutation_is_noticed() {
    let unnoticed: Vec<Mutation> = Mutation::ALL
        .into_iter()
        .filter(|mutation| {
            let noticed = |seed| Trial { mutation: Some(*mutation), ..Trial::random(seed) }.run().is_err();
            !(0..400).any(noticed)
                && Scenario::ALL.iter().all(|scenario| scenario.play(Some(*mutation)).is_ok())
        })
        .collect();
    assert_eq!(unnoticed, []);
}
