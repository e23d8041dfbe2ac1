//! Topic Filters that clients of the whole cluster want, for links to other clusters.
//!
//! Each node has the routes of all nodes and shards in its index. A link needs to know which filters clients have, and
//! which are there only because another cluster asked for them: a [`LinkFilter`](shard::LinkFilter) in the routes of a
//! shard, or a connection of such a session ([`RouteKind::ConnectionLink`]).

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};

use mqtt::TopicFilter;
use shard::fnv64;

use crate::node::Node;
use crate::peers::Wants;
use crate::route::{Route, RouteKind};
use crate::store::GroupName;

/// Maximum number of changed filters that wait for the watch, and of their bytes. Beyond, it has to look at all.
const CHANGES_MAX: usize = 100_000;
const CHANGES_BYTES_MAX: usize = 8 << 20;

/// Called when filters have changed after [`InterestWatch::take`] had returned all earlier ones.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Slot and generation in [`RouteKind::Shard`] of the filters of linked clusters that get messages of an origin; empty
/// for those of this cluster. Filters of clients have 0 and 0.
pub(crate) fn slot_of_links(origin: &str) -> (u32, u32) {
    let hash = fnv64(origin.as_bytes());
    (1, (hash ^ hash >> 32) as u32)
}

/// Receivers for which a link looks.
#[derive(Clone, Copy)]
enum Receivers {
    Clients,
    Links((u32, u32)),
}

impl Receivers {
    fn of(origin: Option<&str>) -> Self {
        origin.map_or(Self::Clients, |origin| Self::Links(slot_of_links(origin)))
    }

    fn include(self, route: &Route) -> bool {
        match (route.kind, self) {
            (RouteKind::Connection | RouteKind::ConnectionQos0, Self::Clients) => true,
            // Groups that have one member over all linked clusters are wanted as such.
            (RouteKind::ShardGroups, Self::Clients) => !route.options.is_of_linked_groups(),
            (RouteKind::Shard, Self::Clients) => route.slot == 0,
            (RouteKind::Shard, Self::Links(slot)) => (route.slot, route.generation) == slot,
            (RouteKind::Node, Self::Clients) => !route.wants().without(Wants::LINK).is_nothing(),
            _ => false,
        }
    }
}

/// Changes of a node's routes, while somebody watches them.
///
/// **Invariant:** the index has a change before it is noted here.
#[derive(Default)]
pub(crate) struct InterestChanges {
    is_watched: AtomicBool,
    watching: Mutex<Option<Watching>>,
}

struct Watching {
    /// Number of the watch.
    number: u64,
    changed: Changed,
    bytes: usize,
    wake: Wake,
}

/// Filters that may have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    pub filters: Vec<Box<str>>,
    /// More have changed than are kept: look at all of them.
    pub is_overrun: bool,
}

impl InterestChanges {
    /// Records that routes of a filter have changed.
    #[inline]
    pub fn note(&self, filter: TopicFilter<'_>) {
        if self.is_watched.load(Relaxed) {
            self.note_watched(filter.as_str());
        }
    }

    /// Records that members of a group, `$share/{ShareName}/{filter}`, have changed.
    pub fn note_group(&self, text: &str) {
        if self.is_watched.load(Relaxed) {
            self.note_watched(text);
        }
    }

    #[cold]
    fn note_watched(&self, filter: &str) {
        let mut watching = sync::lock(&self.watching);
        let Some(watch) = &mut *watching else { return };
        if watch.changed.is_overrun {
            return;
        }
        let is_first = watch.changed.filters.is_empty();
        watch.bytes += filter.len();
        if watch.changed.filters.len() >= CHANGES_MAX || watch.bytes > CHANGES_BYTES_MAX {
            watch.changed = Changed { filters: Vec::new(), is_overrun: true };
        } else {
            watch.changed.filters.push(filter.into());
        }
        let wake = is_first.then(|| watch.wake.clone());
        drop(watching);
        if let Some(wake) = wake {
            wake();
        }
    }

    fn begin(&self, wake: Wake) -> u64 {
        let mut watching = sync::lock(&self.watching);
        let number = watching.as_ref().map_or(0, |watch| watch.number) + 1;
        *watching = Some(Watching { number, changed: Changed::default(), bytes: 0, wake });
        self.is_watched.store(true, Release);
        number
    }

    fn take(&self, number: u64) -> Changed {
        let mut watching = sync::lock(&self.watching);
        let Some(watch) = watching.as_mut().filter(|watch| watch.number == number) else {
            return Changed::default();
        };
        watch.bytes = 0;
        std::mem::take(&mut watch.changed)
    }

    fn end(&self, number: u64) {
        let mut watching = sync::lock(&self.watching);
        if watching.take_if(|watch| watch.number == number).is_some() {
            self.is_watched.store(false, Release);
        }
    }
}

/// A watch of the filters that are wanted. A node has one; a later one replaces it. Dropping it ends it.
pub struct InterestWatch {
    node: Arc<Node>,
    number: u64,
}

impl fmt::Debug for InterestWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterestWatch").field("number", &self.number).finish_non_exhaustive()
    }
}

impl InterestWatch {
    /// Begins. Changes from now on are reported, so a call of [`Self::for_each`] after that misses none.
    pub(crate) fn begin(node: &Arc<Node>, wake: Wake) -> Self {
        Self { node: node.clone(), number: node.routes.interest().begin(wake) }
    }

    /// Calls `f` for each filter that clients want (`None`), or that linked clusters want for messages that come from
    /// the cluster `origin`. It may name a filter several times. Of a group that has one member over all linked
    /// clusters, it names the group: `$share/{ShareName}/{filter}`.
    pub fn for_each(&self, origin: Option<&str>, f: &mut dyn FnMut(&str)) {
        let receivers = Receivers::of(origin);
        if origin.is_none() {
            self.node.routes.linked_groups().iter().for_each(|group| f(group));
        }
        let reader = self.node.routes.reader();
        self.node.routes.for_each(&reader, |filter, route| {
            if receivers.include(&route) {
                f(filter);
            }
        });
    }

    /// Returns whether a filter is wanted now, for the receivers of [`Self::for_each`].
    pub fn is_wanted(&self, origin: Option<&str>, filter: &str) -> bool {
        if let Some(group) = GroupName::parse(filter) {
            let directory = self.node.routes.groups(group.shard());
            return origin.is_none() && directory.has_clients_of_linked(&group);
        }
        let receivers = Receivers::of(origin);
        TopicFilter::parse(filter)
            .is_ok_and(|filter| self.node.routes.any_of(filter, |route| receivers.include(route)))
    }

    /// Returns whether this is a subscription to a group that has one member over all linked clusters.
    pub fn is_linked_group(&self, filter: &str) -> bool {
        GroupName::parse(filter).is_some_and(|group| self.node.routes.is_linked(&group.share))
    }

    /// Returns the filters whose routes have changed since the last call, for any receivers. It may name one several
    /// times.
    pub fn take(&self) -> Changed {
        self.node.routes.interest().take(self.number)
    }
}

impl Drop for InterestWatch {
    fn drop(&mut self) {
        self.node.routes.interest().end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn filter(text: &str) -> TopicFilter<'_> {
        TopicFilter::parse(text).expect("a filter")
    }

    #[test]
    fn changes_are_kept_while_somebody_watches_up_to_a_limit() {
        let changes = InterestChanges::default();
        changes.note(filter("before"));
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let wake: Wake = Arc::new(move || {
            count.fetch_add(1, Relaxed);
        });
        let number = changes.begin(wake.clone());
        changes.note(filter("a"));
        changes.note(filter("b"));
        assert_eq!(woken.load(Relaxed), 1, "one wake-up for several changes");
        assert_eq!(changes.take(number).filters, ["a".into(), "b".into()]);
        let long = "x".repeat(60_000);
        (0..=CHANGES_BYTES_MAX / long.len()).for_each(|_| changes.note(filter(&long)));
        assert_eq!(woken.load(Relaxed), 2);
        let taken = changes.take(number);
        assert!(taken.is_overrun && taken.filters.is_empty());
        changes.note(filter("c"));
        let next = changes.begin(wake);
        assert_eq!(changes.take(number), Changed::default(), "a later watch replaces it");
        changes.end(number);
        changes.note(filter("d"));
        assert_eq!(changes.take(next).filters, ["d".into()]);
        changes.end(next);
        changes.note(filter("e"));
        assert!(!changes.is_watched.load(Relaxed));
    }

    #[test]
    fn clients_and_links_are_told_apart() {
        let of = |kind, slot: (u32, u32), wants: Wants| Route {
            kind,
            slot: slot.0,
            generation: slot.1,
            ..Route::of_node(crate::peers::NodeIndex(1), wants)
        };
        let of_linked_groups = |route: Route| Route { options: route.options.of_linked_groups(), ..route };
        let none = Wants::NOTHING;
        let (clients, here, there) = (Receivers::of(None), Receivers::of(Some("")), Receivers::of(Some("b")));
        let cases = [
            (of(RouteKind::Connection, (4, 2), none), [true, false, false]),
            (of(RouteKind::ConnectionQos0, (4, 2), none), [true, false, false]),
            (of(RouteKind::ConnectionLink, (4, 2), none), [false, false, false]),
            (of(RouteKind::ShardGroups, (0, 0), none), [true, false, false]),
            (of_linked_groups(of(RouteKind::ShardGroups, (0, 0), none)), [false, false, false]),
            (of(RouteKind::Shard, (0, 0), none), [true, false, false]),
            (of(RouteKind::Shard, slot_of_links(""), none), [false, true, false]),
            (of(RouteKind::Shard, slot_of_links("b"), none), [false, false, true]),
            (of(RouteKind::Node, (0, 0), Wants::LINK), [false, false, false]),
            (of(RouteKind::Node, (0, 0), Wants::LINK.with(Wants::QOS0)), [true, false, false]),
            (of(RouteKind::Origin, (0, 0), none), [false, false, false]),
        ];
        for (route, expected) in cases {
            assert_eq!([clients, here, there].map(|it| it.include(&route)), expected, "{route:?}");
        }
    }
}
