//! Messages that are read back from the log.

use shard::{MessageKey, Mutation, Phase, mutated};

use super::Replica;
use crate::ids::Time;
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
    /// The disk could not return the message, and it is read again.
    Again,
    /// The disk failed twice to return the message from the same position: it is lost.
    Lost,
    /// The disk could not return the message, and nothing needs it any more.
    NotNeeded,
}

impl Replica {
    /// Requests messages from the log.
    pub fn read(&self, wanted: Vec<Wanted>) {
        match &self.log {
            Some(log) => log.read(self.id, wanted),
            None => debug_assert!(false, "without a log every message is in memory"),
        }
    }

    /// Handles messages that were read; `None` where the disk could not return one. Each is tried twice at the same
    /// position.
    pub(super) fn was_read(&mut self, now: Time, read: Vec<(Wanted, Option<Message>)>) -> Vec<Read> {
        let mut results = Vec::with_capacity(read.len());
        let mut again = Vec::new();
        for (wanted, message) in read {
            let Wanted { purpose, key, is_second_try } = wanted;
            let result = match message {
                Some(message) if purpose == Purpose::Rewrite => {
                    self.rewrite(now, key, Some(message));
                    continue;
                }
                Some(message) => ReadResult::Found(message),
                None => match self.current_key(purpose, key) {
                    None => ReadResult::NotNeeded,
                    Some(_)
                        if mutated(Mutation::StandStill) && matches!(purpose, Purpose::Delivery { .. }) =>
                    {
                        continue;
                    }
                    Some(current) => {
                        let has_moved = current != key && !mutated(Mutation::ReadWhereItWas);
                        if has_moved || !is_second_try {
                            let key = if has_moved { current } else { key };
                            again.push(Wanted { purpose, key, is_second_try: !has_moved });
                            ReadResult::Again
                        } else {
                            if purpose == Purpose::Rewrite {
                                self.rewrite(now, key, None);
                            }
                            ReadResult::Lost
                        }
                    }
                },
            };
            results.push(Read { purpose, result });
        }
        if !again.is_empty() {
            self.read(again);
        }
        results
    }

    /// Current key of a message that was read at `key`; `None` when nothing needs it any more. The log may have freed
    /// its segment during the read, after the message was written again elsewhere.
    fn current_key(&self, purpose: Purpose, key: MessageKey) -> Option<MessageKey> {
        match purpose {
            Purpose::Delivery { session, number } | Purpose::QueuePageRead { session, number, .. } => {
                let entry = self.state.session(session)?.entry(number)?;
                matches!(entry.phase, Phase::Waiting | Phase::Pinned).then_some(entry.key)
            }
            Purpose::Orphan { id } => Some(self.state.orphan(id)?.key),
            Purpose::Rewrite => Some(key),
        }
    }
}
