//! Messages that the rule for full queues has dropped or refused, logged once for each session.

use std::collections::HashMap;

use foldhash::quality::FixedState;
use shard::SessionUid;

use super::ShardHost;
use crate::ids::Time;
use crate::settings::QueueFull;

/// Messages dropped since the client was last connected, by session.
#[derive(Debug)]
pub(super) struct Drops {
    by_session: HashMap<SessionUid, u64, FixedState>,
    /// Messages dropped or expired since this node leads the shard, by session.
    totals: HashMap<SessionUid, u64, FixedState>,
    minute: u64,
    /// Lines in this minute, and sessions that got none.
    lines: u32,
    unsaid: u64,
}

/// Maximum number of lines of one shard in a minute: there may be very many sessions.
const LINES_MAX: u32 = 10;

impl Drops {
    pub fn new(hasher: FixedState) -> Self {
        let by_session = HashMap::with_hasher(hasher.clone());
        Self { by_session, totals: HashMap::with_hasher(hasher), minute: 0, lines: 0, unsaid: 0 }
    }

    /// Counts messages of a session that were dropped or have expired.
    pub fn add(&mut self, session: SessionUid, count: u64) {
        *self.totals.entry(session).or_insert(0) += count;
    }

    /// Number of messages of a session that were dropped or have expired since this node leads the shard.
    pub fn total(&self, session: SessionUid) -> u64 {
        self.totals.get(&session).copied().unwrap_or(0)
    }

    /// Forgets a session that has ended.
    pub fn forget(&mut self, session: SessionUid) {
        self.totals.remove(&session);
    }

    /// Takes one line of this minute. Returns how many sessions had none before it, or `None` when no line is left.
    fn line(&mut self, now: Time) -> Option<u64> {
        let minute = now.0 / 60_000;
        if minute != self.minute {
            (self.minute, self.lines) = (minute, 0);
        }
        if self.lines >= LINES_MAX {
            self.unsaid += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl ShardHost {
    pub(super) fn note_dropped(&mut self, now: Time, uid: SessionUid, count: u64) {
        let dropped = self.drops.by_session.entry(uid).or_insert(0);
        *dropped += count;
        if *dropped > count {
            return;
        }
        let Some(unsaid) = self.drops.line(now) else { return };
        let session = self.replica.state().session(uid);
        let client = session.map(|session| session.client_id()).unwrap_or_default();
        let own = session.and_then(|session| session.queue_limits()).map(|limits| limits.full);
        let common = || match self.settings.queue.full {
            QueueFull::DropOldest => shard::QueueFull::DropOldest,
            QueueFull::DropNewest => shard::QueueFull::DropNewest,
        };
        match own.unwrap_or_else(common) {
            shard::QueueFull::DropOldest => {
                tracing::warn!(
                    client,
                    unsaid,
                    "queue of a session is full; dropping the oldest messages for its client"
                );
            }
            shard::QueueFull::DropNewest => {
                tracing::warn!(
                    client,
                    unsaid,
                    "queue of a session is full; dropping the newest messages for its client"
                );
            }
            shard::QueueFull::Refuse => {
                tracing::warn!(
                    client,
                    unsaid,
                    "queue of a session is full; refusing messages for its client"
                );
            }
        }
    }

    /// Logs the drops of a session whose client is back, or which has ended.
    pub(super) fn log_drops(&mut self, now: Time, uid: SessionUid, client: &str) {
        let Some(dropped) = self.drops.by_session.remove(&uid) else { return };
        let Some(unsaid) = self.drops.line(now) else { return };
        tracing::warn!(
            client,
            dropped,
            unsaid,
            "messages for a client were dropped or refused: the queue of its session was full"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_minute_are_bounded_and_the_next_one_counts_the_omitted_ones() {
        let mut drops = Drops::new(FixedState::with_seed(1));
        let lines: Vec<_> = (0..12).map(|_| drops.line(Time(1000))).collect();
        assert!(lines[..10].iter().all(|line| *line == Some(0)));
        assert_eq!(lines[10..], [None, None]);
        assert_eq!(drops.line(Time(60_000)), Some(2));
        assert_eq!(drops.line(Time(60_000)), Some(0));
    }
}
