//! What operators ask of a node and do to it, over real HTTP, with real MQTT clients on the other side.

mod bad_input;
mod bans;
mod client;
mod clients;
mod decisions;
mod fixture;
mod http;
mod messages;
mod metrics;
mod no_quorum;
mod paging;
mod roles;
mod rules;
mod subscriptions;
mod trace;
mod users;

use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine: what needs it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until there is an answer: for what becomes true a moment after something else.
#[track_caller]
fn eventually<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}
