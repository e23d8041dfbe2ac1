//! What every part of a simulation has at hand.

use crate::random::Random;
use crate::report::Report;
use crate::schedule::{Event, Micros, Schedule};
use crate::trace::Trace;

pub struct Context {
    pub random: Random,
    pub schedule: Schedule,
    pub report: Report,
    pub trace: Trace,
    /// Some reads of disks take seconds. Not while everything heals.
    pub has_slow_reads: bool,
}

impl Context {
    pub fn now(&self) -> Micros {
        self.schedule.now()
    }

    /// This happens so much later.
    pub fn after(&mut self, delay: Micros, event: Event) {
        self.at(self.now() + delay, event);
    }

    pub fn at(&mut self, at: Micros, event: Event) {
        let tie = self.random.draw();
        self.schedule.at(at, tie, event);
    }

    /// One of `from..to`, microseconds.
    pub fn between(&mut self, from: Micros, to: Micros) -> Micros {
        from + self.random.draw() % (to - from).max(1)
    }

    pub fn log(&mut self, text: impl FnOnce() -> String) {
        let now = self.now();
        self.trace.line(now, text);
    }
}
