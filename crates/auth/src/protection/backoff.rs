//! How long an address or a user name has to wait after wrong logins. It knows no clock.

use std::time::{Duration, Instant};

/// When to wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// So many failures within `window` begin a wait; at least 1.
    pub failures_max: u32,
    pub window: Duration,
    pub first: Duration,
    /// Not less than `first`.
    pub longest: Duration,
}

/// The failures of one address or user name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// When the failures began that are added up, and how many there are.
    window: Option<(Instant, u32)>,
    /// Until when and for how long it waits, or waited last.
    wait: Option<(Instant, Duration)>,
}

impl Backoff {
    pub fn waits(&self, now: Instant) -> bool {
        self.wait.is_some_and(|(until, _)| now < until)
    }

    /// One failure more; whether a wait begins with it. Those of attempts that were under way when it began do not count.
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
        assert!(!backoff.waits(now + RULE.first), "after a quiet time it begins anew");
    }

    #[test]
    fn failures_that_are_far_apart_do_not_add_up() {
        let mut backoff = Backoff::default();
        let start = Instant::now();
        for step in 0..100 {
            assert!(!backoff.fail(&RULE, start + Duration::from_secs(5) * step));
        }
    }

    /// The same in the words of the documentation: a list of everything that happened, looked through each time.
    #[derive(Default)]
    struct Model {
        /// Of the window that is open.
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
                // How many waits in a row there were, each less than the longest time after the end of the one before.
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
        fn it_does_what_the_model_does(steps in prop::collection::vec((0_u64..9, any::<bool>()), 0..200)) {
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
