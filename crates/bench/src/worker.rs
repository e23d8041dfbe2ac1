//! Worker threads: each drives its share of the connections with one epoll loop. `turn` is the loop; [`Driver`] has
//! the handlers of one connection, in `open`, `receive`, `publish` and `plain`.

mod connection;
mod driver;
mod open;
mod plain;
mod publish;
mod publisher;
mod receive;
mod schedule;
mod subscriber;
mod turn;

use crate::config::Config;
use crate::counters::Shared;
use connection::{Connection, Received, Role, SessionState, Stage};
use driver::{Driver, RBUF, drawn};
use publisher::{Entry, EntryState, Publisher, next_pid};
use std::sync::Arc;
use subscriber::Subscriber;

/// A thread's share of the clients.
pub struct Worker {
    connections: Vec<Connection>,
    /// Indexes of `connections` that publish.
    publishers: Vec<usize>,
    driver: Driver,
}

impl Worker {
    pub fn new(cfg: Arc<Config>, shared: Arc<Shared>, index: usize) -> Worker {
        let (n, traffic) = (cfg.threads.count, &cfg.traffic);
        // Allocated at its final size: growing would leave half of it unused, and as much again.
        let mut connections = Vec::with_capacity(traffic.n_sub.div_ceil(n) + traffic.n_pub.div_ceil(n));
        let mut push = |id: usize, role: Role| {
            let (slot, host) = (connections.len(), id + cfg.network.offset);
            connections.push(Connection::new(slot, id, host, cfg.session.keepalive, role));
            slot
        };
        for i in (0..traffic.n_sub).filter(|i| i % n == index) {
            push(i, Role::Sub(Box::new(Subscriber::new(&cfg, i))));
        }
        let mut publishers = vec![];
        for i in (0..traffic.n_pub).filter(|i| i % n == index) {
            let lane = publishers.len() as u64;
            publishers.push(push(i, Role::Pub(Box::new(Publisher::new(&cfg, i, lane)))));
        }
        let mut driver = Driver::new(cfg.clone(), shared, index);
        driver.sending.lanes = publishers.len() as u64;
        if cfg.sending.rate > 0.0 && traffic.n_pub > 0 {
            driver.sending.ns_per_msg =
                1e9 / (cfg.sending.rate * publishers.len() as f64 / traffic.n_pub as f64);
        }
        Worker { connections, publishers, driver }
    }
}
