//! Publishers that each keep a time of their own, and messages without the checker's header.

use super::*;
use crate::latency::record;
use std::cmp::Reverse;

/// Streams whose counter a worker remembers; what others count to is not looked at.
const COUNTED_MAX: usize = 1_000_000;

impl Worker {
    /// A publisher's schedule begins, once, when it is connected and publishing is allowed.
    pub(super) fn schedule(&mut self, s: usize) {
        let Some(plain) = &self.cfg.plain else { return };
        let (least, most) = plain.wait_ns;
        let interval = plain.interval_ns;
        let c = &mut self.conns[s];
        let Role::Pub(p) = &mut c.role else { return };
        if p.first != 0 || c.st != Stage::Ready {
            return;
        }
        let mut wait = least;
        if most > least {
            wait += self.rng.below(most - least);
        }
        p.first = self.now.max(self.t0) + wait;
        if interval == 0 && wait == 0 && self.now >= self.t0 {
            p.due = p.quota;
            p.queued = true;
            self.queue.push(s);
        } else {
            self.timers.push(Reverse((p.first, s)));
        }
    }

    /// Gives publishers whose time has come what they have to send by now, also when they could not send earlier.
    pub(super) fn fire_timers(&mut self) {
        let interval = self.cfg.plain.as_ref().map_or(0, |plain| plain.interval_ns);
        while let Some(&Reverse((at, s))) = self.timers.peek() {
            if at > self.now {
                return;
            }
            self.timers.pop();
            let c = &mut self.conns[s];
            let Role::Pub(p) = &mut c.role else { continue };
            if c.st == Stage::Dead {
                continue;
            }
            p.due = match interval {
                0 => p.quota,
                _ => ((self.now - p.first) / interval + 1).min(p.quota),
            };
            if p.due < p.quota {
                self.timers.push(Reverse((p.first + p.due * interval, s)));
            }
            if !p.queued {
                p.queued = true;
                self.queue.push(s);
            }
        }
    }

    /// Publishers that have nothing more to do: all was sent and acknowledged, or they are gone.
    pub(super) fn count_done(&mut self) {
        let done = |&&s: &&usize| {
            let c = &self.conns[s];
            match &c.role {
                Role::Pub(p) => {
                    c.st == Stage::Dead || (p.sent >= p.quota && p.inflight == 0 && c.wbuf.is_empty())
                }
                Role::Sub(_) => false,
            }
        };
        self.counts.done_pubs = self.pubs.iter().filter(done).count() as u64;
    }

    #[inline]
    pub(super) fn on_plain(&mut self, s: usize, topic: &[u8], payload: &[u8]) {
        self.counts.recv += 1;
        self.counts.recv_bytes += payload.len() as u64;
        self.last_recv = self.now;
        let cfg = self.cfg.clone();
        let Some(plain) = cfg.plain.as_ref().filter(|plain| plain.headers.len() > 0) else { return };
        let Some(found) = plain.headers.find(payload) else {
            self.counts.no_header += 1;
            return;
        };
        if let Some(at) = found.time {
            record(&mut self.pulse.e2e, self.now.wrapping_add(self.wall_offset).saturating_sub(at));
        }
        let Some(count) = found.count else { return };
        let full = self.counted.len() >= COUNTED_MAX;
        // One allocation for each message; the map borrows no tuples.
        match self.counted.entry((s, topic.to_vec())) {
            std::collections::hash_map::Entry::Occupied(mut last) => {
                let last = last.get_mut();
                if count > *last {
                    self.counts.gaps += count - *last - 1;
                    *last = count;
                } else {
                    self.counts.not_increasing += 1;
                }
            }
            std::collections::hash_map::Entry::Vacant(first) if !full => {
                first.insert(count);
            }
            std::collections::hash_map::Entry::Vacant(_) => self.counts.untracked += 1,
        }
    }
}
