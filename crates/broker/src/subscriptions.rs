//! The subscriptions of one connection.

use std::collections::HashMap;

use crate::route::Options;

/// A client's subscriptions: a list while they are few, a map when they are many.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "most connections have few, and a map inside would make each of them larger"
)]
pub(crate) enum Subscriptions {
    Few(Vec<(Box<str>, Options)>),
    Many(Box<HashMap<Box<str>, Options>>),
}

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
            Self::Many(map) => map.len(),
        }
    }

    pub fn contains(&self, filter: &str) -> bool {
        match self {
            Self::Few(list) => list.iter().any(|(known, _)| **known == *filter),
            Self::Many(map) => map.contains_key(filter),
        }
    }

    /// True when the filter was there already.
    pub fn insert(&mut self, filter: Box<str>, options: Options) -> bool {
        match self {
            Self::Few(list) => {
                if let Some(known) = list.iter_mut().find(|(known, _)| *known == filter) {
                    known.1 = options;
                    return true;
                }
                if list.len() < FEW {
                    list.reserve_exact(1);
                    list.push((filter, options));
                } else {
                    let mut map: HashMap<_, _> = std::mem::take(list).into_iter().collect();
                    map.insert(filter, options);
                    *self = Self::Many(Box::new(map));
                }
                false
            }
            Self::Many(map) => map.insert(filter, options).is_some(),
        }
    }

    pub fn remove(&mut self, filter: &str) -> bool {
        match self {
            Self::Few(list) => {
                let before = list.len();
                list.retain(|(known, _)| **known != *filter);
                list.len() < before
            }
            Self::Many(map) => map.remove(filter).is_some(),
        }
    }

    /// The filters for which `holds` is false.
    pub fn filters_not(&self, holds: impl Fn(&str, Options) -> bool) -> Vec<Box<str>> {
        let not = |filter: &str, options: &Options| (!holds(filter, *options)).then(|| filter.into());
        match self {
            Self::Few(list) => list.iter().filter_map(|(filter, options)| not(filter, options)).collect(),
            Self::Many(map) => map.iter().filter_map(|(filter, options)| not(filter, options)).collect(),
        }
    }

    pub fn into_filters(self) -> Vec<Box<str>> {
        match self {
            Self::Few(list) => list.into_iter().map(|(filter, _)| filter).collect(),
            Self::Many(map) => map.into_keys().collect(),
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
            assert!(!subscriptions.insert(format!("f/{number}").into(), Options::default()));
            assert!(subscriptions.insert(format!("f/{number}").into(), Options::default()));
        }
        assert_eq!(subscriptions.len(), 40);
        assert!(subscriptions.contains("f/39"));
        assert!(subscriptions.remove("f/39"));
        assert!(!subscriptions.remove("f/39"));
        assert_eq!(subscriptions.into_filters().len(), 39);
    }
}
