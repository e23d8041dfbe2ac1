//! One snapshot as text or JSON.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::panel::Panel;
use super::snapshot::{Answers, Snapshot};
use super::state::State;
use super::view;
use crate::console::Console;
use crate::failure::Failure;
use crate::table::Table;

/// Takes two snapshots, because rates need two, and prints the second one with the rates.
///
/// # Errors
/// Those of the client and of standard output.
pub fn run(console: &mut Console, interval: Duration) -> Result<(), Failure> {
    let mut state = State::new(console.client.url(), interval);
    let began = Instant::now();
    state.accept_snapshot(Snapshot::read(&Answers::ask(&console.client)?));
    while let Some(left) = interval.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        // Nothing unparks this thread.
        thread::park_timeout(left);
    }
    let answers = Answers::ask(&console.client)?;
    state.accept_snapshot(Snapshot::read(&answers));
    if console.json {
        let rates = state.rates.as_ref().map(|rates| rates.json(&state.snapshot));
        let Answers { node, stats, top, slow, alarms } = answers;
        console.document(
            &json!({"node": node, "stats": stats, "top": top, "slow_subscribers": slow, "rates": rates, "alarms": alarms["items"]}),
        )?;
    } else {
        print(console, &state)?;
    }
    console.flush()
}

/// Number of rows of each panel. `ctl top-talkers` has more.
const ROWS_MAX: usize = 10;

fn print(console: &mut Console, state: &State) -> Result<(), Failure> {
    for (_, line) in view::header_lines(state, Instant::now()) {
        console.line(&line)?;
    }
    for alarm in &state.snapshot.alarms {
        console.line(&format!("! {}", alarm.text))?;
    }
    for panel in Panel::ALL {
        console.line("")?;
        console.line(&panel.title().to_uppercase())?;
        let content = panel.content(state);
        if content.rows.is_empty() {
            console.line(&content.empty)?;
        }
        let mut table = Table::new(&content.columns);
        content.rows.into_iter().take(ROWS_MAX).for_each(|(_, cells)| table.row(cells));
        console.table(&mut table)?;
    }
    Ok(())
}
