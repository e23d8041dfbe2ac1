//! `cargo xtask cluster-smoke`: five nodes on this machine, and a message of each kind from each to each.

pub mod bench;
pub mod client;
pub mod contention;
pub mod copies;
mod disconnect;
pub mod many;
mod memory;
pub mod nodes;
mod peers;
mod replace;
mod takeover;

use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use client::{Client, Message};
use nodes::Nodes;

use crate::bench::child;
use crate::chaos::target;
use crate::repository;

#[derive(clap::Args)]
pub struct Args {
    /// Program to test (default: the one that is built for this)
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Build the program for development, which is faster
    #[arg(long)]
    debug: bool,
    /// Number of nodes that vote and store
    #[arg(long, default_value_t = 3)]
    cores: usize,
    /// Number of nodes that are attached to one of them
    #[arg(long, default_value_t = 2)]
    replicants: usize,
    /// First of three ports that each node uses, on 127.0.0.1 and so on
    #[arg(long, default_value_t = 21883)]
    port: u16,
}

/// Maximum time for a message to arrive, whatever the load of the machine.
const ARRIVAL: Duration = Duration::from_secs(20);
/// Session Expiry Interval in seconds of a durable session, longer than a run.
const SESSION_EXPIRY: u32 = 600;
/// Time after which an unwanted message would have arrived.
const SILENCE: Duration = Duration::from_millis(500);

pub fn run(args: &Args) -> Result<()> {
    child::catch_signals();
    ensure!(args.cores > 0 && args.cores + args.replicants <= 50, "1 core to 50 nodes");
    let program = match &args.program {
        Some(program) => program.clone(),
        None => {
            target::build(args.debug, true)?;
            target::profile_directory(args.debug).join("meridian")
        }
    };
    let directory = repository::root().join("target/cluster-smoke");
    let begun = Instant::now();
    let size = (args.cores, args.replicants);
    let mut cluster = Nodes::start(&program, &directory, size, args.port, &[])?;
    println!("{} nodes reach each other after {:.1} s", cluster.nodes.len(), begun.elapsed().as_secs_f64());
    let mut passed = 0;
    passed += pairs(&cluster)?;
    passed += shared(&cluster)?;
    passed += retained(&cluster)?;
    passed += failures(&mut cluster)?;
    println!("{:.1} s", begun.elapsed().as_secs_f64());
    println!("{passed} passed, 0 failed");
    Ok(())
}

/// Checks every ordered pair: QoS 0, 1 and 2, to a filter with and one without wildcards.
fn pairs(cluster: &Nodes) -> Result<usize> {
    let mut passed = 0;
    for to in &cluster.nodes {
        let mut plain = Client::connect(to.mqtt, &format!("plain-{}", to.name))?;
        let mut wild = Client::connect(to.mqtt, &format!("wild-{}", to.name))?;
        for from in &cluster.nodes {
            plain.subscribe(&format!("smoke/{}/{}", from.name, to.name), 2, "cluster")?;
        }
        wild.subscribe(&format!("smoke/+/{}/#", to.name), 2, "cluster")?;
        for from in &cluster.nodes {
            let mut publisher = Client::connect(from.mqtt, &format!("from-{}", from.name))?;
            for qos in 0..=2 {
                let topic = format!("smoke/{}/{}", from.name, to.name);
                let payload = format!("QoS {qos}");
                publisher.publish(&topic, &payload, qos, false)?;
                let expected = Message { topic, payload, qos, retain: false };
                for client in [&mut plain, &mut wild] {
                    let found = client.receive(ARRIVAL)?;
                    ensure!(
                        found.as_ref() == Some(&expected),
                        "from {} to {}: expected {expected:?}, found {found:?}",
                        from.name,
                        to.name
                    );
                    passed += 1;
                }
            }
        }
        for client in [&mut plain, &mut wild] {
            let more = client.receive(SILENCE)?;
            ensure!(more.is_none(), "{more:?} arrived twice at {}", to.name);
        }
    }
    println!("  pairs: QoS 0, 1 and 2 from each node to each, with and without wildcards");
    Ok(passed)
}

/// Checks a shared group with a member on every node: each message goes to one of them, and each of them gets some.
fn shared(cluster: &Nodes) -> Result<usize> {
    let mut members = Vec::new();
    for node in &cluster.nodes {
        let mut member = Client::connect(node.mqtt, &format!("member-{}", node.name))?;
        member.subscribe("$share/smoke/work/+", 2, "cluster")?;
        members.push(member);
    }
    // Members on other nodes are known when the node's own SUBACK has been sent, which is so for all now.
    let mut passed = 0;
    let each = 2 * members.len();
    for from in &cluster.nodes {
        let mut publisher = Client::connect(from.mqtt, &format!("work-{}", from.name))?;
        let mut sent: Vec<String> = Vec::new();
        for number in 0..each {
            let payload = format!("{} {number}", from.name);
            publisher.publish("work/1", &payload, 1 + (number % 2) as u8, false)?;
            sent.push(payload);
        }
        let mut got: Vec<String> = Vec::new();
        let deadline = Instant::now() + ARRIVAL;
        let mut counts = vec![0; members.len()];
        while got.len() < sent.len() && Instant::now() < deadline {
            for (member, count) in members.iter_mut().zip(&mut counts) {
                while let Some(message) = member.receive(Duration::from_millis(10))? {
                    got.push(message.payload);
                    *count += 1;
                }
            }
        }
        got.sort();
        sent.sort();
        ensure!(got == sent, "of work from {}: sent {sent:?}, members got {got:?}", from.name);
        ensure!(counts.iter().all(|count| *count > 0), "work from {} was shared so: {counts:?}", from.name);
        passed += sent.len();
    }
    for member in &mut members {
        let more = member.receive(SILENCE / 5)?;
        ensure!(more.is_none(), "{more:?} arrived at two members");
    }
    println!("  shared: a group with a member on each node");
    Ok(passed)
}

/// Checks failures. A stopped node delays publishers no longer than its silence. It may be declared dead, and its
/// durable sessions receive the missed messages when it continues. A killed node is declared dead, and comes back.
fn failures(cluster: &mut Nodes) -> Result<usize> {
    let last = cluster.nodes.len() - 1;
    if last < 2 {
        println!("  failures: skipped, they need three nodes");
        return Ok(0);
    }
    let mut stopped = Client::connect_lasting(cluster.nodes[last].mqtt, "stopped", SESSION_EXPIRY)?;
    stopped.subscribe("all/#", 1, "cluster")?;
    let mut other = Client::connect(cluster.nodes[1].mqtt, "other")?;
    other.subscribe("all/#", 1, "cluster")?;
    let mut publisher = Client::connect(cluster.nodes[0].mqtt, "publisher")?;
    cluster.nodes[last].signal(libc::SIGSTOP);
    let begun = Instant::now();
    for number in 0..20 {
        publisher.publish("all/1", &number.to_string(), 1, false)?;
        let found = other.receive(ARRIVAL)?;
        ensure!(
            found.is_some_and(|message| message.payload == number.to_string()),
            "{number} did not arrive"
        );
    }
    let held_up = begun.elapsed();
    ensure!(held_up < ARRIVAL, "a stopped node delayed a publisher for {} s", held_up.as_secs());
    cluster.nodes[last].signal(libc::SIGCONT);
    drop(stopped);
    cluster.wait_for_links()?;
    let mut stopped = Client::resume(cluster.nodes[last].mqtt, "stopped", SESSION_EXPIRY)?;
    for number in 0..20 {
        let found = stopped.receive(ARRIVAL)?;
        ensure!(
            found.as_ref().is_some_and(|message| message.payload == number.to_string()),
            "the node that continued has {found:?} instead of {number}"
        );
    }
    println!(
        "  stopped: 20 messages at {:.1} s, none of them lost to the node that was stopped",
        held_up.as_secs_f64()
    );
    drop(stopped);

    let mut before = Client::connect(cluster.nodes[last].mqtt, "before")?;
    before.subscribe("again/+", 1, "cluster")?;
    cluster.kill(last)?;
    let begun = Instant::now();
    publisher.publish("all/2", "one is dead", 1, false)?;
    ensure!(other.receive(ARRIVAL)?.is_some(), "no message arrives while a node is dead");
    let went_on = begun.elapsed();
    cluster.restart(last)?;
    let mut after = Client::connect(cluster.nodes[last].mqtt, "after")?;
    after.subscribe("again/+", 1, "cluster")?;
    publisher.publish("again/1", "here", 1, false)?;
    let found = after.receive(ARRIVAL)?;
    ensure!(found.is_some_and(|message| message.payload == "here"), "a node that was killed is not back");
    println!("  killed: a message arrived after {:.1} s, and the node was back", went_on.as_secs_f64());
    Ok(42)
}

/// Checks that a message retained at one node is found at every other, and its deletion too.
fn retained(cluster: &Nodes) -> Result<usize> {
    let mut passed = 0;
    for from in &cluster.nodes {
        let topic = format!("kept/{}", from.name);
        let mut publisher = Client::connect(from.mqtt, &format!("keeper-{}", from.name))?;
        publisher.publish(&topic, "first", 1, true)?;
        publisher.publish(&topic, "last", 1, true)?;
        for to in &cluster.nodes {
            let mut client = Client::connect(to.mqtt, &format!("late-{}-{}", from.name, to.name))?;
            client.subscribe(&topic, 1, "local")?;
            let found = client.receive(ARRIVAL)?;
            let expected = Message { topic: topic.clone(), payload: "last".into(), qos: 1, retain: true };
            ensure!(
                found.as_ref() == Some(&expected),
                "retained at {}: {} gives {found:?}",
                from.name,
                to.name
            );
            passed += 1;
        }
        publisher.publish(&topic, "", 1, true)?;
        for to in &cluster.nodes {
            let mut client = Client::connect(to.mqtt, &format!("later-{}-{}", from.name, to.name))?;
            client.subscribe(&topic, 1, "local")?;
            let found = client.receive(SILENCE / 5)?;
            ensure!(found.is_none(), "deleted at {}: {} still gives {found:?}", from.name, to.name);
            passed += 1;
        }
    }
    println!("  retained: from each node to each, and deleted");
    Ok(passed)
}
