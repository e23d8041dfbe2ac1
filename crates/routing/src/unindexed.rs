//! Filters that are not in the tree, because one of their paths has the same hash as another path.
//!
//! Expected once in many millions of indexes: hashes have 64 bits and a secret key. The list only grows, and every
//! match compares all of it.

use std::sync::OnceLock;

use mqtt::{TopicFilter, TopicName};

use crate::sync::{AtomicU32, Ordering};

/// A list to which writers append.
#[derive(Default)]
pub struct UnindexedFilters {
    first: Link,
}

type Link = OnceLock<Box<UnindexedFilter>>;

pub struct UnindexedFilter {
    pub filter: Box<str>,
    /// Destinations of the filter; 0 for none.
    pub destinations: AtomicU32,
    next: Link,
}

impl UnindexedFilters {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &UnindexedFilter> {
        std::iter::successors(self.first.get(), |unindexed_filter| unindexed_filter.next.get())
            .map(|unindexed_filter| &**unindexed_filter)
    }

    /// Returns the references of the filters that match.
    pub fn matching(&self, topic: TopicName<'_>) -> impl Iterator<Item = u32> {
        let matches = move |unindexed_filter: &&UnindexedFilter| {
            TopicFilter::parse(&unindexed_filter.filter).is_ok_and(|f| f.matches(topic))
        };
        self.iter()
            .filter(matches)
            .map(|unindexed_filter| unindexed_filter.destinations.load(Ordering::Acquire))
    }

    pub fn find(&self, filter: &str) -> Option<&UnindexedFilter> {
        self.iter().find(|unindexed_filter| *unindexed_filter.filter == *filter)
    }

    /// Appends a filter that is not in the list. Only one thread may do so at a time.
    pub fn add(&self, filter: &str) -> &UnindexedFilter {
        let mut link = &self.first;
        while let Some(unindexed_filter) = link.get() {
            link = &unindexed_filter.next;
        }
        link.get_or_init(|| {
            let (destinations, next) = (AtomicU32::new(0), Link::new());
            Box::new(UnindexedFilter { filter: filter.into(), destinations, next })
        })
    }

    pub fn bytes(&self) -> usize {
        self.iter().map(|unindexed_filter| size_of::<UnindexedFilter>() + unindexed_filter.filter.len()).sum()
    }

    /// Number of filters in use.
    pub fn live(&self) -> usize {
        self.iter()
            .filter(|unindexed_filter| unindexed_filter.destinations.load(Ordering::Relaxed) != 0)
            .count()
    }
}

impl Drop for UnindexedFilters {
    fn drop(&mut self) {
        // One after the other: dropping the first box would recurse into all.
        let mut next = self.first.take();
        while let Some(mut unindexed_filter) = next {
            next = unindexed_filter.next.take();
        }
    }
}
