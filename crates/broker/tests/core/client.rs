//! A client of a test: its end of the connection, and the address of the other end.

use mqtt::Version;
use testkit::Endpoint;
use testkit::packets::Sent;

pub struct Client {
    pub worker: usize,
    pub slot: u32,
    /// The transport is closed.
    pub gone: bool,
    /// Reads what the server writes at once.
    pub reads: bool,
    /// The worker accepts no bytes until it wakes the connection.
    pub held: bool,
    /// Bytes that the worker has not accepted yet.
    pub unsent: Vec<u8>,
    /// Bytes that arrived last.
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

    /// Appends a packet to those to be sent.
    pub fn write(&mut self, packet: &Sent) {
        self.end.write(packet, &mut self.unsent);
    }

    /// Receives bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        self.last = bytes.to_vec();
        self.end.read(bytes);
    }

    /// Packets that arrived since the last call.
    pub fn received(&mut self) -> Vec<Sent> {
        self.end.received()
    }

    /// Number of packets that arrived since the last call.
    pub fn arrived(&self) -> usize {
        self.end.arrived()
    }

    pub fn next(&mut self) -> Option<Sent> {
        self.end.pop()
    }

    /// Closes the transport.
    pub fn close(&mut self) {
        self.end.close();
    }
}
