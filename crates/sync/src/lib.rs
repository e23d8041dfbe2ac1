//! Locks whose poison is ignored.
//!
//! A lock is poisoned when a thread panics while it holds the lock. A panic of a critical thread ends the process, so
//! nothing sees what it left half changed. Code that runs on other threads does not panic while it holds a lock, or
//! leaves a value that is complete.

#![forbid(unsafe_code)]

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// Returns the guard or value of a lock, poisoned or not: for a `RwLock`, a `Condvar`, or `Mutex::into_inner`.
#[inline]
pub fn ignore_poison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
