//! Overload of a worker and of its node, and what the node refuses because of it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::ids::{Time, WorkerId};
use crate::node::Node;
use crate::overload::{Level, Load, Overload};
use crate::settings::Settings;

/// Load of one worker, and the overload level of the whole node at the last assessment.
#[derive(Default)]
pub(super) struct WorkerLoad {
    overload: Overload,
    /// Overload without the bytes in queues, which are no reason to refuse clients.
    connect_overload: Overload,
    refuses_clients: bool,
    level: Level,
}

impl WorkerLoad {
    /// Records that a turn of the reactor took `took` and ends now.
    pub fn turn_took(&mut self, now: Time, took: Duration) {
        self.overload.turn(now, took);
        self.connect_overload.turn(now, took);
    }

    /// Assesses the load of the worker, publishes it, and returns the overload level of the node.
    pub fn assess(
        &mut self,
        now: Time,
        worker: WorkerId,
        node: &Node,
        settings: &Settings,
        mailbox_bytes: u64,
    ) -> Level {
        let waiting_max = settings.limits.memory_queued_max.bytes();
        let load = Load { mailbox_bytes, waiting_bytes: node.waiting_bytes(), waiting_max };
        let own = self.overload.assess(now, load, &settings.overload);
        let connect_overload =
            self.connect_overload.assess(now, Load { waiting_bytes: 0, ..load }, &settings.overload);
        let published = &node.published[worker.index()];
        published.overload.store(own.number(), Relaxed);
        published.refuses_clients.store(connect_overload >= Level::Busy, Relaxed);
        self.refuses_clients = node.published.iter().any(|worker| worker.refuses_clients.load(Relaxed));
        let levels = node.published.iter().map(|worker| worker.overload.load(Relaxed));
        self.level = Level::of(levels.max().unwrap_or_default());
        self.level
    }

    /// Overload level of the node at the last assessment.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns whether the node refuses new clients, as of the last assessment.
    pub fn refuses_clients(&self) -> bool {
        self.refuses_clients
    }
}
