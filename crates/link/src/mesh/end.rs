//! How connections end, and what is said of it.

use std::time::Duration;

use bytes::Bytes;

use super::complaints::Whom;
use super::connection::{Connection, Origin, Stage};
use super::{ConnectionId, Demand, Mesh, MeshConfig, MeshEvent, Random};
use crate::node::NodeId;
use crate::output::Output;
use crate::time::Time;

/// What is wrong with whom.
struct Complaint<'a> {
    whom: Whom<'a>,
    reason: &'a str,
    /// Nobody has to do anything.
    passes: bool,
}

impl Mesh {
    /// A connection has ended, or could not be made, as `why` says.
    pub fn closed(&mut self, now: Time, id: ConnectionId, why: &str) {
        let Some(connection) = self.remove(now, id) else { return };
        let address = &connection.address;
        let reason = match (&connection.stage, &connection.says) {
            (Stage::Dialing { .. }, _) => format!(
                "it cannot be reached at {address}: {why}; check that the node runs, its address and the firewalls between"
            ),
            (Stage::Shaking { .. }, _) if connection.origin == Origin::Sought => format!(
                "the connection ended before the handshake was done: {why}; check that the address is that of a node's cluster port, and \
                 the log of the node"
            ),
            (Stage::Shaking { .. }, _) if connection.is_dialed() => {
                format!("at {address} the connection ended before the handshake was done: {why}")
            }
            (Stage::Shaking { .. }, Some(name)) => format!(
                "says to be {name:?} and ended the connection before the handshake was done ({why}): its log says why, such as another \
                 secret"
            ),
            // Whoever has not said its name may be a probe of the port.
            (Stage::Shaking { .. }, None) => return,
            (Stage::Channel { .. }, _) => {
                if let Some(peer) = connection.peer.and_then(|node| self.peers.get_mut(&node)) {
                    peer.last_error = Some((now, why.into()));
                }
                return;
            }
        };
        self.accuse(now, &connection, &reason);
    }

    /// A connection has ended for what its peer did below the mesh, such as in TLS: as [`Self::closed`], but said of strangers too.
    pub fn broken(&mut self, now: Time, id: ConnectionId, why: &str) {
        match self.connections.get(&id) {
            Some(Connection {
                stage: Stage::Shaking { .. }, origin: Origin::Accepted, says: None, ..
            }) => {
                if let Some(connection) = self.remove(now, id) {
                    self.counters.refused += 1;
                    self.accuse(now, &connection, why);
                }
            }
            _ => self.closed(now, id, why),
        }
    }

    /// Forgets a connection; its slot, or the sought address, is dialed again after a pause.
    pub(super) fn remove(&mut self, now: Time, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        let is_channel = matches!(connection.stage, Stage::Channel { .. });
        self.half_open -= usize::from(connection.is_half_open());
        self.counters.dials_failed += u64::from(connection.is_dialed() && !is_channel);
        let MeshConfig { dial_first, dial_max, .. } = self.config;
        if connection.origin == Origin::Sought
            && let Some(sought) = self.sought.get_mut(&connection.address)
        {
            sought.connection = None;
            sought.due = now.after(some_of(sought.pause, &mut self.random));
            sought.pause = (sought.pause * 2).min(dial_max);
            self.due = sought.due.min(self.due);
        }
        let Some(peer) = connection.peer.and_then(|node| self.peers.get_mut(&node)) else {
            return Some(connection);
        };
        let mut lasted = false;
        if let Stage::Channel { id: channel, since } = connection.stage {
            lasted = since.after(dial_max) <= now;
            peer.link.detach(channel);
            let index = usize::from(channel.index());
            if let Some(place) = peer.channels.get_mut(index)
                && *place == Some(id)
            {
                *place = None;
                peer.queued &= !(1 << index);
            }
        }
        if let Some(slot) = connection.slot().and_then(|slot| peer.slots.get_mut(usize::from(slot)))
            && slot.connection == Some(id)
        {
            slot.connection = None;
            if lasted {
                slot.pause = dial_first;
            }
            slot.due = now.after(some_of(slot.pause, &mut self.random));
            slot.pause = (slot.pause * 2).min(dial_max);
            self.due = slot.due.min(self.due);
        }
        if let Some(node) = connection.peer {
            self.look(now, node);
        }
        Some(connection)
    }

    /// Ends a connection that nobody is to blame for.
    pub(super) fn close(&mut self, now: Time, id: ConnectionId, reason: &str) {
        if self.remove(now, id).is_some() {
            let demand = Demand::Close { connection: id, last: Bytes::new(), reason: reason.into() };
            self.demands.push_back(demand);
        }
    }

    /// Ends a connection for what its peer did. `last` is what it is to be told.
    pub(super) fn fail(&mut self, now: Time, id: ConnectionId, reason: &str, mut last: Output) {
        let Some(mut connection) = self.remove(now, id) else { return };
        // What of the handshake did not leave comes first.
        let mut out = std::mem::take(&mut connection.out);
        out.append(&mut last);
        let last = out.take().concat().into();
        self.demands.push_back(Demand::Close { connection: id, last, reason: reason.into() });
        self.accuse(now, &connection, reason);
    }

    /// Says what is wrong with a connection: to the log, and to those who look at the peer.
    fn accuse(&mut self, now: Time, connection: &Connection, reason: &str) {
        let peer = connection.peer.and_then(|node| self.peers.get_mut(&node));
        let name = peer.map(|peer| {
            peer.last_error = Some((now, reason.into()));
            peer.name.clone()
        });
        let whom = match (&name, connection.origin) {
            (Some(name), _) => Whom::Peer(name),
            (None, Origin::Sought) => Whom::Sought(&connection.address),
            (None, _) => Whom::Stranger(&connection.address),
        };
        self.say(now, Complaint { whom, reason, passes: connection.is_early });
    }

    /// What the owner of the mesh finds wrong with a node. It comes back as [`MeshEvent::Refused`], as seldom as what the mesh finds.
    pub fn complain_of(&mut self, now: Time, name: &str, reason: &str) {
        self.complain(now, Whom::Peer(name), reason);
    }

    pub(super) fn complain(&mut self, now: Time, whom: Whom<'_>, reason: &str) {
        self.say(now, Complaint { whom, reason, passes: false });
    }

    fn say(&mut self, now: Time, complaint: Complaint<'_>) {
        let Complaint { whom, reason, passes } = complaint;
        if let Some(unsaid) = self.complaints.complain(now, whom, reason) {
            let (Whom::Peer(who) | Whom::Sought(who) | Whom::Stranger(who)) = whom;
            let (who, reason) = (who.into(), reason.into());
            self.events.push_back(MeshEvent::Refused { who, reason, unsaid, passes });
        }
    }

    /// Ends the connections whose channels the link has dropped.
    pub(super) fn sweep(&mut self, now: Time, node: NodeId, reason: &str) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let is_dead = |id: &ConnectionId| match self.connections.get(id).map(|connection| &connection.stage) {
            Some(Stage::Channel { id, .. }) => !peer.link.has(*id),
            _ => true,
        };
        let dead: Vec<ConnectionId> = peer.channels.iter().flatten().copied().filter(is_dead).collect();
        if !dead.is_empty() {
            peer.last_error = Some((now, reason.into()));
        }
        for id in dead {
            self.close(now, id, reason);
        }
    }
}

/// Half of a pause to all of it, by chance: nodes that fail together do not try again together.
fn some_of(pause: Duration, random: &mut Random) -> Duration {
    let mut chance = [0; 2];
    random(&mut chance);
    let half = pause / 2;
    half + half * u32::from(u16::from_le_bytes(chance)) / u32::from(u16::MAX)
}
