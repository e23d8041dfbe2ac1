//! Selection of the connections to make, and their times.

use super::connection::{Connection, Origin, Stage};
use super::peer::Peer;
use super::{Demand, Mesh};
use crate::time::Time;

impl Mesh {
    /// Requests the connections that are due.
    pub(super) fn dial_due(&mut self, now: Time) {
        let mut wanted = Vec::new();
        for (node, peer) in &self.peers {
            // The others follow once the first is established: a problem is reported once.
            let count = if self.has_first(peer) { peer.slots.len() } else { 1 };
            for (index, slot) in peer.slots.iter().enumerate().take(count) {
                if slot.connection.is_none() && slot.due <= now {
                    wanted.push((*node, index));
                }
            }
        }
        for (node, index) in wanted {
            let Some(peer) = self.peers.get(&node) else { continue };
            let address = peer.address.clone();
            let stage = Stage::Dialing { by: now.after(self.config.handshake_max) };
            let connection =
                self.insert(Connection::new(Some(node), &address, Origin::Slot(index as u8), stage));
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.slots[index].connection = Some(connection);
            }
            self.counters.dialed += 1;
            self.demands.push_back(Demand::Dial { connection, peer: Some(node), address });
        }
    }

    /// Returns whether the first of the connections to a peer is established.
    fn has_first(&self, peer: &Peer) -> bool {
        let first = peer.slots.first().and_then(|slot| slot.connection);
        let connection = first.and_then(|id| self.connections.get(&id));
        connection.is_some_and(|connection| matches!(connection.stage, Stage::Channel { .. }))
    }

    /// Returns the time at which something is due next.
    pub(super) fn next_due(&self) -> Time {
        let deadlines = self.connections.values().map(Connection::deadline);
        let links = self.peers.values().map(|peer| peer.link.timeout());
        let dials = self.peers.values().flat_map(|peer| {
            let count = if self.has_first(peer) { peer.slots.len() } else { 1 };
            let idle = peer.slots.iter().take(count).filter(|slot| slot.connection.is_none());
            idle.map(|slot| slot.due)
        });
        let idle = self.discovery.values().filter(|discovery| discovery.connection.is_none());
        let seeks = idle.map(|discovery| discovery.due);
        deadlines.chain(links).chain(dials).chain(seeks).min().unwrap_or(Time::NEVER)
    }
}
