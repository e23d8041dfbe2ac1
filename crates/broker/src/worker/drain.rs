//! Disconnects the clients of a node that is drained.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use mqtt::{ReasonCode, Subscription};

use super::Worker;
use crate::admin::{DrainClass, DrainStep, Drained};
use crate::connection::{Connection, Phase};
use crate::ids::Time;

/// Maximum number of connections that one step examines.
const CONNECTIONS_AT_ONCE: u32 = 2_000;
/// Maximum number of subscriptions that one step examines, except that it examines all of one client.
const SUBSCRIPTIONS_AT_ONCE: usize = 20_000;
/// Time without a packet after which a client counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of shared groups whose last departure is remembered. Members of other groups do not wait.
const GROUPS_MAX: usize = 65_536;

/// State of a drain that the workers of a node share.
#[derive(Debug, Default)]
pub(crate) struct DrainState {
    refuses: AtomicBool,
    reference: OnceLock<Option<Arc<str>>>,
    /// Server References instead of that one, if there are any. Each begins with another node.
    successors: Mutex<Vec<Arc<str>>>,
    /// Number of clients that got one of these; it wraps.
    referred: AtomicUsize,
    /// Time at which a member of each shared group was last disconnected. Workers use it during a drain only.
    departures: Mutex<HashMap<Box<str>, Time>>,
    /// Number of open connections that the process has made to itself.
    own_connections: AtomicU64,
}

impl DrainState {
    pub fn set_refusing(&self, refuses: bool) {
        self.refuses.store(refuses, Relaxed);
        if !refuses {
            *sync::lock(&self.departures) = HashMap::new();
        }
    }

    pub fn refuses(&self) -> bool {
        self.refuses.load(Relaxed)
    }

    pub fn set_reference(&self, reference: Option<Arc<str>>) {
        self.reference.get_or_init(|| reference);
    }

    pub fn set_successors(&self, addresses: &[String]) {
        let from = |first: usize| {
            let (end, begin) = addresses.split_at(first);
            [begin, end].concat().join(" ").into()
        };
        *sync::lock(&self.successors) = (0..addresses.len()).map(from).collect();
    }

    /// Returns the Server Reference that belongs to a Reason Code, if there is one.
    pub fn reference_for(&self, reason: ReasonCode) -> Option<Arc<str>> {
        if !matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved) {
            return None;
        }
        let successors = sync::lock(&self.successors);
        // A client takes the first server of the list, so clients spread over all of them.
        let turn = self.referred.fetch_add(1, Relaxed) % successors.len().max(1);
        successors.get(turn).or_else(|| self.reference.get()?.as_ref()).cloned()
    }
}

impl DrainState {
    pub fn own_connections(&self) -> u64 {
        self.own_connections.load(Relaxed)
    }

    pub fn own_connection_opened(&self) {
        self.own_connections.fetch_add(1, Relaxed);
    }

    pub fn own_connection_ended(&self) {
        self.own_connections.fetch_sub(1, Relaxed);
    }

    /// Returns whether a client may leave its shared groups now, and notes its departure from all of them.
    fn may_leave_groups(&self, now: Time, groups: &[Box<str>]) -> bool {
        let mut departures = sync::lock(&self.departures);
        let is_recent =
            |group: &str| departures.get(group).is_some_and(|left| left.after(DrainStep::GROUP_PAUSE) > now);
        if groups.iter().any(|group| is_recent(group)) {
            return false;
        }
        if departures.len() + groups.len() > GROUPS_MAX {
            departures.retain(|_, left| left.after(DrainStep::GROUP_PAUSE) > now);
        }
        if departures.len() + groups.len() <= GROUPS_MAX {
            departures.extend(groups.iter().map(|group| (group.clone(), now)));
        }
        true
    }
}

/// Progress of a drain on one worker.
#[derive(Debug, Default)]
pub(super) struct DrainProgress {
    /// Next slot to examine.
    next: u32,
    /// Number of connections examined since the last one that was disconnected, or since the class changed.
    examined: u32,
    class: DrainClass,
}

impl Worker {
    /// Disconnects up to `limit` clients of the class.
    pub(super) fn drain_some(&mut self, step: &DrainStep) -> Drained {
        let slots = self.connections.slots();
        if self.drain.class != step.class {
            self.drain = DrainProgress { next: self.drain.next, class: step.class, examined: 0 };
        }
        let (mut disconnected, mut subscriptions) = (0, 0);
        for _ in 0..CONNECTIONS_AT_ONCE.min(slots) {
            if disconnected == step.limit || subscriptions >= SUBSCRIPTIONS_AT_ONCE {
                break;
            }
            let slot = if self.drain.next < slots { self.drain.next } else { 0 };
            self.drain.next = slot + 1;
            self.drain.examined = self.drain.examined.saturating_add(1);
            subscriptions += self.connections.occupant_ref(slot).map_or(0, |it| it.subscriptions.len());
            if self.drain_connection(slot, step) {
                disconnected += 1;
                self.drain.examined = 0;
            }
        }
        Drained { disconnected, is_exhausted: self.drain.examined >= slots }
    }

    /// Disconnects the client of a slot, if it is of the class. Returns whether it is.
    fn drain_connection(&mut self, slot: u32, step: &DrainStep) -> bool {
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant_ref(slot) else { return false };
        // A client that is about to be accepted is closed like a connected one, in the last class.
        let is_open = connection.phase == Phase::Open;
        if matches!(connection.phase, Phase::AwaitConnect | Phase::Closing)
            || connection.marks.role.is_process()
        {
            return false;
        }
        let groups = if is_open { shared_groups(connection) } else { Vec::new() };
        let belongs = match step.class {
            DrainClass::Idle => is_open && groups.is_empty() && is_idle(connection, now),
            DrainClass::Unshared => is_open && groups.is_empty(),
            DrainClass::All => {
                groups.is_empty() || step.hurries || self.node.drain.may_leave_groups(now, &groups)
            }
        };
        if !belongs {
            return false;
        }
        self.counters.drained += 1;
        self.close_or_refuse(slot, step.reason);
        true
    }
}

/// Names of the shared groups of a client.
fn shared_groups(connection: &Connection) -> Vec<Box<str>> {
    let filters = connection.subscriptions.iter().map(|(filter, ..)| filter);
    filters
        .filter(|filter| Subscription::of_parsed(filter).is_ok_and(|it| it.share.is_some()))
        .map(Into::into)
        .collect()
}

fn is_idle(connection: &Connection, now: Time) -> bool {
    let is_busy = connection.flow.as_deref().is_some_and(|flow| {
        flow.deliveries.inflight() > 0
            || !flow.queue.is_empty()
            || !flow.acknowledging.is_empty()
            || !flow.divided.is_empty()
    });
    !is_busy && now.since(connection.last_packet) >= IDLE_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients take the first server of the list (MQTT 5.0, 4.11).
    #[test]
    fn clients_get_the_addresses_of_the_named_nodes_in_turn() {
        let drain = DrainState::default();
        let next = |reason| drain.reference_for(reason);
        assert_eq!(next(ReasonCode::UseAnotherServer), None);
        drain.set_reference(Some("balancer:1883".into()));
        assert_eq!(next(ReasonCode::UseAnotherServer).as_deref(), Some("balancer:1883"));
        drain.set_successors(&["a:1".to_owned(), "b:2".to_owned(), "c:3".to_owned()]);
        let mut named: Vec<_> = (0..6).filter_map(|_| next(ReasonCode::ServerMoved)).collect();
        named.sort();
        let each = ["a:1 b:2 c:3", "b:2 c:3 a:1", "c:3 a:1 b:2"];
        assert_eq!(named.iter().map(|it| &**it).collect::<Vec<_>>(), each.map(|it| [it, it]).concat());
        assert_eq!(next(ReasonCode::QuotaExceeded), None);
        drain.set_successors(&[]);
        assert_eq!(next(ReasonCode::UseAnotherServer).as_deref(), Some("balancer:1883"));
    }
}
