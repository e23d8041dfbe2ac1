//! Ends of connections, and the reports about them.

use std::time::Duration;

use super::connection::{Connection, Origin, Stage};
use super::{ConnectionId, Demand, Mesh, MeshConfig, MeshEvent, Random};
use crate::error::Refusal;
use crate::node::NodeId;
use crate::time::Time;

/// A problem with a node.
pub(super) struct Problem<'a> {
    /// Address that is dialed, or host that the connection comes from.
    pub address: &'a str,
    pub name: Option<&'a str>,
    pub reason: &'a str,
    /// True when no action is needed.
    pub is_transient: bool,
}

impl Mesh {
    /// Handles a connection that has ended or could not be made, for the reason `why`.
    pub fn closed(&mut self, now: Time, id: ConnectionId, why: &str) {
        let Some(mut connection) = self.remove(now, id) else { return };
        let reason = match (&connection.stage, &connection.claimed_name) {
            (Stage::Dialing { .. }, _) => {
                format!("it cannot be reached: {why}; {}", dial_hint(connection.origin))
            }
            (Stage::Handshaking { .. }, _) if connection.origin == Origin::Discovery => format!(
                "the connection ended before the handshake was done: {why}; check that the address is that of a node's cluster port, and \
                 the log of the node"
            ),
            (Stage::Handshaking { .. }, _) if connection.is_dialed() => {
                format!("the connection ended before the handshake was done: {why}")
            }
            // A node that refuses this one sends a reason, so this one was stopped, or cannot express the reason.
            (Stage::Handshaking { .. }, Some(_)) => {
                connection.is_early = true;
                format!("it ended the connection before the handshake was done ({why}): its log says why")
            }
            // A connection that has not announced a name may be a probe of the port.
            (Stage::Handshaking { .. }, None) => return,
            (Stage::Channel { .. }, _) => {
                if let Some(peer) = connection.peer.and_then(|node| self.peers.get_mut(&node)) {
                    peer.last_error = Some((now, why.into()));
                }
                return;
            }
        };
        self.report_failure(now, &connection, &reason);
    }

    /// Handles a connection that has ended for a fault below the mesh, such as in TLS. Unlike for [`Self::closed`],
    /// `why` is the whole message before the handshake is done, and is also reported for unknown nodes.
    pub fn broken(&mut self, now: Time, id: ConnectionId, why: &str) {
        let stage = self.connections.get(&id).map(|connection| &connection.stage);
        if !matches!(stage, Some(Stage::Handshaking { .. })) {
            return self.closed(now, id, why);
        }
        if let Some(connection) = self.remove(now, id) {
            self.counters.refused += u64::from(connection.origin == Origin::Accepted);
            self.report_failure(now, &connection, why);
        }
    }

    /// Removes a connection. Its slot or discovery address is dialed again after a pause.
    pub(super) fn remove(&mut self, now: Time, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        let is_channel = matches!(connection.stage, Stage::Channel { .. });
        self.half_open -= usize::from(connection.is_half_open());
        self.counters.dials_failed += u64::from(connection.is_dialed() && !is_channel);
        let MeshConfig { dial_first, dial_max, .. } = self.config;
        if connection.origin == Origin::Discovery
            && let Some(discovery) = self.discovery.get_mut(&connection.address)
        {
            discovery.connection = None;
            discovery.due = now.after(jittered(discovery.pause, &mut self.random));
            discovery.pause = (discovery.pause * 2).min(dial_max);
            self.due = discovery.due.min(self.due);
        }
        let Some(peer) = connection.peer.and_then(|node| self.peers.get_mut(&node)) else {
            return Some(connection);
        };
        let mut lasted = false;
        if let Stage::Channel { id: channel, since } = connection.stage {
            lasted = since.after(dial_max) <= now;
            peer.link.detach(channel);
            let index = usize::from(channel.index());
            if let Some(known) = peer.channels.get_mut(index)
                && *known == Some(id)
            {
                *known = None;
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
            slot.due = now.after(jittered(slot.pause, &mut self.random));
            slot.pause = (slot.pause * 2).min(dial_max);
            self.due = slot.due.min(self.due);
        }
        if let Some(node) = connection.peer {
            self.update_peer(now, node);
        }
        Some(connection)
    }

    /// Closes a connection without blame.
    pub(super) fn close(&mut self, now: Time, id: ConnectionId, reason: &str) {
        if let Some(mut connection) = self.remove(now, id) {
            let last = connection.closing_bytes(Refusal::Withdrawn);
            self.demands.push_back(Demand::Close { connection: id, last, reason: reason.into() });
        }
    }

    /// Closes a connection for a fault of its peer. The peer receives `why` unless it has received a reason already.
    pub(super) fn fail(&mut self, now: Time, id: ConnectionId, reason: &str, why: Option<Refusal>) {
        let Some(mut connection) = self.remove(now, id) else { return };
        let last = match why {
            Some(why) => connection.closing_bytes(why),
            // The rest of the handshake that has not left yet.
            None => connection.out.take().concat().into(),
        };
        self.demands.push_back(Demand::Close { connection: id, last, reason: reason.into() });
        self.report_failure(now, &connection, reason);
    }

    /// Reports a problem with a connection to the log and to the status of the peer.
    fn report_failure(&mut self, now: Time, connection: &Connection, reason: &str) {
        let peer = connection.peer.and_then(|node| self.peers.get_mut(&node));
        let name = peer.map(|peer| {
            peer.last_error = Some((now, reason.into()));
            peer.name.clone()
        });
        let name = name.as_deref().or(connection.claimed_name.as_deref());
        let (address, is_transient) = (connection.peer_address(), connection.is_early);
        self.report(now, Problem { address, name, reason, is_transient });
    }

    /// Reports a problem that the owner of the mesh found with a node. It is returned as [`MeshEvent::Refused`], like
    /// problems that the mesh finds.
    pub fn report_problem(&mut self, now: Time, name: &str, address: &str, reason: &str) {
        self.report(now, Problem { address, name: Some(name), reason, is_transient: false });
    }

    pub(super) fn report(&mut self, now: Time, problem: Problem<'_>) {
        let Problem { address, name, reason, is_transient } = problem;
        let suppressed = self.warning_limiter.report(now, address, name, reason);
        let (address, name, reason) = (address.into(), name.map(Into::into), reason.into());
        self.events.push_back(MeshEvent::Refused { address, name, reason, suppressed, is_transient });
    }

    /// Closes the connections whose channels the link has dropped.
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

/// Returns advice for a node that does not answer.
pub(super) fn dial_hint(origin: Origin) -> &'static str {
    match origin {
        Origin::Slot(_) => {
            "check that the node runs, the address that others are to reach it at (its cluster.advertise, or cluster.listen) and the firewalls \
             between"
        }
        Origin::Accepted | Origin::Discovery => {
            "check that the node runs, its address and the firewalls between"
        }
    }
}

/// Returns a random time between half of a pause and all of it: nodes that fail together do not try again together.
fn jittered(pause: Duration, random: &mut Random) -> Duration {
    let mut chance = [0; 2];
    random(&mut chance);
    let half = pause / 2;
    half + half * u32::from(u16::from_le_bytes(chance)) / u32::from(u16::MAX)
}
