//! Entries with their source.

use std::collections::BTreeMap;
use std::sync::Arc;

use configstore::Table;
use settings::Section;

use crate::problem::Problem;
use crate::record;

/// Entries by their names.
pub type Named<S> = BTreeMap<String, Arc<Definition<S>>>;

/// Kind of entries, such as that of actions.
pub trait Kind: 'static {
    type Settings: Section + Default + Clone + PartialEq + Send + Sync + 'static;

    /// Word for one entry, in errors and in the log.
    const NOUN: &'static str;
    /// First word of lines of the log.
    const AREA: &'static str;
    const TABLE: Table;
    /// Maximum number of entries, with those of the configuration file.
    const MAX: usize;

    fn name(settings: &Self::Settings) -> &str;

    /// Checks what can be checked without files and without other entries.
    ///
    /// # Errors
    /// The first setting that is wrong.
    fn check_alone(settings: &Self::Settings) -> Result<(), Problem>;
}

/// An entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition<S> {
    pub settings: S,
    pub source: Source,
    /// Last author: the name of an API key. Empty for an entry of the file, and in open mode.
    pub author: String,
    /// Time of the last change in milliseconds since 1970; `None` for an entry of the file, and for a record that
    /// cannot be read.
    pub changed_ms: Option<u64>,
    /// Reason why the entry cannot be used. The settings are then those that could be read.
    pub fault: Option<String>,
    /// True when the configuration store has an entry with the same name, which is not used.
    pub hides_stored: bool,
}

/// Origin of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration file of this node.
    File,
    /// The configuration store.
    Store,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Store => "store",
        }
    }
}

/// Returns the entry of a configuration file with these settings.
pub fn defined<S>(settings: S, fault: Option<String>) -> Definition<S> {
    let (source, author) = (Source::File, String::new());
    Definition { settings, source, author, changed_ms: None, fault, hides_stored: false }
}

/// Returns the entries of a configuration file.
pub fn of_file<K: Kind>(entries: Vec<K::Settings>) -> Named<K::Settings> {
    let defined = entries.into_iter().map(|settings| {
        let fault = K::check_alone(&settings).err().map(|problem| problem.to_string());
        (K::name(&settings).to_owned(), Arc::new(defined(settings, fault)))
    });
    defined.collect()
}

/// Returns the entry of a record, and logs why it cannot be used.
pub fn of_record<K: Kind>(name: &str, value: &str) -> Arc<Definition<K::Settings>> {
    let entry = record::read::<K>(name, value);
    if let Some(fault) = &entry.fault {
        tracing::warn!(
            "{}: the {} \"{name}\" of the configuration store cannot be used; {fault}",
            K::AREA,
            K::NOUN
        );
    }
    Arc::new(entry)
}

/// Puts the entries of the file over those of the store. `before` are the entries of the last call, so that a conflict
/// is logged once.
pub fn hide<K: Kind>(
    all: &mut Named<K::Settings>,
    of_file: &Named<K::Settings>,
    before: &Named<K::Settings>,
) {
    for (name, entry) in of_file {
        let mut entry = Definition::clone(entry);
        entry.hides_stored = all.contains_key(name);
        if entry.hides_stored && !before.get(name).is_some_and(|known| known.hides_stored) {
            tracing::warn!(
                "{}: the {} \"{name}\" is in the configuration file and in the configuration store; using the one of \
                 the file",
                K::AREA,
                K::NOUN
            );
        }
        all.insert(name.clone(), Arc::new(entry));
    }
}
