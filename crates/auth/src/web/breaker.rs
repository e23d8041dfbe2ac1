//! Circuit breaker: while a service is down it is not asked, and clients are refused at once.

use std::time::{Duration, Instant};

/// State of a circuit. Takes time as an argument; its owner locks it.
#[derive(Debug)]
pub struct Breaker {
    limits: Limits,
    state: State,
    /// Grows with every change of state, so that late outcomes of an earlier state are ignored.
    epoch: u64,
}

/// Conditions for opening the circuit, and the time for which it stays open.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of consecutive failures; at least 1.
    pub failures_max: u32,
    /// Percentage of failures, 0..=100; 0 disables this condition.
    pub failures_percent: u32,
    pub open_for: Duration,
    pub open_for_max: Duration,
}

#[derive(Debug)]
enum State {
    Closed {
        in_a_row: u32,
        since: Instant,
        asked: u32,
        failed: u32,
    },
    Open {
        until: Instant,
        wait: Duration,
    },
    /// One request tries. If its outcome is lost, another one may try after `again`.
    HalfOpen {
        again: Instant,
        wait: Duration,
    },
}

/// State of a circuit, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Circuit {
    /// Requests are sent.
    #[default]
    Closed,
    /// One request tries whether the service is available again.
    HalfOpen,
    /// No requests are sent.
    Open,
}

/// Permission for one request. Its holder reports the outcome.
#[derive(Debug, PartialEq, Eq)]
pub struct Pass(u64);

/// Change that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Opened { wait: Duration },
    Closed,
}

impl Breaker {
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self { limits, state: State::closed(now), epoch: 0 }
    }

    /// Returns whether [`Breaker::admit`] would refuse now.
    pub fn refuses(&self, now: Instant) -> bool {
        match self.state {
            State::Closed { .. } => false,
            State::Open { until, .. } => now < until,
            State::HalfOpen { again, .. } => now < again,
        }
    }

    /// Returns a permission; `None` while the circuit is open or another request tries.
    pub fn admit(&mut self, now: Instant) -> Option<Pass> {
        if self.refuses(now) {
            return None;
        }
        if let State::Open { wait, .. } | State::HalfOpen { wait, .. } = self.state {
            self.enter(State::HalfOpen { again: now + wait, wait });
        }
        Some(Pass(self.epoch))
    }

    /// Reports that the service has answered, whatever the answer.
    pub fn answered(&mut self, pass: Pass, now: Instant) -> Option<Change> {
        if pass.0 != self.epoch {
            return None;
        }
        if matches!(self.state, State::HalfOpen { .. }) {
            self.enter(State::closed(now));
            return Some(Change::Closed);
        }
        self.count(now, false);
        None
    }

    /// Reports that the service has not answered.
    pub fn failed(&mut self, pass: Pass, now: Instant) -> Option<Change> {
        if pass.0 != self.epoch {
            return None;
        }
        let wait = match self.state {
            State::Closed { .. } => {
                if !self.count(now, true) {
                    return None;
                }
                self.limits.open_for
            }
            State::Open { wait, .. } | State::HalfOpen { wait, .. } => wait.saturating_mul(2),
        };
        let wait = wait.min(self.limits.open_for_max.max(self.limits.open_for));
        self.enter(State::Open { until: now + wait, wait });
        Some(Change::Opened { wait })
    }

    pub fn circuit(&self) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::HalfOpen { .. } => Circuit::HalfOpen,
            State::Open { .. } => Circuit::Open,
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.epoch += 1;
    }

    /// Counts an outcome. Returns whether it was one failure too many.
    fn count(&mut self, now: Instant, failure: bool) -> bool {
        let State::Closed { in_a_row, since, asked, failed } = &mut self.state else { return false };
        if now.saturating_duration_since(*since) >= WINDOW {
            (*since, *asked, *failed) = (now, 0, 0);
        }
        *asked = asked.saturating_add(1);
        if !failure {
            *in_a_row = 0;
            return false;
        }
        *in_a_row += 1;
        *failed = failed.saturating_add(1);
        let percent = u64::from(self.limits.failures_percent);
        let many =
            percent > 0 && *asked >= ASKED_MIN && u64::from(*failed) * 100 >= u64::from(*asked) * percent;
        many || *in_a_row >= self.limits.failures_max
    }
}

impl State {
    fn closed(now: Instant) -> Self {
        Self::Closed { in_a_row: 0, since: now, asked: 0, failed: 0 }
    }
}

/// Window for the percentage of failures.
const WINDOW: Duration = Duration::from_secs(10);
/// Minimum number of requests in a window for the percentage of failures.
const ASKED_MIN: u32 = 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);
    const LIMITS: Limits = Limits {
        failures_max: 5,
        failures_percent: 50,
        open_for: Duration::from_secs(5),
        open_for_max: Duration::from_secs(60),
    };

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(LIMITS, now);
        for _ in 0..5 {
            let pass = breaker.admit(now).unwrap();
            breaker.failed(pass, now);
        }
        breaker
    }

    #[test]
    fn consecutive_failures_open_the_circuit_and_an_answer_resets_the_count() {
        let now = Instant::now();
        let mut breaker = Breaker::new(LIMITS, now);
        for round in 0..9 {
            let pass = breaker.admit(now).unwrap();
            let change = if round == 4 { breaker.answered(pass, now) } else { breaker.failed(pass, now) };
            assert_eq!(change, None, "{round}");
        }
        let pass = breaker.admit(now).unwrap();
        assert_eq!(breaker.failed(pass, now), Some(Change::Opened { wait: 5 * S }));
        assert_eq!(
            (breaker.circuit(), breaker.refuses(now), breaker.admit(now)),
            (Circuit::Open, true, None)
        );
    }

    #[test]
    fn one_request_tries_and_the_wait_doubles_up_to_its_maximum() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for wait in [5, 10, 20, 40, 60, 60] {
            assert_eq!(breaker.admit(now + wait * S - Duration::from_nanos(1)), None);
            now += wait * S;
            let pass = breaker.admit(now).expect("its time is over");
            assert_eq!((breaker.circuit(), breaker.admit(now)), (Circuit::HalfOpen, None), "one tries");
            assert!(matches!(breaker.failed(pass, now), Some(Change::Opened { .. })));
        }
        let pass = breaker.admit(now + 60 * S).unwrap();
        assert_eq!(breaker.answered(pass, now + 60 * S), Some(Change::Closed));
        assert_eq!(breaker.circuit(), Circuit::Closed);
    }

    #[test]
    fn a_percentage_of_failures_opens_the_circuit_too() {
        let now = Instant::now();
        let mut breaker = Breaker::new(LIMITS, now);
        let mut changes = 0;
        for round in 0..20 {
            let pass = breaker.admit(now).unwrap();
            let change = if round % 2 == 0 { breaker.answered(pass, now) } else { breaker.failed(pass, now) };
            changes += usize::from(change.is_some());
        }
        assert_eq!((changes, breaker.circuit()), (1, Circuit::Open));
    }

    #[test]
    fn old_failures_do_not_count() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(LIMITS, now);
        for round in 0..100 {
            now += S;
            let pass = breaker.admit(now).unwrap();
            if round % 2 == 0 {
                breaker.answered(pass, now)
            } else {
                breaker.failed(pass, now)
            };
        }
        assert_eq!(breaker.circuit(), Circuit::Closed, "never twenty in ten seconds");
    }

    /// Requests that were in progress when the circuit opened do not affect its next state.
    #[test]
    fn a_late_outcome_does_not_count() {
        let now = Instant::now();
        let mut breaker = Breaker::new(LIMITS, now);
        let late: Vec<_> = (0..8).map(|_| breaker.admit(now).unwrap()).collect();
        for pass in late {
            breaker.failed(pass, now);
        }
        let pass = breaker.admit(now + 5 * S).expect("opened once, for five seconds");
        assert_eq!(breaker.answered(pass, now + 5 * S), Some(Change::Closed));
    }

    #[test]
    fn a_lost_attempt_is_repeated() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let lost = breaker.admit(now + 5 * S).unwrap();
        assert_eq!(breaker.admit(now + 9 * S), None);
        let second = breaker.admit(now + 10 * S).unwrap();
        assert_eq!(breaker.answered(lost, now + 10 * S), None);
        assert_eq!(breaker.answered(second, now + 10 * S), Some(Change::Closed));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        Ask,
        Answer(usize),
        Fail(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..20_000).prop_map(Step::Wait),
            Just(Step::Ask),
            (0usize..4).prop_map(Step::Answer),
            (0usize..4).prop_map(Step::Fail),
        ]
    }

    proptest! {
        /// Property: an open circuit admits no request before its time, and then one at a time. It is never open for
        /// longer than its maximum, and one answer to an attempt closes it.
        #[test]
        fn the_circuit_keeps_its_limits(steps in prop::collection::vec(step(), 0..200)) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(LIMITS, now);
            let mut passes = Vec::new();
            for step in steps {
                match step {
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                    Step::Ask => {
                        let refuses = breaker.refuses(now);
                        let before = breaker.circuit();
                        let pass = breaker.admit(now);
                        prop_assert_eq!(pass.is_none(), refuses);
                        prop_assert_eq!(before == Circuit::Closed, breaker.circuit() == Circuit::Closed);
                        if pass.is_some() && before != Circuit::Closed {
                            prop_assert_eq!(breaker.circuit(), Circuit::HalfOpen);
                            prop_assert!(breaker.admit(now).is_none());
                        }
                        passes.extend(pass);
                    }
                    Step::Answer(index) | Step::Fail(index) if index >= passes.len() => {}
                    Step::Answer(index) => {
                        let pass = passes.swap_remove(index);
                        let before = (breaker.circuit(), pass.0 == breaker.epoch);
                        let change = breaker.answered(pass, now);
                        prop_assert_eq!(change == Some(Change::Closed), before == (Circuit::HalfOpen, true));
                    }
                    Step::Fail(index) => {
                        let pass = passes.swap_remove(index);
                        if let Some(change) = breaker.failed(pass, now) {
                            let Change::Opened { wait } = change else { panic!("a failure closes nothing") };
                            prop_assert!((5 * S..=60 * S).contains(&wait));
                            prop_assert!(breaker.refuses(now) && breaker.refuses(now + wait - Duration::from_nanos(1)));
                        }
                    }
                }
                prop_assert!(!breaker.refuses(now + 60 * S));
            }
        }
    }
}
