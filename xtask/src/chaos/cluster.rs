//! `cargo xtask chaos --cluster`: five nodes, clients on all of them, and one fault after the other.
//! `meridian bench ha` reports losses; this injects the faults, and measures the time until the cluster has recovered
//! from each. Some faults have a cluster of their own ([`ClusterSetup`]).

mod all_cores;
mod contention;
mod disks;
mod each;
mod full;
mod reconnects;
mod storm;
mod test_cluster;
pub mod upgrade;
mod views;

use super::Args;
use super::load::Load;
use super::target;
use crate::bench::child::{self, until};
use crate::cluster::client::Client;
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use test_cluster::{Plan, TestCluster};

/// A fault of one node, or of each in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Kill(TargetRole),
    /// SIGSTOP for this time.
    Stop(TargetRole, Duration),
    /// SIGTERM to each, one after the other.
    Roll,
    /// SIGKILL of all cores at the same moment.
    KillCores,
    /// A full disk.
    Fill(TargetRole),
    /// SIGKILL of all of many replicants at once, and a restart of all at once.
    JoinStorm,
    /// SIGKILL of each core in turn, of the first one with the loss of its disk.
    KillEach,
    /// [`Self::KillEach`], with messages of durability `memory`.
    KillInMemory,
    /// SIGKILL of two of five cores at once, one pair after the other.
    KillPairs,
    /// Kills and stops of several nodes, while clients contend for Client Identifiers.
    Contention,
    /// SIGKILL of a node with thousands of clients, which connect to other nodes at once.
    ReconnectStorm,
}

impl Fault {
    fn setup(self) -> ClusterSetup {
        match self {
            Self::Kill(_)
            | Self::Stop(..)
            | Self::Roll
            | Self::KillCores
            | Self::KillEach
            | Self::Contention
            | Self::ReconnectStorm => ClusterSetup::Five,
            Self::KillPairs => ClusterSetup::FiveCores,
            Self::KillInMemory => ClusterSetup::InMemory,
            Self::Fill(_) => ClusterSetup::SmallDisks,
            Self::JoinStorm => ClusterSetup::Twenty,
        }
    }
}

/// Cluster for a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ClusterSetup {
    Five,
    /// Five cores, with three replicas of each shard.
    FiveCores,
    /// The usual cluster, where messages are acknowledged when a majority of the replicas has them in memory.
    InMemory,
    /// The usual cluster, where each core has a small disk, and a log that is soon full.
    SmallDisks,
    Twenty,
}

const CLUSTER_SETUPS: [ClusterSetup; 5] = [
    ClusterSetup::Five,
    ClusterSetup::FiveCores,
    ClusterSetup::InMemory,
    ClusterSetup::SmallDisks,
    ClusterSetup::Twenty,
];

impl ClusterSetup {
    fn plan(self) -> Plan {
        let five = Plan { name: "five", cores: 3, replicants: 2, disk_mib: None, settings: &[] };
        match self {
            Self::Five => five,
            Self::FiveCores => Plan { name: "cores", cores: 5, replicants: 0, ..five },
            Self::InMemory => Plan {
                name: "memory",
                settings: &["durability.0.filter=#", "durability.0.class=memory"],
                ..five
            },
            Self::SmallDisks => Plan {
                name: "disks",
                disk_mib: Some(full::DISK_MIB),
                settings: &["storage.segment_size=1MiB", "storage.reserve=2MiB"],
                ..five
            },
            Self::Twenty => Plan { name: "twenty", replicants: 17, ..five },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TargetRole {
    Leader,
    OtherCore,
    Replicant,
}

/// Faults in their order, by the names of `--fault`.
const FAULTS: [(&str, Fault); 17] = [
    ("kill-core", Fault::Kill(TargetRole::OtherCore)),
    (SHORT, Fault::Kill(TargetRole::Leader)),
    ("kill-replicant", Fault::Kill(TargetRole::Replicant)),
    ("stall-core", Fault::Stop(TargetRole::OtherCore, SHORT_STOP)),
    ("stall-leader", Fault::Stop(TargetRole::Leader, SHORT_STOP)),
    ("stop-core", Fault::Stop(TargetRole::OtherCore, LONG_STOP)),
    ("stop-leader", Fault::Stop(TargetRole::Leader, LONG_STOP)),
    ("kill-cores", Fault::KillCores),
    ("roll", Fault::Roll),
    ("fill-core", Fault::Fill(TargetRole::OtherCore)),
    ("fill-leader", Fault::Fill(TargetRole::Leader)),
    ("join-storm", Fault::JoinStorm),
    (SHORT_EACH, Fault::KillEach),
    ("kill-pairs", Fault::KillPairs),
    ("kill-in-memory", Fault::KillInMemory),
    ("contention", Fault::Contention),
    ("reconnect-storm", Fault::ReconnectStorm),
];
/// Faults of `--short`.
const SHORT: &str = "kill-leader";
const SHORT_EACH: &str = "kill-each";

pub fn fault_names() -> [&'static str; FAULTS.len()] {
    FAULTS.map(|(name, _)| name)
}

/// Duration of a stop that is shorter than `cluster.silence_max`: the node is not declared dead.
const SHORT_STOP: Duration = Duration::from_secs(2);
const LONG_STOP: Duration = Duration::from_secs(10);
/// Time between the start of publishing and the fault, and between its end and the end of publishing.
const CALM: Duration = Duration::from_secs(1);
/// Maximum time of every wait.
const PATIENCE: Duration = Duration::from_secs(40);
/// Maximum time for a message to arrive, whatever the load of the machine.
const ARRIVAL: Duration = Duration::from_secs(20);
/// Maximum seconds of publishing; this program ends it earlier.
const PUBLISHING_S: u32 = 600;
/// Number of publishers, and of subscribers, of each load: one on each node.
const CLIENTS: usize = 5;

/// Clients of one kind.
struct Clients {
    name: &'static str,
    /// Session Expiry Interval in seconds.
    expiry: u32,
    load: Load,
}

/// Results of all checks.
#[derive(Default)]
pub struct CheckResults {
    pub passed: usize,
    pub failed: Vec<String>,
}

impl CheckResults {
    pub fn check(&mut self, is_so: bool, what: impl FnOnce() -> String) {
        if is_so {
            self.passed += 1;
        } else {
            let what = what();
            println!("  FAILED      {what}");
            self.failed.push(what);
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let program = match &args.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => {
            target::build(args.debug, true)?;
            target::profile_directory(args.debug).join("meridian")
        }
    };
    child::catch_signals();
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => root().join("target/chaos-cluster"),
    };
    let begun = Instant::now();
    let mut results = CheckResults::default();
    let is_wanted = |name: &str| match &args.fault[..] {
        [] => !args.short || name == SHORT || name == SHORT_EACH,
        some => some.iter().any(|wanted| wanted == name),
    };
    for setup in CLUSTER_SETUPS {
        let faults = FAULTS.into_iter().filter(|(name, fault)| fault.setup() == setup && is_wanted(name));
        let faults: Vec<_> = faults.collect();
        let names: Vec<&str> = faults.iter().map(|(name, _)| *name).collect();
        if faults.is_empty() {
            continue;
        }
        if setup == ClusterSetup::SmallDisks
            && let Err(error) = disks::enter_mount_namespace()
        {
            println!("skipped: {}: only root can give a core a disk of its own ({error})", names.join(", "));
            continue;
        }
        let directory = directory.join(setup.plan().name);
        run_faults(args, (&program, &directory), setup, &faults, &mut results)?;
    }
    println!("{:.1} s", begun.elapsed().as_secs_f64());
    for what in &results.failed {
        println!("failed: {what}");
    }
    println!("{} passed, {} failed", results.passed, results.failed.len());
    ensure!(results.failed.is_empty(), "see {}", directory.display());
    Ok(())
}

/// Injects one fault after the other into one cluster.
fn run_faults(
    args: &Args,
    (program, directory): (&Path, &Path),
    setup: ClusterSetup,
    faults: &[(&str, Fault)],
    results: &mut CheckResults,
) -> Result<()> {
    let plan = setup.plan();
    let begun = Instant::now();
    let mut test_cluster = TestCluster::start(program, directory, args.port, &plan)?;
    test_cluster.wait_until_whole()?;
    let (nodes, seconds) = (plan.cores + plan.replicants, begun.elapsed().as_secs_f64());
    println!("{nodes} nodes reach each other {seconds:.1} s after they were started at once");
    for fault in faults {
        let suffered = match fault.1 {
            Fault::JoinStorm => storm::apply_fault(&mut test_cluster, results),
            Fault::KillEach | Fault::KillPairs | Fault::KillInMemory => {
                each::apply_fault(args, (program, directory), &mut test_cluster, *fault, results)
            }
            Fault::Contention => contention::apply_fault(&mut test_cluster, results),
            Fault::ReconnectStorm => reconnects::apply_fault(&mut test_cluster, results),
            _ => apply_fault(args, (program, directory), &mut test_cluster, *fault, results),
        };
        if let Err(error) = suffered {
            results.check(false, || format!("{}: {error:#}", fault.0));
            // The next fault would not have its documented effect.
            break;
        }
    }
    Ok(())
}

/// Injects a fault while clients with durable sessions and clients with ephemeral sessions are connected. The output
/// of `bench ha` is in the directory.
fn apply_fault(
    args: &Args,
    (program, directory): (&Path, &Path),
    test_cluster: &mut TestCluster,
    (fault_name, fault): (&str, Fault),
    results: &mut CheckResults,
) -> Result<()> {
    let victim = match fault {
        Fault::Roll
        | Fault::KillCores
        | Fault::JoinStorm
        | Fault::KillEach
        | Fault::KillPairs
        | Fault::KillInMemory
        | Fault::Contention
        | Fault::ReconnectStorm => None,
        Fault::Kill(target_role) | Fault::Stop(target_role, _) | Fault::Fill(target_role) => {
            Some(pick(test_cluster, target_role)?)
        }
    };
    println!("{}", describe(test_cluster, fault, victim));
    let hosts: Vec<String> = test_cluster.nodes.iter().map(|node| node.mqtt.to_string()).collect();
    let mut clients = Vec::new();
    for (name, expiry) in [("lasting", 3600), ("ephemeral", 0)] {
        let mut command = Command::new(program);
        command.args(["bench", "ha", "--json", "-q", "mixed", "-h", &hosts.join(",")]);
        if expiry == 0 {
            command.arg("--stay");
        }
        command.args(["--prefix", &format!("chaos-{name}"), "--expiry", &expiry.to_string()]);
        let numbers = [("--publishers", CLIENTS as u32), ("--subscribers", CLIENTS as u32)];
        let rate = [("-R", args.rate / 2), ("-s", args.size), ("--window", args.window)];
        for (option, value) in numbers.into_iter().chain(rate).chain([("--duration", PUBLISHING_S)]) {
            command.args([option, &value.to_string()]);
        }
        clients.push(Clients { name, expiry, load: Load::of(command, false)? });
    }
    for clients in &mut clients {
        clients.load.wait_until_publishing(PATIENCE)?;
    }
    child::until(CALM, || None::<()>);
    let mut away = away(test_cluster, fault, victim);
    match (fault, victim) {
        (Fault::Kill(target_role), Some(victim)) => kill(test_cluster, target_role, victim, results)?,
        (Fault::Stop(target_role, time), Some(victim)) => {
            stop(test_cluster, (target_role, time), victim, results)?
        }
        (Fault::Fill(_), Some(victim)) => away.extend(full::apply_fault(test_cluster, victim, results)?),
        (Fault::KillCores, _) => all_cores::apply_fault(test_cluster, results)?,
        _ => roll(test_cluster, results)?,
    }
    child::until(CALM, || None::<()>);
    exchange(test_cluster, results)?;
    for clients in clients {
        let (name, expiry) = (clients.name, clients.expiry);
        let (verdict, _) = clients.load.finish(Duration::ZERO)?;
        std::fs::write(directory.join(format!("{fault_name}-{name}.json")), verdict.to_string())?;
        judge(fault, (name, expiry), &away, &verdict, results);
    }
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}

/// Nodes that are down for so long that others declare them dead.
fn away(test_cluster: &TestCluster, fault: Fault, victim: Option<usize>) -> Vec<usize> {
    let all = 0..test_cluster.nodes.len();
    match fault {
        Fault::Kill(_) => victim.into_iter().collect(),
        Fault::Stop(_, time) if time > SHORT_STOP => victim.into_iter().collect(),
        Fault::Stop(..) | Fault::Fill(_) => Vec::new(),
        Fault::KillCores => all.filter(|at| test_cluster.nodes[*at].is_core).collect(),
        Fault::Roll | Fault::JoinStorm => all.collect(),
        Fault::KillEach
        | Fault::KillPairs
        | Fault::KillInMemory
        | Fault::Contention
        | Fault::ReconnectStorm => Vec::new(),
    }
}

fn pick(test_cluster: &TestCluster, target_role: TargetRole) -> Result<usize> {
    let leader = test_cluster.leader()?;
    let is_it = |at: &usize| match target_role {
        TargetRole::Leader => *at == leader,
        TargetRole::OtherCore => *at != leader && test_cluster.nodes[*at].is_core,
        TargetRole::Replicant => !test_cluster.nodes[*at].is_core,
    };
    (0..test_cluster.nodes.len()).find(is_it).context("there is no such node")
}

fn describe(test_cluster: &TestCluster, fault: Fault, victim: Option<usize>) -> String {
    let name = victim.map_or("", |at| &test_cluster.nodes[at].name);
    let target_role = |target_role: TargetRole| match target_role {
        TargetRole::Leader => "the core that leads",
        TargetRole::OtherCore => "a core that does not lead",
        TargetRole::Replicant => "a replicant",
    };
    match fault {
        Fault::Kill(it) => format!("SIGKILL of {}, {name}", target_role(it)),
        Fault::Stop(it, time) => format!("SIGSTOP of {}, {name}, for {} s", target_role(it), time.as_secs()),
        Fault::Roll => "SIGTERM and a start of each node in turn".to_owned(),
        Fault::KillCores => "SIGKILL of all cores at once".to_owned(),
        Fault::Fill(it) => format!("no room on the disk of {}, {name}", target_role(it)),
        Fault::JoinStorm => "SIGKILL of all replicants at once, and a start".to_owned(),
        Fault::KillEach => "SIGKILL of each core in turn, the first one with its disk".to_owned(),
        Fault::KillInMemory => "SIGKILL of each core in turn, messages of durability memory".to_owned(),
        Fault::KillPairs => "SIGKILL of two of five cores at once, in turn".to_owned(),
        Fault::Contention => "kills and stops while clients contend for Client Identifiers".to_owned(),
        Fault::ReconnectStorm => "SIGKILL of a node whose clients connect again at once".to_owned(),
    }
}

/// Waits for `name` and records the time since `begun`.
fn timed<T>(
    name: &str,
    begun: Instant,
    is_so: impl FnMut() -> Option<T>,
    results: &mut CheckResults,
) -> Result<T> {
    let Some(answer) = until(PATIENCE, is_so) else {
        results.check(false, || format!("not in {} s: {name}", PATIENCE.as_secs()));
        bail!("not in {} s: {name}", PATIENCE.as_secs());
    };
    println!("  {:5.1} s     {name}", begun.elapsed().as_secs_f64());
    results.check(true, String::new);
    Ok(answer)
}

fn kill(
    test_cluster: &mut TestCluster,
    target_role: TargetRole,
    victim: usize,
    results: &mut CheckResults,
) -> Result<()> {
    test_cluster.nodes[victim].end(libc::SIGKILL)?;
    let begun = Instant::now();
    check_declared_dead(test_cluster, target_role, victim, begun, results)?;
    // A node that knows of the death has finished the changes for the clients that were connected there.
    let settled = || test_cluster.views(Some(victim)).know_the_same().then_some(());
    timed("the others know the same routes", begun, settled, results)?;
    let begun = Instant::now();
    test_cluster.start_again(victim)?;
    test_cluster.wait_until_whole()?;
    println!("  {:5.1} s     from its start until the cluster has recovered", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Waits until another core leads, if this one did, and until all others agree that it is dead.
fn check_declared_dead(
    test_cluster: &TestCluster,
    target_role: TargetRole,
    victim: usize,
    begun: Instant,
    results: &mut CheckResults,
) -> Result<()> {
    let name = &test_cluster.nodes[victim].name;
    if target_role == TargetRole::Leader {
        let led = || test_cluster.views(Some(victim)).leader().filter(|leader| leader != name);
        let leader = timed("another core leads, as the other two say", begun, led, results)?;
        println!("              it is {leader}");
    }
    let dead = || test_cluster.views(Some(victim)).agree(name, "dead").then_some(());
    timed("all others know it to be dead", begun, dead, results)
}

fn stop(
    test_cluster: &mut TestCluster,
    (target_role, time): (TargetRole, Duration),
    victim: usize,
    results: &mut CheckResults,
) -> Result<()> {
    let name = test_cluster.nodes[victim].name.clone();
    let begun = Instant::now();
    test_cluster.nodes[victim].signal(libc::SIGSTOP);
    let mut dies = false;
    let outcome = if time > SHORT_STOP {
        check_declared_dead(test_cluster, target_role, victim, begun, results)
    } else {
        // No node is queried meanwhile: on a slow machine a query takes longer than the fault.
        while begun.elapsed() < time && !child::interrupted() {
            dies |= test_cluster.views(Some(victim)).any_says(&name, "dead");
        }
        Ok(())
    };
    until(time.saturating_sub(begun.elapsed()), || None::<()>);
    test_cluster.nodes[victim].signal(libc::SIGCONT);
    outcome?;
    let begun = Instant::now();
    test_cluster.wait_until_whole()?;
    println!("  {:5.1} s     from SIGCONT until the cluster has recovered", begun.elapsed().as_secs_f64());
    results.check(!dies, || format!("{name} was declared dead after less than {} s", time.as_secs()));
    Ok(())
}

fn roll(test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    for at in 0..test_cluster.nodes.len() {
        let name = test_cluster.nodes[at].name.clone();
        let ended = test_cluster.nodes[at].end(libc::SIGTERM)?;
        let begun = Instant::now();
        test_cluster.start_again(at)?;
        test_cluster.wait_until_whole()?;
        println!(
            "  {:5.1} s     until {name} has ended, {:.1} s from its start until the cluster has \
                 recovered",
            ended.as_secs_f64(),
            begun.elapsed().as_secs_f64()
        );
        results.check(true, String::new);
    }
    Ok(())
}

/// Sends messages from each node to each, at each QoS.
fn exchange(test_cluster: &TestCluster, results: &mut CheckResults) -> Result<()> {
    let mut receivers = Vec::new();
    for node in &test_cluster.nodes {
        let mut client = Client::connect(node.mqtt, &format!("chaos-to-{}", node.name))?;
        client.subscribe("chaos-exchange/+", 2, "cluster")?;
        receivers.push((node, client));
    }
    let mut missing = Vec::new();
    for from in &test_cluster.nodes {
        let mut client = Client::connect(from.mqtt, &format!("chaos-from-{}", from.name))?;
        for qos in 0..=2 {
            let payload = format!("{} {qos}", from.name);
            client.publish(&format!("chaos-exchange/{}", from.name), &payload, qos, false)?;
            for (to, receiver) in &mut receivers {
                let came = receiver.receive(ARRIVAL)?;
                if came.is_none_or(|message| message.payload != payload) {
                    missing.push(format!("QoS {qos} from {} to {}", from.name, to.name));
                }
            }
        }
    }
    results.check(missing.is_empty(), || format!("did not arrive afterwards: {}", missing.join(", ")));
    Ok(())
}

/// Compares a verdict of `bench ha` with the guarantees.
fn judge(
    fault: Fault,
    (name, expiry): (&str, u32),
    away: &[usize],
    verdict: &Value,
    results: &mut CheckResults,
) {
    let number = |key: &str| verdict[key].as_u64().unwrap_or(0);
    let losses = verdict["losses"].as_array().cloned().unwrap_or_default();
    let place = |loss: &Value, key: &str| loss[key].as_u64().map_or(0, |number| number as usize % CLIENTS);
    let (mut promised, mut other) = (0, 0);
    for loss in &losses {
        let count = loss["lost"].as_u64().unwrap_or(0);
        // Ephemeral sessions on the unreachable node may lack messages of that time.
        if expiry == 0 && away.contains(&place(loss, "subscriber")) {
            other += count;
        } else {
            promised += count;
        }
    }
    println!(
        "  {name:<12}{} sent, {} acknowledged, {} delivered; not delivered: {promised} where it is promised, {other} to those who were on a node that was \
         away; twice: {} at QoS 1, {} at QoS 2; out of order: {}; {} sessions resumed, {} lost; longest silence {} ms",
        number("sent"),
        number("acknowledged"),
        number("delivered"),
        number("duplicated_qos1"),
        number("duplicated_qos2"),
        number("out_of_order"),
        number("sessions_resumed"),
        sessions_lost(verdict),
        verdict["longest_silence_ms"]
    );
    results.check(promised == 0, || {
        let which: Vec<String> = losses
            .iter()
            .map(|it| {
                format!(
                    "{} at QoS {} from {} to {}",
                    it["lost"], it["qos"], it["publisher"], it["subscriber"]
                )
            })
            .collect();
        format!("{fault:?}, {name}: {promised} acknowledged messages did not arrive: {}", which.join(", "))
    });
    results.check(number("acknowledged") > 0, || format!("{fault:?}, {name}: nothing was acknowledged"));
    let (clients, up) = (number("clients"), number("up_at_end"));
    results.check(clients == up, || {
        format!("{fault:?}, {name}: {up} of {clients} clients are connected at the end")
    });
    for wrong in
        ["unacknowledged", "phantom", "foreign", "corrupt", "changed", "unexpected", "protocol_errors"]
    {
        results.check(number(wrong) == 0, || format!("{fault:?}, {name}: {} {wrong}", number(wrong)));
    }
    results.check(number("out_of_order") == 0, || {
        format!("{fault:?}, {name}: {} messages out of order", number("out_of_order"))
    });
    let lost = sessions_lost(verdict);
    let twice = number("duplicated_qos2");
    results.check(expiry == 0 || twice == 0, || {
        format!("{fault:?}, {name}: {twice} messages of QoS 2 arrived twice")
    });
    results.check(expiry == 0 || lost == 0, || format!("{fault:?}, {name}: {lost} sessions were lost"));
}

fn sessions_lost(verdict: &Value) -> u64 {
    let of = |target_role: &str| verdict["sessions_lost"][target_role].as_u64().unwrap_or(0);
    of("publishers") + of("subscribers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn failures(fault: Fault, expiry: u32, away: &[usize], subscriber: u64) -> usize {
        let verdict = json!({
            "acknowledged": 5, "clients": 1, "up_at_end": 1, "losses": [{ "lost": 2, "publisher": 0, "subscriber": subscriber, "qos": 1 }],
        });
        let mut results = CheckResults::default();
        judge(fault, ("of a test", expiry), away, &verdict, &mut results);
        results.failed.len()
    }

    #[test]
    fn only_ephemeral_sessions_on_an_unreachable_node_may_miss_messages() {
        assert_eq!(failures(Fault::Kill(TargetRole::Leader), 0, &[2], 2), 0);
        assert_eq!(failures(Fault::Kill(TargetRole::Leader), 0, &[2], 1), 1);
        assert_eq!(failures(Fault::Kill(TargetRole::Leader), 3600, &[2], 2), 1, "others have the session");
        assert_eq!(failures(Fault::KillCores, 0, &[0, 1, 2], 3), 1, "the replicant was reachable");
        assert_eq!(
            failures(Fault::Fill(TargetRole::Leader), 0, &[], 2),
            1,
            "a node with a full disk is not declared dead"
        );
        assert_eq!(failures(Fault::Roll, 0, &[0, 1, 2, 3, 4], 4), 0);
    }
}
