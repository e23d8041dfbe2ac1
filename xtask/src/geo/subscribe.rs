//! E1: time from the first TCP connect to the last SUBACK, for clients in Hong Kong.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::cluster::{Cluster, Plan};
use super::generator::Generator;
use super::{lose, start};

pub struct Case {
    name: &'static str,
    shape: Shape,
    clients: u32,
    filter: &'static str,
    batch_sync: &'static str,
    /// Seconds measured in the article.
    article_s: f64,
    /// Promised maximum in seconds, if any.
    budget_s: Option<f64>,
}

#[derive(Clone, Copy)]
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
    case("E1.1", Shape::Spread, (1, PLAIN), "auto", 0.89, None),
    case("E1.2", Shape::Spread, (100, PLAIN), "auto", 1.706, None),
    case("E1.3", Shape::Spread, (1, WILD), "auto", 2.938, None),
    case("E1.4", Shape::Spread, (100, WILD), "off", 101.958, Some(0.55)),
    case("E1.5", Shape::Spread, (100, WILD), "auto", 1.673, Some(0.55)),
    case("E1.6", Shape::Replicants, (1, WILD), "auto", 0.696, None),
    case("E1.7", Shape::Replicants, (100, WILD), "auto", 1.091, None),
    // The benefit of batches: without them there is no budget.
    case("E1.8", Shape::Replicants, (1000, WILD), "off", 4.329, None),
    case("E1.9", Shape::Replicants, (1000, WILD), "auto", 2.585, Some(0.23)),
];

const fn case(
    name: &'static str,
    shape: Shape,
    (clients, filter): (u32, &'static str),
    batch_sync: &'static str,
    article_s: f64,
    budget_s: Option<f64>,
) -> Case {
    Case { name, shape, clients, filter, batch_sync, article_s, budget_s }
}

/// Seconds of each run, without losses and with them: all clients must be connected by then.
const RUN: &str = "3";
const LOSSY_RUN: &str = "6";
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
    println!("time is this machine's share of the other rows.");
    if !options.losses.is_empty() {
        println!(
            "With losses, only runs in which SUBACK waits for another place. `lost` is the number of lost packets in all rounds and between them."
        );
    }
    println!();
    let of_losses = |cell: fn(&f64) -> String| options.losses.iter().map(cell).collect::<String>();
    println!(
        "| run | clients | CONNACK | SUBACK | batch_sync | CONNECT p50 / p99 | SUBSCRIBE p50 / p99 | all |{} article | budget | start-up |",
        of_losses(|loss| format!(" {loss} %: SUBSCRIBE p50 / p99 | all | lost |"))
    );
    println!(
        "| --- | ---: | --- | --- | --- | ---: | ---: | ---: |{} ---: | ---: | ---: |",
        of_losses(|_| " ---: | ---: | ---: |".to_owned())
    );
    let kinds = || options.levels.iter().flat_map(|level| options.connacks.iter().map(move |it| (it, level)));
    for case in cases {
        for (connack, level) in kinds() {
            match measure(case, (connack, level), options, (program, directory)) {
                Ok(row) => {
                    println!("{row}");
                    *passed += 1;
                }
                Err(error) => failed.push(format!("{} {connack} {level}: {error:#}", case.name)),
            }
        }
    }
    println!();
    Ok(())
}

fn measure(
    case: &Case,
    (connack, level): (&str, &str),
    options: &SubscribeOptions,
    (program, directory): (&Path, &Path),
) -> Result<String> {
    let lab = start()?;
    let (cores, replicants): (&[&str], &[&str]) = match case.shape {
        Shape::Spread => (&["euc1", "ape1", "afs1"], &[]),
        Shape::Replicants => (&["aps1", "aps2", "aps3"], &["euc1", "ape1", "afs1"]),
    };
    let plan = Plan { cores, replicants, level, connack, batch_sync: case.batch_sync };
    let cluster = Cluster::start(&lab, program, directory, &plan)?;
    let file = |loss: f64| directory.join(format!("{}-{connack}-{level}-{loss}.json", case.name));
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
    let promised = case.budget_s.filter(|_| level == "core");
    let budget = promised.map_or("-".into(), |budget| match whole.middle_s <= budget {
        true => ms(budget),
        false => format!("{} (over)", ms(budget)),
    });
    Ok(format!(
        "| {} | {} | {connack} | {level} | {} | {} | {} | {} |{lossy} {} | {budget} | {} |",
        case.name,
        case.clients,
        case.batch_sync,
        whole.connack,
        whole.suback,
        whole.all,
        ms(case.article_s),
        ms(cluster.start_up.as_secs_f64()),
    ))
}

impl Shape {
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
    let host = lab.address("ape1")?.to_string();
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
