//! E3: publishers in Frankfurt, a subscriber in Hong Kong, and 50 Mbit/s between them: a load that fits, and twice
//! that.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

use super::cluster::{Cluster, Plan};
use super::generator::Generator;
use super::start;

const RATE: &str = "50mbit";
/// Payload size in bytes: with its overhead, `FITS` messages per second are 86 % of the line. The rest is for
/// messages queued in the first seconds, in which TCP was slow.
const PAYLOAD: &str = "4096";
const PUBLISHERS: u32 = 50;
/// Messages per second that fit: 1x.
const FITS: u32 = 1250;
/// Seconds until the load is steady, and seconds after it until queued messages have arrived.
const WARM_UP: u32 = 8;
const DRAIN: u32 = 3;
/// Maximum growth of a node's memory under load, in MiB: `cluster.buffer_max` and a quarter of it for QoS 0, and the
/// same again for the rest of the batches whose messages wait, as these lie in the memory that a worker filled in a
/// turn.
const MEMORY_MAX: u64 = 2 * (64 + 16);
/// Minimum ratio of deliveries at twice the load to those at the load that fits.
const RATIO_MIN: f64 = 0.95;

struct Run {
    /// Delivered messages per second, mean over the measured seconds.
    delivered: f64,
    retransmitted: u64,
    /// Peak memory in MiB of the publishers' node and of the subscriber's.
    memory: (u64, u64),
    /// Memory in MiB of the same nodes before the load.
    before: (u64, u64),
}

pub fn run(
    program: &Path,
    directory: &Path,
    seconds: u32,
    (passed, failed): (&mut usize, &mut Vec<String>),
) -> Result<()> {
    println!(
        "Two cores, Frankfurt and Hong Kong, 200 ms and {RATE} between them; {PUBLISHERS} publishers there, one subscriber here,"
    );
    println!(
        "{PAYLOAD} bytes, 1x = {FITS} messages/s; {seconds} s each. Memory is the most that was resident, which may be {MEMORY_MAX} MiB more than before.\n"
    );
    println!(
        "| QoS | delivered 1x /s | delivered 2x /s | 2x / 1x | frames sent again 1x, 2x | memory before, MiB | 1x | 2x | bound |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for qos in ["1", "0"] {
        match pair(program, directory, qos, seconds) {
            Ok(_) => *passed += 1,
            Err(error) => failed.push(format!("E3 QoS {qos}: {error:#}")),
        }
    }
    println!();
    Ok(())
}

fn pair(program: &Path, directory: &Path, qos: &str, seconds: u32) -> Result<()> {
    let once = load(program, directory, qos, (1, seconds))?;
    let twice = load(program, directory, qos, (2, seconds))?;
    let ratio = twice.delivered / once.delivered;
    let shown = |(near, far): (u64, u64)| format!("{near} + {far}");
    let bound = (twice.before.0 + MEMORY_MAX, twice.before.1 + MEMORY_MAX);
    println!(
        "| {qos} | {:.0} | {:.0} | {ratio:.3} | {}, {} | {} | {} | {} | {} |",
        once.delivered,
        twice.delivered,
        once.retransmitted,
        twice.retransmitted,
        shown(twice.before),
        shown(once.memory),
        shown(twice.memory),
        shown(bound)
    );
    ensure!(once.delivered > 0.0, "nothing was delivered");
    ensure!(once.retransmitted + twice.retransmitted == 0, "frames were sent again");
    ensure!(ratio >= RATIO_MIN, "delivered at 2x is {ratio:.3} of 1x, less than {RATIO_MIN}");
    ensure!(
        twice.memory.0 <= bound.0 && twice.memory.1 <= bound.1,
        "nodes took {} MiB, more than {}",
        shown(twice.memory),
        shown(bound)
    );
    Ok(())
}

fn load(program: &Path, directory: &Path, qos: &str, (times, seconds): (u32, u32)) -> Result<Run> {
    let lab = start()?;
    lab.set(("fra", "hkg"), "rate", RATE)?;
    let plan = Plan {
        cores: &["euc1", "ape1"],
        replicants: &[],
        level: "cluster",
        connack: "overlap",
        leaders: "spread",
        batch_sync: "auto",
    };
    let cluster = Cluster::start(&lab, program, directory, &plan)?;
    cluster.settle()?;
    let (near, far) = (lab.address("euc1")?.to_string(), lab.address("ape1")?.to_string());
    let before = (cluster.memory_peak("euc1")?, cluster.memory_peak("ape1")?);
    let lasting = WARM_UP + seconds;
    let listening = (lasting + DRAIN).to_string();
    let arguments =
        ["sub", "-h", &far, "-c", "1", "-t", "load/#", "-q", qos, "--threads", "1", "--duration", &listening];
    let subscriber = Generator::start(&lab, "ape1-clients", program, &arguments)?;
    // The subscription is in progress; messages published until it arrives are before the measured seconds.
    let interval = (PUBLISHERS * 1000 / (FITS * times)).to_string();
    let (count, lasting) = (PUBLISHERS.to_string(), lasting.to_string());
    let arguments = [
        "pub",
        "-h",
        &near,
        "-c",
        &count,
        "-i",
        "0",
        "-t",
        "load/%i",
        "-q",
        qos,
        "-s",
        PAYLOAD,
        "-I",
        &interval,
        "-F",
        "0",
        "--duration",
        &lasting,
    ];
    let publishers = Generator::start(&lab, "euc1-clients", program, &arguments)?;
    let longest = Duration::from_secs(u64::from(WARM_UP + seconds + DRAIN) + 60);
    let sent = publishers.report(longest)?;
    let received = subscriber.report(longest)?;
    for (what, report) in [("pub", &sent), ("sub", &received)] {
        std::fs::write(directory.join(format!("E3-{qos}-{times}x-{what}.json")), report.to_string())?;
    }
    Ok(Run {
        delivered: mean(&received, seconds)?,
        retransmitted: cluster.retransmitted("euc1")? + cluster.retransmitted("ape1")?,
        memory: (cluster.memory_peak("euc1")?, cluster.memory_peak("ape1")?),
        before,
    })
}

/// Messages per second, mean of all seconds of the steady load: retransmissions of TCP make single seconds uneven.
fn mean(report: &Value, seconds: u32) -> Result<f64> {
    let columns = report["timeline_columns"].as_array().context("no timeline")?;
    let column = columns.iter().position(|name| name == "received/s").context("no column received/s")?;
    // A row is of the second that ends with it.
    let during = f64::from(WARM_UP) + 0.5..f64::from(WARM_UP + seconds) + 0.5;
    let rows = report["timeline"].as_array().context("no timeline")?;
    let in_time = rows.iter().filter(|row| row[0].as_f64().is_some_and(|at| during.contains(&at)));
    let rates: Vec<f64> = in_time.filter_map(|row| row[column].as_f64()).collect();
    ensure!(!rates.is_empty(), "no seconds were measured");
    Ok(rates.iter().sum::<f64>() / rates.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_mean_covers_the_measured_seconds_only() {
        let report = json!({
            "timeline_columns": ["s", "received/s"],
            "timeline": [[1.0, 900.0], [8.02, 900.0], [9.01, 100.0], [10.0, 200.0], [11.0, 900.0]],
        });
        assert_eq!(mean(&report, 2).expect("two seconds"), 150.0);
        assert!(mean(&json!({ "timeline_columns": ["s"], "timeline": [] }), 2).is_err());
    }
}
