//! Many routes of clients on one node, and a node that starts without them.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::Client;
use crate::bench::child::interrupted;

/// Maximum number of subscriptions of a client.
pub const FILTERS: u32 = 50_000;
/// Time between two attempts to reach a starting node.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients of one node, with many different filters.
pub struct Writers {
    clients: Vec<Client>,
    pub count: u32,
    /// Time from the first SUBSCRIBE to the last SUBACK.
    pub took: Duration,
}

/// Cost of a copy.
pub struct Copy {
    /// Time from the start of the process until it had acknowledged a message that then arrived at its subscriber.
    pub served: Duration,
    /// Time until the link to the core was up.
    pub linked: Duration,
    /// CPU time of the process, user and system, until then.
    pub cpu_s: f64,
    /// Bytes received over its links until then.
    pub bytes: u64,
}

impl Writers {
    /// Subscribes to at least `count` filters, in clients of [`FILTERS`] each.
    ///
    /// # Errors
    /// A client is refused.
    pub fn subscribe(mqtt: SocketAddr, count: u32) -> Result<Self> {
        let begun = Instant::now();
        let mut clients = Vec::new();
        for number in 0..count.div_ceil(FILTERS) {
            let mut client = Client::connect(mqtt, &format!("filters-{number}"))?;
            client.be_patient(Duration::from_secs(120));
            client.subscribe_many(FILTERS, |at| format!("bench/{number}/{at}/#"))?;
            clients.push(client);
            ensure!(!interrupted(), "interrupted");
        }
        let count = clients.len() as u32 * FILTERS;
        Ok(Self { clients, count, took: begun.elapsed() })
    }

    /// A topic that the last of the filters matches.
    pub fn last_topic(&self) -> String {
        format!("bench/{}/{}/here", self.clients.len().saturating_sub(1), FILTERS - 1)
    }

    /// Checks that a message for the last topic has arrived.
    ///
    /// # Errors
    /// It has not.
    pub fn received(&mut self, within: Duration) -> Result<()> {
        let client = self.clients.last_mut().context("no filters")?;
        let found = client.receive(within)?;
        ensure!(found.is_some(), "an acknowledged message did not arrive at the last of all routes");
        Ok(())
    }
}

/// Publishes at QoS 1 on a starting node, and waits for the acknowledgement. A node acknowledges only when it knows
/// all routes that the cores knew when it asked them.
///
/// # Errors
/// It takes longer.
pub fn publish_when_served(mqtt: SocketAddr, topic: &str, longest: Duration) -> Result<()> {
    let deadline = Instant::now() + longest;
    let mut client = loop {
        match Client::connect(mqtt, "first-of-all") {
            Ok(client) => break client,
            Err(error) if Instant::now() > deadline || interrupted() => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    client.be_patient(longest);
    client.publish(topic, "here", 1, false)
}

/// Time for which at least one link of a node has been up, by its view.
///
/// # Errors
/// None is up.
pub fn linked_for(view: &Value) -> Result<Duration> {
    let links = view["links"].as_array().into_iter().flatten();
    let up = links.filter(|link| link["state"] == "up").filter_map(|link| link["state_s"].as_f64());
    up.max_by(f64::total_cmp).map(Duration::from_secs_f64).context("no link is up")
}

/// Bytes received over all links of a node, by its view.
pub fn bytes_received(view: &Value) -> u64 {
    let links = view["links"].as_array().into_iter().flatten();
    links.filter_map(|link| link["bytes_received"].as_u64()).sum()
}

/// Checks that two nodes know the same routes of a node, and at least `count`.
///
/// # Errors
/// They do not.
pub fn ensure_same((one, other): (&Value, &Value), node: &str, count: u32) -> Result<()> {
    let of = |view: &Value| {
        let routes = view["routes"].as_array().into_iter().flatten().find(|routes| routes["node"] == node);
        routes.map(|routes| (routes["filters"].as_u64(), routes["digest"].as_str().map(str::to_owned)))
    };
    let (one, other) = (of(one), of(other));
    let is_whole = one.as_ref().and_then(|(filters, _)| *filters).is_some_and(|it| it >= u64::from(count));
    ensure!(is_whole && one == other, "of {count} routes one node knows {one:?} and the other {other:?}");
    Ok(())
}
