//! Admission of this node to its cluster, and its leave.

use std::time::Duration;

use link::Time;
use replog::Incarnation;

use super::{Answer, Member, ProposalId};

/// Answers of the cores to this node's request to join, and its request to leave.
#[derive(Debug, Default)]
pub struct Admission {
    /// Smallest incarnation that may join, when this one's number is too small.
    refused: Option<Incarnation>,
    /// Reason why the cores do not admit this node.
    rejection: Option<Box<str>>,
    leave: Leave,
}

/// Phase of a node that may leave the cluster.
#[derive(Debug, Default)]
enum Leave {
    #[default]
    Stays,
    /// An operator's request waits for the end of the membership.
    Waiting { request: ProposalId, deadline: Time },
    /// The request was answered. The node does not join again.
    Ended,
}

/// Next step of a node that leaves.
#[derive(Debug, PartialEq, Eq)]
pub enum LeaveStep {
    Nothing,
    /// The leave must be proposed.
    Propose,
    /// The operator's request has this outcome.
    Answer(ProposalId, Result<Answer, String>),
}

/// Maximum time to wait for a node that leaves. Cores leave one after the other, each when the rest knows that the last
/// has left.
const LEAVING_MAX: Duration = Duration::from_secs(60);

impl Admission {
    /// Notes that only a later incarnation may join.
    pub fn refuse(&mut self, next: Incarnation) {
        self.refused = Some(next);
    }

    /// Returns whether only a later incarnation may join.
    pub fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns the incarnation that joins next: `next`, or the smallest one that may join.
    pub fn next_incarnation(&mut self, next: Incarnation) -> Incarnation {
        self.refused.take().map_or(next, |refused| refused.max(next))
    }

    /// Notes why the cores do not admit this node.
    pub fn reject(&mut self, why: Box<str>) {
        self.rejection = Some(why);
    }

    pub fn rejection(&self) -> Option<&str> {
        self.rejection.as_deref()
    }

    /// Begins to leave, for the rest of this process.
    pub fn leave(&mut self, now: Time, request: ProposalId) {
        self.leave = Leave::Waiting { request, deadline: now.after(LEAVING_MAX) };
    }

    /// Returns whether this node leaves, or has left.
    pub fn is_leaving(&self) -> bool {
        !matches!(self.leave, Leave::Stays)
    }

    /// Returns the next step of the leave. `own` is this incarnation while it is a member.
    pub fn continue_leave(&mut self, now: Time, own: Option<&Member>) -> LeaveStep {
        let Leave::Waiting { request, deadline } = self.leave else { return LeaveStep::Nothing };
        let outcome = match own {
            None => Ok(Answer::Done),
            Some(_) if deadline <= now => {
                Err("no majority of the cores has agreed in time to its leaving".to_owned())
            }
            Some(own) if own.leaves => return LeaveStep::Nothing,
            Some(_) => return LeaveStep::Propose,
        };
        self.leave = Leave::Ended;
        LeaveStep::Answer(request, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{NodeInfo, Role};
    use crate::meta::State;

    fn member(leaves: bool) -> Member {
        let info = NodeInfo { name: "n".into(), role: Role::Core, region: "".into(), address: "h:1".into() };
        Member { info, incarnation: Incarnation(1), state: State::Alive, leaves, replica: None }
    }

    #[test]
    fn a_leave_is_proposed_until_it_is_agreed_and_answered_once() {
        let mut admission = Admission::default();
        assert!(!admission.is_leaving());
        assert_eq!(admission.continue_leave(Time(0), Some(&member(false))), LeaveStep::Nothing);
        admission.leave(Time(0), ProposalId(7));
        assert_eq!(admission.continue_leave(Time(1), Some(&member(false))), LeaveStep::Propose);
        assert_eq!(admission.continue_leave(Time(1), Some(&member(true))), LeaveStep::Nothing);
        assert_eq!(
            admission.continue_leave(Time(2), None),
            LeaveStep::Answer(ProposalId(7), Ok(Answer::Done))
        );
        assert_eq!(admission.continue_leave(Time(3), None), LeaveStep::Nothing);
        assert!(admission.is_leaving(), "it does not join again");
    }

    #[test]
    fn a_leave_without_a_majority_ends_with_an_error() {
        let mut admission = Admission::default();
        admission.leave(Time(0), ProposalId(7));
        let late = Time(0).after(LEAVING_MAX);
        let step = admission.continue_leave(late, Some(&member(true)));
        assert!(matches!(step, LeaveStep::Answer(ProposalId(7), Err(_))));
        assert_eq!(admission.continue_leave(late, Some(&member(false))), LeaveStep::Nothing);
    }

    #[test]
    fn the_next_incarnation_is_one_that_may_join() {
        let mut admission = Admission::default();
        assert_eq!(admission.next_incarnation(Incarnation(3)), Incarnation(3));
        admission.refuse(Incarnation(9));
        assert!(admission.is_refused());
        assert_eq!(admission.next_incarnation(Incarnation(3)), Incarnation(9));
        assert!(!admission.is_refused(), "it joins with that number");
    }
}
