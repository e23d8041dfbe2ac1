//! State that the connections of a worker share. The handlers of one connection are methods of [`Driver`] and take that
//! connection.

use super::connection::Connection;
use super::subscriber::Subscriber;
use crate::config::Config;
use crate::counters::{Counts, Phase, Shared};
use crate::latency::Hists;
use crate::net::{self, Epoll};
use crate::outcome::Event;
use crate::pulse::{Demand, Pulse};
use crate::random::Random;
use crate::topology::Topology;
use crate::track::{Bits, Kind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// State of a worker apart from its connections.
pub struct Driver {
    pub cfg: Arc<Config>,
    pub shared: Arc<Shared>,
    pub index: usize,
    pub phase: Phase,
    pub now: u64,
    /// The wall clock minus CLOCK_MONOTONIC, in nanoseconds.
    pub wall_offset: u64,
    pub rng: Random,
    pub sockets: Sockets,
    pub timers: Timers,
    pub window: Window,
    pub sending: SendState,
    pub arrivals: Arrivals,
    pub tally: Tally,
}

/// Sockets and buffers.
pub struct Sockets {
    pub epoll: Epoll,
    /// Empty write buffers.
    pool: Vec<Vec<u8>>,
    /// Connections with unsent bytes.
    pub dirty: Vec<usize>,
    pub rbuf: Vec<u8>,
    /// Bytes of MQTT that a connection's layers have extracted.
    pub opened: Vec<u8>,
    /// Number of connections being opened.
    pub pending: usize,
}

/// Times at which something happens to a connection.
#[derive(Default)]
pub struct Timers {
    /// Times at which connections are retried.
    pub retry: BinaryHeap<Reverse<(u64, usize)>>,
    /// Times at which connected clients leave by themselves: the time, the client, its connection's generation.
    pub leaves: BinaryHeap<Reverse<(u64, usize, u32)>>,
    /// Times at which publishers of plain messages have one more to send.
    pub messages: BinaryHeap<Reverse<(u64, usize)>>,
}

/// Start of publishing, start and end of the measured window.
pub struct Window {
    pub t0: u64,
    pub w0: u64,
    pub w1: u64,
}

impl Window {
    #[inline]
    pub fn contains(&self, at: u64) -> bool {
        at >= self.w0 && at < self.w1
    }
}

/// Publishers with something to send, and limits of sending.
pub struct SendState {
    /// Publishers that may send, and those that wait for `room`.
    pub queue: Vec<usize>,
    pub parked: Vec<usize>,
    /// Bytes after the header of every payload.
    pub pattern: Vec<u8>,
    /// Number of publishers of this worker.
    pub lanes: u64,
    pub due_total: u64,
    pub ns_per_msg: f64,
    /// Time after the end in which messages due just before it may still be sent, in rate mode.
    pub grace: u64,
    /// Number of messages that --max-outstanding no longer waits for.
    pub written_off: u64,
    /// Number of deliveries that may be started now.
    pub room: u64,
}

/// Received messages of all subscribers.
pub struct Arrivals {
    /// Last counters of plain messages, by subscriber and topic.
    pub counted: HashMap<(usize, Vec<u8>), u64>,
    pub groups_seen: Vec<Vec<Bits>>,
    group_last: Vec<u64>,
    pub group_gap: (u64, u64),
    pub any_gap: (u64, u64),
}

/// Counts and measurements.
pub struct Tally {
    pub counts: Counts,
    pub hists: Hists,
    /// Measurements since the last beat, not included in `hists`.
    pub pulse: Pulse,
    pub demand: Demand,
    pub reasons: BTreeMap<String, u64>,
    pub events: Vec<Event>,
    pub last_recv: u64,
    pub last_ack: u64,
    pub last_send: u64,
    /// CPU time of this thread when publishing began, in nanoseconds.
    pub cpu_before: u64,
}

/// Size in bytes of a new buffer for output: a CONNECT, a SUBSCRIBE or a few acknowledgements.
const WBUF: usize = 512;
/// Maximum number of empty buffers in the pool.
const POOL_MAX: usize = 1024;
/// Size in bytes of the buffer for input.
pub const RBUF: usize = 256 * 1024;
/// Maximum number of recorded events.
const EVENTS_MAX: usize = 400;

/// A random number of nanoseconds between the two.
pub fn drawn((least, most): (Duration, Duration), random: &mut Random) -> u64 {
    let (least, most) = (least.as_nanos() as u64, most.as_nanos() as u64);
    least + random.below(most.saturating_sub(least) + 1)
}

impl Sockets {
    fn new() -> Sockets {
        Sockets {
            epoll: Epoll::new(),
            pool: vec![],
            dirty: vec![],
            rbuf: vec![0; RBUF],
            opened: vec![],
            pending: 0,
        }
    }

    /// A buffer for the connection's output; queues the connection for the next flush.
    #[inline]
    pub fn out<'a>(&mut self, c: &'a mut Connection) -> &'a mut Vec<u8> {
        if c.wbuf.capacity() == 0 {
            c.wbuf = self.pool.pop().unwrap_or_else(|| Vec::with_capacity(WBUF));
        }
        if !c.dirty {
            c.dirty = true;
            self.dirty.push(c.slot);
        }
        &mut c.wbuf
    }

    /// Keeps an empty buffer.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.pool.len() < POOL_MAX {
            self.pool.push(buffer);
        }
    }

    /// Registers the events of a new socket.
    pub fn watch(&self, c: &Connection) {
        self.epoll.ctl(true, c.fd, c.events(), c.event_data());
    }

    /// Registers the events of a socket again after a change.
    pub fn rewatch(&self, c: &Connection) {
        self.epoll.ctl(false, c.fd, c.events(), c.event_data());
    }
}

impl Arrivals {
    fn new(cfg: &Config) -> Arrivals {
        let traffic = &cfg.traffic;
        let groups = match traffic.topology {
            Topology::Shared if traffic.n_pub > 0 => traffic.groups,
            _ => 0,
        };
        Arrivals {
            counted: HashMap::new(),
            groups_seen: vec![vec![Bits::default(); traffic.n_pub]; groups],
            group_last: vec![0; groups],
            group_gap: (0, 0),
            any_gap: (0, 0),
        }
    }

    /// Notes a message of publisher `i` for the subscriber's group.
    #[inline]
    pub fn on_shared(&mut self, u: &mut Subscriber, i: usize, seq: u64, at: (u64, u64)) -> Kind {
        let (now, t0) = at;
        let g = u.group;
        let gap = now.saturating_sub(self.group_last[g].max(t0));
        if gap > self.group_gap.0 {
            self.group_gap = (gap, now - gap);
        }
        self.group_last[g] = now;
        if !self.groups_seen[g][i].set(seq) {
            return Kind::Dup;
        }
        if seq < u.last[i] {
            return Kind::Late;
        }
        u.last[i] = seq + 1;
        Kind::New
    }
}

impl Tally {
    fn new() -> Tally {
        Tally {
            counts: Counts::default(),
            hists: Hists::new(),
            pulse: Pulse::default(),
            demand: Demand::default(),
            reasons: BTreeMap::new(),
            events: vec![],
            last_recv: 0,
            last_ack: 0,
            last_send: 0,
            cpu_before: 0,
        }
    }

    pub fn count_reason(&mut self, reason: String) {
        *self.reasons.entry(reason).or_insert(0) += 1;
    }
}

impl Driver {
    pub fn new(cfg: Arc<Config>, shared: Arc<Shared>, index: usize) -> Driver {
        Driver {
            index,
            phase: Phase::Connect,
            now: net::now(),
            wall_offset: net::wall().wrapping_sub(net::now()),
            rng: Random::new(((index as u64 + 1) << 32) ^ net::now()),
            sockets: Sockets::new(),
            timers: Timers::default(),
            window: Window { t0: 0, w0: u64::MAX, w1: u64::MAX },
            sending: SendState {
                queue: vec![],
                parked: vec![],
                pattern: (0..cfg.traffic.payload + 256)
                    .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8))
                    .collect(),
                lanes: 0,
                due_total: 0,
                ns_per_msg: 0.0,
                grace: if cfg.sending.rate > 0.0 { 100_000_000 } else { 0 },
                written_off: 0,
                room: 0,
            },
            arrivals: Arrivals::new(&cfg),
            tally: Tally::new(),
            cfg,
            shared,
        }
    }

    pub fn target(&self, c: &Connection) -> SocketAddr {
        let h = self.cfg.network.hosts(c.side());
        h[c.host % h.len()]
    }

    pub fn event(&mut self, c: &Connection, what: &str) {
        if self.cfg.checks.log_events && self.tally.events.len() < EVENTS_MAX {
            self.tally.events.push(Event {
                at: self.now,
                client: self.cfg.client_id(c.side(), c.id),
                host: self.target(c).to_string(),
                what: what.to_string(),
            });
        }
    }
}
