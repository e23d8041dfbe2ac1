//! Time from SUBSCRIBE at one cluster to the first message of the other one.

use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::pair::{Pair, addresses};
use super::{CLIENTS, EAST, Setup, WEST};
use crate::bench::child::interrupted;
use crate::cluster::client::Client;

/// Levels of SUBACK.
const LEVELS: [&str; 2] = ["cluster", "links"];
/// Number of topics of each level. Nobody has subscribed to them before.
const TOPICS: usize = 20;
/// Pause between two messages of the topic.
const EVERY: Duration = Duration::from_millis(10);
/// Maximum time until the first message arrives.
const LONGEST: Duration = Duration::from_secs(30);
/// Time for which the topic has messages before the subscription.
const BEFORE: Duration = Duration::from_millis(100);

pub fn run(setup: &Setup) -> Result<()> {
    println!(
        "First message: a client of one cluster subscribes to {TOPICS} topics, one after the other, with a message at the"
    );
    println!(
        "other cluster every {} ms; from SUBSCRIBE to SUBACK, and to the first message.\n",
        EVERY.as_millis()
    );
    println!(
        "| level | topics | SUBACK median, ms | first message median, ms | max, ms | round trip, ms | median in round trips |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let lab = setup.lab()?;
    let pair = Pair::start(&lab, setup, setup.links(None))?;
    let topology = lab.topology();
    let round_trip =
        topology.round_trip(topology.host("east1")?, topology.host("west1")?).as_secs_f64() * 1e3;
    for level in LEVELS {
        let (subacks, firsts) = measure(&pair, level)?;
        let (suback, _) = median_and_max(subacks);
        let (median, max) = median_and_max(firsts);
        println!(
            "| `{level}` | {TOPICS} | {suback:.1} | {median:.1} | {max:.1} | {round_trip:.1} | {:.2} |",
            median / round_trip
        );
    }
    Ok(())
}

/// Times in milliseconds until SUBACK and until the first message.
fn measure(pair: &Pair, level: &str) -> Result<(Vec<f64>, Vec<f64>)> {
    let lab = pair.lab();
    let first_of = |site| addresses(lab, site)?.first().copied().context("no nodes");
    let (west, east) = (first_of(WEST)?, first_of(EAST)?);
    let mut publisher = lab.within(CLIENTS, || Client::connect(west, "first-publisher"))??;
    let mut subscriber = lab.within(CLIENTS, || Client::connect(east, "first-subscriber"))??;
    let (topic, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let name = |at: usize| format!("first/{level}/{at}");
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                publisher.publish(&name(topic.load(Ordering::Relaxed)), "first", 0, false)?;
                std::thread::sleep(EVERY);
            }
            Ok::<_, anyhow::Error>(())
        });
        let measured = (0..TOPICS).try_fold((Vec::new(), Vec::new()), |(mut subacks, mut firsts), at| {
            ensure!(!interrupted(), "interrupted");
            topic.store(at, Ordering::Relaxed);
            let name = name(at);
            std::thread::sleep(BEFORE);
            let begun = Instant::now();
            subscriber.subscribe(&name, 0, level)?;
            subacks.push(begun.elapsed().as_secs_f64() * 1e3);
            loop {
                let left = LONGEST.saturating_sub(begun.elapsed());
                let message = subscriber.receive(left)?;
                let message =
                    message.with_context(|| format!("no message of {name} in {} s", LONGEST.as_secs()))?;
                // Earlier topics still arrive.
                if message.topic == name {
                    break;
                }
            }
            firsts.push(begun.elapsed().as_secs_f64() * 1e3);
            subscriber.unsubscribe(&name)?;
            Ok((subacks, firsts))
        });
        is_over.store(true, Ordering::Relaxed);
        publishing.join().ok().context("the publisher panicked")??;
        measured
    })
}

fn median_and_max(mut figures: Vec<f64>) -> (f64, f64) {
    figures.sort_by(f64::total_cmp);
    let at = |at: usize| figures.get(at).copied().unwrap_or(f64::NAN);
    (at(figures.len() / 2), at(figures.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median_and_max(vec![9.0, 1.0, 4.0]), (4.0, 9.0));
        assert!(median_and_max(vec![]).0.is_nan());
    }
}
