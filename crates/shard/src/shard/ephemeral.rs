//! Beginning and end of ephemeral sessions.

use std::sync::Arc;

use crate::command::{Claim, WillFate};
use crate::effect::{Answer, Effect};
use crate::ephemeral::{Ephemeral, EphemeralWill};
use crate::eras::NodeIncarnation;
use crate::ids::{SessionUid, client_bucket};
use crate::mutation::{Mutation, mutated};
use crate::shard::Shard;

/// An ephemeral session in its present state.
#[derive(Clone, Copy)]
pub struct EphemeralView<'a> {
    shard: &'a Shard,
    session: &'a Ephemeral,
}

impl Shard {
    /// Begins an ephemeral session. Returns `None` when the shard has no free number for it.
    pub(super) fn begin_ephemeral(&mut self, era: u32, claim: &Claim<'_>) -> Option<SessionUid> {
        let slot = self.ephemerals.next_slot()?;
        self.sessions_created += 1;
        let uid = SessionUid::new(self.sessions_created, slot);
        let will = claim.will.map(|will| Box::new(EphemeralWill(will.message.to_bytes().into())));
        self.counts.ephemeral += 1;
        self.ephemerals.insert(Ephemeral {
            client_id: claim.client_id.into(),
            uid,
            connection: claim.connection,
            will,
            user: claim.user,
            era,
        });
        Some(uid)
    }

    /// Ends the ephemeral session of a client whose Client Identifier is claimed: its owner is gone or taken over.
    pub(super) fn evict_ephemeral(&mut self, client_id: &str, effects: &mut Vec<Effect>) {
        if let Some(slot) = self.ephemerals.slot_of(client_id) {
            self.end_ephemeral(slot, WillFate::Arm, effects);
        }
    }

    /// Ends an ephemeral session for its owner; `None` when there is no such session. A Release that comes again finds
    /// none.
    pub(super) fn release_ephemeral(
        &mut self,
        uid: SessionUid,
        fate: WillFate,
        effects: &mut Vec<Effect>,
    ) -> Option<Answer> {
        let session = self.ephemerals.get(uid)?;
        if !self.eras.is_live(session.era) {
            self.counts.stale += 1;
            return Some(Answer::Stale);
        }
        let bucket = client_bucket(&session.client_id);
        self.touch(bucket);
        self.end_ephemeral(uid.slot(), fate, effects);
        Some(Answer::Done)
    }

    /// Ends up to `count` ephemeral sessions from a slot on whose owner's era has ended. Returns the slot to continue
    /// at; `None` when there are no more sessions.
    pub(super) fn sweep_ephemerals(
        &mut self,
        slot: u32,
        count: usize,
        effects: &mut Vec<Effect>,
    ) -> Option<u32> {
        let some = self.ephemerals.from(slot).take(count);
        let some: Vec<(u32, u32)> = some.map(|session| (session.uid.slot(), session.era)).collect();
        let next = some.last().map_or(slot, |(last, _)| last + 1);
        let is_forgotten = mutated(Mutation::ForgetWills) || mutated(Mutation::ForgetEphemeralWills);
        let fate = if is_forgotten { WillFate::Discard } else { WillFate::Arm };
        for (slot, era) in some {
            if self.eras.end_of(era).is_none() {
                continue;
            }
            if let Some(session) = self.ephemerals.at(slot) {
                self.touch(client_bucket(&session.client_id));
            }
            self.end_ephemeral(slot, fate, effects);
        }
        self.ephemerals.from(next).next().map(|_| next)
    }

    /// Ends an ephemeral session. Its part was touched. The end of a session publishes its Will without delay
    /// [MQTT-3.1.3-9].
    fn end_ephemeral(&mut self, slot: u32, fate: WillFate, effects: &mut Vec<Effect>) {
        let Some(session) = self.ephemerals.remove(slot) else { return };
        self.counts.ephemeral -= 1;
        let will = session.will.filter(|_| fate == WillFate::Arm);
        if let Some(EphemeralWill(message)) = will.map(|will| *will) {
            self.push_will(session.uid, message, effects);
        }
    }

    /// Adds a Will that is to be published now.
    pub(super) fn push_will(&mut self, session: SessionUid, message: Arc<[u8]>, effects: &mut Vec<Effect>) {
        self.wills_created += 1;
        self.wills.insert(self.wills_created, message);
        effects.push(Effect::WillDue { id: self.wills_created, session });
    }

    /// Returns whether sessions of any kind are marked as owned.
    pub(super) fn has_owned(&self) -> bool {
        self.counts.owned + self.counts.ephemeral > 0
    }

    /// Returns the ephemeral session of a client.
    pub fn ephemeral_of(&self, client_id: &str) -> Option<EphemeralView<'_>> {
        let session = self.ephemerals.at(self.ephemerals.slot_of(client_id)?)?;
        Some(EphemeralView { shard: self, session })
    }

    /// Returns the nodes of some connected clients: up to `max` with an ephemeral session, and as many with a durable
    /// one. `seed` chooses them.
    pub fn sample_owners(&self, seed: u32, max: usize) -> impl Iterator<Item = NodeIncarnation> {
        let first = |count: usize| seed.wrapping_mul(0x9E37_79B1) % (count as u32).max(1);
        let (of_ephemeral, of_durable) = (first(self.ephemerals.len()), first(self.sessions.len()));
        let ephemerals = self.ephemerals.from(of_ephemeral).chain(self.ephemerals.from(0)).take(max);
        let ephemerals = ephemerals.take(self.ephemerals.len());
        let ephemerals =
            ephemerals.filter(|session| self.eras.is_live(session.era)).map(|session| session.era);
        let durable = self.sessions.from(of_durable).chain(self.sessions.from(0)).take(max);
        let durable = durable.take(self.sessions.len());
        let durable = durable.filter(|session| self.is_owned(session)).map(|session| session.era);
        ephemerals.chain(durable).filter_map(|era| self.eras.owner(era))
    }

    /// Iterates over the ephemeral sessions whose owner may be alive.
    pub fn ephemerals(&self) -> impl Iterator<Item = EphemeralView<'_>> {
        let all = self.ephemerals.from(0).map(|session| EphemeralView { shard: self, session });
        all.filter(|view| view.owner_node().is_some())
    }
}

impl<'a> EphemeralView<'a> {
    pub fn client_id(self) -> &'a str {
        &self.session.client_id
    }

    pub fn uid(self) -> SessionUid {
        self.session.uid
    }

    /// User of its Claim.
    pub fn user(self) -> u32 {
        self.session.user
    }

    /// Connection that owns the session, if its node may be alive.
    pub fn connection(self) -> u64 {
        self.session.connection
    }

    /// Node of that connection; `None` when its incarnation is over.
    pub fn owner_node(self) -> Option<NodeIncarnation> {
        let is_live = self.shard.eras.is_live(self.session.era);
        is_live.then(|| self.shard.eras.owner(self.session.era)).flatten()
    }

    pub fn has_will(self) -> bool {
        self.session.will.is_some()
    }
}
