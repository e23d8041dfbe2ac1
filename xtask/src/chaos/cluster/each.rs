//! Each core ends in turn, one of them with its disk, or two of five cores end at once. Clients connect again to any
//! node, and nothing is excused.

use super::super::Args;
use super::super::load::Load;
use super::test_cluster::TestCluster;
use super::{CALM, CLIENTS, CheckResults, Clients, Fault, PATIENCE, PUBLISHING_S, describe, judge, timed};
use crate::bench::child;
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn whole(test_cluster: &TestCluster) -> Option<()> {
    test_cluster.has_replicas(REPLICAS).then_some(())
}

/// Number of replicas of each shard.
const REPLICAS: usize = 3;

/// Pairs of five cores that end at once.
const PAIRS: [[usize; 2]; 4] = [[0, 1], [2, 3], [4, 0], [1, 3]];

/// Ends each core in turn without a chance, or one pair of cores after the other, and starts them again. In turn, the
/// first one has lost its disk. All have their replicas again before the next ones end.
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
    let is_core = |at: &usize| test_cluster.nodes[*at].is_core;
    let rounds: Vec<Vec<usize>> = match fault {
        Fault::KillPairs => PAIRS.iter().map(|pair| pair.to_vec()).collect(),
        _ => (0..test_cluster.nodes.len()).filter(is_core).map(|at| vec![at]).collect(),
    };
    timed("all shards have their replicas", Instant::now(), || whole(test_cluster), results)?;
    let hosts: Vec<String> = test_cluster.nodes.iter().map(|node| node.mqtt.to_string()).collect();
    let mut command = Command::new(program);
    command.args(["bench", "ha", "--json", "-q", "mixed", "-h", &hosts.join(","), "--prefix", "chaos-each"]);
    let numbers = [("--publishers", CLIENTS as u32), ("--subscribers", CLIENTS as u32), ("--expiry", 3600)];
    let rate = [("-R", args.rate / 2), ("-s", args.size), ("--window", args.window)];
    for (option, value) in numbers.into_iter().chain(rate).chain([("--duration", PUBLISHING_S)]) {
        command.args([option, &value.to_string()]);
    }
    let mut clients = Clients { name: "each", expiry: 3600, load: Load::of(command, false)? };
    clients.load.wait_until_publishing(PATIENCE)?;
    for victims in rounds {
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
        if victims == [0] {
            test_cluster.remove_disk(0)?;
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
