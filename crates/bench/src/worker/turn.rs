//! The event loop of a worker.

use super::*;
use crate::latency::pour;
use crate::process;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Worker {
    pub fn run(mut self) -> WorkerResult {
        if !self.cfg.threads.pin.is_empty() {
            process::pin_thread(self.cfg.threads.pin[self.index % self.cfg.threads.pin.len()]);
        }
        process::set_timer_slack(2_000);
        self.demand.since(net::now());
        let mut ev: Vec<libc::epoll_event> = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        let t_begin = net::now();
        let rate = self.cfg.connecting.rate / self.cfg.threads.count as f64;
        let mut next_start = 0usize;
        let mut sweep_at = 0usize;
        let mut sweep_t = t_begin;
        let mut last_pace = 0u64;
        let mut last_round = 0u64;
        let mut work: Vec<usize> = vec![];
        loop {
            self.now = net::now();
            let ph = self.shared.phase.load(Acquire);
            if ph != self.phase {
                self.phase = ph;
                if ph == P_RUN {
                    self.begin();
                }
                if ph == P_END {
                    break;
                }
            }
            if self.phase == P_RUN && self.cfg.sending.coalesce_ns > 0 {
                let at = last_round + self.cfg.sending.coalesce_ns;
                if at > self.now {
                    // tidy: allow(thread-sleep): --coalesce-us asks for exactly this
                    std::thread::sleep(std::time::Duration::from_nanos(at - self.now));
                    self.now = net::now();
                }
                last_round = self.now;
            }
            let mut timeout = 10_000_000u64;
            // Start connections.
            if next_start < self.conns.len() {
                let due = if rate > 0.0 {
                    (((self.now - t_begin) as f64 * rate / 1e9) as usize + 1).min(self.conns.len())
                } else {
                    self.conns.len()
                };
                if next_start == 0 {
                    self.shared.times.first_connect.fetch_min(self.now, Relaxed);
                }
                while next_start < due && self.pending < self.cfg.connecting.concurrency {
                    self.start(next_start);
                    next_start += 1;
                }
                timeout =
                    timeout.min(if rate > 0.0 { ((1e9 / rate) as u64).max(200_000) } else { 1_000_000 });
            }
            // Reconnects.
            while let Some(&std::cmp::Reverse((t, s))) = self.retry.peek() {
                if t > self.now {
                    timeout = timeout.min(t - self.now);
                    break;
                }
                self.retry.pop();
                if self.conns[s].st == Stage::Backoff {
                    self.start(s);
                }
            }
            self.close_leaving();
            if let Some(&std::cmp::Reverse((t, ..))) = self.leaves.peek() {
                timeout = timeout.min(t.saturating_sub(self.now).max(1));
            }
            // Publishing.
            if self.phase == P_RUN && self.cfg.plain.is_some() {
                self.fire_timers();
                if let Some(&std::cmp::Reverse((t, _))) = self.timers.peek() {
                    timeout = timeout.min(t.saturating_sub(self.now).max(1));
                }
            }
            if self.phase == P_RUN {
                if self.cfg.sending.rate > 0.0 {
                    if self.now >= last_pace + self.cfg.sending.tick_ns
                        || self.ns_per_msg >= self.cfg.sending.tick_ns as f64
                    {
                        last_pace = self.now;
                        self.pace();
                    }
                    if !self.pubs.is_empty() {
                        let next = self.t0 + (self.due_total as f64 * self.ns_per_msg) as u64;
                        let next = if self.ns_per_msg >= self.cfg.sending.tick_ns as f64 {
                            next
                        } else {
                            next.max(last_pace + self.cfg.sending.tick_ns)
                        };
                        timeout = timeout.min(next.saturating_sub(self.now).max(1));
                    }
                } else if self.due_total == 0 && self.cfg.plain.is_none() {
                    if self.now < self.t0 {
                        timeout = timeout.min(self.t0 - self.now);
                    } else {
                        self.pace();
                    }
                }
                if self.cfg.sending.max_outstanding > 0 && self.now >= self.t0 {
                    self.make_room();
                    if !self.parked.is_empty() && self.room > 0 {
                        let p = std::mem::take(&mut self.parked);
                        for s in p {
                            if let Role::Pub(p) = &mut self.conns[s].role {
                                p.parked = false;
                            }
                            self.try_send(s);
                        }
                    }
                    if !self.parked.is_empty() && self.cfg.threads.count > 1 {
                        timeout = timeout.min(100_000);
                    }
                }
                if !self.queue.is_empty() {
                    std::mem::swap(&mut work, &mut self.queue);
                    for s in work.drain(..) {
                        if let Role::Pub(p) = &mut self.conns[s].role {
                            p.queued = false;
                        }
                        self.try_send(s);
                    }
                }
            } else {
                self.queue.clear();
            }
            if !self.dirty.is_empty() {
                std::mem::swap(&mut work, &mut self.dirty);
                for s in work.drain(..) {
                    if self.conns[s].dirty {
                        self.flush(s);
                    }
                }
            }
            if !self.queue.is_empty() || !self.dirty.is_empty() {
                timeout = 0;
            }
            let n = self.epoll.wait(&mut ev, timeout);
            self.now = net::now();
            for e in ev.iter().take(n) {
                let (data, f) = (e.u64, e.events);
                let s = (data & 0xffff_ffff) as usize;
                let generation = (data >> 32) as u32;
                if self.conns[s].generation != generation || self.conns[s].fd < 0 {
                    continue;
                }
                if self.conns[s].st == Stage::Tcp {
                    if f & (net::OUT | net::ERRHUP) != 0 {
                        let e = net::so_error(self.conns[s].fd);
                        if e != 0 {
                            self.close(s, &format!("tcp connect: {}", net::errname(e)));
                        } else if f & net::OUT != 0 {
                            self.tcp_ready(s);
                        }
                    }
                    continue;
                }
                if f & (net::IN | net::RDHUP | net::ERRHUP) != 0 {
                    self.read(s);
                    if self.conns[s].fd < 0 {
                        continue;
                    }
                }
                if f & net::OUT != 0 {
                    self.conns[s].blocked = false;
                    self.flush(s);
                }
            }
            // Keep-alive and time-outs: check every connection about 5 times a second.
            if self.now >= sweep_t + 10_000_000 && !self.conns.is_empty() {
                sweep_t = self.now;
                let k = self.conns.len() / 20 + 1;
                for _ in 0..k.min(self.conns.len()) {
                    sweep_at = (sweep_at + 1) % self.conns.len();
                    self.sweep(sweep_at);
                }
                self.wall_offset = net::wall().wrapping_sub(net::now());
                self.count_done();
                self.counts.backlog = self
                    .pubs
                    .iter()
                    .map(|&s| match &self.conns[s].role {
                        Role::Pub(p) if p.due != u64::MAX => p.due - p.sent,
                        _ => 0,
                    })
                    .sum();
            }
            self.shared.counts[self.index].store(&self.counts);
            self.answer_beat();
            let t = &self.shared.times;
            t.last_recv.fetch_max(self.last_recv, Relaxed);
            t.last_ack.fetch_max(self.last_ack, Relaxed);
            t.last_send.fetch_max(self.last_send, Relaxed);
        }
        self.finish()
    }

    /// Passes on the measurements since the last beat when there is a new one. If the main thread is reading, it gets
    /// them later.
    fn answer_beat(&mut self) {
        let beat = self.shared.beat.load(Relaxed);
        if beat == self.pulse.beat {
            return;
        }
        let shared = self.shared.clone();
        let Ok(mut slot) = shared.pulses[self.index].try_lock() else { return };
        self.pulse.beat = beat;
        self.pulse.demand = self.demand.since(self.now);
        slot.add(&self.pulse);
        slot.beat = beat;
        self.keep_pulse();
    }

    fn keep_pulse(&mut self) {
        pour(&self.pulse.e2e, &mut self.hists.e2e);
        pour(&self.pulse.ack, &mut self.hists.ack);
        pour(&self.pulse.ready, &mut self.hists.ready);
        self.pulse.clear();
    }

    fn finish(mut self) -> WorkerResult {
        self.keep_pulse();
        for s in std::mem::take(&mut self.dirty) {
            self.flush(s);
        }
        for s in 0..self.conns.len() {
            let c = &mut self.conns[s];
            if c.fd >= 0 {
                if c.st == Stage::Ready && c.wbuf.len() == c.wpos {
                    let mut b = vec![];
                    codec::disconnect(&mut b);
                    if let Some(layer) = &mut c.layer {
                        let plain = std::mem::take(&mut b);
                        // A DISCONNECT that cannot be sealed is not sent.
                        let _ = layer.seal(&plain, &mut self.rng, &mut b);
                    }
                    let _ = net::write(c.fd, &b);
                }
                net::close(c.fd);
                c.fd = -1;
            }
        }
        let mut pubs = vec![];
        let mut subs = vec![];
        for c in self.conns {
            match c.role {
                Role::Pub(p) => pubs.push(PubResult {
                    id: c.id,
                    sent: p.sent,
                    due: p.due,
                    unacked: p.ring.iter().filter(|e| e.state != DONE).map(|e| e.seq).collect(),
                    rejected: p.rejected,
                    rec_only: p.rec_only,
                }),
                Role::Sub(u) => subs.push(SubResult {
                    id: c.id,
                    ok: c.ready_once,
                    base: u.base,
                    stride: u.stride,
                    streams: u.streams,
                }),
            }
        }
        WorkerResult {
            cpu_ns: net::thread_cpu().saturating_sub(self.cpu_before),
            counts: self.counts,
            hists: self.hists,
            pubs,
            subs,
            groups_seen: self.groups_seen,
            reasons: self.reasons,
            events: self.events,
            max_group_gap: self.group_gap,
            any_gap: self.any_gap,
        }
    }
}
