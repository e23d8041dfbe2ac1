//! A thread's way into an index.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use mqtt::TopicName;

use crate::epoch::{Guard, Participant};
use crate::matching::Scratch;
use crate::{Destination, Index};

/// A thread's way into an [`Index`]: one for each thread that matches. Unregisters when dropped.
///
/// Writers free what they took out only after every reader that is not parked has said that it is quiescent, so a
/// thread calls [`Reader::quiescent`] often and parks before it sleeps.
pub struct Reader<D: Destination> {
    index: Arc<Index<D>>,
    participant: Arc<Participant>,
    /// The reader is inside a call that looks at the index, so it is not quiescent whatever a callback says.
    inside: Cell<bool>,
    scratch: RefCell<Scratch>,
}

impl<D: Destination> Reader<D> {
    pub(crate) fn new(index: Arc<Index<D>>) -> Reader<D> {
        let participant = index.domain().join();
        Reader { index, participant, inside: Cell::new(false), scratch: RefCell::default() }
    }

    /// Appends the destinations of every filter that matches `topic`; returns how many filters matched.
    ///
    /// A destination of two matching filters is appended twice, once with what each filter says of it. Never waits
    /// for a writer. A filter whose `insert` returned before the call is found; one that comes or goes meanwhile may
    /// be or not. A parked reader is unparked for the call.
    pub fn matches(&self, topic: TopicName<'_>, out: &mut Vec<D>) -> usize {
        let inside = self.enter();
        self.index.collect_matches(topic, out, &mut self.scratch.borrow_mut(), &inside.guard)
    }

    /// The thread holds nothing of the index: called at the end of a turn. Frees some of what every reader has let
    /// go of, unless a writer is at work at this moment.
    #[inline]
    pub fn quiescent(&self) {
        if self.inside.get() || self.participant.is_parked() {
            return;
        }
        self.participant.quiescent(self.index.domain());
        if self.index.domain().has_pending() {
            self.index.tidy(|| self.participant.quiescent(self.index.domain()));
        }
    }

    /// The thread is about to sleep. A parked reader holds nothing of the index and delays no reclamation.
    pub fn park(&self) {
        if !self.inside.get() {
            self.participant.park();
        }
    }

    /// The thread woke up.
    pub fn unpark(&self) {
        if self.participant.is_parked() {
            self.participant.unpark(self.index.domain());
        }
    }

    /// The index that this reads.
    pub fn index(&self) -> &Arc<Index<D>> {
        &self.index
    }

    pub(crate) fn enter(&self) -> Inside<'_, D> {
        let was_parked = self.participant.is_parked();
        if was_parked {
            self.participant.unpark(self.index.domain());
        }
        let was_inside = self.inside.replace(true);
        // SAFETY: the seat is taken, and stays as it is while `inside` is set.
        Inside { reader: self, was_parked, was_inside, guard: unsafe { Guard::new() } }
    }
}

/// While it lives, its reader is not quiescent.
pub(crate) struct Inside<'a, D: Destination> {
    reader: &'a Reader<D>,
    was_parked: bool,
    was_inside: bool,
    pub guard: Guard<'a>,
}

impl<D: Destination> Drop for Inside<'_, D> {
    fn drop(&mut self) {
        self.reader.inside.set(self.was_inside);
        if self.was_parked {
            self.reader.participant.park();
        }
    }
}

impl<D: Destination> Drop for Reader<D> {
    fn drop(&mut self) {
        self.index.domain().leave(&self.participant);
    }
}
