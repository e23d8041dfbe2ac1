//! Orders to drain nodes, as records of the configuration store. All nodes of a cluster know them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use api::{DrainOrder, Timestamp};
use configstore::{Applied, Table, View};
use serde::{Deserialize, Serialize};

use super::plan::{Kind, Terms};

pub const TABLE: Table = Table::named("drains");

/// Default time in seconds for all clients, and before the first disconnect.
const WITHIN_S: u32 = 300;
const WAIT_S: u32 = 5;

/// Order for one node. Unknown fields of later versions are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    within_s: u32,
    wait_s: u32,
    /// Number of clients that stay, if the order is a rebalance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<u64>,
    /// Names of the nodes that get the clients and shards; none: any node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// True if the node stops. It removes the order when it starts again.
    #[serde(default)]
    pub stops: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub at: Timestamp,
}

impl Order {
    /// Makes the order of an operator. `keep`: the number of clients that stay, of a rebalance.
    pub fn of_operator(order: &DrainOrder, keep: Option<u64>, by: &str) -> Self {
        Self {
            rate: order.rate,
            within_s: order.within_s.unwrap_or(WITHIN_S),
            wait_s: order.wait_s.unwrap_or(WAIT_S),
            keep,
            to: order.to.clone(),
            stops: false,
            by: (!by.is_empty()).then(|| by.to_owned()),
            at: Timestamp::now(),
        }
    }

    /// Makes the order of a node that stops. Most of the time is for the clients, the rest for shards. `to`: the nodes
    /// that its drain named, if it is drained already.
    pub fn of_stop(within: Duration, to: Vec<String>) -> Self {
        Self {
            rate: None,
            within_s: (within.as_secs() as u32 * 4 / 5).max(1),
            wait_s: 0,
            keep: None,
            to,
            stops: true,
            by: None,
            at: Timestamp::now(),
        }
    }

    pub fn terms(&self) -> Terms {
        let kind = match self.keep {
            Some(keep) => Kind::Rebalance { keep },
            None if self.stops => Kind::Stop,
            None => Kind::Drain,
        };
        // Records may be of another version. No time is so long that a sum of times overflows.
        Terms {
            kind,
            rate: self.rate.map(|rate| if rate.is_finite() { rate.clamp(0.1, 100_000.0) } else { 1.0 }),
            within: Duration::from_secs(self.within_s.min(86_400).into()),
            wait: Duration::from_secs(self.wait_s.min(3_600).into()),
        }
    }

    fn empties_node(&self) -> bool {
        self.keep.is_none()
    }

    /// Returns whether an operator drains the node.
    pub fn is_drain(&self) -> bool {
        self.empties_node() && !self.stops
    }
}

/// Nodes without clients and shards, with the nodes that get their shards.
pub type Emptied = BTreeMap<String, BTreeSet<String>>;

/// Orders for all nodes, by name, as this node knows them.
#[derive(Default)]
pub struct Orders {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    orders: BTreeMap<String, Order>,
    /// Order of this node to itself, when it stops.
    stop: Option<Order>,
    version: u64,
    has_ended: bool,
}

impl Orders {
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Returns the order that this node has to follow. `node` is its name.
    pub fn of(&self, node: &str) -> Option<Order> {
        let state = self.lock();
        // The record of a stop is for other nodes, or of an earlier run of this one.
        let recorded = || state.orders.get(node).filter(|order| !order.stops);
        state.stop.as_ref().or_else(recorded).cloned()
    }

    /// Returns whether this node stops.
    pub fn stops(&self) -> bool {
        self.lock().stop.is_some()
    }

    /// Returns the order of a node in the configuration store.
    pub fn recorded(&self, node: &str) -> Option<Order> {
        self.lock().orders.get(node).cloned()
    }

    /// Returns the nodes that are to have no clients and lead no shards. Each has the nodes that get its shards; none:
    /// any node.
    pub fn emptied(&self, own: &str) -> Emptied {
        let state = self.lock();
        // A stop of this node that is recorded was that of an earlier run.
        let is_emptied =
            |(name, order): &(&String, &Order)| order.empties_node() && !(order.stops && *name == own);
        let emptied = state.orders.iter().filter(is_emptied);
        let own = state.stop.iter().map(|order| (own, order));
        let emptied = emptied.map(|(name, order)| (name.as_str(), order)).chain(own);
        emptied.map(|(name, order)| (name.to_owned(), order.to.iter().cloned().collect())).collect()
    }

    /// Begins the drain of a node that stops.
    pub fn stop(&self, order: Order) {
        self.lock().stop = Some(order);
        self.notify();
    }

    /// Ends [`Self::wait`] for good.
    pub fn end(&self) {
        self.lock().has_ended = true;
        self.notify();
    }

    fn notify(&self) {
        self.lock().version += 1;
        self.changed.notify_all();
    }

    /// Waits for a change after `known`, for at most this time. Returns the version; `None` after [`Self::end`].
    pub fn wait(&self, known: u64, limit: Duration) -> Option<u64> {
        let state = self.lock();
        let is_known = |state: &mut State| state.version == known && !state.has_ended;
        let (state, _) = sync::ignore_poison(self.changed.wait_timeout_while(state, limit, is_known));
        (!state.has_ended).then_some(state.version)
    }

    fn apply_change(orders: &mut BTreeMap<String, Order>, change: Applied<'_>) {
        match change.value.map(serde_json::from_str) {
            None => drop(orders.remove(change.key)),
            Some(Ok(order)) => drop(orders.insert(change.key.to_owned(), order)),
            Some(Err(error)) => {
                tracing::error!(
                    node = change.key,
                    "an order to drain a node cannot be read, and has no effect: {error}"
                );
            }
        }
    }
}

impl View for Orders {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut fresh = BTreeMap::new();
        records.for_each(|record| Self::apply_change(&mut fresh, record));
        self.lock().orders = fresh;
        self.notify();
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        {
            let mut state = self.lock();
            changes.iter().for_each(|change| Self::apply_change(&mut state.orders, *change));
        }
        self.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use configstore::{Change, ConfigStore, LocalStore};

    use super::*;

    #[test]
    fn orders_of_the_store_are_known_and_a_stop_comes_first() {
        let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
        let orders = Arc::new(Orders::default());
        config_store.subscribe(TABLE, orders.clone()).expect("an empty table");
        let put = |node: &str, order: &Order| {
            config_store
                .propose(vec![Change::put(TABLE, node, order).expect("JSON")])
                .expect("a store in memory")
        };
        let drain =
            DrainOrder { rate: Some(7.0), to: vec!["c".to_owned(), "d".to_owned()], ..DrainOrder::default() };
        let drain = Order::of_operator(&drain, None, "ops");
        assert!(drain.is_drain());
        put("a", &drain);
        put("b", &Order::of_operator(&DrainOrder::default(), Some(9), ""));
        let terms = orders.of("a").expect("it is ordered").terms();
        assert_eq!(
            (terms.kind, terms.rate, terms.within.as_secs(), terms.wait.as_secs()),
            (Kind::Drain, Some(7.0), 300, 5)
        );
        assert_eq!(orders.of("b").expect("it is ordered").terms().kind, Kind::Rebalance { keep: 9 });
        let a = || ("a".to_owned(), ["c".to_owned(), "d".to_owned()].into());
        assert_eq!(orders.emptied("c"), [a()].into(), "a rebalance keeps clients");
        orders.stop(Order::of_stop(Duration::from_secs(30), vec!["d".to_owned()]));
        assert_eq!(orders.of("c").expect("it stops").terms().kind, Kind::Stop);
        assert_eq!(orders.emptied("c"), [a(), ("c".to_owned(), ["d".to_owned()].into())].into());
        config_store.propose(vec![Change::remove(TABLE, "a")]).expect("a store in memory");
        assert_eq!(orders.recorded("a"), None);
    }

    #[test]
    fn values_of_other_versions_are_bounded() {
        let text = r#"{"rate":1e300,"within_s":4294967295,"wait_s":4294967295,"at":"2026-01-31T12:00:00.000Z","later":1}"#;
        let order: Order = serde_json::from_str(text).expect("unknown fields are ignored");
        let terms = order.terms();
        assert_eq!(
            (terms.rate, terms.within.as_secs(), terms.wait.as_secs()),
            (Some(100_000.0), 86_400, 3_600)
        );
    }

    #[test]
    fn a_wait_ends_with_a_change_and_for_good_at_the_end() {
        let orders = Orders::default();
        assert_eq!(orders.wait(0, Duration::ZERO), Some(0));
        orders.stop(Order::of_stop(Duration::ZERO, Vec::new()));
        assert_eq!(orders.wait(0, Duration::from_secs(60)), Some(1));
        orders.end();
        assert_eq!(orders.wait(9, Duration::from_secs(60)), None);
    }
}
