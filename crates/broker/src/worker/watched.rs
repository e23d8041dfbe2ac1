//! Topic metrics on the path of a message. While no filter is watched, they cost one check of an empty list.

use std::sync::Arc;

use mqtt::{QoS, TopicName};

use crate::admin::Watch;
use crate::ids::WorkerId;

/// Filters that this worker counts for, and those that match the most recent topic.
#[derive(Debug, Default)]
pub(super) struct WatchedTopics {
    list: Option<Arc<[Arc<Watch>]>>,
    topic: String,
    /// Filters of the list that match `topic`, one bit each.
    matching: u64,
}

impl WatchedTopics {
    pub fn set(&mut self, list: Arc<[Arc<Watch>]>) {
        self.list = (!list.is_empty()).then_some(list);
        self.topic.clear();
        self.matching = 0;
    }

    pub fn is_used(&self) -> bool {
        self.list.is_some()
    }

    pub fn received(&mut self, worker: WorkerId, topic: &str, qos: QoS, bytes: usize) {
        self.each(topic, |watch| watch.received(worker.index(), qos, bytes));
    }

    pub fn sent(&mut self, worker: WorkerId, topic: &str, qos: QoS, bytes: usize) {
        self.each(topic, |watch| watch.sent(worker.index(), qos, bytes));
    }

    pub fn dropped(&mut self, worker: WorkerId, topic: &str) {
        self.each(topic, |watch| watch.dropped(worker.index()));
    }

    #[inline]
    fn each(&mut self, topic: &str, count: impl Fn(&Watch)) {
        if self.list.is_some() {
            self.each_watched(topic, count);
        }
    }

    fn each_watched(&mut self, topic: &str, count: impl Fn(&Watch)) {
        let Some(list) = &self.list else { return };
        if self.topic != topic {
            topic.clone_into(&mut self.topic);
            self.matching = 0;
            let Ok(name) = TopicName::parse(topic) else { return };
            let matching = list.iter().enumerate().filter(|(_, watch)| watch.matches(name));
            self.matching = matching.fold(0, |bits, (at, _)| bits | 1 << at);
        }
        let mut rest = self.matching;
        while rest != 0 {
            count(&list[rest.trailing_zeros() as usize]);
            rest &= rest - 1;
        }
    }
}
