//! Tokens that wait until the remote broker has answered filters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A token that sets a flag when it is dropped, and wakes the owner of the flag. Without an owner, nobody needs it.
pub struct Until {
    is_over: Weak<AtomicBool>,
    wake: Box<dyn Fn() + Send>,
}

impl Until {
    /// Creates a token and its flag.
    pub fn new(wake: impl Fn() + Send + 'static) -> (Self, Arc<AtomicBool>) {
        let is_over = Arc::new(AtomicBool::new(false));
        (Self { is_over: Arc::downgrade(&is_over), wake: Box::new(wake) }, is_over)
    }

    /// Returns whether the flag has an owner.
    fn is_needed(&self) -> bool {
        self.is_over.strong_count() > 0
    }

    /// Drops the token, and leaves the flag as it is.
    fn forget(mut self) {
        self.is_over = Weak::new();
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        if let Some(is_over) = self.is_over.upgrade() {
            is_over.store(true, Ordering::Release);
            (self.wake)();
        }
    }
}

/// A token, with the filters that it waits for.
pub struct Held {
    /// Filters without an answer.
    pub filters: Vec<Box<str>>,
    pub until: Until,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("filters", &self.filters).finish_non_exhaustive()
    }
}

impl Held {
    fn bytes(&self) -> usize {
        EACH + self.filters.iter().map(|filter| filter.len() + size_of::<Box<str>>()).sum::<usize>()
    }
}

/// Memory of a token without its filters, about.
const EACH: usize = 128;
/// Maximum memory of all tokens. Those beyond it leave their flags unset, so their owners ask again.
const BYTES_MAX: usize = 16 << 20;
/// Memory below which tokens that nobody needs are not looked for.
const SWEEP_MIN: usize = 64 << 10;

/// All tokens of a relay.
#[derive(Default)]
pub struct HeldTokens {
    all: Vec<Held>,
    bytes: usize,
    /// Memory beyond which tokens that nobody needs are dropped.
    sweep_at: usize,
}

impl HeldTokens {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a token, unless all of its filters are answered: `is_pending` says which are not.
    pub fn push(&mut self, mut held: Held, is_pending: impl Fn(&str) -> bool) {
        held.filters.retain(|filter| is_pending(filter));
        if held.filters.is_empty() {
            return;
        }
        let bytes = held.bytes();
        if self.bytes + bytes > self.sweep_at {
            self.retain(|_| true);
            self.sweep_at = (2 * self.bytes).clamp(SWEEP_MIN, BYTES_MAX);
        }
        if self.bytes + bytes > BYTES_MAX {
            return held.until.forget();
        }
        self.bytes += bytes;
        self.all.push(held);
    }

    /// Drops the tokens whose filters are answered, and those that nobody needs.
    pub fn retain(&mut self, is_pending: impl Fn(&str) -> bool) {
        self.all.retain_mut(|held| {
            held.filters.retain(|filter| is_pending(filter));
            !held.filters.is_empty() && held.until.is_needed()
        });
        self.all.shrink_to(2 * self.all.len());
        self.bytes = self.all.iter().map(Held::bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(filters: &[&str]) -> (Held, Arc<AtomicBool>) {
        let (until, is_over) = Until::new(|| {});
        (Held { filters: filters.iter().map(|filter| Box::from(*filter)).collect(), until }, is_over)
    }

    #[test]
    fn a_token_is_dropped_when_the_last_of_its_filters_is_answered() {
        let mut tokens = HeldTokens::default();
        let (token, is_over) = held(&["a", "b", "c"]);
        tokens.push(token, |filter| filter != "c");
        tokens.retain(|filter| filter != "a");
        assert!(!is_over.load(Ordering::Acquire) && !tokens.is_empty());
        tokens.retain(|filter| filter == "c");
        assert!(is_over.load(Ordering::Acquire), "nothing is open that was asked for");
        let (token, is_over) = held(&["a"]);
        tokens.push(token, |_| false);
        assert!(is_over.load(Ordering::Acquire) && tokens.is_empty(), "it is answered already");
    }

    /// A question is asked again and again while the other cluster does not answer.
    #[test]
    fn tokens_that_nobody_needs_do_not_fill_the_memory() {
        let mut tokens = HeldTokens::default();
        let (token, is_over) = held(&["a"]);
        tokens.push(token, |_| true);
        for _ in 0..100_000 {
            tokens.push(held(&["a"]).0, |_| true);
            assert!(tokens.bytes <= SWEEP_MIN);
        }
        tokens.retain(|_| true);
        assert_eq!(tokens.all.len(), 1);
        assert!(!is_over.load(Ordering::Acquire));
    }

    #[test]
    fn tokens_beyond_the_maximum_are_not_taken_for_answered() {
        let mut tokens = HeldTokens::default();
        let long = "x".repeat(60_000);
        let flags: Vec<_> = (0..300)
            .map(|_| {
                let (token, is_over) = held(&[&long]);
                tokens.push(token, |_| true);
                assert!(tokens.bytes <= BYTES_MAX);
                is_over
            })
            .collect();
        let count = tokens.all.len();
        assert!((200..300).contains(&count), "{count}");
        tokens.retain(|_| false);
        assert_eq!(flags.iter().filter(|is_over| is_over.load(Ordering::Acquire)).count(), count);
    }
}
