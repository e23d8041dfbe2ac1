//! A few seeds, and that a seed says everything.

use sim::{Report, Simulation};

#[test]
fn some_seeds_find_nothing_wrong() {
    let mut all = Report::default();
    for seed in 0..12 {
        let (result, _) = Simulation::of(seed).run();
        all.add(&result.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.why)));
    }
    assert!(all.check_delivered > 0 && all.check_once > 0 && all.power_cuts > 0, "{all:?}");
}

#[test]
fn the_same_seed_does_the_same() {
    for seed in [3, 7, 20] {
        let run = || Simulation { trace: true, ..Simulation::of(seed) }.run();
        let ((first, lines), (second, again)) = (run(), run());
        assert_eq!(first.map_err(|failure| failure.why), second.map_err(|failure| failure.why));
        assert!(!lines.is_empty());
        assert_eq!(lines, again);
    }
}
