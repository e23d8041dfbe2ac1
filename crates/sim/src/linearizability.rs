//! Checks whether a concurrent history of operations is linearizable: whether all of them can be put in one order that
//! a sequential specification allows, and in which each operation comes before all that were invoked after its
//! response.
//!
//! The search is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993). It remembers the
//! configurations that it has visited, as Lowe does ("Testing for Linearizability", 2017): a set of operations that
//! have taken effect, and the state that they leave. A history of one object is checked at a time. Objects are
//! independent, so the caller divides a history by its keys first.
//!
//! An operation without a response may have taken effect at any time after its invocation, or never. The caller may
//! know a time after which it takes no effect any more. So nothing is gained when such an operation is used up: the
//! search leaves out a configuration if it has visited one with the same state and the same operations with a response,
//! which has used up no other operation without one, and begins no later.

use std::collections::{BTreeMap, BTreeSet};

use crate::schedule::Micros;

/// Sequential behaviour of an object.
pub trait Specification {
    /// An operation with what its response said, if it had one.
    type Operation;
    type State: Clone + Ord;

    /// State before the first operation.
    fn initial(&self) -> Self::State;

    /// Returns the states in which an operation may leave the object. There are none if it cannot have had this
    /// response in this state.
    fn apply(&self, state: &Self::State, operation: &Timed<Self::Operation>) -> Vec<Self::State>;

    /// Returns whether an operation changes no state, whatever it is.
    fn is_read(&self, operation: &Self::Operation) -> bool;

    /// Returns the class of an operation without a response. Operations of one class have the same effects. If one may
    /// take effect now and its time ends first, the search does not try the others instead. `None` if the operation is
    /// in no class.
    fn class(&self, _operation: &Timed<Self::Operation>) -> Option<u64> {
        None
    }
}

/// An operation with the times of its invocation and of its response.
#[derive(Clone, Debug)]
pub struct Timed<O> {
    pub invoked: Micros,
    /// `None` if no response came.
    pub responded: Option<Micros>,
    /// Time after which it takes no effect, for an operation without a response.
    pub effective_until: Option<Micros>,
    pub operation: O,
}

impl<O> Timed<O> {
    /// An operation that may take effect at any time from its invocation on, if it has no response.
    pub fn new(invoked: Micros, responded: Option<Micros>, operation: O) -> Self {
        Self { invoked, responded, effective_until: None, operation }
    }

    /// Last time at which it can take effect.
    fn last_effect(&self) -> Micros {
        self.responded.or(self.effective_until).unwrap_or(Micros::MAX)
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<S> {
    Linearizable,
    /// No order is allowed. The longest one that was found leaves `state`. No order goes on from there with the
    /// operation at `next`, whose response comes first.
    Violation {
        state: S,
        next: usize,
    },
    /// The search has visited the maximum number of configurations and knows nothing.
    Exhausted,
}

/// Operations that have taken effect.
#[derive(Clone)]
struct Taken {
    /// Number of operations with a response before the first that has not taken effect.
    first: usize,
    /// Later ones that have.
    later: BTreeSet<usize>,
    /// Operations without a response that have, and that could still do so.
    pending: BTreeSet<usize>,
    /// Last invocation of all of them: nothing takes effect before it any more.
    now: Micros,
}

impl Taken {
    fn count(&self) -> usize {
        self.first + self.later.len()
    }

    /// Returns the set with one more operation with a response.
    fn with(&self, at: usize, invoked: Micros) -> Self {
        let mut taken = self.clone();
        taken.now = taken.now.max(invoked);
        taken.later.insert(at);
        while taken.later.remove(&taken.first) {
            taken.first += 1;
        }
        taken
    }

    fn with_pending(&self, at: usize, invoked: Micros) -> Self {
        let mut taken = self.clone();
        taken.now = taken.now.max(invoked);
        taken.pending.insert(at);
        taken
    }
}

/// Configurations that were visited.
struct Visited<S> {
    /// The rest of each, by its operations with a response that have taken effect, and its state.
    alike: BTreeMap<(usize, BTreeSet<usize>, S), Vec<Used>>,
    count: usize,
}

/// The values of [`Taken`] that a configuration has used up.
struct Used {
    pending: BTreeSet<usize>,
    now: Micros,
}

impl<S: Clone + Ord> Visited<S> {
    fn new() -> Self {
        Self { alike: BTreeMap::new(), count: 0 }
    }

    /// Notes a configuration. Returns false if each order that goes on from it also goes on from one that was visited.
    /// `is_over` says whether the time of an operation without a response is over at a time.
    fn add(&mut self, taken: &Taken, state: &S, is_over: impl Fn(usize, Micros) -> bool) -> bool {
        let alike = self.alike.entry((taken.first, taken.later.clone(), state.clone())).or_default();
        let is_open = |at: &usize| !taken.pending.contains(at) && !is_over(*at, taken.now);
        if alike.iter().any(|used| used.now <= taken.now && !used.pending.iter().any(is_open)) {
            return false;
        }
        alike.push(Used { pending: taken.pending.clone(), now: taken.now });
        self.count += 1;
        true
    }
}

/// Checks the history of one object. Visits no more than `configurations_max` configurations.
pub fn check<S: Specification>(
    specification: &S,
    history: &[Timed<S::Operation>],
    configurations_max: usize,
) -> Verdict<S::State> {
    // Positions in the history, in the order of their invocations.
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|at| history[*at].invoked);
    let (completed, mut pending): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|at| history[*at].responded.is_some());
    // Of a class, the one whose time ends first comes first.
    pending.sort_by_key(|at| history[*at].last_effect());
    let none = Taken { first: 0, later: BTreeSet::new(), pending: BTreeSet::new(), now: 0 };
    let mut visited = Visited::new();
    let mut stack = vec![(none, specification.initial())];
    let mut longest: Option<(usize, S::State, usize)> = None;
    while let Some((mut taken, state)) = stack.pop() {
        // Whether those have taken effect whose time is over makes no difference any more.
        let now = taken.now;
        taken.pending.retain(|at| history[pending[*at]].last_effect() >= now);
        if taken.first == completed.len() {
            return Verdict::Linearizable;
        }
        if !visited.add(&taken, &state, |at, now| history[pending[at]].last_effect() < now) {
            continue;
        }
        if visited.count > configurations_max {
            return Verdict::Exhausted;
        }
        let (candidates, horizon) = next_completed(history, &completed, &taken);
        if longest.as_ref().is_none_or(|(count, ..)| *count < taken.count()) {
            let next = candidates.first().map_or(0, |at| completed[*at]);
            longest = Some((taken.count(), state.clone(), next));
        }
        let mut unanswered = Vec::new();
        // Earliest time to which one of the class brings the order, of those whose time ends earlier.
        let mut classes: BTreeMap<u64, Micros> = BTreeMap::new();
        for at in (0..pending.len()).filter(|at| !taken.pending.contains(at)) {
            let timed = &history[pending[at]];
            let class = specification.class(timed);
            if timed.invoked > horizon || timed.last_effect() < now {
                continue;
            }
            if let Some(class) = class {
                let at = timed.invoked.max(now);
                if classes.get(&class).is_some_and(|earliest| *earliest <= at) {
                    continue;
                }
                classes.insert(class, at);
            }
            let states = specification.apply(&state, timed).into_iter();
            // One that changes nothing need not take effect.
            unanswered.extend(
                states.filter(|it| *it != state).map(|it| (taken.with_pending(at, timed.invoked), it)),
            );
        }
        // The stack returns the last one first: the one whose response comes first, before all without a response. Of
        // these, the one whose time ends first comes first, because the others may still take its place later.
        let mut next: Vec<_> = unanswered.into_iter().rev().collect();
        for at in candidates.into_iter().rev() {
            let timed = &history[completed[at]];
            let states = specification.apply(&state, timed);
            // A pending operation whose time ends before the invocation has to come first, if at all.
            let keeps_others = (0..pending.len()).all(|other| {
                let last = history[pending[other]].last_effect();
                taken.pending.contains(&other) || last < now || last >= timed.invoked
            });
            if keeps_others && !states.is_empty() && specification.is_read(&timed.operation) {
                // An order that begins with it exists if there is any.
                next = vec![(taken.with(at, timed.invoked), state.clone())];
                break;
            }
            next.extend(states.into_iter().map(|it| (taken.with(at, timed.invoked), it)));
        }
        stack.append(&mut next);
    }
    let (_, state, next) = longest.unwrap_or((0, specification.initial(), 0));
    Verdict::Violation { state, next }
}

/// Returns the operations with a response that may take effect next, by their responses, and the first response of all
/// that have not taken effect. An operation that was invoked later has to wait.
fn next_completed<O>(history: &[Timed<O>], completed: &[usize], taken: &Taken) -> (Vec<usize>, Micros) {
    let mut horizon = Micros::MAX;
    let mut open = Vec::new();
    for at in (taken.first..completed.len()).filter(|at| !taken.later.contains(at)) {
        let Timed { invoked, responded, .. } = &history[completed[at]];
        if *invoked > horizon {
            break;
        }
        let responded = responded.unwrap_or(Micros::MAX);
        horizon = horizon.min(responded);
        open.push((responded, at));
    }
    open.retain(|(_, at)| history[completed[*at]].invoked <= horizon);
    open.sort_unstable();
    (open.into_iter().map(|(_, at)| at).collect(), horizon)
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    /// A register of a number, which is 0 at first.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Access {
        Write(u8),
        /// A read with its result.
        Read(u8),
        /// Writes the number if the register has the first one. The response does not say whether it did.
        Replace(u8, u8),
    }

    impl Specification for Register {
        type Operation = Access;
        type State = u8;

        fn initial(&self) -> u8 {
            0
        }

        fn apply(&self, state: &u8, operation: &Timed<Access>) -> Vec<u8> {
            match operation.operation {
                Access::Write(value) => vec![value],
                Access::Read(value) if value == *state => vec![value],
                Access::Read(_) => Vec::new(),
                Access::Replace(from, to) if from == *state => vec![to],
                Access::Replace(..) => vec![*state],
            }
        }

        fn is_read(&self, operation: &Access) -> bool {
            matches!(operation, Access::Read(_))
        }

        fn class(&self, operation: &Timed<Access>) -> Option<u64> {
            match operation.operation {
                Access::Write(value) => Some(u64::from(value)),
                _ => None,
            }
        }
    }

    fn done(invoked: Micros, responded: Micros, operation: Access) -> Timed<Access> {
        Timed::new(invoked, Some(responded), operation)
    }

    fn lost(invoked: Micros, operation: Access) -> Timed<Access> {
        Timed::new(invoked, None, operation)
    }

    fn is_linearizable(history: &[Timed<Access>]) -> bool {
        match check(&Register, history, 10_000) {
            Verdict::Linearizable => true,
            Verdict::Violation { .. } => false,
            Verdict::Exhausted => panic!("too many configurations"),
        }
    }

    use Access::{Read, Replace, Write};

    #[test]
    fn an_empty_history_is_linearizable() {
        assert!(is_linearizable(&[]));
    }

    #[test]
    fn a_read_finds_the_last_write_before_it() {
        assert!(is_linearizable(&[done(1, 2, Write(1)), done(3, 4, Write(2)), done(5, 6, Read(2))]));
        assert!(!is_linearizable(&[done(1, 2, Write(1)), done(3, 4, Write(2)), done(5, 6, Read(1))]));
    }

    #[test]
    fn concurrent_operations_have_any_order_and_only_one() {
        let writes = [done(1, 9, Write(1)), done(1, 9, Write(2))];
        let read = |first, second| [done(10, 11, Read(first)), done(12, 13, Read(second))];
        assert!(is_linearizable(&[&writes[..], &read(1, 1)].concat()));
        assert!(is_linearizable(&[&writes[..], &read(2, 2)].concat()));
        assert!(!is_linearizable(&[&writes[..], &read(1, 2)].concat()));
        // A response at the time of an invocation does not come before it.
        assert!(is_linearizable(&[done(1, 5, Write(1)), done(5, 6, Read(0))]));
    }

    #[test]
    fn a_read_does_not_go_back() {
        let history = [done(1, 100, Write(1)), done(10, 20, Read(1)), done(30, 40, Read(0))];
        assert!(!is_linearizable(&history));
    }

    #[test]
    fn an_operation_without_a_response_may_take_effect_late_or_never_but_not_early() {
        assert!(is_linearizable(&[lost(1, Write(1)), done(2, 3, Read(0)), done(4, 5, Read(1))]));
        assert!(is_linearizable(&[lost(1, Write(1)), done(2, 3, Read(0)), done(4, 5, Read(0))]));
        assert!(!is_linearizable(&[lost(1, Write(1)), done(2, 3, Read(1)), done(4, 5, Read(0))]));
        assert!(!is_linearizable(&[done(2, 3, Read(1)), lost(4, Write(1))]));
        // It takes effect once.
        let history = [lost(1, Write(1)), done(2, 3, Read(1)), done(4, 5, Write(2)), done(6, 7, Read(1))];
        assert!(!is_linearizable(&history));
        let history = [&[lost(1, Write(1))], &history[..]].concat();
        assert!(is_linearizable(&history));
    }

    #[test]
    fn an_operation_takes_no_effect_after_its_time() {
        let limited = |until| Timed { effective_until: Some(until), ..lost(1, Write(1)) };
        let reads = [done(2, 3, Read(0)), done(6, 7, Read(1))];
        assert!(is_linearizable(&[&[limited(6)], &reads[..]].concat()));
        assert!(is_linearizable(&[&[limited(4)], &reads[..]].concat()), "nothing came between");
        let reads = [done(2, 3, Read(0)), done(5, 6, Read(0)), done(8, 9, Read(1))];
        assert!(is_linearizable(&[&[limited(5)], &reads[..]].concat()));
        assert!(!is_linearizable(&[&[limited(4)], &reads[..]].concat()));
    }

    #[test]
    fn a_violation_names_the_operation_and_the_state() {
        let history = [done(5, 6, Read(7)), done(1, 2, Write(1)), done(8, 9, Write(3))];
        assert_eq!(check(&Register, &history, 100), Verdict::Violation { state: 1, next: 0 });
    }

    #[test]
    fn a_search_beyond_its_bound_is_no_verdict() {
        let mut history: Vec<_> = (0..12).map(|value| done(1, 100, Write(value))).collect();
        history.push(done(200, 201, Read(50)));
        assert_eq!(check(&Register, &history, 100), Verdict::Exhausted);
    }

    #[test]
    fn what_need_not_have_taken_effect_makes_few_configurations() {
        let ends_with = |last| {
            let mut history = Vec::new();
            (0..10).for_each(|_| history.extend([lost(1, Replace(0, 1)), lost(1, Replace(1, 0))]));
            history.extend([done(10, 11, Read(1)), done(12, 13, Read(0)), done(14, 15, Read(last))]);
            check(&Register, &history, 2_000)
        };
        assert_eq!(ends_with(1), Verdict::Linearizable);
        assert_eq!(ends_with(2), Verdict::Violation { state: 0, next: 22 });
    }

    /// Tries all orders of all operations with a response, and of any others.
    fn is_linearizable_by_brute_force(history: &[Timed<Access>], taken: u32, state: u8) -> bool {
        let open = |at: &usize| taken & 1 << at == 0;
        let remaining: Vec<usize> = (0..history.len()).filter(open).collect();
        if remaining.iter().all(|at| history[*at].responded.is_none()) {
            return true;
        }
        let is_before = |one: usize, other: usize| {
            history[one].responded.is_some_and(|responded| responded < history[other].invoked)
        };
        // What has taken effect must not have been invoked after the end of the time of this one.
        let is_late = |one: usize| {
            let until = history[one].effective_until.unwrap_or(Micros::MAX);
            (0..history.len()).any(|other| taken & 1 << other != 0 && history[other].invoked > until)
        };
        let may_be_next = |at: usize| remaining.iter().all(|other| !is_before(*other, at));
        remaining.iter().filter(|at| may_be_next(**at) && !is_late(**at)).any(|at| {
            let states = Register.apply(&state, &history[*at]);
            states.into_iter().any(|state| is_linearizable_by_brute_force(history, taken | 1 << at, state))
        })
    }

    #[test]
    fn the_verdict_is_that_of_all_orders() {
        let mut random = Random::new(1);
        let mut verdicts = [0, 0];
        for _ in 0..40_000 {
            let count = 1 + random.below(7);
            let responses_percent = if random.percent(50) { 75 } else { 40 };
            let history: Vec<Timed<Access>> = (0..count)
                .map(|_| {
                    let invoked = random.below_u64(12);
                    let (one, other) = (random.below(3) as u8, random.below(3) as u8);
                    let operation = match random.below(5) {
                        0..2 => Write(one),
                        2..4 => Read(one),
                        _ => Replace(one, other),
                    };
                    let responded = random.percent(responses_percent).then(|| invoked + random.below_u64(8));
                    let is_limited = responded.is_none() && random.percent(50);
                    let effective_until = is_limited.then(|| invoked + random.below_u64(8));
                    Timed { invoked, responded, effective_until, operation }
                })
                .collect();
            let expected = is_linearizable_by_brute_force(&history, 0, 0);
            assert_eq!(is_linearizable(&history), expected, "{history:?}");
            verdicts[usize::from(expected)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 1_000), "{verdicts:?}");
    }
}
