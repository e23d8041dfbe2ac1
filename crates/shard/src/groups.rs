//! Sessions with shared subscriptions, by the text of the subscription.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Slots of the sessions that have each shared subscription, `$share/{ShareName}/{filter}`, with QoS 1 or 2.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<Box<str>, BTreeSet<u32>>);

impl Groups {
    /// Adds a session. Returns true when it is the first one of its group.
    pub fn insert(&mut self, text: &str, slot: u32) -> bool {
        match self.0.get_mut(text) {
            Some(slots) => {
                slots.insert(slot);
                false
            }
            None => self.0.insert(text.into(), BTreeSet::from([slot])).is_none(),
        }
    }

    /// Removes a session. Returns true when it was the last one of its group.
    pub fn remove(&mut self, text: &str, slot: u32) -> bool {
        let Some(slots) = self.0.get_mut(text) else { return false };
        let is_last = slots.remove(&slot) && slots.is_empty();
        if is_last {
            self.0.remove(text);
        }
        is_last
    }

    /// Iterates over the sessions of a group, beginning after a slot and then from the lowest one.
    pub fn after(&self, text: &str, slot: u32) -> impl Iterator<Item = u32> {
        let slots = self.0.get(text);
        let later = slots.into_iter().flat_map(move |slots| slots.range(slot.saturating_add(1)..));
        let earlier = slots.into_iter().flat_map(move |slots| slots.range(..=slot));
        later.chain(earlier).copied()
    }

    /// Iterates over the groups that follow one in the order of their texts, or over all of them, each with the number
    /// of its sessions.
    pub fn following(&self, text: Option<&str>) -> impl Iterator<Item = (&str, usize)> {
        let from = text.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range::<str, _>((from, Bound::Unbounded)).map(|(text, slots)| (&**text, slots.len()))
    }

    /// Iterates over the groups and the slots of their sessions.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &BTreeSet<u32>)> {
        self.0.iter().map(|(text, slots)| (&**text, slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_session_of_a_group_are_reported() {
        let mut groups = Groups::default();
        assert!(groups.insert("$share/g/t", 3) && !groups.insert("$share/g/t", 5));
        assert!(!groups.insert("$share/g/t", 3), "a subscription that is replaced");
        assert!(groups.insert("$share/h/t", 3), "another group");
        assert!(!groups.remove("$share/g/t", 4) && !groups.remove("$share/g/t", 3));
        assert!(groups.remove("$share/g/t", 5) && !groups.remove("$share/g/t", 5));
        assert_eq!(groups.iter().count(), 1);
    }

    #[test]
    fn sessions_of_a_group_take_turns() {
        let mut groups = Groups::default();
        for slot in [2, 4, 7] {
            groups.insert("$share/g/t", slot);
        }
        let after = |slot| groups.after("$share/g/t", slot).collect::<Vec<_>>();
        assert_eq!(after(0), [2, 4, 7]);
        assert_eq!(after(4), [7, 2, 4]);
        assert_eq!(after(u32::MAX), [2, 4, 7]);
        assert_eq!(groups.after("$share/h/t", 0).count(), 0);
    }

    #[test]
    fn groups_follow_each_other_in_their_order() {
        let mut groups = Groups::default();
        for (text, slot) in [("$share/b/t", 1), ("$share/a/t", 1), ("$share/b/t", 2)] {
            groups.insert(text, slot);
        }
        let following = |text| groups.following(text).collect::<Vec<_>>();
        assert_eq!(following(None), [("$share/a/t", 1), ("$share/b/t", 2)]);
        assert_eq!(following(Some("$share/a/t")), [("$share/b/t", 2)]);
        assert_eq!(following(Some("$share/az")), [("$share/b/t", 2)], "the group has ended meanwhile");
        assert_eq!(following(Some("$share/b/t")), []);
    }
}
