//! Interoperability scenarios for clients written with `rumqttc`: MQTT 3.1.1 (its module `v4`) and 5.0 (its module
//! `v5`).
//!
//! The scenarios are those of `tests/interop`, which drives clients in other languages. The program of this crate
//! prints its results as JSON lines for that runner. It is also a driver, for scenarios of several nodes that the
//! runner has for all libraries. The tests run the scenarios against a node inside the test process. Start with
//! [`Cell`]. The scenarios know nothing of the broker but its address.

#![forbid(unsafe_code)]

mod client;
mod driver;
mod event;
mod scenario;
mod v4;
mod v5;

pub use client::{Broker, Client, ClientVersion, ConnectOptions, Will};
pub use driver::drive;
pub use event::{Ended, Message, Properties};
pub use scenario::Cell;
