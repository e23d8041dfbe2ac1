//! View of the connectors and actions in the configuration store, joined with those of the configuration file.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use configstore::{Applied, View};
use sinks::{ActionSettings, ConnectorSettings};

use super::check;
use super::definitions::{Definition, Definitions, Entry, Source};
use super::record::Record;

/// Entries of both sources, and their union.
pub struct Shared {
    of_file: Definitions,
    of_store: Mutex<Definitions>,
    all: ArcSwap<Definitions>,
    changes: AtomicU64,
}

/// View of one of the tables.
struct TableView<S> {
    shared: Arc<Shared>,
    settings: PhantomData<fn() -> S>,
}

impl Shared {
    pub fn new(connectors: Vec<ConnectorSettings>, actions: Vec<ActionSettings>) -> Arc<Self> {
        let of_file = Definitions { connectors: by_name(connectors), actions: by_name(actions) };
        let shared =
            Self { of_file, of_store: Mutex::default(), all: ArcSwap::default(), changes: AtomicU64::new(0) };
        shared.publish(&Definitions::default());
        Arc::new(shared)
    }

    pub fn view<S: Entry>(shared: &Arc<Self>) -> Arc<dyn View> {
        Arc::new(TableView::<S> { shared: shared.clone(), settings: PhantomData })
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
        hide(&mut all.connectors, &self.of_file.connectors, &before.connectors);
        hide(&mut all.actions, &self.of_file.actions, &before.actions);
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

/// Puts the entries of the file over those of the store.
fn hide<S: Entry>(
    all: &mut BTreeMap<String, Arc<Definition<S>>>,
    of_file: &BTreeMap<String, Arc<Definition<S>>>,
    before: &BTreeMap<String, Arc<Definition<S>>>,
) {
    for (name, entry) in of_file {
        let mut entry = Definition::clone(entry);
        entry.hides_stored = all.contains_key(name);
        if entry.hides_stored && !before.get(name).is_some_and(|known| known.hides_stored) {
            tracing::warn!(
                "actions: the {noun} \"{name}\" is in the configuration file and in the configuration store; using the one \
                 of the file",
                noun = S::NOUN
            );
        }
        all.insert(name.clone(), Arc::new(entry));
    }
}

fn by_name<S: Entry>(entries: Vec<S>) -> BTreeMap<String, Arc<Definition<S>>> {
    let defined = entries.into_iter().map(|settings| {
        let fault = settings.check_alone().err().map(|problem| problem.to_string());
        let name = settings.name().to_owned();
        let (source, author) = (Source::File, String::new());
        (
            name,
            Arc::new(Definition { settings, source, author, changed_ms: None, fault, hides_stored: false }),
        )
    });
    defined.collect()
}

fn read<S: Entry>(name: &str, value: &str) -> Arc<Definition<S>> {
    let entry = Record::read::<S>(name, value);
    if let Some(fault) = &entry.fault {
        tracing::warn!(
            "actions: the {noun} \"{name}\" of the configuration store cannot be used; {fault}",
            noun = S::NOUN
        );
    }
    Arc::new(entry)
}

impl<S: Entry> View for TableView<S> {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let entries = records.filter_map(|record| {
            record.value.map(|value| (record.key.to_owned(), read::<S>(record.key, value)))
        });
        let entries = entries.collect();
        let mut of_store = sync::lock(&self.shared.of_store);
        *S::of_mut(&mut of_store) = entries;
        self.shared.publish(&of_store);
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut of_store = sync::lock(&self.shared.of_store);
        let entries = S::of_mut(&mut of_store);
        for change in changes {
            match change.value {
                Some(value) => entries.insert(change.key.to_owned(), read(change.key, value)),
                None => entries.remove(change.key),
            };
        }
        self.shared.publish(&of_store);
    }
}
