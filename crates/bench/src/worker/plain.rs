//! Publishers with individual schedules, and messages without the checker's header.

use super::*;
use crate::latency::record;
use crate::pace::{Curve, Pace};
use crate::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Maximum number of streams whose counters a worker remembers; further ones are not checked.
const COUNTED_MAX: usize = 1_000_000;

impl Publisher {
    /// Time at which the next message was due; `None` where it is due at once.
    pub(super) fn due_at(&self, pace: &Pace, t0: u64) -> Option<u64> {
        match pace {
            Pace::Every(interval) if interval.is_zero() => None,
            Pace::Every(interval) => Some(self.first + self.sent * interval.as_nanos() as u64),
            Pace::Think(..) => Some(self.first),
            Pace::Curve(curve) => when(curve, self.base + self.sent as f64, t0),
        }
    }

    /// Sets its timer, which replaces the previous one.
    pub(super) fn arm(&mut self, at: u64, s: usize, timers: &mut BinaryHeap<Reverse<(u64, usize)>>) {
        self.timer = at;
        timers.push(Reverse((at, s)));
    }

    /// Starts the pause after a message at the time when that was due, so that a slow broker does not shorten pauses.
    pub(super) fn think(&mut self, least: Duration, most: Duration, random: &mut Random, now: u64) {
        let (least, most) = (least.as_nanos() as u64, most.as_nanos() as u64);
        self.first += (least + random.below(most - least + 1)).max(1000);
        if self.first <= now {
            self.due = (self.sent + 1).min(self.quota);
        }
    }
}

fn when(curve: &Curve, due: f64, t0: u64) -> Option<u64> {
    curve.when(due).map(|seconds| t0 + (seconds * 1e9) as u64)
}

impl Driver {
    /// Starts a publisher's schedule, once, when it is connected and publishing is allowed.
    pub(super) fn schedule(&mut self, c: &mut Connection) {
        let Some(plain) = &self.cfg.plain else { return };
        let (least, most) = plain.wait_ns;
        let number = (c.id + self.cfg.network.offset) as f64;
        let Role::Pub(p) = &mut c.role else { return };
        if p.first != 0 || c.st != Stage::Ready {
            return;
        }
        let mut wait = least;
        if most > least {
            wait += self.rng.below(most - least);
        }
        p.first = self.now.max(self.window.t0) + wait;
        match &plain.pace {
            Pace::Every(interval) if interval.is_zero() && wait == 0 && self.now >= self.window.t0 => {
                p.due = p.quota;
                p.queued = true;
                self.sending.queue.push(c.slot);
            }
            Pace::Every(_) => p.arm(p.first, c.slot, &mut self.timers.messages),
            // Each publisher starts at a random point of its first pause.
            Pace::Think(_, most) => {
                p.first += self.rng.below(most.as_nanos() as u64);
                p.arm(p.first, c.slot, &mut self.timers.messages);
            }
            Pace::Curve(curve) => {
                // The golden ratio spreads any number of publishers evenly between two messages.
                let turn = (number * 0.618_033_988_749_895).fract();
                p.base = curve.due_by((p.first - self.window.t0) as f64 / 1e9) + turn;
                if let Some(at) = p.due_at(&plain.pace, self.window.t0) {
                    p.arm(at, c.slot, &mut self.timers.messages);
                }
            }
        }
    }

    /// Restarts the schedule of a publisher that was disconnected.
    pub(super) fn reschedule(&mut self, c: &mut Connection) {
        let cfg = self.cfg.clone();
        let Some(plain) = &cfg.plain else { return };
        let Role::Pub(p) = &mut c.role else { return };
        if p.first == 0 {
            return self.schedule(c);
        }
        match &plain.pace {
            Pace::Every(interval) if interval.is_zero() => {
                p.due = p.quota;
                return;
            }
            Pace::Every(interval) => {
                let next = self.now + interval.as_nanos() as u64;
                p.first = next.saturating_sub(p.sent * interval.as_nanos() as u64);
            }
            Pace::Think(_, most) => p.first = self.now + self.rng.below(most.as_nanos() as u64),
            Pace::Curve(curve) => {
                let turn = self.rng.below(1000) as f64 / 1000.0;
                let now = self.now.saturating_sub(self.window.t0) as f64 / 1e9;
                p.base = curve.due_by(now) + turn - p.sent as f64;
            }
        }
        p.due = p.sent;
        if let Some(at) = p.due_at(&plain.pace, self.window.t0) {
            p.arm(at, c.slot, &mut self.timers.messages);
        }
    }

    /// Makes the messages of a due timer available, also those that could not be sent earlier.
    pub(super) fn fire(&mut self, c: &mut Connection, at: u64) {
        let cfg = &*self.cfg;
        let Some(plain) = &cfg.plain else { return };
        let Role::Pub(p) = &mut c.role else { return };
        let away = c.st == Stage::Backoff && cfg.presence.churn.is_some();
        if c.st == Stage::Dead || p.timer != at || away {
            return;
        }
        let next = match &plain.pace {
            Pace::Every(interval) if interval.is_zero() => {
                p.due = p.quota;
                None
            }
            Pace::Every(interval) => {
                let interval = interval.as_nanos() as u64;
                p.due = ((self.now - p.first) / interval + 1).min(p.quota);
                Some(p.first + p.due * interval)
            }
            // The next one is known when this one was sent.
            Pace::Think(..) => {
                p.due = (p.sent + 1).min(p.quota);
                None
            }
            Pace::Curve(curve) => {
                let due = curve.due_by((self.now - self.window.t0) as f64 / 1e9) - p.base;
                // At least the message of this timer, whatever rounding gives.
                p.due = (due.max(0.0) as u64 + 1).max(p.due + 1).min(p.quota);
                when(curve, p.base + p.due as f64, self.window.t0)
            }
        };
        if let Some(next) = next.filter(|_| p.due < p.quota) {
            p.arm(next, c.slot, &mut self.timers.messages);
        }
        if !p.queued {
            p.queued = true;
            self.sending.queue.push(c.slot);
        }
    }

    #[inline]
    pub(super) fn on_plain(&mut self, c: &mut Connection, topic: &[u8], payload: &[u8]) {
        self.tally.counts.recv += 1;
        self.tally.counts.recv_bytes += payload.len() as u64;
        self.tally.last_recv = self.now;
        let cfg = &*self.cfg;
        let Some(plain) = cfg.plain.as_ref().filter(|plain| plain.headers.len() > 0) else { return };
        let Some(values) = plain.headers.find(payload) else {
            self.tally.counts.no_header += 1;
            return;
        };
        if let Some(at) = values.time {
            record(&mut self.tally.pulse.e2e, self.now.wrapping_add(self.wall_offset).saturating_sub(at));
        }
        let Some(count) = values.count else { return };
        let full = self.arrivals.counted.len() >= COUNTED_MAX;
        // One allocation for each message; the map borrows no tuples.
        match self.arrivals.counted.entry((c.slot, topic.to_vec())) {
            std::collections::hash_map::Entry::Occupied(mut last) => {
                let last = last.get_mut();
                if count > *last {
                    self.tally.counts.gaps += count - *last - 1;
                    *last = count;
                } else {
                    self.tally.counts.not_increasing += 1;
                }
            }
            std::collections::hash_map::Entry::Vacant(first) if !full => {
                first.insert(count);
            }
            std::collections::hash_map::Entry::Vacant(_) => self.tally.counts.untracked += 1,
        }
    }
}
