//! View of the connectors and actions in the configuration store, joined with those of the configuration file.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use configstore::{Applied, View};
use definitions::{Problem, hide, of_file, of_record};
use sinks::{ActionSettings, ConnectorSettings};

use super::entries::{Actions, Connectors, Definitions, Listed};
use super::{Targets, check, tenants};

/// Entries of both sources, and their union.
pub struct Shared {
    of_file: Definitions,
    of_store: Mutex<Definitions>,
    all: ArcSwap<Definitions>,
    changes: AtomicU64,
    targets: Targets,
}

/// View of one of the tables.
struct TableView<K> {
    shared: Arc<Shared>,
    kind: PhantomData<fn() -> K>,
}

impl Shared {
    pub fn new(
        connectors: Vec<ConnectorSettings>,
        actions: Vec<ActionSettings>,
        targets: Targets,
    ) -> Arc<Self> {
        let of_file = Definitions {
            connectors: of_file::<Connectors>(connectors),
            actions: of_file::<Actions>(actions),
        };
        let shared = Self {
            of_file,
            of_store: Mutex::default(),
            all: ArcSwap::default(),
            changes: AtomicU64::new(0),
            targets,
        };
        shared.publish(&Definitions::default());
        Arc::new(shared)
    }

    pub fn view<K: Listed>(shared: &Arc<Self>) -> Arc<dyn View> {
        Arc::new(TableView::<K> { shared: shared.clone(), kind: PhantomData })
    }

    pub fn definitions(&self) -> Arc<Definitions> {
        self.all.load_full()
    }

    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Joins both sources, and finds connectors with files that they may not name, and actions whose connectors or
    /// fallbacks are missing.
    fn publish(&self, of_store: &Definitions) {
        let before = self.definitions();
        let mut all = of_store.clone();
        hide::<Connectors>(&mut all.connectors, &self.of_file.connectors, &before.connectors);
        hide::<Actions>(&mut all.actions, &self.of_file.actions, &before.actions);
        mark::<Connectors>(&mut all, &before, |connector, _| tenants::paths(connector, &self.targets));
        mark::<Actions>(&mut all, &before, check::references);
        self.all.store(Arc::new(all));
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Gives entries that cannot be used their fault, and logs new faults.
fn mark<K: Listed>(
    all: &mut Definitions,
    before: &Definitions,
    check: impl Fn(&K::Settings, &Definitions) -> Result<(), Problem>,
) {
    let usable = K::of(all).values().filter(|entry| entry.fault.is_none());
    let faults = usable.filter_map(|entry| {
        let problem = check(&entry.settings, all).err()?;
        Some((K::name(&entry.settings).to_owned(), problem.to_string()))
    });
    for (name, fault) in faults.collect::<Vec<_>>() {
        let known = K::of(before).get(&name).and_then(|known| known.fault.as_ref());
        if known != Some(&fault) {
            tracing::warn!("{}: {} \"{name}\" cannot run; {fault}", K::AREA, K::NOUN);
        }
        if let Some(entry) = K::of_mut(all).get_mut(&name) {
            Arc::make_mut(entry).fault = Some(fault);
        }
    }
}

impl<K: Listed> View for TableView<K> {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let entries = records.filter_map(|record| {
            record.value.map(|value| (record.key.to_owned(), of_record::<K>(record.key, value)))
        });
        let entries = entries.collect();
        let mut of_store = sync::lock(&self.shared.of_store);
        *K::of_mut(&mut of_store) = entries;
        self.shared.publish(&of_store);
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut of_store = sync::lock(&self.shared.of_store);
        let entries = K::of_mut(&mut of_store);
        for change in changes {
            match change.value {
                Some(value) => entries.insert(change.key.to_owned(), of_record::<K>(change.key, value)),
                None => entries.remove(change.key),
            };
        }
        self.shared.publish(&of_store);
    }
}
