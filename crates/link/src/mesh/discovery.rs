//! Introductions: dialing addresses whose nodes are not known by name, and reporting the nodes found there.

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

/// An address to find nodes at.
#[derive(Debug)]
pub struct Discovery {
    pub connection: Option<ConnectionId>,
    /// Time at which it is dialed next.
    pub due: Time,
    /// Maximum pause before the next attempt, if this one fails.
    pub pause: Duration,
    /// True when the descriptor has changed while the connection is made.
    pub repeat: bool,
}

/// Maximum number of discovery addresses.
pub const DISCOVERY_MAX: usize = 256;
/// Maximum number of introductions that wait to be polled.
pub const INTRODUCED_MAX: usize = 256;

impl Mesh {
    /// Sets the descriptor that later connections announce: [`Identity::descriptor`](crate::Identity::descriptor). If
    /// it has changed, the discovery addresses are dialed soon: nodes there may wait for it.
    ///
    /// # Panics
    /// It is longer than [`DESCRIPTOR_MAX`] bytes.
    pub fn set_descriptor(&mut self, now: Time, descriptor: Bytes) {
        assert!(descriptor.len() <= DESCRIPTOR_MAX, "a descriptor of {} bytes", descriptor.len());
        if descriptor == self.identity.descriptor {
            return;
        }
        self.identity.descriptor = descriptor;
        // Several changes in a short time are announced once.
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

    /// Adds an address at which there is a node, or several with one host name, whose names are not known. It is dialed
    /// repeatedly until [`Self::stop_discovery`]. Each time [`MeshEvent::Introduced`] reports the node that was found.
    /// A known address changes nothing. At most 256 addresses are accepted; [`MeshEvent::Refused`] reports any more.
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

    /// Removes a discovery address, and the connection that is being made to it.
    pub fn stop_discovery(&mut self, address: &str) {
        let Some(id) = self.discovery.remove(address).and_then(|discovery| discovery.connection) else {
            return;
        };
        // The connection is in no slot and no link.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let last = connection.closing_bytes(Refusal::Withdrawn);
        let reason = "discovery of the address was stopped".into();
        self.demands.push_back(Demand::Close { connection: id, last, reason });
    }

    /// Refuses another process that has introduced itself with the name of a live peer, at the address where it is
    /// reached. Meanwhile its introductions with that descriptor are refused, so that it learns the reason. Now and
    /// then one is accepted and reported again.
    pub fn refuse_namesake(&mut self, now: Time, node: NodeId, descriptor: Bytes, address: &str) {
        let until = now.after(self.config.warning_interval);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.namesake = Some(Namesake { descriptor, address: address.into(), until });
        }
    }

    /// Iterates over the discovery addresses.
    pub fn discovery(&self) -> impl Iterator<Item = &str> {
        self.discovery.keys().map(|address| &**address)
    }

    /// Requests the connections to discovery addresses that are due.
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

    /// Finishes an introduction: both nodes have proved themselves and have nothing more to send. It affects no peer
    /// and no link.
    pub(super) fn introduced(&mut self, now: Time, id: ConnectionId, established: &Established) {
        // The connection is in no slot and no link.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        self.half_open -= usize::from(connection.is_half_open());
        let address = (connection.origin == Origin::Discovery).then(|| connection.address.clone());
        if let Some(discovery) = address.as_ref().and_then(|address| self.discovery.get_mut(address)) {
            let pause = self.config.dial_first;
            let due = now.after(if discovery.repeat { pause } else { self.config.discovery_interval });
            *discovery = Discovery { connection: None, due, pause, repeat: false };
            self.due = due.min(self.due);
        }
        // The proof of the dialer may not have left yet.
        let last = connection.out.take().concat().into();
        self.demands.push_back(Demand::Close {
            connection: id,
            last,
            reason: "the introduction is done".into(),
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
