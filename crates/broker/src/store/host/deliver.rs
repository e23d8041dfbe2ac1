//! From the queue of a session to its connection: what the window allows, in order, from memory or from disk.

use mqtt::{PacketId, ReasonCode};
use shard::{Answer, Command, Phase, SessionUid};

use super::live::{Bodies, Live};
use super::propose::Asked;
use super::{ShardHost, ShardOutput};
use crate::ids::{ConnectionId, SessionId, Time};
use crate::mail::{SessionDelivery, SubscriptionIds, Token};
use crate::message::Message;
use crate::store::log::{Purpose, Wanted};
use crate::store::{Acknowledgement, Completion, GroupName, Request, session_uid};

/// Bytes of one session's messages that are kept in memory although they lie on disk, for when their turn comes. What is pinned is
/// kept beyond that.
const AHEAD_BYTES: u64 = 256 * 1024;
/// Messages that are read from disk at one time for one session.
const READ_AT_ONCE: usize = 128;

impl ShardHost {
    /// A message has its place in a session's queue.
    pub(super) fn queued(&mut self, uid: SessionUid, n: u64, message: Message, pinned: bool) {
        let is_live = self.live.contains_key(&uid);
        if pinned {
            self.touched.push(uid);
        }
        if is_live {
            self.note_backlog(uid);
        }
        let ahead = self.bodies.get(&uid).map_or(0, Bodies::bytes);
        // On disk it is anyway.
        if self.log.is_none() || is_live && (pinned || ahead < AHEAD_BYTES) {
            self.keep_body(uid, n, message);
        }
    }

    fn keep_body(&mut self, uid: SessionUid, n: u64, message: Message) {
        let bodies = self.bodies.entry(uid).or_default();
        let before = bodies.bytes();
        bodies.insert(n, message);
        let more = bodies.bytes() - before;
        *self.held_of(uid) += more;
    }

    pub(super) fn forget_body(&mut self, uid: SessionUid, n: u64) -> u64 {
        let Some(bodies) = self.bodies.get_mut(&uid) else { return 0 };
        let size = bodies.remove(n).map_or(0, |message| message.size() as u64);
        if bodies.is_empty() {
            self.bodies.remove(&uid);
        }
        *self.held_of(uid) -= size;
        size
    }

    fn held_of(&mut self, uid: SessionUid) -> &mut u64 {
        if self.live.contains_key(&uid) { &mut self.held.for_connected } else { &mut self.held.for_absent }
    }

    /// A session has a connection.
    pub(super) fn goes_live(&mut self, uid: SessionUid, live: Live) {
        let bytes = self.bodies.get(&uid).map_or(0, Bodies::bytes);
        self.held.for_absent -= bytes;
        self.held.for_connected += bytes;
        self.live.insert(uid, live);
    }

    /// A session has no connection any more, if it had one.
    pub(super) fn goes_away(&mut self, uid: SessionUid) -> Option<Live> {
        let live = self.live.remove(&uid)?;
        let bytes = self.bodies.get(&uid).map_or(0, Bodies::bytes);
        self.held.for_connected -= bytes;
        if self.log.is_some() {
            self.bodies.remove(&uid);
        } else {
            self.held.for_absent += bytes;
        }
        Some(live)
    }

    pub(super) fn pump_touched(&mut self, now: Time, out: &mut ShardOutput) {
        while let Some(uid) = self.touched.pop() {
            self.pump(now, uid, out);
        }
    }

    /// Sends what the window allows, first again what is unfinished.
    fn pump(&mut self, now: Time, uid: SessionUid, out: &mut ShardOutput) {
        let Some(live) = self.live.get_mut(&uid) else { return };
        let Some(session) = self.state.session(uid) else { return };
        let bytes_max = self.settings.queue.bytes_max.bytes();
        let mut skipped = Vec::new();
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
                // Not held back by the window (4.9).
                live.next += 1;
                live.releases.insert(n);
                out.deliver(live.connection, SessionDelivery::PubRel { packet_id });
                continue;
            }
            // What is in flight is kept whatever happens, so it is bounded in bytes too.
            let is_open = live.inflight < u32::from(live.window)
                && (live.inflight == 0 || live.inflight_bytes < bytes_max);
            if !is_open {
                break;
            }
            if !entry.dup && entry.expires <= now.0 && entry.expires != shard::NEVER {
                live.next += 1;
                skipped.push(packet_id);
                continue;
            }
            let Some(message) = self.bodies.get(&uid).and_then(|bodies| bodies.get(n)) else {
                missing = Some(n);
                break;
            };
            live.sent(message.size() as u64);
            let delivery = SessionDelivery::Publish {
                packet_id,
                qos: entry.qos,
                dup: entry.dup,
                retain: entry.retain,
                message: message.clone(),
                subscription_ids: SubscriptionIds::of(entry.ids),
            };
            out.deliver(live.connection, delivery);
        }
        let epoch = live.epoch;
        let mut wanted = Vec::new();
        if let Some(first) = missing
            && !std::mem::replace(&mut live.reading, true)
        {
            let room = usize::from(live.window).min(READ_AT_ONCE);
            let held = self.bodies.get(&uid);
            let mut bytes = 0;
            for n in first..session.open().end {
                if wanted.len() >= room || bytes >= AHEAD_BYTES {
                    break;
                }
                let Some(entry) = session.entry(n) else { continue };
                if entry.phase != Phase::Pinned || held.is_some_and(|held| held.get(n).is_some()) {
                    continue;
                }
                bytes += entry.size;
                let purpose = Purpose::Delivery { session: uid, number: n };
                wanted.push(Wanted { purpose, key: entry.key });
            }
        }
        for packet_id in skipped {
            let kind = shard::Acknowledgement::Skip;
            let command = Command::Acknowledge { session: uid, epoch, packet_id, kind };
            self.propose(now, &command, Asked::Skip { session: uid });
        }
        if !wanted.is_empty() {
            self.read(wanted);
        }
    }

    pub(super) fn read(&self, wanted: Vec<Wanted>) {
        match &self.log {
            Some(log) => log.read(self.id, wanted),
            None => debug_assert!(false, "without a log every message is in memory"),
        }
    }

    /// Messages have been read; `None` where the disk could not give one.
    pub(super) fn was_read(
        &mut self,
        now: Time,
        read: Vec<(Wanted, Option<Message>)>,
        out: &mut ShardOutput,
    ) {
        for (Wanted { purpose, key }, message) in read {
            if message.is_none() {
                self.counters.read_errors += 1;
            }
            match purpose {
                Purpose::Delivery { session: uid, number } => {
                    let Some(live) = self.live.get_mut(&uid) else { continue };
                    live.reading = false;
                    let epoch = live.epoch;
                    match message {
                        Some(message) => self.keep_if_wanted(uid, number, message),
                        None => {
                            let packet_id = shard::packet_id(number);
                            let kind = shard::Acknowledgement::Skip;
                            let command = Command::Acknowledge { session: uid, epoch, packet_id, kind };
                            self.propose(now, &command, Asked::Skip { session: uid });
                        }
                    }
                    self.touched.push(uid);
                }
                Purpose::Orphan { id } => self.give_orphan(id, message, out),
                Purpose::Look { ticket, at } => self.looked(now, ticket, at, message),
                Purpose::Rewrite => self.rewrite(now, key, message),
            }
        }
        self.pump_touched(now, out);
    }

    fn keep_if_wanted(&mut self, uid: SessionUid, n: u64, message: Message) {
        let wanted = self.state.session(uid).is_some_and(|session| session.entry(n).is_some());
        if wanted {
            self.keep_body(uid, n, message);
        }
    }

    /// A message that a member of a shared group left behind: in memory still, or on disk.
    pub(super) fn orphaned(
        &mut self,
        (uid, n): (SessionUid, u64),
        id: u64,
        key: shard::MessageKey,
        out: &mut ShardOutput,
    ) {
        match self.bodies.get(&uid).and_then(|bodies| bodies.get(n)).cloned() {
            Some(message) => self.give_orphan(id, Some(message), out),
            None => self.read(vec![Wanted { purpose: Purpose::Orphan { id }, key }]),
        }
    }

    fn give_orphan(&mut self, id: u64, message: Option<Message>, out: &mut ShardOutput) {
        let Some(orphan) = self.state.orphan(id) else { return };
        let (Some(message), Some(name)) = (message, GroupName::parse(orphan.group)) else { return };
        let key = self.new_append(super::Waiter::Orphan(id));
        let token = Some(Token::Append { shard: self.id, key });
        out.requests.push((name.shard(), Request::GiveOrphan { group: Box::new(name), message, token }));
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
        let Some(live) = self.live.get(&uid).filter(|live| live.connection == connection) else { return };
        let Some(session) = self.state.session(uid) else { return };
        // What was never sent cannot be acknowledged; an earlier connection may have sent it.
        let was_sent = |n| n < live.next || session.entry(n).is_some_and(|entry| entry.dup);
        let is_sent = session.number(packet_id).is_some_and(was_sent);
        let command = shard_kind(kind);
        if !is_sent {
            return self.acknowledged(uid, connection, packet_id, kind, &Answer::Unknown, out);
        }
        let command = Command::Acknowledge { session: uid, epoch: live.epoch, packet_id, kind: command };
        let asked = Asked::Acknowledge { session: uid, connection, packet_id, kind };
        self.propose(now, &command, asked);
    }

    pub(super) fn acknowledged(
        &mut self,
        uid: SessionUid,
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
            _ => None,
        };
        let Some((n, is_finished)) = finished else { return };
        let size = self.forget_body(uid, n);
        if let Some(live) = self.live.get_mut(&uid).filter(|live| live.connection == connection) {
            live.inflight_bytes -= size.min(live.inflight_bytes);
            if is_finished {
                live.finished(n);
            }
            self.touched.push(uid);
        }
    }

    /// Something may wait for a session that is connected.
    fn note_backlog(&mut self, uid: SessionUid) {
        if let Some(live) = self.live.get_mut(&uid)
            && !std::mem::replace(&mut live.backlogged, true)
        {
            let id = super::super::session_id(self.id, uid);
            self.backlog.push(id.slot, id.generation);
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
