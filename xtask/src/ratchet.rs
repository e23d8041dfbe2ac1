//! `cargo xtask ratchet`: checks that the cost of a message does not rise, in figures that are exactly reproducible.
//! Instructions and allocations come from one worker without sockets, system calls from a node with one message in
//! flight.

mod calls;
mod instructions;
mod record;

use crate::bench::child;
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use record::{Record, Verdict};
use std::process::Command;

#[derive(clap::Args)]
pub struct Args {
    /// Write the measurements to `xtask/ratchet.toml` instead of comparing with it
    #[arg(long)]
    write: bool,
    /// Fail where valgrind or strace is missing or may not trace, instead of skipping that part
    #[arg(long)]
    require_all: bool,
}

/// File with the figures.
const FILE: &str = "xtask/ratchet.toml";

pub fn run(args: &Args) -> Result<()> {
    child::catch_signals();
    let mut found = Record { rustc: first_line("rustc", &["--version"]), ..Record::default() };
    let mut missing = vec![];
    for (part, measured) in
        [("instructions and allocations", instructions::measure()?), ("system calls", calls::measure()?)]
    {
        match measured {
            Measured::Figures(figures) => found.figures.extend(figures),
            Measured::Impossible(why) => missing.push(format!("{part} are NOT compared: {why}")),
        }
    }
    missing.iter().for_each(|line| eprintln!("warning: {line}"));
    if args.require_all || args.write {
        ensure!(missing.is_empty(), "{}", missing.join("; "));
    }
    let path = root().join(FILE);
    if args.write {
        std::fs::write(&path, found.to_string()).with_context(|| FILE.to_owned())?;
        println!("{} figures are written to {FILE}", found.figures.len());
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).with_context(|| FILE.to_owned())?;
    let recorded = Record::parse(&text).with_context(|| FILE.to_owned())?;
    judge(&recorded, &found, missing.is_empty())
}

/// Result of a part of the ratchet, or the missing tool.
enum Measured {
    Figures(Vec<(String, f64)>),
    Impossible(String),
}

fn judge(recorded: &Record, found: &Record, complete: bool) -> Result<()> {
    let verdicts = recorded.compare(found, complete);
    for (name, verdict) in &verdicts {
        println!("{:<42} {verdict}", name);
    }
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, v)| wanted(v)).count();
    let failed = count(Verdict::is_failure);
    if count(|v| matches!(v, Verdict::Better { .. })) > 0 {
        println!(
            "something got better: `cargo xtask ratchet --write` makes {FILE} tighter, so that \
                 it stays so"
        );
    }
    println!("{} passed, {failed} failed", verdicts.len() - failed);
    if failed == 0 {
        return Ok(());
    }
    if recorded.rustc != found.rustc {
        println!("{FILE} was written with {}, this is {}", recorded.rustc, found.rustc);
    }
    bail!(
        "a message costs more than {FILE} says. Find out why (valgrind --tool=callgrind target/release/ratchet \
         FLOW 10000; strace -f -c); when it is worth it, or a new compiler is the reason: `cargo xtask ratchet --write`, \
         and say so in the commit"
    );
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
