//! Interest of a link: the Topic Filters at the other cluster that clients here want.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bridge::cover;

use crate::cut::Taken;
use crate::widen::{Kind, Piece, Pieces, widen};

/// Maximum number of filters of clients for each filter at the other cluster, on average.
const LOCAL_FACTOR: usize = 4;

/// The filters at the other cluster that clients here want, and those that the link knows of.
///
/// Beyond the maximum number of filters, broader ones stand for many of them ([`widen`]). What they include is not
/// stored, so only a walk over all filters of clients finds out whether they are still needed. While there are no
/// broader ones, a filter that another one includes is taken, too: its removal and that of the other one then need no
/// look at all others.
///
/// A group that has one member over all linked clusters is taken as a shared subscription of its own.
///
/// **Invariant:** each filter at the other cluster that a client wants is taken, or a broader one that includes it. The
/// link never takes more than the maximum number of filters, and no more than that number of groups.
#[derive(Debug)]
pub struct Interest {
    map: Arc<Map>,
    tables: Tables,
    groups: Groups,
    /// Filters that the link knows of.
    announced: HashSet<Arc<str>>,
    /// Filters that may have begun or ceased to be taken since then.
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
    /// Maximum number of filters that are taken, and of groups.
    filters_max: usize,
    takes_groups: bool,
}

impl Map {
    /// Filters at the other cluster for a filter of clients, each with the index of the topic that includes it.
    fn remote<'a>(&'a self, local: &'a str) -> impl Iterator<Item = (u32, String)> + 'a {
        self.topics.iter().zip(0..).filter_map(move |(topic, at)| Some((at, topic.cut(local)?)))
    }

    fn topic(&self, at: u32) -> &str {
        self.topics.get(at as usize).map_or("", Taken::topic)
    }

    /// Number of filters after filters were joined, and up to which single filters come back.
    fn target(&self) -> usize {
        (self.filters_max - self.filters_max / 4).max(self.topics.len())
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
    /// True if a group did not fit since the last walk.
    is_beyond: bool,
}

impl Groups {
    /// Returns the subscription if it is new.
    fn add(&mut self, map: &Map, local: &str) -> Option<Arc<str>> {
        let remote: Arc<str> = map.join(local)?.into();
        if self.all.contains(&remote) {
            return None;
        }
        if self.all.len() >= map.filters_max {
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

#[derive(Clone, Debug, Default)]
struct Tables {
    /// Filters that stand for all filters that they include. Nobody has to want these.
    wide: Pieces,
    /// Filters of clients that cut a topic of the link to a filter of `remote`.
    local: HashSet<Box<str>>,
    /// Single filters at the other cluster.
    remote: HashMap<Arc<str>, Single>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Single {
    /// Number of cuts that give it.
    count: u32,
    /// Index of a topic of the link that includes it.
    topic: u32,
}

impl Tables {
    fn len(&self) -> usize {
        self.wide.len() + self.remote.len()
    }

    fn exceeds(&self, map: &Map) -> bool {
        self.len() > map.filters_max || self.local.len() > map.filters_max.saturating_mul(LOCAL_FACTOR)
    }

    fn takes(&self, filter: &str) -> bool {
        self.remote.contains_key(filter) || self.wide.contains_key(filter)
    }

    /// Returns the filter of `wide` that includes one of a topic of the link.
    fn wide_of(&self, map: &Map, topic: u32, filter: &str) -> Option<&Arc<str>> {
        if self.wide.is_empty() {
            return None;
        }
        let whole = self.wide.get_key_value(map.topic(topic)).map(|(name, _)| name);
        whole.or_else(|| cover(filter, &self.wide, |_, _| true))
    }

    /// Adds a filter of clients. Calls `begun` with the filters that were not taken.
    fn add(&mut self, map: &Map, local: &str, mut begun: impl FnMut(&Arc<str>)) {
        if self.local.contains(local) {
            return;
        }
        let mut has_single = false;
        for (topic, remote) in map.remote(local) {
            if self.wide_of(map, topic, &remote).is_some() {
                continue;
            }
            has_single = true;
            match self.remote.get_mut(remote.as_str()) {
                Some(single) => (single.count, single.topic) = (single.count + 1, single.topic.min(topic)),
                None => {
                    let remote: Arc<str> = remote.into();
                    begun(&remote);
                    self.remote.insert(remote, Single { count: 1, topic });
                }
            }
        }
        if has_single {
            self.local.insert(local.into());
        }
    }

    /// Removes a filter of clients. Calls `ended` with the filters that are taken no more.
    fn remove(&mut self, map: &Map, local: &str, mut ended: impl FnMut(Arc<str>)) {
        if !self.local.remove(local) {
            return;
        }
        for (topic, remote) in map.remote(local) {
            if self.wide_of(map, topic, &remote).is_some() {
                continue;
            }
            let Some(single) = self.remote.get_mut(remote.as_str()) else { continue };
            single.count -= 1;
            if single.count == 0
                && let Some((remote, _)) = self.remote.remove_entry(remote.as_str())
            {
                ended(remote);
            }
        }
    }

    /// Lets broader filters stand for others, so that there are clearly fewer than the maximum.
    fn shrink(&mut self, map: &Map) {
        let local_max = map.target().saturating_mul(LOCAL_FACTOR);
        let mut beyond = self.local.len().saturating_sub(local_max);
        if beyond > 0 {
            // Filters that are wanted in most ways need not be counted any more.
            let mut singles: Vec<(Arc<str>, Single)> =
                self.remote.iter().map(|(name, single)| (name.clone(), *single)).collect();
            singles.sort_unstable_by(|(left, a), (right, b)| (b.count, left).cmp(&(a.count, right)));
            for (name, Single { count, topic }) in singles {
                if beyond == 0 {
                    break;
                }
                beyond = beyond.saturating_sub(count as usize);
                self.wide.insert(name, Piece { topic, kind: Kind::Covering });
            }
            self.settle(map);
        }
        if self.len() > map.filters_max {
            let topics: Vec<&str> = map.topics.iter().map(Taken::topic).collect();
            let single = |single: &Single| Piece { topic: single.topic, kind: Kind::Wanted };
            let mut pieces: Pieces =
                self.remote.iter().map(|(name, one)| (name.clone(), single(one))).collect();
            pieces.append(&mut self.wide);
            self.wide = widen(pieces, map.target(), &topics);
            self.wide.retain(|_, piece| piece.kind != Kind::Wanted);
            self.settle(map);
        }
        if self.exceeds(map) {
            // The last resort, with which nothing is single.
            let topics = map.topics.iter().zip(0..);
            let whole = |topic: u32| Piece { topic, kind: Kind::Broader };
            self.wide = topics.map(|(topic, at)| (Arc::from(topic.topic()), whole(at))).collect();
            self.settle(map);
        }
    }

    /// Leaves out what `wide` includes.
    fn settle(&mut self, map: &Map) {
        self.remote.clear();
        for local in std::mem::take(&mut self.local) {
            self.add(map, &local, |_| {});
        }
    }
}

/// All filters of clients, one after the other. It replaces what was known of them.
///
/// It continues with the broader filters, so that a link whose clients stay the same changes nothing. It finds out
/// which of them can end.
#[derive(Debug)]
pub struct Walk {
    map: Arc<Map>,
    tables: Tables,
    groups: Groups,
    /// Filters that each broader one includes.
    below: BTreeMap<Arc<str>, Below>,
    /// Number of filters in `below`.
    stored: usize,
    /// True when broader filters began in this walk: `below` does not know what these include.
    has_shrunk: bool,
}

/// Filters that a broader one includes.
#[derive(Debug, Default)]
struct Below {
    /// Filters of clients.
    local: HashSet<Box<str>>,
    /// Filters at the other cluster.
    remote: HashSet<Box<str>>,
    /// True when there are too many to store them, so the broader one stays.
    is_large: bool,
}

impl Below {
    fn len(&self) -> usize {
        self.local.len() + self.remote.len()
    }
}

impl Walk {
    /// Takes the next filter.
    pub fn offer(&mut self, local: &str) {
        let Self { map, tables, groups, below, stored, has_shrunk } = self;
        if is_group(local) {
            groups.add(map, local);
            return;
        }
        tables.add(map, local, |_| {});
        if tables.exceeds(map) {
            tables.shrink(map);
            (*has_shrunk, *stored) = (true, 0);
            below.clear();
        }
        if *has_shrunk || tables.wide.is_empty() {
            return;
        }
        for (topic, remote) in map.remote(local) {
            let Some(wide) = tables.wide_of(map, topic, &remote) else { continue };
            let below = below.entry(wide.clone()).or_default();
            if !below.is_large {
                *stored += usize::from(below.remote.insert(remote.into()));
                *stored += usize::from(below.local.insert(local.into()));
                if below.remote.len() > map.target() {
                    *stored -= below.len();
                    *below = Below { is_large: true, ..Below::default() };
                }
            }
        }
        while *stored > map.filters_max.saturating_mul(2) {
            let Some((_, largest)) = below.iter_mut().max_by_key(|(_, below)| below.len()) else { return };
            *stored -= largest.len();
            *largest = Below { is_large: true, ..Below::default() };
        }
    }

    /// Ends broader filters, those that stand for the fewest first, while clearly fewer filters than the maximum are
    /// taken.
    fn narrow(&mut self) {
        if self.has_shrunk {
            return;
        }
        let Self { map, tables, below, .. } = self;
        let mut size = tables.len();
        let mut wide: Vec<(usize, Arc<str>)> = Vec::new();
        for name in tables.wide.keys() {
            match below.get(name) {
                None => wide.push((0, name.clone())),
                Some(below) if !below.is_large => wide.push((below.remote.len(), name.clone())),
                Some(_) => {}
            }
        }
        wide.sort_unstable();
        let (mut ended, mut freed) = (Vec::new(), Vec::new());
        for (count, name) in wide {
            if count > 0 && size - 1 + count > map.target() {
                break;
            }
            size = size - 1 + count;
            freed.extend(below.remove(&name).unwrap_or_default().local);
            ended.push(name);
        }
        for local in &freed {
            // Other cuts of it may be single already.
            tables.remove(map, local, |_| {});
        }
        for name in ended {
            tables.wide.remove(&name);
        }
        for local in &freed {
            tables.add(map, local, |_| {});
        }
        if tables.exceeds(map) {
            tables.shrink(map);
        }
    }
}

impl Interest {
    /// `prefix` is that of the names here; `topics` are filters at the other cluster. `filters_max` is also the maximum
    /// number of groups.
    pub fn new<'a>(prefix: &str, topics: impl Iterator<Item = &'a str>, filters_max: usize) -> Self {
        let topics: Vec<Taken> = topics.map(|topic| Taken::new(prefix, topic)).collect();
        let filters_max = filters_max.max(topics.len()).max(1);
        Self {
            map: Arc::new(Map { topics, filters_max, takes_groups: true }),
            tables: Tables::default(),
            groups: Groups::default(),
            announced: HashSet::new(),
            touched: HashSet::new(),
            all_touched: false,
        }
    }

    /// Leaves groups out: the link takes messages of a third cluster.
    #[must_use]
    pub fn without_groups(self) -> Self {
        let Map { topics, filters_max, .. } = &*self.map;
        let map = Map { topics: topics.clone(), filters_max: *filters_max, takes_groups: false };
        Self { map: Arc::new(map), ..self }
    }

    /// Notes whether clients here want a filter. It may be said again.
    pub fn set(&mut self, local: &str, is_wanted: bool) {
        let Self { map, tables, groups, touched, .. } = self;
        if is_group(local) {
            let changed = match is_wanted {
                true => groups.add(map, local),
                false => groups.remove(map, local),
            };
            return touched.extend(changed);
        }
        match is_wanted {
            true => tables.add(map, local, |remote| touched.extend([remote.clone()])),
            false => tables.remove(map, local, |remote| touched.extend([remote])),
        }
        if self.tables.exceeds(&self.map) {
            self.tables.shrink(&self.map);
            self.touch_all();
        }
    }

    /// Begins to take all filters of clients: at the start, when changes were missed, and from time to time while
    /// [`Self::has_broader`].
    pub fn walk(&self) -> Walk {
        Walk {
            map: self.map.clone(),
            tables: Tables { wide: self.tables.wide.clone(), ..Tables::default() },
            groups: Groups::default(),
            below: BTreeMap::new(),
            stored: 0,
            has_shrunk: false,
        }
    }

    /// Ends a walk. Changes since its begin must be set after this.
    pub fn finish(&mut self, mut walk: Walk) {
        walk.narrow();
        (self.tables, self.groups) = (walk.tables, walk.groups);
        self.touch_all();
    }

    fn touch_all(&mut self) {
        self.all_touched = true;
        self.touched.clear();
    }

    /// Returns true while filters stand for others, so that walks are needed.
    pub fn has_broader(&self) -> bool {
        !self.tables.wide.is_empty()
    }

    /// Filters that are taken although nobody has to want all of their topics.
    pub fn broader(&self) -> impl Iterator<Item = &str> {
        let wide = self.tables.wide.iter().filter(|(_, piece)| piece.kind == Kind::Broader);
        wide.map(|(name, _)| &**name)
    }

    /// Returns true while there are more groups than the maximum, so some of them are not joined.
    pub fn lacks_groups(&self) -> bool {
        self.groups.is_beyond
    }

    /// Returns the filters at the other cluster that a filter of a client needs, or the shared subscription that a
    /// group needs. Broader filters stand for those that they include.
    pub fn remote(&self, local: &str) -> Vec<Box<str>> {
        if is_group(local) {
            let joined = self.map.join(local).filter(|joined| self.groups.all.contains(joined.as_str()));
            return joined.into_iter().map(Box::from).collect();
        }
        let needed = self.map.remote(local).map(|(topic, remote)| {
            let wide = self.tables.wide_of(&self.map, topic, &remote);
            wide.map_or_else(|| remote.as_str().into(), |wide| Box::from(&**wide))
        });
        needed.collect()
    }

    /// Number of filters and groups that are taken from the other cluster.
    pub fn wanted(&self) -> usize {
        self.tables.len() + self.groups.all.len()
    }

    /// Returns what changed since the last call.
    pub fn take(&mut self) -> Delta {
        let touched = std::mem::take(&mut self.touched);
        let mut delta = Delta::default();
        if !std::mem::take(&mut self.all_touched) {
            for remote in touched {
                let is_taken = self.tables.takes(&remote) || self.groups.all.contains(&remote);
                match (is_taken, self.announced.contains(&remote)) {
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
        let taken = self.tables.remote.keys().chain(self.tables.wide.keys()).chain(&self.groups.all);
        let taken: HashSet<Arc<str>> = taken.cloned().collect();
        delta.add.extend(taken.difference(&self.announced).map(|remote| Box::from(&**remote)));
        delta.remove.extend(self.announced.difference(&taken).map(|remote| Box::from(&**remote)));
        self.announced = taken;
        delta
    }

    /// Asserts the invariant of this type.
    pub fn check_invariants(&self) {
        let mut wanted: HashMap<String, u32> = HashMap::new();
        for local in &self.tables.local {
            for (topic, remote) in self.map.remote(local) {
                if self.tables.wide_of(&self.map, topic, &remote).is_none() {
                    *wanted.entry(remote).or_default() += 1;
                }
            }
        }
        assert_eq!(wanted.len(), self.tables.remote.len(), "each single filter is counted");
        for (remote, count) in &wanted {
            let single = self.tables.remote.get(remote.as_str());
            assert_eq!(single.map(|single| single.count), Some(*count), "{remote}");
        }
        assert!(!self.tables.exceeds(&self.map), "the tables are within the maximum");
        assert!(self.groups.all.len() <= self.map.filters_max, "the groups are within the maximum");
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

    fn walk<'a>(interest: &mut Interest, filters: impl IntoIterator<Item = &'a String>) {
        let mut walk = interest.walk();
        filters.into_iter().for_each(|filter| walk.offer(filter));
        interest.finish(walk);
        interest.check_invariants();
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
    fn beyond_the_maximum_the_largest_group_of_filters_becomes_one() {
        let mut interest = interest(&["#"], 100);
        let others: Vec<String> = (0..20).map(|at| format!("n/plant/{at}/t{at}")).collect();
        let many: Vec<String> = (0..80).map(|at| format!("n/line/{at}/temp")).collect();
        others.iter().chain(&many).for_each(|filter| interest.set(filter, true));
        assert!(!interest.has_broader(), "there are as many as there may be");
        assert_eq!(interest.take().add.len(), 100);
        interest.set("n/line/x/temp", true);
        assert_eq!(interest.broader().collect::<Vec<_>>(), ["line/+/temp"]);
        let (add, remove) = sorted(interest.take());
        assert_eq!((add, remove.len()), (vec!["line/+/temp".into()], 80));
        assert!(remove.iter().all(|filter| filter.starts_with("line/")), "others stay as they are");
        assert_eq!(interest.wanted(), 21);
        interest.set("n/line/y/temp", true);
        interest.set("n/line/0/temp", false);
        assert!(interest.take().is_empty(), "the broader filter has them");
    }

    #[test]
    fn single_filters_come_back_when_there_are_clearly_fewer() {
        let mut interest = interest(&["a/#", "b/#"], 100);
        let name = |at: usize| format!("n/a/{at}");
        let all: Vec<String> = (0..101).map(name).collect();
        walk(&mut interest, &all);
        assert_eq!(interest.take().add, ["a/+".into()]);
        interest.set("n/b/1", true);
        let left = |count: usize| all[..count].iter().chain(["n/b/1".to_owned()].iter()).cloned().collect();
        let fewer: Vec<String> = left(75);
        walk(&mut interest, &fewer);
        assert_eq!(
            sorted(interest.take()),
            (vec!["b/1".into()], vec![]),
            "75 + 1 are more than three quarters"
        );
        let fewer: Vec<String> = left(74);
        walk(&mut interest, &fewer);
        let (add, remove) = sorted(interest.take());
        assert_eq!((add.len(), remove, interest.has_broader()), (74, vec!["a/+".into()], false));
    }

    #[test]
    fn a_broader_filter_that_nobody_wants_ends_with_the_next_walk() {
        let mut interest = interest(&["#"], 100);
        let all: Vec<String> = (0..101).map(|at| format!("n/a/{at}")).collect();
        walk(&mut interest, &all);
        interest.take();
        all.iter().for_each(|filter| interest.set(filter, false));
        assert!(interest.take().is_empty() && interest.wanted() == 1);
        walk(&mut interest, []);
        assert_eq!(sorted(interest.take()), (vec![], vec!["a/+".into()]));
    }

    #[test]
    fn walks_over_the_same_filters_change_nothing() {
        let mut interest = interest(&["#"], 100);
        let mut random = Random::new(3);
        let mut filters: Vec<String> = (0..500)
            .map(|_| format!("n/{}/{}/{}", random.below(4), random.below(30), random.below(8)))
            .collect();
        walk(&mut interest, &filters);
        assert!(interest.has_broader() && !interest.take().is_empty());
        // The first ones may end some of the broader filters.
        for seed in 0..60 {
            let mut random = Random::new(seed);
            filters.sort_by_cached_key(|_| random.draw());
            walk(&mut interest, &filters);
            let delta = interest.take();
            assert!(seed < 10 || delta.is_empty(), "order {seed}: {delta:?}");
        }
    }

    #[test]
    fn many_filters_of_clients_for_one_filter_are_not_all_stored() {
        let topic = "a/b/c/d/e/f/g/h/i/j";
        let mut interest = interest(&[topic, "k"], 10);
        for at in 0..1_000 {
            let levels = topic.split('/').enumerate();
            let levels: Vec<&str> =
                levels.map(|(n, level)| if at >> n & 1 == 1 { "+" } else { level }).collect();
            interest.set(&format!("n/{}", levels.join("/")), true);
            interest.check_invariants();
        }
        interest.set("n/k", true);
        assert_eq!(sorted(interest.take()).0, [topic.into(), "k".into()]);
        assert_eq!(interest.broader().count(), 0, "no other topics are taken");
        assert!(interest.tables.local.len() <= 40);
    }

    #[test]
    fn a_walk_replaces_what_was_known() {
        let mut interest = interest(&["#"], 10);
        interest.set("n/old", true);
        interest.set("n/kept", true);
        interest.take();
        walk(&mut interest, &["n/kept".to_owned(), "n/new".to_owned(), "elsewhere".to_owned()]);
        assert_eq!(sorted(interest.take()), (vec!["new".into()], vec!["old".into()]));
    }

    fn includes(by: &str, filter: &str) -> bool {
        let parse = |text| mqtt::TopicFilter::parse(text).expect("a Topic Filter");
        parse(by).covers(parse(filter))
    }

    struct Model {
        topics: Vec<Taken>,
        /// Filters of clients.
        local: BTreeSet<String>,
        /// Filters that clients wanted when the other cluster was notified last.
        before: BTreeSet<String>,
        /// Subscriptions at the other cluster.
        remote: BTreeSet<Box<str>>,
    }

    impl Model {
        fn wanted(&self) -> BTreeSet<String> {
            let cuts =
                |local: &String| self.topics.iter().filter_map(|topic| topic.cut(local)).collect::<Vec<_>>();
            self.local.iter().flat_map(cuts).collect()
        }

        fn check(&self, wanted: &BTreeSet<String>, seed: u64) {
            for filter in wanted {
                assert!(
                    self.remote.iter().any(|by| includes(by, filter)),
                    "seed {seed}: {filter} is missing"
                );
            }
        }

        /// Applies a delta as the other cluster does, and compares with a computation from scratch.
        fn apply(&mut self, interest: &Interest, delta: Delta, filters_max: usize, seed: u64) {
            for filter in delta.add {
                assert!(self.remote.insert(filter.clone()), "seed {seed}: {filter} is added twice");
            }
            let wanted = self.wanted();
            let kept = self.before.intersection(&wanted).cloned().collect();
            self.check(&kept, seed);
            self.check(&wanted, seed);
            for filter in delta.remove {
                assert!(self.remote.remove(&filter), "seed {seed}: {filter} was not there");
                self.check(&kept, seed);
            }
            self.check(&wanted, seed);
            assert_eq!(self.remote.len(), interest.wanted(), "seed {seed}");
            assert!(self.remote.len() <= filters_max, "seed {seed}: {} filters", self.remote.len());
            if !interest.has_broader() {
                let exact: BTreeSet<String> =
                    self.remote.iter().map(|filter| (**filter).to_owned()).collect();
                assert_eq!(exact, wanted, "seed {seed}: nothing else is taken");
            }
            for filter in &self.remote {
                let is_of_link = self.topics.iter().any(|topic| includes(topic.topic(), filter));
                assert!(is_of_link, "seed {seed}: {filter} is beyond the topics");
            }
            self.before = wanted;
        }
    }

    #[test]
    fn each_wanted_filter_is_taken_at_all_times_within_the_maximum() {
        let (mut begun, mut ended) = (0, 0);
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let filters_max = 4 + random.below(30);
            let choices: [&[&str]; 3] = [&["#"], &["a/#", "+/b/#", "b"], &["+/+/c", "a/+", "b/#"]];
            let topics = *random.pick(&choices);
            let mut interest = interest(topics, filters_max);
            let taken = topics.iter().map(|topic| Taken::new("n/", topic)).collect();
            let (local, before, remote) = Default::default();
            let mut model = Model { topics: taken, local, before, remote };
            let mut has_exceeded = false;
            for _ in 0..300 {
                let had_broader = interest.has_broader();
                match random.below(12) {
                    0 => {
                        walk(&mut interest, &model.local);
                        ended += u32::from(had_broader && !interest.has_broader());
                    }
                    1 | 2 => {
                        let delta = interest.take();
                        model.apply(&interest, delta, filters_max, seed);
                    }
                    3 => {
                        let gone: Vec<String> =
                            model.local.iter().filter(|_| random.percent(40)).cloned().collect();
                        for filter in gone {
                            model.local.remove(&filter);
                            interest.set(&filter, false);
                        }
                    }
                    _ => {
                        let levels = 1 + random.below(3);
                        let mut levels: Vec<String> = (0..levels)
                            .map(|_| random.pick(&["a", "b", "c", "d", "+"]).to_string())
                            .collect();
                        if random.percent(40) {
                            levels.push(random.below(40).to_string());
                        }
                        levels.extend(random.percent(20).then(|| "#".to_owned()));
                        let filter = format!("n/{}", levels.join("/"));
                        model.local.insert(filter.clone());
                        interest.set(&filter, true);
                    }
                }
                interest.check_invariants();
                has_exceeded |=
                    model.wanted().len() > filters_max || model.local.len() > filters_max * LOCAL_FACTOR;
                assert!(has_exceeded || !interest.has_broader(), "seed {seed}: it is below the maximum");
                begun += u32::from(!had_broader && interest.has_broader());
            }
        }
        assert!(begun > 100 && ended > 50, "broader filters began {begun} and ended {ended} times");
    }

    #[test]
    fn the_result_depends_on_the_filters_only() {
        let result = || {
            let mut random = Random::new(9);
            let mut interest = interest(&["a/#", "b/+/#"], 50);
            for _ in 0..2_000 {
                let (one, two, three) = (random.below(20), random.below(20), random.below(3));
                interest
                    .set(&format!("n/{}/{one}/{two}/{three}", random.pick(&["a", "b"])), random.percent(70));
            }
            sorted(interest.take()).0
        };
        assert_eq!(result(), result());
    }

    #[test]
    fn a_group_is_joined_apart_from_filters_up_to_the_maximum() {
        let mut interest = interest(&["#"], 2);
        for filter in ["n/1", "n/2", "n/3", "$share/linked:g/n/1", "$share/linked:g/#"] {
            interest.set(filter, true);
        }
        assert!(interest.has_broader());
        let joined: Box<str> = "$share/$link:linked:g/1".into();
        let (add, _) = sorted(interest.take());
        assert!(
            add.contains(&joined) && add.iter().filter(|filter| filter.starts_with("$share/")).count() == 1
        );
        assert_eq!(interest.remote("$share/linked:g/n/1"), [joined]);
        assert!(interest.remote("$share/linked:g/n/2").is_empty());
        interest.set("$share/linked:g/n/2", true);
        assert!(!interest.lacks_groups());
        interest.set("$share/linked:g/n/3", true);
        assert!(interest.lacks_groups());
        assert_eq!(interest.take().add.len(), 1);
        interest.set("$share/linked:g/n/2", false);
        assert_eq!(sorted(interest.take()).1, ["$share/$link:linked:g/2".into()]);
        let filters = ["$share/linked:g/n/1", "$share/linked:g/n/3"].map(String::from);
        walk(&mut interest, &filters);
        assert!(!interest.lacks_groups());
        let (add, _) = sorted(interest.take());
        assert_eq!(add, ["$share/$link:linked:g/3".into()]);
        let mut of_transit = self::interest(&["#"], 2).without_groups();
        of_transit.set("$share/linked:g/n/1", true);
        assert!(of_transit.take().is_empty());
    }
}
