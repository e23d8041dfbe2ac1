//! What a broker must do for clients written with `rumqttc`, for MQTT 3.1.1 (its `v4`) and 5.0 (its `v5`).
//!
//! The scenarios are those of `tests/interop`, which drives the clients of other languages; the program of this crate
//! prints its results as that runner's JSON lines, and the tests run them against a node inside the test process.
//! Start with [`Cell`]. Knows the broker by its address only.

#![forbid(unsafe_code)]

mod client;
mod event;
mod scenario;
mod v4;
mod v5;

pub use client::{Broker, Client, ClientVersion, ConnectOptions, Will};
pub use event::{Ended, Message, Properties};
pub use scenario::Cell;
