//! Compares the shard with a model on random programs.

#[path = "../fuzz/model.rs"]
mod model;
#[path = "../fuzz/program.rs"]
mod program;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// State, answers and effects are those of the model. A replica that begins with a checkpoint has the same
    /// effects from there on.
    #[test]
    fn a_shard_follows_the_rules(program in proptest::collection::vec(any::<u8>(), 0..4_000)) {
        program::run(&program);
    }

    /// Requests that come again after a change of leader change nothing.
    #[test]
    fn requests_that_come_again_change_nothing(program in proptest::collection::vec(any::<u8>(), 0..4_000)) {
        program::run_repeats(&program);
    }
}
