//! `cargo xtask chaos --single`: clients that survive a broker, and a broker that is killed and restarted at random
//! moments. `meridian bench ha` reports losses; this kills, restarts, and measures the recovery. For `--cluster` see
//! [`cluster`], for `--upgrade` see [`upgrade`].

mod cluster;
mod load;
mod probe;
mod schedule;
pub mod target;
mod upgrade;

use crate::bench::broker::{Directory, free_address};
use crate::bench::child;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use load::Load;
use schedule::Schedule;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use target::Target;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub struct Args {
    /// Test one broker on this machine
    #[arg(long, group = "what")]
    single: bool,
    /// Test three cores and two replicants on this machine, with one fault after the other: kills, stops, all cores
    /// at once, a restart of each in turn, full disks (as root), many nodes that start at once, and many clients that
    /// connect again at once. Of the options below it uses --short, --fault, --node-kills, --program, --debug, --port,
    /// --seed, --dir, --rate, --size and --window
    #[arg(long, group = "what")]
    cluster: bool,
    /// Test only the loss of the leading core, and of each core when sessions have replicas, with --cluster
    #[arg(long, requires = "cluster")]
    short: bool,
    /// Inject only these faults, with --cluster (may be given several times)
    #[arg(long, requires = "cluster", conflicts_with = "short", value_name = "NAME", value_parser = cluster::fault_names())]
    fault: Vec<String>,
    /// Number of nodes that `kill-each` and `kill-pairs` kill, at least: any nodes and any two cores, in random order,
    /// with --cluster (default: each core once, and four pairs)
    #[arg(long, requires = "cluster", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    node_kills: Option<u32>,
    /// Replace the nodes of an older version by this one, one after the other, and back where that is allowed: a node
    /// alone, and three cores and two replicants with clients. Of the options below it uses --program, --debug, --port,
    /// --dir, --rate, --size and --window
    #[arg(long, group = "what")]
    upgrade: bool,
    /// Program of the older version, with --upgrade
    #[arg(long, value_name = "FILE", requires = "upgrade")]
    old: Option<PathBuf>,
    /// Commit of the older version, with --upgrade. It is built in target/upgrade and kept there (default: the last
    /// tag, or without one the commit in xtask/src/chaos/upgrade_from)
    #[arg(long, value_name = "COMMIT", requires = "upgrade", conflicts_with = "old")]
    old_commit: Option<String>,
    /// Skip the test when the older version would have to be built, with --upgrade
    #[arg(long, requires = "upgrade")]
    no_build: bool,
    /// Program to test, with --cluster and --upgrade (default: the one that is built for this)
    #[arg(long, value_name = "FILE", conflicts_with = "single")]
    program: Option<PathBuf>,
    /// First of two ports of each node, with --cluster and --upgrade, on 127.0.0.1 and on; nodes connect to each other
    /// 6,000 above it
    #[arg(long, default_value_t = 22883, value_parser = clap::value_parser!(u16).range(1..=59_000))]
    port: u16,
    /// Number of kills of the broker
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Seconds of publishing (default: two for each kill)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=864_000))]
    seconds: Option<u32>,
    /// Signal: KILL gives the broker no chance; TERM asks it to stop, and it has 30 s to do so
    #[arg(long, value_enum, default_value_t = Signal::Kill)]
    signal: Signal,
    /// Percentage of restarts that are killed again before the broker has answered any client
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=90))]
    early: u32,
    /// Maximum time for which the broker stays down, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=600_000))]
    away: u64,
    /// Seed of another run, to repeat its moments
    #[arg(long)]
    seed: Option<u64>,
    /// Broker to kill
    #[arg(long, value_enum, default_value_t = Broker::Meridian, conflicts_with = "start")]
    broker: Broker,
    /// Any other broker: a program and its arguments, without a shell. {port} is the port to listen on at 127.0.0.1,
    /// {dir} a directory that stays over restarts, {config} the file made from --config
    #[arg(long)]
    start: Option<String>,
    /// A configuration file for --start, in which {port} and {dir} are replaced
    #[arg(long, requires = "start")]
    config: Option<PathBuf>,
    /// Directory, which is then not removed (default: a temporary one)
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long, default_value = "mixed", value_parser = ["1", "2", "mixed"])]
    qos: String,
    #[arg(long, default_value_t = 10)]
    publishers: u32,
    #[arg(long, default_value_t = 2)]
    subscribers: u32,
    /// Messages per second; 0: as many as the broker accepts
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Payload size in bytes
    #[arg(long, default_value_t = 256)]
    size: u32,
    /// Messages in flight of a publisher
    #[arg(long, default_value_t = 32)]
    window: u32,
    /// MQTT version: 4 (3.1.1) or 5
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(4..=5))]
    mqtt: u8,
    /// Maximum pause of a client before it reconnects, in milliseconds. Short, so that clients connect while the
    /// broker starts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    backoff_max: u32,
    /// Maximum seconds to wait for missing messages at the end
    #[arg(long, default_value_t = 60)]
    drain: u32,
    /// Use binaries of the dev profile, which build faster
    #[arg(long)]
    debug: bool,
    /// Print the result as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
pub enum Signal {
    Kill,
    Term,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
enum Broker {
    Meridian,
    /// Persistent mosquitto, which saves as often as it can
    Mosquitto,
    /// Mosquitto without persistence
    MosquittoMemory,
}

/// Results of the kills.
#[derive(Default)]
struct Record {
    /// Time from each restart to its first CONNACK.
    recoveries: Vec<Duration>,
    /// Time from each SIGTERM to the end of the process.
    stops: Vec<Duration>,
    kills: u32,
    /// Number of kills before the broker had answered.
    early: u32,
    /// Reason why the kills ended.
    failed: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.cluster {
        return cluster::run(args);
    }
    if args.upgrade {
        return upgrade::run(args);
    }
    let seconds = args.seconds.unwrap_or(args.kills * 2);
    let seed = args.seed.unwrap_or_else(schedule::fresh_seed);
    target::build(args.debug, args.start.is_none() && args.broker == Broker::Meridian)?;
    child::catch_signals();
    let temporary = if args.dir.is_none() { Some(Directory::new()?) } else { None };
    let directory = match (&args.dir, &temporary) {
        (Some(path), _) => path.clone(),
        (None, Some(directory)) => directory.join(""),
        (None, None) => bail!("no directory"),
    };
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let address = free_address()?;
    let mut target = Target::new(args, &directory, address)?;
    eprintln!("{}, seed {seed}", target.name());
    target.start()?;
    probe::wait_for_connack(address, &mut target).context("the broker never answered")?;
    let mut load = Load::start(args, seconds, address)?;
    load.wait_until_publishing(Duration::from_secs(60))?;
    let mut record = Record::default();
    if let Err(error) =
        inject_faults(args, Schedule::new(seed, args, seconds), &mut target, &mut load, &mut record)
    {
        eprintln!("{error:#}");
        record.failed = Some(format!("{error:#}"));
    }
    // The rest of a run is useless when its broker is gone.
    let longest = match record.failed {
        Some(_) => Duration::ZERO,
        None => Duration::from_secs(u64::from(seconds + args.drain) + 120),
    };
    let (verdict, code) = load.finish(longest)?;
    drop(target);
    print(args, seed, &record, &verdict);
    if !args.json {
        let (passed, failed) = tally(&record, &verdict);
        println!("{passed} passed, {failed} failed");
    }
    if let Some(failed) = record.failed {
        bail!("{failed}");
    }
    match code {
        0 => Ok(()),
        1 => bail!("bench ha found violations (repeat the moments with --seed {seed})"),
        _ => bail!("bench ha could not start: {}", verdict["error"]),
    }
}

/// Kills the broker at each moment and restarts it.
fn inject_faults(
    args: &Args,
    mut schedule: Schedule,
    target: &mut Target,
    load: &mut Load,
    record: &mut Record,
) -> Result<()> {
    let begin = Instant::now();
    while record.kills < args.kills {
        let moment = begin + schedule.next_moment();
        let left = moment.saturating_duration_since(Instant::now());
        if child::until(left, || if load.ended() { Some(()) } else { target.ended().map(|_| ()) }).is_some() {
            ensure!(!load.ended(), "bench ha ended before all kills were done");
            bail!("the broker ended by itself; its log ends with\n{}", target.log_tail());
        }
        ensure!(!child::interrupted(), "interrupted");
        record.stops.extend(target.stop(args.signal)?);
        record.kills += 1;
        let at = begin.elapsed();
        let away = schedule.away();
        child::until(away, || None::<()>);
        let mut restarted = Instant::now();
        target.start()?;
        // Recovery itself must survive a crash.
        while record.kills < args.kills && schedule.early() {
            let longest = schedule.early_after();
            if child::until(longest, || target.ended()).is_some() {
                bail!("the broker ended by itself; its log ends with\n{}", target.log_tail());
            }
            target.kill()?;
            record.kills += 1;
            record.early += 1;
            restarted = Instant::now();
            target.start()?;
        }
        let answered = probe::wait_for_connack(target.address(), target)?;
        let recovery = answered.duration_since(restarted);
        record.recoveries.push(recovery);
        eprintln!(
            "kill {:3} of {} at {:.1} s: away for {} ms, back {:.1} ms after its start",
            record.kills,
            args.kills,
            at.as_secs_f64(),
            away.as_millis(),
            recovery.as_secs_f64() * 1e3
        );
    }
    Ok(())
}

/// Number of kills after which nothing was missing, and number of failures: the figures for CI.
fn tally(record: &Record, verdict: &Value) -> (u32, usize) {
    let violations = match verdict["violations"].as_array() {
        Some(violations) => violations.len(),
        None => 1, // A missing verdict proves nothing.
    };
    let failed = violations + usize::from(record.failed.is_some());
    (if failed == 0 { record.kills } else { 0 }, failed)
}

fn median_and_max(times: &[Duration]) -> (f64, f64) {
    let mut times: Vec<f64> = times.iter().map(|time| (time.as_secs_f64() * 1e4).round() / 10.0).collect();
    times.sort_by(f64::total_cmp);
    match times.as_slice() {
        [] => (0.0, 0.0),
        [.., max] => (times[(times.len() - 1) / 2], *max),
    }
}

fn print(args: &Args, seed: u64, record: &Record, verdict: &Value) {
    let (median, max) = median_and_max(&record.recoveries);
    let (stop_median, stop_max) = median_and_max(&record.stops);
    if args.json {
        println!(
            "{}",
            json!({
                "command": "chaos", "seed": seed, "kills": record.kills, "early": record.early, "failed": record.failed,
                "signal": format!("{:?}", args.signal).to_uppercase(),
                "recovery_ms": { "median": median, "max": max, "count": record.recoveries.len() },
                "stop_ms": { "median": stop_median, "max": stop_max, "count": record.stops.len() },
                "ha": verdict,
            })
        );
        return;
    }
    println!(
        "kills         {} by SIG{}, {} of them before the broker had answered; seed {seed}",
        record.kills,
        format!("{:?}", args.signal).to_uppercase(),
        record.early
    );
    println!("recovery      ms from start to first CONNACK: median {median}, max {max}");
    if !record.stops.is_empty() {
        println!("stop          ms from SIGTERM to the end: median {stop_median}, max {stop_max}");
    }
    for (name, text) in [
        ("sent", format!("{}, {} never sent", verdict["sent"], verdict["unsent"])),
        ("acknowledged", format!("{}, {} never", verdict["acknowledged"], verdict["unacknowledged"])),
        ("delivered", verdict["delivered"].to_string()),
        ("LOST", verdict["lost"].to_string()),
        (
            "duplicated",
            format!(
                "{} at QoS 1 (allowed), {} at QoS 2",
                verdict["duplicated_qos1"], verdict["duplicated_qos2"]
            ),
        ),
        ("out of order", verdict["out_of_order"].to_string()),
        (
            "sessions",
            format!(
                "{} resumed, {} publishers' and {} subscribers' lost",
                verdict["sessions_resumed"],
                verdict["sessions_lost"]["publishers"],
                verdict["sessions_lost"]["subscribers"]
            ),
        ),
        ("silence", format!("longest {} ms", verdict["longest_silence_ms"])),
    ] {
        println!("{name:<14}{text}");
    }
    for violation in verdict["violations"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        println!("VIOLATION     {violation}");
    }
    if verdict["violations"].as_array().is_some_and(Vec::is_empty) && record.failed.is_none() {
        println!("verdict       clean: nothing acknowledged is missing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_count_only_when_nothing_is_missing() {
        let clean = || Record { kills: 6, ..Record::default() };
        assert_eq!(tally(&clean(), &json!({ "violations": [] })), (6, 0));
        assert_eq!(tally(&clean(), &json!({ "violations": ["LOST 1", "QoS 2 twice"] })), (0, 2));
        assert_eq!(tally(&clean(), &json!({ "error": "never began" })), (0, 1));
        let gone = Record { failed: Some("it ended by itself".to_owned()), ..clean() };
        assert_eq!(tally(&gone, &json!({ "violations": [] })), (0, 1));
    }

    #[test]
    fn median_and_maximum_are_computed() {
        let ms = |list: &[u64]| {
            median_and_max(&list.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>())
        };
        assert_eq!(ms(&[]), (0.0, 0.0));
        assert_eq!(ms(&[7]), (7.0, 7.0));
        assert_eq!(ms(&[9, 1, 5, 2]), (2.0, 9.0));
    }
}
