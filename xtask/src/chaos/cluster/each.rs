//! Each core ends in turn, one of them with its disk, or two of five cores end at once. With a number of kills, any
//! nodes end. Clients connect again to any node, and nothing is excused.

use super::super::Args;
use super::super::load::Load;
use super::super::schedule::fresh_seed;
use super::test_cluster::TestCluster;
use super::{CALM, CLIENTS, CheckResults, Clients, Fault, PATIENCE, PUBLISHING_S, describe, judge, timed};
use crate::bench::child;
use anyhow::{Result, ensure};
use random::Random;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn whole(test_cluster: &TestCluster) -> Option<()> {
    test_cluster.has_replicas(REPLICAS).then_some(())
}

/// Maximum seconds of publishing for each round.
const ROUND_S: u32 = 60;
/// Number of replicas of each shard.
const REPLICAS: usize = 3;

/// Pairs of five cores that end at once.
const PAIRS: [[usize; 2]; 4] = [[0, 1], [2, 3], [4, 0], [1, 3]];

/// Nodes that end at once.
struct Round {
    victims: Vec<usize>,
    /// True if they have lost their disks when they start again.
    lose_disks: bool,
}

/// Percentage of the random kills of a core that cost it its disk.
const DISKS_PERCENT: usize = 10;

/// Returns the nodes that end: each core, the first one with its disk, or [`PAIRS`].
fn usual_rounds(test_cluster: &TestCluster, fault: Fault) -> Vec<Round> {
    if fault == Fault::KillPairs {
        return PAIRS.iter().map(|pair| Round { victims: pair.to_vec(), lose_disks: false }).collect();
    }
    let cores = (0..test_cluster.nodes.len()).filter(|at| test_cluster.nodes[*at].is_core);
    cores.map(|at| Round { victims: vec![at], lose_disks: at == 0 }).collect()
}

/// Returns rounds with at least `kills` victims: any nodes, or any two.
fn random_rounds(test_cluster: &TestCluster, fault: Fault, kills: u32, seed: u64) -> Vec<Round> {
    let mut random = Random::new(seed);
    let count = test_cluster.nodes.len();
    let are_two = fault == Fault::KillPairs;
    let round = |_| {
        let first = random.below(count);
        if are_two {
            let second = (first + 1 + random.below(count - 1)) % count;
            return Round { victims: vec![first, second], lose_disks: false };
        }
        let lose_disks = test_cluster.nodes[first].is_core && random.percent(DISKS_PERCENT);
        Round { victims: vec![first], lose_disks }
    };
    (0..kills.div_ceil(if are_two { 2 } else { 1 })).map(round).collect()
}

/// Ends nodes without a chance, one round after the other, and starts them again. All have their replicas again before
/// the next ones end.
pub fn apply_fault(
    args: &Args,
    (program, directory): (&Path, &Path),
    test_cluster: &mut TestCluster,
    (fault_name, fault): (&str, Fault),
    results: &mut CheckResults,
) -> Result<()> {
    println!(
        "{}; clients with durable sessions connect again to any node",
        describe(test_cluster, fault, None)
    );
    let rounds = match args.node_kills {
        None => usual_rounds(test_cluster, fault),
        Some(kills) => {
            let seed = args.seed.unwrap_or_else(fresh_seed);
            println!("  {kills} kills, seed {seed}");
            random_rounds(test_cluster, fault, kills, seed)
        }
    };
    let publishing_s = PUBLISHING_S.max(rounds.len() as u32 * ROUND_S);
    timed("all shards have their replicas", Instant::now(), || whole(test_cluster), results)?;
    let hosts: Vec<String> = test_cluster.nodes.iter().map(|node| node.mqtt.to_string()).collect();
    let mut command = Command::new(program);
    command.args(["bench", "ha", "--json", "-q", "mixed", "-h", &hosts.join(","), "--prefix", "chaos-each"]);
    let numbers = [("--publishers", CLIENTS as u32), ("--subscribers", CLIENTS as u32), ("--expiry", 3600)];
    let rate = [("-R", args.rate / 2), ("-s", args.size), ("--window", args.window)];
    for (option, value) in numbers.into_iter().chain(rate).chain([("--duration", publishing_s)]) {
        command.args([option, &value.to_string()]);
    }
    let mut clients = Clients { name: "each", expiry: 3600, load: Load::of(command, false)? };
    clients.load.wait_until_publishing(PATIENCE)?;
    for Round { victims, lose_disks } in rounds {
        child::until(CALM, || None::<()>);
        let name = |at: &usize| &test_cluster.nodes[*at].name;
        let names: Vec<String> = victims.iter().map(name).cloned().collect();
        println!("  SIGKILL of {}", names.join(" and "));
        test_cluster.kill_at_once(&victims)?;
        let begun = Instant::now();
        let dead = || {
            let views = test_cluster.views(victims.iter().copied());
            names.iter().all(|name| views.agree(name, "dead")).then_some(())
        };
        timed("all others know of the death", begun, dead, results)?;
        for at in victims.iter().filter(|_| lose_disks) {
            println!("  the disk of {} is lost", test_cluster.nodes[*at].name);
            test_cluster.remove_disk(*at)?;
        }
        let begun = Instant::now();
        for at in victims {
            test_cluster.start_again(at)?;
        }
        let recovered = test_cluster.wait_until_whole()?;
        println!("  {:5.1} s     from its start until the cluster has recovered", recovered.as_secs_f64());
        timed("all shards have their replicas again", begun, || whole(test_cluster), results)?;
    }
    child::until(CALM, || None::<()>);
    let (verdict, _) = clients.load.finish(Duration::ZERO)?;
    std::fs::write(directory.join(format!("{fault_name}.json")), verdict.to_string())?;
    judge(fault, (clients.name, clients.expiry), &[], &verdict, results);
    let resumed = verdict["sessions_resumed"].as_u64().unwrap_or(0);
    results.check(resumed > 0, || "no session moved to another node".to_owned());
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}
