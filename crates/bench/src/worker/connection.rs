//! One client's connection, over all of its attempts.

use super::publisher::Publisher;
use super::subscriber::Subscriber;
use crate::config::Side;
use crate::layer::Layer;
use crate::net;

/// Progress of a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Stage {
    New,
    /// The TCP connection is being opened.
    Tcp,
    /// TLS or the WebSocket is being opened.
    Layer,
    /// Waits for CONNACK.
    Connack,
    /// Waits for this number of SUBACKs.
    Suback(u32),
    Ready,
    /// Waits before the next attempt.
    Backoff,
    /// Ended for good.
    Dead,
}

/// Session of the client at the broker, according to CONNACK.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SessionState {
    Kept,
    New,
}

/// Messages of the client, by what it does.
pub enum Role {
    Pub(Box<Publisher>),
    Sub(Box<Subscriber>),
}

impl Role {
    pub fn received(&mut self) -> &mut Received {
        match self {
            Role::Pub(p) => &mut p.received,
            Role::Sub(u) => &mut u.received,
        }
    }
}

/// Connection of a client. Times are nanoseconds of CLOCK_MONOTONIC.
pub struct Connection {
    /// Index among the worker's connections.
    pub slot: usize,
    pub fd: i32,
    pub st: Stage,
    pub role: Role,
    pub id: usize,
    pub host: usize,
    pub generation: u32,
    /// True when EPOLLOUT is registered.
    pub out_reg: bool,
    /// True when the last write found the socket full: wait for EPOLLOUT.
    pub blocked: bool,
    /// True when it is in the worker's `dirty`.
    pub dirty: bool,
    pub ready_once: bool,
    pub attempt: u32,
    pub keepalive: u16,
    /// Unsent bytes are `wbuf[wpos..]`; an empty buffer returns to the pool.
    pub wpos: usize,
    pub wbuf: Vec<u8>,
    /// TLS or WebSocket, if the run uses them.
    pub layer: Option<Box<Layer>>,
    /// An incomplete packet, and its size when that is known.
    pub left: Vec<u8>,
    pub need: usize,
    pub t_start: u64,
    pub t_sent: u64,
    pub t_down: u64,
    pub last_tx: u64,
    pub last_rx: u64,
    pub ping_sent: u64,
}

const _: () = assert!(size_of::<Connection>() <= 256);

impl Connection {
    pub fn new(slot: usize, id: usize, host: usize, keepalive: u16, role: Role) -> Connection {
        Connection {
            slot,
            fd: -1,
            st: Stage::New,
            role,
            id,
            host,
            generation: 0,
            out_reg: false,
            blocked: false,
            dirty: false,
            ready_once: false,
            attempt: 0,
            keepalive,
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
        }
    }

    pub fn side(&self) -> Side {
        match self.role {
            Role::Pub(_) => Side::Publisher,
            Role::Sub(_) => Side::Subscriber,
        }
    }

    /// Returns whether the socket is open, and still that of this generation.
    #[inline]
    pub fn is_open(&self, generation: u32) -> bool {
        self.fd >= 0 && self.generation == generation
    }

    /// Events of its socket that are registered.
    pub fn events(&self) -> u32 {
        net::IN | net::RDHUP | if self.out_reg { net::OUT } else { 0 }
    }

    /// Value of its epoll events.
    pub fn event_data(&self) -> u64 {
        u64::from(self.generation) << 32 | self.slot as u64
    }
}

/// Packet Identifiers of QoS 2 messages received and not yet released, a bit each.
#[derive(Default)]
pub struct Received {
    bits: Vec<u64>,
    pub count: usize,
}

impl Received {
    /// Adds an identifier. Returns whether it was absent.
    pub fn insert(&mut self, pid: u16) -> bool {
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
    pub fn remove(&mut self, pid: u16) -> bool {
        let (word, bit) = ((pid >> 6) as usize, 1u64 << (pid & 63));
        let there = self.bits.get(word).is_some_and(|bits| bits & bit != 0);
        if there {
            self.bits[word] &= !bit;
            self.count -= 1;
        }
        there
    }
}
