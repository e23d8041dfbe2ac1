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
    /// An operator's request waits for the end of the membership. `progress` is the last one of the shards.
    Waiting { request: ProposalId, deadline: Time, progress: ShardProgress },
    /// The request was answered. The node does not join again.
    Ended,
}

/// Progress of the shards of a core that leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardProgress {
    /// Version of the placement: it grows when a change of a shard begins, and when one is done.
    pub version: u64,
    /// Number of replicas that the core has.
    pub replicas: usize,
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
/// has left. The time begins again with each change of a shard.
const LEAVING_MAX: Duration = Duration::from_secs(60);
/// The same, while the core has replicas of shards: a large shard takes long to copy.
const SHARD_MAX: Duration = Duration::from_secs(600);

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
        let progress = ShardProgress::default();
        self.leave = Leave::Waiting { request, deadline: now.after(LEAVING_MAX), progress };
    }

    /// Returns whether this node leaves, or has left.
    pub fn is_leaving(&self) -> bool {
        !matches!(self.leave, Leave::Stays)
    }

    /// Returns the next step of the leave. `own` is this incarnation while it is a member, and `shards` are the shards
    /// of this core.
    pub fn continue_leave(&mut self, now: Time, own: Option<&Member>, shards: ShardProgress) -> LeaveStep {
        let Leave::Waiting { request, deadline, progress } = &mut self.leave else {
            return LeaveStep::Nothing;
        };
        if own.is_some_and(|own| own.leaves) && *progress != shards {
            let limit = if shards.replicas > 0 { SHARD_MAX } else { LEAVING_MAX };
            (*deadline, *progress) = (now.after(limit), shards);
        }
        let (request, is_late) = (*request, *deadline <= now);
        let outcome = match own {
            None => Ok(Answer::Done),
            Some(_) if is_late && shards.replicas > 0 => Err(format!(
                "{} replicas of shards have not moved to other cores in time: check that enough cores are running, and that they have room",
                shards.replicas
            )),
            Some(_) if is_late => {
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

    /// Shards in a cluster that has not placed any.
    const NONE: ShardProgress = ShardProgress { version: 0, replicas: 0 };

    fn member(leaves: bool) -> Member {
        let info = NodeInfo { name: "n".into(), role: Role::Core, region: "".into(), address: "h:1".into() };
        Member { info, incarnation: Incarnation(1), state: State::Alive, leaves, replica: None }
    }

    #[test]
    fn a_leave_is_proposed_until_it_is_agreed_and_answered_once() {
        let mut admission = Admission::default();
        assert!(!admission.is_leaving());
        assert_eq!(admission.continue_leave(Time(0), Some(&member(false)), NONE), LeaveStep::Nothing);
        admission.leave(Time(0), ProposalId(7));
        assert_eq!(admission.continue_leave(Time(1), Some(&member(false)), NONE), LeaveStep::Propose);
        assert_eq!(admission.continue_leave(Time(1), Some(&member(true)), NONE), LeaveStep::Nothing);
        assert_eq!(
            admission.continue_leave(Time(2), None, NONE),
            LeaveStep::Answer(ProposalId(7), Ok(Answer::Done))
        );
        assert_eq!(admission.continue_leave(Time(3), None, NONE), LeaveStep::Nothing);
        assert!(admission.is_leaving(), "it does not join again");
    }

    #[test]
    fn a_leave_without_a_majority_ends_with_an_error() {
        let mut admission = Admission::default();
        admission.leave(Time(0), ProposalId(7));
        let late = Time(0).after(LEAVING_MAX);
        let step = admission.continue_leave(late, Some(&member(true)), NONE);
        assert!(matches!(step, LeaveStep::Answer(ProposalId(7), Err(_))));
        assert_eq!(admission.continue_leave(late, Some(&member(false)), NONE), LeaveStep::Nothing);
    }

    /// The time for a leave begins again with each change of a shard, and ends when nothing changes.
    #[test]
    fn a_leave_lasts_as_long_as_shards_move() {
        let mut admission = Admission::default();
        admission.leave(Time(0), ProposalId(7));
        let leaves = member(true);
        let mut now = Time(0);
        for moved in 0..16 {
            let shards = ShardProgress { version: 10 + moved, replicas: 16 - moved as usize };
            assert_eq!(admission.continue_leave(now, Some(&leaves), shards), LeaveStep::Nothing, "{moved}");
            now = now.after(SHARD_MAX - LEAVING_MAX);
            assert_eq!(admission.continue_leave(now, Some(&leaves), shards), LeaveStep::Nothing, "{moved}");
        }
        let last = ShardProgress { version: 26, replicas: 0 };
        assert_eq!(admission.continue_leave(now, Some(&leaves), last), LeaveStep::Nothing);
        let late = now.after(LEAVING_MAX);
        let step = admission.continue_leave(late, Some(&leaves), last);
        assert!(matches!(step, LeaveStep::Answer(ProposalId(7), Err(why)) if why.contains("majority")));
        admission.leave(Time(0), ProposalId(8));
        let shards = ShardProgress { version: 26, replicas: 3 };
        assert_eq!(admission.continue_leave(Time(0), Some(&leaves), shards), LeaveStep::Nothing);
        let step = admission.continue_leave(Time(0).after(SHARD_MAX), Some(&leaves), shards);
        assert!(matches!(step, LeaveStep::Answer(ProposalId(8), Err(why)) if why.contains("3 replicas")));
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
