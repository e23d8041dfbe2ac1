//! Many clients with random behaviour against the oracle: late commands, a late store, lost connections, takeovers,
//! resumes.
//!
//! Runs seeds for `MERIDIAN_SIM_SECONDS` (default 10), and at least a few; `MERIDIAN_SIM_SEED` runs that one alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::access::AllowAll;
use broker::settings::SharedStrategy::{HashClientId, HashTopic, Local, RoundRobin, Sticky};
use mqtt::QoS;

use crate::actor::{Actor, Simulation};
use crate::net::{Net, Travel, settings};
use crate::oracle::Oracle;
use random::Random;
use testkit::packets::*;

const RUNS_MIN: u64 = 12;
const ACTIONS: usize = 600;
const ACTORS: usize = 9;

#[test]
fn clients_get_all_messages_that_they_are_owed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("MERIDIAN_SIM_SEED") {
        return run(seed);
    }
    let bound = Duration::from_secs(number("MERIDIAN_SIM_SECONDS").unwrap_or(10));
    let begun = Instant::now();
    let mut seed = 0;
    while seed < RUNS_MIN || begun.elapsed() < bound {
        run(seed);
        seed += 1;
    }
    println!("{seed} runs");
}

struct SaysSeed(u64);

impl Drop for SaysSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to see it again: MERIDIAN_SIM_SEED={}", self.0);
        }
    }
}

fn run(seed: u64) {
    let _says_seed = SaysSeed(seed);
    let mut random = Random::new(seed);
    let tight = seed % 3 == 2;
    let mut settings = settings();
    if tight {
        settings.queue.messages_max = 3;
        settings.queue.full_wait = Duration::from_secs(100_000);
        settings.queue.full_wait_total = settings.queue.full_wait;
    } else {
        settings.queue.messages_max = 1_000_000;
    }
    let strategies =
        [RoundRobin, broker::settings::SharedStrategy::Random, Sticky, HashClientId, HashTopic, Local];
    settings.shared.strategy = *random.pick(&strategies);
    let workers = if seed % 4 == 3 { 1 } else { 3 };
    let mut net = Net::of(workers, Travel::Shuffled(seed), settings, Arc::new(AllowAll));
    net.store.late(seed, random.below(40));
    let flaky = seed % 5 == 4;
    if flaky {
        net.store.flaky(seed, 5);
    }
    let oracle = Oracle::new(tight, flaky);
    let mut simulation = Simulation::new(net, random, oracle);
    let mut actors: Vec<_> = (0..ACTORS).map(Actor::new).collect();
    for _ in 0..ACTIONS {
        let at = simulation.random.below(ACTORS);
        actors[at].acts(&mut simulation);
        for _ in 0..simulation.random.below(6) {
            simulation.step();
            for actor in &mut actors {
                actor.listens(&mut simulation);
            }
        }
        if simulation.random.percent(3) {
            let milliseconds = simulation.random.below(3_000) as u64;
            simulation.net.tick_without_running(milliseconds);
        }
        simulation.check_one_connection_each();
    }
    heal(&mut simulation, &mut actors);
    simulation.oracle.check_all_arrived();
    check_retained(&mut simulation);
    simulation.net.end();
}

/// Ends all faults: every command arrives, all clients are connected, read and acknowledge.
fn heal(simulation: &mut Simulation, actors: &mut [Actor]) {
    simulation.net.store.heal();
    simulation.net.release_held();
    for _ in 0..2_000 {
        // A packet with very many filters takes several turns.
        simulation.net.pass(1);
        let mut busy = false;
        for actor in actors.iter_mut() {
            busy |= actor.heals(simulation);
        }
        if !busy {
            break;
        }
    }
    for actor in actors {
        actor.check_all_answered();
    }
    simulation.check_one_connection_each();
}

fn check_retained(simulation: &mut Simulation) {
    let net = &mut simulation.net;
    let reader = net.connecting(0, if simulation.random.percent(50) { v3("reader") } else { v5("reader") });
    net.send(reader, subscribe(1).to("r/#", QoS::AtMostOnce));
    let mut found = BTreeMap::new();
    for packet in net.received(reader) {
        if let Sent::Publish(message) = packet {
            assert!(message.retain);
            let number = message.payload.trim_start_matches('0').parse().unwrap_or(0);
            assert!(found.insert(message.topic, number).is_none(), "one retained message a topic");
        }
    }
    simulation.oracle.check_retained(&found);
}
