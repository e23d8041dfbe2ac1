//! What the registry says about bans, as CONNECT asks for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use registry::{Applied, View};

use super::record;
use super::snapshot::Snapshot;
use super::{Ban, BanId};

/// The view of the table of bans.
#[derive(Default)]
pub struct Known {
    snapshot: ArcSwap<Snapshot>,
    bans: Mutex<BTreeMap<BanId, Arc<Ban>>>,
}

impl Known {
    pub fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    fn publish(&self, bans: &BTreeMap<BanId, Arc<Ban>>) {
        self.snapshot.store(Arc::new(Snapshot::new(bans.values().cloned())));
    }
}

impl View for Known {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut all = BTreeMap::new();
        for record in records {
            let ban = record::read(record.key, record.value.unwrap_or_default())?;
            all.insert(ban.id, Arc::new(ban));
        }
        let mut bans = self.bans.lock().unwrap_or_else(PoisonError::into_inner);
        *bans = all;
        self.publish(&bans);
        Ok(())
    }

    /// A ban that makes no sense leaves the one that was there.
    fn apply(&self, changes: &[Applied<'_>]) {
        let mut bans = self.bans.lock().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            match change.value.map(|value| record::read(change.key, value)) {
                Some(Ok(ban)) => {
                    bans.insert(ban.id, Arc::new(ban));
                }
                Some(Err(why)) => tracing::error!("{why}"),
                None => {
                    if let Ok(id) = change.key.parse() {
                        bans.remove(&BanId(id));
                    }
                }
            }
        }
        self.publish(&bans);
    }
}
