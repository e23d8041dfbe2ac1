//! When a Will has to be published, when it may be, and when it may not.

use std::collections::BTreeSet;

use mqtt::QoS;

use super::{Oracle, Published};
use crate::net::Link;
use crate::report::Report;

/// A CONNECT's Will.
#[derive(Debug)]
pub struct Will {
    number: usize,
    /// Milliseconds until it is due: its delay, or the session's expiry where that is shorter.
    delay: u64,
    /// The node's time when its connection ended.
    ended: Option<(Ending, u64)>,
    /// When it is due at the latest, as far as a crash has changed that.
    later: u64,
    /// The client was told that it is connected.
    accepted: bool,
    /// The session outlives the connection, so the Will is in the log.
    durable: bool,
    /// The client has connected again meanwhile.
    overtaken: bool,
    /// Whether it was due before a CONNECT took it back cannot be said.
    in_doubt: bool,
    /// Its client lost the right to publish it before it was due.
    denied: bool,
    verdict: Verdict,
    /// Sessions that have to get it.
    owed: BTreeSet<usize>,
}

/// How a connection ended for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client took its Will back, with DISCONNECT.
    Goodbye,
    /// The transport was lost, or another connection took over, or the client broke a rule.
    Lost,
    /// The process died.
    Died,
    /// The node was stopped: nobody's Will is published.
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody can say.
    May,
    Must,
    Never,
}

/// What may lie between what a client sees and what the node does, milliseconds.
const SLACK_MS: u64 = 3_000;
/// The same while the disk may be full.
const LONG_SLACK_MS: u64 = 20_000;

impl Will {
    /// Whether it is due before the client is back depends on moments. True when it had to come before.
    fn is_unclear(&mut self) -> bool {
        let is_excused = self.delay > 0 && self.verdict == Verdict::Must && !self.owed.is_empty();
        if self.delay > 0 {
            self.verdict = Verdict::May;
            self.owed.clear();
        }
        is_excused
    }

    pub(super) fn check_arrival(&self, report: &mut Report, number: usize, time: u64) {
        assert!(!self.denied, "Will {number} may not be published any more, and comes: {self:?}");
        assert!(self.verdict != Verdict::Never, "Will {number} was taken back, and comes: {self:?}");
        let Some((ending, at)) = self.ended else {
            panic!("Will {number} comes while its client is connected: {self:?}");
        };
        assert!(time + 50 >= at + self.delay, "Will {number} comes at {time} ms, too early: {self:?}");
        report.check_wills_delayed += u64::from(self.delay > 0);
        report.check_wills_after_a_crash += u64::from(ending == Ending::Died);
    }
}

impl Will {
    /// From this time of the node's on nobody may publish a Will.
    fn is_denied(&mut self, from: u64) {
        let Some((_, at)) = self.ended else { return };
        let due = at + self.delay;
        self.denied |= due > from;
        // What was due shortly before may have waited for the disk.
        if self.later.max(due) + LONG_SLACK_MS > from {
            self.owed.clear();
            self.verdict = if self.verdict == Verdict::Must { Verdict::May } else { self.verdict };
        }
    }
}

impl Oracle {
    /// From this time of the node's on nobody may publish a Will.
    pub fn wills_are_denied(&mut self, from: u64) {
        self.wills_denied = Some(from);
        self.wills.values_mut().for_each(|will| will.is_denied(from));
    }

    pub fn denies_wills(&self) -> bool {
        self.wills_denied.is_some()
    }

    /// The node's process stands still from one time of its own to another.
    pub fn node_is_paused(&mut self, from: u64, until: u64) {
        self.paused = (from, until);
    }

    /// A CONNECT leaves with this Will.
    pub fn will(&mut self, link: Link, topic: &str, delay: u64, durable: bool) -> usize {
        let number = self.messages.len();
        self.messages.push(Published {
            topic: topic.into(),
            qos: QoS::ExactlyOnce,
            payload: number.to_string(),
            expiry: None,
            connections: vec![link],
            sent: 0,
            acknowledged: None,
            is_will: true,
            deletes: false,
            may_never_arrive: true,
            may_come_twice: false,
            owed: BTreeSet::new(),
            owed_by_rule: BTreeSet::new(),
            owed_to_group: false,
            arrived_in_group: false,
        });
        let owed = BTreeSet::new();
        let will = Will {
            number,
            delay,
            ended: None,
            later: 0,
            accepted: false,
            durable,
            overtaken: false,
            in_doubt: false,
            denied: false,
            verdict: Verdict::May,
            owed,
        };
        self.wills.insert(link, will);
        number
    }

    pub fn will_is_accepted(&mut self, link: Link) {
        if let Some(will) = self.wills.get_mut(&link) {
            will.accepted = true;
        }
    }

    /// The node has ended the connection.
    pub fn will_ends(&mut self, link: Link, ending: Ending, time: u64) {
        let Some(will) = self.wills.get(&link) else { return };
        if will.ended.is_some() {
            return;
        }
        let message = &self.messages[will.number];
        let owed = if self.tight { BTreeSet::new() } else { self.wanted_by(&message.topic, message.qos) };
        let Some(will) = self.wills.get_mut(&link) else { return };
        will.ended = Some((ending, time));
        if will.durable && will.accepted && matches!(ending, Ending::Lost | Ending::Died) {
            (will.verdict, will.owed) = (Verdict::Must, owed);
        }
        if will.overtaken {
            self.excused.excused_wills_unclear += u64::from(will.is_unclear());
        }
        if let Some(denied) = self.wills_denied {
            will.is_denied(denied);
        }
        if will.in_doubt {
            self.excused.excused_wills_in_doubt += u64::from(will.verdict == Verdict::Must);
            will.verdict = Verdict::May;
            will.owed.clear();
        }
    }

    /// The DISCONNECT that takes it back is durable.
    pub fn will_is_taken_back(&mut self, report: &mut Report, link: Link) {
        if let Some(will) = self.wills.get_mut(&link)
            && matches!(will.ended, Some((Ending::Goodbye, _)))
            && will.verdict == Verdict::May
        {
            will.verdict = Verdict::Never;
            let came = self.sessions.iter().any(|view| view.arrived.contains(&will.number));
            assert!(!came, "Will {} was taken back, and came: {will:?}", will.number);
            report.check_wills_taken_back += 1;
        }
    }

    /// The client connects again, at this time of the node's at the earliest. With Clean Start the session ends, and its Will is due.
    pub fn will_is_overtaken(&mut self, link: Link, sent: u64, clean: bool) {
        let Some(will) = self.wills.get_mut(&link) else { return };
        if clean {
            // One that was sent before, without Clean Start, may arrive first and find the session.
            will.in_doubt |= will.overtaken && will.delay > 0;
            will.delay = 0;
            return;
        }
        match will.ended {
            None => will.overtaken = true,
            Some((_, at)) => {
                let due = will.later.max(at + will.delay);
                let (from, until) = self.paused;
                // What fell due while the process stood still is published when it goes on, as what came meanwhile is read.
                let due = if due + SLACK_MS >= from { due.max(until) } else { due };
                if sent < due + SLACK_MS {
                    self.excused.excused_wills_unclear += u64::from(will.is_unclear());
                }
            }
        }
    }

    /// The client has its session back, at this time of the node's at the latest: what was not due by then does not come.
    pub fn will_is_outlived(&mut self, report: &mut Report, link: Link, answered: u64) {
        if let Some(will) = self.wills.get_mut(&link)
            && let Some((_, at)) = will.ended
            && will.accepted
            && answered + SLACK_MS < at + will.delay
        {
            will.verdict = Verdict::Never;
            report.check_wills_taken_back += 1;
        }
    }

    /// A life begins. What the last one did shortly before its end may not have been durable: then these wait from now on.
    pub fn wills_wait_from(&mut self, died: u64, begins: u64) {
        for will in self.wills.values_mut() {
            if let Some((_, at)) = &mut will.ended {
                // After a power cut the node's time may have gone back, to what was durable of it.
                *at = (*at).min(begins);
            }
            if let Some((_, at)) = will.ended
                && at + 40_000 >= died
                && will.delay > 0
            {
                will.later = begins + will.delay;
            }
        }
    }

    /// The session does not want it any more.
    pub fn will_is_unwanted(&mut self, session: usize) {
        for will in self.wills.values_mut() {
            will.owed.remove(&session);
        }
    }

    /// The delay of a connection's Will, and whether it has to come.
    #[cfg(test)]
    pub fn will_on(&self, link: Link) -> Option<(u64, bool)> {
        self.wills.get(&link).map(|will| (will.delay, will.verdict == Verdict::Must))
    }

    pub(super) fn check_wills(&self, report: &mut Report) {
        let is_proof = |will: &&Will| {
            will.denied
                && will.durable
                && will.accepted
                && matches!(will.ended, Some((Ending::Lost | Ending::Died, _)))
        };
        report.check_wills_denied += self.wills.values().filter(is_proof).count() as u64;
        for will in self.wills.values().filter(|will| will.verdict == Verdict::Must) {
            for session in &will.owed {
                let arrived = self.sessions[*session].arrived.contains(&will.number);
                assert!(arrived, "Will {} never came to session {session}: {will:?}", will.number);
                report.check_wills_came += 1;
            }
        }
    }
}
