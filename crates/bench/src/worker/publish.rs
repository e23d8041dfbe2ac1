//! Sending, pacing and acknowledgements of messages.

use super::*;
use crate::config::LatencyFrom;
use crate::latency::record;
use crate::pace::Pace;
use crate::plain::{Attempt, Sender, Stamp};
use crate::random::Random;
use crate::tag::{self, Tag};
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// Retransmits unacknowledged messages that were sent before `sent_before`.
    pub(super) fn retransmit(&mut self, s: usize, session_present: bool, sent_before: u64) {
        let cfg = self.cfg.clone();
        let c = &mut self.conns[s];
        let id = c.id;
        let Role::Pub(_) = &c.role else { return };
        let mut b = std::mem::take(out(c, s, &mut self.pool, &mut self.dirty));
        let clocks = self.wall_offset;
        let Role::Pub(p) = &mut c.role else { return };
        let mut pid = p.front_pid;
        for e in p.ring.iter_mut() {
            match e.state {
                _ if e.sent >= sent_before => {}
                WAIT_ACK => {
                    self.counts.resent += 1;
                    match &cfg.plain {
                        None => encode(
                            &mut b,
                            &cfg,
                            &p.head,
                            &self.pattern,
                            pid,
                            session_present,
                            id,
                            e.seq,
                            e.ts,
                        ),
                        Some(plain) => {
                            let at = Stamp { seq: e.seq, wall: e.ts.wrapping_add(clocks) };
                            let sender = Sender { id, head: &p.head };
                            plain.encode(&mut b, &cfg, sender, Attempt { pid, dup: session_present }, at)
                        }
                    }
                }
                WAIT_COMP if session_present => {
                    self.counts.pubrel_resent += 1;
                    codec::ack(&mut b, codec::PUBREL, pid);
                }
                WAIT_COMP => {
                    // The broker accepted the message, then lost the session: nothing to send.
                    e.state = DONE;
                    p.inflight -= 1;
                    self.counts.unacked -= 1;
                    p.rec_only.push(e.seq);
                }
                _ => {}
            }
            pid = if pid == 65535 { 1 } else { pid + 1 };
        }
        while p.ring.front().is_some_and(|e| e.state == DONE) {
            p.ring.pop_front();
            p.front_pid = if p.front_pid == 65535 { 1 } else { p.front_pid + 1 };
        }
        c.wbuf = b;
    }

    /// Handles --retry-interval: retransmits messages that waited that long, once in each interval, when all earlier
    /// bytes have been sent.
    pub(super) fn retry(&mut self, s: usize) {
        let (now, interval) = (self.now, self.cfg.sending.retry_ns);
        let c = &mut self.conns[s];
        let Role::Pub(p) = &mut c.role else { return };
        let due = p.inflight > 0 && now >= p.retry_at && c.wbuf.is_empty();
        if interval == 0 || c.st != Stage::Ready || !due {
            return;
        }
        p.retry_at = now + interval;
        self.retransmit(s, true, now.saturating_sub(interval));
    }

    pub(super) fn on_ack(&mut self, s: usize, kind: u8, pid: u16, reason: u8) {
        let now = self.now;
        let c = &mut self.conns[s];
        if kind == codec::PUBREL {
            self.counts.pubrel_unknown += u64::from(!c.role.received().remove(pid));
            codec::ack(out(c, s, &mut self.pool, &mut self.dirty), codec::PUBCOMP, pid);
            return;
        }
        match &mut c.role {
            Role::Sub(_) => self.counts.bad_acks += 1,
            Role::Pub(p) => {
                let i = (pid as u32 + 65535 - p.front_pid as u32) as usize % 65535;
                let Some(e) = p.ring.get_mut(i) else {
                    self.counts.bad_acks += 1;
                    return;
                };
                let q = self.cfg.traffic.pub_qos;
                match (kind, e.state) {
                    (codec::PUBACK, WAIT_ACK) if q == 1 => {}
                    (codec::PUBCOMP, WAIT_COMP) => {}
                    (codec::PUBREC, WAIT_ACK) if q == 2 => {
                        if reason < 0x80 {
                            if reason == 0x10 {
                                self.counts.no_subscribers += 1;
                            }
                            e.state = WAIT_COMP;
                            codec::ack(out(c, s, &mut self.pool, &mut self.dirty), codec::PUBREL, pid);
                            return;
                        }
                    }
                    (codec::PUBREC, WAIT_COMP) => {
                        codec::ack(out(c, s, &mut self.pool, &mut self.dirty), codec::PUBREL, pid);
                        return;
                    }
                    _ => {
                        self.counts.bad_acks += 1;
                        return;
                    }
                }
                e.state = DONE;
                p.inflight -= 1;
                self.counts.unacked -= 1;
                self.last_ack = now;
                if kind != codec::PUBCOMP && reason >= 0x80 {
                    self.counts.rejected += 1;
                    if self.cfg.plain.is_none() {
                        p.rejected.push(e.seq);
                    }
                    *self
                        .reasons
                        .entry(format!("publish refused: {}", codec::reason_name(reason)))
                        .or_insert(0) += 1;
                } else {
                    if reason == 0x10 {
                        self.counts.no_subscribers += 1;
                    }
                    if reason >= 0x80 {
                        *self
                            .reasons
                            .entry(format!("PUBCOMP: {}", codec::reason_name(reason)))
                            .or_insert(0) += 1;
                    }
                    self.counts.acked += 1;
                    if e.sent >= self.w0 && e.sent < self.w1 {
                        record(&mut self.pulse.ack, now - e.sent);
                    }
                }
                if i > 0 {
                    self.counts.acks_out_of_order += 1;
                }
                while p.ring.front().is_some_and(|e| e.state == DONE) {
                    p.ring.pop_front();
                    p.front_pid = if p.front_pid == 65535 { 1 } else { p.front_pid + 1 };
                }
            }
        }
    }

    pub(super) fn try_send(&mut self, s: usize) {
        if self.phase != P_RUN {
            return;
        }
        let cfg = &*self.cfg;
        let q = cfg.traffic.pub_qos;
        let c = &mut self.conns[s];
        let pend = c.wbuf.len() - c.wpos;
        if c.st != Stage::Ready || c.blocked || pend >= cfg.sending.chunk {
            return; // `flush` queues it again.
        }
        let Role::Pub(p) = &c.role else { return };
        if p.sent >= p.due || (q > 0 && p.inflight >= p.window) {
            return;
        }
        let mut room = u64::MAX;
        if cfg.sending.max_outstanding > 0 {
            // Parked publishers continue together once an eighth of the bound is free, for larger writes.
            room = self.room;
            if room == 0 {
                if let Role::Pub(p) = &mut c.role
                    && !p.parked
                {
                    p.parked = true;
                    self.parked.push(s);
                }
                return;
            }
            room = room.min((cfg.sending.max_outstanding / 8 / self.pubs.len() as u64).max(1));
        }
        let now = net::now();
        if now >= self.w1.saturating_add(self.grace) {
            return; // The end of the measured time.
        }
        let id = c.id;
        let mut b = std::mem::take(out(c, s, &mut self.pool, &mut self.dirty));
        let Role::Pub(p) = &mut c.role else { return };
        let n = self.pubs.len() as u64;
        while p.sent < p.due && b.len() < cfg.sending.chunk && room > 0 {
            if q > 0 && (p.inflight >= p.window || p.ring.len() >= 65000) {
                break;
            }
            let seq = p.sent;
            let mut ts = now;
            if cfg.sending.rate > 0.0 {
                let due = self.t0 + ((p.lane + seq * n) as f64 * self.ns_per_msg) as u64;
                let due = due.min(now);
                if now >= self.w0 && now < self.w1 {
                    record(&mut self.hists.lag, now - due);
                }
                if cfg.checks.latency_from == LatencyFrom::Due {
                    ts = due;
                }
            }
            if let Some(due) = cfg.plain.as_ref().and_then(|plain| p.due_at(&plain.pace, self.t0)) {
                ts = due.min(now);
                record(&mut self.hists.lag, now - ts);
            }
            let mut pid = 0;
            if q > 0 {
                pid = ((p.front_pid as usize - 1 + p.ring.len()) % 65535) as u16 + 1;
                p.ring.push_back(Entry { seq, ts, sent: now, state: WAIT_ACK });
                p.inflight += 1;
                self.counts.unacked += 1;
            }
            match &cfg.plain {
                None => encode(&mut b, cfg, &p.head, &self.pattern, pid, false, id, seq, ts),
                Some(plain) => {
                    let at = Stamp { seq, wall: ts.wrapping_add(self.wall_offset) };
                    let sender = Sender { id, head: &p.head };
                    plain.encode(&mut b, cfg, sender, Attempt { pid, dup: false }, at)
                }
            }
            p.sent += 1;
            if let Some(plain) = &cfg.plain
                && let Pace::Think(least, most) = plain.pace
            {
                p.think(least, most, &mut Random::of([plain.seed, !(id as u64), seq]), now);
            }
            self.counts.sent += 1;
            self.counts.expected += p.fan;
            room = room.saturating_sub(p.fan);
            if cfg.sending.max_outstanding > 0 {
                self.room = self.room.saturating_sub(p.fan);
            }
        }
        if p.sent == p.due
            && p.due < p.quota
            && cfg.plain.as_ref().is_some_and(|p| matches!(p.pace, Pace::Think(..)))
        {
            p.arm(p.first, s, &mut self.timers);
        }
        self.last_send = now;
        c.wbuf = b;
    }

    /// Handles --max-outstanding: computes how many deliveries may be started now.
    pub(super) fn make_room(&mut self) {
        let max = self.cfg.sending.max_outstanding;
        let (e, r) = if self.cfg.threads.count == 1 {
            (self.counts.expected, self.counts.uniq)
        } else {
            self.shared.counts[self.index].store(&self.counts);
            let c = self.shared.sum();
            (c.expected, c.uniq)
        };
        let open = e.saturating_sub(r);
        let mut room = max.saturating_sub(open.saturating_sub(self.written_off));
        if room == 0 && self.now > self.last_recv.max(self.last_send) + 300_000_000 {
            // Without progress for a while, the outstanding messages are lost.
            self.written_off = open;
            room = max;
        }
        self.room = if room >= (max / 8).max(1) { room } else { 0 };
    }

    pub(super) fn begin(&mut self) {
        self.cpu_before = net::thread_cpu();
        self.t0 = self.shared.t0.load(Relaxed);
        self.w0 = self.shared.w0.load(Relaxed);
        self.w1 = self.shared.w1.load(Relaxed);
        for c in &mut self.conns {
            match &mut c.role {
                Role::Sub(u) => u.streams.iter_mut().for_each(|x| x.last_rx = self.t0),
                Role::Pub(_) => {}
            }
        }
        if self.cfg.plain.is_some() {
            for s in 0..self.conns.len() {
                self.schedule(s);
            }
        }
        self.shared.times.first_send.fetch_min(self.t0, Relaxed);
    }

    pub(super) fn pace(&mut self) {
        if self.now < self.t0 {
            return;
        }
        let n = self.pubs.len() as u64;
        if n == 0 {
            return;
        }
        if self.cfg.sending.rate > 0.0 {
            let upto = if self.now < self.w1 {
                ((self.now - self.t0) as f64 / self.ns_per_msg) as u64 + 1
            } else {
                ((self.w1 - self.t0) as f64 / self.ns_per_msg).round() as u64
            };
            while self.due_total < upto {
                let s = self.pubs[(self.due_total % n) as usize];
                self.due_total += 1;
                if let Role::Pub(p) = &mut self.conns[s].role {
                    if p.due < p.quota {
                        p.due += 1;
                    }
                    if !p.queued {
                        p.queued = true;
                        self.queue.push(s);
                    }
                }
            }
        } else if self.due_total == 0 {
            self.due_total = 1;
            for k in 0..self.pubs.len() {
                let s = self.pubs[k];
                if let Role::Pub(p) = &mut self.conns[s].role {
                    p.due = p.quota;
                    p.queued = true;
                    self.queue.push(s);
                }
            }
        }
    }
}

#[inline]
#[allow(clippy::too_many_arguments)]
fn encode(
    b: &mut Vec<u8>,
    cfg: &Config,
    head: &[u8],
    pattern: &[u8],
    pid: u16,
    dup: bool,
    id: usize,
    seq: u64,
    ts: u64,
) {
    b.reserve(head.len() + 4 + cfg.traffic.payload);
    codec::publish_start(
        b,
        cfg.properties(),
        cfg.traffic.pub_qos,
        if dup { codec::DUP } else { 0 },
        head,
        pid,
    );
    Tag { publisher: id, seq, at: ts }.write(cfg.tag(), cfg.traffic.payload, b);
    let o = (seq & 255) as usize;
    b.extend_from_slice(&pattern[o..o + cfg.traffic.payload - tag::length(cfg.traffic.payload)]);
}
