//! Introductions: addresses whose nodes are not known by name, and who is found there.

use std::time::Duration;

use bytes::Bytes;

use super::connection::{Connection, Origin, Stage};
use super::end::Problem;
use super::peer::Namesake;
use super::{ConnectionId, Demand, Mesh, MeshEvent};
use crate::error::Refusal;
use crate::handshake::{DESCRIPTOR_MAX, Established};
use crate::node::NodeId;
use crate::time::Time;

/// An address at which some node is to be found.
#[derive(Debug)]
pub struct Discovery {
    pub connection: Option<ConnectionId>,
    /// When it is dialed next.
    pub due: Time,
    /// What the next attempt waits for at most, if this one fails.
    pub pause: Duration,
    /// The card has changed while the connection is made.
    pub repeat: bool,
}

/// Addresses that are sought at one time.
pub const DISCOVERY_MAX: usize = 256;
/// Introductions that nobody has asked for yet.
pub const INTRODUCED_MAX: usize = 256;

impl Mesh {
    /// What this node says of itself over later connections: [`Identity::descriptor`](crate::Identity::descriptor). When it is another than before, those that
    /// are sought hear it soon: they may wait for it.
    ///
    /// # Panics
    /// It is longer than [`DESCRIPTOR_MAX`] bytes.
    pub fn set_descriptor(&mut self, now: Time, descriptor: Bytes) {
        assert!(descriptor.len() <= DESCRIPTOR_MAX, "a card of {} bytes", descriptor.len());
        if descriptor == self.identity.descriptor {
            return;
        }
        self.identity.descriptor = descriptor;
        // What changes at once with many is said once.
        let soon = now.after(self.config.dial_first);
        for discovery in self.discovery.values_mut() {
            if discovery.connection.is_some() {
                discovery.repeat = true;
            } else {
                discovery.due = discovery.due.min(soon);
                self.due = self.due.min(soon);
            }
        }
    }

    /// An address at which there is a node, or several behind one name, of which only that is known. It is dialed now and again until it is
    /// sought no more; [`MeshEvent::Introduced`] says who was found, every time. Nothing changes for one that is sought already. More than
    /// 256 are not sought, of which [`MeshEvent::Refused`] tells.
    pub fn discover(&mut self, now: Time, address: &str) {
        if self.discovery.contains_key(address) {
            return;
        }
        if self.discovery.len() >= DISCOVERY_MAX {
            let reason =
                format!("{DISCOVERY_MAX} addresses are sought already: name fewer, or one name for many");
            return self.report(now, Problem { address, name: None, reason: &reason, is_transient: false });
        }
        let discovery =
            Discovery { connection: None, due: now, pause: self.config.dial_first, repeat: false };
        self.discovery.insert(address.into(), discovery);
        self.due = now.min(self.due);
    }

    /// Gives an address up, and the connection that is being made to it.
    pub fn stop_discovery(&mut self, address: &str) {
        let Some(id) = self.discovery.remove(address).and_then(|discovery| discovery.connection) else {
            return;
        };
        // It is in no slot and no link.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let last = connection.closing_bytes(Refusal::Withdrawn);
        let reason = "the address is sought no more".into();
        self.demands.push_back(Demand::Close { connection: id, last, reason });
    }

    /// Another process goes by the name of a peer that is alive, as it has introduced itself, and is reached there. While that is so, its introductions with
    /// that card are refused, so that it hears why it is not joined; from time to time one is not, and heard of again.
    pub fn refuse_namesake(&mut self, now: Time, node: NodeId, descriptor: Bytes, address: &str) {
        let until = now.after(self.config.warning_interval);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.namesake = Some(Namesake { descriptor, address: address.into(), until });
        }
    }

    /// Addresses that are sought.
    pub fn discovery(&self) -> impl Iterator<Item = &str> {
        self.discovery.keys().map(|address| &**address)
    }

    /// Asks for the connections to sought addresses that are due.
    pub(super) fn discover_due(&mut self, now: Time) {
        let is_due = |discovery: &Discovery| discovery.connection.is_none() && discovery.due <= now;
        let due = self.discovery.iter().filter(|(_, discovery)| is_due(discovery));
        let due: Vec<Box<str>> = due.map(|(address, _)| address.clone()).collect();
        for address in due {
            let stage = Stage::Dialing { by: now.after(self.config.handshake_max) };
            let connection = self.insert(Connection::new(None, &address, Origin::Discovery, stage));
            if let Some(discovery) = self.discovery.get_mut(&address) {
                discovery.connection = Some(connection);
            }
            self.counters.dialed += 1;
            self.demands.push_back(Demand::Dial { connection, peer: None, address });
        }
    }

    /// Both have proved themselves, and there is nothing more to say. No peer and no link hears of it.
    pub(super) fn introduced(&mut self, now: Time, id: ConnectionId, established: &Established) {
        // It is in no slot and no link.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        self.half_open -= usize::from(connection.is_half_open());
        let address = (connection.origin == Origin::Discovery).then(|| connection.address.clone());
        if let Some(discovery) = address.as_ref().and_then(|address| self.discovery.get_mut(address)) {
            let pause = self.config.dial_first;
            let due = now.after(if discovery.repeat { pause } else { self.config.discovery_interval });
            *discovery = Discovery { connection: None, due, pause, repeat: false };
            self.due = due.min(self.due);
        }
        // The proof of the one that dialed may not have left yet.
        let last = connection.out.take().concat().into();
        self.demands.push_back(Demand::Close {
            connection: id,
            last,
            reason: "the two are introduced".into(),
        });
        self.counters.introduced += 1;
        if self.introductions.len() >= INTRODUCED_MAX {
            self.introductions.pop_front();
            self.counters.introductions_dropped += 1;
        }
        let (name, descriptor) = (established.name.clone(), established.descriptor.clone());
        self.introductions.push_back(MeshEvent::Introduced { name, descriptor, address });
    }
}
