//! Each core ends in turn, one of them with its disk. Clients connect again to any node, and nothing is excused.

use super::super::Args;
use super::super::load::Load;
use super::test_cluster::TestCluster;
use super::{CALM, CLIENTS, CheckResults, Clients, Fault, PATIENCE, PUBLISHING_S, judge, timed};
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

/// Ends each core in turn without a chance, and starts it again. The first one has lost its disk, and has all replicas
/// again before the next one ends.
pub fn apply_fault(
    args: &Args,
    (program, directory): (&Path, &Path),
    test_cluster: &mut TestCluster,
    results: &mut CheckResults,
) -> Result<()> {
    println!(
        "SIGKILL of each core in turn, the first one with its disk; clients with durable sessions connect again to any node"
    );
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
    let cores: Vec<usize> =
        (0..test_cluster.nodes.len()).filter(|at| test_cluster.nodes[*at].is_core).collect();
    for at in cores {
        child::until(CALM, || None::<()>);
        let name = test_cluster.nodes[at].name.clone();
        test_cluster.nodes[at].end(libc::SIGKILL)?;
        let begun = Instant::now();
        let dead = || test_cluster.views(Some(at)).agree(&name, "dead").then_some(());
        timed("all others know it to be dead", begun, dead, results)?;
        if at == 0 {
            test_cluster.remove_disk(at)?;
        }
        let begun = Instant::now();
        test_cluster.start_again(at)?;
        let recovered = test_cluster.wait_until_whole()?;
        println!("  {:5.1} s     from its start until the cluster has recovered", recovered.as_secs_f64());
        timed("all shards have their replicas again", begun, || whole(test_cluster), results)?;
    }
    child::until(CALM, || None::<()>);
    let (verdict, _) = clients.load.finish(Duration::ZERO)?;
    std::fs::write(directory.join("kill-each.json"), verdict.to_string())?;
    judge(Fault::KillEach, (clients.name, clients.expiry), &[], &verdict, results);
    let resumed = verdict["sessions_resumed"].as_u64().unwrap_or(0);
    results.check(resumed > 0, || "no session moved to another node".to_owned());
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}
