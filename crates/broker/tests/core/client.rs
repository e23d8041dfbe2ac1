//! One client of a test: its end of the connection, and where the other one is.

use mqtt::Version;
use sim::Endpoint;
use sim::packets::Sent;

pub struct Client {
    pub worker: usize,
    pub slot: u32,
    /// The transport is closed.
    pub gone: bool,
    /// Takes what the server writes as soon as it does.
    pub reads: bool,
    /// The worker wants no bytes until it wakes the connection.
    pub held: bool,
    /// Bytes that the worker has not taken yet.
    pub unsent: Vec<u8>,
    /// The bytes that came last.
    pub last: Vec<u8>,
    end: Endpoint,
}

impl Client {
    pub fn new(worker: usize, slot: u32, version: Version) -> Self {
        let end = Endpoint::new(version);
        Self {
            worker,
            slot,
            gone: false,
            reads: true,
            held: false,
            unsent: Vec::new(),
            last: Vec::new(),
            end,
        }
    }

    /// Puts a packet behind those to be sent.
    pub fn write(&mut self, packet: &Sent) {
        self.end.write(packet, &mut self.unsent);
    }

    /// Bytes came.
    pub fn read(&mut self, bytes: &[u8]) {
        self.last = bytes.to_vec();
        self.end.read(bytes);
    }

    /// What came since the last time.
    pub fn received(&mut self) -> Vec<Sent> {
        self.end.received()
    }

    /// How many packets came since the last time.
    pub fn arrived(&self) -> usize {
        self.end.arrived()
    }

    pub fn next(&mut self) -> Option<Sent> {
        self.end.pop()
    }

    /// The transport ends.
    pub fn close(&mut self) {
        self.end.close();
    }
}
