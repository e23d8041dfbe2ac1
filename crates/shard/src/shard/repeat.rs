//! Recognition of commands that come again after a change of leader, and their answers.

use mqtt::{ReasonCode, Subscription};

use crate::command::{Acknowledgement, Claim, Command, Enqueue, Filter};
use crate::effect::{Answer, Subscribed};
use crate::entry::Phase;
use crate::eras::{Entered, NodeIncarnation};
use crate::ids::Identity;
use crate::mutation::{Mutation, mutated};
use crate::request_number::RequestNumber;
use crate::requests::ClaimResult;
use crate::route::Options;
use crate::session::Session;
use crate::shard::Shard;
use crate::shard::subscribe::granted_reason;

impl Shard {
    /// Checks and notes the number of a command. Returns its answer when it is not applied: it is a repeat, or its
    /// owner is over. Such a command changes nothing.
    pub(super) fn answer_repeat(&mut self, command: &Command<'_>, request: RequestNumber) -> Option<Answer> {
        match (request, command) {
            (RequestNumber::Claim { number }, Command::Claim(claim)) => self.repeat_of_claim(claim, number),
            (RequestNumber::Claim { .. }, _) => None,
            (RequestNumber::Lane { owner, lane, number }, _) => {
                self.repeat_of_lane(command, owner, lane, number)
            }
            (RequestNumber::Connection { epoch, number }, _) => {
                self.repeat_of_connection(command, epoch, number)
            }
        }
    }

    /// Returns the era of an owner, which begins if this is its first command.
    ///
    /// # Errors
    /// The answer to a command of an owner that is over, or that the shard has no room to remember.
    pub(super) fn enter(&mut self, owner: Option<NodeIncarnation>) -> Result<u32, Answer> {
        let (entered, must_sweep) = self.eras.enter(owner, self.now, self.has_owned());
        if must_sweep {
            self.sweep = 0;
        }
        match entered {
            Entered::Era(era) => Ok(era),
            Entered::Over => {
                self.counts.stale += 1;
                Err(Answer::Stale)
            }
            Entered::Full => Err(Answer::Full),
        }
    }

    /// Answers a Claim that comes again. It never takes a session from another Claim, nor gives one to a connection
    /// that has released it.
    fn repeat_of_claim(&mut self, claim: &Claim<'_>, number: u64) -> Option<Answer> {
        let owner = claim.owner?;
        if let Err(answer) = self.enter(Some(owner)) {
            return Some(answer);
        }
        let result = self.eras.claim(owner.node, number)?;
        if mutated(Mutation::TakeBack) {
            return None;
        }
        self.counts.requests_repeated += 1;
        let answer = self.answer_of_claim(claim, result);
        self.counts.stale += u64::from(answer == Answer::Stale);
        Some(answer)
    }

    fn answer_of_claim(&self, claim: &Claim<'_>, result: ClaimResult) -> Answer {
        let Some((uid, epoch, present)) = result else {
            // A session that exists now was begun by a later Claim.
            let is_taken = self.sessions.slot_of(claim.client_id).is_some()
                || self.ephemerals.slot_of(claim.client_id).is_some();
            let first = Answer::Claimed { session: None, epoch: 0, present: false };
            return if is_taken { Answer::Stale } else { first };
        };
        if let Some(session) = self.ephemerals.get(uid).filter(|session| self.eras.is_live(session.era)) {
            debug_assert_eq!(*session.client_id, *claim.client_id);
            return Answer::Claimed { session: None, epoch, present };
        }
        match self.sessions.get(uid) {
            // Each Claim has an epoch of its own.
            Some(session) if session.epoch == epoch && self.is_owned(session) => {
                Answer::Claimed { session: Some(uid), epoch, present }
            }
            _ => Answer::Stale,
        }
    }

    fn repeat_of_lane(
        &mut self,
        command: &Command<'_>,
        owner: NodeIncarnation,
        lane: u16,
        number: u64,
    ) -> Option<Answer> {
        if let Err(answer) = self.enter(Some(owner)) {
            return Some(answer);
        }
        if self.eras.advance(owner.node, lane, number) || mutated(Mutation::ForgetProducers) {
            return None;
        }
        self.counts.requests_repeated += 1;
        let may_be_refused = self.eras.may_have_refused(owner.node, lane, number);
        Some(match command {
            Command::Enqueue(enqueue) => self.repeated_enqueue(enqueue, may_be_refused),
            Command::Publish { wait: true, identity, .. } if may_be_refused && !self.knows_any(*identity) => {
                Answer::PerhapsRefused
            }
            Command::Forget(_) | Command::ForgetBelow(_) | Command::ForgetOrigin { .. } => Answer::Done,
            _ => Answer::Repeated,
        })
    }

    /// Notes that a command which was not a repeat was refused. If it comes again, it must not count as accepted.
    pub(super) fn note_refused(&mut self, request: RequestNumber) {
        if let RequestNumber::Lane { owner, lane, number } = request {
            self.eras.note_refused(owner.node, lane, number);
        }
    }

    /// Returns whether a message with this identity was accepted, if it has one.
    fn knows_any(&self, identity: Option<Identity>) -> bool {
        identity.is_some_and(|identity| self.identities.contains(identity))
    }

    /// Answers an Enqueue that comes again. A session that is gone may have been gone before: then the message was
    /// not queued and its sender needs to know.
    fn repeated_enqueue(&self, enqueue: &Enqueue<'_>, may_be_refused: bool) -> Answer {
        let session = enqueue.session;
        match () {
            () if self.knows_any(enqueue.identity) => Answer::Repeated,
            () if self.sessions.get(session).is_none() => Answer::Gone,
            () if may_be_refused => Answer::Refused { session },
            () => Answer::Repeated,
        }
    }

    fn repeat_of_connection(&mut self, command: &Command<'_>, epoch: u32, number: u64) -> Option<Answer> {
        let (uid, _) = command.of_session()?;
        let Some(session) = self.sessions.get(uid) else { return Some(Answer::Gone) };
        let (slot, bucket) = (uid.slot(), session.bucket);
        let is_repeat = session.epoch == epoch && number <= self.sessions.last_number(slot);
        if is_repeat && !is_overlooked(command) {
            self.counts.requests_repeated += 1;
            return Some(self.repeated_command(slot, command));
        }
        if session.epoch != epoch || !self.is_owned(session) {
            self.counts.stale += 1;
            return Some(Answer::Stale);
        }
        self.touch(bucket);
        self.sessions.set_last_number(slot, number);
        None
    }

    /// Answers a command of a connection that comes again, so that its client gets the packet that it waits for.
    fn repeated_command(&self, slot: u32, command: &Command<'_>) -> Answer {
        let Some(session) = self.sessions.at(slot) else { return Answer::Gone };
        match command {
            Command::Acknowledge { packet_id, kind: Acknowledgement::PubRec, .. } => {
                let queue = session.queue.as_ref();
                let open = queue.and_then(|queue| {
                    let n = queue.numbered(*packet_id)?;
                    Some((n, queue.get(n)?.phase()))
                });
                match open {
                    Some((n, Phase::Received)) => Answer::Release { n, again: true },
                    // Another delivery has the Packet Identifier now.
                    Some((_, Phase::Pinned)) => Answer::Repeated,
                    _ => Answer::Unknown,
                }
            }
            Command::Receive { packet_id, .. } => {
                let inbound = session.inbound();
                match inbound.filter(|inbound| inbound.received().any(|id| id == *packet_id)) {
                    // The publish may not have reached any shard yet. Its identity protects those that it has reached.
                    Some(inbound) => Answer::Received { toggle: inbound.toggle(*packet_id), again: false },
                    None => Answer::Repeated,
                }
            }
            Command::Subscribe { filters, .. } => Answer::Subscribed {
                results: filters.iter().map(|filter| session_result(session, filter)).collect(),
            },
            Command::Unsubscribe { filters, .. } => {
                Answer::Unsubscribed { results: filters.iter().map(|_| ReasonCode::Success).collect() }
            }
            Command::Acknowledge { .. } => Answer::Repeated,
            _ => Answer::Done,
        }
    }
}

/// Returns the result for a filter of a Subscribe that comes again, as far as the present subscriptions show it.
fn session_result(session: &Session, filter: &Filter<'_>) -> Subscribed {
    let refused = |reason| Subscribed { reason, existed: false };
    if Subscription::parse(filter.text).is_err() {
        return refused(ReasonCode::TopicFilterInvalid);
    }
    if !session.subscriptions.contains(filter.text) {
        return refused(ReasonCode::QuotaExceeded);
    }
    let qos = Options(filter.options).qos();
    // A subscription at QoS 1 or 2 gets its retained messages by a walk. One at QoS 0 gets them once more.
    let has_walk = session.walks().any(|(walked, _)| walked == filter.text);
    Subscribed { reason: granted_reason(qos), existed: qos > mqtt::QoS::AtMostOnce && !has_walk }
}

/// Returns whether a fault applies a command again.
fn is_overlooked(command: &Command<'_>) -> bool {
    match command {
        Command::Released { .. } => mutated(Mutation::FlipAgain),
        Command::Acknowledge { .. } => mutated(Mutation::FinishAgain),
        _ => false,
    }
}
