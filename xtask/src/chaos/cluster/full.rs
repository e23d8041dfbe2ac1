//! A core whose disk is full: it says so, keeps nothing new, and takes nobody with it; when there is room it has what it missed.

use super::test_cluster::TestCluster;
use super::{CheckResults, disks, exchange, timed};
use crate::bench::child::{self, until};
use crate::cluster::client::Client;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Room for a log of small segments, and little more.
pub const DISK_MIB: u32 = 48;
/// Bytes of a message that is kept.
const MESSAGE: usize = 900_000;
/// Bytes of a Topic Filter, and how many of them a session asks for.
const FILTER: usize = 60_000;
const FILTERS: usize = 4;
/// Rounds of growing at most. A log of small segments is full after a few.
const ROUNDS: u32 = 60;
/// How long a node may take to keep something while it can.
const KEPT: Duration = Duration::from_secs(3);
/// Looks at a log that takes nothing any more.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(300);

/// Gives the nodes that were killed meanwhile.
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
    growth.until("it says that it is full", says_full)?;
    println!("  {:5.1} s     {name} says that its disk is full", begun.elapsed().as_secs_f64());
    results.check(test_cluster.log(victim).contains("the disk is full"), || {
        format!("the log of {name} says nothing")
    });
    growth.until("nothing fits into its log", takes_nothing)?;
    println!("  {:5.1} s     what {name} keeps for a full disk is used up", begun.elapsed().as_secs_f64());
    goes_on(test_cluster, victim, results)?;
    let leader = || test_cluster.views(None).leader();
    let leader = timed("all cores name one leader", Instant::now(), leader, results)?;
    println!("              {} led before, and now {leader}", test_cluster.nodes[led].name);
    let replicant = member_comes_back(test_cluster, victim, results)?;

    disks::free(&test_cluster.data(victim))?;
    let begun = Instant::now();
    let good = || test_cluster.nodes[victim].health("storage").filter(|(status, _)| *status == 200);
    timed("it says that there is room", begun, good, results)?;
    let written = || queue(test_cluster, victim).is_ok_and(|records| records == 0).then_some(());
    timed("it has written what waited", begun, written, results)?;
    timed("it keeps messages again", begun, || keeps(test_cluster, victim, "kept").ok(), results)?;
    let whole = test_cluster.wait_until_whole()?;
    println!("  {:5.1} s     until all is as it was", whole.as_secs_f64());
    Ok([replicant, counts_again(test_cluster, victim, results)?])
}

/// More and more that a node has to keep.
struct Growth<'a> {
    test_cluster: &'a TestCluster,
    victim: usize,
    rounds: u32,
}

impl Growth<'_> {
    /// # Errors
    /// It takes more than [`ROUNDS`], or the node does not say how it is.
    fn until(&mut self, what: &str, is_so: fn(&TestCluster, usize) -> Result<bool>) -> Result<()> {
        let begun = self.rounds;
        while !is_so(self.test_cluster, self.victim)? {
            ensure!(self.rounds - begun < ROUNDS, "it is not so after {ROUNDS} rounds that {what}");
            ensure!(!child::interrupted(), "interrupted");
            self.rounds += 1;
            // As soon as there is no room the one is refused and the other waits.
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

/// Records that wait for the disk.
fn queue(test_cluster: &TestCluster, at: usize) -> Result<u64> {
    let view: Value = serde_json::from_str(&test_cluster.ctl(at, &["--json", "storage"])?)?;
    view["log"]["queue_records"].as_u64().context("it does not say what waits")
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

/// A retained message that this node keeps, too.
fn keeps(test_cluster: &TestCluster, at: usize, payload: &str) -> Result<()> {
    let node = &test_cluster.nodes[at];
    Client::connect(node.mqtt, "chaos-keeps")?.publish("chaos-kept", payload, 1, true)
}

/// Has the cores agree on something new, by way of one node, and looks whether it knows of it.
fn change(test_cluster: &TestCluster, at: usize) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let banned = format!("chaos-full-{}.", NUMBER.fetch_add(1, Relaxed));
    test_cluster.ctl(at, &["ban", "add", "client-id", &banned, "--for", "1h"])?;
    ensure!(test_cluster.ctl(at, &["ban"])?.contains(&banned), "it does not know of what was agreed upon");
    Ok(())
}

/// What a full disk must not stop, and what it must.
fn goes_on(test_cluster: &TestCluster, victim: usize, results: &mut CheckResults) -> Result<()> {
    let refused = keeps(test_cluster, victim, "not kept")
        .map_or_else(|why| format!("{why:#}"), |()| "it is kept".to_owned());
    results.check(refused.contains("0x97"), || {
        format!("a message that has to be kept on a full disk is not refused with 0x97: {refused}")
    });
    exchange(test_cluster, results)?;
    for at in 0..test_cluster.nodes.len() {
        let name = &test_cluster.nodes[at].name;
        if let Err(error) = change(test_cluster, at) {
            results.check(false, || format!("no change at {name}: {error:#}"));
        }
        let healthy = test_cluster.nodes[at].health("quorum").is_some_and(|(status, _)| status == 200);
        results.check(healthy, || format!("{name} says that no majority agrees"));
    }
    Ok(())
}

/// A node dies and is removed, and joins again.
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

/// With one other core it is a majority.
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
    println!("  {:5.1} s     from the start of that until all is as it was", begun.elapsed().as_secs_f64());
    Ok(other)
}
