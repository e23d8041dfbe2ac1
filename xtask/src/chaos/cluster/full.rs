//! A core whose disk is full: it says so, keeps nothing new, and takes nobody with it; when there is room it has what it missed.

use super::fleet::Fleet;
use super::{Found, disks, exchange, timed};
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
pub fn suffer(fleet: &mut Fleet, victim: usize, found: &mut Found) -> Result<[usize; 2]> {
    let name = fleet.nodes[victim].name.clone();
    let led = fleet.leader()?;
    disks::fill(&fleet.data(victim))?;
    let begun = Instant::now();
    let mut growth = Growth { fleet, victim, rounds: 0 };
    growth.until("it says that it is full", says_full)?;
    println!("  {:5.1} s     {name} says that its disk is full", begun.elapsed().as_secs_f64());
    found.check(fleet.log(victim).contains("the disk is full"), || format!("the log of {name} says nothing"));
    growth.until("nothing fits into its log", takes_nothing)?;
    println!("  {:5.1} s     what {name} keeps for a full disk is used up", begun.elapsed().as_secs_f64());
    goes_on(fleet, victim, found)?;
    let leader = || fleet.views(None).leader();
    let leader = timed("all cores name one leader", Instant::now(), leader, found)?;
    println!("              {} led before, and now {leader}", fleet.nodes[led].name);
    let replicant = member_comes_back(fleet, victim, found)?;

    disks::free(&fleet.data(victim))?;
    let begun = Instant::now();
    let good = || fleet.nodes[victim].health("storage").filter(|(status, _)| *status == 200);
    timed("it says that there is room", begun, good, found)?;
    let written = || queue(fleet, victim).is_ok_and(|records| records == 0).then_some(());
    timed("it has written what waited", begun, written, found)?;
    timed("it keeps messages again", begun, || keeps(fleet, victim, "kept").ok(), found)?;
    let whole = fleet.wait_until_whole()?;
    println!("  {:5.1} s     until all is as it was", whole.as_secs_f64());
    Ok([replicant, counts_again(fleet, victim, found)?])
}

/// More and more that a node has to keep.
struct Growth<'a> {
    fleet: &'a Fleet,
    victim: usize,
    rounds: u32,
}

impl Growth<'_> {
    /// # Errors
    /// It takes more than [`ROUNDS`], or the node does not say how it is.
    fn until(&mut self, what: &str, is_so: fn(&Fleet, usize) -> Result<bool>) -> Result<()> {
        let begun = self.rounds;
        while !is_so(self.fleet, self.victim)? {
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
        let mut client = Client::connect(self.fleet.nodes[self.victim].mqtt, "chaos-grows")?;
        client.be_patient(KEPT);
        client.publish(&format!("chaos-grows/{}", self.rounds), &"x".repeat(MESSAGE), 1, true)
    }

    fn session(&self) -> Result<()> {
        let id = format!("chaos-grows-{}", self.rounds);
        let mut client = Client::connect_lasting(self.fleet.nodes[self.victim].mqtt, &id, 3600)?;
        client.be_patient(KEPT);
        for number in 0..FILTERS {
            client.subscribe(&format!("{id}/{number}/{}", "x".repeat(FILTER)), 0, "local")?;
        }
        Ok(())
    }
}

fn says_full(fleet: &Fleet, at: usize) -> Result<bool> {
    let (status, said) = fleet.nodes[at].health("storage").context("it does not answer")?;
    Ok(status == 503 && said.contains("full"))
}

/// Records that wait for the disk.
fn queue(fleet: &Fleet, at: usize) -> Result<u64> {
    let view: Value = serde_json::from_str(&fleet.ctl(at, &["--json", "storage"])?)?;
    view["log"]["queue_records"].as_u64().context("it does not say what waits")
}

fn takes_nothing(fleet: &Fleet, at: usize) -> Result<bool> {
    for _ in 0..LOOKS {
        if queue(fleet, at)? == 0 {
            return Ok(false);
        }
        until(LOOK, || None::<()>);
    }
    Ok(true)
}

/// A retained message that this node keeps, too.
fn keeps(fleet: &Fleet, at: usize, payload: &str) -> Result<()> {
    let node = &fleet.nodes[at];
    Client::connect(node.mqtt, "chaos-keeps")?.publish("chaos-kept", payload, 1, true)
}

/// Has the cores agree on something new, by way of one node, and looks whether it knows of it.
fn change(fleet: &Fleet, at: usize) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let banned = format!("chaos-full-{}.", NUMBER.fetch_add(1, Relaxed));
    fleet.ctl(at, &["ban", "add", "client-id", &banned, "--for", "1h"])?;
    ensure!(fleet.ctl(at, &["ban"])?.contains(&banned), "it does not know of what was agreed upon");
    Ok(())
}

/// What a full disk must not stop, and what it must.
fn goes_on(fleet: &Fleet, victim: usize, found: &mut Found) -> Result<()> {
    let refused =
        keeps(fleet, victim, "not kept").map_or_else(|why| format!("{why:#}"), |()| "it is kept".to_owned());
    found.check(refused.contains("0x97"), || {
        format!("a message that has to be kept on a full disk is not refused with 0x97: {refused}")
    });
    exchange(fleet, found)?;
    for at in 0..fleet.nodes.len() {
        let name = &fleet.nodes[at].name;
        if let Err(error) = change(fleet, at) {
            found.check(false, || format!("no change at {name}: {error:#}"));
        }
        let healthy = fleet.nodes[at].health("quorum").is_some_and(|(status, _)| status == 200);
        found.check(healthy, || format!("{name} says that no majority agrees"));
    }
    Ok(())
}

/// A node dies and is removed, and joins again.
fn member_comes_back(fleet: &mut Fleet, victim: usize, found: &mut Found) -> Result<usize> {
    let other = (0..fleet.nodes.len()).rfind(|at| *at != victim && !fleet.nodes[*at].is_core);
    let other = other.context("there is no replicant")?;
    let name = fleet.nodes[other].name.clone();
    fleet.kill_at_once(&[other])?;
    let begun = Instant::now();
    let dead = || fleet.views(Some(other)).agree(&name, "dead").then_some(());
    timed("a replicant that is killed is dead for all", begun, dead, found)?;
    fleet.ctl(victim, &["cluster", "remove", &name, "--yes"])?;
    let begun = Instant::now();
    fleet.start_again(other)?;
    fleet.wait_until_whole().with_context(|| format!("{name} was removed and joins again"))?;
    println!("  {:5.1} s     from its start until it is a member again", begun.elapsed().as_secs_f64());
    Ok(other)
}

/// With one other core it is a majority.
fn counts_again(fleet: &mut Fleet, victim: usize, found: &mut Found) -> Result<usize> {
    let other = (0..fleet.nodes.len()).find(|at| *at != victim && fleet.nodes[*at].is_core);
    let other = other.context("there is no other core")?;
    fleet.kill_at_once(&[other])?;
    let begun = Instant::now();
    let agreed = || change(fleet, victim).ok();
    timed("it agrees with one other core, as the third is killed", begun, agreed, found)?;
    let begun = Instant::now();
    fleet.start_again(other)?;
    fleet.wait_until_whole()?;
    println!("  {:5.1} s     from the start of that until all is as it was", begun.elapsed().as_secs_f64());
    Ok(other)
}
