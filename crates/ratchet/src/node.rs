//! Workers and their clients in one thread. The packets are MQTT 3.1.1 and are built by hand, so that nearly all
//! counted instructions belong to the broker.

use std::sync::Arc;

use broker::access::{
    Access, Action, AuthReply, AuthResult, Credentials, Identity, Permission, RetryAuthorize,
};
use broker::settings::Settings;
use broker::{Batch, ConnectionId, Node, Time, Worker, WorkerId};

const NOW: Time = Time(1_000);
const TURNS_MAX: u32 = 64;

/// Access control of a node without rules, or of one with rules that allow these clients everything.
struct Rules {
    are_some: bool,
}

impl Access for Rules {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Some(AuthResult::Allow)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn allows_without_grants(&self) -> bool {
        !self.are_some
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        action: Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        // A node without rules asks nothing about topics.
        assert!(self.are_some || matches!(action, Action::Subscribe { .. }), "asked about {action:?}");
        Some(Permission { allowed: true, lasting: true })
    }

    fn generation(&self) -> u64 {
        1
    }
}

pub struct Broker {
    workers: Vec<Worker>,
    /// Number of connections that were opened. They go to the workers in turn.
    opened: usize,
    batch: Batch,
    dirty: Vec<u32>,
    /// Output of the last turns, with the connection that got it.
    received: Vec<((WorkerId, u32), Vec<u8>)>,
    used: usize,
}

impl Broker {
    pub fn new() -> Self {
        Self::of_workers(1)
    }

    pub fn of_workers(workers: u16) -> Self {
        Self::build(workers, false)
    }

    /// Makes a broker that has to ask about every topic.
    pub fn with_rules() -> Self {
        Self::build(1, true)
    }

    fn build(workers: u16, has_rules: bool) -> Self {
        let mut settings = Settings::default();
        settings.sys.interval = std::time::Duration::ZERO;
        let rules = Arc::new(Rules { are_some: has_rules });
        let node = Node::new(settings, rules, "ratchet".into(), workers, [7; 16]);
        Self {
            workers: node.build_workers(),
            opened: 0,
            batch: Batch::default(),
            dirty: Vec::new(),
            received: Vec::new(),
            used: 0,
        }
    }

    /// Sends bytes from a client to its worker.
    pub fn send(&mut self, client: ConnectionId, bytes: &[u8]) {
        let worker = &mut self.workers[usize::from(client.worker.0)];
        let received = worker.receive(NOW, client.slot, bytes);
        assert_eq!(received.consumed, bytes.len(), "the worker accepts all bytes");
    }

    /// Runs turns until nothing is left to do. [`Self::received`] then returns the output.
    pub fn turn(&mut self) {
        self.used = 0;
        for _ in 0..TURNS_MAX {
            let mut is_busy = false;
            for at in 0..self.workers.len() {
                self.workers[at].settle(NOW);
                is_busy |= self.exchange(at);
                self.write(at);
                self.workers[at].end_turn();
                is_busy |= self.workers[at].has_work();
            }
            if !is_busy {
                return;
            }
        }
        panic!("the workers still have work after {TURNS_MAX} turns");
    }

    /// Gives the batches of a worker to the others. Returns whether there was one.
    fn exchange(&mut self, from: usize) -> bool {
        let mut any = false;
        for to in (0..self.workers.len()).filter(|to| *to != from) {
            let outgoing = self.workers[from].outgoing(WorkerId(to as u16));
            if !outgoing.is_empty() {
                any = true;
                std::mem::swap(outgoing, &mut self.batch);
                self.workers[to].take_batch(NOW, &mut self.batch);
                self.batch.recycle(usize::MAX);
            }
        }
        any
    }

    /// Writes the output of a worker.
    fn write(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        let mut dirty = std::mem::take(&mut self.dirty);
        worker.take_dirty(&mut dirty);
        for slot in dirty.drain(..) {
            if self.used == self.received.len() {
                self.received.push(((WorkerId(0), 0), Vec::with_capacity(4096)));
            }
            let (whose, bytes) = &mut self.received[self.used];
            let Some(out) = worker.output(slot) else { continue };
            *whose = (WorkerId(at as u16), slot);
            bytes.clear();
            out.take(usize::MAX, bytes);
            self.used += 1;
            worker.written(NOW, slot);
        }
        // The worker accepted every byte at once, so there are no kept bytes to offer again.
        worker.take_woken(&mut dirty);
        dirty.clear();
        self.dirty = dirty;
    }

    /// Returns the bytes that the last turns sent to a client, in order.
    pub fn received(&self, client: ConnectionId) -> impl Iterator<Item = &[u8]> {
        let here = self.received[..self.used].iter();
        here.filter(move |(whose, _)| *whose == (client.worker, client.slot)).map(|(_, bytes)| &bytes[..])
    }

    /// Returns the number of clients that got something in the last turns.
    pub fn receivers(&self) -> usize {
        self.used
    }

    /// Sends CONNECT and checks CONNACK.
    pub fn connect(&mut self, name: &str, clean: bool) -> ConnectionId {
        let worker = self.opened % self.workers.len();
        self.opened += 1;
        let client = self.workers[worker].open(NOW, None);
        let mut body = b"\x00\x04MQTT\x04".to_vec();
        body.extend([if clean { 2 } else { 0 }, 0, 0]);
        text(&mut body, name);
        self.send(client, &packet(0x10, &body));
        self.turn();
        let answer = self.received(client).next().expect("CONNACK");
        assert!(answer.starts_with(&[0x20, 2]) && answer[3] == 0, "CONNACK is {answer:02x?}");
        client
    }

    /// Sends SUBSCRIBE and checks SUBACK.
    pub fn subscribe(&mut self, client: ConnectionId, filter: &str, qos: u8) {
        let mut body = vec![0, 1];
        text(&mut body, filter);
        body.push(qos);
        self.send(client, &packet(0x82, &body));
        self.turn();
        let answer = self.received(client).next().expect("SUBACK");
        assert_eq!(answer, [0x90, 3, 0, 1, qos], "SUBACK");
    }

    /// Sends DISCONNECT and removes the connection.
    pub fn disconnect(&mut self, client: ConnectionId) {
        self.send(client, &[0xE0, 0]);
        self.turn();
        self.workers[usize::from(client.worker.0)].vacate(client.slot);
        self.turn();
    }
}

/// A PUBLISH that is sent repeatedly.
pub struct Publish {
    bytes: Vec<u8>,
    /// Position of the Packet Identifier, if there is one.
    id_at: Option<usize>,
}

impl Publish {
    pub fn new(qos: u8, topic: &str, payload: usize) -> Self {
        let mut body = Vec::new();
        text(&mut body, topic);
        let before_id = body.len();
        if qos > 0 {
            body.extend([0, 0]);
        }
        body.resize(body.len() + payload, 0x55);
        let bytes = packet(0x30 | qos << 1, &body);
        let id_at = (qos > 0).then(|| bytes.len() - body.len() + before_id);
        Self { bytes, id_at }
    }

    /// Returns the packet of a message. Packet Identifiers run from 1 to 60,000 and then repeat.
    pub fn number(&mut self, message: u32) -> &[u8] {
        let id = (message % 60_000 + 1) as u16;
        if let Some(at) = self.id_at {
            self.bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
        }
        &self.bytes
    }
}

/// Returns the first byte and the body of each packet in `bytes`.
pub fn packets(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let first = *bytes.first()?;
        let (mut length, mut at) = (0, 1);
        loop {
            let byte = bytes[at];
            length |= usize::from(byte & 0x7F) << (7 * (at - 1));
            at += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let body = &bytes[at..at + length];
        bytes = &bytes[at + length..];
        Some((first, body))
    })
}

/// Returns the Packet Identifier of a PUBLISH above QoS 0.
pub fn publish_id(body: &[u8]) -> [u8; 2] {
    let at = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
    [body[at], body[at + 1]]
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut left = body.len();
    while left > 127 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes.extend(body);
    bytes
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u16).to_be_bytes());
    to.extend(text.bytes());
}
