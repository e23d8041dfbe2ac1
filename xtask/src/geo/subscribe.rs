//! E1: from the first TCP connect to the last SUBACK, of clients in Hong Kong.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

use super::cluster::{Cluster, Plan};
use super::generator::Generator;
use super::start;

pub struct Case {
    name: &'static str,
    shape: Shape,
    clients: u32,
    filter: &'static str,
    batch_sync: &'static str,
    /// Seconds that the article measured.
    article_s: f64,
    /// Seconds that are promised, where something is.
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

/// Those that the article gives, in its order.
const CASES: [Case; 9] = [
    case("E1.1", Shape::Spread, (1, PLAIN), "auto", 0.89, None),
    case("E1.2", Shape::Spread, (100, PLAIN), "auto", 1.706, None),
    case("E1.3", Shape::Spread, (1, WILD), "auto", 2.938, None),
    case("E1.4", Shape::Spread, (100, WILD), "off", 101.958, Some(0.55)),
    case("E1.5", Shape::Spread, (100, WILD), "auto", 1.673, Some(0.55)),
    case("E1.6", Shape::Replicants, (1, WILD), "auto", 0.696, None),
    case("E1.7", Shape::Replicants, (100, WILD), "auto", 1.091, None),
    // What batches are good for: without them there is no budget.
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

/// Seconds of each run: all clients are there by then, or something is wrong.
const RUN: &str = "6";

/// The cases that are named, or all when nothing is.
pub fn selected(only: &[String]) -> Vec<&'static Case> {
    CASES.iter().filter(|case| only.is_empty() || only.iter().any(|name| name == case.name)).collect()
}

pub fn run(
    cases: &[&Case],
    (levels, is_agreed): (&[String], bool),
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
        "to the last SUBACK. CONNECT asks nobody else: ownership of clients across nodes is not there yet."
    );
    println!(
        "SUBACK `local` waits for no other node: what it takes is this machine's share of the other rows.\n"
    );
    println!(
        "| run | clients | SUBACK | batch_sync | CONNECT p50 / p99 | SUBSCRIBE p50 / p99 | all | article | budget | start-up |"
    );
    println!("| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for case in cases {
        for level in levels {
            match measure(case, level, is_agreed, (program, directory)) {
                Ok(row) => {
                    println!("{row}");
                    *passed += 1;
                }
                Err(error) => failed.push(format!("{} {level}: {error:#}", case.name)),
            }
        }
    }
    println!();
    Ok(())
}

fn measure(
    case: &Case,
    level: &str,
    is_agreed: bool,
    (program, directory): (&Path, &Path),
) -> Result<String> {
    let lab = start()?;
    let (cores, replicants): (&[&str], &[&str]) = match case.shape {
        Shape::Spread => (&["euc1", "ape1", "afs1"], &[]),
        Shape::Replicants => (&["aps1", "aps2", "aps3"], &["euc1", "ape1", "afs1"]),
    };
    let plan = Plan { cores, replicants, level, batch_sync: case.batch_sync, is_agreed };
    let cluster = Cluster::start(&lab, program, directory, &plan)?;
    cluster.settle()?;
    let (host, count) = (lab.address("ape1")?.to_string(), case.clients.to_string());
    let arguments =
        ["sub", "-h", &host, "-c", &count, "-i", "0", "-t", case.filter, "-q", "1", "--duration", RUN];
    let generator = Generator::start(&lab, "ape1-clients", program, &arguments)?;
    let report = generator.report(Duration::from_secs(60))?;
    std::fs::write(directory.join(format!("{}-{level}.json", case.name)), report.to_string())?;
    let subscribed = report["suback_us"]["count"].as_u64();
    ensure!(subscribed == Some(u64::from(case.clients)), "of {count} clients {subscribed:?} subscribed");
    let all = report["ready_s"].as_f64().context("no ready_s")?;
    let promised = case.budget_s.filter(|_| level == "core");
    let budget = promised.map_or("-".into(), |budget| match all <= budget {
        true => ms(budget),
        false => format!("{} (over)", ms(budget)),
    });
    Ok(format!(
        "| {} | {count} | {level} | {} | {} | {} | {} | {} | {budget} | {} |",
        case.name,
        case.batch_sync,
        spread(&report["connack_us"])?,
        spread(&report["suback_us"])?,
        ms(all),
        ms(case.article_s),
        ms(cluster.start_up.as_secs_f64()),
    ))
}

fn spread(of: &Value) -> Result<String> {
    let at = |name: &str| of[name].as_f64().with_context(|| format!("no {name} in {of}"));
    Ok(format!("{:.0} / {:.0}", at("p50")? / 1000.0, at("p99")? / 1000.0))
}

fn ms(seconds: f64) -> String {
    format!("{:.0}", seconds * 1000.0)
}
