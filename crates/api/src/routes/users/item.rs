//! A user as it is shown.

use std::collections::BTreeMap;

use auth::UserRecord;
use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use super::body::RatesBody;
use crate::timestamp::Timestamp;

/// A user. Neither the password nor its hash is shown.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct UserItem {
    pub name: String,
    /// False when the user cannot connect.
    pub enabled: bool,
    /// True when the user may do everything.
    pub superuser: bool,
    /// True when there is a password.
    pub has_password: bool,
    /// True when the password can be proven by SCRAM-SHA-256.
    pub has_scram: bool,
    /// Prefix of all topics of its clients; `null`: none.
    pub tenant: Option<String>,
    pub attributes: BTreeMap<String, String>,
    /// Rates that replace those of the configuration; `null`: as configured.
    pub rates: Option<RatesBody>,
    /// Access rules of the user, evaluated before all others.
    pub rules: Vec<String>,
    pub description: String,
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
}

impl UserItem {
    pub fn of(name: &str, record: &UserRecord) -> Self {
        let is_scram = |hash: &String| hash.starts_with("SCRAM-");
        Self {
            name: name.to_owned(),
            enabled: record.enabled,
            superuser: record.superuser,
            has_password: record.hash.is_some() || record.scram.is_some(),
            has_scram: record.scram.is_some() || record.hash.as_ref().is_some_and(is_scram),
            tenant: record.tenant.clone(),
            attributes: record.attributes.clone(),
            rates: record.rates.map(RatesBody::from),
            rules: record.rules.clone(),
            description: record.description.clone(),
            created_at: Timestamp::of_ms(record.created_ms),
            changed_at: Timestamp::of_ms(record.changed_ms),
        }
    }

    /// Returns a user whose record cannot be read. It is refused at CONNECT and can be removed.
    pub fn damaged(name: &str) -> Self {
        let record = UserRecord { enabled: false, ..UserRecord::new(0) };
        Self { description: "this record cannot be used; see the log".to_owned(), ..Self::of(name, &record) }
    }

    /// Returns whether a text in lower case is a part of the name, tenant or description.
    pub fn matches(&self, search: &str) -> bool {
        let texts = [Some(&self.name), self.tenant.as_ref(), Some(&self.description)];
        texts.into_iter().flatten().any(|text| text.to_ascii_lowercase().contains(search))
    }
}
