//! Clients that contend for Client Identifiers, while nodes are killed and stopped.

use super::test_cluster::TestCluster;
use super::{CheckResults, LONG_STOP, SHORT_STOP, TargetRole, kill, pick, stop};
use crate::bench::child;
use crate::cluster::contention::{Contender, Open, Verdict};
use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of Client Identifiers.
const NAMES: usize = 6;
/// Minimum number of times that a connection is served after another one of its Client Identifier.
const CHANGES_MIN: usize = 1000;
/// Time without a fault at the start.
const CALM: Duration = Duration::from_secs(20);

pub fn apply_fault(test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    println!(
        "{NAMES} Client Identifiers, each used by two clients on any nodes, and kills and stops of nodes meanwhile"
    );
    let addresses: Vec<SocketAddr> = test_cluster.nodes.iter().map(|node| node.mqtt).collect();
    let is_over = AtomicBool::new(false);
    let verdict = std::thread::scope(|scope| {
        let contenders: Vec<_> = Contender::all(NAMES)
            .map(|contender| {
                let (addresses, is_over) = (&addresses, &is_over);
                let connect = |number, open: &Open<'_>| open(*random_of(addresses, number));
                scope.spawn(move || contender.contend(is_over, connect))
            })
            .collect();
        let injected = inject(test_cluster, results);
        is_over.store(true, Ordering::Relaxed);
        let outcomes = contenders.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        injected.and_then(|()| Verdict::of(outcomes))
    })?;
    println!("  {}", verdict.describe());
    results.check(verdict.changes >= CHANGES_MIN, || {
        format!("only {} connections were served after another one, of {CHANGES_MIN}", verdict.changes)
    });
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}

fn random_of(addresses: &[SocketAddr], number: u64) -> &SocketAddr {
    &addresses[(number % addresses.len() as u64) as usize]
}

fn inject(test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    child::until(CALM, || None::<()>);
    for target_role in [TargetRole::OtherCore, TargetRole::Leader, TargetRole::Replicant] {
        for time in [SHORT_STOP, LONG_STOP] {
            let victim = pick(test_cluster, target_role)?;
            println!("  SIGSTOP of {} for {} s", test_cluster.nodes[victim].name, time.as_secs());
            stop(test_cluster, (target_role, time), victim, results)?;
        }
        let victim = pick(test_cluster, target_role)?;
        println!("  SIGKILL of {}", test_cluster.nodes[victim].name);
        kill(test_cluster, target_role, victim, results)?;
    }
    Ok(())
}
