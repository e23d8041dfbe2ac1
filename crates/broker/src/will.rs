//! The owner of a Will, to decide whether the Will may still be published.

use std::net::IpAddr;
use std::sync::Arc;

use crate::access::{ClientCertificate, Identity, Principal, Validity};
use crate::connection::Connection;
use crate::ids::Time;
use crate::message::{Message, MessageView};
use crate::node::Node;
use crate::store::shard_clock::shifted;

/// The client that has left a Will, as it was admitted.
#[derive(Debug, Default, PartialEq)]
pub struct WillOwner {
    /// Client Identifier with the mountpoint.
    client_id: Arc<str>,
    mountpoint: Box<str>,
    username: Option<Box<str>>,
    peer: Option<IpAddr>,
    listener: Box<str>,
    certificate: Option<Arc<ClientCertificate>>,
    principal: Option<Arc<Principal>>,
    validity: Option<Arc<Validity>>,
    /// End of the admission.
    expires: Option<Time>,
    /// [`Access::generation`](crate::access::Access::generation) of the rules that allowed the Will; `None` after a
    /// restart.
    rules: Option<u64>,
    /// Rules may depend on the client's certificate or principal, which are not known any more.
    is_partial: bool,
}

impl WillOwner {
    pub(crate) fn of(connection: &Connection, node: &Node) -> Self {
        let extra = connection.extra.as_deref();
        Self {
            client_id: connection.client_id.clone(),
            mountpoint: connection.mountpoint().into(),
            username: connection.username().map(Into::into),
            peer: connection.peer().map(|peer| peer.ip()),
            listener: node.listener_name(connection.listener).into(),
            certificate: extra.and_then(|extra| extra.certificate.clone()),
            principal: extra.and_then(|extra| extra.principal.clone()),
            validity: extra.and_then(|extra| extra.validity.clone()),
            expires: extra.and_then(|extra| extra.expires),
            rules: extra.map(|extra| extra.will_rules),
            is_partial: false,
        }
    }

    /// Makes an owner for the tests of other modules.
    #[cfg(test)]
    pub(crate) fn for_test(client_id: &str, username: Option<&str>, expires: Option<Time>) -> Self {
        Self {
            client_id: client_id.into(),
            mountpoint: "m/".into(),
            username: username.map(Into::into),
            peer: Some([192, 0, 2, 1].into()),
            listener: "tls".into(),
            expires,
            ..Self::default()
        }
    }

    pub(crate) fn mountpoint(&self) -> &str {
        &self.mountpoint
    }

    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            client_id: self.client_id.strip_prefix(self.mountpoint()).unwrap_or(&self.client_id),
            username: self.username.as_deref(),
            peer: self.peer,
            listener: &self.listener,
            certificate: self.certificate.as_deref(),
            principal: self.principal.as_deref(),
        }
    }

    /// Returns whether the admission has expired or the user was removed.
    pub(crate) fn has_ended(&self, now: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
            || self.validity.as_ref().is_some_and(|validity| validity.has_ended())
    }

    /// Returns whether rules of this generation have to be evaluated.
    pub(crate) fn needs_check(&self, generation: u64) -> bool {
        !self.is_partial && self.rules != Some(generation)
    }

    /// Will of the owner in the form of the store. The owner is written in front of the properties, so that it is known
    /// after a restart too.
    pub(crate) fn sign(&self, will: &Message) -> Message {
        self.sign_until(self.expires, will)
    }

    /// Will of the owner in the form for other nodes. Clocks of nodes differ, so the admission ends after an interval.
    pub(crate) fn sign_for_node(&self, now: Time, will: &Message) -> Message {
        self.sign_until(self.expires.map(|expires| Time(expires.0.saturating_sub(now.0))), will)
    }

    fn sign_until(&self, expires: Option<Time>, will: &Message) -> Message {
        let view = will.view();
        let mut properties = Vec::with_capacity(64 + self.client_id.len() + view.properties.len());
        properties.push(MARK);
        properties.extend([0; 4]);
        self.encode(expires, &mut properties);
        let length = properties.len() as u32;
        properties[1..HEADER].copy_from_slice(&length.to_le_bytes());
        properties.extend_from_slice(view.properties);
        MessageView { properties: &properties, ..view }.to_message()
    }

    /// Returns whether an owner is in front of the properties of a Will.
    pub(crate) fn is_signed(properties: &[u8]) -> bool {
        properties.first() == Some(&MARK)
    }

    /// Splits the properties of a stored Will into the owner and the properties.
    pub(crate) fn of_signed(properties: &[u8]) -> (Option<Self>, &[u8]) {
        if !Self::is_signed(properties) {
            return (None, properties);
        }
        let length = properties.get(1..HEADER).and_then(|length| length.try_into().ok());
        let length = length.map_or(HEADER, |length| u32::from_le_bytes(length) as usize);
        let (mut owner, rest) = properties.split_at_checked(length).unwrap_or((properties, &[]));
        (take(&mut owner, HEADER).and_then(|_| Self::decode(&mut owner)), rest)
    }

    /// Converts the end of the admission of an owner from another node to a time. It is never so late that it means no
    /// end.
    #[must_use]
    pub(crate) fn arrived(self, now: Time) -> Self {
        let until = |interval: Time| Time(now.0.saturating_add(interval.0).min(Time::NEVER.0 - 1));
        Self { expires: self.expires.map(until), ..self }
    }

    /// Converts the end of the admission to the time of a clock that is `ms` ahead.
    #[must_use]
    pub(crate) fn shifted(self, ms: i64) -> Self {
        Self { expires: self.expires.map(|expires| Time(shifted(expires.0, ms))), ..self }
    }

    fn encode(&self, expires: Option<Time>, out: &mut Vec<u8>) {
        let has_rights = |principal: &Principal| {
            principal.superuser || !principal.attributes.is_empty() || principal.grants.is_some()
        };
        let is_partial = self.is_partial
            || self.certificate.is_some()
            || self.principal.as_deref().is_some_and(has_rights);
        out.push(if is_partial { PARTIAL } else { 0 } | if self.username.is_some() { NAMED } else { 0 });
        out.extend(expires.unwrap_or(Time::NEVER).0.to_le_bytes());
        let peer = self.peer.map(|peer| peer.to_string()).unwrap_or_default();
        let username = self.username.as_deref().unwrap_or_default();
        for text in [&*self.client_id, &*self.mountpoint, username, &*self.listener, &*peer] {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
    }

    fn decode(from: &mut &[u8]) -> Option<Self> {
        let flags = *take(from, 1)?.first()?;
        let expires = Time(u64::from_le_bytes(take(from, 8)?.try_into().ok()?));
        let mut text = || {
            let length = u32::from_le_bytes(take(from, 4)?.try_into().ok()?);
            std::str::from_utf8(take(from, length as usize)?).ok()
        };
        Some(Self {
            client_id: text()?.into(),
            mountpoint: text()?.into(),
            username: Some(text()?.into()).filter(|_| flags & NAMED != 0),
            listener: text()?.into(),
            peer: text()?.parse().ok(),
            expires: Some(expires).filter(|expires| *expires != Time::NEVER),
            is_partial: flags & PARTIAL != 0,
            ..Self::default()
        })
    }
}

/// Returns the properties of a stored Will for a clock that is `ms` ahead: the admission of an owner in front of them
/// ends at a time of the clock.
pub fn shifted_will_properties(properties: &[u8], ms: i64) -> Vec<u8> {
    let mut changed = properties.to_vec();
    if WillOwner::of_signed(properties).0.is_some()
        && let Some(field) = changed.get_mut(EXPIRES..EXPIRES + 8)
        && let Ok(expires) = <[u8; 8]>::try_from(&*field).map(u64::from_le_bytes)
    {
        field.copy_from_slice(&shifted(expires, ms).to_le_bytes());
    }
    changed
}

/// First byte of properties with an owner in front of them. No property has this identifier.
const MARK: u8 = 0;
/// Size of the mark and of the length of all that precedes the properties, in bytes.
const HEADER: usize = 5;
/// Offset of the end of the admission, after the flags.
const EXPIRES: usize = HEADER + 1;
const PARTIAL: u8 = 1;
const NAMED: u8 = 2;

fn take<'a>(from: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> WillOwner {
        WillOwner {
            client_id: "tenant/c".into(),
            mountpoint: "tenant/".into(),
            username: Some("u".into()),
            peer: Some([192, 0, 2, 1].into()),
            listener: "tls".into(),
            expires: Some(Time(70_000)),
            ..WillOwner::default()
        }
    }

    fn will(properties: &[u8]) -> Message {
        let stored = shard::MessageView {
            topic: "t",
            properties,
            payload: b"gone",
            qos: mqtt::QoS::AtLeastOnce,
            retain: true,
            expires: shard::NEVER,
            received: 0,
            publisher_key: 0,
        };
        Message::of_stored(&stored)
    }

    #[test]
    fn the_owner_of_a_stored_will_is_decoded() {
        for properties in [&[][..], &[1, 1]] {
            for owner in [owner(), WillOwner::default()] {
                let signed = owner.sign(&will(properties));
                assert_eq!(WillOwner::of_signed(signed.view().properties), (Some(owner), properties));
            }
        }
    }

    /// The clocks of two nodes are far apart.
    #[test]
    fn an_admission_ends_at_the_same_time_on_another_node() {
        let sent = owner().sign_for_node(Time(50_000), &will(&[]));
        let (found, _) = WillOwner::of_signed(sent.view().properties);
        let found = found.map(|found| found.arrived(Time(3)));
        assert_eq!(found, Some(WillOwner { expires: Some(Time(20_003)), ..owner() }));
        let endless = WillOwner { expires: None, ..owner() };
        let sent = endless.sign_for_node(Time(50_000), &will(&[]));
        let (found, _) = WillOwner::of_signed(sent.view().properties);
        assert_eq!(found.map(|found| found.arrived(Time(3))), Some(endless));
    }

    #[test]
    fn an_admission_ends_at_the_same_time_by_another_clock() {
        let shift = |will: &Message| shifted_will_properties(will.view().properties, 1_000_000);
        let shifted = shift(&owner().sign(&will(&[1, 1])));
        let later = WillOwner { expires: Some(Time(1_070_000)), ..owner() };
        assert_eq!(WillOwner::of_signed(&shifted), (Some(later), &[1, 1][..]));
        let endless = WillOwner { expires: None, ..owner() }.sign(&will(&[1, 1]));
        assert_eq!(shift(&endless), endless.view().properties);
        let last = WillOwner { expires: Some(Time(Time::NEVER.0 - 1)), ..owner() }.sign(&will(&[]));
        assert_eq!(shift(&last), last.view().properties, "it never means no end");
        // Without an owner, or with one that cannot be read.
        let signed = owner().sign(&will(&[1, 1]));
        for properties in [&[][..], &[1, 1], &[MARK], &signed.view().properties[..20]] {
            assert_eq!(shifted_will_properties(properties, 1_000_000), properties);
        }
    }

    #[test]
    fn a_will_that_was_stored_without_its_owner_keeps_its_properties() {
        for properties in [&[][..], &[1, 1]] {
            assert_eq!(WillOwner::of_signed(properties), (None, properties));
        }
    }

    #[test]
    fn a_truncated_owner_is_not_decoded() {
        let signed = owner().sign(&will(&[1, 1]));
        let properties = signed.view().properties;
        for length in 1..properties.len() - 2 {
            assert_eq!(WillOwner::of_signed(&properties[..length]).0, None, "{length}");
        }
    }

    /// Facts from a certificate or a token are not stored, so the rules cannot be evaluated again after a restart.
    #[test]
    fn rules_are_not_evaluated_for_a_stored_owner_whose_rights_came_with_a_token() {
        let principal = Principal { superuser: true, ..Principal::default() };
        let with_rights = WillOwner { principal: Some(Arc::new(principal)), ..owner() };
        let stored = |owner: WillOwner| {
            WillOwner::of_signed(owner.sign(&will(&[])).view().properties).0.unwrap_or_default()
        };
        let stored_once = stored(with_rights);
        assert!(!stored_once.needs_check(1));
        assert!(!stored(stored_once).needs_check(1), "sent from one node to the next");
        assert!(stored(owner()).needs_check(1));
    }
}
