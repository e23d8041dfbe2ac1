//! A rolling upgrade under load: each node is stopped, and started with another version and the same data directory.
//! Nodes go back to the old version where docs/upgrades.md allows it, and a core is refused where it does not.

use super::super::Args;
use super::super::load::Load;
use super::super::upgrade::{Programs, Version};
use super::test_cluster::{Plan, TestCluster};
use super::{ARRIVAL, CALM, CLIENTS, CheckResults, Fault, PATIENCE, PUBLISHING_S, judge, timed};
use crate::bench::child;
use crate::cluster::client::Client;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Replacement of a node by another version.
#[derive(Clone, Copy)]
struct Step {
    node: usize,
    version: Version,
    /// Purpose of the step, for people.
    why: &'static str,
}

/// Nodes 0 to 2 are cores, 3 and 4 replicants.
const STEPS: [Step; 11] = [
    Step { node: 0, version: Version::New, why: "the first core" },
    Step { node: 3, version: Version::New, why: "a replicant" },
    Step { node: 1, version: Version::New, why: "a second core" },
    Step { node: 1, version: Version::Old, why: "the core goes back" },
    Step { node: 3, version: Version::Old, why: "the replicant goes back" },
    Step { node: 1, version: Version::New, why: "the core again" },
    Step { node: 3, version: Version::New, why: "the replicant again" },
    Step { node: 2, version: Version::New, why: "the last core" },
    Step { node: 4, version: Version::New, why: "the last node" },
    Step { node: 3, version: Version::Old, why: "a replicant goes back after all others were upgraded" },
    Step { node: 3, version: Version::New, why: "and is upgraded again" },
];
/// Step after which the action is made.
const WITH_ACTION: usize = 2;
/// Steps after which all nodes have the new version.
const ALL_NEW: [usize; 2] = [8, 10];
/// Core that is started with the old version after all, which the others refuse.
const LATE: usize = 1;

const PLAN: Plan = Plan { name: "upgrade", cores: 3, replicants: 2, disk_mib: None, settings: &[] };
const REPLICAS: usize = 3;
const EXPIRY_S: u32 = 3600;
/// Maximum time until a client whose node has ended is served by another one.
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// Name and file of the action. It publishes what rules see of a message.
const ACTION: &str = "upgrade";
const ACTION_FILE: &str = r#"{ "rule": "SELECT clientid, topic, payload AS text FROM \"upgrade/+\", \"upgrade-probe/+\"", "topic": "upgraded/1", "publish_qos": "1" }"#;

/// Clients that examine what nodes of two versions exchange.
struct Witness {
    /// Receiver of the action's messages, once there is an action.
    acted: Option<Client>,
    /// Publishers that rules have seen, by the payload.
    seen: BTreeMap<String, Option<String>>,
    rounds: usize,
    /// Rounds in which all nodes have the new version.
    new_rounds: Vec<usize>,
}

pub fn run(args: &Args, programs: Programs<'_>, directory: &Path, results: &mut CheckResults) -> Result<()> {
    let begun = Instant::now();
    let mut test_cluster = TestCluster::start(programs.old, directory, args.port, &PLAN)?;
    test_cluster.wait_until_whole()?;
    println!("five nodes of the old version reach each other after {:.1} s", begun.elapsed().as_secs_f64());
    timed("all shards have their replicas", begun, || whole(&test_cluster), results)?;
    let mut load = start_load(args, programs, &test_cluster)?;
    load.wait_until_publishing(PATIENCE)?;
    let mut witness = Witness::new(&test_cluster)?;
    witness.publish(&test_cluster, results)?;
    for (at, step) in STEPS.into_iter().enumerate() {
        child::until(CALM, || None::<()>);
        ensure!(!load.ended(), "bench ha has ended early");
        replace(programs, &mut test_cluster, step, results)?;
        witness.read(&test_cluster, step.node, results)?;
        if at == WITH_ACTION {
            witness.put_action(programs, &test_cluster, directory)?;
        }
        if ALL_NEW.contains(&at) {
            witness.wait_for_publishers(&test_cluster, results)?;
        }
        witness.publish(&test_cluster, results)?;
    }
    refuse(programs, &mut test_cluster, results)?;
    witness.read(&test_cluster, LATE, results)?;
    witness.wait_for_publishers(&test_cluster, results)?;
    witness.publish(&test_cluster, results)?;
    witness.judge_action(&test_cluster, results)?;
    child::until(CALM, || None::<()>);
    let (verdict, _) = load.finish(Duration::ZERO)?;
    fs::write(directory.join("upgrade.json"), verdict.to_string())?;
    judge(Fault::Roll, ("upgrade", EXPIRY_S), &[], &verdict, results);
    judge_gaps(&verdict, results);
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}

fn start_load(args: &Args, programs: Programs<'_>, test_cluster: &TestCluster) -> Result<Load> {
    let hosts: Vec<String> = test_cluster.nodes.iter().map(|node| node.mqtt.to_string()).collect();
    let mut command = Command::new(programs.new);
    command.args(["bench", "ha", "--json", "-q", "mixed", "-h", &hosts.join(",")]);
    command.args(["--prefix", "chaos-upgrade"]);
    let numbers =
        [("--publishers", CLIENTS as u32), ("--subscribers", CLIENTS as u32), ("--expiry", EXPIRY_S)];
    let rate = [("-R", args.rate / 2), ("-s", args.size), ("--window", args.window)];
    for (option, value) in numbers.into_iter().chain(rate).chain([("--duration", PUBLISHING_S)]) {
        command.args([option, &value.to_string()]);
    }
    Load::of(command, false)
}

fn whole(test_cluster: &TestCluster) -> Option<()> {
    test_cluster.has_replicas(REPLICAS).then_some(())
}

/// Stops a node, and starts it with another version and the same data directory.
fn replace(
    programs: Programs<'_>,
    test_cluster: &mut TestCluster,
    Step { node, version, why }: Step,
    results: &mut CheckResults,
) -> Result<()> {
    let name = test_cluster.nodes[node].name.clone();
    println!("  {name} gets {version}: {why}");
    let ended = test_cluster.nodes[node].end(libc::SIGTERM)?;
    let begun = Instant::now();
    test_cluster.start_with(node, programs.of(version))?;
    test_cluster.wait_until_whole()?;
    let ready = begun.elapsed().as_secs_f64();
    println!(
        "  {:5.1} s     until it has ended, {ready:.1} s until all nodes are ready",
        ended.as_secs_f64()
    );
    timed("all shards have their replicas", begun, || whole(test_cluster), results)
}

/// Starts a core with the old version after all cores have the new one. It must say that it is too old, and do no harm.
fn refuse(programs: Programs<'_>, test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    let name = test_cluster.nodes[LATE].name.clone();
    println!("  {name} gets the old version: a core, which the others refuse now");
    test_cluster.nodes[LATE].end(libc::SIGTERM)?;
    let written = test_cluster.log(LATE).len();
    let begun = Instant::now();
    test_cluster.start_with(LATE, programs.old)?;
    let refused = || {
        let log = test_cluster.log(LATE);
        let log = log.get(written..).unwrap_or_default();
        ["runs too old a version", "cannot read: update this node"]
            .iter()
            .any(|text| log.contains(text))
            .then_some(())
    };
    timed("its log says that it has to be updated", begun, refused, results)?;
    let ready = test_cluster.nodes[LATE].health("ready");
    results.check(ready.is_none_or(|(status, _)| status != 200), || format!("{name} is ready all the same"));
    test_cluster.nodes[LATE].end_if_running(libc::SIGTERM)?;
    let begun = Instant::now();
    test_cluster.start_with(LATE, programs.new)?;
    test_cluster.wait_until_whole()?;
    timed("the new version goes on with its data", begun, || whole(test_cluster), results)
}

/// Checks how long clients had no server, and prints the longest times.
fn judge_gaps(verdict: &Value, results: &mut CheckResults) {
    let longest = Duration::from_micros(verdict["reconnect_us"]["max"].as_f64().unwrap_or(0.0) as u64);
    println!(
        "  longest time of a client without a server {} ms (median {} ms, {} of them); longest silence of one subscriber {} ms; \
         longest delay of a message {} ms",
        longest.as_millis(),
        verdict["reconnect_us"]["p50"].as_f64().unwrap_or(0.0) as u64 / 1000,
        verdict["reconnect_us"]["count"],
        verdict["longest_silence_of_one_ms"],
        verdict["latency_us"]["max"].as_f64().unwrap_or(0.0) as u64 / 1000,
    );
    results.check(longest < RECONNECT_MAX, || {
        format!(
            "a client had no server for {} ms, the limit is {} s",
            longest.as_millis(),
            RECONNECT_MAX.as_secs()
        )
    });
}

impl Witness {
    /// Makes the session of the reader. It is read on the node of each step, with what was published before.
    fn new(test_cluster: &TestCluster) -> Result<Self> {
        let mut reader = Client::connect_lasting(test_cluster.nodes[0].mqtt, "upgrade-reader", EXPIRY_S)?;
        reader.subscribe("upgrade/+", 1, "cluster")?;
        reader.disconnect()?;
        Ok(Self { acted: None, seen: BTreeMap::new(), rounds: 0, new_rounds: Vec::new() })
    }

    /// Publishes a retained message on each node. A subscriber of each node gets all of them.
    fn publish(&mut self, test_cluster: &TestCluster, results: &mut CheckResults) -> Result<()> {
        self.rounds += 1;
        let mut receivers = Vec::new();
        for node in &test_cluster.nodes {
            let mut client = Client::connect(node.mqtt, &format!("upgrade-to-{}", node.name))?;
            client.subscribe_new("upgrade/+", 1, "cluster")?;
            receivers.push((node, client));
        }
        for from in &test_cluster.nodes {
            let mut client = Client::connect(from.mqtt, &publisher(&from.name))?;
            client.publish(&format!("upgrade/{}", from.name), &self.payload(&from.name), 1, true)?;
        }
        for (node, receiver) in &mut receivers {
            let missing = self.missing(test_cluster, receiver);
            results.check(missing.is_ok(), || {
                let why = missing.err().map_or_else(String::new, |error| format!("{error:#}"));
                format!("round {}, a subscriber on {}: {why}", self.rounds, node.name)
            });
        }
        self.take_acted(Duration::ZERO)
    }

    fn payload(&self, node: &str) -> String {
        format!("{} {node}", self.rounds)
    }

    /// Receives this round's messages of all nodes, in any order.
    ///
    /// # Errors
    /// One is missing, or something else arrives.
    fn missing(&self, test_cluster: &TestCluster, receiver: &mut Client) -> Result<()> {
        let mut wanted: Vec<String> =
            test_cluster.nodes.iter().map(|node| self.payload(&node.name)).collect();
        while !wanted.is_empty() {
            let found =
                receiver.receive(ARRIVAL)?.with_context(|| format!("{} missing", wanted.join(", ")))?;
            let at = wanted.iter().position(|payload| *payload == found.payload);
            wanted.swap_remove(at.with_context(|| format!("unexpected: {found:?}"))?);
        }
        Ok(())
    }

    /// Reads on a node what was published before its restart: the queue of a session, and retained messages.
    fn read(&mut self, test_cluster: &TestCluster, node: usize, results: &mut CheckResults) -> Result<()> {
        let there = &test_cluster.nodes[node];
        let mut reader = Client::resume(there.mqtt, "upgrade-reader", EXPIRY_S)?;
        let mut late = Client::connect(there.mqtt, "upgrade-late")?;
        late.subscribe("upgrade/+", 1, "cluster")?;
        for (what, client) in [("the session", &mut reader), ("retained messages", &mut late)] {
            let missing = self.missing(test_cluster, client);
            results.check(missing.is_ok(), || {
                let why = missing.err().map_or_else(String::new, |error| format!("{error:#}"));
                format!("round {}, {what} on {}: {why}", self.rounds, there.name)
            });
        }
        reader.disconnect()
    }

    /// Makes an action whose rule selects the messages.
    fn put_action(
        &mut self,
        programs: Programs<'_>,
        test_cluster: &TestCluster,
        directory: &Path,
    ) -> Result<()> {
        let node = &test_cluster.nodes[0];
        let mut acted = Client::connect(node.mqtt, "upgrade-acted")?;
        acted.subscribe("upgraded/#", 1, "cluster")?;
        self.acted = Some(acted);
        let file = directory.join("action.json");
        fs::write(&file, ACTION_FILE)?;
        let mut command = Command::new(programs.new);
        command.args(["ctl", "--url", &format!("http://{}", node.http), "actions", "put", ACTION, "--file"]);
        let done = command.arg(file).output()?;
        ensure!(done.status.success(), "ctl actions put: {}", String::from_utf8_lossy(&done.stderr));
        println!("              an action selects the messages from now on");
        Ok(())
    }

    /// Takes what the action has published.
    fn take_acted(&mut self, within: Duration) -> Result<()> {
        let Some(acted) = &mut self.acted else { return Ok(()) };
        while let Some(message) = acted.receive(within)? {
            let output: Value = serde_json::from_str(&message.payload)
                .with_context(|| format!("the action has published {}", message.payload))?;
            let text = output["text"].as_str().unwrap_or_default().to_owned();
            self.seen.insert(text, output["clientid"].as_str().map(str::to_owned));
        }
        Ok(())
    }

    /// Publishes until a rule sees who has published. The next round has all nodes of the new version.
    fn wait_for_publishers(&mut self, test_cluster: &TestCluster, results: &mut CheckResults) -> Result<()> {
        let node = &test_cluster.nodes[2];
        let mut client = Client::connect(node.mqtt, "upgrade-probe")?;
        self.new_rounds.push(self.rounds + 1);
        let begun = Instant::now();
        let mut number = 0;
        while begun.elapsed() < PATIENCE && !child::interrupted() {
            number += 1;
            let text = format!("probe {} {number}", self.rounds);
            client.publish("upgrade-probe/1", &text, 1, false)?;
            self.take_acted(Duration::from_millis(500))?;
            if self.seen.get(&text).is_some_and(|publisher| publisher.as_deref() == Some("upgrade-probe")) {
                break;
            }
        }
        timed("a rule sees who has published", begun, || (begun.elapsed() < PATIENCE).then_some(()), results)
    }

    /// Checks the action's messages. It gets all messages after its first ones, and their publishers after all nodes
    /// have the new version.
    fn judge_action(&mut self, test_cluster: &TestCluster, results: &mut CheckResults) -> Result<()> {
        self.take_acted(Duration::from_secs(3))?;
        let with_publisher = self.seen.values().flatten().count();
        println!(
            "  {} messages passed the action, {with_publisher} of them with their publisher",
            self.seen.len()
        );
        let round_of =
            |payload: &str| payload.split_once(' ').and_then(|(round, _)| round.parse::<usize>().ok());
        let first = self.seen.keys().filter_map(|payload| round_of(payload)).min();
        let first = first.context("the action has published nothing")?;
        println!("              the first of them are of round {first} of {}", self.rounds);
        let mut wrong = Vec::new();
        for round in first + 1..=self.rounds {
            for node in &test_cluster.nodes {
                let payload = format!("{round} {}", node.name);
                match self.seen.get(&payload) {
                    None => wrong.push(format!("{payload} is missing")),
                    Some(None) if self.new_rounds.contains(&round) => {
                        wrong.push(format!("{payload} has no publisher"));
                    }
                    Some(Some(found)) if *found != publisher(&node.name) => {
                        wrong.push(format!("{payload} is from {found}"));
                    }
                    Some(_) => {}
                }
            }
        }
        results.check(wrong.is_empty(), || format!("the action: {}", wrong.join(", ")));
        Ok(())
    }
}

fn publisher(node: &str) -> String {
    format!("upgrade-from-{node}")
}
