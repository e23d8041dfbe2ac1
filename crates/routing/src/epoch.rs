//! When memory that readers may still look at can be used again.
//!
//! Quiescent states: a writer takes something out of the index, so that nobody can newly find it, and puts it into
//! [`RetiredList`] with the current epoch. Every reader has a [`Participant`] that says in which epoch it last held nothing.
//! What was put away in an epoch is free once each seat shows a later one or is parked. Readers only ever store to
//! their own seat: they wait for nobody, and a reader that stays away delays memory, never a thread.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence};

/// Shared by the writers and readers of one index.
pub struct Domain {
    /// Counts up from 1; changed only by who holds the limbo.
    epoch: AtomicU64,
    participants: Mutex<Vec<Arc<Participant>>>,
    /// How much waits in the limbo; a hint for readers.
    pending: AtomicUsize,
}

/// One reader's place. On cache lines of its own, as its reader writes it at every turn.
#[repr(align(128))]
pub struct Participant {
    /// The epoch in which the reader last held nothing, or [`PARKED`].
    epoch: AtomicU64,
}

const PARKED: u64 = 0;

/// What was taken out and waits for the readers, oldest first.
pub struct RetiredList<T> {
    queue: VecDeque<(u64, T)>,
}

/// Proof that nothing that can be found in the index is freed during `'a`.
pub struct Guard<'a> {
    held: PhantomData<&'a ()>,
}

impl Guard<'_> {
    /// # Safety
    /// During `'a` the caller's seat is taken and does not become quiescent, or the caller holds the writers' lock
    /// and does not `collect`.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Guard { held: PhantomData }
    }
}

impl<T> RetiredList<T> {
    pub fn new() -> RetiredList<T> {
        RetiredList { queue: VecDeque::new() }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().map(|(_, item)| item)
    }

    /// Everything, whatever readers do: for when there are none and never will be.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.queue.drain(..).map(|(_, item)| item)
    }
}

impl Domain {
    pub fn new() -> Domain {
        Domain {
            epoch: AtomicU64::new(1),
            participants: Mutex::new(Vec::new()),
            pending: AtomicUsize::new(0),
        }
    }

    /// A seat for a new reader, not parked.
    pub fn join(&self) -> Arc<Participant> {
        // The lock orders this with `collect`: either that sees the seat, or this reader sees all that it took out.
        let mut participants = lock(&self.participants);
        let participant = Arc::new(Participant { epoch: AtomicU64::new(self.epoch.load(Ordering::Acquire)) });
        participants.push(participant.clone());
        participant
    }

    /// The reader holds nothing and never will again.
    pub fn leave(&self, participant: &Arc<Participant>) {
        participant.park();
        lock(&self.participants).retain(|other| !Arc::ptr_eq(other, participant));
    }

    /// Puts away what readers can no longer find.
    pub fn retire<T>(&self, retired: &mut RetiredList<T>, item: T) {
        retired.queue.push_back((self.epoch.load(Ordering::Relaxed), item));
        self.pending.store(retired.len(), Ordering::Relaxed);
    }

    /// Whether something may be waiting.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Begins a new epoch if something was put away in the current one.
    pub fn advance<T>(&self, retired: &mut RetiredList<T>) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if retired.queue.back().is_some_and(|(at, _)| *at == epoch) {
            // Release: a reader that sees the new epoch sees that what was put away before it is gone.
            self.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// Hands `free` what no reader can hold any more, at most `at_most` items. Call `advance` first.
    pub fn collect<T>(&self, retired: &mut RetiredList<T>, at_most: usize, mut free: impl FnMut(T)) {
        if retired.queue.is_empty() {
            return;
        }
        // Pairs with the fence in `unpark`: a parked reader that this does not see awake does not see what is gone.
        fence(Ordering::SeqCst);
        let oldest = {
            let participants = lock(&self.participants);
            // Acquire: what a reader did before it stored its epoch happened before what `free` does.
            let held = participants
                .iter()
                .map(|participant| participant.epoch.load(Ordering::Acquire))
                .filter(|at| *at != PARKED);
            held.min().unwrap_or_else(|| self.epoch.load(Ordering::Relaxed))
        };
        for _ in 0..at_most {
            match retired.queue.pop_front_if(|(at, _)| *at < oldest) {
                Some((_, item)) => free(item),
                None => break,
            }
        }
        self.pending.store(retired.len(), Ordering::Relaxed);
    }
}

impl Participant {
    /// The reader holds nothing at this moment.
    #[inline]
    pub fn quiescent(&self, domain: &Domain) {
        let epoch = domain.epoch.load(Ordering::Acquire);
        if self.epoch.load(Ordering::Relaxed) != epoch {
            self.epoch.store(epoch, Ordering::Release);
        }
    }

    /// The reader holds nothing until it calls `unpark`.
    pub fn park(&self) {
        self.epoch.store(PARKED, Ordering::Release);
    }

    pub fn unpark(&self, domain: &Domain) {
        // Release: a writer that sees this, and not that the reader was parked before, sees what it did before that.
        self.epoch.store(domain.epoch.load(Ordering::Acquire), Ordering::Release);
        // Before anything is looked up, the seat is seen taken by whoever frees.
        fence(Ordering::SeqCst);
    }

    /// Whether the reader is parked; asked by the reader itself.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) == PARKED
    }
}

#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn collected(domain: &Domain, retired: &mut RetiredList<u32>) -> Vec<u32> {
        let mut free = Vec::new();
        domain.advance(retired);
        domain.collect(retired, usize::MAX, |item| free.push(item));
        free
    }

    #[test]
    fn without_readers_everything_is_free_at_once() {
        let (domain, mut retired) = (Domain::new(), RetiredList::new());
        domain.retire(&mut retired, 1);
        domain.retire(&mut retired, 2);
        assert_eq!(collected(&domain, &mut retired), [1, 2]);
        assert!(!domain.has_pending());
    }

    #[test]
    fn the_slowest_reader_decides() {
        let (domain, mut retired) = (Domain::new(), RetiredList::new());
        let (a, b) = (domain.join(), domain.join());
        domain.retire(&mut retired, 1);
        assert_eq!(collected(&domain, &mut retired), []);
        a.quiescent(&domain);
        assert_eq!(collected(&domain, &mut retired), []);
        domain.retire(&mut retired, 2);
        b.quiescent(&domain);
        assert_eq!(collected(&domain, &mut retired), [1]);
        a.quiescent(&domain);
        b.quiescent(&domain);
        assert_eq!(collected(&domain, &mut retired), [2]);
    }

    #[test]
    fn a_parked_or_departed_reader_holds_nothing() {
        let (domain, mut retired) = (Domain::new(), RetiredList::new());
        let (a, b) = (domain.join(), domain.join());
        domain.retire(&mut retired, 1);
        a.park();
        assert_eq!(collected(&domain, &mut retired), []);
        domain.leave(&b);
        assert_eq!(collected(&domain, &mut retired), [1]);
        a.unpark(&domain);
        domain.retire(&mut retired, 2);
        assert_eq!(collected(&domain, &mut retired), []);
        a.quiescent(&domain);
        assert_eq!(collected(&domain, &mut retired), [2]);
    }

    #[test]
    fn a_pass_frees_no_more_than_it_may() {
        let (domain, mut retired) = (Domain::new(), RetiredList::new());
        (0..5).for_each(|i| domain.retire(&mut retired, i));
        domain.advance(&mut retired);
        let mut free = Vec::new();
        domain.collect(&mut retired, 2, |item| free.push(item));
        assert_eq!((free, retired.len()), (vec![0, 1], 3));
        assert!(domain.has_pending());
    }
}
