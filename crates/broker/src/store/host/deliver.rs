//! Delivery from the queue of a session to its connection: as much as the window allows, in order, from memory or from
//! disk.

use mqtt::{PacketId, ReasonCode};
use shard::{Answer, Command, Phase, SessionUid};

use super::live::{Bodies, Live};
use super::propose::{Continuation, SkipReason};
use super::{ShardHost, ShardOutput, Waiter};
use crate::batch::{SessionDelivery, SubscriptionIds, Token};
use crate::groups::GroupRequest;
use crate::ids::{ConnectionId, SessionId, ShardSet, Time};
use crate::message::Message;
use crate::store::log::{Purpose, Wanted};
use crate::store::replica::{Read, ReadResult};
use crate::store::{Acknowledgement, Completion, GroupName, Identity, session_id, session_uid};

/// Maximum distance from the next message to send at which messages are kept in memory: those further back in the queue
/// would wait for long.
const AHEAD_MESSAGES: u64 = 1 << 16;
/// Maximum number of messages that are read from disk at one time for one session, and maximum number of their bytes.
const READ_AT_ONCE: usize = 128;
const READ_BYTES: u64 = 256 * 1024;

impl ShardHost {
    /// Handles a message that was queued for a session.
    pub(super) fn queued(&mut self, uid: SessionUid, n: u64, message: &Message, pinned: bool) {
        let little = self.memory.held.for_connected < self.memory.little;
        let share = self.load.queue_share(&self.settings);
        let in_flight_max = self.in_flight_bytes_max();
        match self.live.get_mut(&uid) {
            Some(live) => {
                if !pinned {
                    // An acknowledgement that opens the window may be in the open batch.
                    self.replica.hurry();
                } else if !std::mem::replace(&mut live.touched, true) {
                    self.touched.push(uid);
                }
                if !std::mem::replace(&mut live.backlogged, true) {
                    let id = session_id(self.id, uid);
                    self.backlog.push(id.slot, id.generation);
                }
                let is_near = n.saturating_sub(live.next) < AHEAD_MESSAGES;
                // The message is on disk anyway, and is read from there when the client has received the earlier ones.
                // A pinned message is kept beyond `ahead_bytes`, as far as it could be in flight at once: the window of
                // an action or bridge may have 1,024 large messages. So is any message while the total for clients of
                // this shard is small.
                let held = live.bodies.bytes();
                let is_kept = pinned && held < in_flight_max
                    || is_near && (little || held < self.replica.ahead_bytes().min(share));
                if !self.replica.has_log() || is_kept {
                    self.memory.held.for_connected += live.bodies.insert(n, message.clone());
                }
            }
            None if !self.replica.has_log() => {
                self.memory.held.for_absent +=
                    self.memory.absent.entry(uid).or_default().insert(n, message.clone());
            }
            None => {}
        }
    }

    /// Maximum number of bytes of a session that are in flight at a time. One message may be larger.
    fn in_flight_bytes_max(&self) -> u64 {
        // Without a log all messages are in memory, sent or not.
        let share = if self.replica.has_log() { self.load.queue_share(&self.settings) } else { u64::MAX };
        self.settings.queue.bytes_max.bytes().min(share)
    }

    /// Messages of the session that are in memory.
    pub(super) fn bodies_of(&self, uid: SessionUid) -> Option<&Bodies> {
        self.live.get(&uid).map(|live| &live.bodies).or_else(|| self.memory.absent.get(&uid))
    }

    pub(super) fn forget_body(&mut self, uid: SessionUid, n: u64) {
        if let Some(live) = self.live.get_mut(&uid) {
            self.memory.held.for_connected -= live.bodies.remove(n);
        } else if let Some(bodies) = self.memory.absent.get_mut(&uid) {
            self.memory.held.for_absent -= bodies.remove(n);
            if bodies.is_empty() {
                self.memory.absent.remove(&uid);
            }
        }
    }

    /// Records that a session has a connection.
    pub(super) fn session_connected(&mut self, uid: SessionUid, mut live: Live) {
        live.bodies = self.memory.absent.remove(&uid).unwrap_or_default();
        let bytes = live.bodies.bytes();
        self.memory.held.for_absent -= bytes;
        self.memory.held.for_connected += bytes;
        self.live.insert(uid, live);
        self.page_waits.remove(&uid);
    }

    /// Records that a session has no connection any more, if it had one.
    pub(super) fn session_disconnected(&mut self, uid: SessionUid) -> Option<Live> {
        let mut live = self.live.remove(&uid)?;
        self.page_waits.remove(&uid);
        let bodies = std::mem::take(&mut live.bodies);
        self.memory.held.for_connected -= bodies.bytes();
        if !self.replica.has_log() && !bodies.is_empty() {
            self.memory.held.for_absent += bodies.bytes();
            self.memory.absent.insert(uid, bodies);
        }
        Some(live)
    }

    /// Marks a session to which something may be sent.
    pub(super) fn touch(&mut self, uid: SessionUid) {
        if let Some(live) = self.live.get_mut(&uid)
            && !std::mem::replace(&mut live.touched, true)
        {
            self.touched.push(uid);
        }
    }

    pub(super) fn pump_touched(&mut self, now: Time, out: &mut ShardOutput) {
        while let Some(uid) = self.touched.pop() {
            self.pump(now, uid, out);
            self.look_for_room(uid, out);
        }
    }

    /// Sends as much as the window allows. Unfinished deliveries are sent again first.
    fn pump(&mut self, now: Time, uid: SessionUid, out: &mut ShardOutput) {
        let in_flight_max = self.in_flight_bytes_max();
        let shard_ms = self.replica.shard_time(now);
        let Some(live) = self.live.get_mut(&uid) else { return };
        live.touched = false;
        let Some(session) = self.replica.state().session(uid) else { return };
        let mut expired = Vec::new();
        let mut missing = None;
        live.next = live.next.max(session.open().start);
        while live.next < session.open().end {
            let n = live.next;
            let Some(entry) = session.entry(n) else {
                live.next += 1; // Finished.
                continue;
            };
            let packet_id = shard::packet_id(n);
            if entry.phase == Phase::Finished {
                live.next += 1;
                continue;
            }
            if entry.phase == Phase::Received {
                // PUBREL is not limited by the window (4.9).
                live.next += 1;
                live.releases.insert(n);
                out.deliver(live.connection, SessionDelivery::PubRel { packet_id });
                continue;
            }
            // Messages in flight always stay in memory, so their bytes are bounded too.
            let is_open = live.inflight < u32::from(live.window)
                && (live.inflight == 0 || live.inflight_bytes < in_flight_max);
            if !is_open {
                break;
            }
            if !entry.dup && entry.expires <= shard_ms && entry.expires != shard::NEVER {
                live.next += 1;
                expired.push(n);
                live.skipping.insert(n);
                continue;
            }
            if live.skipping.contains(&n) {
                live.next += 1;
                continue;
            }
            if live.waits_for_skip(n) {
                break;
            }
            let Some(message) = live.bodies.get(n).cloned() else {
                missing = Some(n);
                break;
            };
            live.sent(message.size() as u64);
            let delivery = SessionDelivery::Publish {
                packet_id,
                qos: entry.qos,
                dup: entry.dup,
                retain: entry.retain,
                message,
                subscription_ids: SubscriptionIds::of(entry.ids),
            };
            out.deliver(live.connection, delivery);
        }
        let mut wanted = Vec::new();
        if let Some(first) = missing
            && !live.reading
        {
            let room = usize::from(live.window).min(READ_AT_ONCE);
            let mut bytes = 0;
            for n in first..session.open().end {
                if wanted.len() >= room || bytes >= READ_BYTES {
                    break;
                }
                let Some(entry) = session.entry(n) else { continue };
                let is_there = live.bodies.get(n).is_some() || live.skipping.contains(&n);
                if entry.phase != Phase::Pinned || is_there {
                    continue;
                }
                bytes += entry.size;
                wanted.push(Wanted::new(Purpose::Delivery { session: uid, number: n }, entry.key));
            }
            live.reading = !wanted.is_empty();
        }
        let epoch = live.epoch;
        for n in expired {
            self.skip(now, (uid, n), epoch, SkipReason::Expired);
        }
        if !wanted.is_empty() {
            self.replica.read(wanted);
        }
    }

    fn skip(&mut self, now: Time, (uid, n): (SessionUid, u64), epoch: u32, reason: SkipReason) {
        let (packet_id, kind) = (shard::packet_id(n), shard::Acknowledgement::Skip);
        let command = Command::Acknowledge { session: uid, epoch, packet_id, kind };
        self.propose(now, &command, Continuation::Skip { session: uid, n, epoch, reason });
    }

    /// Continues with the deliveries after one that was skipped, or that was acknowledged meanwhile.
    pub(super) fn skipped(
        &mut self,
        (uid, n): (SessionUid, u64),
        epoch: u32,
        reason: SkipReason,
        answer: &Answer,
    ) {
        if matches!(answer, Answer::Finished { .. }) {
            self.counters.dropped_expired += u64::from(reason == SkipReason::Expired);
            self.forget_body(uid, n);
        }
        if let Some(live) = self.live.get_mut(&uid).filter(|live| live.epoch == epoch) {
            live.skipping.remove(&n);
            self.touch(uid);
        }
    }

    /// Handles the results of a read. A message that cannot be read is lost, and the messages after it are delivered.
    pub(super) fn was_read(&mut self, now: Time, read: Vec<Read>, out: &mut ShardOutput) {
        let mut again = Vec::new();
        for Read { purpose, result } in read {
            self.counters.read_errors += u64::from(matches!(result, ReadResult::Lost));
            match (purpose, result) {
                (Purpose::Delivery { session, .. }, ReadResult::Again) => again.push(session),
                (_, ReadResult::Again) => {}
                (Purpose::Delivery { session: uid, number }, result) => {
                    let Some(live) = self.live.get_mut(&uid) else { continue };
                    live.reading = false;
                    let epoch = live.epoch;
                    match result {
                        ReadResult::Found(message) => self.keep_if_wanted(uid, number, message),
                        ReadResult::Lost => {
                            live.skipping.insert(number);
                            self.skip(now, (uid, number), epoch, SkipReason::Unreadable);
                        }
                        ReadResult::NotNeeded | ReadResult::Again => {}
                    }
                    self.touch(uid);
                }
                (Purpose::Orphan { id }, ReadResult::Found(message)) => {
                    self.redeliver_orphan(id, message, out)
                }
                (Purpose::Orphan { id }, ReadResult::Lost) => self.orphan_done(now, id, ShardSet::EMPTY),
                (Purpose::Orphan { .. }, ReadResult::NotNeeded) => {}
                (Purpose::QueuePageRead { ticket, at, .. }, result) => {
                    let message = if let ReadResult::Found(message) = result { Some(message) } else { None };
                    self.message_read(now, ticket, at, message);
                }
            }
        }
        for session in again {
            if let Some(live) = self.live.get_mut(&session) {
                live.reading = true;
            }
        }
        self.pump_touched(now, out);
    }

    fn keep_if_wanted(&mut self, uid: SessionUid, n: u64, message: Message) {
        let wanted = self.replica.state().session(uid).is_some_and(|session| session.entry(n).is_some());
        if let Some(live) = self.live.get_mut(&uid).filter(|_| wanted) {
            self.memory.held.for_connected += live.bodies.insert(n, message);
        }
    }

    /// Handles a message that a member of a shared group left unfinished: it is in memory still, or on disk.
    pub(super) fn orphaned(
        &mut self,
        (uid, n): (SessionUid, u64),
        id: u64,
        key: shard::MessageKey,
        out: &mut ShardOutput,
    ) {
        match self.bodies_of(uid).and_then(|bodies| bodies.get(n)).cloned() {
            Some(message) => self.redeliver_orphan(id, message, out),
            None => self.replica.read(vec![Wanted::new(Purpose::Orphan { id }, key)]),
        }
    }

    fn redeliver_orphan(&mut self, id: u64, message: Message, out: &mut ShardOutput) {
        let Some(orphan) = self.replica.state().orphan(id) else { return };
        let Some(name) = GroupName::parse(orphan.group) else { return };
        let key = self.appends.insert(Waiter::Orphan { id, receivers: Box::default() });
        let identity = Identity::of_orphan(self.id, id);
        let token = Some(Token::Append { shard: self.id, key });
        let shard = name.shard();
        let deliver = GroupRequest::DeliverOrphan { group: Box::new(name), message, identity, token };
        out.group_requests.push((shard, deliver));
    }

    pub(super) fn acknowledge(
        &mut self,
        now: Time,
        id: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
        out: &mut ShardOutput,
    ) {
        let uid = session_uid(id);
        let Some(live) = self.live.get_mut(&uid).filter(|live| live.connection == connection) else { return };
        let Some(session) = self.replica.state().session(uid) else { return };
        // A message that was never sent cannot be acknowledged; a previous connection may have sent it.
        let was_sent = |n| n < live.next || session.entry(n).is_some_and(|entry| entry.dup);
        let is_sent = session.number(packet_id).is_some_and(was_sent);
        let (command, epoch) = (shard_kind(kind), live.epoch);
        live.acknowledged = now;
        if !is_sent {
            return self.acknowledged((uid, epoch), connection, packet_id, kind, &Answer::Unknown, out);
        }
        let command = Command::Acknowledge { session: uid, epoch, packet_id, kind: command };
        let continuation = Continuation::Acknowledge { session: uid, epoch, connection, packet_id, kind };
        // PUBREL waits for PUBREC, and messages in the queue wait for their turn.
        if kind == (Acknowledgement::PubRec { refused: false }) || !session.waiting().is_empty() {
            self.propose(now, &command, continuation);
        } else {
            self.propose_later(now, &command, continuation);
        }
    }

    pub(super) fn acknowledged(
        &mut self,
        (uid, epoch): (SessionUid, u32),
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
        answer: &Answer,
        out: &mut ShardOutput,
    ) {
        let finished = match answer {
            Answer::Finished { n } => Some((*n, true)),
            Answer::Release { n, .. } => {
                let reason = ReasonCode::Success;
                out.complete(Completion::Release { connection, packet_id, reason });
                Some((*n, false))
            }
            Answer::Unknown if kind == (Acknowledgement::PubRec { refused: false }) => {
                let reason = ReasonCode::PacketIdentifierNotFound;
                out.complete(Completion::Release { connection, packet_id, reason });
                None
            }
            Answer::WrongKind => {
                out.complete(Completion::WrongAcknowledgement { connection });
                None
            }
            _ => None,
        };
        let Some((n, is_finished)) = finished else { return };
        let Some(live) = self.live.get_mut(&uid) else { return self.forget_body(uid, n) };
        let size = live.bodies.remove(n);
        self.memory.held.for_connected -= size;
        // The worker of the connection may have begun another round, with another number for the connection.
        if live.epoch != epoch {
            return;
        }
        live.inflight_bytes -= size.min(live.inflight_bytes);
        if is_finished {
            live.finished(n);
        }
        if !std::mem::replace(&mut live.touched, true) {
            self.touched.push(uid);
        }
    }
}

fn shard_kind(kind: Acknowledgement) -> shard::Acknowledgement {
    match kind {
        Acknowledgement::PubAck => shard::Acknowledgement::PubAck,
        Acknowledgement::PubRec { refused: false } => shard::Acknowledgement::PubRec,
        Acknowledgement::PubRec { refused: true } => shard::Acknowledgement::PubRecRefused,
        Acknowledgement::PubComp => shard::Acknowledgement::PubComp,
    }
}
