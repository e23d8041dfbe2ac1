//! Readers on several threads look for stable filters while writers change everything around them.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Subscriber, filter, index, topic};
use random::Random;
use routing::{Index, IndexLimits, Removed};

/// Creates a destination with the number of its filter, so that a reader notices a wrong one.
fn numbered(text: &str, id: u64) -> Subscriber {
    let hash = text.bytes().fold(17u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    Subscriber { id, options: hash }
}

const TOPICS: u64 = 40;

/// Filters that stay, for each topic.
fn stable(n: u64) -> [String; 5] {
    [
        format!("stable/{n}/#"),
        format!("stable/{n}/of a long name {n}/x"),
        format!("stable/+/of a long name {n}/+"),
        format!("+/{n}/+/x"),
        format!("stable/{n}/of a long name {n}/+/#"),
    ]
}

fn stable_topic(n: u64) -> String {
    format!("stable/{n}/of a long name {n}/x")
}

/// Inserts, replaces and removes filters next to, above and below the stable ones, and other destinations of these.
/// What was removed does not return: a reader that is in the middle of a match could find it twice.
fn churn(index: &Index<Subscriber>, mut random: Random, writer: u64, changes: usize) {
    let mut held: Vec<(String, u64)> = Vec::new();
    for change in 0..changes as u64 {
        let n = random.below_u64(TOPICS + 10);
        let text = match random.below_u64(8) {
            0 => stable(n)[random.below_u64(5) as usize].clone(),
            1 => format!("stable/{n}/of a long name {n}/x/{}", random.below_u64(50)),
            2 => format!("stable/{n}/{change}/+"),
            3 => format!("stable/{n}/a name that is as long as this {change}"),
            4 => format!("+/+/{change}/#"),
            5 => format!("stable/{n}/+/x/+/{}", random.below_u64(9)),
            6 => format!("{change}/+"),
            _ => "stable/+/+/x".to_owned(),
        };
        let id = 1_000 + 2 * change + writer;
        index.insert(filter(&text), numbered(&text, id)).expect("within the limits");
        held.push((text, id));
        let (text, id) = &held[random.below_u64(held.len() as u64) as usize];
        index.insert(filter(text), numbered(text, *id)).expect("within the limits");
        if held.len() > 400 {
            let (text, id) = held.swap_remove(random.below_u64(held.len() as u64) as usize);
            assert_ne!(index.remove(filter(&text), id), Removed::NotFound);
        }
    }
    held.iter().for_each(|(text, id)| {
        assert_ne!(index.remove(filter(text), *id), Removed::NotFound);
    });
}

#[test]
fn stable_filters_are_always_found_and_no_name_is_ever_wrong() {
    run(IndexLimits::default());
}

#[test]
fn stable_filters_are_always_found_in_the_tree() {
    run(IndexLimits { tries_max: 0, ..IndexLimits::default() });
}

fn run(limits: IndexLimits) {
    let changes = if cfg!(miri) { 60 } else { 20_000 };
    let (index, reader) = index(limits);
    for n in 0..TOPICS {
        for text in stable(n) {
            index.insert(filter(&text), numbered(&text, n)).unwrap();
        }
    }
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (index, done) = (index.clone(), done.clone());
            scope.spawn(move || {
                let (mut reader, mut random, mut out) = (index.reader(), Random::new(thread), Vec::new());
                let mut round = 0u64;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    let n = random.below_u64(TOPICS);
                    out.clear();
                    reader.matches(topic(&stable_topic(n)), &mut out);
                    for text in stable(n) {
                        let wanted = numbered(&text, n);
                        let times = out.iter().filter(|found| **found == wanted).count();
                        assert_eq!(times, 1, "{text} for {}", stable_topic(n));
                    }
                    // All other results belong to a filter that matches, and occur once each.
                    let mut all = out.clone();
                    all.sort_unstable();
                    all.dedup();
                    assert_eq!(all.len(), out.len());
                    let churned = [format!("stable/{n}/+/x"), "stable/+/+/x".into()];
                    for found in out.iter().filter(|found| found.id >= 1_000) {
                        let known = stable(n).into_iter().chain(churned.clone());
                        assert!(
                            known.into_iter().any(|text| numbered(&text, found.id) == *found),
                            "{found:?}"
                        );
                    }
                    match round % 100 {
                        17 => {
                            reader.park();
                            reader.unpark();
                        }
                        34 => reader = index.reader(),
                        51 => {
                            index.for_each(&reader, |text, found| assert_eq!(numbered(text, found.id), found))
                        }
                        n if n % 3 == 0 => reader.quiescent(),
                        _ => {}
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let index = index.clone();
                scope.spawn(move || churn(&index, Random::new(writer + 100), writer, changes))
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("no writer panicked"));
    });
    index.check_invariants(&reader);
    assert_eq!(index.len() as u64, TOPICS * 5);
}

/// One filter with thousands of destinations; some of them stay.
#[test]
fn stable_destinations_of_a_large_set_are_found_exactly_once() {
    let (index, reader) = index(IndexLimits::default());
    let (stable, churned, rounds) = if cfg!(miri) { (40, 100, 2) } else { (500, 3_000, 12) };
    for id in 0..stable {
        index.insert(filter("fan/+"), Subscriber { id: id * 10, options: 0 }).unwrap();
    }
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (index, done) = (index.clone(), done.clone());
            scope.spawn(move || {
                let (reader, mut out) = (index.reader(), Vec::new());
                while !done.load(Ordering::Relaxed) {
                    out.clear();
                    assert_eq!(reader.matches(topic("fan/out"), &mut out), 1);
                    out.sort_unstable();
                    assert!(out.is_sorted_by(|a, b| a.id < b.id), "none is found twice");
                    let kept = out.iter().filter(|found| found.id % 10 == 0).count() as u64;
                    assert_eq!(kept, stable, "all that stay are found");
                    reader.quiescent();
                }
            });
        }
        let writer = scope.spawn(|| {
            for round in 0..rounds {
                for id in 0..churned {
                    let id = id * 10 + 1 + round % 9;
                    index.insert(filter("fan/+"), Subscriber { id, options: round }).unwrap();
                }
                for id in 0..churned {
                    let id = (id * 7_919 % churned) * 10 + 1 + round % 9;
                    assert_eq!(index.remove(filter("fan/+"), id), Removed::Removed);
                }
            }
        });
        let result = writer.join();
        done.store(true, Ordering::Relaxed);
        result.expect("the writer did not panic");
    });
    index.check_invariants(&reader);
    assert_eq!(index.len() as u64, stable);
}
