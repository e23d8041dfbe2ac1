//! Cuts: behaviour of nodes on several continents while some do not reach others, and after the links are restored.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cluster::{Cluster, MQTT, Plan};
use super::start;
use super::startup::leader_of;
use crate::bench::child::interrupted;
use crate::cluster::client::Client;
use crate::cluster::contention::{Contender, Open, Verdict};

const CORES: [&str; 3] = ["euc1", "ape1", "afs1"];
const REPLICANT: &str = "aps1";
/// Four cores on four continents, two of them on each side of the cut.
const FOUR: [&str; 4] = ["euc1", "ape1", "afs1", "aps1"];
/// Maximum time without a leader, including split votes.
const LEADERLESS_MAX: Duration = Duration::from_secs(8);
/// Time after which a node without a majority knows it: a lease and more.
const LEASE: Duration = Duration::from_secs(4);
/// Maximum time until the shards have leaders that reach all nodes: the link falls silent, and each leader waits before
/// it transfers its shards, one after the other.
const LEADERS_MOVE_MAX: Duration = Duration::from_secs(45);
/// Number of clients of each node whose messages must be acknowledged then. They are in several shards.
const CLIENTS: usize = 12;
/// Maximum time for a message to arrive.
const ARRIVAL: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
/// Setting that operators change; all nodes must receive the change.
const SETTING: &str = "queue.messages_max";
/// Duration of each phase of a flapping link, and number of phases.
const FLAP: Duration = Duration::from_millis(1500);
const FLAPS: u32 = 5;

type Case =
    (&'static str, &'static [&'static str], &'static [&'static str], fn(&mut Cluster) -> Result<String>);

const CASES: [Case; 7] = [
    ("the continent of the leader is cut off", &CORES, &[REPLICANT], continent),
    ("the leader receives from the others, and they receive nothing from it", &CORES, &[REPLICANT], one_way),
    ("a link between two cores is up and down in turn", &CORES, &[REPLICANT], flapping),
    (
        "the core that leads and another one do not reach each other, and a third both",
        &CORES,
        &[REPLICANT],
        relayed,
    ),
    ("a replicant is cut off from all cores", &CORES, &[REPLICANT], replicant),
    ("four cores, and two no longer reach the other two", &FOUR, &[], even_split),
    ("clients contend for Client Identifiers across cuts", &CORES, &[REPLICANT], contention),
];

pub fn run(
    (program, directory): (&Path, &Path),
    (passed, failed): (&mut usize, &mut Vec<String>),
) -> Result<()> {
    println!("Cuts between nodes, three continents and Mumbai.\n");
    for (name, cores, replicants, case) in CASES {
        let lab = start()?;
        let plan = Plan {
            cores,
            replicants,
            level: "cluster",
            connack: "overlap",
            batch_sync: "auto",
            leaders: "spread",
        };
        let done = Cluster::start(&lab, program, directory, &plan).and_then(|mut cluster| {
            let said = case(&mut cluster)?;
            lab.heal()?;
            cluster.wait_for_links()?;
            let hosts: Vec<&str> = cores.iter().chain(replicants).copied().collect();
            exchange(&cluster, &hosts)?;
            Ok(said)
        });
        match done {
            Ok(said) => {
                println!("{name}: {said}");
                *passed += 1;
            }
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
    }
    println!();
    Ok(())
}

/// The leading core, and the others.
fn parts(cluster: &Cluster) -> Result<(String, Vec<&'static str>)> {
    let leader = leader_of(&cluster.view(CORES[0])?).context("no leader")?;
    let others = CORES.into_iter().filter(|core| *core != leader).collect();
    Ok((leader, others))
}

fn continent(cluster: &mut Cluster) -> Result<String> {
    let (leader, others) = parts(cluster)?;
    for other in others.iter().chain([&REPLICANT]) {
        cluster.lab().cut(&leader, other)?;
        cluster.lab().cut(other, &leader)?;
    }
    lost_leader(cluster, &leader, &others)
}

fn one_way(cluster: &mut Cluster) -> Result<String> {
    let (leader, others) = parts(cluster)?;
    for other in others.iter().chain([&REPLICANT]) {
        cluster.lab().cut(&leader, other)?;
    }
    lost_leader(cluster, &leader, &others)
}

/// Checks that another core leads, at no time two do, and the first acknowledges nothing.
fn lost_leader(cluster: &Cluster, leader: &str, others: &[&str]) -> Result<String> {
    let begun = Instant::now();
    let mut led = None;
    while begun.elapsed() < LEADERLESS_MAX + LEASE {
        ensure!(!interrupted(), "interrupted");
        let leading = CORES.iter().filter(|core| leads(cluster, core)).count();
        ensure!(leading < 2, "{leading} cores report at one time that they lead a majority");
        if led.is_none() && others.iter().any(|core| leads(cluster, core)) {
            led = Some(begun.elapsed());
        }
        std::thread::sleep(PAUSE);
    }
    let led = led.context("no other core leads")?;
    ensure!(led < LEADERLESS_MAX, "another core leads only after {:.1} s", led.as_secs_f64());
    ensure!(!acknowledges(cluster, leader)?, "{leader} acknowledges and reaches no other core");
    for core in others {
        ensure!(acknowledges(cluster, core)?, "{core} acknowledges nothing, and a majority is there");
    }
    Ok(format!("another led after {:.1} s", led.as_secs_f64()))
}

fn leads(cluster: &Cluster, host: &str) -> bool {
    let view = cluster.view(host).unwrap_or_default();
    let replica = &view["membership"]["replica"];
    replica["raft_state"] == "leader" && replica["quorum"] == true
}

fn flapping(cluster: &mut Cluster) -> Result<String> {
    let (leader, others) = parts(cluster)?;
    for _ in 0..FLAPS {
        cluster.lab().cut(others[0], others[1])?;
        cluster.lab().cut(others[1], others[0])?;
        std::thread::sleep(FLAP);
        cluster.lab().heal()?;
        std::thread::sleep(FLAP);
        let now = leader_of(&cluster.view(&leader)?);
        ensure!(now.as_ref() == Some(&leader), "{leader}, which reached all, led, and now it is {now:?}");
    }
    Ok(format!("{leader} still led"))
}

/// Checks that the third core relays between them and leads all shards, so that clients and operators of either are
/// served.
fn relayed(cluster: &mut Cluster) -> Result<String> {
    let (leader, others) = parts(cluster)?;
    let [far, between] = others[..] else { bail!("{} cores other than the leader", others.len()) };
    cluster.lab().cut(&leader, far)?;
    cluster.lab().cut(far, &leader)?;
    let begun = Instant::now();
    let mut known_after = None;
    while begun.elapsed() < LEADERLESS_MAX + LEASE {
        ensure!(!interrupted(), "interrupted");
        let leading = CORES.iter().filter(|core| leads(cluster, core)).count();
        ensure!(leading < 2, "{leading} cores report at one time that they lead a majority");
        if known_after.is_none() && knows_leader_by(cluster, far, between) {
            known_after = Some(begun.elapsed());
        }
        std::thread::sleep(PAUSE);
    }
    let known_after =
        known_after.with_context(|| format!("{far} does not know the leader through {between}"))?;
    let now = leader_of(&cluster.view(between)?);
    ensure!(now.as_ref() == Some(&leader), "{leader}, which a majority reaches, led, and now it is {now:?}");
    while !cluster.leads_all(between)? {
        ensure!(!interrupted(), "interrupted");
        let waited = begun.elapsed();
        ensure!(waited < LEADERS_MOVE_MAX, "{between} does not lead all shards after {} s", waited.as_secs());
        std::thread::sleep(PAUSE);
    }
    let led_after = begun.elapsed();
    for host in CORES.iter().chain([&REPLICANT]) {
        let view = cluster.view(host)?;
        ensure!(view["acknowledging"] == true, "{host} is not acknowledging");
        let members = view["membership"]["members"].as_array().cloned().unwrap_or_default();
        let alive = members.iter().filter(|member| member["state"] == "alive").count();
        ensure!(alive == CORES.len() + 1, "for {host} {alive} nodes are alive");
        for number in 0..CLIENTS {
            let name = format!("whether-{number}");
            ensure!(acknowledges_as(cluster, host, &name)?, "{host} acknowledges nothing of `{name}`");
        }
    }
    let mut subscriber = connect(cluster, far, "subscriber")?;
    subscriber.subscribe("cuts/far", 1, "cluster")?;
    for from in [far, between, REPLICANT] {
        let came = until_came(cluster, (from, "cuts/far"), &mut subscriber)?;
        ensure!(came, "messages of {from} do not reach a client of {far}");
    }
    for (asked, value) in [(far, "777"), (&leader[..], "888")] {
        cluster.set(asked, SETTING, value)?;
        let deadline = Instant::now() + ARRIVAL;
        for host in CORES.iter().chain([&REPLICANT]) {
            while cluster.setting(host, SETTING)?.as_str() != Some(value) {
                ensure!(Instant::now() < deadline, "{host} does not receive the setting made on {asked}");
                std::thread::sleep(PAUSE);
            }
        }
    }
    Ok(format!(
        "{leader} still led, {far} knew it through {between} after {:.1} s, and {between} led all shards after {:.1} s",
        known_after.as_secs_f64(),
        led_after.as_secs_f64()
    ))
}

/// Returns whether the node has a quorum, and is connected to the leader through another node.
fn knows_leader_by(cluster: &Cluster, host: &str, by: &str) -> bool {
    let view = cluster.view(host).unwrap_or_default();
    let replica = &view["membership"]["replica"];
    replica["leader_via"] == by && replica["quorum"] == true
}

/// Returns whether one of some acknowledged messages arrives.
fn until_came(cluster: &Cluster, (from, topic): (&str, &str), subscriber: &mut Client) -> Result<bool> {
    let mut publisher = connect(cluster, from, "publisher")?;
    let deadline = Instant::now() + ARRIVAL;
    while Instant::now() < deadline {
        publisher.publish(topic, from, 1, false)?;
        while let Some(message) = subscriber.receive(Duration::from_millis(500))? {
            if message.payload == from {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Checks that it serves its own clients without other nodes, and reports that it acknowledges nothing.
fn replicant(cluster: &mut Cluster) -> Result<String> {
    let mut subscriber = connect(cluster, REPLICANT, "subscriber")?;
    subscriber.subscribe("cuts/here", 1, "cluster")?;
    let mut publisher = connect(cluster, REPLICANT, "publisher")?;
    // With its acknowledgement, the client has its Client Identifier.
    publisher.publish("cuts/nobody", "here", 1, false)?;
    for core in CORES {
        cluster.lab().cut(REPLICANT, core)?;
        cluster.lab().cut(core, REPLICANT)?;
    }
    std::thread::sleep(LEASE);
    ensure!(cluster.view(REPLICANT)?["acknowledging"] == false, "it reports that it is acknowledging");
    publisher.publish("cuts/here", "QoS 0", 0, false)?;
    let came = subscriber.receive(ARRIVAL)?;
    ensure!(
        came.is_some_and(|message| message.payload == "QoS 0"),
        "QoS 0 does not reach a client of the same node"
    );
    ensure!(!acknowledges(cluster, REPLICANT)?, "it acknowledges and reaches no core");
    for core in CORES {
        ensure!(acknowledges(cluster, core)?, "{core} acknowledges nothing");
    }
    Ok("QoS 0 continued there, QoS 1 waited".to_owned())
}

/// Checks that neither half has a majority.
fn even_split(cluster: &mut Cluster) -> Result<String> {
    for one in &FOUR[..2] {
        for other in &FOUR[2..] {
            cluster.lab().cut(one, other)?;
            cluster.lab().cut(other, one)?;
        }
    }
    // Until the silent links are known to be down.
    std::thread::sleep(LEASE + Duration::from_secs(5));
    for core in FOUR {
        ensure!(cluster.view(core)?["acknowledging"] == false, "{core} reports that it is acknowledging");
        ensure!(!acknowledges(cluster, core)?, "{core} acknowledges and reaches half of the cores");
    }
    Ok("no half acknowledged".to_owned())
}

/// Minimum number of times that a connection is served after another one of its Client Identifier.
const CHANGES_MIN: usize = 100;
/// Number of Client Identifiers for which clients contend.
const NAMES: usize = 6;
/// Duration of each cut and of each pause between cuts, in this case.
const CUT: Duration = Duration::from_secs(12);

/// Checks that no two connections of one Client Identifier are served at the same time, on both sides of each cut.
fn contention(cluster: &mut Cluster) -> Result<String> {
    let cluster = &*cluster;
    let is_over = AtomicBool::new(false);
    let hosts: Vec<&str> = CORES.into_iter().chain([REPLICANT]).collect();
    let addresses: Vec<SocketAddr> =
        hosts.iter().map(|host| Ok((cluster.lab().address(host)?, MQTT).into())).collect::<Result<_>>()?;
    let verdict = std::thread::scope(|scope| {
        let contenders: Vec<_> = Contender::all(NAMES)
            .map(|contender| {
                let (hosts, addresses, is_over) = (&hosts, &addresses, &is_over);
                let connect = move |number: u64, open: &Open<'_>| {
                    let at = (number % hosts.len() as u64) as usize;
                    cluster.lab().within(hosts[at], || open(addresses[at]))?
                };
                scope.spawn(move || contender.contend(is_over, connect))
            })
            .collect();
        let injected = cut_in_turn(cluster);
        is_over.store(true, Ordering::Relaxed);
        let outcomes = contenders.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        injected.and_then(|()| Verdict::of(outcomes))
    })?;
    let changes = verdict.changes;
    ensure!(
        changes >= CHANGES_MIN,
        "only {changes} connections were served after another one, of {CHANGES_MIN}"
    );
    Ok(verdict.describe())
}

/// Cuts off the leader in both directions, the leader in one direction, and a replicant.
fn cut_in_turn(cluster: &Cluster) -> Result<()> {
    let pause = || {
        ensure!(!interrupted(), "interrupted");
        std::thread::sleep(CUT);
        Ok(())
    };
    pause()?;
    for is_one_way in [false, true] {
        let (leader, others) = parts(cluster)?;
        for other in others.iter().chain([&REPLICANT]) {
            cluster.lab().cut(&leader, other)?;
            if !is_one_way {
                cluster.lab().cut(other, &leader)?;
            }
        }
        pause()?;
        cluster.lab().heal()?;
        pause()?;
    }
    for core in CORES {
        cluster.lab().cut(REPLICANT, core)?;
        cluster.lab().cut(core, REPLICANT)?;
    }
    pause()?;
    cluster.lab().heal()?;
    pause()
}

fn connect(cluster: &Cluster, host: &str, name: &str) -> Result<Client> {
    let mqtt = (cluster.lab().address(host)?, MQTT).into();
    // A Client Identifier has one connection in the whole cluster.
    let id = format!("{name}-{host}");
    cluster.lab().within(host, || Client::connect(mqtt, &id))?
}

/// Returns whether a client is admitted there, and a message of QoS 1 without subscribers is acknowledged.
fn acknowledges(cluster: &Cluster, host: &str) -> Result<bool> {
    acknowledges_as(cluster, host, "whether")
}

fn acknowledges_as(cluster: &Cluster, host: &str, name: &str) -> Result<bool> {
    let Ok(mut client) = connect(cluster, host, name) else { return Ok(false) };
    client.be_patient(Duration::from_secs(2));
    Ok(client.publish("cuts/nobody", "whether", 1, false).is_ok())
}

/// Connects a client as soon as the shards have leaders again.
fn connect_again(cluster: &Cluster, host: &str, name: &str) -> Result<Client> {
    let deadline = Instant::now() + ARRIVAL;
    loop {
        match connect(cluster, host, name) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// Sends messages from each node to each, right after the links are restored.
fn exchange(cluster: &Cluster, hosts: &[&str]) -> Result<()> {
    let mut receivers = Vec::new();
    for host in hosts {
        let mut client = connect_again(cluster, host, "receiver")?;
        client.subscribe("cuts/all", 1, "cluster")?;
        receivers.push((host, client));
    }
    for from in hosts {
        connect_again(cluster, from, "sender")?.publish("cuts/all", from, 1, false)?;
        for (to, receiver) in &mut receivers {
            if receiver.receive(ARRIVAL)?.is_none_or(|message| message.payload != **from) {
                bail!("a message of {from} did not reach {to} afterwards");
            }
        }
    }
    Ok(())
}
