//! Instructions and allocations of a message: the program of crate `ratchet` under valgrind, with two numbers of
//! messages. Their difference excludes one-time work.

use super::Measured;
use crate::bench::child::{self, Guarded};
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use std::num::NonZero;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Ratio of the second number of messages to the first.
const TIMES: u32 = 3;
/// Maximum time of a flow. It takes about a second, and longer next to other work.
const LONGEST: Duration = Duration::from_secs(180);

pub fn measure() -> Result<Measured> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Ok(Measured::Impossible("valgrind is not installed (apt-get install valgrind)".into()));
    }
    crate::bench::cargo_build(&["--package", "ratchet"])?;
    let program = root().join("target/release/ratchet");
    let list = Command::new(&program).output().context("the program ratchet")?;
    let list = String::from_utf8(list.stdout)?;
    let flows = list.lines().map(parse_flow).collect::<Result<Vec<_>>>()?;
    ensure!(!flows.is_empty(), "the program ratchet has no flows");
    let results = measure_all(&flows);
    let mut figures = vec![];
    for ((name, messages), result) in flows.iter().zip(results) {
        let (few, many) = result?;
        let each = |few: u64, many: u64| (many - few) as f64 / f64::from(messages * (TIMES - 1));
        ensure!(many.instructions > few.instructions, "{name}: more messages take more instructions");
        figures.push((format!("{name}.instructions"), each(few.instructions, many.instructions)));
        figures.push((
            format!("{name}.allocations"),
            each(few.allocations, many.allocations.max(few.allocations)),
        ));
    }
    Ok(Measured::Figures(figures))
}

/// Name of a flow and its number of messages.
fn parse_flow(line: &str) -> Result<(&str, u32)> {
    let (name, messages) = line.split_once(' ').context("a flow and its messages")?;
    Ok((name, messages.parse()?))
}

/// Counts each flow with few and with many messages, in the order of the flows. Each CPU runs another flow, because
/// the counts do not depend on load.
fn measure_all(flows: &[(&str, u32)]) -> Vec<Result<(Counted, Counted)>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let measured = std::iter::from_fn(|| {
            let number = next.fetch_add(1, Relaxed);
            let &(name, messages) = flows.get(number)?;
            eprintln!("{name}");
            Some((number, count_both(name, messages)))
        });
        measured.collect::<Vec<_>>()
    };
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let mut all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a measurement panicked")).collect()
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, counted)| counted).collect()
}

fn count_both(flow: &str, messages: u32) -> Result<(Counted, Counted)> {
    Ok((count(flow, messages)?, count(flow, messages * TIMES)?))
}

/// Counts of a whole run.
#[derive(Debug, PartialEq)]
struct Counted {
    instructions: u64,
    allocations: u64,
}

fn count(flow: &str, messages: u32) -> Result<Counted> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(root().join("target/release/ratchet"))
        .args([flow, &messages.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Guarded::spawn(&mut command)?;
    let status = process.wait(LONGEST);
    if child::interrupted() {
        bail!("interrupted");
    }
    let status = status.with_context(|| format!("{flow} has not ended after {} s", LONGEST.as_secs()))?;
    // A few lines each: they fit into the pipes.
    let read = |pipe: Option<&mut dyn std::io::Read>| -> Result<String> {
        let mut text = String::new();
        pipe.context("a pipe")?.read_to_string(&mut text)?;
        Ok(text)
    };
    let child = process.child();
    let said = read(child.stdout.as_mut().map(|pipe| pipe as _))?;
    let counted = read(child.stderr.as_mut().map(|pipe| pipe as _))?;
    ensure!(status.success(), "{flow} failed ({status}):\n{counted}");
    parse(&said, &counted).with_context(|| format!("{flow}: valgrind said\n{counted}"))
}

fn parse(said: &str, counted: &str) -> Option<Counted> {
    let line =
        counted.lines().find_map(|line| line.split_once("I refs:").or(line.split_once("I   refs:")))?;
    let instructions = line.1.trim().replace(',', "").parse().ok()?;
    Some(Counted { instructions, allocations: said.trim().parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counts_are_parsed() {
        let text = "==1== Cachegrind, a profiler\n==1== \n==1== I   refs:      22,816,032\n";
        assert_eq!(parse("387\n", text), Some(Counted { instructions: 22_816_032, allocations: 387 }));
        assert_eq!(parse("387\n", "==1== I refs: 7\n").map(|c| c.instructions), Some(7));
        assert_eq!(parse("", text), None);
        assert_eq!(parse("387", "==1== nothing"), None);
    }
}
