//! One process's share of a run: it receives plans and sends figures, as one line of JSON each.
//!
//! The controller sends `begin` and `stop`; when it disappears, the share ends.

use super::done::Done;
use super::drive::{Host, drive};
use super::interrupted;
use crate::config::SetupError;
use crate::live::Tick;
use crate::plan::Plan;
use crate::process;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read as _, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Message of a share. Numbers are indexes of its plans.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberMessage {
    Tick(usize, Box<Tick>),
    /// All initial clients of a plan are connected or have failed.
    Settled(usize),
    Done(usize, Box<Done>),
    /// The share could not start. Holds the reason.
    Failed(String),
    /// Keep-alive without content.
    Alive,
}

/// Message to a share after its plans.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControllerMessage {
    /// Starts publishing.
    Begin,
    Stop,
    /// Keep-alive without content.
    Alive,
}

/// Maximum length of a line in bytes; the longest are results with their histograms.
const LINE_MAX: u64 = 64 << 20;

/// Reads the next line; `None` at the end.
///
/// # Errors
/// Errors of the reader, and a line that is too long.
pub fn line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    from.take(LINE_MAX).read_line(&mut line)?;
    match line.ends_with('\n') {
        true => Ok(Some(line)),
        false if line.is_empty() => Ok(None),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Sending end of the lines, which the plans of this process share.
struct Joiner<W> {
    to: Mutex<W>,
    begin: AtomicBool,
    stop: Arc<AtomicBool>,
}

impl<W: Write> Joiner<W> {
    /// Sends a message. A failure means that the controller is gone, and ends the run.
    fn send(&self, message: &MemberMessage) {
        let line = serde_json::to_string(message).expect("figures are JSON") + "\n";
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if to.write_all(line.as_bytes()).and_then(|()| to.flush()).is_err() {
            self.stop.store(true, Relaxed);
        }
    }
}

/// The view of one plan.
struct Part<'a, W> {
    joiner: &'a Joiner<W>,
    number: usize,
    settled_sent: bool,
}

impl<W: Write> Host for Part<'_, W> {
    fn tick(&mut self, tick: Tick) {
        self.joiner.send(&MemberMessage::Tick(self.number, Box::new(tick)));
    }

    fn may_publish(&mut self) -> bool {
        if !self.settled_sent {
            self.settled_sent = true;
            self.joiner.send(&MemberMessage::Settled(self.number));
        }
        self.joiner.begin.load(Relaxed)
    }

    fn stop(&mut self) -> bool {
        interrupted() || self.joiner.stop.load(Relaxed)
    }
}

/// Reads plans, runs them, and sends the results. Returns the exit code.
pub fn run(mut from: impl BufRead + Send + 'static, to: impl Write + Send + 'static) -> i32 {
    let plans = line(&mut from).map_err(|error| error.to_string()).and_then(|line| {
        serde_json::from_str::<Vec<Plan>>(&line.unwrap_or_default()).map_err(|error| error.to_string())
    });
    let joiner = Arc::new(Joiner { to: Mutex::new(to), begin: AtomicBool::new(false), stop: Arc::default() });
    let plans = match plans {
        Ok(plans) => plans,
        Err(error) => {
            joiner.send(&MemberMessage::Failed(format!("no plan came: {error}")));
            return 2;
        }
    };
    let reader = joiner.clone();
    // The thread is not joined: it ends with the process, or when the controller is gone.
    std::thread::spawn(move || {
        while let Ok(Some(line)) = line(&mut from) {
            match serde_json::from_str(&line) {
                Ok(ControllerMessage::Begin) => reader.begin.store(true, Relaxed),
                Ok(ControllerMessage::Stop) => reader.stop.store(true, Relaxed),
                // Answered at once, so that both ends detect silence.
                Ok(ControllerMessage::Alive) => reader.send(&MemberMessage::Alive),
                Err(_) => {}
            }
        }
        reader.stop.store(true, Relaxed);
    });
    if let Err(error) = check_limits(&plans) {
        joiner.send(&MemberMessage::Failed(error.to_string()));
        return 2;
    }
    let drive_one = |(number, plan): (usize, &Plan)| {
        let mut part = Part { joiner: &joiner, number, settled_sent: false };
        match drive(plan, &mut part) {
            Ok(done) => {
                joiner.send(&MemberMessage::Done(number, Box::new(done)));
                0
            }
            Err(error) => {
                joiner.send(&MemberMessage::Failed(error.to_string()));
                2
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            plans.iter().enumerate().map(|one| scope.spawn(move || drive_one(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(2)).max().unwrap_or(0)
    })
}

/// Checks that all plans together fit in this process.
fn check_limits(plans: &[Plan]) -> Result<(), SetupError> {
    let needed =
        plans.iter().map(|plan| plan.clients.count as u64 + plan.output.threads as u64).sum::<u64>() + 40;
    let limit = process::raise_nofile();
    if needed > limit { Err(SetupError::TooManyFiles { needed, limit }) } else { Ok(()) }
}
