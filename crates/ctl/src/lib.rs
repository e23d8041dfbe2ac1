//! `meridian ctl` and `meridian top`: a node's HTTP API for people at a terminal and for scripts.
//!
//! [`CtlArgs`] and [`TopArgs`] are the command lines; [`completions`] writes the scripts for shells. Below them
//! `client` speaks HTTP, `sse` reads event streams, `pages` follows cursors, `console` is the only way to the terminal,
//! and `commands` has a file for each noun.
//!
//! **Invariant:** every answer of a server ends in a value or a [`failure`](Failure), never in a panic.
//! **Invariant:** a text of a server reaches a terminal only through `escape`.

mod alarms;
mod args;
mod client;
mod commands;
mod completions;
mod confirm;
mod console;
pub mod escape;
mod failure;
mod fields;
mod human;
mod interrupt;
mod pages;
mod password;
mod problem;
mod query;
mod sse;
mod stream;
mod table;
mod top;
mod url;
mod wall_clock;

#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;

pub use args::{ConnectionArgs, CtlArgs};
pub use completions::CompletionsArgs;
pub use failure::Failure;
pub use password::{line, typed_password};
pub use top::TopArgs;
