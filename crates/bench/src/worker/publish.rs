//! Sending, pacing and acknowledgements of messages.

use super::*;
use crate::codec;
use crate::config::LatencyFrom;
use crate::counters::Phase;
use crate::latency::record;
use crate::net;
use crate::pace::Pace;
use crate::plain::{Attempt, Sender, Stamp};
use crate::random::Random;
use crate::tag::{self, Tag};

/// Maximum number of messages in a publisher's ring: fewer than there are Packet Identifiers.
const RING_MAX: usize = 65000;

impl Driver {
    /// Retransmits unacknowledged messages that were sent before `sent_before`.
    pub(super) fn retransmit(&mut self, c: &mut Connection, session: SessionState, sent_before: u64) {
        let cfg = self.cfg.clone();
        let id = c.id;
        let Role::Pub(_) = &c.role else { return };
        let mut b = std::mem::take(self.sockets.out(c));
        let clocks = self.wall_offset;
        let Role::Pub(p) = &mut c.role else { return };
        let mut pid = p.front_pid;
        for e in p.ring.iter_mut() {
            match e.state {
                _ if e.sent >= sent_before => {}
                EntryState::WaitAck => {
                    self.tally.counts.resent += 1;
                    let attempt = Attempt { pid, dup: session == SessionState::Kept };
                    match &cfg.plain {
                        None => {
                            let tag = Tag { publisher: id, seq: e.seq, at: e.ts };
                            encode(&mut b, &cfg, &p.head, &self.sending.pattern, attempt, tag)
                        }
                        Some(plain) => {
                            let at = Stamp { seq: e.seq, wall: e.ts.wrapping_add(clocks) };
                            let sender = Sender { id, head: &p.head };
                            plain.encode(&mut b, &cfg, sender, attempt, at)
                        }
                    }
                }
                EntryState::WaitComp if session == SessionState::Kept => {
                    self.tally.counts.pubrel_resent += 1;
                    codec::ack(&mut b, codec::PUBREL, pid);
                }
                EntryState::WaitComp => {
                    // The broker accepted the message, then lost the session: nothing to send.
                    e.state = EntryState::Done;
                    p.inflight -= 1;
                    self.tally.counts.unacked -= 1;
                    p.rec_only.push(e.seq);
                }
                _ => {}
            }
            pid = next_pid(pid);
        }
        p.drop_done();
        c.wbuf = b;
    }

    /// Handles --retry-interval: retransmits messages that waited that long, once in each interval, when all earlier
    /// bytes have been sent.
    pub(super) fn retry(&mut self, c: &mut Connection) {
        let (now, interval) = (self.now, self.cfg.sending.retry_ns);
        let Role::Pub(p) = &mut c.role else { return };
        let due = p.inflight > 0 && now >= p.retry_at && c.wbuf.is_empty();
        if interval == 0 || c.st != Stage::Ready || !due {
            return;
        }
        p.retry_at = now + interval;
        self.retransmit(c, SessionState::Kept, now.saturating_sub(interval));
    }

    pub(super) fn on_ack(&mut self, c: &mut Connection, kind: u8, pid: u16, reason: u8) {
        let now = self.now;
        if kind == codec::PUBREL {
            self.tally.counts.pubrel_unknown += u64::from(!c.role.received().remove(pid));
            codec::ack(self.sockets.out(c), codec::PUBCOMP, pid);
            return;
        }
        let Role::Pub(p) = &mut c.role else {
            self.tally.counts.bad_acks += 1;
            return;
        };
        let i = p.index_of(pid);
        let Some(e) = p.ring.get_mut(i) else {
            self.tally.counts.bad_acks += 1;
            return;
        };
        let q = self.cfg.traffic.pub_qos;
        match (kind, e.state) {
            (codec::PUBACK, EntryState::WaitAck) if q == 1 => {}
            (codec::PUBCOMP, EntryState::WaitComp) => {}
            (codec::PUBREC, EntryState::WaitAck) if q == 2 => {
                if reason < 0x80 {
                    if reason == 0x10 {
                        self.tally.counts.no_subscribers += 1;
                    }
                    e.state = EntryState::WaitComp;
                    codec::ack(self.sockets.out(c), codec::PUBREL, pid);
                    return;
                }
            }
            (codec::PUBREC, EntryState::WaitComp) => {
                codec::ack(self.sockets.out(c), codec::PUBREL, pid);
                return;
            }
            _ => {
                self.tally.counts.bad_acks += 1;
                return;
            }
        }
        e.state = EntryState::Done;
        p.inflight -= 1;
        self.tally.counts.unacked -= 1;
        self.tally.last_ack = now;
        if kind != codec::PUBCOMP && reason >= 0x80 {
            self.tally.counts.rejected += 1;
            if self.cfg.plain.is_none() {
                p.rejected.push(e.seq);
            }
            self.tally.count_reason(format!("publish refused: {}", codec::reason_name(reason)));
        } else {
            if reason == 0x10 {
                self.tally.counts.no_subscribers += 1;
            }
            if reason >= 0x80 {
                self.tally.count_reason(format!("PUBCOMP: {}", codec::reason_name(reason)));
            }
            self.tally.counts.acked += 1;
            if self.window.contains(e.sent) {
                record(&mut self.tally.pulse.ack, now - e.sent);
            }
        }
        if i > 0 {
            self.tally.counts.acks_out_of_order += 1;
        }
        p.drop_done();
    }

    pub(super) fn try_send(&mut self, c: &mut Connection) {
        if self.phase != Phase::Run {
            return;
        }
        let cfg = &*self.cfg;
        let q = cfg.traffic.pub_qos;
        let pend = c.wbuf.len() - c.wpos;
        if c.st != Stage::Ready || c.blocked || pend >= cfg.sending.chunk {
            return; // `flush` queues it again.
        }
        let Role::Pub(p) = &c.role else { return };
        if p.sent >= p.due || p.window_is_full(q) {
            return;
        }
        let mut room = u64::MAX;
        if cfg.sending.max_outstanding > 0 {
            // Parked publishers continue together once an eighth of the bound is free, for larger writes.
            room = self.sending.room;
            if room == 0 {
                if let Role::Pub(p) = &mut c.role
                    && !p.parked
                {
                    p.parked = true;
                    self.sending.parked.push(c.slot);
                }
                return;
            }
            room = room.min((cfg.sending.max_outstanding / 8 / self.sending.lanes).max(1));
        }
        let now = net::now();
        if now >= self.window.w1.saturating_add(self.sending.grace) {
            return; // The end of the measured time.
        }
        let id = c.id;
        let mut b = std::mem::take(self.sockets.out(c));
        let Role::Pub(p) = &mut c.role else { return };
        let n = self.sending.lanes;
        while p.sent < p.due && b.len() < cfg.sending.chunk && room > 0 {
            if p.window_is_full(q) || p.ring.len() >= RING_MAX {
                break;
            }
            let seq = p.sent;
            let mut ts = now;
            if cfg.sending.rate > 0.0 {
                let due = self.window.t0 + ((p.lane + seq * n) as f64 * self.sending.ns_per_msg) as u64;
                let due = due.min(now);
                if self.window.contains(now) {
                    record(&mut self.tally.hists.lag, now - due);
                }
                if cfg.checks.latency_from == LatencyFrom::Due {
                    ts = due;
                }
            }
            if let Some(due) = cfg.plain.as_ref().and_then(|plain| p.due_at(&plain.pace, self.window.t0)) {
                ts = due.min(now);
                record(&mut self.tally.hists.lag, now - ts);
            }
            let mut pid = 0;
            if q > 0 {
                pid = p.push_entry(Entry { seq, ts, sent: now, state: EntryState::WaitAck });
                self.tally.counts.unacked += 1;
            }
            let attempt = Attempt { pid, dup: false };
            match &cfg.plain {
                None => {
                    let tag = Tag { publisher: id, seq, at: ts };
                    encode(&mut b, cfg, &p.head, &self.sending.pattern, attempt, tag)
                }
                Some(plain) => {
                    let at = Stamp { seq, wall: ts.wrapping_add(self.wall_offset) };
                    let sender = Sender { id, head: &p.head };
                    plain.encode(&mut b, cfg, sender, attempt, at)
                }
            }
            p.sent += 1;
            if let Some(plain) = &cfg.plain
                && let Pace::Think(least, most) = plain.pace
            {
                p.think(least, most, &mut Random::of([plain.seed, !(id as u64), seq]), now);
            }
            self.tally.counts.sent += 1;
            self.tally.counts.expected += p.fan;
            room = room.saturating_sub(p.fan);
            if cfg.sending.max_outstanding > 0 {
                self.sending.room = self.sending.room.saturating_sub(p.fan);
            }
        }
        if p.sent == p.due
            && p.due < p.quota
            && cfg.plain.as_ref().is_some_and(|p| matches!(p.pace, Pace::Think(..)))
        {
            p.arm(p.first, c.slot, &mut self.timers.messages);
        }
        self.tally.last_send = now;
        c.wbuf = b;
    }

    /// Handles --max-outstanding: computes how many deliveries may be started now.
    pub(super) fn make_room(&mut self) {
        let max = self.cfg.sending.max_outstanding;
        let (e, r) = if self.cfg.threads.count == 1 {
            (self.tally.counts.expected, self.tally.counts.uniq)
        } else {
            self.shared.counts[self.index].store(&self.tally.counts);
            let c = self.shared.sum();
            (c.expected, c.uniq)
        };
        let open = e.saturating_sub(r);
        let mut room = max.saturating_sub(open.saturating_sub(self.sending.written_off));
        if room == 0 && self.now > self.tally.last_recv.max(self.tally.last_send) + 300_000_000 {
            // Without progress for a while, the outstanding messages are lost.
            self.sending.written_off = open;
            room = max;
        }
        self.sending.room = if room >= (max / 8).max(1) { room } else { 0 };
    }
}

#[inline]
fn encode(b: &mut Vec<u8>, cfg: &Config, head: &[u8], pattern: &[u8], attempt: Attempt, tag: Tag) {
    let payload = cfg.traffic.payload;
    b.reserve(head.len() + 4 + payload);
    let flags = if attempt.dup { codec::DUP } else { 0 };
    codec::publish_start(b, cfg.properties(), cfg.traffic.pub_qos, flags, head, attempt.pid);
    tag.write(cfg.tag(), payload, b);
    let o = (tag.seq & 255) as usize;
    b.extend_from_slice(&pattern[o..o + payload - tag::length(payload)]);
}
