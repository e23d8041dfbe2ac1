//! Many nodes that start at the same moment, and again after a kill: they all join the cluster, and its cores elect
//! no new leader.

use super::test_cluster::{Node, TestCluster};
use super::{CheckResults, exchange, timed};
use anyhow::{Context, Result};
use std::time::Instant;

/// Term of the first election of a cluster.
const FIRST_TERM: u64 = 1;

/// Injects the fault. All nodes have just been started at once.
pub fn apply_fault(test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    let first = leader_and_term(test_cluster)?;
    check_replicants_balanced(test_cluster, results)?;
    results.check(first.1 == FIRST_TERM, || format!("the cores have elected until term {}", first.1));
    let replicants: Vec<usize> =
        (0..test_cluster.nodes.len()).filter(|at| !test_cluster.nodes[*at].is_core).collect();
    println!("SIGKILL of {} replicants at once, and a start of all of them", replicants.len());
    test_cluster.kill_at_once(&replicants)?;
    let begun = Instant::now();
    for at in &replicants {
        test_cluster.start_again(*at)?;
    }
    test_cluster.wait_until_whole()?;
    println!(
        "  {:5.1} s     from their start until the cluster has recovered",
        begun.elapsed().as_secs_f64()
    );
    check_replicants_balanced(test_cluster, results)?;
    let second = leader_and_term(test_cluster)?;
    results.check(second == first, || {
        format!("{first:?} led, and now {second:?}: the cores have elected again")
    });
    test_cluster.wait_until_whole()?;
    exchange(test_cluster, results)
}

/// Leader and term.
fn leader_and_term(test_cluster: &TestCluster) -> Result<(String, u64)> {
    let leader = test_cluster.leader()?;
    let term = test_cluster.views(None).term().context("the cores do not name one term")?;
    Ok((test_cluster.nodes[leader].name.clone(), term))
}

/// Waits until the replicants are balanced, and reports their cores and the memory.
fn check_replicants_balanced(test_cluster: &TestCluster, results: &mut CheckResults) -> Result<()> {
    let begun = Instant::now();
    timed(
        "until the replicants are spread evenly",
        begun,
        || are_replicants_balanced(test_cluster).then_some(()),
        results,
    )?;
    let replicants_per_core = test_cluster.views(None).replicants_per_core();
    let counts: Vec<String> =
        replicants_per_core.iter().map(|(core, count)| format!("{core} {count}")).collect();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory: Vec<(u64, u64)> = test_cluster.nodes.iter().map(Node::memory).collect();
    let all = memory.iter().map(|(now, _)| now).sum();
    let top = memory.iter().map(|(_, top)| *top).max().unwrap_or(0);
    println!(
        "              replicants per core: {}; {:.0} MiB in all nodes together, {:.0} MiB at \
             most in one",
        counts.join(", "),
        mib(all),
        mib(top)
    );
    Ok(())
}

/// Returns whether no core has two replicants more than another.
fn are_replicants_balanced(test_cluster: &TestCluster) -> bool {
    let replicants_per_core = test_cluster.views(None).replicants_per_core();
    let (least, most) = (replicants_per_core.values().min(), replicants_per_core.values().max());
    !replicants_per_core.contains_key("nobody")
        && most.zip(least).is_some_and(|(most, least)| most - least <= 1)
}
