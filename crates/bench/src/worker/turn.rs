//! The event loop of a worker.

use super::*;
use crate::codec;
use crate::counters::Phase;
use crate::latency::pour;
use crate::net;
use crate::outcome::{PubResult, SubResult, WorkerResult};
use crate::process;
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

/// Progress of the loop.
struct Rounds {
    began: u64,
    /// Maximum number of new connections of this worker per second, 0 for no limit.
    connect_rate: f64,
    /// Index of the next connection to start.
    next_start: usize,
    /// Index and time of the last check of a connection for time-outs.
    sweep_at: usize,
    sweep_t: u64,
    /// Times of the last pacing step, and of the last round with a pause.
    last_pace: u64,
    last_round: u64,
    /// Connections taken from a queue.
    work: Vec<usize>,
}

/// Maximum number of nanoseconds that a round waits for the sockets.
const WAIT_MAX: u64 = 10_000_000;

impl Worker {
    pub fn run(mut self) -> WorkerResult {
        let threads = &self.driver.cfg.threads;
        if !threads.pin.is_empty() {
            process::pin_thread(threads.pin[self.driver.index % threads.pin.len()]);
        }
        process::set_timer_slack(2_000);
        self.driver.tally.demand.since(net::now());
        let mut ev: Vec<libc::epoll_event> = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        let began = net::now();
        let mut rounds = Rounds {
            began,
            connect_rate: self.driver.cfg.connecting.rate / self.driver.cfg.threads.count as f64,
            next_start: 0,
            sweep_at: 0,
            sweep_t: began,
            last_pace: 0,
            last_round: 0,
            work: vec![],
        };
        loop {
            self.driver.now = net::now();
            let phase = self.driver.shared.phase();
            if phase != self.driver.phase {
                self.driver.phase = phase;
                if phase == Phase::Run {
                    self.begin();
                }
                if phase == Phase::End {
                    break;
                }
            }
            self.coalesce(&mut rounds);
            let mut timeout = self.connect(&mut rounds, WAIT_MAX);
            if phase == Phase::Run {
                timeout = self.publish(&mut rounds, timeout);
            } else {
                self.driver.sending.queue.clear();
            }
            self.flush_dirty(&mut rounds);
            if !self.driver.sending.queue.is_empty() || !self.driver.sockets.dirty.is_empty() {
                timeout = 0;
            }
            let n = self.driver.sockets.epoll.wait(&mut ev, timeout);
            self.driver.now = net::now();
            for e in ev.iter().take(n) {
                let s = (e.u64 & 0xffff_ffff) as usize;
                let c = &mut self.connections[s];
                if c.is_open((e.u64 >> 32) as u32) {
                    self.driver.on_event(c, e.events);
                }
            }
            self.sweep(&mut rounds);
            self.report();
        }
        self.finish()
    }

    /// Handles --coalesce-us: waits before the next round.
    fn coalesce(&mut self, rounds: &mut Rounds) {
        let d = &mut self.driver;
        if d.phase != Phase::Run || d.cfg.sending.coalesce_ns == 0 {
            return;
        }
        let at = rounds.last_round + d.cfg.sending.coalesce_ns;
        if at > d.now {
            // tidy: allow(thread-sleep): --coalesce-us asks for exactly this
            std::thread::sleep(std::time::Duration::from_nanos(at - d.now));
            d.now = net::now();
        }
        rounds.last_round = d.now;
    }

    /// Starts connections, also further attempts, and closes those of clients that leave. Returns the time until there
    /// is more to do, at most `timeout`.
    fn connect(&mut self, rounds: &mut Rounds, mut timeout: u64) -> u64 {
        let (d, rate, all) = (&mut self.driver, rounds.connect_rate, self.connections.len());
        if rounds.next_start < all {
            let due = if rate > 0.0 {
                (((d.now - rounds.began) as f64 * rate / 1e9) as usize + 1).min(all)
            } else {
                all
            };
            if rounds.next_start == 0 {
                d.shared.times.first_connect.fetch_min(d.now, Relaxed);
            }
            while rounds.next_start < due && d.sockets.pending < d.cfg.connecting.concurrency {
                d.start(&mut self.connections[rounds.next_start]);
                rounds.next_start += 1;
            }
            timeout = timeout.min(if rate > 0.0 { ((1e9 / rate) as u64).max(200_000) } else { 1_000_000 });
        }
        while let Some(&Reverse((t, s))) = d.timers.retry.peek() {
            if t > d.now {
                timeout = timeout.min(t - d.now);
                break;
            }
            d.timers.retry.pop();
            let c = &mut self.connections[s];
            if c.st == Stage::Backoff {
                d.start(c);
            }
        }
        self.close_leaving();
        let d = &self.driver;
        match d.timers.leaves.peek() {
            Some(&Reverse((t, ..))) => timeout.min(t.saturating_sub(d.now).max(1)),
            None => timeout,
        }
    }

    /// Sends what is due. Returns the time until more is due, at most `timeout`.
    fn publish(&mut self, rounds: &mut Rounds, mut timeout: u64) -> u64 {
        if self.driver.cfg.plain.is_some() {
            self.fire_timers();
            if let Some(&Reverse((t, _))) = self.driver.timers.messages.peek() {
                timeout = timeout.min(t.saturating_sub(self.driver.now).max(1));
            }
        }
        timeout = self.keep_pace(rounds, timeout);
        if self.driver.cfg.sending.max_outstanding > 0 && self.driver.now >= self.driver.window.t0 {
            let d = &mut self.driver;
            d.make_room();
            if !d.sending.parked.is_empty() && d.sending.room > 0 {
                for s in std::mem::take(&mut d.sending.parked) {
                    let c = &mut self.connections[s];
                    if let Role::Pub(p) = &mut c.role {
                        p.parked = false;
                    }
                    d.try_send(c);
                }
            }
            if !d.sending.parked.is_empty() && d.cfg.threads.count > 1 {
                timeout = timeout.min(100_000);
            }
        }
        if !self.driver.sending.queue.is_empty() {
            std::mem::swap(&mut rounds.work, &mut self.driver.sending.queue);
            for s in rounds.work.drain(..) {
                let c = &mut self.connections[s];
                if let Role::Pub(p) = &mut c.role {
                    p.queued = false;
                }
                self.driver.try_send(c);
            }
        }
        timeout
    }

    /// Takes a pacing step when it is time. Returns the time until the next one, at most `timeout`.
    fn keep_pace(&mut self, rounds: &mut Rounds, timeout: u64) -> u64 {
        let d = &self.driver;
        let (rate, tick_ns) = (d.cfg.sending.rate, d.cfg.sending.tick_ns);
        if rate > 0.0 {
            // A message at a time, where they are rarer than pacing steps.
            let single = d.sending.ns_per_msg >= tick_ns as f64;
            if d.now >= rounds.last_pace + tick_ns || single {
                rounds.last_pace = d.now;
                self.pace();
            }
            if self.publishers.is_empty() {
                return timeout;
            }
            let d = &self.driver;
            let next = d.window.t0 + (d.sending.due_total as f64 * d.sending.ns_per_msg) as u64;
            let next = if single { next } else { next.max(rounds.last_pace + tick_ns) };
            return timeout.min(next.saturating_sub(d.now).max(1));
        }
        if d.sending.due_total == 0 && d.cfg.plain.is_none() {
            if d.now < d.window.t0 {
                return timeout.min(d.window.t0 - d.now);
            }
            self.pace();
        }
        timeout
    }

    /// Sends the output of connections that have some.
    fn flush_dirty(&mut self, rounds: &mut Rounds) {
        if self.driver.sockets.dirty.is_empty() {
            return;
        }
        std::mem::swap(&mut rounds.work, &mut self.driver.sockets.dirty);
        for s in rounds.work.drain(..) {
            let c = &mut self.connections[s];
            if c.dirty {
                self.driver.flush(c);
            }
        }
    }

    /// Checks connections for Keep Alive and time-outs: each one about 5 times a second.
    fn sweep(&mut self, rounds: &mut Rounds) {
        let all = self.connections.len();
        if self.driver.now < rounds.sweep_t + 10_000_000 || all == 0 {
            return;
        }
        rounds.sweep_t = self.driver.now;
        for _ in 0..(all / 20 + 1).min(all) {
            rounds.sweep_at = (rounds.sweep_at + 1) % all;
            self.driver.sweep(&mut self.connections[rounds.sweep_at]);
        }
        self.driver.wall_offset = net::wall().wrapping_sub(net::now());
        self.count_done();
    }

    /// Publishes counts and times for the main thread.
    fn report(&mut self) {
        let d = &self.driver;
        d.shared.counts[d.index].store(&d.tally.counts);
        self.answer_beat();
        let (t, tally) = (&self.driver.shared.times, &self.driver.tally);
        t.last_recv.fetch_max(tally.last_recv, Relaxed);
        t.last_ack.fetch_max(tally.last_ack, Relaxed);
        t.last_send.fetch_max(tally.last_send, Relaxed);
    }

    /// Passes on the measurements since the last beat when there is a new one. If the main thread is reading, it gets
    /// them later.
    fn answer_beat(&mut self) {
        let beat = self.driver.shared.beat.load(Relaxed);
        if beat == self.driver.tally.pulse.beat {
            return;
        }
        let shared = self.driver.shared.clone();
        let Ok(mut slot) = shared.pulses[self.driver.index].try_lock() else { return };
        self.driver.tally.pulse.beat = beat;
        self.driver.tally.pulse.demand = self.driver.tally.demand.since(self.driver.now);
        slot.add(&self.driver.tally.pulse);
        slot.beat = beat;
        self.keep_pulse();
    }

    fn keep_pulse(&mut self) {
        pour(&self.driver.tally.pulse.e2e, &mut self.driver.tally.hists.e2e);
        pour(&self.driver.tally.pulse.ack, &mut self.driver.tally.hists.ack);
        pour(&self.driver.tally.pulse.ready, &mut self.driver.tally.hists.ready);
        self.driver.tally.pulse.clear();
    }

    fn finish(mut self) -> WorkerResult {
        self.keep_pulse();
        for s in std::mem::take(&mut self.driver.sockets.dirty) {
            self.driver.flush(&mut self.connections[s]);
        }
        for c in &mut self.connections {
            if c.fd >= 0 {
                if c.st == Stage::Ready && c.wbuf.len() == c.wpos {
                    let mut b = vec![];
                    codec::disconnect(&mut b);
                    if let Some(layer) = &mut c.layer {
                        let plain = std::mem::take(&mut b);
                        // A DISCONNECT that cannot be sealed is not sent.
                        let _ = layer.seal(&plain, &mut self.driver.rng, &mut b);
                    }
                    let _ = net::write(c.fd, &b);
                }
                net::close(c.fd);
                c.fd = -1;
            }
        }
        let mut pubs = vec![];
        let mut subs = vec![];
        for c in self.connections {
            match c.role {
                Role::Pub(p) => pubs.push(PubResult {
                    id: c.id,
                    sent: p.sent,
                    due: p.due,
                    unacked: p.ring.iter().filter(|e| e.state != EntryState::Done).map(|e| e.seq).collect(),
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
            cpu_ns: net::thread_cpu().saturating_sub(self.driver.tally.cpu_before),
            counts: self.driver.tally.counts,
            hists: self.driver.tally.hists,
            pubs,
            subs,
            groups_seen: self.driver.arrivals.groups_seen,
            reasons: self.driver.tally.reasons,
            events: self.driver.tally.events,
            max_group_gap: self.driver.arrivals.group_gap,
            any_gap: self.driver.arrivals.any_gap,
        }
    }
}

impl Driver {
    /// Handles the events of a connection's socket.
    fn on_event(&mut self, c: &mut Connection, events: u32) {
        if c.st == Stage::Tcp {
            if events & (net::OUT | net::ERRHUP) != 0 {
                let e = net::so_error(c.fd);
                if e != 0 {
                    self.close(c, &format!("tcp connect: {}", net::errname(e)));
                } else if events & net::OUT != 0 {
                    self.tcp_ready(c);
                }
            }
            return;
        }
        if events & (net::IN | net::RDHUP | net::ERRHUP) != 0 {
            self.read(c);
            if c.fd < 0 {
                return;
            }
        }
        if events & net::OUT != 0 {
            c.blocked = false;
            self.flush(c);
        }
    }
}
