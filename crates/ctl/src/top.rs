//! `meridian top`: live figures of a node. `feed` asks the node, `snapshot` and `rates` compute numbers from the
//! answers. `state` holds the shown data and handles keys, `view` draws it, `screen` owns the terminal, `once` prints
//! it.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::args::{ConnectionArgs, duration};
use crate::console::Console;
use crate::failure::Failure;

mod feed;
mod layout;
mod once;
mod panel;
mod rates;
mod screen;
mod snapshot;
mod state;
mod theme;
mod view;

#[cfg(test)]
mod tests;

/// Watch a running node in the terminal
#[derive(Args, Debug)]
#[command(after_help = "\
Keys:
  q quit    p pause    + - interval    Tab, arrows: select panel    s sort    j k scroll    z one panel alone    ? help

Examples:
  meridian top
  meridian top --interval 5s --url http://127.0.0.1:28083
  meridian top --once                 two snapshots --interval apart, as text
  meridian top --json | jq .rates     the same for scripts

Exit codes: 0 done, 1 refused or failed, 2 wrong command line, 3 node not reachable or unavailable, 5 not permitted.
Colours are off when NO_COLOR is set.")]
pub struct TopArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Time between two requests, 500ms to 1h
    #[arg(long, short, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Print one snapshot and end; needs no terminal
    #[arg(long)]
    once: bool,
    /// Print one snapshot as JSON: {"node", "stats", "top", "slow_subscribers", "rates", "alarms"}
    #[arg(long)]
    json: bool,
}

/// Minimum time between two requests. The node updates its figures about once a second.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
const INTERVAL_MAX: Duration = Duration::from_secs(3_600);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    let allowed = INTERVAL_MIN..=INTERVAL_MAX;
    if allowed.contains(&interval) { Ok(interval) } else { Err("from 500ms to 1h".to_owned()) }
}

impl TopArgs {
    /// Runs until `q`. Reports an error on standard error.
    pub fn run(self) -> ExitCode {
        let json = self.json;
        match self.go() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report("top", json, &mut io::stderr()),
        }
    }

    fn go(self) -> Result<(), Failure> {
        let client = self.connection.client()?;
        if let Some(warning) = self.connection.warning() {
            // The warning is readable at the latest when the screen is restored.
            writeln!(io::stderr(), "{warning}").ok();
        }
        if self.once || self.json {
            let mut console = Console::new(client, self.json, false);
            return once::run(&mut console, self.interval);
        }
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        if dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            let why = "standard output is not a terminal: use --once to print one snapshot as text, or --json for \
                 scripts";
            return Err(Failure::Usage(why.to_owned()));
        }
        screen::run(client, self.interval)
    }
}
