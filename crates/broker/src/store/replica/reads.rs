//! Messages that are read back from the log.

use shard::{Mutation, Phase, mutated};

use super::Replica;
use crate::message::Message;
use crate::store::log::{Purpose, Wanted};

/// Result of a read for the host.
#[derive(Debug)]
pub(in crate::store) struct Read {
    pub purpose: Purpose,
    pub result: ReadResult,
}

#[derive(Debug)]
pub(in crate::store) enum ReadResult {
    Found(Message),
    /// The disk could not return the message. It is read again, or other replicas are asked for it.
    Again,
    /// The disk failed twice to return the message, and no other replica has it: it is lost.
    Lost,
    /// The disk could not return the message, and nothing needs it any more.
    NotNeeded,
}

impl Replica {
    /// Requests messages from the log. Those that other nodes have and this one not yet are read when it has them.
    pub fn read(&mut self, mut wanted: Vec<Wanted>) {
        let Some(log) = &self.log else {
            return debug_assert!(false, "without a log every message is in memory");
        };
        if let Some(agreement) = &self.agreement
            && !mutated(Mutation::ReadEarly)
        {
            let durable = agreement.durable();
            self.reads_held.extend(wanted.extract_if(.., |wanted| wanted.key.index() > durable));
        }
        if !wanted.is_empty() {
            log.read(self.id, wanted);
        }
    }

    /// Requests the messages that the log has now.
    pub(super) fn read_held(&mut self) {
        if !self.reads_held.is_empty() {
            let held = std::mem::take(&mut self.reads_held);
            self.read(held);
        }
    }

    /// Handles messages that were read; `None` where the disk could not return one. Each is tried twice. Then the other
    /// replicas are asked for it.
    pub(super) fn was_read(&mut self, read: Vec<(Wanted, Option<Message>)>) -> Vec<Read> {
        let mut results = Vec::with_capacity(read.len());
        let mut again = Vec::new();
        for (wanted, message) in read {
            let Wanted { purpose, key, is_second_try } = wanted;
            let result = match message {
                Some(message) => ReadResult::Found(message),
                None if !self.is_needed(purpose) => ReadResult::NotNeeded,
                None if mutated(Mutation::StandStill) && matches!(purpose, Purpose::Delivery { .. }) => {
                    continue;
                }
                None if is_second_try && self.repairs() => {
                    self.read_from_others(Wanted { purpose, key, is_second_try })
                }
                None if is_second_try => ReadResult::Lost,
                None => {
                    again.push(Wanted { purpose, key, is_second_try: true });
                    ReadResult::Again
                }
            };
            results.push(Read { purpose, result });
        }
        if !again.is_empty() {
            self.read(again);
        }
        results
    }

    /// Returns whether a message is still needed. If not, the log may have freed its segment during the read.
    pub(super) fn is_needed(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Delivery { session, number } | Purpose::QueuePageRead { session, number, .. } => {
                let session = self.state.session(session);
                let entry = session.and_then(|session| session.entry(number));
                entry.is_some_and(|entry| matches!(entry.phase, Phase::Waiting | Phase::Pinned))
            }
            Purpose::Orphan { id } => self.state.orphan(id).is_some(),
        }
    }
}
