//! Simulation of a relay between two model brokers: connections that end at any byte, processes that end at any moment,
//! slow readers, refused messages and lost sessions. `MERIDIAN_BRIDGE_SEED` runs one seed, `MERIDIAN_BRIDGE_RUNS`
//! another number of them.

mod world;

use world::{Report, run};

/// Number of runs. Their time is a few seconds.
const RUNS: u64 = 1_500;

#[test]
fn messages_arrive_as_their_qos_says_whatever_fails() {
    let mut report = Report::default();
    if let Some(seed) = std::env::var("MERIDIAN_BRIDGE_SEED").ok().and_then(|text| text.parse().ok()) {
        return run(seed, &mut report);
    }
    let runs = std::env::var("MERIDIAN_BRIDGE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(RUNS);
    for seed in 0..runs {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut report)));
        if let Err(panic) = result {
            eprintln!("seed {seed}: run it alone with MERIDIAN_BRIDGE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    for event in [
        "runs of 5.0",
        "runs of 3.1.1",
        "runs with a lower maximum QoS",
        "runs with separate sessions",
        "identifiers released at both brokers",
        "runs with subscriptions that change",
        "filters changed",
        "all filters given",
        "a new process knows the filters at once",
        "filters continue in a new relay",
        "subscription refused",
        "list answered",
        "list not answered",
        "lists unanswered, as the relay saw it",
        "stale filters",
        "stale filters at the end of a run",
        "messages of this cluster",
        "messages of a third cluster",
        "bridge bit refused",
        "connection not opened",
        "local connection cut",
        "remote connection cut",
        "process ended",
        "local session lost",
        "remote session lost",
        "sessions lost, as the relay saw it",
        "slow reader",
        "gentle stop",
        "stopped",
        "stopped with messages in flight",
        "new settings",
        "another export",
        "reading paused",
        "receive maximum reached",
        "identifier of a subscription in use",
        "publish again",
        "pubrel",
        "pubrel again",
        "pubrel for an unknown identifier",
        "duplicate ignored",
        "refused",
        "refused, as the relay saw it",
        "refused for now",
        "refused for now by the remote broker, as the relay saw it",
        "refused for now by this broker, as the relay saw it",
        "too large for the broker",
        "too large for the bridge",
        "held messages",
        "restarts because of too many messages in flight",
        "released identifiers",
        "exactly once",
        "at least once",
        "more than once, as QoS 1 may",
        "at most once",
    ] {
        assert!(report.count(event) > 0, "it never happened: {event}");
    }
}
