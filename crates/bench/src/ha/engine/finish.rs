//! The end of a run: DISCONNECT packets, and the sum of all counts.

use super::*;
use crate::codec;

/// Maximum number of streams with a loss in the report.
const LOSSES_MAX: usize = 200;

impl Engine<'_> {
    pub(super) fn finish(mut self, begin: u64) -> RunResult {
        let up = self.connections.iter().filter(|connection| connection.ready()).count();
        let clients = self.connections.len();
        let (unacknowledged, unsent) = (self.unacknowledged(), self.unsent());
        let (mut resent, mut releases_resent, mut unexpected_acks, mut hidden) = (0, 0, 0, 0);
        for connection in &mut self.connections {
            if connection.fd >= 0 {
                if connection.ready() {
                    codec::disconnect(&mut connection.out);
                    // A failure has no effect: the sessions are removed by name.
                    let _ = connection.flush(self.now);
                }
                net::close(connection.fd);
            }
            match &connection.role {
                Role::Publisher(publisher) => {
                    resent += publisher.resent;
                    releases_resent += publisher.releases_resent;
                    unexpected_acks += publisher.unexpected_acks;
                }
                Role::Subscriber(subscriber) => hidden += subscriber.hidden,
            }
        }
        let mut losses = vec![];
        let lost = self.checker.losses(|loss| {
            if losses.len() < LOSSES_MAX {
                losses.push(loss);
            }
        });
        let began = if self.began == 0 { begin } else { self.began };
        let stop = self.stop.min(self.now);
        let since = |(length, at): (u64, u64)| (length, at.saturating_sub(began));
        let worst = self.silences.iter().enumerate();
        let worst = worst.map(|(number, silence)| (silence.longest(stop), number)).max();
        let worst = worst.map_or((0, 0, 0), |(silence, number)| {
            let (length, at) = since(silence);
            (length, at, number)
        });
        RunResult {
            silence: if self.began > 0 { since(self.silence.longest(stop)) } else { (0, 0) },
            silence_of_one: worst,
            never_began: if self.began == 0 { self.fatal } else { None },
            ended_early: self.ended_early,
            unsent,
            losses,
            lost,
            checker: self.checker,
            counts: self.counts,
            reasons: self.reasons,
            events: self.events,
            unacknowledged,
            resent,
            releases_resent,
            unexpected_acks,
            hidden,
            up,
            clients,
            expiry: self.expiry,
            latency: self.latency,
            reconnect: self.reconnect,
            published_for: if self.began > 0 { stop - began } else { 0 },
            drained_for: self.now - stop,
            away_since: self.away_since.map(|since| self.now - since),
        }
    }
}
