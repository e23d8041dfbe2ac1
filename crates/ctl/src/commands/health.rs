//! `meridian ctl health`: for scripts that wait for a node, and for health checks of containers.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::Command;
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;

/// Check whether the node is ready; no token is needed
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl health                 exit code 0: ready; 1: starting or stopping; 3: not reachable
  meridian ctl health --wait 30s      wait until it is ready")]
pub struct HealthArgs {
    /// Wait this long for the node to become ready
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    wait: Duration,
}

/// Time between two requests of a waiting command.
const ASK: Duration = Duration::from_millis(200);

impl Command for HealthArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let until = Instant::now() + self.wait;
        loop {
            let failure = match console.client.status("/health/ready") {
                Ok((200, document)) => return console.done(&document, &document.cell("status")),
                Ok((_, document)) => Failure::Failed(format!("the node is {}", document.cell("status"))),
                Err(failure) => failure,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failure);
            }
            // Nothing unparks this thread: the node does not report that it becomes ready.
            thread::park_timeout(ASK.min(left));
        }
    }
}
