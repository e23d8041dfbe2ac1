//! The records that operators change, on their way to the copies of all nodes.

use link::{NodeId, Time};
use registry::{Delivery, Position};

use super::{Meta, MetaFrame, OwnedWord, Seen};

impl Meta {
    /// The owner's copy of the records is so far: it waits for more.
    pub fn copied(&mut self, at: Position) {
        self.courier.copied(at);
        self.due = Time::default();
    }

    /// Something for the owner's copy. The next comes after [`Self::copied`].
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.courier.poll_delivery()
    }

    /// How many changes of the records there are, as far as this node knows.
    pub fn records_revision(&self) -> Option<u64> {
        match &self.group {
            Some(group) => self.is_caught_up.then(|| group.state().records.revision()),
            None => self.courier.heard(),
        }
    }

    /// A node asks for what its copy lacks. Whoever is no member gets nothing: there are hashes of passwords among the records.
    pub(super) fn asked_for_records(&mut self, now: Time, from: NodeId, ask: &[u8]) -> bool {
        let Some(group) = &self.group else { return true };
        if !self.is_caught_up || !self.roster.members.contains_key(&from) {
            return true;
        }
        let state = group.state();
        let told = self.courier.asked(now, from, ask, (self.roster.founded, &state.records));
        let is_word = told.is_some();
        let frames = told.unwrap_or_default().into_iter();
        self.out.extend(frames.map(|told| MetaFrame { to: from, word: OwnedWord::Records(told) }));
        is_word
    }

    pub(super) fn carry_records(&mut self, now: Time, seen: &[Seen]) {
        if self.roster.founded == 0 {
            return;
        }
        if let Some(group) = &self.group {
            // Before that it may be behind what this node's copy had from others.
            if self.is_caught_up {
                let state = group.state();
                self.courier.tell_own(now, self.roster.founded, &state.records);
                let told = self.courier.push(now, self.roster.founded, &state.records).into_iter();
                self.out.extend(told.map(|(to, told)| MetaFrame { to, word: OwnedWord::Records(told) }));
            }
            return;
        }
        if self.is_member() {
            let cores = self.nearest_cores(seen);
            let asks = self.courier.ask(now, &cores).into_iter();
            self.out.extend(asks.map(|(to, ask)| MetaFrame { to, word: OwnedWord::Copied(ask) }));
        }
    }

    /// Those that are linked: of this node's region first, and each node has another first among these.
    fn nearest_cores(&self, seen: &[Seen]) -> Vec<NodeId> {
        let is_up = |id: &NodeId| seen.iter().any(|seen| seen.id == *id && seen.is_up);
        let cores = self.roster.cores().filter(|(id, _)| is_up(id));
        let mut cores: Vec<(bool, u64, NodeId)> = cores
            .map(|(id, core)| (core.info.region != self.own.region, id.0.wrapping_add(self.id.0), id))
            .collect();
        cores.sort_unstable();
        cores.into_iter().map(|(.., id)| id).collect()
    }
}
