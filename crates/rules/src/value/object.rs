//! Objects: members in the order of their insertion.

use std::sync::Arc;

use super::{Extent, Value};

/// Members of an object. Small objects are searched one by one. Large ones have an index, so that no payload can make
/// the search slow.
#[derive(Clone, Debug)]
pub struct Object {
    members: Vec<(Arc<str>, Value)>,
    /// Positions in `members`, sorted by name. Empty while there are at most [`LINEAR_MAX`] members.
    sorted: Vec<u32>,
    extent: Extent,
}

impl Object {
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    pub fn with_capacity(count: usize) -> Self {
        Self { members: Vec::with_capacity(count), sorted: Vec::new(), extent: Extent::EMPTY }
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn extent(&self) -> Extent {
        self.extent
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Value)> {
        self.members.iter().map(|(name, value)| (name, value))
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        let at = self.position(name).ok()?;
        self.members.get(at).map(|(_, value)| value)
    }

    /// Replaces the value of a member at its position, or adds the member at the end.
    pub fn insert(&mut self, name: Arc<str>, value: Value) {
        self.extent = self.extent.with(value.extent());
        match self.position(&name) {
            Ok(at) => {
                let before = std::mem::replace(&mut self.members[at].1, value);
                self.extent = self.extent.without(before.extent());
            }
            Err(rank) => {
                self.members.push((name, value));
                if !self.sorted.is_empty() {
                    self.sorted.insert(rank, (self.members.len() - 1) as u32);
                } else if self.members.len() > LINEAR_MAX {
                    self.sort();
                }
            }
        }
    }

    /// Takes the value of a member, and leaves null there.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.position(name).ok()?;
        let value = self.members.get_mut(at).map(|(_, value)| std::mem::take(value))?;
        self.extent = self.extent.with(Extent::LEAF).without(value.extent());
        Some(value)
    }

    /// Position of a member in `members`, or else in `sorted`, where it would be.
    fn position(&self, name: &str) -> Result<usize, usize> {
        if self.sorted.is_empty() {
            return self.members.iter().position(|(known, _)| **known == *name).ok_or(0);
        }
        self.sorted
            .binary_search_by(|at| (*self.members[*at as usize].0).cmp(name))
            .map(|rank| self.sorted[rank] as usize)
    }

    fn sort(&mut self) {
        let members = &self.members;
        self.sorted = (0..members.len() as u32).collect();
        self.sorted.sort_by(|a, b| members[*a as usize].0.cmp(&members[*b as usize].0));
    }
}

/// Makes an object of members with any names. The last of several members with one name counts, at the position of the
/// first one.
impl FromIterator<(Arc<str>, Value)> for Object {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Value)>>(members: I) -> Self {
        let mut object = Self { members: members.into_iter().collect(), ..Self::new() };
        if object.members.len() <= LINEAR_MAX {
            object.remove_repeated_of_few();
        } else {
            object.sort();
            object.remove_repeated();
        }
        object.extent =
            object.members.iter().map(|(_, value)| value.extent()).fold(Extent::EMPTY, Extent::with);
        object
    }
}

impl Object {
    /// Removes repeated names from an object without an index.
    fn remove_repeated_of_few(&mut self) {
        let mut at = 1;
        while at < self.members.len() {
            let (before, rest) = self.members.split_at_mut(at);
            match before.iter_mut().find(|(name, _)| *name == rest[0].0) {
                Some((_, value)) => {
                    *value = std::mem::take(&mut rest[0].1);
                    self.members.remove(at);
                }
                None => at += 1,
            }
        }
    }

    /// Removes repeated names from a sorted object. Sorting is stable, so equal names are in the order of insertion.
    fn remove_repeated(&mut self) {
        let mut is_repeated = vec![false; self.members.len()];
        let mut has_repeated = false;
        let mut first = 0;
        for rank in 1..self.sorted.len() {
            let (before, at) = (self.sorted[first] as usize, self.sorted[rank] as usize);
            if self.members[before].0 == self.members[at].0 {
                self.members[before].1 = std::mem::take(&mut self.members[at].1);
                is_repeated[at] = true;
                has_repeated = true;
            } else {
                first = rank;
            }
        }
        if has_repeated {
            let mut at = 0;
            self.members.retain(|_| {
                at += 1;
                !is_repeated[at - 1]
            });
            self.sorted.clear();
            if self.members.len() > LINEAR_MAX {
                self.sort();
            }
        }
    }
}

impl Default for Object {
    fn default() -> Self {
        Self::new()
    }
}

/// Compares the members in their order.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.members == other.members
    }
}

/// Maximum number of members without an index.
const LINEAR_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(count: i64) -> Vec<(Arc<str>, Value)> {
        (0..count).map(|number| (Arc::from(format!("k{}", number * 7 % count)), number.into())).collect()
    }

    #[test]
    fn members_are_found_and_keep_their_order_at_any_size() {
        for count in [0, 1, 16, 17, 18, 300] {
            let members = numbered(count);
            let at_once: Object = members.iter().cloned().collect();
            let mut one_by_one = Object::new();
            for (name, value) in &members {
                one_by_one.insert(name.clone(), value.clone());
            }
            assert_eq!(at_once, one_by_one);
            for (name, value) in &members {
                assert_eq!(at_once.get(name), one_by_one.get(name));
                if count % 7 != 0 {
                    assert_eq!(at_once.get(name), Some(value));
                }
            }
            assert_eq!(at_once.get("none"), None);
        }
    }

    #[test]
    fn the_last_of_equal_names_counts_at_the_position_of_the_first() {
        for count in [3, 40] {
            let mut members = numbered(count);
            members.push((members[1].0.clone(), Value::from("new")));
            let object: Object = members.iter().cloned().collect();
            assert_eq!(object.len(), count as usize);
            assert_eq!(object.iter().nth(1), Some((&members[1].0, &Value::from("new"))));
        }
    }
}
