//! Runtime that runs the tasks of `openraft` on one thread, with a clock and randomness from its owner. It depends on
//! nothing else.
//!
//! Tasks wake each other during [`Runtime::run`]. When it returns, all of them wait for bytes, the disk or
//! [`Runtime::due`].

mod channels;
mod executor;
mod sleep;
mod task;
mod watch;

pub(crate) use executor::{Runtime, TickTimes, WakeTimes};
pub(crate) use sleep::Instant;
