//! Critical threads: when one of them panics, the process ends.
//!
//! A broker without one of its threads is worse than none: the supervisor of the process restarts it whole. Threads
//! that are not essential, or whose panics are handled, are started in the ordinary way.

#![forbid(unsafe_code)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::thread::{self, JoinHandle};

/// Starts a thread of this name. Its panic is logged with its message and aborts the process, so `join` never returns
/// an error.
///
/// # Errors
/// The system cannot start a thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // The process ends, so nothing sees state that was left half changed.
    let run = move || catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| end(&*panic));
    thread::Builder::new().name(name.into()).spawn(run)
}

fn end(panic: &(dyn Any + Send)) -> ! {
    let thread = thread::current();
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(
        thread = thread.name().unwrap_or_default(),
        "a critical thread panicked, and the process ends: {said}"
    );
    process::abort();
}
