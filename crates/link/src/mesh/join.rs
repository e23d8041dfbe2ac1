//! The step from a handshake to a channel: which peers are accepted, and which two incarnations a link belongs to.

use bytes::Bytes;
use ring::hmac;

use super::connection::{Origin, Stage};
use super::peer::Peer;
use super::{ConnectionId, Mesh, NO_LINK};
use crate::error::{PeerError, Refusal};
use crate::handshake::{Established, LinkId, Progress};
use crate::node::NodeId;
use crate::output::Output;
use crate::time::Time;

/// Result of a handshake.
struct Joined {
    established: Box<Established>,
    /// Proof of this node to the peer that has not left yet; empty when the peer has dialed.
    proof: Output,
    /// Bytes that belong to the link.
    rest: Bytes,
}

impl Mesh {
    /// Handles bytes of a handshake.
    pub(super) fn continue_handshake(&mut self, now: Time, id: ConnectionId, mut input: Bytes) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Stage::Handshaking { handshake, own, .. } = &mut connection.stage else { return };
        let mut reply = Output::default();
        let mut progress = handshake.input(&mut input, &mut reply);
        connection.claimed_name =
            connection.claimed_name.take().or_else(|| handshake.claimed_name().map(Into::into));
        if let Ok(Progress::Named(name)) = &progress
            && let Some((theirs, is_introduction)) =
                handshake.named().map(|it| (it.link, it.is_introduction()))
        {
            let node = NodeId::of_name(name);
            let peer = self.peers.get(&node);
            let namesake = peer.and_then(|peer| peer.namesake(now));
            let is_namesake = namesake.is_some_and(|it| {
                is_introduction && handshake.named().is_some_and(|who| who.descriptor == it.descriptor)
            });
            let is_taken = match is_introduction {
                true => is_namesake,
                false => peer.is_some_and(|peer| is_taken(now, peer, theirs)),
            };
            connection.reached = namesake.filter(|_| is_taken).map(|it| it.address.clone());
            let answer = match peer {
                _ if is_namesake => Err(Refusal::Taken),
                _ if is_introduction => Ok(NO_LINK),
                None => Err(Refusal::Unknown),
                Some(_) if self.node < node => Err(Refusal::Direction),
                Some(_) if is_taken => Err(Refusal::Taken),
                Some(peer) => Ok(answer_to(&self.derivation, peer, theirs)),
            };
            progress = match answer {
                Ok(link) => {
                    *own = link;
                    handshake.answer(link, &mut input, &mut reply)
                }
                Err(reason) => Err(handshake.refuse(reason, &mut reply)),
            };
        }
        let established = match progress {
            Ok(Progress::Done(established)) if !established.is_introduction() => {
                return self.join(now, id, Joined { established, proof: reply, rest: input });
            }
            other => {
                connection.out.append(&mut reply);
                other
            }
        };
        match established {
            Ok(Progress::NeedsMore | Progress::Named(_)) => self.queue(id),
            Ok(Progress::Done(established)) => self.introduced(now, id, &established),
            Err(PeerError::RefusedBy { reason: Refusal::Withdrawn }) => {
                self.close(now, id, "the dialer gave it up");
            }
            Err(error) => self.refuse(now, id, &error),
        }
    }

    fn refuse(&mut self, now: Time, id: ConnectionId, error: &PeerError) {
        let is_taken = *error == PeerError::Refuses { reason: Refusal::Taken };
        self.counters.refused += 1;
        self.counters.taken += u64::from(is_taken);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_unknown = matches!(
            error,
            PeerError::Refuses { reason: Refusal::Unknown }
                | PeerError::RefusedBy { reason: Refusal::Unknown }
        );
        // Both nodes learn of each other, but not at the same time.
        connection.is_early = is_unknown && connection.origin != Origin::Discovery;
        let is_other = matches!(
            error,
            PeerError::Refuses { reason: Refusal::Cluster }
                | PeerError::RefusedBy { reason: Refusal::Cluster }
        );
        let peer = connection.claimed_name.as_deref().and_then(|name| self.peers.get(&NodeId::of_name(name)));
        let reason = match connection.origin {
            _ if is_taken => peer.map_or_else(|| error.to_string(), |peer| taken(error, peer)),
            Origin::Accepted if connection.is_early => {
                "this node does not know it as a member yet, and refuses it until the cores announce it; a node of \
                 version 0.1 with a list of nodes has to be changed first"
                    .to_owned()
            }
            Origin::Slot(_) if connection.is_early => {
                "the node there does not know this one as a member yet; this node tries again until it does"
                    .to_owned()
            }
            _ if is_other && !self.config.cluster.is_empty() => {
                format!("{error}. The cluster.id of this node is {:?}", self.config.cluster)
            }
            Origin::Discovery => refused_introduction(error),
            Origin::Accepted | Origin::Slot(_) => error.to_string(),
        };
        self.fail(now, id, &reason, None);
    }

    /// Joins a peer that has proved itself. A dialer has received this node's proof.
    fn join(&mut self, now: Time, id: ConnectionId, joined: Joined) {
        let Joined { established, mut proof, rest } = joined;
        let Some(connection) = self.connections.get(&id) else { return };
        let Stage::Handshaking { own, .. } = connection.stage else { return };
        let (is_dialed, expected) = (connection.is_dialed(), connection.peer);
        let node = NodeId::of_name(&established.name);
        if is_dialed && expected != Some(node) {
            let reason =
                format!("the node {:?} answers there: check the addresses of both", established.name);
            return self.fail(now, id, &reason, Some(Refusal::Elsewhere));
        }
        let Some(peer) = self.peers.get_mut(&node) else {
            return self.close(now, id, "the node is no longer a peer");
        };
        if is_taken(now, peer, established.link) {
            self.counters.refused += 1;
            self.counters.taken += 1;
            let reason = taken(&Refusal::Taken, peer);
            return self.fail(now, id, &reason, Some(Refusal::Taken));
        }
        let is_news = peer.link.peer().is_some_and(|known| known != established.link);
        let answered = answer_to(&self.derivation, peer, established.link);
        if is_news && is_dialed {
            // The state of the link is dropped with the peer's incarnation that it belonged to. The id that this node
            // has just announced stands for that state.
            let fresh = self.link_id();
            self.restart_link(now, node, fresh);
            return self.redial(now, id);
        }
        if is_news && own == answered {
            self.restart_link(now, node, answered);
        } else if own != answered {
            return self.redial(now, id);
        }
        // This comes last: a connection with a channel counts as one of the link.
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.out.append(&mut proof);
        }
        self.attach(now, id, node, &established);
        if !rest.is_empty() {
            self.input(now, id, rest);
        }
    }

    fn attach(&mut self, now: Time, id: ConnectionId, node: NodeId, established: &Established) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let channel = peer.link.attach(now, established);
        (peer.version, peer.features) = (established.version, established.features);
        peer.descriptor = established.descriptor.clone();
        // Earlier connections of this channel, and of others if the number of channels has changed.
        self.sweep(now, node, "a newer connection replaced it");
        let (Some(peer), Some(connection)) = (self.peers.get_mut(&node), self.connections.get_mut(&id))
        else {
            return;
        };
        self.half_open -= usize::from(connection.is_half_open());
        if let Some(slot) = connection.slot().and_then(|slot| peer.slots.get_mut(usize::from(slot))) {
            slot.is_redialed = false;
        }
        connection.peer = Some(node);
        peer.network = connection.network.or(peer.network);
        connection.stage = Stage::Channel { id: channel, since: now };
        peer.channels.resize(usize::from(established.channels), None);
        peer.channels[usize::from(channel.index())] = Some(id);
        // The link reports its next timeout; with the first channel the others may be dialed.
        self.due = peer.link.timeout().min(self.due);
        if !peer.slots.is_empty() {
            self.due = now.min(self.due);
        }
        self.queue(id);
        self.update_peer(now, node);
    }

    /// Resets the link: the peer has forgotten this node or was another process, so this node forgets too.
    fn restart_link(&mut self, now: Time, node: NodeId, id: LinkId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.link.forget(id);
        }
        self.sweep(now, node, "the peer has restarted");
        self.update_peer(now, node);
    }

    /// Closes a connection whose announced ids are no longer those of the link, and dials again.
    fn redial(&mut self, now: Time, id: ConnectionId) {
        let slot_of_peer =
            self.connections.get(&id).and_then(|connection| Some((connection.peer?, connection.slot()?)));
        self.close(now, id, "the link has restarted");
        // Dial at once, however often the peer was dialed in vain before: it is there. But not if this happens to a
        // peer repeatedly.
        if let Some((node, slot)) = slot_of_peer
            && let Some(slot) = self.peers.get_mut(&node).and_then(|it| it.slots.get_mut(usize::from(slot)))
            && !std::mem::replace(&mut slot.is_redialed, true)
        {
            slot.due = now;
            self.due = now.min(self.due);
        }
    }
}

/// Explains an error at a discovery address.
fn refused_introduction(error: &PeerError) -> String {
    match error {
        PeerError::RefusedBy { reason: Refusal::Unknown } => {
            "the node there has a list of the nodes in its configuration, as in version 0.1, and joins no others: \
             change it to cluster.join as well"
                .into()
        }
        PeerError::RefusedBy { reason: Refusal::Channel } => {
            "the node there supports no introductions: upgrade it".into()
        }
        _ => error.to_string(),
    }
}

/// Returns whether another process with the peer's name is connected and alive.
fn is_taken(now: Time, peer: &Peer, theirs: LinkId) -> bool {
    let is_other = peer.link.peer().is_some_and(|known| known != theirs);
    is_other && peer.is_alive(now)
}

/// Adds the address of the connected process to an error: with two processes of one name, operators look for both.
fn taken(error: &impl std::fmt::Display, peer: &Peer) -> String {
    format!("{error}. The one that is connected is at {}", peer.address)
}

/// Returns the link id to announce to a dialer with the id `theirs`. If `theirs` has changed, it is the id that this
/// end will have once the dialer has proved itself. Nothing changes before that, and all its connections get the same
/// answer.
fn answer_to(derivation: &hmac::Key, peer: &Peer, theirs: LinkId) -> LinkId {
    let own = peer.link.id();
    if peer.link.peer().is_none_or(|known| known == theirs) {
        return own;
    }
    let said = [own.0.to_le_bytes(), theirs.0.to_le_bytes()].concat();
    let tag = hmac::sign(derivation, &said);
    LinkId(tag.as_ref().first_chunk().map_or(own.0, |first| u128::from_le_bytes(*first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No node of this version refuses an introduction in this way.
    #[test]
    fn a_node_with_a_list_of_nodes_is_told_from_others() {
        let why = refused_introduction(&PeerError::RefusedBy { reason: Refusal::Unknown });
        assert!(why.contains("cluster.join"), "{why}");
        let other = PeerError::RefusedBy { reason: Refusal::Cluster };
        assert_eq!(refused_introduction(&other), other.to_string());
    }
}
