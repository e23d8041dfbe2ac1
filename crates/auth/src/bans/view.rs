//! View of the bans in the configuration store, for look-ups at CONNECT.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use configstore::{Applied, View};

use super::record;
use super::snapshot::Snapshot;
use super::{Ban, BanId};

/// View of the table of bans.
#[derive(Default)]
pub struct BanView {
    snapshot: ArcSwap<Snapshot>,
    bans: Mutex<BTreeMap<BanId, Arc<Ban>>>,
    /// Number of times that a ban came into force.
    revocations: AtomicU64,
}

impl BanView {
    pub fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    pub fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    fn publish(&self, bans: &BTreeMap<BanId, Arc<Ban>>, has_more: bool) {
        self.snapshot.store(Arc::new(Snapshot::new(bans.values().cloned())));
        if has_more {
            // Incremented after the store: a thread that sees the new number also sees the new bans.
            self.revocations.fetch_add(1, Ordering::Release);
        }
    }
}

impl View for BanView {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut all = BTreeMap::new();
        for record in records {
            let ban = record::read(record.key, record.value.unwrap_or_default())?;
            all.insert(ban.id, Arc::new(ban));
        }
        let mut bans = sync::lock(&self.bans);
        *bans = all;
        self.publish(&bans, !bans.is_empty());
        Ok(())
    }

    /// Applies changes. An invalid record leaves the previous ban in place.
    fn apply(&self, changes: &[Applied<'_>]) {
        let mut bans = sync::lock(&self.bans);
        let mut has_more = false;
        for change in changes {
            match change.value.map(|value| record::read(change.key, value)) {
                Some(Ok(ban)) => {
                    bans.insert(ban.id, Arc::new(ban));
                    has_more = true;
                }
                Some(Err(why)) => tracing::error!("{why}"),
                None => {
                    if let Ok(id) = change.key.parse() {
                        bans.remove(&BanId(id));
                    }
                }
            }
        }
        self.publish(&bans, has_more);
    }
}
