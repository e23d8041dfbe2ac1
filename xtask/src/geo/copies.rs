//! Copies of many routes: a replicant in Hong Kong is killed and restarted, with a core in Frankfurt that is near, or
//! far.

use anyhow::{Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, MQTT, Plan};
use super::start;
use crate::bench::listener::process::{Cpu, anonymous};
use crate::cluster::copies::{Copy, Writers, bytes_received, ensure_same, linked_for, publish_when_served};

/// Round trip times between the two.
const TRIPS: [&str; 2] = ["0.3ms", "200ms"];
const CORE: &str = "euc1";
const REPLICANT: &str = "ape1";
/// Maximum time of every wait.
const LONGEST: Duration = Duration::from_secs(300);
/// Maximum age of a node's view of its cluster.
const VIEW: Duration = Duration::from_millis(700);

pub fn run(
    program: &Path,
    directory: &Path,
    (counts, rounds): (&[u32], u32),
    (passed, failed): (&mut usize, &mut Vec<String>),
) -> Result<()> {
    println!(
        "A replicant in Hong Kong is killed and restarted; its core is in Frankfurt, and the \
             routes are of clients there."
    );
    println!(
        "`complete` is from the start of its process until it knows all routes and has acknowledged a message of QoS 1 that"
    );
    println!("the last of them wants; {rounds} times each, in alternation, medians (lowest-highest).\n");
    println!(
        "| routes | round trip | complete, s | link up after, s | routes/s since then | MB on the wire | bytes a route | CPU of the replicant, s | of the core, s | memory a route, core and replicant |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for count in counts {
        match one((program, directory), *count, rounds) {
            Ok(rows) => {
                rows.iter().for_each(|row| println!("{row}"));
                *passed += 1;
            }
            Err(error) => failed.push(format!("copies of {count} routes: {error:#}")),
        }
    }
    println!();
    Ok(())
}

/// A copy, and the core's CPU time for it.
type Copied = (Copy, f64);

fn one((program, directory): (&Path, &Path), count: u32, rounds: u32) -> Result<Vec<String>> {
    let lab = start()?;
    lab.set(("fra", "hkg"), "rtt", TRIPS[0])?;
    let plan = Plan {
        cores: &[CORE],
        replicants: &[REPLICANT],
        level: "core",
        connack: "overlap",
        leaders: "spread",
        batch_sync: "auto",
    };
    let mut cluster = Cluster::start(&lab, program, directory, &plan)?;
    let mqtt = (lab.address(CORE)?, MQTT).into();
    let mut writers = lab.within(CORE, || Writers::subscribe(mqtt, count))??;
    cluster.wait_for_links()?;
    cluster.settle()?;
    let mut copies: [Vec<Copied>; 2] = [vec![], vec![]];
    for _ in 0..rounds {
        for (trip, copies) in TRIPS.iter().zip(&mut copies) {
            lab.set(("fra", "hkg"), "rtt", trip)?;
            copies.push(again(&mut cluster, program, &mut writers)?);
        }
    }
    let count = f64::from(writers.count);
    let memory = |host| Ok::<_, anyhow::Error>(anonymous(cluster.pid(host)?)? as f64 / count);
    let (core, replicant) = (memory(CORE)?, memory(REPLICANT)?);
    let row = |(trip, copies): (&&str, &Vec<Copied>)| {
        let (served, least, most) = spread(copies, |(copy, _)| copy.served.as_secs_f64());
        let (linked, ..) = spread(copies, |(copy, _)| copy.linked.as_secs_f64());
        let (alone, ..) = spread(copies, |(copy, _)| (copy.served - copy.linked).as_secs_f64());
        let (bytes, ..) = spread(copies, |(copy, _)| copy.bytes as f64);
        let (own, ..) = spread(copies, |(copy, _)| copy.cpu_s);
        let (of_core, ..) = spread(copies, |(_, cpu)| *cpu);
        format!(
            "| {count} | {trip} | {served:.2} ({least:.2}-{most:.2}) | {linked:.2} | {:.0} | {:.1} | {:.1} | {own:.2} | {of_core:.2} | {core:.0}, {replicant:.0} |",
            count / alone,
            bytes / 1e6,
            bytes / count
        )
    };
    Ok(TRIPS.iter().zip(&copies).map(row).collect())
}

fn again(cluster: &mut Cluster, program: &Path, writers: &mut Writers) -> Result<Copied> {
    let before = Cpu::now(cluster.pid(CORE)?)?.broker_s;
    cluster.kill(REPLICANT)?;
    let begun = Instant::now();
    cluster.start_again(program, REPLICANT)?;
    let (mqtt, topic) = ((cluster.lab().address(REPLICANT)?, MQTT).into(), writers.last_topic());
    cluster.lab().within(REPLICANT, || publish_when_served(mqtt, &topic, LONGEST))??;
    let served = begun.elapsed();
    writers.received(LONGEST)?;
    let cpu_s = Cpu::now(cluster.pid(REPLICANT)?)?.broker_s;
    let of_core = Cpu::now(cluster.pid(CORE)?)?.broker_s - before;
    std::thread::sleep(VIEW);
    let view = cluster.view(REPLICANT)?;
    // The view is of some moment within the time that was waited.
    let linked = begun.elapsed().saturating_sub(VIEW / 2).saturating_sub(linked_for(&view)?);
    ensure_same((&cluster.view(CORE)?, &view), CORE, writers.count)?;
    let refused = view["routes_refused"].as_u64();
    ensure!(refused == Some(0), "{refused:?} routes were refused for lack of space");
    cluster.wait_for_links()?;
    Ok((Copy { served, linked, cpu_s, bytes: bytes_received(&view) }, of_core))
}

/// Median, minimum and maximum.
fn spread(copies: &[Copied], of: impl Fn(&Copied) -> f64) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = copies.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    let at = |at: usize| figures.get(at).copied().unwrap_or(f64::NAN);
    (at(figures.len() / 2), at(0), at(figures.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_a_median_and_two_extremes() {
        let copy =
            |s| (Copy { served: Duration::from_secs(s), linked: Duration::ZERO, cpu_s: 0.0, bytes: 0 }, 0.0);
        let copies = [copy(9), copy(1), copy(4)];
        assert_eq!(spread(&copies, |(copy, _)| copy.served.as_secs_f64()), (4.0, 1.0, 9.0));
    }
}
