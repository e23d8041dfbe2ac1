//! A page of a queue for an operator. Messages that are not in memory are read from the disk before the answer.

use shard::Phase;

use super::ShardHost;
use crate::admin::{QueuePage, QueueState, Queued, Reply};
use crate::ids::{SessionId, Time};
use crate::message::Message;
use crate::store::log::{Purpose, Wanted};
use crate::store::session_uid;

/// A page that waits for messages.
pub(super) struct QueuePageRead {
    items: Vec<Option<Queued>>,
    states: Vec<(QueueState, Shown)>,
    outstanding: usize,
    truncated: bool,
    payload_max: usize,
    reply: Reply<Option<QueuePage>>,
}

/// Properties of a message that the queue knows without reading it.
#[derive(Clone, Copy)]
struct Shown {
    qos: mqtt::QoS,
    retain: bool,
}

/// Maximum number of pages that wait at one time; beyond it operators get pages without the messages on disk.
const PAGE_READS_MAX: usize = 64;

impl ShardHost {
    /// Messages of a session, first those in flight, then those that wait.
    pub(crate) fn read_queue_page(
        &mut self,
        now: Time,
        id: SessionId,
        limit: usize,
        payload_max: usize,
        reply: Reply<Option<QueuePage>>,
    ) {
        let uid = session_uid(id);
        let Some(session) = self.replica.state().session(uid) else { return reply(None) };
        let bodies = self.bodies_of(uid);
        let is_wanted = |phase| matches!(phase, Phase::Pinned | Phase::Waiting);
        let mut all = session.entries(session.open().start).filter(|(_, entry)| is_wanted(entry.phase));
        let (mut items, mut states, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for (n, entry) in all.by_ref().take(limit) {
            let state = if n < session.open().end {
                QueueState::Inflight
            } else if n >= session.within() {
                QueueState::Overflow
            } else {
                QueueState::Waiting
            };
            let shown = Shown { qos: entry.qos, retain: entry.retain };
            let message = bodies.and_then(|bodies| bodies.get(n));
            if message.is_none() {
                missing.push((items.len(), n, entry.key));
            }
            items.push(message.map(|message| queued(now, state, shown, message, payload_max)));
            states.push((state, shown));
        }
        let truncated = all.next().is_some();
        drop(all);
        let outstanding = missing.len();
        let page_read = QueuePageRead { items, states, outstanding, truncated, payload_max, reply };
        if outstanding == 0 || self.page_reads.len() >= PAGE_READS_MAX {
            return page_read.answer();
        }
        let ticket = self.page_reads.insert(page_read);
        let wanted = missing.into_iter().map(|(at, number, key)| {
            Wanted::new(Purpose::QueuePageRead { ticket, at, session: uid, number }, key)
        });
        self.replica.read(wanted.collect());
    }

    /// Records that one of the messages has been read.
    pub(super) fn message_read(&mut self, now: Time, ticket: usize, at: usize, message: Option<Message>) {
        let Some(page_read) = self.page_reads.get_mut(ticket) else { return };
        page_read.outstanding -= 1;
        if let (Some(message), Some((state, shown))) = (message, page_read.states.get(at).copied()) {
            page_read.items[at] = Some(queued(now, state, shown, &message, page_read.payload_max));
        }
        if page_read.outstanding == 0 {
            self.page_reads.remove(ticket).answer();
        }
    }
}

impl QueuePageRead {
    fn answer(self) {
        let Self { items, truncated, reply, .. } = self;
        reply(Some(QueuePage { items: items.into_iter().flatten().collect(), truncated }));
    }
}

/// A message of a queue, with up to `payload_max` bytes of its payload.
fn queued(now: Time, state: QueueState, shown: Shown, message: &Message, payload_max: usize) -> Queued {
    let view = message.view();
    Queued {
        state,
        topic: view.topic.into(),
        qos: shown.qos,
        retain: shown.retain,
        payload_bytes: view.payload.len(),
        age: now.since(view.received),
        expires_in: (view.expires != Time::NEVER).then(|| view.expires.since(now)),
        payload: view.payload[..view.payload.len().min(payload_max)].to_vec(),
    }
}
