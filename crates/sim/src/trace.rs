//! Readable trace of a simulation.

use crate::schedule::Micros;

/// Lines with their virtual time. Off by default, because formatting costs more than the simulation.
#[derive(Default)]
pub struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    pub fn on() -> Self {
        Self { lines: Some(Vec::new()) }
    }

    pub fn line(&mut self, now: Micros, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>5}.{:06} {}", now / 1_000_000, now % 1_000_000, text()));
        }
    }

    pub fn take(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
