//! The subscriptions of one session, by their texts.

use std::collections::BTreeMap;

/// A list while they are few, a tree when they are many. Both in the order of the texts.
#[derive(Debug, PartialEq, Eq)]
#[expect(
    clippy::box_collection,
    reason = "most sessions have few, and a tree inside would make each of them larger"
)]
pub(crate) enum Subscriptions {
    Few(Vec<Subscription>),
    Many(Box<BTreeMap<Box<str>, (u8, u32)>>),
}

/// Text, Subscription Options, Subscription Identifier or 0.
type Subscription = (Box<str>, u8, u32);

const FEW: usize = 32;

impl Default for Subscriptions {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Subscriptions {
    pub fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(tree) => tree.len(),
        }
    }

    pub fn contains(&self, text: &str) -> bool {
        match self {
            Self::Few(list) => find(list, text).is_ok(),
            Self::Many(tree) => tree.contains_key(text),
        }
    }

    /// True when the text was there already.
    pub fn insert(&mut self, text: &str, options: u8, id: u32) -> bool {
        match self {
            Self::Few(list) => match find(list, text) {
                Ok(at) => {
                    (list[at].1, list[at].2) = (options, id);
                    true
                }
                Err(at) => {
                    list.reserve_exact(1);
                    list.insert(at, (text.into(), options, id));
                    if list.len() > FEW {
                        let list = std::mem::take(list).into_iter();
                        let tree = list.map(|(text, options, id)| (text, (options, id))).collect();
                        *self = Self::Many(Box::new(tree));
                    }
                    false
                }
            },
            Self::Many(tree) => match tree.get_mut(text) {
                Some(known) => {
                    *known = (options, id);
                    true
                }
                None => tree.insert(text.into(), (options, id)).is_some(),
            },
        }
    }

    /// True when the text was there.
    pub fn remove(&mut self, text: &str) -> bool {
        match self {
            Self::Few(list) => match find(list, text) {
                Ok(at) => {
                    list.remove(at);
                    list.shrink_to_fit();
                    true
                }
                Err(_) => false,
            },
            Self::Many(tree) => tree.remove(text).is_some(),
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = (&str, u8, u32)> + '_> {
        match self {
            Self::Few(list) => Box::new(list.iter().map(|(text, options, id)| (&**text, *options, *id))),
            Self::Many(tree) => Box::new(tree.iter().map(|(text, (options, id))| (&**text, *options, *id))),
        }
    }
}

fn find(list: &[Subscription], text: &str) -> Result<usize, usize> {
    list.binary_search_by(|(known, ..)| (**known).cmp(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_found_few_or_many() {
        let mut subscriptions = Subscriptions::default();
        for number in (0..100).rev() {
            let text = format!("f/{number:02}");
            assert!(!subscriptions.insert(&text, 1, 0));
            assert!(subscriptions.contains(&text));
            assert!(subscriptions.insert(&text, 2, number));
            let first = subscriptions.iter().next().map(|(text, options, id)| (text.to_owned(), options, id));
            assert_eq!(first, Some((text, 2, number)), "in order");
        }
        assert_eq!(subscriptions.len(), 100);
        assert!(subscriptions.remove("f/39") && !subscriptions.remove("f/39"));
        assert_eq!(subscriptions.iter().count(), 99);
    }
}
