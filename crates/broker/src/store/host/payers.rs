//! Payers for the sessions and the retained messages of a shard.
//!
//! Existing resources are charged without a limit. Only a new session and a new retained message can be refused, and
//! requests in progress are not counted meanwhile. After a restart sessions are charged to the user that their record
//! names. The user of a retained message is not stored: the message is charged to nobody until it is published again.
//! The same holds for a new leader of a shard.

use std::hash::BuildHasher;

use shard::SessionUid;

use super::{HashMap, ShardHost};
use crate::node::{NodeLoad, OwnerKey};
use crate::quota::{Account, Payers, Resource};
use crate::settings::Settings;

/// Charges on behalf of one shard. A resource without payers has no entry.
#[derive(Debug)]
pub(super) struct Charged {
    hash_key: [u8; 16],
    sessions: HashMap<SessionUid, Payers>,
    /// Charges for retained messages, by a hash of the topic with the node's secret.
    retained: HashMap<u64, RetainedCharge>,
}

/// Payers for the retained message of a topic.
#[derive(Debug)]
pub(super) struct RetainedCharge {
    topic_hash: u64,
    payers: Payers,
    bytes: u64,
}

impl RetainedCharge {
    fn release(self) {
        self.payers.release(Resource::RetainedMessages, 1);
        self.payers.release(Resource::RetainedBytes, self.bytes);
    }
}

impl Charged {
    pub fn new(hash_key: [u8; 16], hasher: foldhash::quality::FixedState) -> Self {
        Self {
            hash_key,
            sessions: HashMap::with_hasher(hasher.clone()),
            retained: HashMap::with_hasher(hasher),
        }
    }

    /// Charges the session to these payers and to nobody else.
    pub fn session(&mut self, uid: SessionUid, payers: Payers) {
        self.session_ended(uid);
        if !payers.is_empty() {
            payers.charge(Resource::Sessions, 1);
            self.sessions.insert(uid, payers);
        }
    }

    pub fn session_ended(&mut self, uid: SessionUid) {
        if let Some(payers) = self.sessions.remove(&uid) {
            payers.release(Resource::Sessions, 1);
        }
    }

    /// Charge for a topic's retained message of `bytes`; 0 when it has none.
    pub fn for_retained(&self, topic: &str, payers: Payers, bytes: u64) -> RetainedCharge {
        RetainedCharge { topic_hash: self.retained.hasher().hash_one(topic), payers, bytes }
    }

    /// Charges the topic's retained message to these payers and to nobody else.
    pub fn retained(&mut self, charge: RetainedCharge) {
        if let Some(before) = self.retained.remove(&charge.topic_hash) {
            before.release();
        }
        if charge.bytes > 0 && !charge.payers.is_empty() {
            charge.payers.charge(Resource::RetainedMessages, 1);
            charge.payers.charge(Resource::RetainedBytes, charge.bytes);
            self.retained.insert(charge.topic_hash, charge);
        }
    }

    /// Ends all charges.
    pub fn clear(&mut self) {
        for (_, payers) in self.sessions.drain() {
            payers.release(Resource::Sessions, 1);
        }
        for (_, charge) in self.retained.drain() {
            charge.release();
        }
    }

    pub fn not_retained(&mut self, topic: &str) {
        if !self.retained.is_empty() {
            self.retained(self.for_retained(topic, Payers::default(), 0));
        }
    }
}

impl ShardHost {
    /// Charges a session that existed before the node's start.
    pub(super) fn charge_known_session(&mut self, uid: SessionUid) {
        let Some(session) = self.replica.state().session(uid) else { return };
        let user = OwnerKey::from_u32(session.user());
        let mountpoint = user.mountpoint_of(&self.charged.hash_key, session.client_id());
        self.charged.session(uid, self.load.quotas.payers(user, mountpoint));
    }

    /// Returns whether these payers may have one more session.
    pub(super) fn may_have_session(&self, payers: &Payers) -> bool {
        // Only a leader knows the users of sessions.
        let share = self.settings.quota.share_of(u64::from(self.settings.session.sessions_max));
        let max = self.load.led_part(share);
        payers.most_used(Resource::Sessions) < max
    }

    /// Returns whether these payers may have a retained message of `bytes` on this topic. A message of theirs that it
    /// replaces is counted as freed.
    pub(super) fn may_retain(&self, topic: &str, bytes: u64, payers: &Payers) -> bool {
        if payers.is_empty() {
            return true;
        }
        let topic_hash = self.charged.retained.hasher().hash_one(topic);
        let before = self.charged.retained.get(&topic_hash);
        let may = |account: &Account| {
            let before =
                before.filter(|before| before.payers.each().any(|payer| std::ptr::eq(payer, account)));
            let more = u64::from(before.is_none());
            let more_bytes = bytes.saturating_sub(before.map_or(0, |before| before.bytes));
            has_room_to_retain(&self.settings, &self.load, account, (more, more_bytes))
        };
        payers.each().all(may)
    }

    /// Checks the invariants of the charges.
    pub(super) fn check_charged(&self) {
        for uid in self.charged.sessions.keys() {
            assert!(
                self.replica.state().session(*uid).is_some(),
                "a session that has ended is charged to nobody"
            );
        }
        assert!(
            self.charged.retained.len() <= self.retained_len(),
            "a message that is not retained is charged to nobody"
        );
    }
}

/// Returns whether one payer may have so many more messages, and bytes of them.
fn has_room_to_retain(
    settings: &Settings,
    load: &NodeLoad,
    account: &Account,
    (more, more_bytes): (u64, u64),
) -> bool {
    let (retained, quota) = (&settings.retained, &settings.quota);
    let share = |max| load.led_part(quota.share_of(max));
    let fits = |resource, more: u64, max| more == 0 || account.used(resource) + more <= share(max);
    fits(Resource::RetainedMessages, more, retained.messages_max)
        && fits(Resource::RetainedBytes, more_bytes, retained.bytes_max.bytes())
}

impl Payers {
    /// Returns whether a shard must be asked for room before these payers retain a message.
    pub(crate) fn is_short_of_retained(&self, settings: &Settings, load: &NodeLoad) -> bool {
        let largest = settings.mqtt.packet_size_max.bytes();
        !self.each().all(|account| has_room_to_retain(settings, load, account, (1, largest)))
    }
}
