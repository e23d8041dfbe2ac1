//! E1.10: times for nodes on several continents to form a cluster, to recover after all of them were lost, to elect
//! another leader, and to declare one of them dead.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, MQTT, Plan};
use super::{lose, start_seeded};
use crate::bench::child::interrupted;
use crate::cluster::copies::publish_when_served;

/// Maximum time of every wait.
const LONGEST: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// Host of the killed node.
const VICTIM: &str = "ape1";

/// Composition of each cluster, and the start-up time of the article.
const SHAPES: [(&str, &[&str], &[&str], &str); 2] = [
    ("3 cores, spread", &["euc1", "ape1", "afs1"], &[], "minutes"),
    ("3 cores in Mumbai, 3 replicants", &["aps1", "aps2", "aps3"], &["euc1", "ape1", "afs1"], "at once"),
];

pub fn run(
    (program, directory): (&Path, &Path),
    (losses, rounds): (&[f64], u32),
    (passed, failed): (&mut usize, &mut Vec<String>),
) -> Result<()> {
    println!(
        "E1.10: seconds until every node has acknowledged a message of QoS 1, from the start of the first process: of a new"
    );
    println!(
        "cluster, and of one whose processes were all killed; then from a kill of the core that leads until each other core"
    );
    println!(
        "has another leader, and of the node in Hong Kong until all others call it dead (what nodes tell is up to 0.5 s old)."
    );
    println!(
        "{rounds} times each, medians (lowest-highest). `lost` is the share of the packets between places that is.\n"
    );
    println!("| nodes | lost | article | new | all were killed | another leads | dead for all |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let runs = SHAPES.iter().flat_map(|shape| [0.0].iter().chain(losses).map(move |loss| (shape, *loss)));
    for ((name, cores, replicants, article), loss) in runs {
        let rounds: Result<Vec<Times>> =
            (0..rounds).map(|round| one((program, directory), (cores, replicants), (loss, round))).collect();
        match rounds {
            Ok(times) => {
                let of = |of: fn(&Times) -> Duration| spread(times.iter().map(of).collect());
                let (new, back) = (of(|it| it.new), of(|it| it.back));
                let (led, dead) = (of(|it| it.led), of(|it| it.dead));
                println!("| {name} | {loss} % | {article} | {new} | {back} | {led} | {dead} |");
                *passed += 1;
            }
            Err(error) => failed.push(format!("E1.10, {name}, {loss} % lost: {error:#}")),
        }
    }
    println!();
    Ok(())
}

struct Times {
    new: Duration,
    back: Duration,
    led: Duration,
    dead: Duration,
}

fn one(
    (program, directory): (&Path, &Path),
    (cores, replicants): (&[&str], &[&str]),
    (loss, round): (f64, u32),
) -> Result<Times> {
    let lab = start_seeded(round.into())?;
    lose(&lab, loss)?;
    let plan =
        Plan { cores, replicants, level: "core", connack: "overlap", batch_sync: "auto", leaders: "spread" };
    let hosts: Vec<&str> = cores.iter().chain(replicants).copied().collect();
    let begun = Instant::now();
    let mut cluster = Cluster::begin(&lab, program, directory, &plan)?;
    serves(&cluster, &hosts)?;
    let new = begun.elapsed();
    cluster.wait_for_links()?;

    for host in &hosts {
        cluster.kill(host)?;
    }
    let begun = Instant::now();
    for host in &hosts {
        cluster.start_again(program, host)?;
    }
    serves(&cluster, &hosts)?;
    let back = begun.elapsed();
    cluster.wait_for_links()?;

    let first = cores.first().context("no core")?;
    let leader = leader_of(&cluster.view(first)?).context("no leader")?;
    cluster.kill(&leader)?;
    let others: Vec<&str> = cores.iter().copied().filter(|core| *core != leader).collect();
    let led = until("another leads", || {
        others.iter().all(|core| {
            let view = cluster.view(core).unwrap_or_default();
            view["membership"]["replica"]["quorum"] == true
                && leader_of(&view).is_some_and(|known| known != leader)
        })
    })?;
    cluster.start_again(program, &leader)?;
    cluster.wait_for_links()?;

    cluster.kill(VICTIM)?;
    let dead = until("all agree that it is dead", || {
        hosts.iter().filter(|host| **host != VICTIM).all(|host| {
            let view = cluster.view(host).unwrap_or_default();
            let members = view["membership"]["members"].as_array().cloned().unwrap_or_default();
            members.iter().any(|member| member["node"] == VICTIM && member["state"] == "dead")
        })
    })?;
    Ok(Times { new, back, led, dead })
}

pub fn leader_of(view: &Value) -> Option<String> {
    view["membership"]["replica"]["leader"].as_str().map(str::to_owned)
}

/// Waits until each node has acknowledged a message of its own client.
fn serves(cluster: &Cluster, hosts: &[&str]) -> Result<()> {
    for host in hosts {
        let mqtt = (cluster.lab().address(host)?, MQTT).into();
        let served = cluster.lab().within(host, || publish_when_served(mqtt, "e1/10", LONGEST))?;
        served.with_context(|| format!("{host} does not serve"))?;
    }
    Ok(())
}

fn until(what: &str, is_so: impl Fn() -> bool) -> Result<Duration> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > LONGEST || interrupted() {
            bail!("timeout: {what}");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(begun.elapsed())
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |at: usize| times.get(at).map_or(f64::NAN, Duration::as_secs_f64);
    format!("{:.1} ({:.1}-{:.1})", at(times.len() / 2), at(0), at(times.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_names_the_median_and_both_extremes() {
        assert_eq!(spread([3, 1, 2].map(Duration::from_secs).into()), "2.0 (1.0-3.0)");
    }
}
