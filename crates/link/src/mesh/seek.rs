//! Introductions: addresses whose nodes are not known by name, and who is found there.

use std::time::Duration;

use bytes::Bytes;

use super::connection::{Connection, Origin, Stage};
use super::end::Complaint;
use super::peer::Namesake;
use super::{ConnectionId, Demand, Mesh, MeshEvent};
use crate::error::Refusal;
use crate::handshake::{CARD_MAX, Established};
use crate::node::NodeId;
use crate::time::Time;

/// An address at which some node is to be found.
#[derive(Debug)]
pub struct Sought {
    pub connection: Option<ConnectionId>,
    /// When it is dialed next.
    pub due: Time,
    /// What the next attempt waits for at most, if this one fails.
    pub pause: Duration,
    /// The card has changed while the connection is made.
    pub again: bool,
}

/// Addresses that are sought at one time.
pub const SOUGHT_MAX: usize = 256;
/// Introductions that nobody has asked for yet.
pub const INTRODUCED_MAX: usize = 256;

impl Mesh {
    /// What this node says of itself over later connections: [`Identity::card`](crate::Identity::card). When it is another than before, those that
    /// are sought hear it soon: they may wait for it.
    ///
    /// # Panics
    /// It is longer than [`CARD_MAX`] bytes.
    pub fn set_card(&mut self, now: Time, card: Bytes) {
        assert!(card.len() <= CARD_MAX, "a card of {} bytes", card.len());
        if card == self.identity.card {
            return;
        }
        self.identity.card = card;
        // What changes at once with many is said once.
        let soon = now.after(self.config.dial_first);
        for sought in self.sought.values_mut() {
            if sought.connection.is_some() {
                sought.again = true;
            } else {
                sought.due = sought.due.min(soon);
                self.due = self.due.min(soon);
            }
        }
    }

    /// An address at which there is a node, or several behind one name, of which only that is known. It is dialed now and again until it is
    /// sought no more; [`MeshEvent::Introduced`] says who was found, every time. Nothing changes for one that is sought already. More than
    /// 256 are not sought, of which [`MeshEvent::Refused`] tells.
    pub fn seek(&mut self, now: Time, address: &str) {
        if self.sought.contains_key(address) {
            return;
        }
        if self.sought.len() >= SOUGHT_MAX {
            let reason =
                format!("{SOUGHT_MAX} addresses are sought already: name fewer, or one name for many");
            return self.complain(now, Complaint { address, name: None, reason: &reason, passes: false });
        }
        let sought = Sought { connection: None, due: now, pause: self.config.dial_first, again: false };
        self.sought.insert(address.into(), sought);
        self.due = now.min(self.due);
    }

    /// Gives an address up, and the connection that is being made to it.
    pub fn seek_no_more(&mut self, address: &str) {
        let Some(id) = self.sought.remove(address).and_then(|sought| sought.connection) else { return };
        // It is in no slot and no link.
        let Some(mut connection) = self.connections.remove(&id) else { return };
        let last = connection.farewell(Refusal::Withdrawn);
        let reason = "the address is sought no more".into();
        self.demands.push_back(Demand::Close { connection: id, last, reason });
    }

    /// Another process goes by the name of a peer that is alive, as it has introduced itself, and is reached there. While that is so, its introductions with
    /// that card are refused, so that it hears why it is not joined; from time to time one is not, and heard of again.
    pub fn refuse_namesake(&mut self, now: Time, node: NodeId, card: Bytes, address: &str) {
        let until = now.after(self.config.complaint_pause);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.namesake = Some(Namesake { card, address: address.into(), until });
        }
    }

    /// Addresses that are sought.
    pub fn sought(&self) -> impl Iterator<Item = &str> {
        self.sought.keys().map(|address| &**address)
    }

    /// Asks for the connections to sought addresses that are due.
    pub(super) fn seek_due(&mut self, now: Time) {
        let is_due = |sought: &Sought| sought.connection.is_none() && sought.due <= now;
        let due = self.sought.iter().filter(|(_, sought)| is_due(sought));
        let due: Vec<Box<str>> = due.map(|(address, _)| address.clone()).collect();
        for address in due {
            let stage = Stage::Dialing { by: now.after(self.config.handshake_max) };
            let connection = self.insert(Connection::new(None, &address, Origin::Sought, stage));
            if let Some(sought) = self.sought.get_mut(&address) {
                sought.connection = Some(connection);
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
        let address = (connection.origin == Origin::Sought).then(|| connection.address.clone());
        if let Some(sought) = address.as_ref().and_then(|address| self.sought.get_mut(address)) {
            let pause = self.config.dial_first;
            let due = now.after(if sought.again { pause } else { self.config.seek_pause });
            *sought = Sought { connection: None, due, pause, again: false };
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
        let (name, card) = (established.name.clone(), established.card.clone());
        self.introductions.push_back(MeshEvent::Introduced { name, card, address });
    }
}
