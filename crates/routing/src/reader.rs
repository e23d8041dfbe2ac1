//! A thread's way into an index.

use std::sync::Arc;

use mqtt::TopicName;

use crate::{Destination, Index};

/// A thread's way into an [`Index`]: one for each thread that matches. Unregisters when dropped.
pub struct Reader<D: Destination> {
    index: Arc<Index<D>>,
}

impl<D: Destination> Reader<D> {
    pub(crate) fn new(index: Arc<Index<D>>) -> Reader<D> {
        Reader { index }
    }

    /// Appends the destinations of every filter that matches `topic`; returns how many filters matched.
    ///
    /// A destination of two matching filters is appended twice, once with what each filter says of it.
    pub fn matches(&self, topic: TopicName<'_>, out: &mut Vec<D>) -> usize {
        self.index.matches(topic, out)
    }

    /// The thread holds nothing of the index: called at the end of a turn.
    pub fn quiescent(&self) {}

    /// The thread is about to sleep and will not match before [`Reader::unpark`].
    pub fn park(&self) {}

    /// The thread woke up.
    pub fn unpark(&self) {}
}
