//! The subscriptions of one connection.

use std::collections::HashMap;

use crate::route::Options;

/// A client's subscriptions: a list while they are few, a map when they are many.
#[derive(Debug)]
pub(crate) enum Subscriptions {
    Few(Vec<Subscribed>),
    Many(Box<Many>),
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

fn is_shared(filter: &str) -> bool {
    filter.starts_with("$share/") // [MQTT-4.8.2-1]
}

/// A filter, its options, and its Subscription Identifier or 0.
type Subscribed = (Box<str>, Options, u32);

const _: () = assert!(size_of::<Subscribed>() <= 24, "there is one for each subscription");

const FEW: usize = 16;

impl Default for Subscriptions {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Subscriptions {
    pub fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(many) => many.map.len(),
        }
    }

    /// Bytes of all filters, as they count.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Few(list) => list.iter().map(|(filter, ..)| bytes_of(filter)).sum(),
            Self::Many(many) => many.bytes,
        }
    }

    /// Number of shared subscriptions.
    pub fn shared(&self) -> usize {
        match self {
            Self::Few(list) => list.iter().filter(|(filter, ..)| is_shared(filter)).count(),
            Self::Many(many) => many.shared,
        }
    }

    pub fn contains(&self, filter: &str) -> bool {
        match self {
            Self::Few(list) => list.iter().any(|(known, ..)| **known == *filter),
            Self::Many(many) => many.map.contains_key(filter),
        }
    }

    pub fn get(&self, filter: &str) -> Option<(Options, u32)> {
        match self {
            Self::Few(list) => {
                list.iter().find(|(known, ..)| **known == *filter).map(|(_, options, id)| (*options, *id))
            }
            Self::Many(many) => many.map.get(filter).copied(),
        }
    }

    /// Adds or replaces a subscription. Returns true when the filter existed already.
    pub fn insert(&mut self, filter: Box<str>, options: Options, id: u32) -> bool {
        match self {
            Self::Few(list) => {
                if let Some(known) = list.iter_mut().find(|(known, ..)| *known == filter) {
                    (known.1, known.2) = (options, id);
                    return true;
                }
                if list.len() < FEW {
                    list.reserve_exact(1);
                    list.push((filter, options, id));
                } else {
                    let list =
                        std::mem::take(list).into_iter().map(|(filter, options, id)| (filter, (options, id)));
                    let mut map: HashMap<_, _> = list.collect();
                    map.insert(filter, (options, id));
                    let bytes = map.keys().map(|filter| bytes_of(filter)).sum();
                    let shared = map.keys().filter(|filter| is_shared(filter)).count();
                    *self = Self::Many(Box::new(Many { map, bytes, shared }));
                }
                false
            }
            Self::Many(many) => {
                let (bytes, shared) = (bytes_of(&filter), is_shared(&filter));
                let existed = many.map.insert(filter, (options, id)).is_some();
                if !existed {
                    many.bytes += bytes;
                    many.shared += usize::from(shared);
                }
                existed
            }
        }
    }

    pub fn remove(&mut self, filter: &str) -> bool {
        match self {
            Self::Few(list) => {
                let before = list.len();
                list.retain(|(known, ..)| **known != *filter);
                list.len() < before
            }
            Self::Many(many) => {
                let existed = many.map.remove(filter).is_some();
                if existed {
                    many.bytes -= bytes_of(filter);
                    many.shared -= usize::from(is_shared(filter));
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
        match self {
            Self::Few(list) => Box::new(list.iter().map(|(filter, options, id)| (&**filter, *options, *id))),
            Self::Many(many) => {
                Box::new(many.map.iter().map(|(filter, (options, id))| (&**filter, *options, *id)))
            }
        }
    }

    pub fn into_filters(self) -> Vec<Box<str>> {
        match self {
            Self::Few(list) => list.into_iter().map(|(filter, ..)| filter).collect(),
            Self::Many(many) => many.map.into_keys().collect(),
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
        assert_eq!(subscriptions.into_filters().len(), 39);
    }
}
