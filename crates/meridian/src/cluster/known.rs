//! A call that waits until the node has learned something from its cluster.

use std::sync::Mutex;

/// Call that is made once something is known.
#[derive(Default)]
pub struct WhenKnown(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    Unknown,
    Awaited(Box<dyn FnOnce() + Send>),
    Known,
}

impl WhenKnown {
    /// Calls `callback` as soon as it is known; at once, when it is.
    pub fn call(&self, callback: Box<dyn FnOnce() + Send>) {
        let mut state = sync::lock(&self.0);
        match *state {
            State::Known => {
                drop(state);
                callback();
            }
            _ => *state = State::Awaited(callback),
        }
    }

    /// Notes that it is known.
    pub fn known(&self) {
        let before = std::mem::replace(&mut *sync::lock(&self.0), State::Known);
        if let State::Awaited(callback) = before {
            callback();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn each_call_is_made_once_before_or_after() {
        let (known, calls) = (WhenKnown::default(), Arc::new(AtomicU32::new(0)));
        let call = || {
            let calls = calls.clone();
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        known.call(call());
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        known.known();
        known.known();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        known.call(call());
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
