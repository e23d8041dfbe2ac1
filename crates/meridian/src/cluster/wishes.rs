//! What operators want the cores to agree on, on its way between the API and the fabric.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::Obeyed;
use carrier::Sender;
use cluster::meta::{Answer, Command, WishId};
use cluster::{Fabric, Letter};

/// Wishes that wait, at most; as many as the fabric takes.
const WISHES_MAX: usize = 256;

/// Wishes of this node's operators that wait. The fabric bounds for how long.
#[derive(Default)]
pub struct Wishes(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    last: u64,
    told: BTreeMap<WishId, Obeyed>,
}

impl Wishes {
    /// Wants something to be agreed upon.
    pub fn wish(&self, sender: Option<&Sender<Letter>>, command: Command, told: Obeyed) {
        self.send(sender, told, |id| Letter::Wish(id, command));
    }

    /// Wants this node to be no member any more.
    pub fn leave(&self, sender: Option<&Sender<Letter>>, told: Obeyed) {
        self.send(sender, told, Letter::Leave);
    }

    fn send(&self, sender: Option<&Sender<Letter>>, told: Obeyed, letter: impl FnOnce(WishId) -> Letter) {
        let id = match self.wait(told) {
            Ok(id) => id,
            Err(told) => return told(Err("too many such requests wait already".to_owned())),
        };
        let is_sent = sender.is_some_and(|sender| sender.send(letter(id)).is_ok());
        if !is_sent {
            self.tell(id, Err("this node takes no part in the cluster at present".to_owned()));
        }
    }

    /// Takes from the fabric what came of wishes. Called after each of its turns.
    pub fn tend(&self, fabric: &mut Fabric) {
        while let Some((id, answer)) = fabric.poll_wish() {
            self.tell(id, answer.and_then(outcome));
        }
    }

    /// Gives it back when too many wait.
    fn wait(&self, told: Obeyed) -> Result<WishId, Obeyed> {
        let mut waiting = self.lock();
        if waiting.told.len() >= WISHES_MAX {
            return Err(told);
        }
        waiting.last += 1;
        let id = WishId(waiting.last);
        waiting.told.insert(id, told);
        Ok(id)
    }

    /// Nothing foreign is called while the lock is held.
    fn tell(&self, id: WishId, outcome: Result<(), String>) {
        let told = self.lock().told.remove(&id);
        if let Some(told) = told {
            told(outcome);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn outcome(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Old(_) => Err("a later life of the node has joined".to_owned()),
        Answer::Refused => Err("there is no cluster yet".to_owned()),
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
            Command::Remove(NodeId::of_name("b")),
            Box::new(move |outcome| {
                count.fetch_add(outcome.is_err().into(), Relaxed);
            }),
        );
        assert_eq!((refused.load(Relaxed), wishes.lock().told.len()), (1, 0));
    }

    #[test]
    fn an_answer_finds_its_wish_and_those_beyond_the_limit_are_refused() {
        let (wishes, heard) = (Wishes::default(), Arc::<Mutex<Vec<Result<(), String>>>>::default());
        let told = || -> Obeyed {
            let heard = heard.clone();
            Box::new(move |outcome| heard.lock().unwrap().push(outcome))
        };
        let first = wishes.wait(told()).ok().unwrap();
        for _ in 1..WISHES_MAX {
            assert!(wishes.wait(told()).is_ok());
        }
        wishes.leave(None, told());
        assert!(heard.lock().unwrap().pop().unwrap().unwrap_err().contains("too many"));
        wishes.tell(first, outcome(Answer::Done));
        wishes.tell(first, outcome(Answer::Refused));
        assert_eq!(*heard.lock().unwrap(), [Ok(())]);
        assert!(wishes.wait(told()).is_ok(), "there is room again");
    }
}
