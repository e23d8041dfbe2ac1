//! Record of a connector or an action in the configuration store.

use configstore::{Change, ProposeError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::definitions::{Definition, Entry, Source};
use super::json::{readable_settings, settings_to_json};
use super::{Authorship, RegistryError};

#[derive(Default, Deserialize, Serialize)]
pub struct Record {
    settings: Map<String, Json>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    author: String,
    changed_ms: u64,
}

impl Record {
    /// # Errors
    /// None: every record has a JSON form.
    pub fn put<S: Entry>(settings: &S, by: &Authorship) -> Result<Change, RegistryError> {
        let record =
            Self { settings: settings_to_json(settings), author: by.author.clone(), changed_ms: by.now_ms };
        Change::put(S::TABLE, settings.name(), &record)
            .map_err(|error| RegistryError::ConfigStore(ProposeError::Broken { why: error.to_string() }))
    }

    /// Reads a record. One that cannot be used, such as one of a later version of this program, becomes a definition
    /// with a fault.
    pub fn read<S: Entry>(name: &str, value: &str) -> Definition<S> {
        let (record, unreadable) = match serde_json::from_str::<Self>(value) {
            Ok(record) => (record, None),
            Err(error) => (Self::default(), Some(format!("the record cannot be read: {error}"))),
        };
        let (settings, problem) = readable_settings::<S>(name, &record.settings);
        let problem = problem.or_else(|| settings.check_alone().err()).map(|problem| problem.to_string());
        Definition {
            settings,
            source: Source::Store,
            author: record.author,
            changed_ms: Some(record.changed_ms),
            fault: unreadable.or(problem),
            hides_stored: false,
        }
    }
}
