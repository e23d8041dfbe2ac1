//! Transfer of the records that operators change to the copies of all nodes.

use configstore::{Position, RecordUpdate};
use link::{NodeId, Time};

use super::{LinkStatus, Meta, MetaFrame, OwnedMetaMessage};

impl Meta {
    /// Sets the position of the owner's copy of the records, which waits for more.
    pub fn set_position(&mut self, at: Position) {
        self.record_sync.set_position(at);
        self.due = Time::default();
    }

    /// Returns an update for the owner's copy. The next one follows [`Self::set_position`].
    pub fn poll_delivery(&mut self) -> Option<RecordUpdate> {
        self.record_sync.poll_delivery()
    }

    /// Returns the revision of the records, as far as this node knows.
    pub fn records_revision(&self) -> Option<u64> {
        match &self.core {
            Some(core) => core.is_caught_up().then(|| core.group().state().records.revision()),
            None => self.record_sync.known_revision(),
        }
    }

    /// Handles a node's request for changes that its copy lacks. Only members get an answer, because records include
    /// password hashes.
    pub(super) fn records_requested(&mut self, now: Time, from: NodeId, ask: &[u8]) -> bool {
        let Some(core) = &self.core else { return true };
        if !core.is_caught_up() || !self.roster.members.contains_key(&from) {
            return true;
        }
        let state = core.group().state();
        let answers = self.record_sync.handle_request(now, from, ask, (self.roster.founded, &state.records));
        let is_message = answers.is_some();
        let frames = answers.unwrap_or_default().into_iter();
        self.out.extend(
            frames.map(|answers| MetaFrame { to: from, message: OwnedMetaMessage::Records(answers) }),
        );
        is_message
    }

    pub(super) fn sync_records(&mut self, now: Time, link_status: &[LinkStatus]) {
        if self.roster.founded == 0 {
            return;
        }
        if let Some(core) = &self.core {
            // Before that the state may be older than this node's copy from other cores.
            if core.is_caught_up() {
                let state = core.group().state();
                self.record_sync.sync_own(now, self.roster.founded, &state.records);
                let answers = self.record_sync.push(now, self.roster.founded, &state.records).into_iter();
                self.out.extend(
                    answers
                        .map(|(to, answers)| MetaFrame { to, message: OwnedMetaMessage::Records(answers) }),
                );
            }
            return;
        }
        if self.is_member() {
            let cores = self.nearest_cores(link_status);
            let asks = self.record_sync.ask(now, &cores).into_iter();
            self.out.extend(asks.map(|(to, ask)| MetaFrame { to, message: OwnedMetaMessage::Copied(ask) }));
        }
    }

    /// Returns the linked cores, those of this node's region first. Each node prefers another one among these.
    fn nearest_cores(&self, link_status: &[LinkStatus]) -> Vec<NodeId> {
        let is_up =
            |id: &NodeId| link_status.iter().any(|link_status| link_status.id == *id && link_status.is_up);
        let cores = self.roster.cores().filter(|(id, _)| is_up(id));
        let mut cores: Vec<(bool, u64, NodeId)> = cores
            .map(|(id, core)| (core.info.region != self.own.region, id.0.wrapping_add(self.id.0), id))
            .collect();
        cores.sort_unstable();
        cores.into_iter().map(|(.., id)| id).collect()
    }
}
