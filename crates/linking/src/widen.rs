//! Broader Topic Filters in place of many.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::hash::BuildHasher as _;
use std::sync::Arc;

use bridge::cover;
use mqtt::TopicFilter;

use crate::cut::cut;

/// Filters of a link at the other cluster.
pub type Pieces = BTreeMap<Arc<str>, Piece>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of a topic of the link that includes the filter.
    pub topic: u32,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exactly this filter is wanted.
    Wanted,
    /// This filter is wanted, and stands for others that it includes.
    Covering,
    /// The filter stands for others that it includes, and nobody has to want it.
    Broader,
}

/// Maximum number of levels of a filter that are compared. A filter with more levels keeps the first ones.
const LEVELS_MAX: usize = 32;
/// Numbers of members of groups that are worth a broader filter. Smaller groups are joined only when that is not
/// enough.
const MANY: usize = 16;
const FEW: usize = 4;

/// Joins filters until at most `target` are left, or the topics of the link. Each filter is included in one that is
/// left.
///
/// 1. Filters that others include are left out. This takes no other topics.
/// 2. Filters that differ in one level become one filter with `+` in this level: `a/1/t`, `a/2/t` become `a/+/t`.
/// 3. Filters of one size below a common prefix become one filter, first below the longest prefixes: `a/1/t`, `a/2/u`
///    become `a/+/+`.
/// 4. What belongs to a topic of the link becomes this topic.
///
/// Each step takes the largest groups first, and ends when few enough are left. Small groups are joined only when that
/// is not enough. So filters in other parts of the topic space stay as they are. The result depends only on the
/// arguments.
pub fn widen(mut pieces: Pieces, target: usize, topics: &[&str]) -> Pieces {
    absorb(&mut pieces);
    let by_level = |pieces: &mut Pieces, members_min: usize| {
        let mut before = usize::MAX;
        while pieces.len() > target && pieces.len() < before {
            before = pieces.len();
            join_by_level(pieces, Limits { target, members_min }, topics);
            absorb(pieces);
        }
    };
    let by_shape = |pieces: &mut Pieces, members_min: usize, depths: std::ops::Range<usize>| {
        for depth in depths.rev() {
            if pieces.len() > target {
                join_by_shape(pieces, Limits { target, members_min }, topics, depth);
            }
        }
        absorb(pieces);
    };
    by_level(&mut pieces, MANY);
    by_level(&mut pieces, FEW);
    by_shape(&mut pieces, MANY, 1..LEVELS_MAX);
    by_level(&mut pieces, 2);
    by_shape(&mut pieces, 2, 1..LEVELS_MAX);
    by_shape(&mut pieces, 2, 0..1);
    join_by_topic(&mut pieces, target, topics);
    pieces
}

#[derive(Clone, Copy)]
struct Limits {
    /// Number of filters at which nothing more is joined.
    target: usize,
    /// Minimum number of members of a group.
    members_min: usize,
}

/// Leaves out filters that others include.
fn absorb(pieces: &mut Pieces) {
    let mut by = BTreeSet::new();
    let mut gone = Vec::new();
    for name in pieces.keys() {
        if let Some(covering) = cover(name, pieces, |other, _| *other != **name) {
            by.insert(covering.clone());
            gone.push(name.clone());
        }
    }
    for name in gone {
        pieces.remove(&name);
    }
    for name in by {
        if let Some(piece) = pieces.get_mut(&name)
            && piece.kind == Kind::Wanted
        {
            piece.kind = Kind::Covering;
        }
    }
}

/// Filters that may become one.
struct Group {
    /// Positions in the list of all filters.
    members: Vec<u32>,
    /// Level to which it belongs. Of groups of one size, the one with the most levels in common is joined first.
    level: usize,
}

/// A filter, and the index of its topic.
type Name = (Arc<str>, u32);

fn names(pieces: &Pieces) -> Vec<Name> {
    pieces.iter().map(|(name, piece)| (name.clone(), piece.topic)).collect()
}

fn join_by_level(pieces: &mut Pieces, limits: Limits, topics: &[&str]) {
    let names = names(pieces);
    let hasher = RandomState::new();
    let mut groups = Vec::new();
    for level in 0..LEVELS_MAX {
        let key = |name: &str, topic: u32| {
            let (before, one, after) = around(name, level)?;
            (one != "+" && one != "#").then(|| hasher.hash_one((topic, before, after)))
        };
        group(&names, level, key, &mut groups);
    }
    let broader = |name: &str, level: usize| {
        let (before, _, after) = around(name, level)?;
        Some(format!("{before}+{after}"))
    };
    join(pieces, limits, topics, &names, groups, broader);
}

fn join_by_shape(pieces: &mut Pieces, limits: Limits, topics: &[&str], depth: usize) {
    let names = names(pieces);
    let hasher = RandomState::new();
    let mut groups = Vec::new();
    let key = |name: &str, topic: u32| {
        let shape = Shape::of(name, depth)?;
        Some(hasher.hash_one((topic, shape)))
    };
    group(&names, depth, key, &mut groups);
    let broader = |name: &str, depth: usize| Shape::of(name, depth).map(|shape| shape.filter());
    join(pieces, limits, topics, &names, groups, broader);
}

fn join_by_topic(pieces: &mut Pieces, target: usize, topics: &[&str]) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for piece in pieces.values() {
        *counts.entry(piece.topic).or_default() += 1;
    }
    let mut counts: Vec<(u32, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(topic, count)| (Reverse(*count), *topic));
    for (topic, _) in counts {
        if pieces.len() <= target {
            return;
        }
        pieces.retain(|_, piece| piece.topic != topic);
        let Some(name) = topics.get(topic as usize) else { continue };
        pieces.insert(Arc::from(*name), Piece { topic, kind: Kind::Broader });
    }
}

/// Finds the filters that have the same key.
fn group(names: &[Name], level: usize, key: impl Fn(&str, u32) -> Option<u64>, groups: &mut Vec<Group>) {
    let keyed = names.iter().zip(0..).filter_map(|((name, topic), at)| Some((key(name, *topic)?, at)));
    let mut keyed: Vec<(u64, u32)> = keyed.collect();
    keyed.sort_unstable();
    for same in keyed.chunk_by(|left, right| left.0 == right.0).filter(|same| same.len() > 1) {
        groups.push(Group { members: same.iter().map(|(_, at)| *at).collect(), level });
    }
}

/// Joins groups, the largest first. A filter belongs to several groups until it is joined.
fn join(
    pieces: &mut Pieces,
    Limits { target, members_min }: Limits,
    topics: &[&str],
    names: &[Name],
    mut groups: Vec<Group>,
    broader: impl Fn(&str, usize) -> Option<String>,
) {
    let order = |group: &Group, at: usize| {
        let first = group.members.first().copied().unwrap_or_default();
        (group.members.len(), group.level, Reverse(first), at)
    };
    let large = groups.iter().enumerate().filter(|(_, group)| group.members.len() >= members_min);
    let mut heap: BinaryHeap<_> = large.map(|(at, group)| order(group, at)).collect();
    let mut is_joined = vec![false; names.len()];
    while pieces.len() > target {
        let Some((count, .., at)) = heap.pop() else { return };
        let group = &mut groups[at];
        group.members.retain(|member| !is_joined[*member as usize]);
        if group.members.len() < count {
            if group.members.len() >= members_min {
                heap.push(order(group, at));
            }
            continue;
        }
        let (name, topic) = &names[group.members[0] as usize];
        let Some(joined) = broader(name, group.level).and_then(|text| within(&text, *topic, topics)) else {
            continue;
        };
        for member in &group.members {
            is_joined[*member as usize] = true;
            pieces.remove(&names[*member as usize].0);
        }
        pieces.insert(joined, Piece { topic: *topic, kind: Kind::Broader });
    }
}

/// Returns the part of a filter that a topic of the link includes.
fn within(filter: &str, topic: u32, topics: &[&str]) -> Option<Arc<str>> {
    let topic = TopicFilter::parse(topics.get(topic as usize)?).ok()?;
    cut(TopicFilter::parse(filter).ok()?, topic).map(Arc::from)
}

/// Returns a level of a filter, with the text before and after it.
fn around(name: &str, level: usize) -> Option<(&str, &str, &str)> {
    let mut start = 0;
    for _ in 0..level {
        start += name[start..].find('/')? + 1;
    }
    let (before, rest) = name.split_at(start);
    let (one, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Some((before, one, after))
}

/// Features that a filter has in common with others of its size below a prefix.
#[derive(Hash)]
struct Shape<'a> {
    /// The first levels, with a `/` at the end.
    prefix: &'a str,
    /// Number of levels after them.
    levels: usize,
    /// True when any further levels match.
    is_open: bool,
}

impl<'a> Shape<'a> {
    /// Returns the shape of a filter that has more levels than `depth`.
    fn of(name: &'a str, depth: usize) -> Option<Self> {
        let (prefix, ..) = around(name, depth)?;
        let rest = &name[prefix.len()..];
        let levels = rest.split('/').count();
        let is_open = rest == "#" || rest.ends_with("/#");
        let levels = levels - usize::from(is_open);
        match levels {
            0 => None,
            1..=LEVELS_MAX => Some(Self { prefix, levels, is_open }),
            // It is too long to be distinguished from others.
            _ => Some(Self { prefix, levels: 1, is_open: true }),
        }
    }

    fn filter(&self) -> String {
        let mut levels = vec!["+"; self.levels];
        levels.extend(self.is_open.then_some("#"));
        format!("{}{}", self.prefix, levels.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(names: impl IntoIterator<Item = String>) -> Pieces {
        let wanted = Piece { topic: 0, kind: Kind::Wanted };
        names.into_iter().map(|name| (Arc::from(name), wanted)).collect()
    }

    fn widened(names: impl IntoIterator<Item = String>, target: usize, topic: &str) -> Vec<String> {
        let pieces = widen(pieces(names), target, &[topic]);
        pieces.keys().map(|name| (**name).to_owned()).collect()
    }

    fn numbered(count: usize, name: impl Fn(usize) -> String) -> Vec<String> {
        (0..count).map(name).collect()
    }

    #[test]
    fn the_level_in_which_most_filters_differ_becomes_a_wildcard() {
        let mut names = numbered(100, |at| format!("line/{at}/temp"));
        names.extend(numbered(100, |at| format!("line/{at}/speed")));
        names.extend(["plant/7/temp".to_owned(), "a".to_owned()]);
        assert_eq!(widened(names.clone(), 110, "#").len(), 103, "one of both is enough");
        assert_eq!(widened(names, 90, "#"), ["a", "line/+/speed", "line/+/temp", "plant/7/temp"]);
    }

    #[test]
    fn filters_of_one_size_are_joined_below_the_longest_prefix() {
        let mut names = numbered(100, |at| format!("big/{at}/x{at}"));
        names.extend(numbered(5, |at| format!("small/{at}/x{at}")));
        names.push("big/7".to_owned());
        let expected =
            ["big/+/+", "big/7", "small/0/x0", "small/1/x1", "small/2/x2", "small/3/x3", "small/4/x4"];
        assert_eq!(widened(names.clone(), 50, "#"), expected);
        assert_eq!(widened(names.clone(), 3, "#"), ["big/+/+", "big/7", "small/+/+"]);
        assert_eq!(widened(names.clone(), 2, "#"), ["+/+/+", "big/7"]);
        assert_eq!(widened(names, 1, "#"), ["#"]);
    }

    #[test]
    fn filters_that_others_include_are_left_out_first() {
        let mut names = numbered(50, |at| format!("a/{at}"));
        names.extend(numbered(50, |at| format!("b/{at}")));
        names.push("a/#".to_owned());
        let left = widen(pieces(names), 60, &["#"]);
        assert_eq!(left.len(), 51);
        assert_eq!(left["a/#"].kind, Kind::Covering);
        assert!(left.values().all(|piece| piece.kind != Kind::Broader));
    }

    #[test]
    fn the_result_stays_within_the_topics_of_the_link() {
        let names = numbered(20, |at| format!("a/{at}/x/{at}"));
        assert_eq!(widened(names, 5, "a/+/x/#"), ["a/+/x/+"]);
        let open = numbered(20, |at| format!("a/{at}/{at}/#"));
        assert_eq!(widened(open, 5, "+/#"), ["a/+/+/#"]);
        let mut two = pieces(numbered(9, |at| format!("a/{at}")));
        two.extend(
            pieces(numbered(3, |at| format!("b/{at}")))
                .into_keys()
                .map(|name| (name, Piece { topic: 1, kind: Kind::Wanted })),
        );
        let left: Vec<Arc<str>> = widen(two, 4, &["a/+", "b/+"]).into_keys().collect();
        assert_eq!(left, ["a/+".into(), "b/0".into(), "b/1".into(), "b/2".into()]);
    }

    #[test]
    fn long_filters_become_shorter_ones() {
        let deep = "x/".repeat(100);
        let names = numbered(20, |at| format!("a/{at}/{deep}{at}"));
        let left = widened(names.clone(), 4, "#");
        assert!(left.len() <= 4, "{left:?}");
        for name in pieces(names).keys() {
            let among = left.iter().map(|name| (Arc::from(name.as_str()), ())).collect();
            assert!(cover(name, &among, |_, ()| true).is_some(), "{name} {left:?}");
        }
    }
}
