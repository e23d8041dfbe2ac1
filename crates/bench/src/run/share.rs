//! One process's share of a run: a plan comes in, figures go out, a line of JSON each.
//!
//! The one that joins the shares says `begin` and `stop`; when it goes away, so does this.

use super::done::Done;
use super::drive::{Host, drive};
use super::interrupted;
use crate::live::Tick;
use crate::plan::Plan;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a share says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    Tick(Box<Tick>),
    /// All clients are connected or have failed.
    Settled,
    Done(Box<Done>),
    /// Nothing could begin.
    Failed(String),
}

/// What a share is told after its plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Publish.
    Begin,
    Stop,
}

/// The far end of the lines.
struct Joiner<W> {
    to: W,
    heard: Arc<Heard>,
    said_settled: bool,
    /// Nobody reads any more.
    gone: bool,
}

#[derive(Default)]
struct Heard {
    begin: AtomicBool,
    stop: AtomicBool,
}

impl<W: Write> Joiner<W> {
    fn say(&mut self, said: &Said) {
        let line = serde_json::to_string(said).expect("figures are JSON") + "\n";
        self.gone |= self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush()).is_err();
    }
}

impl<W: Write> Host for Joiner<W> {
    fn tick(&mut self, tick: Tick) {
        self.say(&Said::Tick(Box::new(tick)));
    }

    fn may_publish(&mut self) -> bool {
        if !self.said_settled {
            self.said_settled = true;
            self.say(&Said::Settled);
        }
        self.heard.begin.load(Relaxed)
    }

    fn stop(&mut self) -> bool {
        self.gone || interrupted() || self.heard.stop.load(Relaxed)
    }
}

/// Reads a plan, runs it, and tells what came of it. Returns the exit code.
pub fn run(mut from: impl BufRead + Send + 'static, to: impl Write) -> i32 {
    let mut joiner = Joiner { to, heard: Arc::default(), said_settled: false, gone: false };
    let mut line = String::new();
    let plan = from
        .read_line(&mut line)
        .map_err(|error| error.to_string())
        .and_then(|_| serde_json::from_str::<Plan>(&line).map_err(|error| error.to_string()));
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            joiner.say(&Said::Failed(format!("no plan came: {error}")));
            return 2;
        }
    };
    let heard = joiner.heard.clone();
    // Not waited for: it ends with the process, or when nobody says anything any more.
    std::thread::spawn(move || {
        let mut line = String::new();
        while from.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            match serde_json::from_str(&line) {
                Ok(Told::Begin) => heard.begin.store(true, Relaxed),
                Ok(Told::Stop) => heard.stop.store(true, Relaxed),
                Err(_) => {}
            }
            line.clear();
        }
        heard.stop.store(true, Relaxed);
    });
    match drive(&plan, &mut joiner) {
        Ok(done) => {
            joiner.say(&Said::Done(Box::new(done)));
            0
        }
        Err(error) => {
            joiner.say(&Said::Failed(error.to_string()));
            2
        }
    }
}
