//! Pace of a drain: decides how many clients the node disconnects now, and when it pauses. No I/O, clocks or threads.

use std::time::Duration;

use broker::admin::DrainClass;

/// Minimum default rate in clients per second, so that a drain of few clients is short.
const RATE_MIN: f64 = 50.0;
/// Maximum number of clients that a tick disconnects when none is known any more.
const PROBE: u32 = 10;
/// Maximum number of clients that one tick disconnects, whatever the time since the last one.
const BURST_MAX: f64 = 1_000.0;
/// Time without progress for which a drain that has disconnected all clients waits for other cores to lead its shards.
const SHARDS_WAIT: Duration = Duration::from_secs(30);
/// The same, of a node that stops. A transfer takes less than a second if the other replicas have a majority.
const SHARDS_WAIT_OF_STOP: Duration = Duration::from_secs(3);

/// Reason for a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An operator takes all clients away.
    Drain,
    /// The node disconnects clients until it has this number.
    Rebalance { keep: u64 },
    /// The node stops within a time limit.
    Stop,
}

/// Pace of a drain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    pub kind: Kind,
    /// Clients per second; `None`: as many as `within` needs.
    pub rate: Option<f64>,
    /// Time for all clients, after `wait`.
    pub within: Duration,
    /// Time before the first disconnect.
    pub wait: Duration,
}

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    pub name: String,
    /// False if it is suspect, dead, drained, or not ready.
    pub accepts_clients: bool,
    /// Overload level, 0 to 3.
    pub overload: u8,
    /// Number of clients that it has room for; `None` if that is unknown.
    pub room: Option<u64>,
}

/// State of the node and the others at a tick.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Connected clients of this node.
    pub clients: u64,
    /// Shards that this node leads and another one can lead.
    pub shards_led: u64,
    /// Nodes that get the clients; `None` if the node belongs to no cluster, so that other servers are unknown.
    pub others: Option<Vec<Other>>,
}

/// State of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits until load balancers have noticed that the node is not ready.
    Waiting,
    Disconnecting,
    Paused(Pause),
    /// Nothing is left to do.
    Done,
}

/// Reason why a drain has paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pause {
    NoOtherNode,
    Overloaded(String),
    NoRoom { left: u64, room: u64 },
}

impl Pause {
    /// Describes the reason for operators. `to`: the nodes that the order names; none: all others.
    pub fn describe(&self, to: &[String]) -> String {
        let names = to.join(", ");
        match self {
            Self::NoOtherNode if to.is_empty() => "no other node accepts clients".to_owned(),
            Self::NoOtherNode if to.len() == 1 => format!("node {names} does not accept clients"),
            Self::NoOtherNode => format!("none of the nodes {names} accepts clients"),
            Self::Overloaded(node) => format!("node {node} is overloaded"),
            Self::NoRoom { left, room } => {
                let others =
                    if to.is_empty() { "on the other nodes".to_owned() } else { format!("on {names}") };
                format!("{left} clients are left, and there is room for {room} {others}")
            }
        }
    }
}

/// Drain of one node.
#[derive(Debug)]
pub struct Plan {
    terms: Terms,
    began: Duration,
    last_tick: Duration,
    clients_before: u64,
    disconnected: u64,
    /// Clients that may be disconnected now, as far as the rate says.
    credit: f64,
    class: DrainClass,
    phase: Phase,
    /// Time of the last progress.
    progressed: Duration,
    /// Number of shards led at the last tick.
    shards_led: u64,
    /// Time at which the last client left.
    emptied: Option<Duration>,
    /// True if the workers have found no client since the last one was known.
    is_confirmed: bool,
}

impl Plan {
    /// Begins a drain. Times are since a fixed moment.
    pub fn begin(now: Duration, terms: Terms, observed: &Observed) -> Self {
        Self {
            terms,
            began: now,
            last_tick: now,
            clients_before: observed.clients,
            disconnected: 0,
            credit: 0.0,
            class: DrainClass::Idle,
            phase: Phase::Waiting,
            progressed: now,
            shards_led: observed.shards_led,
            emptied: None,
            is_confirmed: false,
        }
    }

    /// Changes the pace of a drain that goes on.
    pub fn set_terms(&mut self, now: Duration, terms: Terms, observed: &Observed) {
        if terms.kind != self.terms.kind {
            *self = Self::begin(now, terms, observed);
        }
        self.terms = terms;
    }

    /// Returns the number of clients to disconnect now.
    pub fn tick(&mut self, now: Duration, observed: &Observed) -> u32 {
        let since = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        if observed.shards_led < self.shards_led {
            self.progressed = now;
        }
        self.shards_led = observed.shards_led;
        if self.waits(now) {
            self.phase = Phase::Waiting;
            self.progressed = now;
            return 0;
        }
        let left = self.left(observed.clients);
        if left == 0 {
            self.credit = 0.0;
            // The number of clients is up to a second old.
            if self.refuses() && !self.is_confirmed && self.pause(left, observed).is_none() {
                self.class = DrainClass::All;
                self.phase = Phase::Disconnecting;
                return PROBE;
            }
            let emptied = *self.emptied.get_or_insert(now);
            let wait_max = match self.terms.kind {
                Kind::Drain => SHARDS_WAIT,
                Kind::Stop => SHARDS_WAIT_OF_STOP,
                Kind::Rebalance { .. } => Duration::ZERO,
            };
            let waits = observed.shards_led > 0 && emptied.max(self.progressed) + wait_max > now;
            self.phase = if waits { Phase::Disconnecting } else { Phase::Done };
            return 0;
        }
        self.emptied = None;
        self.is_confirmed = false;
        if let Some(pause) = self.pause(left, observed) {
            self.credit = 0.0;
            // Nothing can be gained by waiting.
            let is_over = self.terms.kind == Kind::Stop && pause == Pause::NoOtherNode;
            self.phase = if is_over { Phase::Done } else { Phase::Paused(pause) };
            return 0;
        }
        self.phase = Phase::Disconnecting;
        // Clients that were not disconnected before are not made up for at once.
        let burst = self.rate().clamp(1.0, BURST_MAX);
        self.credit = (self.credit + self.rate() * since.as_secs_f64()).min(burst);
        (self.credit as u64).min(left) as u32
    }

    /// Returns the reason to disconnect nobody now.
    fn pause(&self, left: u64, observed: &Observed) -> Option<Pause> {
        let others = observed.others.as_ref()?;
        let open = || others.iter().filter(|other| other.accepts_clients);
        if open().next().is_none() {
            return Some(Pause::NoOtherNode);
        }
        if self.terms.kind == Kind::Stop {
            // At its end, all clients are disconnected at once. That is worse for the others.
            return None;
        }
        if let Some(other) = open().find(|other| other.overload > 0) {
            return Some(Pause::Overloaded(other.name.clone()));
        }
        let room =
            open().map(|other| other.room).try_fold(0_u64, |sum, room| Some(sum.saturating_add(room?)));
        room.filter(|room| *room < left).map(|room| Pause::NoRoom { left, room })
    }

    /// Notes the result of the steps of a tick. `are_exhausted`: no client of the class is left, except those that wait
    /// for others of their shared group.
    pub fn stepped(&mut self, now: Duration, disconnected: u64, are_exhausted: bool) {
        self.disconnected += disconnected;
        self.credit = (self.credit - disconnected as f64).max(0.0);
        if disconnected > 0 {
            self.progressed = now;
            self.is_confirmed = false;
        } else if are_exhausted {
            self.is_confirmed = self.class == DrainClass::All;
            self.class = match self.class {
                DrainClass::Idle => DrainClass::Unshared,
                DrainClass::Unshared | DrainClass::All => DrainClass::All,
            };
        }
    }

    pub fn class(&self) -> DrainClass {
        self.class
    }

    /// Returns whether the time for the drain is over, so that members of shared groups do not wait for each other.
    pub fn hurries(&self, now: Duration) -> bool {
        self.began + self.terms.wait + self.terms.within <= now
    }

    /// Returns whether new clients are refused.
    pub fn refuses(&self) -> bool {
        !matches!(self.terms.kind, Kind::Rebalance { .. })
    }

    /// Number of clients that have to leave, of these.
    fn left(&self, clients: u64) -> u64 {
        match self.terms.kind {
            // The number of clients is up to a second old.
            Kind::Rebalance { keep } => {
                let at_most = self.clients_before.saturating_sub(keep).saturating_sub(self.disconnected);
                clients.saturating_sub(keep).min(at_most)
            }
            Kind::Drain | Kind::Stop => clients,
        }
    }

    fn waits(&self, now: Duration) -> bool {
        self.refuses() && self.began + self.terms.wait > now
    }

    /// Clients per second.
    pub fn rate(&self) -> f64 {
        let keep = if let Kind::Rebalance { keep } = self.terms.kind { keep } else { 0 };
        let all = self.clients_before.saturating_sub(keep) as f64;
        let default = all / self.terms.within.as_secs_f64().max(1.0);
        self.terms.rate.unwrap_or(default.max(RATE_MIN))
    }

    pub fn progress(&self, now: Duration, observed: &Observed) -> Progress {
        let clients_left = self.left(observed.clients);
        let waited = (self.began + self.terms.wait).saturating_sub(now);
        let goes_on = matches!(self.phase, Phase::Waiting | Phase::Disconnecting);
        let left_s = waited.as_secs_f64() + clients_left as f64 / self.rate();
        Progress {
            phase: self.phase.clone(),
            clients_before: self.clients_before,
            clients_left,
            disconnected: self.disconnected,
            stalled: if self.phase == Phase::Done {
                Duration::ZERO
            } else {
                now.saturating_sub(self.progressed)
            },
            left: goes_on.then(|| Duration::from_secs_f64(left_s)),
        }
    }
}

/// Progress of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub clients_before: u64,
    pub clients_left: u64,
    pub disconnected: u64,
    /// Time since the last progress.
    pub stalled: Duration,
    /// Estimated time until no client is left; `None` while the drain has paused.
    pub left: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn terms(kind: Kind) -> Terms {
        Terms { kind, rate: Some(10.0), within: 100 * SECOND, wait: 5 * SECOND }
    }

    fn other(overload: u8, room: Option<u64>) -> Other {
        Other { name: "b".into(), accepts_clients: true, overload, room }
    }

    fn observed(clients: u64, others: Option<Vec<Other>>) -> Observed {
        Observed { clients, shards_led: 0, others }
    }

    /// Runs a drain to its end, and returns the times of all ticks that disconnected clients, with their numbers.
    fn run(terms: Terms, clients: u64, others: &Option<Vec<Other>>) -> (Plan, Vec<(u64, u32)>) {
        let mut seen = observed(clients, others.clone());
        let mut plan = Plan::begin(Duration::ZERO, terms, &seen);
        let mut left = Vec::new();
        for second in 1..1_000 {
            let now = SECOND * second;
            let some = plan.tick(now, &seen).min(seen.clients as u32);
            if plan.phase == Phase::Done {
                return (plan, left);
            }
            seen.clients -= u64::from(some);
            plan.stepped(now, u64::from(some), some == 0);
            if some > 0 {
                left.push((u64::from(second), some));
            }
        }
        (plan, left)
    }

    #[test]
    fn a_drain_waits_and_disconnects_at_its_rate() {
        let (plan, left) = run(terms(Kind::Drain), 95, &Some(vec![other(0, Some(1_000))]));
        assert_eq!(left[0], (5, 10), "after the wait");
        assert_eq!(left.last(), Some(&(14, 5)));
        assert!(left[..9].iter().all(|(_, some)| *some == 10));
        assert_eq!((plan.disconnected, plan.clients_before), (95, 95));
    }

    /// The pace of a class does not grow while no client of the class before is left.
    #[test]
    fn a_tick_disconnects_at_most_the_clients_of_a_second() {
        let seen = observed(500, None);
        let mut plan = Plan::begin(Duration::ZERO, terms(Kind::Drain), &seen);
        let most = (5..60).map(|second| {
            plan.stepped(SECOND * second, 0, false);
            plan.tick(SECOND * second, &seen)
        });
        assert_eq!(most.max(), Some(10));
    }

    #[test]
    fn the_default_rate_is_enough_for_the_time_and_has_a_minimum() {
        let slow = Terms { rate: None, ..terms(Kind::Drain) };
        let rate = |clients| Plan::begin(SECOND, slow, &observed(clients, None)).rate();
        assert_eq!((rate(100), rate(20_000)), (RATE_MIN, 200.0));
    }

    #[test]
    fn a_drain_pauses_for_the_others_and_goes_on_by_itself() {
        let now = 10 * SECOND;
        let mut plan = Plan::begin(Duration::ZERO, terms(Kind::Drain), &observed(50, None));
        plan.tick(9 * SECOND, &observed(50, None));
        let cases = [
            (vec![], Pause::NoOtherNode),
            (vec![Other { accepts_clients: false, ..other(0, None) }], Pause::NoOtherNode),
            (vec![other(0, None), other(1, None)], Pause::Overloaded("b".into())),
            (vec![other(0, Some(20)), other(0, Some(29))], Pause::NoRoom { left: 50, room: 49 }),
        ];
        for (others, pause) in cases {
            assert_eq!(plan.tick(now, &observed(50, Some(others))), 0);
            assert_eq!(plan.phase, Phase::Paused(pause));
        }
        let stalled = plan.progress(70 * SECOND, &observed(50, None));
        assert_eq!((stalled.left, stalled.stalled), (None, 70 * SECOND));
        // Nodes without an answer have room, as far as is known.
        for others in [vec![other(0, Some(50))], vec![other(0, Some(1)), other(0, None)]] {
            plan.tick(now, &observed(50, Some(others.clone())));
            assert_eq!(plan.tick(now + SECOND, &observed(50, Some(others))), 10);
            plan.stepped(now, 10, false);
        }
    }

    #[test]
    fn a_pause_names_the_nodes_of_the_order() {
        let described = |pause: &Pause, to: &[&str]| {
            pause.describe(&to.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(described(&Pause::NoOtherNode, &[]), "no other node accepts clients");
        assert_eq!(described(&Pause::NoOtherNode, &["b"]), "node b does not accept clients");
        assert_eq!(described(&Pause::NoOtherNode, &["b", "c"]), "none of the nodes b, c accepts clients");
        let no_room = Pause::NoRoom { left: 9, room: 4 };
        assert_eq!(
            described(&no_room, &[]),
            "9 clients are left, and there is room for 4 on the other nodes"
        );
        assert_eq!(described(&no_room, &["b", "c"]), "9 clients are left, and there is room for 4 on b, c");
    }

    #[test]
    fn a_stop_never_pauses_and_ends_when_no_other_node_accepts_clients() {
        let mut plan = Plan::begin(
            Duration::ZERO,
            Terms { wait: Duration::ZERO, ..terms(Kind::Stop) },
            &observed(50, None),
        );
        assert_eq!(plan.tick(SECOND, &observed(50, Some(vec![other(3, Some(0))]))), 10);
        assert_eq!(plan.tick(2 * SECOND, &observed(50, Some(vec![]))), 0);
        assert_eq!(plan.phase, Phase::Done);
    }

    #[test]
    fn a_rebalance_keeps_its_clients_and_does_not_wait() {
        let (plan, left) = run(terms(Kind::Rebalance { keep: 70 }), 95, &Some(vec![other(0, Some(25))]));
        assert_eq!(left, [(1, 10), (2, 10), (3, 5)]);
        assert!(!plan.refuses());
        // The number of clients may be that of a second ago.
        let old = observed(95, None);
        let mut plan = Plan::begin(Duration::ZERO, terms(Kind::Rebalance { keep: 70 }), &old);
        let some: Vec<u32> = (1..=4)
            .map(|second| {
                let some = plan.tick(SECOND * second, &old);
                plan.stepped(SECOND * second, some.into(), false);
                some
            })
            .collect();
        assert_eq!(some, [10, 10, 5, 0]);
    }

    #[test]
    fn members_of_shared_groups_leave_last() {
        let mut plan = Plan::begin(Duration::ZERO, terms(Kind::Drain), &observed(5, None));
        for (class, disconnected) in [
            (DrainClass::Idle, 1),
            (DrainClass::Idle, 0),
            (DrainClass::Unshared, 1),
            (DrainClass::Unshared, 0),
            (DrainClass::All, 1),
            (DrainClass::All, 0),
        ] {
            assert_eq!(plan.class(), class);
            plan.stepped(SECOND, disconnected, true);
        }
        assert_eq!(plan.class(), DrainClass::All);
        assert!(!plan.hurries(104 * SECOND) && plan.hurries(105 * SECOND));
    }

    /// A client may have connected just before the drain, so that it is not counted yet.
    #[test]
    fn a_drain_is_done_when_the_workers_find_no_client() {
        let seen = observed(0, Some(vec![other(0, None)]));
        let mut plan =
            Plan::begin(Duration::ZERO, Terms { wait: Duration::ZERO, ..terms(Kind::Stop) }, &seen);
        for (at, disconnected) in [(1, 1), (2, 0)] {
            assert_eq!((plan.tick(SECOND * at, &seen), plan.class()), (PROBE, DrainClass::All));
            plan.stepped(SECOND * at, disconnected, true);
        }
        assert_eq!(plan.tick(3 * SECOND, &seen), 0);
        assert_eq!((plan.phase.clone(), plan.disconnected), (Phase::Done, 1));
    }

    #[test]
    fn a_stop_does_not_wait_long_for_shards_that_nobody_takes() {
        let seen = Observed { shards_led: 2, others: Some(vec![other(0, None)]), ..Observed::default() };
        let mut plan =
            Plan::begin(Duration::ZERO, Terms { wait: Duration::ZERO, ..terms(Kind::Stop) }, &seen);
        for (at, phase) in [
            (1, Phase::Disconnecting),
            (2, Phase::Disconnecting),
            (4, Phase::Disconnecting),
            (5, Phase::Done),
        ] {
            if plan.tick(SECOND * at, &seen) > 0 {
                plan.stepped(SECOND * at, 0, true);
            }
            assert_eq!(plan.phase, phase, "{at}");
        }
    }

    #[test]
    fn a_drain_waits_for_its_shards_within_a_bound() {
        let seen = |shards_led| Observed { shards_led, ..observed(0, None) };
        let mut plan =
            Plan::begin(Duration::ZERO, Terms { wait: Duration::ZERO, ..terms(Kind::Drain) }, &seen(2));
        for (at, shards, phase) in [
            (1, 2, Phase::Disconnecting),
            (20, 1, Phase::Disconnecting),
            (49, 1, Phase::Disconnecting),
            (50, 1, Phase::Done),
            (52, 0, Phase::Done),
        ] {
            if plan.tick(SECOND * at, &seen(shards)) > 0 {
                plan.stepped(SECOND * at, 0, true);
            }
            assert_eq!(plan.phase, phase, "{at}");
        }
    }
}
