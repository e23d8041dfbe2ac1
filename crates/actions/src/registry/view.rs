//! View of the connectors and actions in the configuration store, joined with those of the configuration file.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use configstore::{Applied, View};
use definitions::{hide, of_file, of_record};
use sinks::{ActionSettings, ConnectorSettings};

use super::check;
use super::entries::{Actions, Connectors, Definitions, Listed};

/// Entries of both sources, and their union.
pub struct Shared {
    of_file: Definitions,
    of_store: Mutex<Definitions>,
    all: ArcSwap<Definitions>,
    changes: AtomicU64,
}

/// View of one of the tables.
struct TableView<K> {
    shared: Arc<Shared>,
    kind: PhantomData<fn() -> K>,
}

impl Shared {
    pub fn new(connectors: Vec<ConnectorSettings>, actions: Vec<ActionSettings>) -> Arc<Self> {
        let of_file = Definitions {
            connectors: of_file::<Connectors>(connectors),
            actions: of_file::<Actions>(actions),
        };
        let shared =
            Self { of_file, of_store: Mutex::default(), all: ArcSwap::default(), changes: AtomicU64::new(0) };
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

    /// Joins both sources, and finds actions whose connectors or fallbacks are missing.
    fn publish(&self, of_store: &Definitions) {
        let before = self.definitions();
        let mut all = of_store.clone();
        hide::<Connectors>(&mut all.connectors, &self.of_file.connectors, &before.connectors);
        hide::<Actions>(&mut all.actions, &self.of_file.actions, &before.actions);
        let faults: Vec<(String, String)> = all
            .usable_actions()
            .filter_map(|action| {
                let problem = check::references(&action.settings, &all).err()?;
                Some((action.settings.name.clone(), problem.to_string()))
            })
            .collect();
        for (name, fault) in faults {
            let is_known =
                before.actions.get(&name).is_some_and(|known| known.fault.as_ref() == Some(&fault));
            if !is_known {
                tracing::warn!("actions: action \"{name}\" cannot run; {fault}");
            }
            if let Some(action) = all.actions.get_mut(&name) {
                Arc::make_mut(action).fault = Some(fault);
            }
        }
        self.all.store(Arc::new(all));
        self.changes.fetch_add(1, Ordering::Release);
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
