//! Times at which a Will must, may or must not be published.

use std::collections::BTreeSet;

use mqtt::QoS;

use super::{Oracle, Published};
use crate::net::Link;
use crate::report::Report;

/// A Will of a CONNECT.
#[derive(Debug)]
pub struct Will {
    number: usize,
    /// Milliseconds until it is due: its delay, or the session's expiry if that is shorter.
    delay: u64,
    /// Time of the node at which its connection ended.
    ended: Option<(Ending, u64)>,
    /// Latest time at which it is due, if a crash has changed that.
    later: u64,
    /// True if the client has a CONNACK.
    accepted: bool,
    /// True if the session survives the connection, so that the Will is in the log.
    durable: bool,
    /// True if the client has connected again meanwhile.
    overtaken: bool,
    /// True if it is unknown whether it was due before a CONNECT cancelled it.
    in_doubt: bool,
    /// True if its client lost the right to publish it before it was due.
    denied: bool,
    verdict: Verdict,
    /// Sessions that have to get it.
    owed: BTreeSet<usize>,
}

/// End of a connection on the node's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client cancelled its Will with DISCONNECT.
    Goodbye,
    /// The transport was lost, another connection took over, or the client violated the protocol.
    Lost,
    /// The process died.
    Died,
    /// The node was stopped: no Will is published.
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Undetermined.
    May,
    Must,
    Never,
}

/// Maximum time between an event at the client and at the node, milliseconds.
const SLACK_MS: u64 = 3_000;
/// The same while the disk may be full.
const LONG_SLACK_MS: u64 = 20_000;

impl Will {
    /// Makes a delayed Will optional: it may be due before the client is back or not. Returns true if it was mandatory
    /// before.
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
        assert!(self.verdict != Verdict::Never, "Will {number} was cancelled, and comes: {self:?}");
        let Some((ending, at)) = self.ended else {
            panic!("Will {number} comes while its client is connected: {self:?}");
        };
        assert!(time + 50 >= at + self.delay, "Will {number} comes at {time} ms, too early: {self:?}");
        report.check_wills_delayed += u64::from(self.delay > 0);
        report.check_wills_after_a_crash += u64::from(ending == Ending::Died);
    }
}

impl Will {
    /// Makes Wills forbidden that are due after this time of the node.
    fn is_denied(&mut self, from: u64) {
        let Some((_, at)) = self.ended else { return };
        let due = at + self.delay;
        self.denied |= due > from;
        // A Will that was due shortly before may have waited for the disk.
        if self.later.max(due) + LONG_SLACK_MS > from {
            self.owed.clear();
            self.verdict = if self.verdict == Verdict::Must { Verdict::May } else { self.verdict };
        }
    }
}

impl Oracle {
    /// Forbids all Wills from this time of the node on.
    pub fn wills_are_denied(&mut self, from: u64) {
        self.wills_denied = Some(from);
        self.wills.values_mut().for_each(|will| will.is_denied(from));
    }

    pub fn denies_wills(&self) -> bool {
        self.wills_denied.is_some()
    }

    /// Records a stop of the node's process, in its own time.
    pub fn node_is_paused(&mut self, from: u64, until: u64) {
        self.paused = (from, until);
    }

    /// Records the Will of a CONNECT. Returns its number.
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

    /// Records that the node has ended the connection.
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

    /// Records that the DISCONNECT that cancels it is durable.
    pub fn will_is_taken_back(&mut self, report: &mut Report, link: Link) {
        if let Some(will) = self.wills.get_mut(&link)
            && matches!(will.ended, Some((Ending::Goodbye, _)))
            && will.verdict == Verdict::May
        {
            will.verdict = Verdict::Never;
            let came = self.sessions.iter().any(|view| view.arrived.contains(&will.number));
            assert!(!came, "Will {} was cancelled, and came: {will:?}", will.number);
            report.check_wills_taken_back += 1;
        }
    }

    /// Records a new CONNECT of the client, sent at this time of the node or later. With Clean Start the session ends,
    /// and its Will is due.
    pub fn will_is_overtaken(&mut self, link: Link, sent: u64, clean: bool) {
        let Some(will) = self.wills.get_mut(&link) else { return };
        if clean {
            // A CONNECT without Clean Start that was sent before may arrive first and find the session.
            will.in_doubt |= will.overtaken && will.delay > 0;
            will.delay = 0;
            return;
        }
        match will.ended {
            None => will.overtaken = true,
            Some((_, at)) => {
                let due = will.later.max(at + will.delay);
                let (from, until) = self.paused;
                // A Will that fell due during a stop is published after it, when the data that arrived meanwhile is
                // read.
                let due = if due + SLACK_MS >= from { due.max(until) } else { due };
                if sent < due + SLACK_MS {
                    self.excused.excused_wills_unclear += u64::from(will.is_unclear());
                }
            }
        }
    }

    /// Records that the client has its session back at this time of the node. A Will that was not due by then must not
    /// arrive.
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

    /// Records a new incarnation. The last changes of the previous one may not have been durable: those Wills wait from
    /// now on.
    pub fn wills_wait_from(&mut self, died: u64, begins: u64) {
        for will in self.wills.values_mut() {
            if let Some((_, at)) = &mut will.ended {
                // After a power cut, the node's clock may go back to its last durable time.
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

    /// Cancels the debts of all Wills to a session.
    pub fn will_is_unwanted(&mut self, session: usize) {
        for will in self.wills.values_mut() {
            will.owed.remove(&session);
        }
    }

    /// Delay of a connection's Will, and whether it must arrive.
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
