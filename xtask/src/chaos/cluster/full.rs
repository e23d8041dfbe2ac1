//! A core whose disk is full. It reports that and stores nothing new. The other cores lead its shards, and no client
//! notices. When space is free, it catches up.

use super::test_cluster::TestCluster;
use super::{CheckResults, disks, exchange, timed};
use crate::bench::child::{self, until};
use crate::cluster::client::Client;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Size of the disk in MiB: space for a log of small segments, and little more.
pub const DISK_MIB: u32 = 48;
/// Size of a stored message in bytes.
const MESSAGE: usize = 900_000;
/// Length of a Topic Filter in bytes, and number of them in a session.
const FILTER: usize = 60_000;
const FILTERS: usize = 4;
/// Maximum number of rounds of growth. A log of small segments is full after a few.
const ROUNDS: u32 = 60;
/// Maximum time for a node to store a message while it can.
const KEPT: Duration = Duration::from_secs(3);
/// Number of checks that a full log accepts nothing.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(300);

/// Injects the fault. Returns the nodes that were killed meanwhile.
pub fn apply_fault(
    test_cluster: &mut TestCluster,
    victim: usize,
    results: &mut CheckResults,
) -> Result<[usize; 2]> {
    let name = test_cluster.nodes[victim].name.clone();
    let led = test_cluster.leader()?;
    disks::fill(&test_cluster.data(victim))?;
    let begun = Instant::now();
    let mut growth = Growth { test_cluster, victim, rounds: 0 };
    growth.until("it reports that its disk is full", says_full)?;
    println!("  {:5.1} s     {name} reports that its disk is full", begun.elapsed().as_secs_f64());
    results.check(test_cluster.log(victim).contains("the disk is full"), || {
        format!("the log of {name} does not mention it")
    });
    growth.until("its log accepts no more records", takes_nothing)?;
    println!(
        "  {:5.1} s     the reserve of {name} for a full disk is used up",
        begun.elapsed().as_secs_f64()
    );
    goes_on(test_cluster, victim, results)?;
    let leader = || test_cluster.views(None).leader();
    let leader = timed("all cores name one leader", Instant::now(), leader, results)?;
    println!("              {} led before, and now {leader}", test_cluster.nodes[led].name);
    let replicant = member_comes_back(test_cluster, victim, results)?;

    disks::free(&test_cluster.data(victim))?;
    let begun = Instant::now();
    let good = || test_cluster.nodes[victim].health("storage").filter(|(status, _)| *status == 200);
    timed("it reports that space is free", begun, good, results)?;
    let written = || queue(test_cluster, victim).is_ok_and(|records| records == 0).then_some(());
    timed("it has written the waiting records", begun, written, results)?;
    timed("it stores messages again", begun, || keeps(test_cluster, victim, "kept").ok(), results)?;
    let whole = test_cluster.wait_until_whole()?;
    println!("  {:5.1} s     until the cluster has recovered", whole.as_secs_f64());
    Ok([replicant, counts_again(test_cluster, victim, results)?])
}

/// A growing amount of data that a node has to store.
struct Growth<'a> {
    test_cluster: &'a TestCluster,
    victim: usize,
    rounds: u32,
}

impl Growth<'_> {
    /// Grows until a condition holds.
    ///
    /// # Errors
    /// It takes more than [`ROUNDS`], or the node does not report its state.
    fn until(&mut self, what: &str, is_so: fn(&TestCluster, usize) -> Result<bool>) -> Result<()> {
        let begun = self.rounds;
        while !is_so(self.test_cluster, self.victim)? {
            ensure!(self.rounds - begun < ROUNDS, "after {ROUNDS} rounds it is not true that {what}");
            ensure!(!child::interrupted(), "interrupted");
            self.rounds += 1;
            // Once the disk is full, the one is refused and the other waits.
            let _ = self.message();
            let _ = self.session();
        }
        Ok(())
    }

    fn message(&self) -> Result<()> {
        let mut client = Client::connect(self.test_cluster.nodes[self.victim].mqtt, "chaos-grows")?;
        client.be_patient(KEPT);
        client.publish(&format!("chaos-grows/{}", self.rounds), &"x".repeat(MESSAGE), 1, true)
    }

    fn session(&self) -> Result<()> {
        let id = format!("chaos-grows-{}", self.rounds);
        let mut client = Client::connect_lasting(self.test_cluster.nodes[self.victim].mqtt, &id, 3600)?;
        client.be_patient(KEPT);
        for number in 0..FILTERS {
            client.subscribe(&format!("{id}/{number}/{}", "x".repeat(FILTER)), 0, "local")?;
        }
        Ok(())
    }
}

fn says_full(test_cluster: &TestCluster, at: usize) -> Result<bool> {
    let (status, said) = test_cluster.nodes[at].health("storage").context("it does not answer")?;
    Ok(status == 503 && said.contains("full"))
}

/// Number of records that wait for the disk.
fn queue(test_cluster: &TestCluster, at: usize) -> Result<u64> {
    let view: Value = serde_json::from_str(&test_cluster.ctl(at, &["--json", "storage"])?)?;
    view["log"]["queue_records"].as_u64().context("it does not report the waiting records")
}

fn takes_nothing(test_cluster: &TestCluster, at: usize) -> Result<bool> {
    for _ in 0..LOOKS {
        if queue(test_cluster, at)? == 0 {
            return Ok(false);
        }
        until(LOOK, || None::<()>);
    }
    Ok(true)
}

/// Publishes a retained message that this node stores, too.
fn keeps(test_cluster: &TestCluster, at: usize, payload: &str) -> Result<()> {
    let node = &test_cluster.nodes[at];
    Client::connect(node.mqtt, "chaos-keeps")?.publish("chaos-kept", payload, 1, true)
}

/// Changes a replicated record through one node, and checks that this node knows of it.
fn change(test_cluster: &TestCluster, at: usize) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let banned = format!("chaos-full-{}.", NUMBER.fetch_add(1, Relaxed));
    test_cluster.ctl(at, &["ban", "add", "client-id", &banned, "--for", "1h"])?;
    ensure!(test_cluster.ctl(at, &["ban"])?.contains(&banned), "it does not know of the replicated change");
    Ok(())
}

/// Checks operations that a full disk must not stop. Two other cores store what this one cannot.
fn goes_on(test_cluster: &TestCluster, victim: usize, results: &mut CheckResults) -> Result<()> {
    let begun = Instant::now();
    let others_keep = || keeps(test_cluster, victim, "kept by others").ok();
    timed("a message that two others store is acknowledged there", begun, others_keep, results)?;
    exchange(test_cluster, results)?;
    for at in 0..test_cluster.nodes.len() {
        let name = &test_cluster.nodes[at].name;
        if let Err(error) = change(test_cluster, at) {
            results.check(false, || format!("no change at {name}: {error:#}"));
        }
        let healthy = test_cluster.nodes[at].health("quorum").is_some_and(|(status, _)| status == 200);
        results.check(healthy, || format!("{name} reports that no majority agrees"));
    }
    Ok(())
}

/// Kills a node, removes it, and lets it join again.
fn member_comes_back(
    test_cluster: &mut TestCluster,
    victim: usize,
    results: &mut CheckResults,
) -> Result<usize> {
    let other = (0..test_cluster.nodes.len()).rfind(|at| *at != victim && !test_cluster.nodes[*at].is_core);
    let other = other.context("there is no replicant")?;
    let name = test_cluster.nodes[other].name.clone();
    test_cluster.kill_at_once(&[other])?;
    let begun = Instant::now();
    let dead = || test_cluster.views(Some(other)).agree(&name, "dead").then_some(());
    timed("a replicant that is killed is dead for all", begun, dead, results)?;
    test_cluster.ctl(victim, &["cluster", "remove", &name, "--yes"])?;
    let begun = Instant::now();
    test_cluster.start_again(other)?;
    test_cluster.wait_until_whole().with_context(|| format!("{name} was removed and joins again"))?;
    println!("  {:5.1} s     from its start until it is a member again", begun.elapsed().as_secs_f64());
    Ok(other)
}

/// Checks that the node forms a majority with one other core.
fn counts_again(test_cluster: &mut TestCluster, victim: usize, results: &mut CheckResults) -> Result<usize> {
    let other = (0..test_cluster.nodes.len()).find(|at| *at != victim && test_cluster.nodes[*at].is_core);
    let other = other.context("there is no other core")?;
    test_cluster.kill_at_once(&[other])?;
    let begun = Instant::now();
    let agreed = || change(test_cluster, victim).ok();
    timed("it agrees with one other core, as the third is killed", begun, agreed, results)?;
    let begun = Instant::now();
    test_cluster.start_again(other)?;
    test_cluster.wait_until_whole()?;
    println!("  {:5.1} s     from its start until the cluster has recovered", begun.elapsed().as_secs_f64());
    Ok(other)
}
