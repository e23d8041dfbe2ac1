//! Messages of the log that are still needed, and the rare details of entries.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::FixedState;
use slab::Slab;

use crate::entry::Entry;
use crate::ids::MessageKey;
use crate::message::NEVER;

/// Bodies that entries need.
///
/// **Invariant:** `live` is the sum of the sizes of the different messages that entries need.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// Number of entries that need a message, for messages that several entries may need. A message of a single
    /// entry is not here.
    shared: HashMap<MessageKey, u32, FixedState>,
    all_details: Slab<EntryDetails>,
    live: u64,
    /// Number of the messages that `live` counts.
    count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryDetails {
    /// Time at which the message expires, by its Message Expiry Interval or the maximum waiting time; [`NEVER`]
    /// without either.
    pub expires: u64,
    pub ids: Ids,
    /// Text of the shared subscription that the delivery belongs to.
    pub group: Option<Arc<str>>,
}

/// Subscription Identifiers of a delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ids {
    #[default]
    None,
    One([u32; 1]),
    Many(Box<[u32]>),
}

impl Ids {
    pub fn of(ids: &[u32]) -> Self {
        match ids {
            [] => Self::None,
            [one] => Self::One([*one]),
            many => Self::Many(many.into()),
        }
    }

    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl EntryDetails {
    fn is_empty(&self) -> bool {
        self.expires == NEVER && self.group.is_none() && self.ids == Ids::None
    }
}

impl Bodies {
    pub fn new(hasher: FixedState) -> Self {
        Self { shared: HashMap::with_hasher(hasher), all_details: Slab::new(), live: 0, count: 0 }
    }

    /// Bytes of the messages that are needed.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Number of messages that are needed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: &mut Entry, details: EntryDetails) {
        if !details.is_empty() {
            let number = u32::try_from(self.all_details.insert(details)).unwrap_or(u32::MAX - 1);
            assert!(number < u32::MAX - 1, "fewer entries than memory would hold");
            entry.details = number + 1;
        }
        self.refer(entry);
    }

    /// Notes that an entry no longer needs its message.
    pub fn remove(&mut self, entry: &mut Entry) {
        if entry.details != 0 {
            self.all_details.remove(entry.details as usize - 1);
            entry.details = 0;
        }
        self.unrefer(entry);
    }

    /// Moves the message of an entry to another key.
    pub fn relocate(&mut self, entry: &mut Entry, key: MessageKey, shared: bool) {
        self.unrefer(entry);
        entry.move_to(key, shared);
        self.refer(entry);
    }

    fn refer(&mut self, entry: &Entry) {
        if !entry.is_shared() {
            self.live += entry.size();
            self.count += 1;
            return;
        }
        let count = self.shared.entry(entry.key).or_insert(0);
        if *count == 0 {
            self.live += entry.size();
            self.count += 1;
        }
        *count += 1;
    }

    fn unrefer(&mut self, entry: &Entry) {
        if !entry.is_shared() {
            self.live -= entry.size();
            self.count -= 1;
            return;
        }
        if let Some(count) = self.shared.get_mut(&entry.key) {
            *count -= 1;
            if *count == 0 {
                self.shared.remove(&entry.key);
                self.live = self.live.saturating_sub(entry.size());
                self.count = self.count.saturating_sub(1);
            }
        }
    }

    pub fn details(&self, entry: &Entry) -> Option<&EntryDetails> {
        self.all_details.get((entry.details as usize).checked_sub(1)?)
    }

    /// Changes all times.
    pub fn shift(&mut self, later: impl Fn(u64) -> u64) {
        self.all_details.iter_mut().for_each(|(_, details)| details.expires = later(details.expires));
    }

    /// Returns the time at which the entry's message expires.
    pub fn expires(&self, entry: &Entry) -> u64 {
        self.details(entry).map_or(NEVER, |details| details.expires)
    }

    pub fn is_expired(&self, entry: &Entry, now: u64) -> bool {
        let expires = self.expires(entry);
        expires <= now && expires != NEVER
    }

    /// Checks that the stored bodies are exactly those of these entries.
    pub fn check_invariants<'a>(&self, entries: impl Iterator<Item = &'a Entry>) {
        let mut shared = HashMap::with_capacity_and_hasher(self.shared.len(), self.shared.hasher().clone());
        let mut alone = Vec::new();
        let (mut live, mut all_details) = (0, 0);
        for entry in entries {
            all_details += usize::from(entry.details != 0);
            assert!(entry.details == 0 || self.details(entry).is_some_and(|details| !details.is_empty()));
            assert_eq!(entry.is_shared(), self.shared.contains_key(&entry.key));
            let mut is_first = true;
            if entry.is_shared() {
                let count = shared.entry(entry.key).or_insert(0u32);
                *count += 1;
                is_first = *count == 1;
            } else {
                alone.push(entry.key);
            }
            live += if is_first { entry.size() } else { 0 };
        }
        alone.sort_unstable();
        assert!(
            alone.is_sorted_by(|one, next| one < next),
            "entries that share a message are marked as shared"
        );
        assert_eq!(all_details, self.all_details.len());
        assert_eq!((live, (alone.len() + shared.len()) as u64), (self.live, self.count));
        for (key, count) in &self.shared {
            assert_eq!(shared.get(key), Some(count));
        }
    }
}
