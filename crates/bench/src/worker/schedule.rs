//! Work of a worker that concerns all of its connections: the start of publishing, due messages, and clients that
//! leave.

use super::*;
use crate::counters::Phase;
use crate::net;
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// Starts publishing.
    pub(super) fn begin(&mut self) {
        let d = &mut self.driver;
        d.tally.cpu_before = net::thread_cpu();
        d.window.t0 = d.shared.t0.load(Relaxed);
        d.window.w0 = d.shared.w0.load(Relaxed);
        d.window.w1 = d.shared.w1.load(Relaxed);
        for c in &mut self.connections {
            if let Role::Sub(u) = &mut c.role {
                u.streams.iter_mut().for_each(|x| x.last_rx = d.window.t0);
            }
        }
        if d.cfg.plain.is_some() {
            for c in &mut self.connections {
                d.schedule(c);
            }
        }
        d.shared.times.first_send.fetch_min(d.window.t0, Relaxed);
    }

    /// Makes the messages that are due by now available to their publishers.
    pub(super) fn pace(&mut self) {
        let d = &mut self.driver;
        let n = self.publishers.len() as u64;
        if d.now < d.window.t0 || n == 0 {
            return;
        }
        let (window, sending) = (&d.window, &mut d.sending);
        if d.cfg.sending.rate > 0.0 {
            let upto = if d.now < window.w1 {
                ((d.now - window.t0) as f64 / sending.ns_per_msg) as u64 + 1
            } else {
                ((window.w1 - window.t0) as f64 / sending.ns_per_msg).round() as u64
            };
            while sending.due_total < upto {
                let s = self.publishers[(sending.due_total % n) as usize];
                sending.due_total += 1;
                if let Role::Pub(p) = &mut self.connections[s].role {
                    if p.due < p.quota {
                        p.due += 1;
                    }
                    if !p.queued {
                        p.queued = true;
                        sending.queue.push(s);
                    }
                }
            }
        } else if sending.due_total == 0 {
            sending.due_total = 1;
            for &s in &self.publishers {
                if let Role::Pub(p) = &mut self.connections[s].role {
                    p.due = p.quota;
                    p.queued = true;
                    sending.queue.push(s);
                }
            }
        }
    }

    /// Handles the due timers of publishers of plain messages.
    pub(super) fn fire_timers(&mut self) {
        let d = &mut self.driver;
        while let Some(&Reverse((at, s))) = d.timers.messages.peek() {
            if at > d.now {
                return;
            }
            d.timers.messages.pop();
            d.fire(&mut self.connections[s], at);
        }
    }

    /// Disconnects connected clients whose time is over.
    pub(super) fn close_leaving(&mut self) {
        let d = &mut self.driver;
        let Some(churn) = d.cfg.presence.churn else { return };
        while let Some(&Reverse((at, s, generation))) = d.timers.leaves.peek() {
            if at > d.now {
                return;
            }
            d.timers.leaves.pop();
            let c = &mut self.connections[s];
            if c.st == Stage::Ready && c.generation == generation && d.phase < Phase::Stop {
                d.leave(c, churn);
            }
        }
    }

    /// Counts publishers that are done, where everything is sent and acknowledged or they are gone, and messages that
    /// are due but not sent.
    pub(super) fn count_done(&mut self) {
        let (mut done, mut backlog) = (0, 0);
        for &s in &self.publishers {
            let c = &self.connections[s];
            let Role::Pub(p) = &c.role else { continue };
            if c.st == Stage::Dead || (p.sent >= p.quota && p.inflight == 0 && c.wbuf.is_empty()) {
                done += 1;
            }
            if p.due != u64::MAX {
                backlog += p.due - p.sent;
            }
        }
        self.driver.tally.counts.done_pubs = done;
        self.driver.tally.counts.backlog = backlog;
    }
}
