//! The subscriptions of one connection.

use std::collections::HashMap;

use crate::route::Options;

/// A client's subscriptions: a list while they are few, a map when they are many.
#[derive(Debug)]
pub(crate) enum Subscriptions {
    /// Most clients have one. It needs no list.
    One(Subscribed),
    Other(Other),
}

/// No subscription, or more than one. As a type of its own it fits next to [`Subscriptions::One`] without a tag.
#[derive(Debug)]
pub(crate) enum Other {
    List(Box<[Subscribed]>),
    Map(Box<Many>),
}

#[derive(Debug)]
pub(crate) struct Many {
    map: HashMap<Box<str>, (Options, u32)>,
    bytes: usize,
    /// Number of shared subscriptions.
    shared: usize,
}

/// Bytes that one subscription counts: more than its text, because the node holds more for it.
pub(crate) fn bytes_of(filter: &str) -> usize {
    filter.len() + 64
}

/// A filter, its options, and its Subscription Identifier or 0.
type Subscribed = (Box<str>, Options, u32);

const _: () = assert!(size_of::<Subscribed>() <= 24, "there is one for each subscription");
const _: () = assert!(size_of::<Subscriptions>() <= 24, "there is one for each connection");

/// Maximum number of subscriptions in a list.
const FEW: usize = 16;

impl Default for Subscriptions {
    fn default() -> Self {
        Self::of_list(Vec::new())
    }
}

impl Subscriptions {
    fn of_list(mut list: Vec<Subscribed>) -> Self {
        match list.pop() {
            Some(one) if list.is_empty() => Self::One(one),
            last => {
                list.extend(last);
                Self::Other(Other::List(list.into_boxed_slice()))
            }
        }
    }

    /// All subscriptions, or the map of many.
    fn list(&self) -> Result<&[Subscribed], &Many> {
        match self {
            Self::One(one) => Ok(std::slice::from_ref(one)),
            Self::Other(Other::List(list)) => Ok(list),
            Self::Other(Other::Map(many)) => Err(many),
        }
    }

    fn list_mut(&mut self) -> Result<&mut [Subscribed], &mut Many> {
        match self {
            Self::One(one) => Ok(std::slice::from_mut(one)),
            Self::Other(Other::List(list)) => Ok(list),
            Self::Other(Other::Map(many)) => Err(many),
        }
    }

    pub fn len(&self) -> usize {
        match self.list() {
            Ok(list) => list.len(),
            Err(many) => many.map.len(),
        }
    }

    /// Bytes of all filters, as they count.
    pub fn bytes(&self) -> usize {
        match self.list() {
            Ok(list) => list.iter().map(|(filter, ..)| bytes_of(filter)).sum(),
            Err(many) => many.bytes,
        }
    }

    /// Number of shared subscriptions.
    pub fn shared(&self) -> usize {
        match self.list() {
            Ok(list) => list.iter().filter(|(filter, ..)| Self::is_shared(filter)).count(),
            Err(many) => many.shared,
        }
    }

    pub fn contains(&self, filter: &str) -> bool {
        match self.list() {
            Ok(list) => list.iter().any(|(known, ..)| **known == *filter),
            Err(many) => many.map.contains_key(filter),
        }
    }

    pub fn get(&self, filter: &str) -> Option<(Options, u32)> {
        match self.list() {
            Ok(list) => {
                list.iter().find(|(known, ..)| **known == *filter).map(|(_, options, id)| (*options, *id))
            }
            Err(many) => many.map.get(filter).copied(),
        }
    }

    /// Adds or replaces a subscription. Returns true when the filter existed already.
    pub fn insert(&mut self, filter: Box<str>, options: Options, id: u32) -> bool {
        match self.list_mut() {
            Ok(list) => {
                if let Some(known) = list.iter_mut().find(|(known, ..)| *known == filter) {
                    (known.1, known.2) = (options, id);
                    return true;
                }
                if list.is_empty() {
                    *self = Self::One((filter, options, id));
                    return false;
                }
                let mut list = std::mem::take(self).into_list();
                list.reserve_exact(1);
                list.push((filter, options, id));
                *self = if list.len() <= FEW { Self::of_list(list) } else { Self::of_many(list) };
                false
            }
            Err(many) => {
                let (bytes, shared) = (bytes_of(&filter), Self::is_shared(&filter));
                let existed = many.map.insert(filter, (options, id)).is_some();
                if !existed {
                    many.bytes += bytes;
                    many.shared += usize::from(shared);
                }
                existed
            }
        }
    }

    fn of_many(list: Vec<Subscribed>) -> Self {
        let bytes = list.iter().map(|(filter, ..)| bytes_of(filter)).sum();
        let shared = list.iter().filter(|(filter, ..)| Self::is_shared(filter)).count();
        let map = list.into_iter().map(|(filter, options, id)| (filter, (options, id))).collect();
        Self::Other(Other::Map(Box::new(Many { map, bytes, shared })))
    }

    pub fn remove(&mut self, filter: &str) -> bool {
        match self.list_mut() {
            Ok(list) => {
                let Some(at) = list.iter().position(|(known, ..)| **known == *filter) else { return false };
                let mut list = std::mem::take(self).into_list();
                list.remove(at);
                *self = Self::of_list(list);
                true
            }
            Err(many) => {
                let existed = many.map.remove(filter).is_some();
                if existed {
                    many.bytes -= bytes_of(filter);
                    many.shared -= usize::from(Self::is_shared(filter));
                }
                existed
            }
        }
    }

    /// The filters for which `holds` is false.
    pub fn filters_not(&self, holds: impl Fn(&str, Options) -> bool) -> Vec<Box<str>> {
        self.iter()
            .filter(|(filter, options, _)| !holds(filter, *options))
            .map(|(filter, ..)| filter.into())
            .collect()
    }

    /// All subscriptions with their options and Subscription Identifiers. The order stays the same as long as nothing
    /// changes.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (&str, Options, u32)> + '_> {
        match self.list() {
            Ok(list) => Box::new(list.iter().map(|(filter, options, id)| (&**filter, *options, *id))),
            Err(many) => Box::new(many.map.iter().map(|(filter, (options, id))| (&**filter, *options, *id))),
        }
    }

    /// Returns whether a filter is that of a shared subscription [MQTT-4.8.2-1].
    pub fn is_shared(filter: &str) -> bool {
        filter.starts_with("$share/")
    }

    /// Calls `f` with each filter.
    pub fn for_each_filter(&self, mut f: impl FnMut(&str)) {
        match self.list() {
            Ok(list) => list.iter().for_each(|(filter, ..)| f(filter)),
            Err(many) => many.map.keys().for_each(|filter| f(filter)),
        }
    }

    fn into_list(self) -> Vec<Subscribed> {
        match self {
            Self::One(one) => vec![one],
            Self::Other(Other::List(list)) => list.into_vec(),
            Self::Other(Other::Map(many)) => {
                many.map.into_iter().map(|(filter, (options, id))| (filter, options, id)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_found_few_or_many() {
        let mut subscriptions = Subscriptions::default();
        for number in 0..40 {
            assert!(!subscriptions.insert(format!("f/{number}").into(), Options::default(), 0));
            assert!(subscriptions.insert(format!("f/{number}").into(), Options::default(), number));
        }
        assert_eq!(subscriptions.len(), 40);
        let counted: usize = subscriptions.iter().map(|(filter, ..)| bytes_of(filter)).sum();
        assert_eq!(subscriptions.bytes(), counted);
        assert!(subscriptions.contains("f/39"));
        assert!(subscriptions.remove("f/39"));
        assert!(!subscriptions.remove("f/39"));
        assert_eq!(subscriptions.bytes(), counted - bytes_of("f/39"));
        let mut filters = 0;
        subscriptions.for_each_filter(|_| filters += 1);
        assert_eq!(filters, 39);
    }

    #[test]
    fn the_last_subscription_of_a_list_is_found_and_removed() {
        let mut subscriptions = Subscriptions::default();
        for number in 0..3 {
            subscriptions.insert(format!("f/{number}").into(), Options::default(), number);
        }
        let left = |subscriptions: &Subscriptions| {
            subscriptions.iter().map(|(filter, _, id)| (filter.to_owned(), id)).collect::<Vec<_>>()
        };
        assert!(subscriptions.remove("f/1"));
        assert_eq!(left(&subscriptions), [("f/0".to_owned(), 0), ("f/2".to_owned(), 2)]);
        assert!(subscriptions.remove("f/0"));
        assert_eq!((subscriptions.len(), subscriptions.get("f/2")), (1, Some((Options::default(), 2))));
        assert!(subscriptions.remove("f/2"));
        assert!(!subscriptions.remove("f/2"));
        assert_eq!((subscriptions.len(), subscriptions.bytes()), (0, 0));
    }
}
