//! State of a publisher's messages.

use super::connection::Received;
use crate::codec;
use crate::config::Config;
use std::collections::VecDeque;

/// Progress of a sent message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum EntryState {
    Done,
    /// Waits for PUBACK or PUBREC.
    WaitAck,
    /// Waits for PUBCOMP.
    WaitComp,
}

/// A sent message above QoS 0; its index in the ring determines its Packet Identifier.
pub struct Entry {
    pub seq: u64,
    /// The time in its payload, and the time of its sending; both in nanoseconds.
    pub ts: u64,
    pub sent: u64,
    pub state: EntryState,
}

/// Messages of a publisher: those due, those sent, and those in flight.
pub struct Publisher {
    /// Remaining length and topic of every PUBLISH.
    pub head: Vec<u8>,
    /// Number of deliveries that each message must cause.
    pub fan: u64,
    /// Next sequence number: the number of messages published so far.
    pub sent: u64,
    /// Number of messages due by now, and in total.
    pub due: u64,
    pub quota: u64,
    /// Earliest time of a retransmission on an open connection.
    pub retry_at: u64,
    /// Time at which the first message was due, or the next one with random pauses; plain messages only.
    pub first: u64,
    /// Time of its current timer; other entries in the worker's heap are obsolete.
    pub timer: u64,
    /// Value of the rate curve when this publisher began.
    pub base: f64,
    /// Index among this worker's publishers, for due times.
    pub lane: u64,
    pub window: usize,
    pub inflight: usize,
    /// Packet Identifier of the ring's first entry.
    pub front_pid: u16,
    pub ring: VecDeque<Entry>,
    pub rejected: Vec<u64>,
    pub rec_only: Vec<u64>,
    /// True when it is in the worker's `queue` or `parked`.
    pub queued: bool,
    pub parked: bool,
    pub received: Received,
}

impl Publisher {
    /// Publisher `id` of the run, in this lane of its worker.
    pub fn new(cfg: &Config, id: usize, lane: u64) -> Publisher {
        let traffic = &cfg.traffic;
        Publisher {
            head: codec::publish_head(
                cfg.properties(),
                traffic.pub_qos,
                &cfg.topic_of_pub(id),
                traffic.payload,
            ),
            fan: traffic.topology.fan(id, traffic.n_pub, traffic.n_sub, traffic.groups) as u64,
            sent: 0,
            due: 0,
            quota: cfg.quota(id),
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
        }
    }

    /// Returns whether the window is full.
    #[inline]
    pub fn window_is_full(&self, qos: u8) -> bool {
        qos > 0 && self.inflight >= self.window
    }

    /// Adds a message to the ring. Returns its Packet Identifier.
    #[inline]
    pub fn push_entry(&mut self, entry: Entry) -> u16 {
        let pid = ((self.front_pid as usize - 1 + self.ring.len()) % 65535) as u16 + 1;
        self.ring.push_back(entry);
        self.inflight += 1;
        pid
    }

    /// Index in the ring of the message with this Packet Identifier.
    #[inline]
    pub fn index_of(&self, pid: u16) -> usize {
        (pid as u32 + 65535 - self.front_pid as u32) as usize % 65535
    }

    /// Removes finished messages from the front of the ring.
    #[inline]
    pub fn drop_done(&mut self) {
        while self.ring.front().is_some_and(|e| e.state == EntryState::Done) {
            self.ring.pop_front();
            self.front_pid = next_pid(self.front_pid);
        }
    }
}

/// The Packet Identifier after this one; 0 is not one.
#[inline]
pub fn next_pid(pid: u16) -> u16 {
    if pid == 65535 { 1 } else { pid + 1 }
}
