//! Waiting time of an address or a user name after wrong logins. It has no clock.

use std::time::{Duration, Instant};

/// Condition and length of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Number of failures within `window` that begins a wait; at least 1.
    pub failures_max: u32,
    pub window: Duration,
    pub first: Duration,
    /// Maximum wait, not less than `first`.
    pub longest: Duration,
}

/// Failures of one address or user name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// Begin of the current window, and the number of failures in it.
    window: Option<(Instant, u32)>,
    /// End and length of the current or last wait.
    wait: Option<(Instant, Duration)>,
}

impl Backoff {
    pub fn waits(&self, now: Instant) -> bool {
        self.wait.is_some_and(|(until, _)| now < until)
    }

    /// Records a failure. Returns whether a wait begins with it. Failures of attempts that were in progress at that
    /// time are not counted.
    pub fn fail(&mut self, rule: &Rule, now: Instant) -> bool {
        if self.waits(now) {
            return false;
        }
        let (began, before) = match self.window {
            Some((began, failures)) if now.saturating_duration_since(began) < rule.window => {
                (began, failures)
            }
            _ => (now, 0),
        };
        let failures = before.saturating_add(1);
        if failures < rule.failures_max {
            self.window = Some((began, failures));
            return false;
        }
        let time = match self.wait {
            Some((until, time)) if now.saturating_duration_since(until) < rule.longest => {
                time.saturating_mul(2).min(rule.longest)
            }
            _ => rule.first,
        };
        self.window = None;
        self.wait = now.checked_add(time).map(|until| (until, time));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: Rule = Rule {
        failures_max: 3,
        window: Duration::from_secs(10),
        first: Duration::from_secs(5),
        longest: Duration::from_secs(20),
    };

    #[test]
    fn each_wait_is_twice_as_long_up_to_the_longest() {
        let start = Instant::now();
        let (mut backoff, mut now) = (Backoff::default(), start);
        for seconds in [5, 10, 20, 20] {
            assert!(!backoff.fail(&RULE, now));
            assert!(!backoff.fail(&RULE, now));
            assert!(backoff.fail(&RULE, now), "at {:?}", now - start);
            let end = now + Duration::from_secs(seconds);
            assert!(backoff.waits(now) && backoff.waits(end - Duration::from_millis(1)));
            assert!(!backoff.waits(end));
            now = end;
        }
        now += RULE.longest;
        (0..3).for_each(|_| _ = backoff.fail(&RULE, now));
        assert!(!backoff.waits(now + RULE.first), "after a quiet time it starts with the first wait again");
    }

    #[test]
    fn failures_that_are_far_apart_do_not_add_up() {
        let mut backoff = Backoff::default();
        let start = Instant::now();
        for step in 0..100 {
            assert!(!backoff.fail(&RULE, start + Duration::from_secs(5) * step));
        }
    }

    /// Model of the documented behaviour: a list of everything that happened, searched each time.
    #[derive(Default)]
    struct Model {
        /// Failures of the current window.
        failures: Vec<u64>,
        /// Begin and length of each wait.
        waits: Vec<(u64, u64)>,
    }

    impl Model {
        fn waits(&self, now: u64) -> bool {
            self.waits.iter().any(|(begin, length)| (*begin..begin + length).contains(&now))
        }

        fn fail(&mut self, now: u64) {
            if self.waits(now) {
                return;
            }
            let window = RULE.window.as_secs();
            if self.failures.first().is_some_and(|first| now - first >= window) {
                self.failures.clear();
            }
            self.failures.push(now);
            if self.failures.len() == RULE.failures_max as usize {
                // Number of consecutive waits, each begun less than the longest wait after the end of the previous one.
                let mut length = RULE.first.as_secs();
                if let Some((begin, last)) = self.waits.last()
                    && now - (begin + last) < RULE.longest.as_secs()
                {
                    length = (last * 2).min(RULE.longest.as_secs());
                }
                self.waits.push((now, length));
                self.failures.clear();
            }
        }
    }

    proptest! {
        #[test]
        fn back_off_agrees_with_the_model(steps in prop::collection::vec((0_u64..9, any::<bool>()), 0..200)) {
            let start = Instant::now();
            let (mut backoff, mut model, mut now) = (Backoff::default(), Model::default(), 0);
            for (pause, fails) in steps {
                // Pauses of up to a minute, most of them short.
                now += pause * pause;
                let at = start + Duration::from_secs(now);
                if fails {
                    backoff.fail(&RULE, at);
                    model.fail(now);
                }
                prop_assert_eq!(backoff.waits(at), model.waits(now), "after {} s", now);
            }
        }
    }
}
