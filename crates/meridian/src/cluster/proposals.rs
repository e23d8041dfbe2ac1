//! Proposals of operators to the meta group: the queue between the API and the cluster router.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use api::{OrderCallback, OrderError};
use cluster::meta::{Answer, Command, ProposalId, RecordBatch};
use cluster::{ClusterRouter, RouterCommand};
use configstore::{ProposalCallback, ProposalFailed};
use replog::Incarnation;
use transport::Sender;

/// Maximum number of waiting proposals; the cluster router has the same limit.
const PROPOSALS_MAX: usize = 256;

/// Waiting proposals of this node's operators. The cluster router bounds the time that they wait.
#[derive(Default)]
pub struct Proposals(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    last: u64,
    waiters: BTreeMap<ProposalId, Waiter>,
}

/// Callback of a proposal, by kind.
enum Waiter {
    Order(OrderCallback),
    Records(ProposalCallback),
}

impl Waiter {
    /// Fails a proposal that has not been sent: nothing has changed.
    fn refuse(self, why: &str) {
        match self {
            Self::Order(callback) => callback(Err(OrderError::Unknown(why.to_owned()))),
            Self::Records(callback) => {
                callback(Err(ProposalFailed { why: why.to_owned(), outcome_unknown: false }))
            }
        }
    }

    fn complete(self, outcome: Result<Answer, String>) {
        match self {
            Self::Order(callback) => callback(outcome.map_err(OrderError::Unknown).and_then(order_result)),
            Self::Records(callback) => callback(match outcome {
                Ok(Answer::Records(answer)) => Ok(answer),
                Ok(Answer::Unread(why)) => Err(ProposalFailed { why: why.into(), outcome_unknown: false }),
                Ok(_) => Err(ProposalFailed { why: NO_CLUSTER.to_owned(), outcome_unknown: false }),
                Err(why) => Err(ProposalFailed { why, outcome_unknown: true }),
            }),
        }
    }
}

const TOO_MANY: &str = "too many such requests wait already: try again in a moment";
const NO_CLUSTER: &str = "there is no cluster yet (meridian ctl cluster status says what it waits for)";
const NO_PART: &str = "this node takes no part in the cluster at present, as it starts or stops: try again in a \
         moment";

impl Proposals {
    /// Proposes a command to the meta group.
    pub fn propose(&self, sender: Option<&Sender<RouterCommand>>, command: Command, callback: OrderCallback) {
        self.send(sender, Waiter::Order(callback), |id| RouterCommand::Proposal(id, command));
    }

    /// Proposes that this node is no longer a member.
    pub fn leave(&self, sender: Option<&Sender<RouterCommand>>, callback: OrderCallback) {
        self.send(sender, Waiter::Order(callback), RouterCommand::Leave);
    }

    /// Proposes a batch of changes of the records.
    pub fn propose_records(
        &self,
        sender: Option<&Sender<RouterCommand>>,
        batch: Vec<u8>,
        callback: ProposalCallback,
    ) {
        let command = Command::Records(RecordBatch(batch));
        self.send(sender, Waiter::Records(callback), |id| RouterCommand::Proposal(id, command));
    }

    fn send(
        &self,
        sender: Option<&Sender<RouterCommand>>,
        waiter: Waiter,
        command: impl FnOnce(ProposalId) -> RouterCommand,
    ) {
        let id = match self.wait(waiter) {
            Ok(id) => id,
            Err(waiter) => return waiter.refuse(TOO_MANY),
        };
        let is_sent = sender.is_some_and(|sender| sender.send(command(id)).is_ok());
        if !is_sent && let Some(waiter) = self.take(id) {
            waiter.refuse(NO_PART);
        }
    }

    /// Completes proposals that the cluster router has decided. Called after each of its turns.
    pub fn poll(&self, router: &mut ClusterRouter) {
        while let Some((id, outcome)) = router.poll_proposal() {
            if let Some(waiter) = self.take(id) {
                waiter.complete(outcome);
            }
        }
    }

    /// Registers a waiter. Returns it when too many wait.
    fn wait(&self, waiter: Waiter) -> Result<ProposalId, Waiter> {
        let mut waiting = self.lock();
        if waiting.waiters.len() >= PROPOSALS_MAX {
            return Err(waiter);
        }
        waiting.last += 1;
        let id = ProposalId(waiting.last);
        waiting.waiters.insert(id, waiter);
        Ok(id)
    }

    /// Removes a waiter. No foreign code is called while the lock is held.
    fn take(&self, id: ProposalId) -> Option<Waiter> {
        self.lock().waiters.remove(&id)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        sync::lock(&self.0)
    }
}

fn order_result(answer: Answer) -> Result<(), OrderError> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Old(Incarnation(incarnation)) => Err(OrderError::Refused(format!(
            "the node has joined again meanwhile, in incarnation {incarnation}: `meridian ctl \
                 cluster` shows its state"
        ))),
        Answer::Unread(why) => Err(OrderError::Refused(why.into())),
        Answer::Refused | Answer::Records(_) => Err(OrderError::Refused(NO_CLUSTER.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use link::NodeId;

    use super::*;

    #[test]
    fn a_proposal_without_a_router_is_refused_once() {
        let (proposals, refused) = (Proposals::default(), Arc::<AtomicUsize>::default());
        let count = refused.clone();
        proposals.propose(
            None,
            Command::Remove(NodeId::of_name("b"), None),
            Box::new(move |outcome| {
                count.fetch_add(outcome.is_err().into(), Relaxed);
            }),
        );
        assert_eq!((refused.load(Relaxed), proposals.lock().waiters.len()), (1, 0));
    }

    #[test]
    fn an_answer_finds_its_proposal_and_those_beyond_the_limit_are_refused() {
        let (proposals, outcomes) =
            (Proposals::default(), Arc::<Mutex<Vec<Result<(), OrderError>>>>::default());
        let callback = || -> Waiter {
            let outcomes = outcomes.clone();
            Waiter::Order(Box::new(move |outcome| outcomes.lock().unwrap().push(outcome)))
        };
        let first = proposals.wait(callback()).ok().unwrap();
        for _ in 1..PROPOSALS_MAX {
            assert!(proposals.wait(callback()).is_ok());
        }
        proposals.send(None, callback(), RouterCommand::Leave);
        assert!(outcomes.lock().unwrap().pop().unwrap().unwrap_err().to_string().contains("too many"));
        proposals.take(first).unwrap().complete(Ok(Answer::Done));
        assert!(proposals.take(first).is_none());
        assert_eq!(*outcomes.lock().unwrap(), [Ok(())]);
        let again = proposals.wait(callback()).ok().unwrap();
        proposals.take(again).unwrap().complete(Ok(Answer::Old(Incarnation(7))));
        let why = outcomes.lock().unwrap().pop().unwrap().unwrap_err();
        assert!(matches!(&why, OrderError::Refused(why) if why.contains("incarnation 7")), "{why}");
        assert!(proposals.wait(callback()).is_ok(), "there is room again");
    }

    #[test]
    fn a_failed_batch_reports_whether_its_outcome_is_unknown() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(8);
        let complete = |outcome: Option<Result<Answer, String>>| {
            let sender = sender.clone();
            let waiter = Waiter::Records(Box::new(move |callback| sender.send(callback).unwrap()));
            match outcome {
                Some(outcome) => waiter.complete(outcome),
                None => waiter.refuse(NO_PART),
            }
            receiver.recv().unwrap().map_err(|failure| failure.outcome_unknown)
        };
        assert_eq!(complete(Some(Ok(Answer::Records(vec![7])))), Ok(vec![7]));
        assert_eq!(complete(Some(Ok(Answer::Refused))), Err(false));
        assert_eq!(complete(Some(Err("late".into()))), Err(true));
        assert_eq!(complete(None), Err(false));
    }
}
