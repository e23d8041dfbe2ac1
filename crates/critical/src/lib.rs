//! Threads without which a node is none: when one of them panics, the process ends.
//!
//! Half a broker is worse than none: whoever supervises the process starts a whole one. Threads that others can do without, or whose panics
//! somebody answers for, are started as threads always are.

#![forbid(unsafe_code)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::thread::{self, JoinHandle};

/// Starts a thread of this name. Its panic is logged with its message, and aborts the process: `join` gives no error.
///
/// # Errors
/// The system gives no thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // Whatever was left half done is seen by nobody: the process ends.
    let run = move || catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| end(&*panic));
    thread::Builder::new().name(name.into()).spawn(run)
}

fn end(panic: &(dyn Any + Send)) -> ! {
    let thread = thread::current();
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(
        thread = thread.name().unwrap_or_default(),
        "a thread panicked that the node cannot do without, and the process ends: {said}"
    );
    process::abort();
}
