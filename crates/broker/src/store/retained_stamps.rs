//! Times of the last change of each retained topic, on a node that is one of several.

use std::collections::{HashMap, VecDeque};

/// Maximum number of remembered topics: changes on the way to the disk, and deletions.
const TOPICS_MAX: usize = 10_000;

/// Stamps of the last changes. A retained message contains its stamp; these are of changes that are not applied yet,
/// and of deletions. The oldest deletions are forgotten.
#[derive(Debug, Default)]
pub struct Stamps {
    stamps: HashMap<Box<str>, Stamp, foldhash::quality::RandomState>,
    /// The same topics, oldest first.
    order: VecDeque<Box<str>>,
}

/// Time at which a message was retained or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    pub at: u64,
    pub deletes: bool,
}

impl Stamps {
    /// Records a change of a topic. `applied` is the stamp of the retained message.
    ///
    /// # Errors
    /// The known stamp, when it is later or the same.
    pub fn note(&mut self, topic: &str, stamp: Stamp, applied: Option<u64>) -> Result<(), Stamp> {
        let noted = self.stamps.get(topic).copied();
        let applied = applied.map(|at| Stamp { at, deletes: false });
        if let Some(known) = noted.max(applied).filter(|known| known.at >= stamp.at) {
            return Err(known);
        }
        if noted.is_none() {
            self.order.push_back(topic.into());
            if self.order.len() > TOPICS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.stamps.remove(&oldest);
            }
        }
        self.stamps.insert(topic.into(), stamp);
        Ok(())
    }

    /// Known deletions, most recent first.
    pub fn deletions(&self) -> impl Iterator<Item = (&str, u64)> {
        let those = self.order.iter().rev().filter_map(|topic| Some((&**topic, self.stamps.get(topic)?)));
        those.filter(|(_, stamp)| stamp.deletes).map(|(topic, stamp)| (topic, stamp.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_counts_in_whatever_order_they_arrive() {
        let mut stamps = Stamps::default();
        let stamp = |at| Stamp { at, deletes: false };
        assert_eq!(stamps.note("a", stamp(5), None), Ok(()));
        assert_eq!(
            stamps.note("a", stamp(4), None),
            Err(stamp(5)),
            "it is known although it is not applied yet"
        );
        assert_eq!(stamps.note("a", stamp(5), None), Err(stamp(5)), "the same again");
        assert_eq!(stamps.note("a", stamp(6), Some(5)), Ok(()));
        let deletion = Stamp { at: 7, deletes: true };
        assert_eq!(stamps.note("a", deletion, Some(6)), Ok(()));
        assert_eq!(stamps.note("a", stamp(6), None), Err(deletion));
        assert_eq!(stamps.deletions().collect::<Vec<_>>(), [("a", 7)]);
        assert_eq!(stamps.note("b", stamp(7), Some(8)), Err(stamp(8)));
        for number in 0..TOPICS_MAX {
            assert_eq!(stamps.note(&format!("t/{number}"), stamp(1), None), Ok(()));
        }
        assert_eq!(stamps.note("a", stamp(2), None), Ok(()), "forgotten");
        assert_eq!(stamps.stamps.len(), TOPICS_MAX);
    }
}
