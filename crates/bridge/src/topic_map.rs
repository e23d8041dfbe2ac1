//! Names of topics on both sides of a bridge.

use std::fmt;

use mqtt::{QoS, Subscription, TopicError, TopicFilter, TopicName};

use crate::settings::{Names, Topic};
use crate::side::Side;

/// Rules that give a topic its name on the other side. The first rule that matches applies.
///
/// **Invariant:** a rule that carries both directions maps the result of one direction back to the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicMap {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    topic: Topic,
    local: String,
    remote: String,
}

/// Name of a topic on the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub topic: String,
    /// Maximum QoS of the rule.
    pub qos: QoS,
}

/// A Topic Filter that the bridge subscribes to, with its maximum QoS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub filter: String,
    pub qos: QoS,
}

/// A topic entry that is not valid. Entries are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapError {
    FilterInvalid {
        entry: usize,
        filter: String,
        error: TopicError,
    },
    /// The filter names a shared subscription.
    Shared {
        entry: usize,
        filter: String,
    },
    /// A prefix has a wildcard.
    PrefixInvalid {
        entry: usize,
        prefix: String,
    },
    /// The two filters do not have the same wildcards in the same order.
    WildcardsDiffer {
        entry: usize,
    },
    /// An earlier entry has the same filter in the same direction.
    Duplicate {
        entry: usize,
        earlier: usize,
    },
}

impl TopicMap {
    /// Creates the map of these entries.
    ///
    /// # Errors
    /// The first entry that is not valid.
    pub fn new(topics: &[Topic]) -> Result<Self, MapError> {
        let mut rules: Vec<Rule> = Vec::new();
        for (entry, topic) in topics.iter().enumerate() {
            let rule = Rule::new(entry, topic)?;
            let is_same = |known: &Rule| {
                let both_out = known.topic.direction.is_out() && topic.direction.is_out();
                let both_in = known.topic.direction.is_in() && topic.direction.is_in();
                both_out && known.local == rule.local || both_in && known.remote == rule.remote
            };
            if let Some(earlier) = rules.iter().position(is_same) {
                return Err(MapError::Duplicate { entry, earlier });
            }
            rules.push(rule);
        }
        Ok(Self { rules })
    }

    /// Returns the name at the remote broker of a topic that leaves this one.
    pub fn to_remote(&self, topic: TopicName<'_>) -> Option<Mapped> {
        self.map(Side::Local, topic)
    }

    /// Returns the name at this broker of a topic from the remote one.
    pub fn to_local(&self, topic: TopicName<'_>) -> Option<Mapped> {
        self.map(Side::Remote, topic)
    }

    /// Returns the name on the other side of a topic that comes from `from`.
    pub fn map(&self, from: Side, topic: TopicName<'_>) -> Option<Mapped> {
        self.rules.iter().filter(|rule| rule.carries(from)).find_map(|rule| rule.map(from, topic))
    }

    /// Returns the name on the other side of a Response Topic in a message that comes from `from`. The response takes
    /// the opposite direction, so rules of that direction come first.
    pub fn map_response(&self, from: Side, topic: TopicName<'_>) -> Option<String> {
        let opposite = self.rules.iter().filter(|rule| rule.carries(from.other()));
        let same = self.rules.iter().filter(|rule| rule.carries(from));
        opposite.chain(same).find_map(|rule| rule.map(from, topic)).map(|mapped| mapped.topic)
    }

    /// Returns the filters that the bridge subscribes to on a side.
    pub fn wanted(&self, side: Side) -> Vec<Wanted> {
        let rules = self.rules.iter().filter(|rule| rule.carries(side));
        rules.map(|rule| Wanted { filter: rule.filter(side).to_owned(), qos: rule.topic.qos }).collect()
    }

    /// Returns the first entry that carries messages out of this broker.
    pub(crate) fn outgoing(&self) -> Option<usize> {
        self.rules.iter().position(|rule| rule.topic.direction.is_out())
    }

    /// Returns the first entry with a filter that begins with `$`, and the filter.
    pub(crate) fn reserved(&self) -> Option<(usize, &str)> {
        let filters = self.rules.iter().enumerate();
        let mut filters = filters.flat_map(|(entry, rule)| [(entry, &*rule.local), (entry, &*rule.remote)]);
        filters.find(|(_, filter)| filter.starts_with('$'))
    }

    /// Returns the pairs of entries, outgoing and incoming, where a message that leaves through the first comes back
    /// through the second, unless the remote broker excludes the bridge's own messages.
    pub fn echoes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let numbered = || self.rules.iter().enumerate();
        numbered().filter(|(_, rule)| rule.topic.direction.is_out()).flat_map(move |(out, leaves)| {
            numbered()
                .filter(move |(_, enters)| {
                    enters.topic.direction.is_in() && overlap(&leaves.remote, &enters.remote)
                })
                .map(move |(into, _)| (out, into))
        })
    }
}

impl Rule {
    fn new(entry: usize, topic: &Topic) -> Result<Self, MapError> {
        let (local, remote) = match &topic.names {
            Names::Prefixed { filter, local_prefix, remote_prefix } => {
                for prefix in [local_prefix, remote_prefix] {
                    if prefix.contains(['+', '#', '\0']) {
                        return Err(MapError::PrefixInvalid { entry, prefix: prefix.clone() });
                    }
                }
                (format!("{local_prefix}{filter}"), format!("{remote_prefix}{filter}"))
            }
            Names::Remapped { local, remote } => (local.clone(), remote.clone()),
        };
        for filter in [&local, &remote] {
            let error = |error| MapError::FilterInvalid { entry, filter: filter.clone(), error };
            if Subscription::parse(filter).map_err(error)?.share.is_some() {
                return Err(MapError::Shared { entry, filter: filter.clone() });
            }
        }
        if !wildcards(&local).eq(wildcards(&remote)) {
            return Err(MapError::WildcardsDiffer { entry });
        }
        Ok(Self { topic: topic.clone(), local, remote })
    }

    fn filter(&self, side: Side) -> &str {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }

    fn carries(&self, from: Side) -> bool {
        match from {
            Side::Local => self.topic.direction.is_out(),
            Side::Remote => self.topic.direction.is_in(),
        }
    }

    /// Returns the name on the other side, if the filter of `from` matches and the filter of the other side matches the
    /// new name.
    fn map(&self, from: Side, topic: TopicName<'_>) -> Option<Mapped> {
        if !TopicFilter::parse(self.filter(from)).ok()?.matches(topic) {
            return None;
        }
        let name = match (&self.topic.names, from) {
            (Names::Prefixed { local_prefix, remote_prefix, .. }, Side::Local) => {
                exchange(topic.as_str(), local_prefix, remote_prefix)?
            }
            (Names::Prefixed { local_prefix, remote_prefix, .. }, Side::Remote) => {
                exchange(topic.as_str(), remote_prefix, local_prefix)?
            }
            (Names::Remapped { .. }, _) => {
                rewrite(topic.as_str(), self.filter(from), self.filter(from.other()))?
            }
        };
        let is_valid = TopicFilter::parse(self.filter(from.other()))
            .is_ok_and(|filter| TopicName::parse(&name).is_ok_and(|name| filter.matches(name)));
        is_valid.then_some(Mapped { topic: name, qos: self.topic.qos })
    }
}

fn wildcards(filter: &str) -> impl Iterator<Item = &str> {
    filter.split('/').filter(|level| matches!(*level, "+" | "#"))
}

/// Replaces a prefix. `a/#` also matches `a`, whose prefix is `a/` without its separator.
fn exchange(topic: &str, from: &str, to: &str) -> Option<String> {
    match topic.strip_prefix(from) {
        Some(rest) => Some(format!("{to}{rest}")),
        None if from.strip_suffix('/') == Some(topic) => to.strip_suffix('/').map(str::to_owned),
        None => None,
    }
}

/// Puts the levels that the wildcards of `from` match into the wildcards of `to`.
fn rewrite(topic: &str, from: &str, to: &str) -> Option<String> {
    let mut matched = Vec::new();
    let mut rest = Some(topic);
    for level in from.split('/') {
        if level == "#" {
            break;
        }
        let (first, after) = match rest?.split_once('/') {
            Some((first, after)) => (first, Some(after)),
            None => (rest?, None),
        };
        if level == "+" {
            matched.push(first);
        }
        rest = after;
    }
    let mut matched = matched.into_iter();
    let mut levels = Vec::new();
    for level in to.split('/') {
        match level {
            "+" => levels.push(matched.next()?),
            "#" => levels.extend(rest),
            _ => levels.push(level),
        }
    }
    Some(levels.join("/"))
}

/// Returns whether a topic exists that both filters match.
pub(crate) fn overlap(a: &str, b: &str) -> bool {
    let starts_with_dollar = |filter: &str| filter.starts_with('$');
    let starts_with_wildcard = |filter: &str| filter.starts_with(['+', '#']);
    if starts_with_dollar(a) && starts_with_wildcard(b) || starts_with_dollar(b) && starts_with_wildcard(a) {
        return false;
    }
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (Some("#"), _) | (_, Some("#")) | (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
            (Some(left), Some(right)) if left == right => {}
            _ => return false,
        }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FilterInvalid { entry, filter, error } => {
                write!(f, "topic entry {entry}: {filter:?} is not a Topic Filter: {error}")
            }
            Self::Shared { entry, filter } => {
                write!(f, "topic entry {entry}: {filter:?} is shared; a bridge needs a plain Topic Filter")
            }
            Self::PrefixInvalid { entry, prefix } => {
                write!(f, "topic entry {entry}: the prefix {prefix:?} has a wildcard; use a fixed text")
            }
            Self::WildcardsDiffer { entry } => write!(
                f,
                "topic entry {entry}: the local and the remote filter need the same wildcards in the same order"
            ),
            Self::Duplicate { entry, earlier } => {
                write!(f, "topic entry {entry} has the same filter as entry {earlier}; remove one of them")
            }
        }
    }
}

impl std::error::Error for MapError {}

#[cfg(test)]
mod tests;
