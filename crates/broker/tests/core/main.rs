//! The broker's core without sockets: workers joined by a network under the test's control, clients that speak MQTT,
//! time that passes when a test says so, and a store that may be late or fail.
//!
//! Read `net.rs` first. Each scenario runs with one worker and with three, their batches in order and shuffled.

mod acknowledging;
mod actor;
mod admission;
mod client;
mod divided;
mod drain;
mod durability;
mod events;
mod exactly_once;
mod exchange;
mod hostile;
mod limits;
mod link_groups;
mod links;
mod log;
mod net;
mod operators;
mod oracle;
mod origin;
mod overload;
mod peers;
mod publishers;
mod queue_refusals;
mod quotas;
mod readers;
mod recheck;
mod records;
mod retained;
mod sessions;
mod shapes;
mod shared;
mod simulation;
mod spans;
mod store;
mod store_qos0;
mod takeover;
mod turns;
mod wills;
