//! One terminal line that is rewritten each second.

use super::{Row, Scene};
use crate::counters::Counts;
use std::io::Write;

/// A bar with rates and percentiles.
pub struct Bar(Scene);

const CELLS: usize = 20;

impl Bar {
    pub fn new(scene: Scene) -> Bar {
        Bar(scene)
    }

    pub fn draw(&mut self, row: &Row, c: &Counts, settled: bool) {
        let text: String = self.text(row, c, settled).chars().take(columns()).collect();
        // A closed terminal is no reason to end a measurement.
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}").and_then(|()| std::io::stderr().flush());
    }

    pub fn clear(&mut self) {
        let _ = write!(std::io::stderr(), "\r\x1b[K").and_then(|()| std::io::stderr().flush());
    }

    fn text(&self, row: &Row, c: &Counts, settled: bool) -> String {
        let share = match (settled, self.0.messages, self.0.seconds) {
            (false, ..) => (c.ready_subs + c.ready_pubs + c.failed) as f64 / self.0.clients.max(1) as f64,
            (true, 1.., _) => c.sent as f64 / self.0.messages as f64,
            (true, 0, Some(seconds)) => row.at / seconds,
            (true, 0, None) => 1.0,
        };
        let full = (share.clamp(0.0, 1.0) * CELLS as f64) as usize;
        let mut text = format!(
            "[{}{}] {:.0}s  up {}/{}",
            "#".repeat(full),
            "-".repeat(CELLS - full),
            row.at,
            c.up,
            self.0.clients
        );
        if self.0.sends {
            text += &format!("  sent {}/s", short(row.sent));
        }
        if self.0.receives {
            text += &format!("  received {}/s", short(row.received));
        }
        if let Some([p50, _, p99, _, max]) = row.latency {
            text += &format!("  ms p50 {p50:.2} p99 {p99:.2} max {max:.1}");
        }
        if row.errors > 0 {
            text += &format!("  errors {}", row.errors);
        }
        text
    }
}

/// Formats a number: 950, 1.2k, 3.4M.
pub fn short(value: f64) -> String {
    match value {
        1e6.. => format!("{:.1}M", value / 1e6),
        1e3.. => format!("{:.1}k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

/// Width of the terminal on standard error, minus one so that the cursor stays on the line; 79 when unknown.
fn columns() -> usize {
    // SAFETY: zeroes are a valid `winsize`, and the call writes nothing else.
    let columns = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &mut size);
        size.ws_col
    };
    if columns < 20 { 79 } else { usize::from(columns) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, Plan};

    #[test]
    fn the_bar_shows_the_progress_of_a_run() {
        let mut plan = Plan::base(Kind::Pub);
        plan.clients.count = 10;
        plan.schedule.limit = 100;
        let bar = Bar::new(Scene::of(&plan));
        let row = Row {
            at: 3.2,
            sent: 1234.0,
            latency: Some([0.5, 1.0, 2.0, 3.0, 4.0]),
            errors: 2,
            ..Row::default()
        };
        let connecting = Counts { ready_pubs: 5, up: 5, ..Counts::default() };
        let text = bar.text(&row, &connecting, false);
        assert!(text.starts_with("[##########----------] 3s  up 5/10"), "{text}");
        let sending = Counts { sent: 25, up: 10, ..Counts::default() };
        let text = bar.text(&row, &sending, true);
        assert!(text.starts_with("[#####---------------]"), "{text}");
        assert!(text.ends_with("sent 1.2k/s  ms p50 0.50 p99 2.00 max 4.0  errors 2"), "{text}");
    }
}
