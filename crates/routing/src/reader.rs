//! Access of one thread to an index.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use mqtt::TopicName;

use crate::epoch::{Guard, Participant};
use crate::matching::Scratch;
use crate::{Destination, Index};

/// A thread's access to an [`Index`]: one for each thread that matches. Unregisters when dropped.
///
/// Writers free removed objects only after every reader that is not parked has been quiescent. So a thread calls
/// [`Reader::quiescent`] often, and parks before it sleeps.
pub struct Reader<D: Destination> {
    index: Arc<Index<D>>,
    participant: Arc<Participant>,
    /// True while the reader is inside a call that looks at the index. Then it is not quiescent, whatever a
    /// callback does.
    inside: Cell<bool>,
    scratch: RefCell<Scratch>,
}

impl<D: Destination> Reader<D> {
    pub(crate) fn new(index: Arc<Index<D>>) -> Reader<D> {
        let participant = index.domain().join();
        Reader { index, participant, inside: Cell::new(false), scratch: RefCell::default() }
    }

    /// Appends the destinations of every filter that matches `topic`; returns the number of filters that matched.
    ///
    /// A destination of two matching filters is appended twice, once with the fields from each filter. Never waits
    /// for a writer. A filter whose `insert` returned before the call is found. One that is added or removed during
    /// the call may or may not be found. A destination that is removed and inserted again during the call may be
    /// appended twice. A parked reader is unparked for the call.
    pub fn matches(&self, topic: TopicName<'_>, out: &mut Vec<D>) -> usize {
        let inside = self.enter();
        self.index.collect_matches(topic, out, &mut self.scratch.borrow_mut(), &inside.guard)
    }

    /// Records that the thread holds nothing of the index: call it at the end of a turn. Frees some memory that
    /// every reader has released, unless a writer is active.
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

    /// Parks the reader before its thread sleeps. A parked reader holds nothing of the index and delays no
    /// reclamation.
    pub fn park(&self) {
        if !self.inside.get() {
            self.participant.park();
        }
    }

    /// Unparks the reader after its thread woke up.
    pub fn unpark(&self) {
        if self.participant.is_parked() {
            self.participant.unpark(self.index.domain());
        }
    }

    /// Index of this reader.
    pub fn index(&self) -> &Arc<Index<D>> {
        &self.index
    }

    pub(crate) fn enter(&self) -> Inside<'_, D> {
        let was_parked = self.participant.is_parked();
        if was_parked {
            self.participant.unpark(self.index.domain());
        }
        let was_inside = self.inside.replace(true);
        // SAFETY: the participant is active, and stays as it is while `inside` is set.
        Inside { reader: self, was_parked, was_inside, guard: unsafe { Guard::new() } }
    }
}

/// Guard of a call of a reader, which is not quiescent while the guard exists.
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
