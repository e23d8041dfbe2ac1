//! Record of an entry in the configuration store.

use configstore::{Change, ProposeError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::changes::Authorship;
use crate::definition::{Definition, Kind, Source};
use crate::error::EntryError;
use crate::json::{readable_settings, settings_to_json};

#[derive(Default, Deserialize, Serialize)]
struct Record {
    settings: Map<String, Json>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    author: String,
    changed_ms: u64,
}

/// Returns the change that stores an entry.
///
/// # Errors
/// None: every record has a JSON form.
pub fn put<K: Kind>(settings: &K::Settings, by: &Authorship) -> Result<Change, EntryError> {
    let record =
        Record { settings: settings_to_json(settings), author: by.author.clone(), changed_ms: by.now_ms };
    Change::put(K::TABLE, K::name(settings), &record)
        .map_err(|error| EntryError::ConfigStore(ProposeError::Broken { why: error.to_string() }))
}

/// Reads a record. One that cannot be used, such as one of a later version of this program, becomes a definition with a
/// fault.
pub fn read<K: Kind>(name: &str, value: &str) -> Definition<K::Settings> {
    let (record, unreadable) = match serde_json::from_str::<Record>(value) {
        Ok(record) => (record, None),
        Err(error) => (Record::default(), Some(format!("the record cannot be read: {error}"))),
    };
    let changed_ms = unreadable.is_none().then_some(record.changed_ms);
    let (settings, problem) = readable_settings::<K::Settings>(name, &record.settings);
    let problem = problem.or_else(|| K::check_alone(&settings).err()).map(|problem| problem.to_string());
    Definition {
        settings,
        source: Source::Store,
        author: record.author,
        changed_ms,
        fault: unreadable.or(problem),
        hides_stored: false,
    }
}
