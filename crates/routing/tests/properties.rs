//! Random changes, compared with a model that tries every filter.

mod common;

use common::{Model, Subscriber, a_filter, a_topic, filter, found, index};
use proptest::prelude::*;
use routing::{Index, IndexFull, IndexLimits, Inserted, Reader, Removed, ShapesFull};

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, u64, u64),
    Remove(usize, u64),
    Quiescent,
    ParkAndUnpark,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<usize>(), 0..6u64, any::<u64>()).prop_map(|(at, id, options)| Step::Insert(at, id, options)),
        4 => (any::<usize>(), 0..6u64).prop_map(|(at, id)| Step::Remove(at, id)),
        1 => Just(Step::Quiescent),
        1 => Just(Step::ParkAndUnpark),
    ]
}

fn run(limits: IndexLimits, filters: &[String], topics: &[String], steps: &[Step]) {
    let (index, reader) = index(limits);
    let mut model = Model::default();
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Insert(at, id, options) => {
                let name = &filters[at % filters.len()];
                let subscriber = Subscriber { id, options };
                assert_eq!(
                    index.insert(filter(name), subscriber),
                    Ok(model.insert(name, subscriber)),
                    "{name}"
                );
            }
            Step::Remove(at, id) => {
                let name = &filters[at % filters.len()];
                assert_eq!(index.remove(filter(name), id), model.remove(name, id), "{name}");
            }
            Step::Quiescent => reader.quiescent(),
            Step::ParkAndUnpark => {
                reader.park();
                reader.unpark();
            }
        }
        let name = &filters[i % filters.len()];
        for id in 0..6 {
            let is_there = index.any_of(filter(name), |subscriber| subscriber.id == id);
            assert_eq!(is_there, model.has(name, id), "{id} of {name}");
        }
        let name = &topics[i % topics.len()];
        assert_eq!(found(&reader, name), model.found(name), "{name} after {step:?}");
    }
    model.agrees(&index, &reader, topics);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_changes_give_the_state_of_the_model(
        filters in proptest::collection::vec(a_filter(), 1..40),
        topics in proptest::collection::vec(a_topic(), 1..40),
        steps in proptest::collection::vec(a_step(), 1..200),
    ) {
        run(IndexLimits::default(), &filters, &topics, &steps);
    }

    #[test]
    fn following_the_tree_finds_the_same(
        filters in proptest::collection::vec(a_filter(), 1..40),
        topics in proptest::collection::vec(a_topic(), 1..40),
        steps in proptest::collection::vec(a_step(), 1..200),
    ) {
        run(IndexLimits { tries_max: 0, ..IndexLimits::default() }, &filters, &topics, &steps);
    }

    /// Every match with more paths than shapes leaves the tree when no visits are allowed.
    #[test]
    fn leaving_the_tree_finds_the_same(
        filters in proptest::collection::vec(a_filter(), 1..40),
        topics in proptest::collection::vec(a_topic(), 1..40),
        steps in proptest::collection::vec(a_step(), 1..200),
    ) {
        run(IndexLimits { tries_max: 0, visits_max: 0, ..IndexLimits::default() }, &filters, &topics, &steps);
    }
}

/// Few names and many levels: every topic has many paths.
#[test]
fn shapes_are_tried_when_there_are_many_paths() {
    let limits = IndexLimits { tries_max: 0, visits_max: 8, ..IndexLimits::default() };
    let (index, reader) = index(limits);
    let mut model = Model::default();
    for bits in 0..1u32 << 8 {
        let levels: Vec<&str> = (0..8).map(|i| if bits >> i & 1 == 1 { "+" } else { "a" }).collect();
        // All paths exist, but only a few filters end where a topic does.
        let ends: &[&str] = if bits % 16 == 3 { &["", "/#", "/+"] } else { &["/z"] };
        for end in ends {
            let name = levels.join("/") + end;
            let subscriber = Subscriber { id: bits.into(), options: 0 };
            assert_eq!(index.insert(filter(&name), subscriber), Ok(model.insert(&name, subscriber)));
        }
    }
    let topics =
        ["a/a/a/a/a/a/a/a", "a/a/a/a/a/a/a/a/z", "a/a/a/a/a/a/a/a/y/x", "a/b/a/b/a/b/a/b", "a/a/a/a/a/a/a"];
    model.agrees(&index, &reader, &topics.map(String::from));
}

/// Tests the deepest possible topics with both methods of matching.
#[test]
fn filters_of_many_thousand_levels_match() {
    for tries_max in [0, 1_000] {
        let (index, reader) = index(IndexLimits { tries_max, ..IndexLimits::default() });
        let levels = |count: usize| vec!["a"; count].join("/");
        let deep = levels(30_000);
        let filters = [
            deep.clone(),
            format!("{}/#", levels(129)),
            format!("{}/#", levels(200)),
            format!("{}/#", levels(29_999)),
            format!("+/{}/#", levels(20_000)),
            format!("{}/+/{}", levels(127), levels(29_872)),
            format!("{}/+/{}", levels(126), levels(29_873)),
            "#".to_owned(),
        ];
        for (id, text) in filters.iter().enumerate() {
            let subscriber = Subscriber { id: id as u64, options: 0 };
            assert_eq!(index.insert(filter(text), subscriber), Ok(Inserted::New));
        }
        assert_eq!(found(&reader, &deep).0, 8);
        assert_eq!(found(&reader, &levels(29_999)).0, 5);
        assert_eq!(found(&reader, &levels(200)).0, 3);
        let late = format!("{}/+/#", levels(128));
        assert_eq!(index.insert(filter(&late), Subscriber { id: 9, options: 0 }), Ok(Inserted::New));
        assert_eq!(found(&reader, &levels(200)).0, 4);
        assert_ne!(index.remove(filter(&late), 9), Removed::NotFound);
        assert_eq!(found(&reader, &levels(200)).0, 3);
        for (id, text) in filters.iter().enumerate() {
            assert_ne!(index.remove(filter(text), id as u64), Removed::NotFound);
        }
        assert_eq!(found(&reader, &deep).0, 0);
    }
}

#[test]
fn a_filter_of_all_levels_and_a_longer_topic_match() {
    let (index, reader) = index(IndexLimits { levels_max: 128, ..IndexLimits::default() });
    let subscriber = Subscriber { id: 1, options: 0 };
    let (longest, beyond) = (vec!["a"; 128].join("/"), vec!["a"; 129].join("/"));
    assert_eq!(index.insert(filter(&longest), subscriber), Ok(Inserted::New));
    assert_eq!(index.insert(filter(&beyond), subscriber), Err(IndexFull::Levels { levels_max: 128 }));
    assert_eq!(index.remove(filter(&beyond), 1), Removed::NotFound);
    let deepest_plus = vec!["+"; 128].join("/");
    assert_eq!(index.insert(filter(&deepest_plus), Subscriber { id: 2, ..subscriber }), Ok(Inserted::New));
    let rest = vec!["a"; 127].join("/") + "/#";
    assert_eq!(index.insert(filter(&rest), Subscriber { id: 3, ..subscriber }), Ok(Inserted::New));
    assert_eq!(found(&reader, &longest).0, 3);
    assert_eq!(found(&reader, &beyond).0, 1);
    assert_eq!(found(&reader, &"/".repeat(65_535)).0, 0);
}

#[test]
fn unusual_shapes_are_reserved_within_limits_and_everyday_ones_need_none() {
    let (index, reader) = index(IndexLimits { shapes_max: 2, ..IndexLimits::default() });
    let nobody = [(0, 0); 3];
    let reserve = |name: &str| index.reserve_shape(filter(name), &nobody);
    assert_eq!(reserve("+/x/+"), Ok(false));
    assert_eq!(reserve("+/+/+"), Ok(true));
    assert_eq!(reserve("+/+/+/#"), Ok(true));
    assert_eq!(reserve("+/+/+/+"), Err(ShapesFull::Index { shapes_max: 2 }));
    assert_eq!(reserve("a/+/+/+"), Err(ShapesFull::Index { shapes_max: 2 }));
    assert_eq!(reserve("+/+/+"), Ok(true), "it is there already");
    assert_eq!(index.unusual_shapes(), 2);
    index.release_shape(filter("+/+/+"));
    index.release_shape(filter("+/+/+"));
    assert_eq!(reserve("+/+/+/+"), Ok(true));
    index.check_invariants(&reader);
}

/// A granted filter, granted here or on another node, must be found.
#[test]
fn a_filter_is_inserted_and_found_with_any_number_of_shapes() {
    let (index, reader) = index(IndexLimits { shapes_max: 2, tries_max: 4, ..IndexLimits::default() });
    let names: Vec<String> = (8u32..64)
        .map(|bits| (0..6).map(|at| ["a", "+"][(bits >> at & 1) as usize]).collect::<Vec<_>>().join("/"))
        .collect();
    for name in &names {
        index.insert(filter(name), Subscriber { id: 1, options: 0 }).expect("no limit applies");
    }
    assert_eq!(found(&reader, "a/a/a/a/a/a").0, names.len());
    index.check_invariants(&reader);
    names.iter().for_each(|name| assert_eq!(index.remove(filter(name), 1), Removed::Last));
    assert_eq!(index.unusual_shapes(), 0);
    index.check_invariants(&reader);
}

#[test]
fn a_shape_is_charged_to_its_first_users_until_it_is_unused() {
    let (index, reader) = index(IndexLimits::default());
    let (first, second) = ([(1, 1), (10, 2), (0, 0)], [(2, 9), (10, 2), (0, 0)]);
    let reserve = |name: &str, owners: &[(u64, u32); 3]| index.reserve_shape(filter(name), owners);
    assert_eq!(reserve("+/+/+", &first), Ok(true));
    index.insert(filter("+/+/+"), Subscriber { id: 1, options: 0 }).expect("room");
    index.release_shape(filter("+/+/+"));
    assert_eq!(reserve("+/+/+/+", &first), Err(ShapesFull::Owner { owner: 0, shapes_max: 1 }));
    assert_eq!(reserve("+/+/+", &second), Ok(true), "it is there already");
    assert_eq!(reserve("+/+/+/+", &second), Ok(true));
    assert_eq!(reserve("+/+/+/#", &second), Err(ShapesFull::Owner { owner: 1, shapes_max: 2 }));
    assert_eq!(index.remove(filter("+/+/+"), 1), Removed::Last);
    assert_eq!(
        reserve("+/+/+/#", &second),
        Err(ShapesFull::Owner { owner: 1, shapes_max: 2 }),
        "still reserved"
    );
    index.release_shape(filter("+/+/+"));
    assert_eq!(reserve("+/+/+/#", &second), Ok(true));
    index.insert(filter("+/+/+/+/+"), Subscriber { id: 1, options: 0 }).expect("room");
    index.charge_shape(filter("+/+/+/+/+"), &first);
    assert_eq!(reserve("+/+/+", &first), Err(ShapesFull::Owner { owner: 0, shapes_max: 1 }));
    index.check_invariants(&reader);
}

/// Large sets of destinations grow, are replaced, shrink and vanish like small ones.
#[test]
fn a_filter_with_thousands_of_destinations_keeps_them_all() {
    for name in ["fan/out", "fan/+", "fan/#"] {
        let (index, reader) = index(IndexLimits::default());
        let mut model = Model::default();
        let mut random = 1u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        // Rounds with more additions alternate with rounds with more removals, so that each size is passed in both
        // directions.
        for (round, often) in [9, 3, 8, 1, 10, 0].into_iter().enumerate() {
            for step in 0..4000 {
                let id = next(3000);
                if next(10) < often {
                    let subscriber = Subscriber { id, options: next(1 << 30) };
                    assert_eq!(index.insert(filter(name), subscriber), Ok(model.insert(name, subscriber)));
                } else {
                    assert_eq!(index.remove(filter(name), id), model.remove(name, id), "{id}");
                }
                if step % 97 == 0 {
                    assert_eq!(found(&reader, "fan/out"), model.found("fan/out"), "round {round}");
                    let is_there = index.any_of(filter(name), |subscriber| subscriber.id == id);
                    assert_eq!(is_there, model.has(name, id), "{id}");
                    reader.quiescent();
                }
            }
            model.agrees(&index, &reader, &["fan/out".into()]);
        }
        for id in 0..3000 {
            assert_eq!(index.remove(filter(name), id), model.remove(name, id));
        }
        model.agrees(&index, &reader, &["fan/out".into()]);
        assert!(index.is_empty());
    }
}

/// Nodes, names and destinations of removed filters are reused: memory does not grow with changes.
#[test]
fn memory_of_removed_filters_is_reused() {
    let (index, reader) = index(IndexLimits::default());
    let round = |round: u64, index: &Index<Subscriber>, reader: &Reader<Subscriber>| {
        let names: Vec<String> = (0..500)
            .flat_map(|i| {
                let long = format!("client-{round:04}-{i:06}");
                [format!("devices/{long}/#"), format!("devices/{long}/state"), format!("+/{long}/+/x")]
            })
            .collect();
        for (i, name) in names.iter().enumerate() {
            for id in 0..1 + i as u64 % 3 {
                index.insert(filter(name), Subscriber { id, options: round }).unwrap();
            }
        }
        index.check_invariants(reader);
        for (i, name) in names.iter().enumerate() {
            for id in 0..1 + i as u64 % 3 {
                assert_ne!(index.remove(filter(name), id), Removed::NotFound);
            }
            reader.quiescent();
        }
        index.check_invariants(reader);
        assert!(index.is_empty());
    };
    (0..3).for_each(|n| round(n, &index, &reader));
    let settled = index.memory();
    (3..30).for_each(|n| round(n, &index, &reader));
    assert!(index.memory() <= settled * 11 / 10, "{} bytes grew to {}", settled, index.memory());
}

/// A reader that is not quiescent keeps the memory that it may see; afterwards that memory is freed.
#[test]
fn a_reader_that_is_not_quiescent_delays_memory_only() {
    let (index, slow) = index(IndexLimits::default());
    let churn = || {
        for i in 0..5000 {
            let name = format!("a/{i}/#");
            index.insert(filter(&name), Subscriber { id: i, options: 0 }).unwrap();
            index.remove(filter(&name), i);
        }
    };
    churn();
    let held = index.memory();
    (0..200).for_each(|_| slow.quiescent());
    let freed = index.memory();
    assert!(freed * 2 < held, "{held} bytes were held, and {freed} are afterwards");
    slow.park();
    churn();
    assert!(index.memory() < freed * 2, "a parked reader holds nothing");
    drop(slow);
    churn();
    assert!(index.memory() < freed * 2, "a dropped reader holds nothing");
}

#[test]
fn an_empty_index_is_small() {
    let (index, reader) = index(IndexLimits::default());
    assert!(index.memory() < 4096, "{} bytes", index.memory());
    assert_eq!(found(&reader, "a"), (0, Vec::new()));
    assert_eq!(index.remove(filter("a/#"), 1), Removed::NotFound);
    assert!(index.is_empty());
}

/// [MQTT-4.7.2-1]: wildcards at the first level do not match names that begin with `$`.
#[test]
fn dollar_topics_are_hidden_from_wildcards_at_the_first_level() {
    let (index, reader) = index(IndexLimits::default());
    for (id, name) in (0..).zip(["#", "+/info", "+/#", "$SYS/info", "$SYS/#", "$SYS/+", "$SYS/info/#"]) {
        index.insert(filter(name), Subscriber { id, options: 0 }).unwrap();
    }
    let ids = |name| found(&reader, name).1.iter().map(|subscriber| subscriber.id).collect::<Vec<u64>>();
    assert_eq!(ids("$SYS/info"), [3, 4, 5, 6]);
    assert_eq!(ids("SYS/info"), [0, 1, 2]);
}

/// A callback may use the index, and cannot make its reader quiescent.
#[test]
fn the_index_can_be_changed_during_an_iteration() {
    let (index, reader) = index(IndexLimits::default());
    for id in 0..1000 {
        index.insert(filter(&format!("a/{id}/+")), Subscriber { id, options: 0 }).unwrap();
    }
    let mut seen = 0;
    index.for_each(&reader, |name, subscriber| {
        reader.quiescent();
        reader.park();
        if name.starts_with("b/") {
            return;
        }
        seen += 1;
        assert_eq!(name, format!("a/{}/+", subscriber.id));
        assert_eq!(index.remove(filter(name), subscriber.id), Removed::Last);
        index.insert(filter(&format!("b/{}/a rather long name/#", subscriber.id)), subscriber).unwrap();
    });
    assert_eq!(seen, 1000);
    index.check_invariants(&reader);
}
