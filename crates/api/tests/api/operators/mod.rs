//! Requests of operators to a node, over real HTTP, with real MQTT clients on the other side.

mod bad_input;
mod bans;
pub mod client;
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

/// Upper bound for every wait on a busy machine; a test that needs longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Repeats a request until there is a result, for conditions that become true after a moment.
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
