//! `cargo xtask durable`: the cost of durable messages, compared with other durable brokers, in one run: messages and
//! their acknowledgements, the log alone, resumed sessions, a killed broker.

pub mod client;
mod contender;
mod disk;
mod flow;
mod recovery;
mod resume;
mod syncs;

use super::broker::Kind;
use super::child::{self, Guarded};
use super::table::{circumstances, load_average, write};
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use contender::Contender;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Measure less: about 8 minutes with all brokers
    #[arg(long)]
    quick: bool,
    /// Measure recovery with 1,000,000 sessions and 10,000,000 messages, for Meridian alone
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Run only these parts (may be given several times)
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Measure only these brokers (default: all that are installed or can be; `--list` shows them)
    #[arg(long, value_delimiter = ',')]
    brokers: Vec<String>,
    /// Print the names of the brokers, and exit
    #[arg(long)]
    list: bool,
    /// Measured seconds of each load [default: 5, quick: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Number of runs of each load on each broker [default: 3, quick: 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Number of sessions of the recovery [default: 100,000 and 10,000 of others, quick: 20,000 and 500, full:
    /// 1,000,000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    sessions: Option<u32>,
    /// Number of messages for each of these sessions
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    messages: u32,
    /// Directory for the brokers' files, on the disk to measure
    #[arg(long, default_value = "target/durable")]
    dir: PathBuf,
    /// Skip a broker that is not installed instead of installing it in target/peers
    #[arg(long)]
    no_install: bool,
    /// Use the existing binaries in target/release
    #[arg(long)]
    no_build: bool,
    /// Write the tables to this file as well; between `<!-- durable -->` and `<!-- /durable -->` when it has these
    /// lines
    #[arg(long)]
    markdown: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Publishers to durable sessions
    Flow,
    /// The log without a broker, and the disk without a log
    Log,
    /// Sessions that are resumed with long queues
    Resume,
    /// A broker that was killed
    Recovery,
}

/// Extent of the measurements, and their directory.
pub struct Profile {
    pub quick: bool,
    pub seconds: u32,
    pub rounds: u32,
    /// Directory for the brokers' files.
    pub directory: PathBuf,
    full: bool,
    began: Instant,
}

impl Profile {
    fn new(quick: bool, seconds: u32, rounds: u32, directory: PathBuf) -> Profile {
        Profile { quick, seconds, rounds, directory, full: false, began: Instant::now() }
    }

    /// Seconds since the start.
    pub fn spent_s(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    /// Maximum time to make the sessions of a recovery, and to queue their messages.
    pub fn load_max(&self) -> Duration {
        Duration::from_secs(match (self.quick, self.full) {
            (true, _) => 20,
            (_, false) => 120,
            (_, true) => 1800,
        })
    }
}

const SYNC_EXAMPLE: [&str; 4] = ["--package", "storage", "--example", "bench"];

pub fn run(args: &Args) -> Result<()> {
    if args.list {
        Contender::all().iter().for_each(|contender| println!("{}", contender.name));
        return Ok(());
    }
    child::catch_signals();
    let (seconds, rounds) = if args.quick { (1, 2) } else { (5, 3) };
    let directory = root().join(&args.dir);
    let mut profile =
        Profile::new(args.quick, args.seconds.unwrap_or(seconds), args.rounds.unwrap_or(rounds), directory);
    profile.full = args.full;
    std::fs::create_dir_all(&profile.directory)
        .with_context(|| format!("--dir {}", profile.directory.display()))?;
    if is_in_memory(&profile.directory) {
        eprintln!(
            "{} is in memory, where a sync costs nothing: give a --dir on a disk",
            profile.directory.display()
        );
    }
    // CI installs its list of packages only.
    let may_install = !args.no_install && std::env::var_os("CI").is_none();
    let contenders = Contender::present(&args.brokers, may_install)?;
    let is_wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    if !args.no_build {
        super::build(&[Kind::Meridian])?;
        if is_wanted(Part::Log) {
            super::cargo_build(&SYNC_EXAMPLE)?;
        }
    }
    let busy = load_average();
    profile.began = Instant::now();
    let mut text = String::new();
    // An interrupted run shows its results so far.
    let parts = [Part::Flow, Part::Log, Part::Resume, Part::Recovery];
    for part in parts.into_iter().filter(|part| is_wanted(*part)) {
        if child::interrupted() {
            break;
        }
        text += &match part {
            Part::Flow => {
                let title = "Publishers to durable sessions, pair by pair, 256 B:\n\n";
                title.to_owned() + &flow::measure(&profile, &contenders).markdown(&profile, &contenders)
            }
            Part::Log => match log_alone(&profile) {
                Ok(tables) => format!("The log alone, and the disk alone:\n\n{tables}"),
                Err(error) => format!("* not done: the log alone: {error:#}.\n"),
            },
            Part::Resume => {
                let title = "A session that comes back to a queue of messages of 256 bytes:\n\n";
                title.to_owned() + &resume::measure(&profile, &contenders).markdown(&contenders)
            }
            Part::Recovery => {
                recovery::measure(&profile, &contenders, args.sessions, args.messages).markdown()
            }
        };
        text.push('\n');
    }
    let kinds: Vec<Kind> =
        contenders.iter().filter(|who| who.name != "meridian-memory").map(|c| c.kind).collect();
    let text = circumstances(&kinds, &command_line(args, &contenders), busy) + "\n" + text.trim_end();
    println!("{text}");
    if child::interrupted() {
        bail!("interrupted");
    }
    match &args.markdown {
        Some(path) => write(path, "durable", &text),
        None => Ok(()),
    }
}

/// Output of `cargo run --release -p storage --example bench`, which needs no broker.
fn log_alone(profile: &Profile) -> Result<String> {
    eprintln!("[{} s] the log alone", profile.spent_s());
    let mut command = Command::new(root().join("target/release/examples/bench"));
    command.arg("--dir").arg(&profile.directory).args(["--seconds", &profile.seconds.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Guarded::spawn(&mut command)?;
    let longest = Duration::from_secs(u64::from(profile.seconds) * 6 + 120);
    let status = process.wait(longest);
    ensure!(!child::interrupted(), "interrupted");
    ensure!(status.is_some_and(|status| status.success()), "the benchmark of the log failed");
    Ok(std::io::read_to_string(process.child().stdout.take().context("a pipe")?)?)
}

/// Returns whether the files of a directory are in memory and lost with the machine's power.
fn is_in_memory(directory: &Path) -> bool {
    const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
    let Ok(directory) = directory.canonicalize() else { return false };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        directory.starts_with(at).then_some((at.len(), kind))
    });
    // The innermost mount counts; of two at one path the later one is on top.
    below.max_by_key(|(length, _)| *length).is_some_and(|(_, kind)| IN_MEMORY.contains(&kind))
}

/// The command as it was given, for the page.
fn command_line(args: &Args, contenders: &[Contender]) -> String {
    let mut line = "cargo xtask durable".to_owned();
    for (flag, is_given) in [(" --quick", args.quick), (" --full", args.full)] {
        if is_given {
            line += flag;
        }
    }
    for part in &args.only {
        let part = part.to_possible_value();
        line += &format!(" --only {}", part.as_ref().map_or("", |part| part.get_name()));
    }
    let numbers = [("seconds", args.seconds), ("rounds", args.rounds), ("sessions", args.sessions)];
    for (name, value) in numbers {
        if let Some(value) = value {
            line += &format!(" --{name} {value}");
        }
    }
    if args.messages != 10 {
        line += &format!(" --messages {}", args.messages);
    }
    let names: Vec<&str> = contenders.iter().map(|contender| &contender.name[..]).collect();
    line + " --brokers " + &names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_page_shows_the_command_that_reproduces_it() {
        let line = "durable --quick --only flow --only log --rounds 4 --messages 3";
        let args = Line::parse_from(line.split_whitespace()).args;
        let contenders = &Contender::all()[..2];
        assert_eq!(
            command_line(&args, contenders),
            "cargo xtask durable --quick --only flow --only log --rounds 4 --messages 3 --brokers meridian,meridian-memory"
        );
    }

    #[test]
    fn quick_and_full_exclude_each_other() {
        assert!(Line::try_parse_from(["durable", "--quick", "--full"]).is_err());
    }

    #[test]
    fn proc_is_no_memory_disk() {
        assert!(!is_in_memory(Path::new("/proc")));
        assert!(!is_in_memory(Path::new("/no/such/directory")));
    }
}
