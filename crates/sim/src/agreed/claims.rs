//! Histories of Client Identifiers: which connection has one, and which session it got. They have to be linearizable.
//!
//! # The specification
//! A Client Identifier is a register. It holds the connection that owns it, if one does, and the durable session, if
//! there is one: its number, its epoch, and its Session Expiry Interval.
//!
//! - **Claim** (a CONNECT): the connection becomes the owner. The one before is no owner any more, and never again. A
//!   durable session is resumed with the next epoch, and Session Present is 1. Otherwise Session Present is 0, and the
//!   number of a new session is greater than that of each earlier one. Its first epoch is 1. A session is not resumed,
//!   but ends, if
//!   - the Claim has Clean Start [MQTT-3.1.2-4], or
//!   - its Session Expiry Interval was 0, because a session with that value ends with its connection, or
//!   - its Session Expiry Interval may have passed since its connection ended.
//! - **Serve** (a PUBLISH with its PUBACK or PUBREC): the connection is the owner.
//! - **Release** (a DISCONNECT): the connection is no owner any more. If it was, its session gets the Session Expiry
//!   Interval of DISCONNECT. With 0 the session ends. A Release of a connection that is no owner changes nothing.
//!
//! A Claim begins with CONNECT and ends with CONNACK. If CONNACK does not wait for the claim, it ends with the first
//! acknowledgement. Of the PUBLISHes of a connection, the history has the last. The earlier ones say nothing more: a
//! connection owns its Client Identifier once, from its Claim on, and without a gap.
//!
//! The number of the session and its epoch are what the node knows when it writes to the client.
//!
//! # What is excused
//! - A Claim that was refused, or whose CONNACK did not arrive, may take effect later or never. If the node knew its
//!   epoch, it took effect with that epoch or never. A worker's requests to a shard keep their order, and a node's
//!   incarnations, too. So it takes no effect any more after a later Claim was answered that came from the same worker,
//!   or from a later process of the node.
//! - A Release may take effect later or never if the incarnation of the node is over before a later Claim is answered.
//!   Otherwise it takes effect before the client sees the end of the connection. It may also take effect late if the
//!   node closed the connection for another reason.
//! - The end of a connection without DISCONNECT is no operation: the next Claim takes the session from its owner. It
//!   matters for the expiry only, which begins at the first moment when it can: when the node notices the end of the
//!   connection, or when its incarnation is over.
//!
//! # What is not checked
//! Nothing says when the shard has committed the end of a connection. So a session may be found as late as you like
//! after its Session Expiry Interval, but never too early to be gone.

use std::collections::BTreeMap;

use crate::linearizability::{Specification, Timed, Verdict, check};
use crate::net::Link;
use crate::report::Report;
use crate::schedule::{MILLI, Micros, SECOND};

/// Claims of all connections.
pub struct Claims {
    connections: BTreeMap<Link, Connection>,
    /// Worker of each connection.
    origins: BTreeMap<Link, Origin>,
    /// CONNACK does not wait for a Claim with Clean Start.
    overlaps: bool,
}

/// A worker in one process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub node: usize,
    /// Number of the process, greater than those of earlier ones.
    pub process: u32,
    pub worker: usize,
}

struct Connection {
    client_id: String,
    clean_start: bool,
    expiry_s: u32,
    sent: Micros,
    /// Session Present of CONNACK.
    present: Option<bool>,
    answered: Option<Micros>,
    session: Option<SessionNumber>,
    /// The last message that was acknowledged: when it was sent, and when the acknowledgement came.
    served: Option<(Micros, Micros)>,
    release: Option<Release>,
    /// First time at which the node knew that the connection had ended, or was over itself.
    ended: Option<Micros>,
    /// Time at which the incarnation of the node was over.
    node_ended: Option<Micros>,
}

struct Release {
    sent: Micros,
    expiry_s: Option<u32>,
    /// The client has seen the end of the connection, and no other reason for it.
    answered: Option<Micros>,
}

/// Number of a durable session, and the epoch in which a connection owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionNumber {
    pub number: u64,
    pub epoch: u32,
}

/// Maximum number of configurations that the check of one history visits.
const CONFIGURATIONS_MAX: usize = 200_000;
/// Maximum difference between the time of the simulation and that of a node.
const CLOCKS: Micros = 5 * MILLI;
/// Session Expiry Interval of a session that does not expire.
const NEVER: u32 = u32::MAX;

impl Claims {
    pub fn new(overlaps: bool) -> Self {
        Self { connections: BTreeMap::new(), origins: BTreeMap::new(), overlaps }
    }

    /// Notes the worker of a connection.
    pub fn opened(&mut self, link: Link, origin: Origin) {
        self.origins.insert(link, origin);
    }

    /// Notes a CONNECT.
    pub fn begin(&mut self, now: Micros, link: Link, client_id: &str, clean_start: bool, expiry_s: u32) {
        let connection = Connection {
            client_id: client_id.to_owned(),
            clean_start,
            expiry_s,
            sent: now,
            present: None,
            answered: None,
            session: None,
            served: None,
            release: None,
            ended: None,
            node_ended: None,
        };
        self.connections.insert(link, connection);
    }

    /// Notes a CONNACK that refuses nothing.
    pub fn connected(&mut self, now: Micros, link: Link, session_present: bool) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        connection.present = Some(session_present);
        if !(self.overlaps && connection.clean_start) {
            connection.answered = Some(now);
        }
    }

    /// Returns whether the Claim of a connection is answered.
    pub fn is_answered(&self, link: Link) -> bool {
        self.connections.get(&link).is_some_and(|connection| connection.answered.is_some())
    }

    /// Notes the acknowledgement of a message.
    pub fn served(&mut self, now: Micros, link: Link, sent: Micros) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        connection.answered.get_or_insert(now);
        if connection.served.is_none_or(|(last, _)| last <= sent) {
            connection.served = Some((sent, now));
        }
    }

    /// Notes a DISCONNECT of a client.
    pub fn leave(&mut self, now: Micros, link: Link, expiry_s: Option<u32>) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        connection.release = Some(Release { sent: now, expiry_s, answered: None });
    }

    /// Notes that a client sees the end of a connection that it has left.
    pub fn left(&mut self, now: Micros, link: Link) {
        let connection = self.connections.get_mut(&link);
        if let Some(release) = connection.and_then(|connection| connection.release.as_mut()) {
            release.answered = Some(now);
        }
    }

    /// Notes the session of a connection, as the node knows it.
    pub fn granted(&mut self, link: Link, session: SessionNumber) {
        if let Some(connection) = self.connections.get_mut(&link) {
            connection.session = Some(session);
        }
    }

    /// Notes that a node knows the end of a connection.
    pub fn ended(&mut self, now: Micros, link: Link) {
        if let Some(connection) = self.connections.get_mut(&link) {
            connection.ended.get_or_insert(now);
        }
    }

    /// Notes that the incarnation of the node of a connection is over.
    pub fn node_ended(&mut self, now: Micros, link: Link) {
        self.ended(now, link);
        if let Some(connection) = self.connections.get_mut(&link) {
            connection.node_ended.get_or_insert(now);
        }
    }

    /// Returns whether the incarnation of the node of a connection was over at any time since.
    pub fn has_node_ended(&self, link: Link) -> bool {
        self.connections.get(&link).is_some_and(|connection| connection.node_ended.is_some())
    }

    /// Checks all histories.
    ///
    /// # Panics
    /// Panics when one is not linearizable, or the check of one takes too long.
    pub fn check(&self, report: &mut Report) {
        for (client_id, history) in self.histories() {
            report.agreed_check_owners += 1;
            for Timed { responded, operation, .. } in &history {
                let counter = match operation {
                    _ if responded.is_none() => &mut report.agreed_check_owners_pending,
                    Operation::Claim(Claim { present: Some(true), .. }) => {
                        &mut report.agreed_check_owners_resumed
                    }
                    Operation::Claim(_) => &mut report.agreed_check_owners_new,
                    Operation::Serve { .. } => &mut report.agreed_check_owners_served,
                    Operation::Release { .. } => &mut report.agreed_check_owners_released,
                };
                *counter += 1;
            }
            match check(&Register, &history, CONFIGURATIONS_MAX) {
                Verdict::Linearizable => {}
                Verdict::Exhausted => panic!(
                    "{client_id}: the check of its history visits more than {CONFIGURATIONS_MAX} configurations"
                ),
                Verdict::Violation { state, next } => {
                    let near = near(&history, next);
                    panic!(
                        "{client_id}: the history is not linearizable: after {state:?} comes {:?}\n{near}",
                        history[next]
                    )
                }
            }
        }
    }

    /// Histories by Client Identifier.
    fn histories(&self) -> BTreeMap<&str, Vec<Timed<Operation>>> {
        let mut histories: BTreeMap<&str, Vec<Timed<Operation>>> = BTreeMap::new();
        for (link, connection) in &self.connections {
            let history = histories.entry(&connection.client_id).or_default();
            let claim = Claim {
                link: *link,
                clean_start: connection.clean_start,
                expiry_s: connection.expiry_s,
                ended: connection.ended,
                release: connection.release.as_ref().map(|release| release.expiry_s),
                present: connection.present.filter(|_| connection.answered.is_some()),
                session: connection.session,
            };
            let (invoked, responded) = (connection.sent, connection.answered);
            let effective_until = self.last_effect(connection, *link);
            history.push(Timed { invoked, responded, effective_until, operation: Operation::Claim(claim) });
            if let Some((sent, acknowledged)) = connection.served {
                let operation = Operation::Serve { link: *link };
                history.push(Timed::new(sent, Some(acknowledged), operation));
            }
            // The effect of one whose Claim is not answered is part of the Claim.
            if let Some(release) = connection.release.as_ref().filter(|_| connection.answered.is_some()) {
                let operation = Operation::Release { link: *link, expiry_s: release.expiry_s };
                let responded = release.answered.filter(|at| self.is_released(connection, *at));
                history.push(Timed::new(release.sent, responded, operation));
            }
        }
        histories
    }

    /// Returns the time after which a Claim without an answer takes no effect any more.
    fn last_effect(&self, of: &Connection, link: Link) -> Option<Micros> {
        let (ended, origin) = (of.ended?, self.origins.get(&link)?);
        let comes_later = |other: &Origin| {
            let is_same = other.process == origin.process && other.worker == origin.worker;
            other.node == origin.node && (is_same || other.process > origin.process)
        };
        let later = self
            .connections
            .iter()
            .filter(|(_, other)| other.client_id == of.client_id && other.sent >= ended);
        later
            .filter(|(link, _)| self.origins.get(link).is_some_and(comes_later))
            .filter_map(|(_, other)| other.answered)
            .min()
    }

    /// Returns whether a Release took effect for sure before the client saw the end of the connection: the incarnation
    /// of the node was not over before the answer of a later Claim, which waits for it.
    fn is_released(&self, of: &Connection, seen: Micros) -> bool {
        let Some(node_ended) = of.node_ended else { return true };
        let mut others = self.connections.values().filter(|other| other.client_id == of.client_id);
        others.any(|other| other.sent > seen && other.answered.is_some_and(|answered| answered < node_ended))
    }
}

/// Describes the operations shortly before one, and those at the same time.
fn near(history: &[Timed<Operation>], next: usize) -> String {
    let (from, until) = (history[next].invoked, history[next].responded.unwrap_or(Micros::MAX));
    let mut near: Vec<_> = history
        .iter()
        .filter(|timed| timed.invoked <= until)
        .filter(|timed| timed.responded.is_none_or(|responded| responded + 10 * SECOND >= from))
        .collect();
    near.sort_by_key(|timed| timed.invoked);
    near.iter().map(|timed| format!("  {timed:?}\n")).collect()
}

#[derive(Clone, Debug)]
enum Operation {
    Claim(Claim),
    Serve { link: Link },
    Release { link: Link, expiry_s: Option<u32> },
}

#[derive(Clone, Debug)]
struct Claim {
    link: Link,
    clean_start: bool,
    expiry_s: u32,
    /// First time at which the connection can have ended.
    ended: Option<Micros>,
    /// Session Expiry Interval of the DISCONNECT behind it, if there is one. It takes effect with a Claim that was not
    /// answered, or later, or never.
    release: Option<Option<u32>>,
    /// Session Present, if the Claim was answered.
    present: Option<bool>,
    session: Option<SessionNumber>,
}

/// The register of a Client Identifier.
struct Register;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// Connection that is the owner, if its Claim was answered.
    owner: Option<Link>,
    session: Option<Session>,
    /// Greatest number of a session so far, as far as numbers are known.
    newest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Session {
    /// `None` if only a Claim without an answer had it.
    number: Option<u64>,
    epoch: u32,
    expiry_s: u32,
    /// First time at which it can have expired.
    ends: Micros,
}

impl Specification for Register {
    type Operation = Operation;
    type State = State;

    fn initial(&self) -> State {
        State::default()
    }

    fn apply(&self, state: &State, timed: &Timed<Operation>) -> Vec<State> {
        match &timed.operation {
            Operation::Claim(claim) => claimed(state, claim, timed),
            Operation::Serve { link } if state.owner == Some(*link) => vec![state.clone()],
            Operation::Serve { .. } => Vec::new(),
            Operation::Release { link, .. } if state.owner != Some(*link) => vec![state.clone()],
            Operation::Release { expiry_s, .. } => {
                let session = state.session.clone().map(|session| {
                    let expiry_s = expiry_s.unwrap_or(session.expiry_s);
                    Session { expiry_s, ends: after(timed.invoked, expiry_s), ..session }
                });
                let session = session.filter(|session| session.expiry_s > 0);
                vec![State { owner: None, session, newest: state.newest }]
            }
        }
    }

    fn is_read(&self, operation: &Operation) -> bool {
        matches!(operation, Operation::Serve { .. })
    }

    fn class(&self, timed: &Timed<Operation>) -> Option<u64> {
        let Operation::Claim(Claim { clean_start, expiry_s, session: None, release, .. }) = &timed.operation
        else {
            return None;
        };
        let effect = |expiry_s: u32| if is_over(expiry_s, timed) { expiry_s.min(1) } else { expiry_s };
        let release = match release {
            None => 0,
            Some(None) => 1,
            Some(Some(last)) if *last < 1 << 30 => u64::from(effect(*last)) + 2,
            Some(Some(_)) => return None,
        };
        Some(release << 33 | u64::from(effect(*expiry_s)) << 1 | u64::from(*clean_start))
    }
}

/// Returns the possible states after a Claim.
fn claimed(state: &State, claim: &Claim, timed: &Timed<Operation>) -> Vec<State> {
    let until = timed.responded.unwrap_or(Micros::MAX);
    let existing = state.session.as_ref().filter(|session| !claim.clean_start && session.expiry_s > 0);
    let may_be_over = existing.is_some_and(|session| session.ends <= until.saturating_add(CLOCKS));
    let begun = may_be_over.then_some(None);
    [Some(existing), begun]
        .into_iter()
        .flatten()
        .filter_map(|it| resume_or_begin(state, it, claim, timed))
        .flat_map(|state| [Some(state.clone()), left(state, claim, timed)].into_iter().flatten())
        .map(|state| if timed.responded.is_none() { unanswered(state, timed) } else { state })
        .collect()
}

/// Returns the state after a Claim without an answer. Nobody owns the session. So its Session Expiry Interval makes no
/// difference any more, except that it may be over when the next Claim takes effect.
fn unanswered(state: State, timed: &Timed<Operation>) -> State {
    let session = state.session.map(|session| {
        let ends = if is_over(session.expiry_s, timed) { 0 } else { session.ends };
        Session { expiry_s: session.expiry_s.min(1), ends, ..session }
    });
    State { session, ..state }
}

/// Returns whether the session of a Claim without an answer may be over whenever the next Claim takes effect.
fn is_over(expiry_s: u32, claim: &Timed<Operation>) -> bool {
    after(0, expiry_s) <= claim.invoked
}

/// Returns the state after the DISCONNECT behind a Claim that was not answered.
fn left(state: State, claim: &Claim, timed: &Timed<Operation>) -> Option<State> {
    let release = claim.release.filter(|_| timed.responded.is_none())?;
    let session = state.session.map(|session| {
        let expiry_s = release.unwrap_or(session.expiry_s);
        Session { expiry_s, ends: after(0, expiry_s), ..session }
    });
    Some(State { session: session.filter(|session| session.expiry_s > 0), ..state })
}

/// Returns the state after a Claim that finds a session, or none.
fn resume_or_begin(
    state: &State,
    existing: Option<&Session>,
    claim: &Claim,
    timed: &Timed<Operation>,
) -> Option<State> {
    if claim.present.is_some_and(|present| present != existing.is_some()) {
        return None;
    }
    // Claims without an answer are alike: no connection of them is known to be served, or for how long it was there.
    let (owner, ended) = match timed.responded {
        Some(_) => (Some(claim.link), claim.ended),
        None => (None, Some(0)),
    };
    let mut newest = state.newest;
    if existing.is_none() && claim.expiry_s == 0 {
        // The session ends with the connection, and has no number.
        return claim.session.is_none().then_some(State { owner, session: None, newest });
    }
    let (mut number, epoch) = match existing {
        Some(session) => (session.number, session.epoch + 1),
        None => (None, 1),
    };
    if let Some(seen) = claim.session {
        let fits = number.map_or(seen.number > newest, |number| number == seen.number);
        if !fits || seen.epoch != epoch {
            return None;
        }
        number = Some(seen.number);
        newest = newest.max(seen.number);
    }
    let ends = ended.map_or(Micros::MAX, |ended| after(ended, claim.expiry_s));
    let session = Some(Session { number, epoch, expiry_s: claim.expiry_s, ends });
    Some(State { owner, session, newest })
}

/// Time at which a session expires whose connection ends at a time.
fn after(ended: Micros, expiry_s: u32) -> Micros {
    if expiry_s == NEVER { Micros::MAX } else { ended.saturating_add(Micros::from(expiry_s) * SECOND) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u32 = 24 * 3600;

    fn claim(
        link: Link,
        times: (Micros, Micros),
        present: bool,
        number: u64,
        epoch: u32,
    ) -> Timed<Operation> {
        let claim = Claim {
            link,
            clean_start: false,
            expiry_s: DAY,
            ended: None,
            release: None,
            present: Some(present),
            session: Some(SessionNumber { number, epoch }),
        };
        Timed::new(times.0, Some(times.1), Operation::Claim(claim))
    }

    /// The Claim of an ephemeral session.
    fn ephemeral(link: Link, times: (Micros, Micros)) -> Timed<Operation> {
        with(claim(link, times, false, 0, 0), |claim| (claim.expiry_s, claim.session) = (0, None))
    }

    /// The same Claim without an answer. The node does not know the session either.
    fn lost(timed: Timed<Operation>) -> Timed<Operation> {
        let timed = with(timed, |claim| (claim.present, claim.session) = (None, None));
        Timed { responded: None, ..timed }
    }

    fn with(mut timed: Timed<Operation>, change: impl FnOnce(&mut Claim)) -> Timed<Operation> {
        if let Operation::Claim(claim) = &mut timed.operation {
            change(claim);
        }
        timed
    }

    fn serve(link: Link, invoked: Micros, responded: Micros) -> Timed<Operation> {
        Timed::new(invoked, Some(responded), Operation::Serve { link })
    }

    fn release(link: Link, invoked: Micros, responded: Option<Micros>, expiry_s: u32) -> Timed<Operation> {
        let expiry_s = Some(expiry_s);
        Timed::new(invoked, responded, Operation::Release { link, expiry_s })
    }

    fn is_allowed(history: &[Timed<Operation>]) -> bool {
        match check(&Register, history, 10_000) {
            Verdict::Linearizable => true,
            Verdict::Violation { .. } => false,
            Verdict::Exhausted => panic!("too many configurations"),
        }
    }

    #[test]
    fn two_connections_do_not_take_turns() {
        let claims = [ephemeral(1, (10, 20)), ephemeral(2, (30, 40))];
        assert!(is_allowed(&[&claims[..], &[serve(1, 21, 29), serve(2, 41, 42)]].concat()));
        // The second Claim may take effect after the message was taken.
        assert!(is_allowed(&[&claims[..], &[serve(1, 35, 45), serve(2, 41, 42)]].concat()));
        assert!(!is_allowed(&[&claims[..], &[serve(1, 41, 45)]].concat()));
        let both = [ephemeral(1, (10, 20)), ephemeral(2, (10, 20)), serve(1, 30, 31), serve(2, 32, 33)];
        assert!(!is_allowed(&both), "neither is the only owner");
    }

    #[test]
    fn a_session_is_resumed_with_the_next_epoch() {
        let first = claim(1, (10, 20), false, 5, 1);
        assert!(is_allowed(&[first.clone(), claim(2, (30, 40), true, 5, 2)]));
        assert!(!is_allowed(&[first.clone(), claim(2, (30, 40), true, 5, 1)]), "the epoch of another");
        assert!(!is_allowed(&[first.clone(), claim(2, (30, 40), true, 5, 3)]), "nobody had the second epoch");
        assert!(!is_allowed(&[first.clone(), claim(2, (30, 40), true, 6, 2)]), "another session");
        assert!(!is_allowed(&[first.clone(), claim(2, (30, 40), false, 6, 1)]), "the session is lost");
        let unanswered = lost(claim(3, (25, 26), true, 5, 2));
        assert!(is_allowed(&[first, unanswered, claim(2, (30, 40), true, 5, 3)]));
    }

    #[test]
    fn clean_start_ends_a_session_for_good() {
        let clean = |timed| with(timed, |claim| claim.clean_start = true);
        let first = claim(1, (10, 20), false, 5, 1);
        let second = clean(claim(2, (30, 40), false, 6, 1));
        assert!(is_allowed(&[first.clone(), second.clone(), claim(3, (50, 60), true, 6, 2)]));
        assert!(!is_allowed(&[first.clone(), second, claim(3, (50, 60), true, 5, 2)]));
        assert!(!is_allowed(&[first.clone(), clean(claim(2, (30, 40), true, 5, 2))]));
        assert!(!is_allowed(&[first, clean(claim(2, (30, 40), false, 4, 1))]), "its number is not new");
    }

    #[test]
    fn a_session_ends_after_its_expiry_and_not_before() {
        let short = with(claim(1, (10, 20), false, 5, 1), |claim| {
            (claim.expiry_s, claim.ended) = (2, Some(SECOND));
        });
        let at = |time: Micros, present, number, epoch| {
            [short.clone(), claim(2, (time, time + MILLI), present, number, epoch)]
        };
        assert!(is_allowed(&at(2 * SECOND, true, 5, 2)));
        assert!(!is_allowed(&at(2 * SECOND, false, 6, 1)));
        assert!(is_allowed(&at(3 * SECOND, false, 6, 1)));
        assert!(is_allowed(&at(4 * SECOND, true, 5, 2)), "the shard may learn late of the end");
        let connected = with(short.clone(), |claim| claim.ended = None);
        assert!(!is_allowed(&[connected, claim(2, (90 * SECOND, 91 * SECOND), false, 6, 1)]));
    }

    #[test]
    fn an_expiry_of_zero_ends_the_session_with_its_connection() {
        let first = claim(1, (10, 20), false, 5, 1);
        let last = with(claim(2, (30, 40), true, 5, 2), |claim| claim.expiry_s = 0);
        assert!(is_allowed(&[first.clone(), last.clone(), claim(3, (50, 60), false, 6, 1)]));
        assert!(!is_allowed(&[first.clone(), last, claim(3, (50, 60), true, 5, 3)]));
        let left = [first.clone(), release(1, 21, Some(25), 0)];
        assert!(is_allowed(&[&left[..], &[claim(2, (30, 40), false, 6, 1)]].concat()));
        assert!(!is_allowed(&[&left[..], &[claim(2, (30, 40), true, 5, 2)]].concat()));
        // Without the end of the connection, the Release may come late or never.
        let leaves = [first, release(1, 21, None, 0)];
        assert!(is_allowed(&[&leaves[..], &[claim(2, (30, 40), true, 5, 2)]].concat()));
        assert!(is_allowed(&[&leaves[..], &[claim(2, (30, 40), false, 6, 1)]].concat()));
    }

    #[test]
    fn a_release_of_an_earlier_owner_changes_nothing() {
        let first = claim(1, (10, 20), false, 5, 1);
        let second = claim(2, (30, 40), true, 5, 2);
        let late = release(1, 25, None, 0);
        assert!(is_allowed(&[first.clone(), second.clone(), late.clone(), serve(2, 50, 60)]));
        assert!(!is_allowed(&[first, second, late, claim(3, (70, 80), false, 6, 1)]));
    }

    /// CONNACK may come before the Claim is answered. DISCONNECT follows, and nothing else is acknowledged.
    #[test]
    fn a_session_that_began_without_an_answer_may_be_released() {
        let first = claim(1, (0, 10), false, 7, 1);
        let second = |release| {
            with(lost(claim(2, (20, 30), false, 8, 1)), |claim| {
                (claim.clean_start, claim.session, claim.release) = (true, None, release);
            })
        };
        let left = release(2, 40, None, 0);
        let third = claim(3, (50, 60), false, 9, 1);
        assert!(is_allowed(&[first.clone(), second(Some(Some(0))), left, third.clone()]));
        assert!(!is_allowed(&[first, second(None), third]));
    }

    #[test]
    fn a_release_is_excused_if_the_node_was_over_before_a_later_claim_was_answered() {
        let mut claims = Claims::new(false);
        let session = |epoch| SessionNumber { number: 1, epoch };
        claims.begin(10, 1, "a", false, DAY);
        claims.granted(1, session(1));
        claims.connected(20, 1, false);
        claims.leave(30, 1, Some(0));
        claims.left(40, 1);
        claims.begin(50, 2, "a", false, DAY);
        claims.granted(2, session(2));
        claims.connected(70, 2, true);
        let verdict = |claims: &Claims| check(&Register, &claims.histories()["a"], 100);
        assert!(matches!(verdict(&claims), Verdict::Violation { next: 2, .. }));
        claims.node_ended(80, 1);
        assert!(matches!(verdict(&claims), Verdict::Violation { .. }));
        claims.connections.get_mut(&1).expect("noted").node_ended = Some(60);
        assert_eq!(verdict(&claims), Verdict::Linearizable);
    }

    #[test]
    fn many_claims_without_an_answer_are_checked_fast() {
        let mut history = vec![claim(0, (0, 1), false, 1, 1)];
        for at in 1..=40 {
            let from = Micros::from(at as u32) * 10;
            history.push(lost(claim(at, (from, from), true, 0, 0)));
        }
        history.push(claim(50, (1_000, 1_001), true, 1, 42));
        assert!(is_allowed(&history));
        history.push(claim(51, (1_002, 1_003), true, 1, 44));
        assert!(!is_allowed(&history));
    }
}
