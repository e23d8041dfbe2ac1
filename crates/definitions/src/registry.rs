//! Registry of the entries of one or several kinds: those of the configuration file, joined with those of the
//! configuration store.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use configstore::{Applied, ConfigStore, View};

use crate::changes::{Authorship, Changes, may_put, may_remove};
use crate::definition::{Definition, Kind, Named, of_record};
use crate::error::EntryError;
use crate::problem::Problem;
use crate::record::put;

/// Rules by which the entries of both sources are joined.
pub trait Join: Send + Sync + 'static {
    /// Entries of all kinds: [`Named`] when there is one kind.
    type All: Clone + Default + Send + Sync + 'static;

    /// Puts the entries of the file over `all`, which are those of the store, with [`hide`](crate::hide). Gives entries
    /// that cannot be used their fault, with [`mark`]. `before` are the entries of the last call.
    fn join(&self, all: &mut Self::All, of_file: &Self::All, before: &Self::All);
}

/// A kind whose entries are among `All`.
pub trait Listed<All>: Kind {
    fn of(all: &All) -> &Named<Self::Settings>;
    fn of_mut(all: &mut All) -> &mut Named<Self::Settings>;
}

impl<K: Kind> Listed<Named<K::Settings>> for K {
    fn of(all: &Named<K::Settings>) -> &Named<K::Settings> {
        all
    }

    fn of_mut(all: &mut Named<K::Settings>) -> &mut Named<K::Settings> {
        all
    }
}

/// The entries of a node or its cluster.
pub struct Registry<J: Join> {
    shared: Arc<Shared<J>>,
    changes: Changes,
}

struct Shared<J: Join> {
    join: J,
    of_file: J::All,
    of_store: Mutex<J::All>,
    all: ArcSwap<J::All>,
    changes: AtomicU64,
}

/// View of the table of a kind.
struct TableView<K, J: Join> {
    shared: Arc<Shared<J>>,
    kind: PhantomData<fn() -> K>,
}

impl<J: Join> Registry<J> {
    /// Creates a registry with the entries of the configuration file. [`Self::subscribe`] adds those of the
    /// configuration store. Each change of these increments `counter`.
    pub fn new(config_store: Arc<dyn ConfigStore>, of_file: J::All, join: J, counter: &'static str) -> Self {
        let shared = Arc::new(Shared {
            join,
            of_file,
            of_store: Mutex::default(),
            all: ArcSwap::default(),
            changes: AtomicU64::new(0),
        });
        shared.publish(&J::All::default());
        Self { shared, changes: Changes::new(config_store, counter) }
    }

    /// Adds the entries of a kind in the configuration store, and follows their changes. A record that cannot be used
    /// is logged, and has a [`Definition::fault`].
    ///
    /// # Errors
    /// The configuration store cannot be read.
    pub fn subscribe<K: Listed<J::All>>(&self) -> Result<(), String> {
        let view = TableView::<K, J> { shared: self.shared.clone(), kind: PhantomData };
        self.config_store().subscribe(K::TABLE, Arc::new(view))
    }

    /// Returns all entries.
    pub fn definitions(&self) -> Arc<J::All> {
        self.shared.all.load_full()
    }

    /// Number of the last change. It grows when [`Self::definitions`] change.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Acquire)
    }

    pub fn config_store(&self) -> &Arc<dyn ConfigStore> {
        self.changes.config_store()
    }

    /// Rules by which the entries are joined.
    pub fn rules(&self) -> &J {
        &self.shared.join
    }

    /// Adds or replaces an entry that `check` accepts next to the present ones. Returns true when it is new. It waits
    /// for the configuration store: not for a reactor.
    ///
    /// # Errors
    /// The error of `check`, or [`EntryError`]. Nothing has changed then, unless the error says otherwise.
    pub fn put<K: Listed<J::All>, E: From<EntryError>>(
        &self,
        settings: &K::Settings,
        by: &Authorship,
        check: impl Fn(&J::All) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.changes.change(|| {
            let all = self.definitions();
            let is_new = may_put::<K>(K::of(&all), K::name(settings))?;
            check(&all)?;
            Ok((put::<K>(settings, by)?, is_new))
        })
    }

    /// Removes an entry if `check` accepts that with the present ones. It waits like [`Self::put`].
    ///
    /// # Errors
    /// The error of `check`, or [`EntryError`]. Nothing has changed then, unless the error says otherwise.
    pub fn remove<K: Listed<J::All>, E: From<EntryError>>(
        &self,
        name: &str,
        check: impl Fn(&J::All) -> Result<(), E>,
    ) -> Result<(), E> {
        self.changes.change(|| {
            let all = self.definitions();
            let change = may_remove::<K>(K::of(&all), name)?;
            check(&all)?;
            Ok((change, ()))
        })
    }
}

impl<J: Join> Shared<J> {
    /// Joins both sources.
    fn publish(&self, of_store: &J::All) {
        let mut all = of_store.clone();
        self.join.join(&mut all, &self.of_file, &self.all.load());
        self.all.store(Arc::new(all));
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl<K: Listed<J::All>, J: Join> View for TableView<K, J> {
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

/// Gives usable entries that `check` refuses a fault, in the order of their names. A fault that is not among those
/// `before` is logged.
pub fn mark<K: Kind>(
    entries: &mut Named<K::Settings>,
    before: &Named<K::Settings>,
    mut check: impl FnMut(&Arc<Definition<K::Settings>>) -> Result<(), Problem>,
) {
    for (name, entry) in entries.iter_mut().filter(|(_, entry)| entry.fault.is_none()) {
        let Err(problem) = check(entry) else { continue };
        let fault = problem.to_string();
        if before.get(name).is_none_or(|known| known.fault.as_ref() != Some(&fault)) {
            tracing::warn!("{}: the {} \"{name}\" cannot run; {fault}", K::AREA, K::NOUN);
        }
        Arc::make_mut(entry).fault = Some(fault);
    }
}

/// Entries without a fault, enabled or not.
pub fn usable<S>(entries: &Named<S>) -> impl Iterator<Item = &Arc<Definition<S>>> {
    entries.values().filter(|entry| entry.fault.is_none())
}

#[cfg(test)]
mod tests;
