//! Reclamation of memory that readers may still access.
//!
//! It uses quiescent states. A writer removes an object from the index, so that no reader can newly find it, and
//! puts it into [`RetiredList`] with the current epoch. Every reader has a [`Participant`] with the epoch in which
//! it last held nothing. An object retired in an epoch is free once each participant shows a later epoch or is
//! parked. Readers only ever store to their own participant: they never wait. A reader that makes no progress
//! delays the reclamation of memory, never a thread.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence};

/// State that the writers and readers of one index share.
pub struct Domain {
    /// Counts up from 1; changed only by the holder of the retired list.
    epoch: AtomicU64,
    participants: Mutex<Vec<Arc<Participant>>>,
    /// Number of objects in the retired list; a hint for readers.
    pending: AtomicUsize,
}

/// Slot of one reader. It has its own cache lines, because its reader writes it at every turn.
#[repr(align(128))]
pub struct Participant {
    /// The epoch in which the reader last held nothing, or [`PARKED`].
    epoch: AtomicU64,
}

const PARKED: u64 = 0;

/// Removed objects that wait for the readers, oldest first.
pub struct RetiredList<T> {
    queue: VecDeque<(u64, T)>,
}

/// Proof that no object that can be found in the index is freed during `'a`.
pub struct Guard<'a> {
    held: PhantomData<&'a ()>,
}

impl Guard<'_> {
    /// Creates a guard.
    ///
    /// # Safety
    /// During `'a` the caller's participant is active and does not become quiescent, or the caller holds the
    /// writers' lock and does not `collect`.
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

    /// Returns all objects, whatever readers do: for a time when there are no readers and never will be.
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

    /// Adds a participant for a new reader, not parked.
    pub fn join(&self) -> Arc<Participant> {
        // The lock orders this with `collect`: either `collect` sees the participant, or this reader sees all that
        // was removed.
        let mut participants = lock(&self.participants);
        let participant = Arc::new(Participant { epoch: AtomicU64::new(self.epoch.load(Ordering::Acquire)) });
        participants.push(participant.clone());
        participant
    }

    /// Removes the participant of a reader that holds nothing and never will again.
    pub fn leave(&self, participant: &Arc<Participant>) {
        participant.park();
        lock(&self.participants).retain(|other| !Arc::ptr_eq(other, participant));
    }

    /// Retires an object that readers can no longer find.
    pub fn retire<T>(&self, retired: &mut RetiredList<T>, item: T) {
        retired.queue.push_back((self.epoch.load(Ordering::Relaxed), item));
        self.pending.store(retired.len(), Ordering::Relaxed);
    }

    /// Returns whether objects may be waiting.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Begins a new epoch if an object was retired in the current one.
    pub fn advance<T>(&self, retired: &mut RetiredList<T>) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if retired.queue.back().is_some_and(|(at, _)| *at == epoch) {
            // Release: a reader that sees the new epoch sees that the objects retired before it are removed.
            self.epoch.store(epoch + 1, Ordering::Release);
        }
    }

    /// Passes objects that no reader can hold to `free`, at most `at_most` of them. Call `advance` first.
    pub fn collect<T>(&self, retired: &mut RetiredList<T>, at_most: usize, mut free: impl FnMut(T)) {
        if retired.queue.is_empty() {
            return;
        }
        // Pairs with the fence in `unpark`: a parked reader that this does not see active cannot see removed
        // objects.
        fence(Ordering::SeqCst);
        let oldest = {
            let participants = lock(&self.participants);
            // Acquire: the accesses of a reader before it stored its epoch happened before `free`.
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
    /// Records that the reader holds nothing at this moment.
    #[inline]
    pub fn quiescent(&self, domain: &Domain) {
        let epoch = domain.epoch.load(Ordering::Acquire);
        if self.epoch.load(Ordering::Relaxed) != epoch {
            self.epoch.store(epoch, Ordering::Release);
        }
    }

    /// Records that the reader holds nothing until it calls `unpark`.
    pub fn park(&self) {
        self.epoch.store(PARKED, Ordering::Release);
    }

    pub fn unpark(&self, domain: &Domain) {
        // Release: a writer that sees this store, and not that the reader was parked, sees all earlier accesses of
        // the reader.
        self.epoch.store(domain.epoch.load(Ordering::Acquire), Ordering::Release);
        // Before any lookup, the freeing thread sees that the participant is active.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the reader is parked. Only the reader itself calls this.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) == PARKED
    }
}

/// Locks a mutex. Poison is ignored, as in the crate `sync`.
#[cfg(not(loom))]
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
pub fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
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
    fn without_readers_every_object_is_free_at_once() {
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
    fn a_pass_frees_at_most_the_given_number() {
        let (domain, mut retired) = (Domain::new(), RetiredList::new());
        (0..5).for_each(|i| domain.retire(&mut retired, i));
        domain.advance(&mut retired);
        let mut free = Vec::new();
        domain.collect(&mut retired, 2, |item| free.push(item));
        assert_eq!((free, retired.len()), (vec![0, 1], 3));
        assert!(domain.has_pending());
    }
}
