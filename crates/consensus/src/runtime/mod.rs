//! Runs the tasks of `openraft` on one thread, on a clock and with randomness that the owner gives: what it does depends on nothing else.
//!
//! Tasks wake each other while [`Runtime::run`] is on; when it returns, all of them wait for bytes, the disk or [`Runtime::due`].

mod channels;
mod executor;
mod sleep;
mod task;
mod watch;

pub(crate) use executor::{Runtime, lock};
