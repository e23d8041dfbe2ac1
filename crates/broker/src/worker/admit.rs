//! The steps from the answer of access control to the claim of the Client Identifier.

use std::sync::Arc;

use mqtt::{ReasonCode, Version};
use shard::{Mutation, mutated};

use super::Worker;
use super::events::Event;
use super::wills::moved;
use crate::access::{Admission, AuthResult, Principal, Validity};
use crate::batch::Claimed;
use crate::connection::{Connection, Phase, Role, UNCHECKED};
use crate::ids::{ConnectionId, ShardId, client_key, fold};
use crate::internal;
use crate::quota::Resource;
use crate::settings::{Quota, SessionOwner};
use crate::store::{Claim, Request, client_shard};
use crate::wheel::TimerKind;
use crate::will::WillOwner;

/// Number of checks of one packet or Will that may end without an answer. The last of them refuses it.
pub(super) const ASKS_MAX: u8 = 4;

impl Worker {
    /// Handles the answer of access control to a CONNECT.
    pub(super) fn authenticated(&mut self, id: ConnectionId, result: AuthResult) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        if connection.phase != Phase::Authenticating {
            return;
        }
        let version = connection.version;
        let admission = match result {
            AuthResult::Deny(reason) => Err(reason),
            AuthResult::Allow => Ok(()),
            AuthResult::Admit(admission) => self.admit(id.slot, *admission),
        };
        self.note_authentication(id.slot, admission.err());
        match admission {
            Ok(()) => self.claim_client_id(id.slot),
            Err(reason) => self.refuse_connect(id.slot, version, reason),
        }
    }

    /// Records the result of an authentication as an event.
    pub(super) fn note_authentication(&mut self, slot: u32, refused: Option<ReasonCode>) {
        if self.monitor.events.is_selected(Event::Authn)
            && let Some(connection) = self.connections.occupant_ref(slot)
            && !connection.marks.role.is_process()
        {
            self.monitor.events.authenticated(self.clock.now(), connection, refused);
        }
    }

    /// Applies an admission to a connection: names, lifetime, mountpoint and rights.
    fn admit(&mut self, slot: u32, admission: Admission) -> Result<(), ReasonCode> {
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let Admission { client_id, username, lifetime, principal, validity } = admission;
        let named = client_id.is_some();
        let client_id = client_id.unwrap_or_else(|| connection.client_id.clone());
        if client_id.is_empty() {
            return Err(ReasonCode::ClientIdentifierNotValid);
        }
        let mountpoint = principal.as_ref().and_then(|principal| principal.mountpoint.as_deref());
        let is_moved = named || mountpoint.is_some();
        // Client Identifiers include the mountpoint, so that no client can take over a session of another tenant.
        connection.client_id = match mountpoint {
            Some(mountpoint) => Arc::from(format!("{mountpoint}{client_id}")),
            None => client_id,
        };
        connection.client_key = client_key(&connection.client_id);
        connection.marks.mounted = mountpoint.is_some();
        let (id, key) = (connection.id, connection.client_key);
        if is_moved && let Some((will, _)) = connection.extra.as_mut().and_then(|extra| extra.will.as_mut()) {
            *will = moved(will, mountpoint.unwrap_or_default(), id, key);
        }
        if let Some(username) = username {
            connection.extra().username = Some(username);
        }
        if let Some(lifetime) = lifetime {
            connection.extra().expires = Some(now.after(lifetime));
        }
        connection.take(principal, validity);
        self.admit_link(slot)?;
        // The admission may have changed the names, and the client may have been banned while the answer was on its
        // way.
        match self.revoked(slot) {
            Some(reason) => Err(reason),
            None => Ok(()),
        }
    }

    /// Claims the Client Identifier of a client that may publish its Will, and refuses the others.
    pub(super) fn claim_client_id(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        let version = connection.version;
        let is_link = connection.client_id.starts_with(internal::LINK);
        let is_process = connection.marks.role.is_process();
        let is_reserved = internal::is_reserved(&connection.client_id) && !is_process;
        // The process ends the session of a link that was removed.
        if is_reserved || is_link && connection.marks.role != Role::Link && !is_process {
            return self.refuse_connect(slot, version, ReasonCode::ClientIdentifierNotValid);
        }
        // Read the generation first: rules that change during the check must not count as checked.
        let rules = self.node.access.generation();
        match connection.may_will(&self.node) {
            Some(true) => {
                let extra = self.connections.occupant(slot).and_then(|connection| connection.extra.as_mut());
                if let Some(extra) = extra {
                    extra.will_rules = rules;
                }
            }
            Some(false) => {
                let will = connection.extra.as_ref().and_then(|extra| extra.will.as_ref());
                let will = will.map(|(will, _)| will.clone());
                let topic = will.as_ref().map(|will| will.view().topic).unwrap_or_default();
                return self.refuse_will(slot, version, topic);
            }
            None => {
                let Some(connection) = self.connections.occupant(slot) else { return };
                let connecting = connection.connecting.as_mut();
                // The worker calls this function again when the answer arrives.
                let is_patient = connecting.is_some_and(|connecting| {
                    connecting.attempts += 1;
                    connecting.attempts < ASKS_MAX
                });
                if is_patient {
                    return;
                }
                return self.refuse_connect(slot, version, ReasonCode::NotAuthorized);
            }
        }
        if !self.charge_connection(slot) {
            self.counters.quota_connections += 1;
            return self.refuse_connect(slot, version, ReasonCode::QuotaExceeded);
        }
        let owner = self.settings.session.owner;
        let Some(connection) = self.connections.occupant(slot) else { return };
        let username = connection.username().filter(|_| owner == SessionOwner::User);
        let user = self.node.owner_key(connection.mountpoint(), username);
        connection.phase = Phase::Claiming;
        connection.marks.claimed = true;
        let connecting = connection.connecting.as_ref();
        let will = connection.extra.as_ref().and_then(|extra| extra.will.clone());
        let will = will.map(|(will, delay)| (WillOwner::of(connection, &self.node).sign(&will), delay));
        let claim = Claim {
            client_id: connection.client_id.clone(),
            connection: connection.id,
            user,
            payers: connection.extra.as_ref().map(|extra| extra.payers.clone()).unwrap_or_default(),
            clean_start: connecting.is_none_or(|connecting| connecting.clean_start),
            expiry: connection.session_expiry,
            window: connection.window,
            queue_limits: connecting.and_then(|connecting| connecting.queue_limits),
            will,
            number: 0,
        };
        let shard = client_shard(fold(connection.client_key));
        let is_early = claim.clean_start && self.acknowledges_early(shard);
        if let Some(lanes) = &mut self.lanes {
            lanes.note_claim(shard);
        }
        self.outbox.request(shard, Request::Claim(Box::new(claim)));
        if is_early {
            self.acknowledge_early(slot, version);
        }
    }

    /// Returns whether CONNACK may be sent before a Claim of this shard is answered. It waits while the answer may take
    /// long: the shard has no known leader or too many unanswered Claims, or this node reaches no majority of cores.
    fn acknowledges_early(&self, shard: ShardId) -> bool {
        let takes_claims = self.lanes.as_ref().is_some_and(|lanes| lanes.takes_claims(shard));
        takes_claims && self.node.overlaps_connacks() && !self.node.is_stale(self.clock.now())
    }

    /// Sends CONNACK to a client with Clean Start before its Claim is answered: the content does not depend on the
    /// answer [MQTT-3.2.2-2].
    fn acknowledge_early(&mut self, slot: u32, version: Version) {
        if !self.send_connack(slot, false) {
            return self.refuse_connect(slot, version, ReasonCode::PacketTooLarge);
        }
        self.counters.connacks_early += 1;
        let Some(connection) = self.connections.occupant(slot) else { return };
        connection.marks.early = true;
        if mutated(Mutation::ServeEarly) {
            let connection = connection.id;
            self.claimed(Claimed::kept(connection));
        }
    }

    /// Charges a connection to its user and its mountpoint. Returns false if one of them has reached its maximum.
    fn charge_connection(&mut self, slot: u32) -> bool {
        let max = self.settings.quota.share_of(self.node.connections_max());
        let Some(connection) = self.connections.occupant(slot) else { return true };
        if connection.extra.is_none() {
            return true;
        }
        let payers = self.node.payers(connection.mountpoint(), connection.username());
        let is_taken = payers.take(Resource::Connections, 1, max);
        if is_taken {
            connection.extra().payers = payers;
        }
        is_taken
    }

    /// Applies the admission of a client that has authenticated again.
    ///
    /// # Errors
    /// Fails if the client has another identity now. The session and the subscriptions belong to the first identity.
    pub(super) fn readmit(&mut self, slot: u32, admission: Admission) -> Result<(), ReasonCode> {
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let Admission { client_id, username, lifetime, principal, validity } = admission;
        let mountpoint = principal.as_ref().and_then(|principal| principal.mountpoint.as_deref());
        let is_same = client_id.is_none_or(|client_id| *client_id == *connection.own_client_id())
            && username.is_none_or(|username| connection.username() == Some(&*username))
            && mountpoint.unwrap_or_default() == connection.mountpoint();
        if !is_same {
            return Err(ReasonCode::NotAuthorized);
        }
        let (id, expires) = (connection.id, lifetime.map(|lifetime| now.after(lifetime)));
        connection.extra().expires = expires;
        connection.take(principal, validity);
        if let Some(flow) = connection.flow.as_mut() {
            flow.permissions.forget();
            // Messages that wait were allowed to the earlier principal.
            flow.waiting_rules = UNCHECKED;
        }
        if let Some(at) = expires {
            self.wheel.arm(at, slot, id.generation, TimerKind::Expiry);
        }
        if let Some(reason) = self.revoked(slot) {
            return Err(reason);
        }
        if self.node.access.guards_topics() {
            self.recheck_connection(slot);
        }
        Ok(())
    }
}

impl Connection {
    /// Charges the bytes that the node holds for a client's session to its user and its mountpoint. Granted bytes are
    /// charged even beyond the quota.
    pub(super) fn charge_session(&mut self) {
        let payers = self.extra.as_ref().map(|extra| &extra.payers);
        if payers.is_none_or(|payers| payers.is_empty()) || self.phase == Phase::Closing {
            return;
        }
        let bytes = self.session_bytes() as u64;
        let extra = self.extra();
        if bytes > extra.charged_bytes {
            extra.payers.charge(Resource::SessionBytes, bytes - extra.charged_bytes);
        } else {
            extra.payers.release(Resource::SessionBytes, extra.charged_bytes - bytes);
        }
        extra.charged_bytes = bytes;
    }

    /// Returns whether a client's session may use `more` more bytes of the node.
    pub(super) fn has_room_for_bytes(&self, quota: &Quota, more: usize) -> bool {
        if self.session_bytes() + more > quota.client_bytes_max.bytes() as usize {
            return false;
        }
        let payers = self.extra.as_ref().map(|extra| &extra.payers);
        let used = payers.map_or(0, |payers| payers.most_used(Resource::SessionBytes));
        used + more as u64 <= quota.user_bytes_max.bytes()
    }

    fn take(&mut self, principal: Option<Arc<Principal>>, validity: Option<Arc<Validity>>) {
        self.marks.paced = principal.as_ref().is_some_and(|principal| principal.rates.is_some());
        if principal.is_some() || validity.is_some() || self.extra.is_some() {
            let extra = self.extra();
            (extra.principal, extra.validity) = (principal, validity);
        }
    }
}

#[cfg(test)]
mod tests;
