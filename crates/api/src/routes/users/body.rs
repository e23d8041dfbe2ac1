//! Users in requests, and the hashing of their passwords.

use std::collections::BTreeMap;

use auth::{RatesRecord, UserRecord};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use super::secret::Secret;
use crate::ask::run_blocking;
use crate::problem::Problem;

/// Contents of a user.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UserBody {
    /// 1 to 1024 bytes without control characters. Required where the path does not name the user.
    pub name: Option<String>,
    /// Password; hashed (argon2id) as soon as it arrives.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>, write_only))]
    pub password: Option<Secret>,
    /// A hash as in a password file, instead of a password.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>, write_only))]
    pub password_hash: Option<Secret>,
    /// Number of iterations (4096 to 5000000). With a password, it adds keys of SCRAM-SHA-256.
    pub scram_iterations: Option<u32>,
    #[serde(default = "yes")]
    pub enabled: bool,
    #[serde(default)]
    pub superuser: bool,
    pub tenant: Option<String>,
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    pub rates: Option<RatesBody>,
    #[serde(default)]
    pub rules: Vec<String>,
    #[serde(default)]
    pub description: String,
}

/// Publish rates of a user's clients; 0 is no limit.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct RatesBody {
    pub messages_per_second: u32,
    pub messages_burst: u32,
    pub bytes_per_second: u64,
    pub bytes_burst: u64,
}

/// Changes of a user.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UserPatch {
    /// Password; hashed (argon2id) as soon as it arrives.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>, write_only))]
    pub password: Option<Secret>,
    /// A hash as in a password file, instead of a password.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>, write_only))]
    pub password_hash: Option<Secret>,
    /// Number of iterations (4096 to 5000000). With a password, it adds keys of SCRAM-SHA-256.
    pub scram_iterations: Option<u32>,
    pub enabled: Option<bool>,
}

fn yes() -> bool {
    true
}

impl UserBody {
    /// # Errors
    /// 422 without a name.
    pub fn take_name(&mut self) -> Result<String, Problem> {
        self.name.take().ok_or_else(|| Problem::invalid("name", "it is missing"))
    }

    /// Returns the record of this body; password and times are those of the old record.
    pub fn record(&self, old: UserRecord) -> UserRecord {
        UserRecord {
            enabled: self.enabled,
            superuser: self.superuser,
            tenant: self.tenant.clone(),
            attributes: self.attributes.clone(),
            rates: self.rates.map(RatesRecord::from),
            rules: self.rules.clone(),
            description: self.description.clone(),
            ..old
        }
    }
}

impl UserPatch {
    /// Text for the audit log.
    pub fn note(&self) -> String {
        let password = if self.password.is_some() || self.password_hash.is_some() { "password" } else { "" };
        match self.enabled {
            Some(enabled) => {
                format!("{password} {}", if enabled { "enabled" } else { "disabled" }).trim().to_owned()
            }
            None => password.to_owned(),
        }
    }
}

impl From<RatesBody> for RatesRecord {
    fn from(rates: RatesBody) -> Self {
        let RatesBody { messages_per_second, messages_burst, bytes_per_second, bytes_burst } = rates;
        Self { messages_per_second, messages_burst, bytes_per_second, bytes_burst }
    }
}

impl From<RatesRecord> for RatesBody {
    fn from(rates: RatesRecord) -> Self {
        let RatesRecord { messages_per_second, messages_burst, bytes_per_second, bytes_burst } = rates;
        Self { messages_per_second, messages_burst, bytes_per_second, bytes_burst }
    }
}

/// Stored form of a password.
#[derive(Clone)]
pub struct Hashed {
    pub hash: String,
    pub scram: Option<String>,
}

/// Permits to hash passwords: each hash takes 19 MiB and a CPU.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

/// Hashes a password, or returns the hash that came instead; `None` without either.
///
/// # Errors
/// Both are present, or the parameters of SCRAM are invalid.
pub async fn hashed(
    password: Option<Secret>,
    hash: Option<Secret>,
    scram_iterations: Option<u32>,
) -> Result<Option<Hashed>, Problem> {
    let password = match (password, hash) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("password_hash", "send either a password or its hash"));
        }
        (None, _) if scram_iterations.is_some() => {
            return Err(Problem::invalid(
                "scram_iterations",
                "its keys are derived from a password, and there is none",
            ));
        }
        (None, None) => return Ok(None),
        (None, Some(hash)) => return Ok(Some(Hashed { hash: hash.expose().to_owned(), scram: None })),
        (Some(password), None) => password,
    };
    if password.expose().is_empty() || password.expose().len() > PASSWORD_MAX {
        return Err(Problem::invalid("password", format!("it may have 1 to {PASSWORD_MAX} bytes")));
    }
    let _turn = AT_ONCE.acquire().await.map_err(|_| Problem::unavailable("the node is stopping"))?;
    let hashed = run_blocking(move || auth::hash_password(password.expose(), scram_iterations)).await??;
    let (hash, scram) = hashed;
    Ok(Some(Hashed { hash, scram }))
}

/// Maximum number of bytes of a password; CONNECT has no room for more.
const PASSWORD_MAX: usize = 65_535;
