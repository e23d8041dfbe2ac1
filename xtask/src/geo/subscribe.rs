//! E1: time from the first TCP connect to the last SUBACK, for clients in Hong Kong.

use anyhow::{Context, Result, ensure};
use lab::Lab;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, Plan, region};
use super::generator::Generator;
use super::{lose, start};
use crate::bench::child::interrupted;

pub struct Case {
    name: &'static str,
    shape: Shape,
    clients: u32,
    filter: &'static str,
    batch_sync: &'static str,
    /// Seconds measured in the article.
    article_s: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Cores in Frankfurt, Hong Kong and Cape Town.
    Spread,
    /// Three cores in Mumbai, replicants in Frankfurt, Hong Kong and Cape Town.
    Replicants,
}

const PLAIN: &str = "t/mqttx/%i";
const WILD: &str = "t/mqttx/+/%i/sub/+/#";

/// Cases of the article, in its order.
const CASES: [Case; 9] = [
    case("E1.1", Shape::Spread, (1, PLAIN), "auto", 0.89),
    case("E1.2", Shape::Spread, (100, PLAIN), "auto", 1.706),
    case("E1.3", Shape::Spread, (1, WILD), "auto", 2.938),
    case("E1.4", Shape::Spread, (100, WILD), "off", 101.958),
    case("E1.5", Shape::Spread, (100, WILD), "auto", 1.673),
    case("E1.6", Shape::Replicants, (1, WILD), "auto", 0.696),
    case("E1.7", Shape::Replicants, (100, WILD), "auto", 1.091),
    case("E1.8", Shape::Replicants, (1000, WILD), "off", 4.329),
    case("E1.9", Shape::Replicants, (1000, WILD), "auto", 2.585),
];

const fn case(
    name: &'static str,
    shape: Shape,
    (clients, filter): (u32, &'static str),
    batch_sync: &'static str,
    article_s: f64,
) -> Case {
    Case { name, shape, clients, filter, batch_sync, article_s }
}

/// Seconds of each run, without losses and with them: all clients must be connected by then.
const RUN: &str = "3";
const LOSSY_RUN: &str = "6";
/// Maximum time until all leaders are near the clients.
const LEADERS_MAX: Duration = Duration::from_secs(300);
/// Clients that connect so that the leaders follow them.
const FOLLOWED: &str = "1000";
/// Maximum time for which they stay connected, in seconds. The measurement ends them earlier.
const FOLLOWED_S: &str = "900";
/// Host of the node that the clients connect to.
const HOME: &str = "ape1";
/// Share of a time that may come on top of it.
const TOLERANCE: f64 = 1.1;
/// Maximum time until no node knows a route of disconnected clients.
const FORGOTTEN_MAX: Duration = Duration::from_secs(30);

/// The named cases, or all when none is named.
pub fn selected(only: &[String]) -> Vec<&'static Case> {
    CASES.iter().filter(|case| only.is_empty() || only.iter().any(|name| name == case.name)).collect()
}

/// Options for each case.
pub struct SubscribeOptions<'a> {
    /// Values of `routing.suback`, each in a separate cluster.
    pub levels: &'a [String],
    /// Values of `cluster.connack`, each in a separate cluster.
    pub connacks: &'a [String],
    /// Values of `cluster.leaders` where that makes a difference, each in a separate cluster.
    pub leaders: &'a [String],
    /// Percentages of lost packets between places, in addition to none.
    pub losses: &'a [f64],
    pub rounds: u32,
}

pub fn run(
    cases: &[&Case],
    options: &SubscribeOptions,
    (program, directory): (&Path, &Path),
    (passed, failed): (&mut usize, &mut Vec<String>),
) -> Result<()> {
    if cases.is_empty() {
        return Ok(());
    }
    println!(
        "Clients in Hong Kong connect at once and subscribe. Milliseconds; `all` is from the first TCP connect"
    );
    println!(
        "to the last SUBACK: median (lowest-highest) of {} rounds in one cluster; the other times are of the median round. CONNECT",
        options.rounds
    );
    println!(
        "asks the leader of the shard of its Client Identifier, which asks other replicas; CONNACK `overlap` does not wait for that. SUBACK `local` waits for no other node: its"
    );
    println!(
        "time is the trip of the Claim and this machine's share of the other rows. `alone` is the median of the same clients"
    );
    println!(
        "with one node in Hong Kong that belongs to no cluster. `budget` is for SUBACK `core`: that time and the round trips that"
    );
    println!(
        "are needed ({:.0} % more is allowed). In Mumbai that is one, or two if CONNACK waits; on three continents it is the slowest",
        (TOLERANCE - 1.0) * 100.0
    );
    println!("commit of a Claim, from Hong Kong to the leader and from there to the nearest other core.");
    if !options.losses.is_empty() {
        println!(
            "With losses, only runs in which SUBACK waits for another place. `lost` is the number of lost packets in all rounds and between them."
        );
    }
    println!();
    let of_losses = |cell: fn(&f64) -> String| options.losses.iter().map(cell).collect::<String>();
    println!(
        "| run | clients | leaders | CONNACK | SUBACK | batch_sync | CONNECT p50 / p99 | SUBSCRIBE p50 / p99 | all |{} alone | budget | article | start-up |",
        of_losses(|loss| format!(" {loss} %: SUBSCRIBE p50 / p99 | all | lost |"))
    );
    println!(
        "| --- | ---: | --- | --- | --- | --- | ---: | ---: | ---: |{} ---: | ---: | ---: | ---: |",
        of_losses(|_| " ---: | ---: | ---: |".to_owned())
    );
    for case in cases {
        let alone = match measure_alone(case, options, (program, directory)) {
            Ok(alone) => alone,
            Err(error) => {
                failed.push(format!("{} alone: {error:#}", case.name));
                continue;
            }
        };
        for kind in case.kinds(options) {
            match measure(case, &kind, alone, options, (program, directory)) {
                Ok(row) => {
                    println!("{row}");
                    *passed += 1;
                }
                Err(error) => failed.push(format!("{} {kind:?}: {error:#}", case.name)),
            }
        }
    }
    println!();
    Ok(())
}

/// Settings of one cluster.
#[derive(Debug)]
struct Kind<'a> {
    leaders: &'a str,
    connack: &'a str,
    level: &'a str,
}

impl Case {
    fn kinds<'a>(&self, options: &SubscribeOptions<'a>) -> Vec<Kind<'a>> {
        // All cores of the other shape are in one region.
        let leaders: Vec<&str> = match self.shape {
            Shape::Spread => options.leaders.iter().map(String::as_str).collect(),
            Shape::Replicants => vec!["spread"],
        };
        let (levels, connacks) = (options.levels, options.connacks);
        let of_leaders = |leaders: &'a str| {
            levels
                .iter()
                .flat_map(move |level| connacks.iter().map(move |it| Kind { leaders, connack: it, level }))
        };
        leaders.into_iter().flat_map(of_leaders).collect()
    }
}

/// Returns the median time in seconds with one node that belongs to no cluster.
fn measure_alone(
    case: &Case,
    options: &SubscribeOptions,
    (program, directory): (&Path, &Path),
) -> Result<f64> {
    let lab = start()?;
    let node = Cluster::start_alone(&lab, program, directory, HOME)?;
    let file = directory.join(format!("{}-alone.json", case.name));
    Ok(rounds(case, &node, (program, &file), RUN, options.rounds)?.middle_s)
}

fn measure(
    case: &Case,
    kind: &Kind,
    alone_s: f64,
    options: &SubscribeOptions,
    (program, directory): (&Path, &Path),
) -> Result<String> {
    let Kind { leaders, connack, level } = *kind;
    let lab = start()?;
    let (cores, replicants) = case.shape.hosts();
    let setting = match leaders {
        "region" => format!("region:{}", region(HOME)),
        other => other.to_owned(),
    };
    let plan = Plan { cores, replicants, level, connack, batch_sync: case.batch_sync, leaders: &setting };
    let cluster = Cluster::start(&lab, program, directory, &plan)?;
    // They stay connected: without clients the leaders are spread again.
    let _followed = match leaders {
        "follow" => Some(connect_followed(&cluster, program)?),
        _ => None,
    };
    if leaders != "spread" {
        await_leaders(&cluster)?;
    }
    let file = |loss: f64| directory.join(format!("{}-{leaders}-{connack}-{level}-{loss}.json", case.name));
    let whole = rounds(case, &cluster, (program, &file(0.0)), RUN, options.rounds)?;
    let mut lossy = String::new();
    for loss in options.losses {
        if !case.shape.waits_elsewhere(level) {
            lossy += " - | - | - |";
            continue;
        }
        lose(&lab, *loss)?;
        let before = lab.counters()?.lost;
        let found = rounds(case, &cluster, (program, &file(*loss)), LOSSY_RUN, options.rounds)
            .with_context(|| format!("with {loss} % lost"))?;
        let lost = lab.counters()?.lost - before;
        write!(lossy, " {} | {} | {lost} |", found.suback, found.all)?;
    }
    let budget = match level {
        "core" => {
            let budget_s = (alone_s + case.shape.trips_s(&lab, kind)?) * TOLERANCE;
            let over = if whole.middle_s > budget_s { " (over)" } else { "" };
            format!("{}{over}", ms(budget_s))
        }
        _ => "-".to_owned(),
    };
    Ok(format!(
        "| {} | {} | {leaders} | {connack} | {level} | {} | {} | {} | {} |{lossy} {} | {budget} | {} | {} |",
        case.name,
        case.clients,
        case.batch_sync,
        whole.connack,
        whole.suback,
        whole.all,
        ms(alone_s),
        ms(case.article_s),
        ms(cluster.start_up.as_secs_f64()),
    ))
}

/// Connects clients in Hong Kong, which leaders follow.
fn connect_followed(cluster: &Cluster, program: &Path) -> Result<Generator> {
    let host = cluster.lab().address(HOME)?.to_string();
    let arguments = ["conn", "-h", &host, "-c", FOLLOWED, "-i", "0", "--duration", FOLLOWED_S];
    Generator::start(cluster.lab(), "ape1-clients", program, &arguments)
}

/// Waits until the core in Hong Kong leads all shards.
fn await_leaders(cluster: &Cluster) -> Result<()> {
    let deadline = Instant::now() + LEADERS_MAX;
    while !cluster.leads_all(HOME)? {
        ensure!(!interrupted(), "interrupted");
        ensure!(
            Instant::now() < deadline,
            "{HOME} does not lead all shards after {} s",
            LEADERS_MAX.as_secs()
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

impl Shape {
    /// Hosts of the cores, and of the replicants.
    fn hosts(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Spread => (&["euc1", "ape1", "afs1"], &[]),
            Self::Replicants => (&["aps1", "aps2", "aps3"], &["euc1", "ape1", "afs1"]),
        }
    }

    /// Seconds of the round trips without which no client is subscribed.
    fn trips_s(self, lab: &Lab, kind: &Kind) -> Result<f64> {
        let topology = lab.topology();
        let trip = |one: &str, other: &str| {
            Ok::<_, anyhow::Error>(
                topology.round_trip(topology.host(one)?, topology.host(other)?).as_secs_f64(),
            )
        };
        let (cores, _) = self.hosts();
        let mut slowest: f64 = 0.0;
        for leader in cores.iter().filter(|core| kind.leaders == "spread" || **core == HOME) {
            let to_leader = if *leader == HOME { 0.0 } else { trip(HOME, leader)? };
            let others: Result<Vec<f64>> =
                cores.iter().filter(|core| *core != leader).map(|core| trip(leader, core)).collect();
            let nearest = others?.into_iter().fold(f64::INFINITY, f64::min);
            slowest = slowest.max(to_leader + nearest);
        }
        let subscription = match self {
            Self::Replicants if kind.connack == "claimed" => trip(HOME, cores[0])?,
            _ => 0.0,
        };
        Ok(slowest + subscription)
    }

    /// Returns whether SUBACK of a client in Hong Kong waits for a node elsewhere: its own is a core, or has one in
    /// Mumbai.
    fn waits_elsewhere(self, level: &str) -> bool {
        match self {
            Self::Spread => level == "cluster",
            Self::Replicants => level != "local",
        }
    }
}

/// Times of several rounds.
struct Rounds {
    /// Times of the round with the median of `all`.
    connack: String,
    suback: String,
    /// Median, minimum and maximum.
    all: String,
    middle_s: f64,
}

/// Connects the clients repeatedly, each time when no node knows the previous ones any more.
fn rounds(
    case: &Case,
    cluster: &Cluster,
    (program, file): (&Path, &Path),
    seconds: &str,
    count: u32,
) -> Result<Rounds> {
    let (lab, clients) = (cluster.lab(), case.clients.to_string());
    let host = lab.address(HOME)?.to_string();
    let arguments =
        ["sub", "-h", &host, "-c", &clients, "-i", "0", "-t", case.filter, "-q", "1", "--duration", seconds];
    let mut rounds = Vec::new();
    for _ in 0..count {
        cluster.wait_until_forgotten(FORGOTTEN_MAX)?;
        cluster.settle()?;
        let generator = Generator::start(lab, "ape1-clients", program, &arguments)?;
        rounds.push(generator.report(Duration::from_secs(60))?);
        std::fs::write(file, Value::from(rounds.clone()).to_string())?;
    }
    let all = |report: &Value| {
        let subscribed = report["suback_us"]["count"].as_u64();
        let is_complete = subscribed == Some(u64::from(case.clients));
        ensure!(is_complete, "of {clients} clients {subscribed:?} subscribed in {seconds} s");
        report["ready_s"].as_f64().context("no ready_s")
    };
    let mut rounds: Vec<(f64, &Value)> =
        rounds.iter().map(|report| Ok((all(report)?, report))).collect::<Result<_>>()?;
    rounds.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (middle_s, report) = *rounds.get(rounds.len() / 2).context("no round")?;
    let all = match &rounds[..] {
        [(least, _), .., (most, _)] => format!("{} ({}-{})", ms(middle_s), ms(*least), ms(*most)),
        _ => ms(middle_s),
    };
    let (connack, suback) = (spread(&report["connack_us"])?, spread(&report["suback_us"])?);
    Ok(Rounds { connack, suback, all, middle_s })
}

fn spread(of: &Value) -> Result<String> {
    let at = |name: &str| of[name].as_f64().with_context(|| format!("no {name} in {of}"));
    Ok(format!("{:.0} / {:.0}", at("p50")? / 1000.0, at("p99")? / 1000.0))
}

fn ms(seconds: f64) -> String {
    format!("{:.0}", seconds * 1000.0)
}
