//! Walks over retained messages for subscriptions of durable sessions. The progress of each is part of the session, so
//! that it continues after a reconnect and after a restart of the node.
//!
//! A page goes into the queue of the session like any message, together with the progress of the walk. No page is
//! requested while the queue is half full, so that none exceeds its limits when the connection ends.

use mqtt::QoS;
use mqtt::RetainHandling;
use shard::{Command, MESSAGE_OFFSET_MAX, SessionUid, WalkStep};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput, Waiter};
use crate::ids::{ConnectionId, SessionId, Time};
use crate::retained;
use crate::route::Options;
use crate::store::{Completion, Enqueue, EnqueueForPage, WalkProgress, session_uid};

/// Maximum number of bytes of a command in addition to its texts and its message.
const COMMAND: usize = 256;

impl ShardHost {
    /// Starts the walks. The subscriptions of a SUBSCRIBE that are to get retained messages [MQTT-3.3.1-9]
    /// [MQTT-3.3.1-10] [MQTT-3.3.1-11] are remembered in the same batch.
    pub(super) fn begin_walks(&mut self, now: Time, id: SessionId, filters: &[(Box<str>, Options, u32)]) {
        let session = session_uid(id);
        for (filter, options, _) in filters {
            let step = match options.retain_handling() {
                RetainHandling::Send => WalkStep::Begin,
                RetainHandling::SendIfNew => WalkStep::BeginIfNew,
                RetainHandling::DoNotSend => continue,
            };
            if is_kept(filter, *options) {
                self.propose(now, &Command::Walk { session, filter, step }, Continuation::Nobody);
            }
        }
    }

    pub(super) fn end_walk(&mut self, now: Time, id: SessionId, filter: &str) {
        let command = Command::Walk { session: session_uid(id), filter, step: WalkStep::End };
        self.propose_later(now, &command, Continuation::Nobody);
    }

    /// Queues a page. The page and the progress of the walk are in one record: a crash keeps both or neither.
    pub(super) fn enqueue_page(
        &mut self,
        now: Time,
        id: SessionId,
        entries: Vec<Enqueue>,
        page: EnqueueForPage,
        out: &mut ShardOutput,
    ) {
        let EnqueueForPage { connection, filter, progress } = page;
        let session = session_uid(id);
        let step = match &progress {
            Some(WalkProgress { done, after }) => {
                WalkStep::At { done: *done, after: after.as_deref().unwrap_or_default() }
            }
            None => WalkStep::End,
        };
        let texts = filter.len()
            + progress.iter().filter_map(|it| it.after.as_ref()).map(|it| it.len()).sum::<usize>();
        // After the last message nothing has to begin.
        let before_last =
            entries.iter().rev().skip(1).map(|entry| entry.message.size() + COMMAND).sum::<usize>();
        self.replica.make_room_in_batch(texts + before_last + 4 * COMMAND, MESSAGE_OFFSET_MAX);
        let walk = Command::Walk { session, filter: &filter, step };
        self.propose(now, &walk, Continuation::Nobody);
        self.enqueue(now, id, entries, None, Some(Waiter::Page(session, connection)), out);
    }

    /// Reports room for a page, now or when there is some.
    pub(super) fn room_for_page(&mut self, uid: SessionUid, connection: ConnectionId, out: &mut ShardOutput) {
        if self.live.get(&uid).is_some_and(|live| live.connection == connection) {
            self.page_waits.insert(uid);
            self.look_for_room(uid, out);
        }
    }

    /// Checks for room after the queue of a session may have become shorter.
    #[inline]
    pub(super) fn look_for_room(&mut self, uid: SessionUid, out: &mut ShardOutput) {
        if self.page_waits.is_empty() || !self.page_waits.contains(&uid) {
            return;
        }
        let Some(live) = self.live.get(&uid) else { return };
        let Some(session) = self.replica.state().session(uid) else { return };
        let waiting = session.waiting();
        let queue = &self.settings.queue;
        let is_room = (waiting.end - waiting.start) * 2 <= u64::from(queue.messages_max)
            && session.waiting_bytes() * 2 <= queue.bytes_max.bytes();
        if is_room {
            self.page_waits.remove(&uid);
            out.complete(Completion::RoomForPage { connection: live.connection });
        }
    }
}

/// Returns whether a session keeps the progress of the retained messages for a subscription. At QoS 0 nothing is kept
/// for a session, and the broker's own messages are different ones after a restart.
pub(crate) fn is_kept(filter: &str, options: Options) -> bool {
    options.qos() > QoS::AtMostOnce && !filter.starts_with(retained::SYS) && !filter.starts_with("$share/")
}
