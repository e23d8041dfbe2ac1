//! Record of a user in the configuration store.

use std::collections::BTreeMap;

use access::Rates;
use configstore::{Change, Stored};
use serde::{Deserialize, Serialize};

use super::{TABLE, UserError};
use crate::password_hash::PasswordHash;
use crate::rules::RuleSet;

/// User. Times are milliseconds since 1970. `Debug` shows neither hash nor keys.
#[derive(Clone, Deserialize, PartialEq, Eq, Serialize)]
pub struct UserRecord {
    /// Hash in the form of a password file; without it, the user cannot log in by password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Keys of SCRAM-SHA-256, in the form of a password file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scram: Option<String>,
    /// False refuses the user, whatever the password.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// True allows everything without asking rules.
    #[serde(default)]
    pub superuser: bool,
    /// Mountpoint of the user, without the `/` at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Attributes for access rules.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// Rates that replace those of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<RatesRecord>,
    /// The user's own access rules, one a line; they are asked first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub created_ms: u64,
    pub changed_ms: u64,
    /// The [`epoch`](Self::epoch) that continues: clients that logged in during it stay connected. A change without
    /// this begins another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_ms: Option<u64>,
    /// The batch with this record removes the user, whose clients stay connected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_clients: bool,
}

/// Rates of [`Rates`]; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct RatesRecord {
    #[serde(default)]
    pub messages_per_second: u32,
    #[serde(default)]
    pub messages_burst: u32,
    #[serde(default)]
    pub bytes_per_second: u64,
    #[serde(default)]
    pub bytes_burst: u64,
}

impl From<RatesRecord> for Rates {
    fn from(rates: RatesRecord) -> Self {
        let RatesRecord { messages_per_second, messages_burst, bytes_per_second, bytes_burst } = rates;
        Self { messages_per_second, messages_burst, bytes_per_second, bytes_burst }
    }
}

fn yes() -> bool {
    true
}

impl UserRecord {
    /// Creates a user without a password and without special rights.
    pub fn new(now_ms: u64) -> Self {
        Self {
            hash: None,
            scram: None,
            enabled: true,
            superuser: false,
            tenant: None,
            attributes: BTreeMap::new(),
            rates: None,
            rules: Vec::new(),
            description: String::new(),
            created_ms: now_ms,
            changed_ms: now_ms,
            keeps_ms: None,
            leaves_clients: false,
        }
    }

    /// Returns the epoch of clients that log in by this record. They are disconnected when another epoch begins.
    pub fn epoch(&self) -> u64 {
        self.keeps_ms.unwrap_or(self.changed_ms)
    }

    /// Sets a time after `ms`, whatever the clock says.
    pub(super) fn follow(&mut self, ms: u64) {
        self.changed_ms = self.changed_ms.max(ms.saturating_add(1));
    }

    /// Returns whether the two records are the same for clients.
    pub(super) fn is_for_clients_as(&self, other: &Self) -> bool {
        let words = |record: &Self| Self {
            description: String::new(),
            changed_ms: 0,
            keeps_ms: None,
            ..record.clone()
        };
        words(self) == words(other)
    }

    pub(super) fn read(name: &str, stored: &Stored) -> Result<Self, UserError> {
        serde_json::from_str(&stored.value)
            .map_err(|error| UserError::Damaged { name: name.to_owned(), why: error.to_string() })
    }

    /// Checks a record before it is stored, field by field. `before` is the stored record.
    ///
    /// # Errors
    /// [`UserError::Fields`].
    pub fn check_new(&self, name: &str, before: Option<&UserRecord>) -> Result<(), UserError> {
        self.check(name)?;
        // Earlier versions accepted such tenants, and their users can still log in. A new one would lie within another
        // tenant, who can read it.
        let is_kept = before.is_some_and(|before| before.tenant == self.tenant);
        if !is_kept && self.tenant.as_ref().is_some_and(|tenant| tenant.contains('/')) {
            return Err(UserError::Fields(vec![("tenant", tenant_text())]));
        }
        Ok(())
    }

    /// Checks a stored record, field by field.
    ///
    /// # Errors
    /// [`UserError::Fields`].
    pub fn check(&self, name: &str) -> Result<(), UserError> {
        let mut wrong: Vec<(&'static str, String)> = Vec::new();
        let mut say = |field, why: String| wrong.push((field, why));
        if let Err(why) = check_name(name) {
            say("name", why.to_owned());
        }
        if let Some(hash) = &self.hash
            && PasswordHash::parse(hash).is_err()
        {
            say("password_hash", HASH.to_owned());
        }
        if let Some(keys) = &self.scram
            && PasswordHash::parse(keys).ok().and_then(|hash| hash.scram()).is_none()
        {
            say("scram", "expected SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey".to_owned());
        }
        if let Some(tenant) = &self.tenant
            && !is_tenant(tenant)
        {
            say("tenant", tenant_text());
        }
        if self.attributes.len() > ATTRIBUTES_MAX {
            say("attributes", format!("at most {ATTRIBUTES_MAX} are allowed"));
        }
        let fits = |(name, value): (&String, &String)| {
            (1..=ATTRIBUTE_MAX).contains(&name.len()) && value.len() <= ATTRIBUTE_MAX
        };
        if !self.attributes.iter().all(fits) {
            say("attributes", format!("names have 1 to {ATTRIBUTE_MAX} bytes, values up to {ATTRIBUTE_MAX}"));
        }
        if self.description.len() > DESCRIPTION_MAX {
            say("description", format!("it can have at most {DESCRIPTION_MAX} bytes"));
        }
        if self.rules.len() > USER_RULES_MAX {
            say(
                "rules",
                format!("a user may have {USER_RULES_MAX} of its own; use the table of rules for more"),
            );
        }
        for (number, line) in (1..).zip(&self.rules) {
            match RuleSet::parse_line(line) {
                Ok(_) if !line.contains(['\n', '\r']) => {}
                Ok(_) => say("rules", format!("rule {number}: a rule must be one line")),
                Err(error) => say("rules", format!("rule {number}: {error}")),
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(UserError::Fields(wrong)) }
    }

    pub(super) fn put(&self, name: &str) -> Result<Change, UserError> {
        Change::put(TABLE, name, self)
            .map_err(|error| UserError::Damaged { name: name.to_owned(), why: error.to_string() })
    }
}

/// Shows everything but hash and keys.
impl std::fmt::Debug for UserRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserRecord")
            .field("enabled", &self.enabled)
            .field("superuser", &self.superuser)
            .field("tenant", &self.tenant)
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    match name.len() {
        0 => Err("it is empty"),
        1..=NAME_MAX if name.contains(char::is_control) => Err("it holds control characters"),
        1..=NAME_MAX => Ok(()),
        _ => Err("it has more than 1024 bytes"),
    }
}

fn tenant_text() -> String {
    format!(
        "expected 1 to {TENANT_MAX} bytes, without +, #, / and control characters, and without $ at the beginning"
    )
}

/// Returns whether the text is valid in topics and cannot match topics of others.
fn is_tenant(tenant: &str) -> bool {
    let level =
        |level: &str| !level.is_empty() && !level.contains(['+', '#']) && !level.contains(char::is_control);
    (1..=TENANT_MAX).contains(&tenant.len()) && !tenant.starts_with('$') && tenant.split('/').all(level)
}

/// Maximum size of a user's name in bytes.
pub const NAME_MAX: usize = 1_024;
const TENANT_MAX: usize = 256;
const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_MAX: usize = 256;
const DESCRIPTION_MAX: usize = 1_024;
const USER_RULES_MAX: usize = 100;
const HASH: &str = "expected a hash as in a password file ($argon2id$, $7$, $6$, $2b$, $pbkdf2-sha256$, SCRAM-SHA-256$) of sensible cost";
