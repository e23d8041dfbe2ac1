//! Worker threads: each drives its share of the connections with one epoll loop.

mod connection;
mod plain;
mod publish;
mod receive;
mod turn;

use crate::codec;
use crate::config::{Config, Side};
use crate::counters::*;
use crate::latency::Hists;
use crate::layer::Layer;
use crate::net::{self, Epoll};
use crate::outcome::{Event, PubResult, SubResult, WorkerResult};
use crate::pulse::{Demand, Pulse};
use crate::random::Random;
use crate::topology::Topology;
use crate::track::{Bits, Stream};
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Progress of a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    New,
    /// The TCP connection is being opened.
    Tcp,
    /// TLS or the WebSocket is being opened.
    Layer,
    /// Waits for CONNACK.
    Connack,
    /// Waits for SUBACK.
    Suback,
    Ready,
    /// Waits before the next attempt.
    Backoff,
    /// Ended for good.
    Dead,
}

// States of an `Entry`.
const DONE: u8 = 0;
const WAIT_ACK: u8 = 1;
const WAIT_COMP: u8 = 2;

/// A sent message above QoS 0; its index in the ring determines its Packet Identifier.
struct Entry {
    seq: u64,
    /// The time in its payload, and the time of its sending; both in nanoseconds.
    ts: u64,
    sent: u64,
    state: u8,
}

/// State of a publisher's messages.
struct Publisher {
    /// Remaining length and topic of every PUBLISH.
    head: Vec<u8>,
    /// Number of deliveries that each message must cause.
    fan: u64,
    /// Next sequence number: the number of messages published so far.
    sent: u64,
    /// Number of messages due by now, and in total.
    due: u64,
    quota: u64,
    /// Earliest time of a retransmission on an open connection.
    retry_at: u64,
    /// Time at which the first message was due, or the next one with random pauses; plain messages only.
    first: u64,
    /// Time of its current timer; other entries in the worker's heap are obsolete.
    timer: u64,
    /// Value of the rate curve when this publisher began.
    base: f64,
    /// Index among this worker's publishers, for due times.
    lane: u64,
    window: usize,
    inflight: usize,
    /// Packet Identifier of the ring's first entry.
    front_pid: u16,
    ring: VecDeque<Entry>,
    rejected: Vec<u64>,
    rec_only: Vec<u64>,
    /// True when it is in the worker's `queue` or `parked`.
    queued: bool,
    parked: bool,
    received: Received,
}

/// State of a subscriber's received messages.
struct Subscriber {
    /// Publishers of the subscriber: `base`, `base + stride`, ... `count` of them.
    base: usize,
    stride: usize,
    count: usize,
    streams: Vec<Stream>,
    /// Highest sequence number + 1 by publisher; shared topology only.
    last: Vec<u64>,
    group: usize,
    received: Received,
}

/// Packet Identifiers of QoS 2 messages received and not yet released, a bit each.
#[derive(Default)]
struct Received {
    bits: Vec<u64>,
    count: usize,
}

impl Received {
    /// Adds an identifier. Returns whether it was absent.
    fn insert(&mut self, pid: u16) -> bool {
        let (word, bit) = ((pid >> 6) as usize, 1u64 << (pid & 63));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        let new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.count += usize::from(new);
        new
    }

    /// Removes an identifier. Returns whether it was present.
    fn remove(&mut self, pid: u16) -> bool {
        let (word, bit) = ((pid >> 6) as usize, 1u64 << (pid & 63));
        let there = self.bits.get(word).is_some_and(|bits| bits & bit != 0);
        if there {
            self.bits[word] &= !bit;
            self.count -= 1;
        }
        there
    }
}

enum Role {
    Pub(Box<Publisher>),
    Sub(Box<Subscriber>),
}

impl Role {
    fn received(&mut self) -> &mut Received {
        match self {
            Role::Pub(p) => &mut p.received,
            Role::Sub(u) => &mut u.received,
        }
    }
}

/// One client's connection, over all of its attempts. Times are nanoseconds of CLOCK_MONOTONIC.
struct Connection {
    fd: i32,
    st: Stage,
    role: Role,
    id: usize,
    host: usize,
    generation: u32,
    /// True when EPOLLOUT is registered.
    out_reg: bool,
    /// True when the last write found the socket full: wait for EPOLLOUT.
    blocked: bool,
    /// True when it is in the worker's `dirty`.
    dirty: bool,
    ready_once: bool,
    /// True when the broker still had the session.
    resumed: bool,
    attempt: u32,
    keepalive: u16,
    /// Number of outstanding SUBACKs.
    sub_wait: u32,
    /// Unsent bytes are `wbuf[wpos..]`; an empty buffer returns to the pool.
    wpos: usize,
    wbuf: Vec<u8>,
    /// TLS or WebSocket, if the run uses them.
    layer: Option<Box<Layer>>,
    /// An incomplete packet, and its size when that is known.
    left: Vec<u8>,
    need: usize,
    t_start: u64,
    t_sent: u64,
    t_down: u64,
    last_tx: u64,
    last_rx: u64,
    ping_sent: u64,
}

/// A thread's share of the clients.
pub struct Worker {
    cfg: Arc<Config>,
    shared: Arc<Shared>,
    index: usize,
    epoll: Epoll,
    conns: Vec<Connection>,
    /// Indexes of `conns` that publish.
    pubs: Vec<usize>,
    /// Empty write buffers.
    pool: Vec<Vec<u8>>,
    /// Connections with unsent bytes.
    dirty: Vec<usize>,
    /// Publishers that may send, and those that wait for `room`.
    queue: Vec<usize>,
    parked: Vec<usize>,
    rbuf: Vec<u8>,
    /// Bytes of MQTT that a connection's layers have extracted.
    opened: Vec<u8>,
    /// Bytes after the header of every payload.
    pattern: Vec<u8>,
    /// Times at which connections are retried.
    retry: BinaryHeap<std::cmp::Reverse<(u64, usize)>>,
    /// Times at which connected clients leave by themselves: the time, the client, its connection's generation.
    leaves: BinaryHeap<std::cmp::Reverse<(u64, usize, u32)>>,
    /// Times at which publishers of plain messages have one more to send.
    timers: BinaryHeap<std::cmp::Reverse<(u64, usize)>>,
    /// Last counters of plain messages, by subscriber and topic.
    counted: HashMap<(usize, Vec<u8>), u64>,
    /// The wall clock minus CLOCK_MONOTONIC, in nanoseconds.
    wall_offset: u64,
    counts: Counts,
    hists: Hists,
    /// Measurements since the last beat, not included in `hists`.
    pulse: Pulse,
    demand: Demand,
    groups_seen: Vec<Vec<Bits>>,
    group_last: Vec<u64>,
    group_gap: (u64, u64),
    any_gap: (u64, u64),
    reasons: BTreeMap<String, u64>,
    events: Vec<Event>,
    phase: u8,
    /// Start of publishing, start and end of the measured window.
    t0: u64,
    w0: u64,
    w1: u64,
    due_total: u64,
    ns_per_msg: f64,
    /// Number of connections being opened.
    pending: usize,
    now: u64,
    last_recv: u64,
    last_ack: u64,
    last_send: u64,
    rng: Random,
    /// CPU time of this thread when publishing began, in nanoseconds.
    cpu_before: u64,
    /// Time after the end in which messages due just before it may still be sent, in rate mode.
    grace: u64,
    /// Number of messages that --max-outstanding no longer waits for.
    written_off: u64,
    /// Number of deliveries that may be started now.
    room: u64,
}

const _: () = assert!(size_of::<Connection>() <= 256);
/// Size in bytes of a new buffer for output: a CONNECT, a SUBSCRIBE or a few acknowledgements.
const WBUF: usize = 512;
/// Maximum number of empty buffers in the pool.
const POOL_MAX: usize = 1024;

const RBUF: usize = 256 * 1024;

/// A random number of nanoseconds between the two.
fn drawn((least, most): (Duration, Duration), random: &mut Random) -> u64 {
    let (least, most) = (least.as_nanos() as u64, most.as_nanos() as u64);
    least + random.below(most.saturating_sub(least) + 1)
}

/// A buffer for the connection's output; queues the connection for the next flush.
#[inline]
fn out<'a>(
    c: &'a mut Connection,
    s: usize,
    pool: &mut Vec<Vec<u8>>,
    dirty: &mut Vec<usize>,
) -> &'a mut Vec<u8> {
    if c.wbuf.capacity() == 0 {
        c.wbuf = pool.pop().unwrap_or_else(|| Vec::with_capacity(WBUF));
    }
    if !c.dirty {
        c.dirty = true;
        dirty.push(s);
    }
    &mut c.wbuf
}

impl Worker {
    pub fn new(cfg: Arc<Config>, shared: Arc<Shared>, index: usize) -> Worker {
        let n = cfg.threads.count;
        let mut w = Worker {
            index,
            epoll: Epoll::new(),
            // Allocated at its final size: growing would leave half of it unused, and as much again.
            conns: Vec::with_capacity(cfg.traffic.n_sub.div_ceil(n) + cfg.traffic.n_pub.div_ceil(n)),
            pubs: vec![],
            pool: vec![],
            dirty: vec![],
            queue: vec![],
            parked: vec![],
            rbuf: vec![0; RBUF],
            opened: vec![],
            pattern: (0..cfg.traffic.payload + 256)
                .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8))
                .collect(),
            retry: BinaryHeap::new(),
            leaves: BinaryHeap::new(),
            timers: BinaryHeap::new(),
            counted: HashMap::new(),
            wall_offset: net::wall().wrapping_sub(net::now()),
            counts: Counts::default(),
            hists: Hists::new(),
            pulse: Pulse::default(),
            demand: Demand::default(),
            groups_seen: vec![],
            group_last: vec![],
            group_gap: (0, 0),
            any_gap: (0, 0),
            reasons: BTreeMap::new(),
            events: vec![],
            phase: P_CONNECT,
            t0: 0,
            w0: u64::MAX,
            w1: u64::MAX,
            due_total: 0,
            ns_per_msg: 0.0,
            pending: 0,
            now: net::now(),
            last_recv: 0,
            last_ack: 0,
            last_send: 0,
            cpu_before: 0,
            rng: Random::new(((index as u64 + 1) << 32) ^ net::now()),
            grace: if cfg.sending.rate > 0.0 { 100_000_000 } else { 0 },
            written_off: 0,
            room: 0,
            cfg,
            shared,
        };
        let cfg = w.cfg.clone();
        if cfg.traffic.topology == Topology::Shared && cfg.traffic.n_pub > 0 {
            w.groups_seen = vec![vec![Bits::default(); cfg.traffic.n_pub]; cfg.traffic.groups];
            w.group_last = vec![0; cfg.traffic.groups];
        }
        for i in (0..cfg.traffic.n_sub).filter(|i| i % n == index) {
            let (base, stride, count) =
                cfg.traffic.topology.publishers_of(i, cfg.traffic.n_pub, cfg.traffic.n_sub);
            let shared = cfg.traffic.topology == Topology::Shared;
            w.push(
                i,
                Role::Sub(Box::new(Subscriber {
                    base,
                    stride,
                    count,
                    streams: if shared { vec![] } else { vec![Stream::default(); count] },
                    last: if shared { vec![0; count] } else { vec![] },
                    group: i % cfg.traffic.groups.max(1),
                    received: Received::default(),
                })),
            );
        }
        for i in (0..cfg.traffic.n_pub).filter(|i| i % n == index) {
            let lane = w.pubs.len() as u64;
            w.pubs.push(w.conns.len());
            w.push(
                i,
                Role::Pub(Box::new(Publisher {
                    head: codec::publish_head(
                        cfg.properties(),
                        cfg.traffic.pub_qos,
                        &cfg.topic_of_pub(i),
                        cfg.traffic.payload,
                    ),
                    fan: cfg.traffic.topology.fan(i, cfg.traffic.n_pub, cfg.traffic.n_sub, cfg.traffic.groups)
                        as u64,
                    sent: 0,
                    due: 0,
                    quota: cfg.quota(i),
                    retry_at: 0,
                    first: 0,
                    timer: 0,
                    base: 0.0,
                    lane,
                    window: cfg.sending.window,
                    inflight: 0,
                    front_pid: 1,
                    ring: VecDeque::new(),
                    rejected: vec![],
                    rec_only: vec![],
                    queued: false,
                    parked: false,
                    received: Received::default(),
                })),
            );
        }
        if cfg.sending.rate > 0.0 && cfg.traffic.n_pub > 0 {
            w.ns_per_msg = 1e9 / (cfg.sending.rate * w.pubs.len() as f64 / cfg.traffic.n_pub as f64);
        }
        w
    }

    fn push(&mut self, id: usize, role: Role) {
        self.conns.push(Connection {
            fd: -1,
            st: Stage::New,
            role,
            id,
            host: id + self.cfg.network.offset,
            generation: 0,
            out_reg: false,
            blocked: false,
            dirty: false,
            ready_once: false,
            resumed: false,
            attempt: 0,
            keepalive: self.cfg.session.keepalive,
            sub_wait: 0,
            wpos: 0,
            wbuf: vec![],
            layer: None,
            left: vec![],
            need: 0,
            t_start: 0,
            t_sent: 0,
            t_down: 0,
            last_tx: 0,
            last_rx: 0,
            ping_sent: 0,
        });
    }

    fn side(&self, s: usize) -> Side {
        match self.conns[s].role {
            Role::Pub(_) => Side::Publisher,
            Role::Sub(_) => Side::Subscriber,
        }
    }

    fn target(&self, s: usize) -> SocketAddr {
        let h = self.cfg.network.hosts(self.side(s));
        h[self.conns[s].host % h.len()]
    }

    fn event(&mut self, s: usize, what: &str) {
        if self.cfg.checks.log_events && self.events.len() < 400 {
            self.events.push(Event {
                at: self.now,
                client: self.cfg.client_id(self.side(s), self.conns[s].id),
                host: self.target(s).to_string(),
                what: what.to_string(),
            });
        }
    }
}
