//! Record of a ban in the configuration store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use configstore::Change;
use serde::{Deserialize, Serialize};

use super::target::{BanKind, BanTarget};
use super::{Ban, BanId, TABLE};

/// Stored fields. Times are milliseconds since 1970.
#[derive(Serialize, Deserialize)]
struct Record {
    kind: String,
    value: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    by: String,
    created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until_ms: Option<u64>,
}

/// Returns the key of a ban. Keys sort like the ids.
pub fn key(id: BanId) -> String {
    format!("{:020}", id.0)
}

/// # Errors
/// None: every record has a JSON form.
pub fn put(ban: &Ban) -> serde_json::Result<Change> {
    let record = Record {
        kind: ban.target.kind().name().to_owned(),
        value: ban.target.to_string(),
        reason: ban.reason.to_string(),
        by: ban.by.to_string(),
        created_ms: milliseconds(ban.created_at),
        until_ms: ban.until.map(milliseconds),
    };
    Change::put(TABLE, key(ban.id), &record)
}

/// # Errors
/// The fault of an invalid record.
pub fn read(key: &str, value: &str) -> Result<Ban, String> {
    let wrong = |why: String| format!("ban {key} of the configuration store cannot be used: {why}");
    let id = key.parse().map(BanId).map_err(|_| wrong("its key is not a number".to_owned()))?;
    let record: Record = serde_json::from_str(value).map_err(|error| wrong(error.to_string()))?;
    let kind =
        BanKind::parse(&record.kind).ok_or_else(|| wrong(format!("unknown kind `{}`", record.kind)))?;
    let target = BanTarget::parse(kind, &record.value).map_err(|error| wrong(error.to_string()))?;
    let time = |ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms));
    let beyond = || wrong("a time outside the supported range".to_owned());
    Ok(Ban {
        id,
        target,
        reason: record.reason.into(),
        by: record.by.into(),
        created_at: time(record.created_ms).ok_or_else(beyond)?,
        until: record.until_ms.map(|ms| time(ms).ok_or_else(beyond)).transpose()?,
    })
}

/// Converts a time to milliseconds since 1970. Earlier times can only come from a wrong clock, and become 1970.
fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
