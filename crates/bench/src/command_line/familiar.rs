//! Options that the command lines of both tools share.

use super::UsageError;
use crate::pace::Pace;
use crate::plan::{Message, Messages, Plan, Schedule};
use clap::Args;
use std::time::Duration;

/// Option `-q` of subscribers and publishers.
#[derive(Args, Debug)]
pub struct Qos {
    #[arg(long = "qos", short = 'q', default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
}

/// Option `-L` of publishers.
#[derive(Args, Debug)]
pub struct Limit {
    /// Total number of messages; 0: no limit
    #[arg(long, short = 'L', default_value_t = 0)]
    pub limit: u64,
}

/// Publishing options of MQTTX.
#[derive(Args, Debug)]
pub struct SendArgs {
    #[command(flatten)]
    qos: Qos,
    #[arg(long, short = 'r')]
    retain: bool,
    /// Milliseconds from one message of a publisher to its next (-im)
    #[arg(long, default_value_t = 1000)]
    message_interval: u64,
    #[command(flatten)]
    limit: Limit,
}

impl SendArgs {
    pub fn plan(&self, clients: Plan, topic: String, message: Message) -> Result<Plan, UsageError> {
        let messages = Messages {
            topics: vec![no_wildcard(topic)?],
            message: Some(message),
            qos: self.qos.qos,
            retain: self.retain,
            inflight: 60_000,
            ..clients.messages
        };
        let schedule = Schedule {
            pace: Pace::Every(Duration::from_millis(self.message_interval)),
            limit: self.limit.limit,
            together: true,
            ..clients.schedule
        };
        Ok(Plan { messages, schedule, ..clients })
    }
}

/// Checks that a Topic Name has no wildcards.
pub fn no_wildcard(topic: String) -> Result<String, UsageError> {
    match topic.contains(['#', '+']) {
        true => Err(UsageError(format!("error: -t {topic}: a Topic Name has no wildcards"))),
        false => Ok(topic),
    }
}

pub fn some_clients(count: usize) -> Result<usize, UsageError> {
    match count {
        0 => Err(UsageError("error: -c 0 asks for no clients: use 1 or more".to_owned())),
        count => Ok(count),
    }
}

/// Connections per second with this interval in milliseconds; 0 for all at once.
pub fn rate(interval_ms: u64) -> f64 {
    if interval_ms == 0 { 0.0 } else { 1000.0 / interval_ms as f64 }
}
