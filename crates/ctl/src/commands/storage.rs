//! `meridian ctl storage`: the node's data on disk, and backups.

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::human;
use crate::query::Query;

/// Show the node's data on disk, and make a backup of it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl storage                        condition and speed of the disk, result of the last start
  meridian ctl storage --json | jq .log.state
  meridian ctl storage backup 2026-01-31      a copy below storage.backup_dir, while the node runs

Restore a backup with `meridian storage restore BACKUP DIR`, where there is no log yet. `meridian storage` (without
ctl) is about directories of nodes that do not run.")]
pub struct StorageArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the data on disk (the default)
    Show,
    /// Copy the durable data into a new directory on the node's machine, below storage.backup_dir
    Backup {
        /// Directory to make
        name: String,
        /// Do not wait until the backup is done
        #[arg(long)]
        no_wait: bool,
    },
}

const STORAGE: &str = "/api/v1/storage";
/// Time between two views, whose difference is the rate of commits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two requests of a waiting backup.
const ASK: Duration = Duration::from_millis(200);

impl Command for StorageArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self.verb {
            None | Some(Verb::Show) => show(console),
            Some(Verb::Backup { name, no_wait }) => backup(console, &name, no_wait),
        }
    }
}

fn show(console: &mut Console) -> Result<(), Failure> {
    let first = console.client.get(STORAGE, &Query::new())?;
    if console.json {
        return console.document(&first);
    }
    if first.field("log").is_null() {
        return console
            .line("memory: nothing is kept on disk, and a restart begins empty (storage.durability)");
    }
    let began = Instant::now();
    thread::park_timeout(POLL_INTERVAL);
    let answer = console.client.get(STORAGE, &Query::new())?;
    let log = answer.field("log");
    let since =
        log.number("commits").zip(first.number("log.commits")).map(|(now, then)| (now - then).max(0.0));
    let rate = since.map(|commits| commits / began.elapsed().as_secs_f64());
    console.pairs(&about(log, rate))?;
    console.flush()?;
    match &log.text("state")[..] {
        "full" => console.note(
            "! the disk is full, or no file descriptor is left for the log: messages for durable sessions and retained messages are refused until there is room; QoS 0, \
             sessions without expiry and acknowledgements still work",
        ),
        "failed" => console.note(
            "! the disk has failed: durable sessions are refused. Check the disk, then restart the node; QoS 0 and sessions \
             without expiry still work",
        ),
        _ => {}
    }
    Ok(())
}

fn about(log: &Value, commits_per_second: Option<f64>) -> Vec<(&'static str, String)> {
    let count = |path: &str| log.count_cell(path);
    let bytes = |path: &str| log.bytes_cell(path);
    let took = |path: &str| {
        let us = |name: &str| match log.number(&format!("{path}.{name}")) {
            Some(us) => human::seconds(us / 1e6),
            None => crate::fields::NOTHING.to_owned(),
        };
        format!("p50 {}, p99 {}, max {}", us("p50_us"), us("p99_us"), us("max_us"))
    };
    let rate = commits_per_second.map_or_else(|| crate::fields::NOTHING.to_owned(), human::short);
    let detail = log.text("detail");
    let state =
        if detail.is_empty() { log.cell("state") } else { format!("{}: {detail}", log.cell("state")) };
    let backup = match log.field("backup") {
        Value::Null => format!("none since the start; directory {}", log.cell("backup_dir")),
        last => format!("{} {}, {}", last.cell("path"), last.cell("state"), last.time_cell("started_at")),
    };
    vec![
        ("state", state),
        ("directory", log.text("directory")),
        ("segments", format!("{}, {}; {} being freed", count("segments"), bytes("bytes"), count("vacating"))),
        ("live", bytes("live_bytes")),
        ("reserve", format!("{} in {} empty segments", bytes("reserve_bytes"), count("spares"))),
        ("commits", format!("{rate}/s, {} since the start, {} records", count("commits"), count("records"))),
        ("sync", took("sync")),
        ("commit", took("commit")),
        ("queue", format!("{} records, {}", count("queue_records"), bytes("queue_bytes"))),
        (
            "written",
            format!(
                "{} (checkpoints {}, moved {}); {} segments freed",
                bytes("bytes_written"),
                bytes("checkpoint_bytes"),
                bytes("moved_bytes"),
                count("freed")
            ),
        ),
        ("checkpoints", format!("{} shards have one", count("checkpoints"))),
        (
            "last start",
            format!(
                "{} segments, {} records, {}, {} sessions: read in {}, restored in {}",
                count("recovery.segments"),
                count("recovery.records"),
                bytes("recovery.bytes"),
                count("recovery.sessions"),
                log.seconds_cell("recovery.read_s"),
                log.seconds_cell("recovery.restored_s")
            ),
        ),
        (
            "repaired then",
            format!(
                "{} of an incomplete commit cut off, {} indexes rebuilt",
                bytes("recovery.truncated_bytes"),
                count("recovery.indexes_rebuilt")
            ),
        ),
        ("backup", backup),
    ]
}

fn backup(console: &mut Console, name: &str, no_wait: bool) -> Result<(), Failure> {
    let path = format!("{STORAGE}/backups");
    let mut backup = console.client.send(Method::POST, &path, &Query::new(), Some(&json!({"name": name})))?;
    if no_wait {
        let sentence = format!("backup to {} started", backup.cell("path"));
        return console.done(&backup, &sentence);
    }
    while backup.text("state") == "running" {
        // Nothing unparks this thread: the node must be asked.
        thread::park_timeout(ASK);
        backup = console.client.get(STORAGE, &Query::new())?.field("log.backup").clone();
        if backup.text("name") != name {
            return Err(Failure::Failed("the node restarted, or another backup was started".to_owned()));
        }
        if backup.whole("segments").is_some_and(|all| all > 0) {
            let text = format!("{} of {} segments", backup.cell("segments_done"), backup.cell("segments"));
            console.progress(&text);
        }
    }
    if backup.text("state") != "done" {
        return Err(Failure::Failed(format!("no backup was made: {}", backup.text("error"))));
    }
    let sentence = format!(
        "{}: {} segments, {}; restore it with `meridian storage restore`",
        backup.cell("path"),
        backup.cell("segments"),
        backup.bytes_cell("bytes")
    );
    console.done(&backup, &sentence)
}
