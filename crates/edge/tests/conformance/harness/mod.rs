//! Harness of the scenarios. [`Broker`] runs a scenario against a node. [`Client`] speaks MQTT to it over a real
//! socket, packet by packet, without automatic answers.

mod broker;
mod client;
mod connect;
mod message;
mod received;
pub mod wire;

use std::time::{Duration, Instant};

pub use broker::{
    Broker, every_version, every_version_ours, every_version_with, from_3_1_1, v5, v5_ours, v5_with,
};
pub use client::Client;
pub use connect::Connect;
pub use message::Message;
pub use mqtt::{
    PropertiesBuf, Property, QoS, ReasonCode, RetainHandling, SubscriptionOptions,
    Version::{self, V3_1, V3_1_1, V5},
};
pub use received::{Ack, ConnAck, Received, SubAck};

pub const QOS_0: QoS = QoS::AtMostOnce;
pub const QOS_1: QoS = QoS::AtLeastOnce;
pub const QOS_2: QoS = QoS::ExactlyOnce;
pub const EVERY_QOS: [QoS; 3] = [QOS_0, QOS_1, QOS_2];

/// Maximum error of a broker's clock, which it reads once a turn.
const CLOCK: Duration = Duration::from_millis(20);

/// Asserts that at least `time` has passed since `since`. There is no upper bound, because the machine may be slow.
pub fn assert_waited(since: Instant, time: Duration) {
    assert!(since.elapsed() + CLOCK >= time, "{:?} instead of {time:?}", since.elapsed());
}

/// Returns subscription options with only a QoS.
pub fn at(qos: QoS) -> SubscriptionOptions {
    SubscriptionOptions { qos, ..SubscriptionOptions::default() }
}
