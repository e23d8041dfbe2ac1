//! The subscriptions of one session. The key of each is its text: the Topic Filter, with `$share/{ShareName}/` if any.

use std::collections::BTreeMap;

use crate::wire::{Reader, Writer};

/// Subscriptions as bytes while they are few, and as a tree when they are many. Both are in the order of the texts.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "most sessions have few, and a tree inside would make each of them larger"
)]
pub(crate) enum Subscriptions {
    /// Subscription Options, Subscription Identifier or 0, length of the text, text, for each subscription.
    Few(Box<[u8]>),
    Many(Box<BTreeMap<Box<str>, (u8, u32)>>),
}

const _: () = assert!(size_of::<Subscriptions>() == 16);

/// Maximum size of `Few`, in bytes. Beyond it, subscriptions are kept as `Many`.
const FEW_BYTES: usize = 1024;

impl Default for Subscriptions {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl Subscriptions {
    pub fn len(&self) -> usize {
        match self {
            Self::Few(bytes) => Few::of(bytes).count(),
            Self::Many(tree) => tree.len(),
        }
    }

    pub fn contains(&self, text: &str) -> bool {
        self.get(text).is_some()
    }

    /// Returns Subscription Options, and Subscription Identifier or 0.
    pub fn get(&self, text: &str) -> Option<(u8, u32)> {
        match self {
            Self::Few(bytes) => {
                Few::of(bytes).find(|(known, ..)| *known == text).map(|(_, options, id)| (options, id))
            }
            Self::Many(tree) => tree.get(text).copied(),
        }
    }

    /// Inserts a subscription. Returns true when the text existed already.
    pub fn insert(&mut self, text: &str, options: u8, id: u32) -> bool {
        match self {
            Self::Few(bytes) => {
                let (mut before, mut after) = (Vec::new(), Vec::new());
                let mut known = false;
                for (other, options, id) in Few::of(bytes) {
                    match other.cmp(text) {
                        std::cmp::Ordering::Less => put(&mut before, other, options, id),
                        std::cmp::Ordering::Equal => known = true,
                        std::cmp::Ordering::Greater => put(&mut after, other, options, id),
                    }
                }
                put(&mut before, text, options, id);
                before.append(&mut after);
                *bytes = before.into();
                if bytes.len() > FEW_BYTES {
                    let tree = Few::of(bytes).map(|(text, options, id)| (text.into(), (options, id)));
                    *self = Self::Many(Box::new(tree.collect()));
                }
                known
            }
            Self::Many(tree) => match tree.get_mut(text) {
                Some(known) => {
                    *known = (options, id);
                    true
                }
                None => tree.insert(text.into(), (options, id)).is_some(),
            },
        }
    }

    /// Removes a subscription. Returns true when the text existed.
    pub fn remove(&mut self, text: &str) -> bool {
        match self {
            Self::Few(bytes) => {
                let mut rest = Vec::new();
                let others = Few::of(bytes).filter(|(known, ..)| *known != text);
                others.for_each(|(known, options, id)| put(&mut rest, known, options, id));
                let removed = rest.len() < bytes.len();
                *bytes = rest.into();
                removed
            }
            Self::Many(tree) => tree.remove(text).is_some(),
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = (&str, u8, u32)> + '_> {
        match self {
            Self::Few(bytes) => Box::new(Few::of(bytes)),
            Self::Many(tree) => Box::new(tree.iter().map(|(text, (options, id))| (&**text, *options, *id))),
        }
    }
}

fn put(bytes: &mut Vec<u8>, text: &str, options: u8, id: u32) {
    bytes.u8(options);
    bytes.u32(id);
    bytes.text(text);
}

struct Few<'a>(Reader<'a>);

impl<'a> Few<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes))
    }
}

impl<'a> Iterator for Few<'a> {
    type Item = (&'a str, u8, u32);

    fn next(&mut self) -> Option<Self::Item> {
        let (options, id) = (self.0.u8().ok()?, self.0.u32().ok()?);
        Some((self.0.text().ok()?, options, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_subscriptions_are_found() {
        let mut subscriptions = Subscriptions::default();
        for number in (0..200).rev() {
            let text = format!("f/{number:03}");
            assert!(!subscriptions.insert(&text, 1, 0));
            assert!(subscriptions.contains(&text));
            assert!(subscriptions.insert(&text, 2, number));
            let first = subscriptions.iter().next().map(|(text, options, id)| (text.to_owned(), options, id));
            assert_eq!(first, Some((text, 2, number)), "in order");
            if number == 190 {
                assert!(subscriptions.remove("f/195") && !subscriptions.remove("f/195"));
                assert!(!subscriptions.contains("f/195") && subscriptions.len() == 9);
            }
        }
        assert!(matches!(subscriptions, Subscriptions::Many(_)));
        assert_eq!(subscriptions.len(), 199);
        assert!(subscriptions.remove("f/039") && !subscriptions.remove("f/039"));
        assert_eq!(subscriptions.iter().count(), 198);
    }
}
