//! Tests of a few seeds, and that the same seed has the same result.

use sim::{Report, Shape, Simulation};

#[test]
fn some_seeds_of_a_node_pass() {
    let mut all = Report::default();
    for seed in 0..12 {
        let (result, _) = Simulation::of(seed).run();
        all.add(&result.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.why)));
    }
    assert!(all.check_delivered > 0 && all.check_once > 0 && all.power_cuts > 0, "{all:?}");
}

#[test]
fn some_seeds_of_clusters_pass() {
    let mut all = Report::default();
    for seed in 0..8 {
        let (result, _) = Simulation { shape: Shape::Cluster, ..Simulation::of(seed) }.run();
        all.add(&result.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.why)));
    }
    assert!(all.cluster_check_delivered_across > 0 && all.cluster_connections_lost > 0, "{all:?}");
}

#[test]
fn some_seeds_of_consensus_groups_pass() {
    let mut all = Report::default();
    for seed in 0..12 {
        let (result, _) = Simulation { shape: Shape::Quorum, ..Simulation::of(seed) }.run();
        all.add(&result.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.why)));
    }
    assert!(all.quorum_decided > 0 && all.quorum_check_kept > 0 && all.kills > 0, "{all:?}");
}

#[test]
fn some_seeds_of_shards_with_replicas_pass() {
    let mut all = Report::default();
    for seed in 0..8 {
        let (result, _) = Simulation { shape: Shape::Shards, ..Simulation::of(seed) }.run();
        all.add(&result.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.why)));
    }
    assert!(all.agreed_acknowledged > 0 && all.agreed_resumed > 0 && all.agreed_fetched > 0, "{all:?}");
    assert!(all.agreed_transfers > 0 && all.agreed_fast > all.agreed_fast_early, "{all:?}");
    assert!(all.agreed_fast_early > 0 && all.agreed_repaired > 0, "{all:?}");
    assert!(all.agreed_replaced > 0 && all.kills > 0 && all.power_cuts > 0, "{all:?}");
}

#[test]
fn some_seeds_of_shards_whose_replicas_move_pass() {
    let mut all = Report::default();
    for seed in 0..4 {
        let (result, _) = Simulation { shape: Shape::MovingShards, ..Simulation::of(seed) }.run();
        all.add(&result.unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.why)));
    }
    assert!(all.agreed_moves > all.agreed_moves_led && all.agreed_moves_led > 0, "{all:?}");
    assert!(all.agreed_cores_lost > 0 && all.agreed_acknowledged > 0, "{all:?}");
}

#[test]
fn the_same_seed_has_the_same_result() {
    let (node, cluster, quorum, shards) = (Shape::Node, Shape::Cluster, Shape::Quorum, Shape::Shards);
    let seeds = [
        (node, 3),
        (node, 7),
        (node, 20),
        (cluster, 1),
        (cluster, 2),
        (quorum, 1),
        (quorum, 5),
        (shards, 1),
        (shards, 2),
        (Shape::MovingShards, 1),
    ];
    for (shape, seed) in seeds {
        let run = || Simulation { shape, trace: true, ..Simulation::of(seed) }.run();
        let ((first, lines), (second, again)) = (run(), run());
        assert_eq!(first.map_err(|failure| failure.why), second.map_err(|failure| failure.why));
        assert!(!lines.is_empty());
        assert_eq!(lines, again);
    }
}
