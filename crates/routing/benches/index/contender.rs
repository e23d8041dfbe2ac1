//! Indexes that the benchmark compares.

use std::sync::Arc;

use mqtt::{TopicFilter, TopicName};
use routing::{Destination, Index, IndexLimits, Reader};

/// Destination of the same size as the broker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    pub id: u64,
    pub options: u64,
}

impl Subscriber {
    pub fn numbered(id: usize) -> Subscriber {
        Subscriber { id: id as u64, options: 0 }
    }
}

impl Destination for Subscriber {
    type Key = u64;
    fn key(&self) -> u64 {
        self.id
    }
}

pub trait Contender: Send + Sync {
    type Reader<'a>
    where
        Self: 'a;
    fn new() -> Self;
    fn insert(&self, filter: &str, subscriber: Subscriber);
    fn remove(&self, filter: &str, subscriber: Subscriber);
    fn reader(&self) -> Self::Reader<'_>;
    fn matches(&self, reader: &mut Self::Reader<'_>, topic: TopicName<'_>, out: &mut Vec<Subscriber>);
    fn turn(reader: &mut Self::Reader<'_>);
    /// Bytes of memory by the index's own count, 0 if it has none.
    fn memory(&self) -> usize;
}

/// The index of this crate.
pub struct Paths(Arc<Index<Subscriber>>);

impl Contender for Paths {
    type Reader<'a> = Reader<Subscriber>;

    fn new() -> Self {
        Paths(Arc::new(Index::new(*b"sixteen secrets!", IndexLimits::default())))
    }
    fn insert(&self, filter: &str, subscriber: Subscriber) {
        let filter = TopicFilter::parse(filter).expect("a filter");
        self.0.insert(filter, subscriber).expect("within the limits");
    }
    fn remove(&self, filter: &str, subscriber: Subscriber) {
        self.0.remove(TopicFilter::parse(filter).expect("a filter"), subscriber.key());
    }
    fn reader(&self) -> Reader<Subscriber> {
        self.0.reader()
    }
    fn matches(&self, reader: &mut Reader<Subscriber>, topic: TopicName<'_>, out: &mut Vec<Subscriber>) {
        reader.matches(topic, out);
    }
    fn turn(reader: &mut Reader<Subscriber>) {
        reader.quiescent();
    }
    fn memory(&self) -> usize {
        self.0.memory()
    }
}
