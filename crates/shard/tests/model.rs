//! The shard against a model of it, on programs that nobody has thought of.

#[path = "../fuzz/model.rs"]
mod model;
#[path = "../fuzz/program.rs"]
mod program;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// State, answers and effects are the model's; a replica that begins with a checkpoint says the same from there on.
    #[test]
    fn a_shard_does_what_the_rules_say(program in proptest::collection::vec(any::<u8>(), 0..4_000)) {
        program::run(&program);
    }
}
