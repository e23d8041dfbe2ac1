//! What operators want the cores to agree on, on its way between the API and the fabric.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{Disobeyed, Obeyed};
use carrier::Sender;
use cluster::meta::{Answer, Command, RecordBatch, WishId};
use cluster::{Fabric, Letter};
use registry::{Told, Unagreed};
use replog::Incarnation;

/// Wishes that wait, at most; as many as the fabric takes.
const WISHES_MAX: usize = 256;

/// Wishes of this node's operators that wait. The fabric bounds for how long.
#[derive(Default)]
pub struct Wishes(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    last: u64,
    told: BTreeMap<WishId, Waiter>,
}

/// Who waits for what.
enum Waiter {
    Obeyed(Obeyed),
    Records(Told),
}

impl Waiter {
    /// Nothing has happened.
    fn refuse(self, why: &str) {
        match self {
            Self::Obeyed(told) => told(Err(Disobeyed::Unknown(why.to_owned()))),
            Self::Records(told) => told(Err(Unagreed { why: why.to_owned(), may_hold: false })),
        }
    }

    fn tell(self, outcome: Result<Answer, String>) {
        match self {
            Self::Obeyed(told) => told(outcome.map_err(Disobeyed::Unknown).and_then(obeyed)),
            Self::Records(told) => told(match outcome {
                Ok(Answer::Records(answer)) => Ok(answer),
                Ok(Answer::Unread(why)) => Err(Unagreed { why: why.into(), may_hold: false }),
                Ok(_) => Err(Unagreed { why: NO_CLUSTER.to_owned(), may_hold: false }),
                Err(why) => Err(Unagreed { why, may_hold: true }),
            }),
        }
    }
}

const TOO_MANY: &str = "too many such requests wait already: try again in a moment";
const NO_CLUSTER: &str = "there is no cluster yet (meridian ctl cluster status says what it waits for)";
const NO_PART: &str =
    "this node takes no part in the cluster at present, as it starts or stops: try again in a moment";

impl Wishes {
    /// Wants something to be agreed upon.
    pub fn wish(&self, sender: Option<&Sender<Letter>>, command: Command, told: Obeyed) {
        self.send(sender, Waiter::Obeyed(told), |id| Letter::Wish(id, command));
    }

    /// Wants this node to be no member any more.
    pub fn leave(&self, sender: Option<&Sender<Letter>>, told: Obeyed) {
        self.send(sender, Waiter::Obeyed(told), Letter::Leave);
    }

    /// Wants a batch of changes of the records to hold.
    pub fn wish_records(&self, sender: Option<&Sender<Letter>>, batch: Vec<u8>, told: Told) {
        let command = Command::Records(RecordBatch(batch));
        self.send(sender, Waiter::Records(told), |id| Letter::Wish(id, command));
    }

    fn send(&self, sender: Option<&Sender<Letter>>, waiter: Waiter, letter: impl FnOnce(WishId) -> Letter) {
        let id = match self.wait(waiter) {
            Ok(id) => id,
            Err(waiter) => return waiter.refuse(TOO_MANY),
        };
        let is_sent = sender.is_some_and(|sender| sender.send(letter(id)).is_ok());
        if !is_sent && let Some(waiter) = self.take(id) {
            waiter.refuse(NO_PART);
        }
    }

    /// Takes from the fabric what came of wishes. Called after each of its turns.
    pub fn tend(&self, fabric: &mut Fabric) {
        while let Some((id, outcome)) = fabric.poll_wish() {
            if let Some(waiter) = self.take(id) {
                waiter.tell(outcome);
            }
        }
    }

    /// Gives it back when too many wait.
    fn wait(&self, waiter: Waiter) -> Result<WishId, Waiter> {
        let mut waiting = self.lock();
        if waiting.told.len() >= WISHES_MAX {
            return Err(waiter);
        }
        waiting.last += 1;
        let id = WishId(waiting.last);
        waiting.told.insert(id, waiter);
        Ok(id)
    }

    /// Nothing foreign is called while the lock is held.
    fn take(&self, id: WishId) -> Option<Waiter> {
        self.lock().told.remove(&id)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn obeyed(answer: Answer) -> Result<(), Disobeyed> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Old(Incarnation(life)) => Err(Disobeyed::Refused(format!(
            "it has joined again meanwhile, in life {life}: `meridian ctl cluster` says how that is"
        ))),
        Answer::Unread(why) => Err(Disobeyed::Refused(why.into())),
        Answer::Refused | Answer::Records(_) => Err(Disobeyed::Refused(NO_CLUSTER.to_owned())),
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
    fn who_asks_hears_once_that_nobody_can_do_it() {
        let (wishes, refused) = (Wishes::default(), Arc::<AtomicUsize>::default());
        let count = refused.clone();
        wishes.wish(
            None,
            Command::Remove(NodeId::of_name("b"), None),
            Box::new(move |outcome| {
                count.fetch_add(outcome.is_err().into(), Relaxed);
            }),
        );
        assert_eq!((refused.load(Relaxed), wishes.lock().told.len()), (1, 0));
    }

    #[test]
    fn an_answer_finds_its_wish_and_those_beyond_the_limit_are_refused() {
        let (wishes, heard) = (Wishes::default(), Arc::<Mutex<Vec<Result<(), Disobeyed>>>>::default());
        let told = || -> Waiter {
            let heard = heard.clone();
            Waiter::Obeyed(Box::new(move |outcome| heard.lock().unwrap().push(outcome)))
        };
        let first = wishes.wait(told()).ok().unwrap();
        for _ in 1..WISHES_MAX {
            assert!(wishes.wait(told()).is_ok());
        }
        wishes.send(None, told(), Letter::Leave);
        assert!(heard.lock().unwrap().pop().unwrap().unwrap_err().to_string().contains("too many"));
        wishes.take(first).unwrap().tell(Ok(Answer::Done));
        assert!(wishes.take(first).is_none());
        assert_eq!(*heard.lock().unwrap(), [Ok(())]);
        let again = wishes.wait(told()).ok().unwrap();
        wishes.take(again).unwrap().tell(Ok(Answer::Old(Incarnation(7))));
        let why = heard.lock().unwrap().pop().unwrap().unwrap_err();
        assert!(matches!(&why, Disobeyed::Refused(why) if why.contains("life 7")), "{why}");
        assert!(wishes.wait(told()).is_ok(), "there is room again");
    }

    #[test]
    fn what_came_of_a_batch_is_told_with_whether_it_may_hold() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(8);
        let tell = |outcome: Option<Result<Answer, String>>| {
            let sender = sender.clone();
            let waiter = Waiter::Records(Box::new(move |told| sender.send(told).unwrap()));
            match outcome {
                Some(outcome) => waiter.tell(outcome),
                None => waiter.refuse(NO_PART),
            }
            receiver.recv().unwrap().map_err(|unagreed| unagreed.may_hold)
        };
        assert_eq!(tell(Some(Ok(Answer::Records(vec![7])))), Ok(vec![7]));
        assert_eq!(tell(Some(Ok(Answer::Refused))), Err(false));
        assert_eq!(tell(Some(Err("late".into()))), Err(true));
        assert_eq!(tell(None), Err(false));
    }
}
