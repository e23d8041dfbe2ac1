//! The broker's own topics, `$SYS/broker/...`. They have the names of mosquitto where the meaning is the same.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mqtt::{QoS, TopicName};

use super::Worker;
use crate::counters::{Counters, Published, StoreCounters};
use crate::ids::{Time, WorkerId};
use crate::message::MessageView;

/// State of the broker's own topics. Worker 0 publishes them.
#[derive(Debug)]
pub(super) struct Sys {
    connections_max: u64,
    due: Time,
}

impl Sys {
    pub fn new(worker: WorkerId, interval: Duration) -> Self {
        let due = if worker.0 == 0 && !interval.is_zero() { Time::default() } else { Time::NEVER };
        Self { connections_max: 0, due }
    }

    /// Time of the next messages.
    pub fn due(&self) -> Time {
        self.due
    }

    pub fn plan_next(&mut self, now: Time, interval: Duration) {
        self.due = now.after(interval);
    }

    /// Applies a changed interval.
    pub fn set_interval(&mut self, now: Time, interval: Duration) {
        self.due = if interval.is_zero() { Time::NEVER } else { now.after(interval) };
    }
}

impl Worker {
    pub(super) fn publish_sys(&mut self) {
        self.publish_figures();
        let node = self.node.clone();
        let mut counters = Counters::default();
        let mut store = StoreCounters::default();
        for published in &node.published {
            let (worker, shards, _) = published.counters();
            counters.add(&worker);
            store.add(&shards);
        }
        let sum = |figure: &dyn Fn(&Published) -> u64| node.published.iter().map(figure).sum::<u64>();
        let connected = sum(&|published| published.connections.load(Relaxed));
        let sessions = sum(&|published| published.sessions.load(Relaxed));
        self.sys.connections_max = self.sys.connections_max.max(connected);
        let dropped = counters.dropped_slow_qos0
            + counters.dropped_overload
            + counters.dropped_queue_full
            + counters.dropped_expired
            + counters.dropped_packet_size
            + counters.dropped_not_readable
            + counters.dropped_not_stored
            + store.dropped_queue_full
            + store.dropped_expired
            + store.dropped_session_ended
            + store.dropped_no_member
            + store.dropped_no_linked_member
            + store.dropped_not_stored;
        let figures = [
            ("clients/connected", connected),
            ("clients/maximum", self.sys.connections_max),
            ("sessions/durable", sessions),
            ("subscriptions/count", node.routes.own_len() as u64),
            ("retained messages/count", sum(&|published| published.retained_messages.load(Relaxed))),
            ("messages/received", counters.publish_received()),
            ("messages/sent", counters.publish_sent()),
            ("publish/messages/dropped", dropped),
            ("bytes/received", counters.bytes_received),
            ("bytes/sent", counters.bytes_sent),
            ("store/messages/count", store.queued_messages),
            ("store/messages/bytes", store.queued_bytes),
        ];
        self.sys_message("version", &node.version);
        self.sys_message(
            "uptime",
            &format!("{} seconds", self.clock.now().since(self.node.incarnation.began).as_secs()),
        );
        for (name, value) in figures {
            self.sys_message(name, &value.to_string());
        }
        for figure in counters.each().chain(store.each()) {
            self.sys_message(&format!("counters/{}", figure.name), &figure.value.to_string());
        }
    }

    fn sys_message(&mut self, name: &str, value: &str) {
        let topic = format!("$SYS/broker/{name}");
        let view = MessageView {
            topic: &topic,
            properties: &[],
            payload: value.as_bytes(),
            qos: QoS::AtMostOnce,
            retain: true,
            expires: Time::NEVER,
            received: self.clock.now(),
            publisher: None,
            publisher_key: 0,
            durability: crate::durability::Durability::LocalDisk,
            span: 0,
        };
        if let Ok(name) = TopicName::parse(view.topic) {
            self.dispatch(name, view, None);
        }
    }
}
