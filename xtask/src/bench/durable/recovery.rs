//! Recovery of a broker that is killed with many sessions and messages, and restarted. Measures the time, the
//! remaining data, and the memory and disk space of a session and a message.

use super::Profile;
use super::client::Client;
use super::contender::Contender;
use super::disk::Disk;
use crate::bench::broker::Broker;
use crate::bench::child::{self, Guarded};
use crate::bench::listener::process::anonymous;
use crate::bench::table::number;
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Amount of data when the broker is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    sessions: u32,
    /// Number of messages for each session.
    messages: u32,
}

#[derive(Clone, Debug, Default)]
struct Recovered {
    /// Times to make the sessions and to queue the messages.
    made: Duration,
    queued: Duration,
    /// Anonymous memory of the broker: empty, with the sessions, with the messages, and after the restart.
    memory: [u64; 4],
    /// Bytes that the disk wrote while messages were queued, and bytes on disk when the broker was killed.
    written: u64,
    disk: u64,
    back: Duration,
    /// Number of sessions that were checked.
    looked_at: u32,
    there: u32,
    whole: u32,
    /// Log lines of Meridian during the restart.
    log_lines: Vec<String>,
}

pub struct Recoveries(Vec<Row>);

struct Row {
    name: String,
    size: Size,
    found: Result<Recovered, String>,
}

/// Number of threads that make sessions; some brokers refuse more at one time.
const THREADS: u32 = 64;
const THREADS_OF_OTHERS: u32 = 8;
/// Number of sessions that are checked afterwards.
const SAMPLE: u32 = 20;
/// Maximum time of a restart.
const BACK_MAX: Duration = Duration::from_secs(600);
/// Maximum silence before the next message of a session.
const QUIET: Duration = Duration::from_secs(5);

impl Size {
    /// Usual number of sessions: a broker that makes sessions slowly gets fewer.
    fn usual(profile: &Profile, who: &Contender) -> u32 {
        match (profile.full, profile.quick, who.is_ours()) {
            (true, ..) => 1_000_000,
            (_, false, true) => 100_000,
            (_, false, false) => 10_000,
            (_, true, true) => 20_000,
            (_, true, false) => 500,
        }
    }

    fn all_messages(self) -> u64 {
        u64::from(self.sessions) * u64::from(self.messages)
    }
}

/// Measures a recovery with this number of sessions, or the usual one, and of messages for each.
pub fn measure(
    profile: &Profile,
    contenders: &[Contender],
    sessions: Option<u32>,
    messages: u32,
) -> Recoveries {
    let mut rows = vec![];
    for who in contenders.iter().filter(|who| who.keeps() && (who.is_ours() || !profile.full)) {
        if child::interrupted() {
            break;
        }
        let size = Size { sessions: sessions.unwrap_or_else(|| Size::usual(profile, who)), messages };
        let (name, all) = (who.name.clone(), size.all_messages());
        eprintln!("[{} s] recovery: {} sessions, {all} messages on {name}", profile.spent_s(), size.sessions);
        let found = one(profile, who, size).map_err(|error| format!("{error:#}"));
        if let Err(error) = &found {
            eprintln!("  not done: {error}");
        }
        rows.push(Row { name, size, found });
    }
    Recoveries(rows)
}

fn one(profile: &Profile, who: &Contender, size: Size) -> Result<Recovered> {
    let mut broker = who.start(&profile.directory, None)?;
    let mut found = Recovered::default();
    found.memory[0] = anonymous(broker.pid())?;
    let began = Instant::now();
    let threads = if who.is_ours() { THREADS } else { THREADS_OF_OTHERS };
    make_sessions(profile, broker.address, size.sessions, threads)?;
    found.made = began.elapsed();
    found.memory[1] = anonymous(broker.pid())?;
    let disk = Disk::of(&profile.directory);
    let written = || disk.and_then(|disk| disk.written().ok());
    let (before, began) = (written(), Instant::now());
    queue(profile, broker.address, size)?;
    found.queued = began.elapsed();
    found.memory[2] = anonymous(broker.pid())?;
    found.written = written().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
    eprintln!("  made in {:.1} s, queued in {:.1} s", found.made.as_secs_f64(), found.queued.as_secs_f64());
    broker.kill()?;
    found.disk = on_disk(broker.directory());
    let log_before = broker.log().len();
    let began = Instant::now();
    broker.start_again()?;
    wait_until_back(&mut broker)?;
    found.back = began.elapsed();
    found.memory[3] = anonymous(broker.pid())?;
    if who.is_ours() {
        let log = broker.log();
        let lines = log.get(log_before..).unwrap_or_default().lines();
        found.log_lines =
            lines.filter(|line| line.contains("store") || line.contains("restor")).map(plain).collect();
    }
    for line in &found.log_lines {
        eprintln!("  {line}");
    }
    look(&broker, size, &mut found)?;
    eprintln!(
        "  back after {:.3} s; of {} sessions {} were there, {} with all their messages",
        found.back.as_secs_f64(),
        found.looked_at,
        found.there,
        found.whole
    );
    Ok(found)
}

/// Makes sessions that subscribe to a topic of their own and disconnect.
fn make_sessions(profile: &Profile, address: SocketAddr, count: u32, threads: u32) -> Result<()> {
    let next = AtomicU32::new(0);
    let longest = profile.load_max();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..threads)
            .map(|thread| {
                let next = &next;
                scope.spawn(move || -> Result<()> {
                    // Each address has its own ports, and many are used up in a minute.
                    let from = Ipv4Addr::new(127, 0, 1, thread as u8 + 1);
                    loop {
                        let number = next.fetch_add(1, Relaxed) + 1;
                        if number > count {
                            return Ok(());
                        }
                        if number.is_multiple_of(100_000) {
                            eprintln!("  {number} sessions, {:.0} s", began.elapsed().as_secs_f64());
                        }
                        ensure!(!child::interrupted(), "interrupted");
                        ensure!(
                            began.elapsed() < longest,
                            "{number} of {count} sessions were made in {} s",
                            longest.as_secs()
                        );
                        let mut client = Client::connect(address, from, &client_id(number))?;
                        client.subscribe(&format!("recovery/{number}"))?;
                        client.disconnect()?;
                    }
                })
            })
            .collect();
        makers.into_iter().try_for_each(|maker| maker.join().expect("it does not panic"))
    })
}

fn client_id(number: u32) -> String {
    format!("recovery-{number}")
}

/// Runs publishers that each publish once to the topics of all sessions.
fn queue(profile: &Profile, address: SocketAddr, size: Size) -> Result<()> {
    let messages = size.all_messages();
    let mut command = Command::new(root().join("target/release/mqload"));
    command.args([
        "bench",
        "pub",
        "-V",
        "4",
        "-q",
        "1",
        "-I",
        "0",
        "-i",
        "0",
        "-s",
        "256",
        "-t",
        "recovery/%s",
    ]);
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "--quiet"]);
    command.args(["-c", &size.messages.to_string(), "-L", &messages.to_string()]);
    command.args(["-F", "1000", "--prefix", "loader"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = Guarded::spawn(&mut command)?.wait(profile.load_max());
    ensure!(!child::interrupted(), "interrupted");
    let seconds = profile.load_max().as_secs();
    let status = ended.with_context(|| format!("{messages} messages were not queued in {seconds} s"))?;
    ensure!(status.success(), "not every message was acknowledged");
    Ok(())
}

/// Waits until a client has its CONNACK.
fn wait_until_back(broker: &mut Broker) -> Result<()> {
    let address = broker.address;
    let began = Instant::now();
    loop {
        // Attempts fail until it listens.
        if Client::connect(address, Ipv4Addr::LOCALHOST, "back").and_then(Client::disconnect).is_ok() {
            return Ok(());
        }
        ensure!(
            broker.alive(),
            "it ended when it was started again; its log ends with\n{}",
            broker.log_tail()
        );
        ensure!(!child::interrupted(), "interrupted");
        if began.elapsed() > BACK_MAX {
            bail!("it was not back after {} s; its log ends with\n{}", BACK_MAX.as_secs(), broker.log_tail());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks some sessions, spread over all.
fn look(broker: &Broker, size: Size, found: &mut Recovered) -> Result<()> {
    let step = (size.sessions / SAMPLE).max(1);
    for number in (1..=size.sessions).step_by(step as usize).take(SAMPLE as usize) {
        let mut client = Client::connect(broker.address, Ipv4Addr::LOCALHOST, &client_id(number))?;
        found.looked_at += 1;
        if client.session_present {
            found.there += 1;
            let messages = u64::from(size.messages);
            found.whole += u32::from(client.drain(messages, QUIET)?.0 == messages);
        }
    }
    Ok(())
}

/// Disk space of files in bytes, without holes.
fn on_disk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => on_disk(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// A line of a log without colours, and without the directory of this run.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        out += before;
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    out += rest;
    // The directory on this machine is meaningless to readers.
    out.split(' ').filter(|word| !word.starts_with("directory=")).collect::<Vec<_>>().join(" ")
}

impl Recoveries {
    pub fn markdown(&self) -> String {
        let mut out = format!(
            "Sessions with a queue of messages of 256 bytes each, SIGKILL, and the same command again:\n\n\
             | broker | sessions | messages | back after s | sessions there | with all messages | memory before MiB | after MiB | \
             bytes of memory a session | a message | bytes that the disk wrote a message | bytes on disk a message | \
             made a second: sessions | messages |\n|{}\n",
            "---|".repeat(COLUMNS)
        );
        let mut remarks = String::new();
        let mut log_lines = String::new();
        for Row { name, size, found } in &self.0 {
            let sessions = number(f64::from(size.sessions), 0);
            let _ = write!(out, "| {name} | {sessions} | {} |", number(size.all_messages() as f64, 0));
            match found {
                Ok(found) => {
                    let _ = writeln!(out, " {} |", cells(found, *size).join(" | "));
                    for line in &found.log_lines {
                        let _ = writeln!(log_lines, "{line}");
                    }
                }
                Err(error) => {
                    let _ = writeln!(out, "{}", " - |".repeat(COLUMNS - 3));
                    let first = error.lines().next().unwrap_or_default();
                    let _ = writeln!(remarks, "* not done: {name}, recovery: {first}.");
                }
            }
        }
        if !remarks.is_empty() {
            let _ = write!(out, "\n{remarks}");
        }
        if !log_lines.is_empty() {
            let _ = write!(out, "\n```text\n{log_lines}```\n");
        }
        out
    }
}

const COLUMNS: usize = 14;

fn cells(found: &Recovered, size: Size) -> Vec<String> {
    let mib = |bytes: u64| number(bytes as f64 / f64::from(1 << 20), 1);
    let each = |bytes: u64, count: f64| number(bytes as f64 / count.max(1.0), 0);
    let [empty, with_sessions, with_messages, after] = found.memory;
    let (sessions, messages) = (f64::from(size.sessions), size.all_messages() as f64);
    vec![
        number(found.back.as_secs_f64(), 3),
        format!("{} of {}", found.there, found.looked_at),
        format!("{} of {}", found.whole, found.looked_at),
        mib(with_messages),
        mib(after),
        each(with_sessions.saturating_sub(empty), sessions),
        each(with_messages.saturating_sub(with_sessions), messages),
        each(found.written, messages),
        each(found.disk, messages),
        number(sessions / found.made.as_secs_f64().max(1e-3), 0),
        number(messages / found.queued.as_secs_f64().max(1e-3), 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_divides_the_measured_totals() {
        let found = Recovered {
            made: Duration::from_secs(2),
            queued: Duration::from_secs(4),
            memory: [1 << 20, 3 << 20, 4 << 20, 5 << 20],
            written: 4_000_000,
            disk: 8_000_000,
            back: Duration::from_millis(1500),
            looked_at: 20,
            there: 20,
            whole: 19,
            log_lines: vec!["store opened".into()],
        };
        let size = Size { sessions: 1000, messages: 10 };
        let row = |name: &str, found| Row { name: name.to_owned(), size, found };
        let text =
            Recoveries(vec![row("meridian", Ok(found)), row("nats", Err("late\nlog".to_owned()))]).markdown();
        let row = text.lines().find(|line| line.starts_with("| meridian")).unwrap();
        assert_eq!(
            row,
            "| meridian | 1,000 | 10,000 | 1.500 | 20 of 20 | 19 of 20 | 4.0 | 5.0 | 2,097 | 105 | 400 | 800 | 500 | 2,500 |"
        );
        assert!(text.contains("* not done: nats, recovery: late.\n"), "{text}");
        assert!(text.contains("```text\nstore opened\n```\n"), "{text}");
        let columns = |line: &str| line.matches('|').count();
        assert!(
            text.lines().filter(|line| line.starts_with('|')).all(|line| columns(line) == COLUMNS + 1),
            "{text}"
        );
    }

    #[test]
    fn colours_and_the_directory_are_removed_from_a_log_line() {
        assert_eq!(plain("\u{1b}[2m2026\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m reading"), "2026  INFO reading");
        assert_eq!(plain("opened directory=/data/storage segments=2"), "opened segments=2");
        assert_eq!(plain("plain"), "plain");
    }

    #[test]
    fn disk_space_includes_subdirectories() {
        let directory = crate::bench::broker::Directory::new().unwrap();
        let at = directory.join("sub");
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join("file"), vec![1; 10_000]).unwrap();
        assert!(on_disk(&directory.join("")) >= 10_000);
        assert_eq!(on_disk(&directory.join("nowhere")), 0);
    }
}
