//! Record of a rule in the configuration store.

use configstore::{Change, ProposeError};
use serde::{Deserialize, Serialize};

use super::{RuleId, RuleTableError, StoredRule, TABLE};

#[derive(Deserialize, Serialize)]
pub struct Record {
    rank: u64,
    text: String,
    enabled: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    author: String,
    changed_ms: u64,
}

pub fn key(id: RuleId) -> String {
    format!("{:020}", id.0)
}

impl Record {
    /// # Errors
    /// None: every record has a JSON form.
    pub fn put(rule: &StoredRule) -> Result<Change, RuleTableError> {
        let StoredRule { id, text, enabled, description, author, changed_ms, rank } = rule.clone();
        let record = Self { rank, text, enabled, description, author, changed_ms };
        Change::put(TABLE, key(id), &record)
            .map_err(|error| RuleTableError::ConfigStore(ProposeError::Broken { why: error.to_string() }))
    }

    /// # Errors
    /// The fault of an invalid record.
    pub fn read(key: &str, value: &str) -> Result<StoredRule, String> {
        let wrong = |why: String| format!("rule {key} of the configuration store cannot be used: {why}");
        let id = key.parse().map(RuleId).map_err(|_| wrong("its key is not a number".to_owned()))?;
        let record: Self = serde_json::from_str(value).map_err(|error| wrong(error.to_string()))?;
        let Self { rank, text, enabled, description, author, changed_ms } = record;
        Ok(StoredRule { id, text, enabled, description, author, changed_ms, rank })
    }
}
