//! State that all parts of a simulation share.

use crate::report::Report;
use crate::schedule::{Event, Micros, Schedule};
use crate::trace::Trace;
use random::Random;

pub struct Context {
    pub random: Random,
    pub schedule: Schedule,
    pub report: Report,
    pub trace: Trace,
    /// True if some disk reads take seconds. Off after the last fault.
    pub has_slow_reads: bool,
}

impl Context {
    pub fn now(&self) -> Micros {
        self.schedule.now()
    }

    /// Schedules an event after `delay`.
    pub fn after(&mut self, delay: Micros, event: Event) {
        self.at(self.now() + delay, event);
    }

    pub fn at(&mut self, at: Micros, event: Event) {
        let tie = self.random.draw();
        self.schedule.at(at, tie, event);
    }

    /// Random time in `from..to`, microseconds.
    pub fn between(&mut self, from: Micros, to: Micros) -> Micros {
        from + self.random.draw() % (to - from).max(1)
    }

    pub fn log(&mut self, text: impl FnOnce() -> String) {
        let now = self.now();
        self.trace.line(now, text);
    }
}
