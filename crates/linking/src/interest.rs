//! Interest of a link: the Topic Filters at the other cluster that clients here want.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cut::Taken;

/// Maximum number of filters of clients for each filter at the other cluster, on average.
const LOCAL_FACTOR: usize = 4;

/// The filters at the other cluster that clients here want, and those that the link knows of.
///
/// A filter that another wanted one covers is wanted, too: its removal and that of the other one then need no look at
/// all others.
///
/// A group that has one member over all linked clusters is wanted as a shared subscription of its own.
///
/// **Invariant:** a filter is wanted exactly while a filter of a client cuts a topic of the link to it. Beyond the
/// maximum number of filters, exactly the topics of the link are wanted. Groups are wanted in both cases.
#[derive(Debug)]
pub struct Interest {
    map: Arc<Map>,
    filters_max: usize,
    tables: Tables,
    groups: Groups,
    /// The maximum was exceeded. The tables are empty then: a walk finds out whether it still is.
    takes_all: bool,
    /// Filters that the link knows of.
    announced: HashSet<Arc<str>>,
    /// Filters that may have begun or ceased to be wanted since then.
    touched: HashSet<Arc<str>>,
    /// Anything may have changed since then.
    all_touched: bool,
}

/// Changes of the interest of a link. Subscriptions begin before others end, so no message is missed between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub add: Vec<Box<str>>,
    pub remove: Vec<Box<str>>,
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }
}

#[derive(Debug)]
struct Map {
    topics: Vec<Taken>,
    takes_groups: bool,
}

impl Map {
    fn remote<'a>(&'a self, local: &'a str) -> impl Iterator<Item = String> + 'a {
        self.topics.iter().filter_map(move |topic| topic.cut(local))
    }

    /// Shared subscription at the other cluster. All topics of a link have the same prefix, so it is one at most.
    fn join(&self, local: &str) -> Option<String> {
        self.topics.iter().find_map(|topic| topic.join(local)).filter(|_| self.takes_groups)
    }
}

/// Shared subscriptions at the other cluster.
#[derive(Debug, Default)]
struct Groups {
    all: HashSet<Arc<str>>,
    /// Some did not fit since the last walk.
    is_beyond: bool,
}

impl Groups {
    /// Returns the subscription if it is new.
    fn add(&mut self, map: &Map, local: &str, groups_max: usize) -> Option<Arc<str>> {
        let remote: Arc<str> = map.join(local)?.into();
        if self.all.contains(&remote) {
            return None;
        }
        if self.all.len() >= groups_max {
            self.is_beyond = true;
            return None;
        }
        self.all.insert(remote.clone());
        Some(remote)
    }

    /// Returns the subscription if it was there.
    fn remove(&mut self, map: &Map, local: &str) -> Option<Arc<str>> {
        self.all.take(map.join(local)?.as_str())
    }
}

/// Returns whether a text names a group that has one member over all linked clusters.
fn is_group(local: &str) -> bool {
    local.starts_with("$share/")
}

#[derive(Debug, Default)]
struct Tables {
    /// Filters of clients that cut a topic of the link.
    local: HashSet<Box<str>>,
    /// Filters at the other cluster, with the number of cuts that give them.
    remote: HashMap<Arc<str>, u32>,
}

impl Tables {
    fn exceeds(&self, filters_max: usize) -> bool {
        self.remote.len() > filters_max || self.local.len() > filters_max.saturating_mul(LOCAL_FACTOR)
    }

    /// Adds a filter of clients. Calls `begun` with the filters that were not wanted.
    fn add(&mut self, map: &Map, local: &str, mut begun: impl FnMut(&Arc<str>)) {
        if self.local.contains(local) {
            return;
        }
        let mut is_of_link = false;
        for remote in map.remote(local) {
            is_of_link = true;
            match self.remote.get_mut(remote.as_str()) {
                Some(count) => *count += 1,
                None => {
                    let remote: Arc<str> = remote.into();
                    begun(&remote);
                    self.remote.insert(remote, 1);
                }
            }
        }
        if is_of_link {
            self.local.insert(local.into());
        }
    }

    /// Removes a filter of clients. Calls `ended` with the filters that are wanted no more.
    fn remove(&mut self, map: &Map, local: &str, mut ended: impl FnMut(Arc<str>)) {
        if !self.local.remove(local) {
            return;
        }
        for remote in map.remote(local) {
            let Some(count) = self.remote.get_mut(remote.as_str()) else { continue };
            *count -= 1;
            if *count == 0
                && let Some((remote, _)) = self.remote.remove_entry(remote.as_str())
            {
                ended(remote);
            }
        }
    }
}

/// All filters of clients, one after the other. It replaces what was known of them.
#[derive(Debug)]
pub struct Walk {
    map: Arc<Map>,
    filters_max: usize,
    groups_max: usize,
    tables: Tables,
    groups: Groups,
    is_beyond: bool,
}

impl Walk {
    /// Takes the next filter.
    pub fn offer(&mut self, local: &str) {
        if is_group(local) {
            self.groups.add(&self.map, local, self.groups_max);
            return;
        }
        if self.is_beyond {
            return;
        }
        self.tables.add(&self.map, local, |_| {});
        if self.tables.exceeds(self.filters_max) {
            self.is_beyond = true;
            self.tables = Tables::default();
        }
    }
}

impl Interest {
    /// `prefix` is that of the names here; `topics` are filters at the other cluster. `filters_max` is also the maximum
    /// number of groups.
    pub fn new<'a>(prefix: &str, topics: impl Iterator<Item = &'a str>, filters_max: usize) -> Self {
        let topics = topics.map(|topic| Taken::new(prefix, topic)).collect();
        Self {
            map: Arc::new(Map { topics, takes_groups: true }),
            filters_max: filters_max.max(1),
            tables: Tables::default(),
            groups: Groups::default(),
            takes_all: false,
            announced: HashSet::new(),
            touched: HashSet::new(),
            all_touched: false,
        }
    }

    /// Leaves groups out: the link takes messages of a third cluster.
    #[must_use]
    pub fn without_groups(self) -> Self {
        let topics = self.map.topics.clone();
        Self { map: Arc::new(Map { topics, takes_groups: false }), ..self }
    }

    /// Notes whether clients here want a filter. It may be said again.
    pub fn set(&mut self, local: &str, is_wanted: bool) {
        if is_group(local) {
            let changed = match is_wanted {
                true => self.groups.add(&self.map, local, self.filters_max),
                false => self.groups.remove(&self.map, local),
            };
            return self.touched.extend(changed);
        }
        if self.takes_all {
            return;
        }
        let Self { map, tables, touched, .. } = self;
        match is_wanted {
            true => tables.add(map, local, |remote| touched.extend([remote.clone()])),
            false => tables.remove(map, local, |remote| touched.extend([remote])),
        }
        if self.tables.exceeds(self.filters_max) {
            self.take_all();
        }
    }

    /// Begins to take all filters of clients: at the start, when changes were missed, and from time to time while
    /// [`Self::takes_all`].
    pub fn walk(&self) -> Walk {
        let filters_max = match self.takes_all {
            true => self.filters_max - self.filters_max / 4,
            false => self.filters_max,
        };
        Walk {
            map: self.map.clone(),
            filters_max,
            groups_max: self.filters_max,
            tables: Tables::default(),
            groups: Groups::default(),
            is_beyond: false,
        }
    }

    /// Ends a walk. Changes since its begin must be set after this.
    pub fn finish(&mut self, walk: Walk) {
        self.groups = walk.groups;
        if walk.is_beyond {
            if !self.takes_all {
                self.take_all();
            }
            self.all_touched = true;
            return;
        }
        self.tables = walk.tables;
        (self.takes_all, self.all_touched) = (false, true);
        self.touched.clear();
    }

    fn take_all(&mut self) {
        self.tables = Tables::default();
        (self.takes_all, self.all_touched) = (true, true);
        self.touched.clear();
    }

    /// Returns true while there are more filters than the maximum, so the link takes all of its topics.
    pub fn takes_all(&self) -> bool {
        self.takes_all
    }

    /// Returns true while there are more groups than the maximum, so some of them are not joined.
    pub fn lacks_groups(&self) -> bool {
        self.groups.is_beyond
    }

    /// Number of filters and groups that are wanted at the other cluster.
    pub fn wanted(&self) -> usize {
        let filters = if self.takes_all { self.map.topics.len() } else { self.tables.remote.len() };
        filters + self.groups.all.len()
    }

    /// Returns what changed since the last call.
    pub fn take(&mut self) -> Delta {
        let touched = std::mem::take(&mut self.touched);
        let mut delta = Delta::default();
        if !std::mem::take(&mut self.all_touched) {
            for remote in touched {
                let is_wanted = self.tables.remote.contains_key(&remote) || self.groups.all.contains(&remote);
                match (is_wanted, self.announced.contains(&remote)) {
                    (true, false) => {
                        delta.add.push((*remote).into());
                        self.announced.insert(remote);
                    }
                    (false, true) => {
                        delta.remove.push((*remote).into());
                        self.announced.remove(&remote);
                    }
                    _ => {}
                }
            }
            return delta;
        }
        let mut wanted: HashSet<Arc<str>> = match self.takes_all {
            true => self.map.topics.iter().map(|topic| topic.topic().into()).collect(),
            false => self.tables.remote.keys().cloned().collect(),
        };
        wanted.extend(self.groups.all.iter().cloned());
        delta.add.extend(wanted.difference(&self.announced).map(|remote| Box::from(&**remote)));
        delta.remove.extend(self.announced.difference(&wanted).map(|remote| Box::from(&**remote)));
        self.announced = wanted;
        delta
    }

    /// Asserts the invariant of this type.
    pub fn check_invariants(&self) {
        let mut wanted: HashMap<String, u32> = HashMap::new();
        for local in &self.tables.local {
            self.map.remote(local).for_each(|remote| *wanted.entry(remote).or_default() += 1);
        }
        assert_eq!(wanted.len(), self.tables.remote.len(), "each wanted filter is counted");
        for (remote, count) in &wanted {
            assert_eq!(self.tables.remote.get(remote.as_str()), Some(count), "{remote}");
        }
        assert!(!self.takes_all || self.tables.local.is_empty(), "beyond the maximum nothing is counted");
        assert!(!self.tables.exceeds(self.filters_max), "the tables are within the maximum");
        assert!(self.groups.all.len() <= self.filters_max, "the groups are within the maximum");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use random::Random;

    use super::*;

    fn interest(topics: &[&str], filters_max: usize) -> Interest {
        Interest::new("n/", topics.iter().copied(), filters_max)
    }

    fn sorted(delta: Delta) -> (Vec<Box<str>>, Vec<Box<str>>) {
        let Delta { mut add, mut remove } = delta;
        add.sort_unstable();
        remove.sort_unstable();
        (add, remove)
    }

    #[test]
    fn a_filter_is_wanted_until_the_last_client_ends_it() {
        let mut interest = interest(&["a/#"], 10);
        interest.set("n/a/b", true);
        interest.set("+/a/b", true);
        interest.set("n/c", true);
        assert_eq!(sorted(interest.take()), (vec!["a/b".into()], vec![]));
        interest.set("n/a/b", false);
        assert!(interest.take().is_empty());
        interest.set("+/a/b", false);
        interest.set("+/a/b", false);
        assert_eq!(sorted(interest.take()), (vec![], vec!["a/b".into()]));
    }

    #[test]
    fn what_comes_and_goes_between_two_looks_is_no_change() {
        let mut interest = interest(&["#"], 10);
        interest.set("n/a", true);
        interest.set("n/a", false);
        assert!(interest.take().is_empty());
        interest.set("n/a", true);
        assert_eq!(interest.take().add, ["a".into()]);
        interest.set("n/a", false);
        interest.set("n/a", true);
        assert!(interest.take().is_empty());
    }

    #[test]
    fn beyond_the_maximum_the_link_takes_its_topics_until_a_walk_finds_clearly_fewer() {
        let mut interest = interest(&["a/#", "b/+"], 8);
        for at in 0..8 {
            interest.set(&format!("n/a/{at}"), true);
        }
        assert_eq!(interest.take().add.len(), 8);
        interest.set("n/b/1", true);
        assert!(interest.takes_all());
        let (add, remove) = sorted(interest.take());
        assert_eq!((add, remove.len()), (vec!["a/#".into(), "b/+".into()], 8));
        assert_eq!(interest.wanted(), 2);
        let mut walk_of = |count: usize| {
            let mut walk = interest.walk();
            (0..count).for_each(|at| walk.offer(&format!("n/a/{at}")));
            interest.finish(walk);
            interest.check_invariants();
            (interest.takes_all(), sorted(interest.take()))
        };
        assert_eq!(walk_of(7), (true, (vec![], vec![])));
        let (takes_all, (add, remove)) = walk_of(6);
        assert_eq!((takes_all, add.len(), remove), (false, 6, vec!["a/#".into(), "b/+".into()]));
    }

    #[test]
    fn a_walk_replaces_what_was_known() {
        let mut interest = interest(&["#"], 10);
        interest.set("n/old", true);
        interest.set("n/kept", true);
        interest.take();
        let mut walk = interest.walk();
        walk.offer("n/kept");
        walk.offer("n/new");
        walk.offer("elsewhere");
        interest.finish(walk);
        assert_eq!(sorted(interest.take()), (vec!["new".into()], vec!["old".into()]));
    }

    /// Applies deltas as the other cluster does, and compares with a computation from scratch.
    #[test]
    fn deltas_add_up_to_the_interest_of_all_clients() {
        let filters = [
            "n/a",
            "n/a/b",
            "n/+/b",
            "+/a/#",
            "#",
            "n/b/c",
            "n/c/+",
            "x/y",
            "n/#",
            "$share/linked:g/n/a/b",
            "$share/linked:h/n/a/+",
            "$share/linked:g/#",
            "n/b",
            "+/b",
        ];
        let (mut beyond, mut back) = (0, 0);
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let filters_max = 3 + random.below(8);
            let topics = ["a/#", "+/b", "b"];
            let mut interest = interest(&topics, filters_max);
            let mut local = BTreeSet::new();
            let mut remote: BTreeSet<Box<str>> = BTreeSet::new();
            for _ in 0..200 {
                let was_beyond = interest.takes_all();
                match random.below(10) {
                    0 => {
                        let mut walk = interest.walk();
                        local.iter().for_each(|filter: &&str| walk.offer(filter));
                        interest.finish(walk);
                        back += u32::from(was_beyond && !interest.takes_all());
                    }
                    1 | 2 => {
                        let delta = interest.take();
                        for filter in delta.add {
                            assert!(remote.insert(filter.clone()), "seed {seed}: {filter} is added twice");
                        }
                        for filter in delta.remove {
                            assert!(remote.remove(&filter), "seed {seed}: {filter} was not there");
                        }
                        let groups = local.iter().filter(|filter| filter.starts_with("$share/linked:"));
                        let groups =
                            groups.filter_map(|filter| filter.strip_prefix("$share/")?.split_once("/n/"));
                        let groups =
                            groups.map(|(share, rest)| format!("$share/$link:{share}/{rest}").into());
                        let mut scratch: BTreeSet<Box<str>> = match interest.takes_all() {
                            true => topics.iter().map(|topic| Box::from(*topic)).collect(),
                            false => {
                                let taken = topics.map(|topic| Taken::new("n/", topic));
                                let cut = |filter: &&str| {
                                    let filter = *filter;
                                    taken
                                        .iter()
                                        .filter_map(move |taken| taken.cut(filter))
                                        .map(Box::from)
                                        .collect::<Vec<_>>()
                                };
                                local.iter().filter(|filter| !is_group(filter)).flat_map(cut).collect()
                            }
                        };
                        scratch.extend(groups);
                        assert_eq!(remote, scratch, "seed {seed}");
                        assert_eq!(remote.len(), interest.wanted(), "seed {seed}");
                    }
                    _ => {
                        let filter = *random.pick(&filters);
                        let is_wanted = random.percent(50);
                        if is_wanted {
                            local.insert(filter)
                        } else {
                            local.remove(filter)
                        };
                        interest.set(filter, is_wanted);
                        beyond += u32::from(!was_beyond && interest.takes_all());
                    }
                }
                interest.check_invariants();
            }
        }
        assert!(beyond > 50 && back > 50, "{beyond} times beyond the maximum, {back} times back");
    }

    #[test]
    fn a_group_is_joined_apart_from_filters_up_to_the_maximum() {
        let mut interest = interest(&["#"], 2);
        for filter in ["n/1", "n/2", "n/3", "$share/linked:g/n/1", "$share/linked:g/#"] {
            interest.set(filter, true);
        }
        assert!(interest.takes_all());
        let joined = "$share/$link:linked:g/1".into();
        assert_eq!(sorted(interest.take()), (vec!["#".into(), joined], vec![]));
        interest.set("$share/linked:g/n/2", true);
        assert!(!interest.lacks_groups());
        interest.set("$share/linked:g/n/3", true);
        assert!(interest.lacks_groups());
        assert_eq!((interest.take().add.len(), interest.wanted()), (1, 3));
        interest.set("$share/linked:g/n/2", false);
        assert_eq!(sorted(interest.take()).1, ["$share/$link:linked:g/2".into()]);
        let mut walk = interest.walk();
        ["$share/linked:g/n/1", "$share/linked:g/n/3"].iter().for_each(|filter| walk.offer(filter));
        interest.finish(walk);
        assert!(!interest.lacks_groups());
        let (add, remove) = sorted(interest.take());
        assert_eq!(add, ["$share/$link:linked:g/3".into()]);
        assert_eq!(remove, ["#".into()]);
        interest.check_invariants();
        let mut of_transit = self::interest(&["#"], 2).without_groups();
        of_transit.set("$share/linked:g/n/1", true);
        assert!(of_transit.take().is_empty());
    }
}
