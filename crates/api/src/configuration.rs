//! Interface between the server and the owner of the node's configuration.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use configstore::ProposeError;
use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::problem::{FieldProblem, Problem};
use crate::timestamp::Timestamp;

/// Values by name of the setting, written as in the environment. `None` reverts a change that was made at run time.
pub type Changes = BTreeMap<String, Option<String>>;

/// Nodes that a change is meant for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// This node only.
    #[default]
    Node,
    /// All nodes of the cluster. Values that a node has for itself take precedence.
    Cluster,
}

/// A fault of one setting.
pub type SettingProblem = FieldProblem;

/// The owner of the configuration. Its functions wait for the disk: call them on a thread that may block, from one
/// thread or from several.
pub trait Configuration: Send + Sync {
    fn view(&self) -> ConfigView;

    /// Returns the faults of these changes; none when they can be made.
    fn validate(&self, scope: Scope, changes: &Changes) -> Vec<SettingProblem>;

    /// Changes settings. For the cluster it waits for other nodes.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed, unless the error says otherwise.
    fn change(&self, scope: Scope, changes: &Changes, author: &Author) -> Result<Changed, Refused>;

    /// Restores the settings that were changed on this node at run time to their state in `version`.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    fn rollback(&self, version: u64, author: &Author) -> Result<Changed, Refused>;

    /// Reads file and environment again, as SIGHUP does.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    fn reload(&self, by: &str) -> Result<Reloaded, Refused>;

    /// Returns the versions of the configuration, newest first.
    fn history(&self) -> Vec<Version>;

    /// Number of settings of the cluster that this node cannot apply.
    fn refused(&self) -> usize;

    fn log_level(&self) -> LogLevelView;

    /// Changes the log level until the next start, or for a time. Returns a number for
    /// [`Configuration::revert_log_level`], which the caller calls when the time is over.
    ///
    /// # Errors
    /// The reason why the text is no level.
    fn set_log_level(&self, level: &str, for_time: Option<Duration>) -> Result<u64, String>;

    /// Restores the configured level, unless a later change than the one with this number was made.
    fn revert_log_level(&self, number: u64);
}

/// Author of a change, and the reason.
#[derive(Clone, Debug, Default)]
pub struct Author {
    /// Name of the key; empty when there is none.
    pub by: String,
    pub comment: String,
}

/// Returns a value for readers who may not change it: without user, password and query of its URLs, which often hold
/// keys of services.
pub fn without_secrets(value: &str) -> Cow<'_, str> {
    if !value.contains("://") {
        return Cow::Borrowed(value);
    }
    let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | '"' | '\'' | ']');
    let (mut out, mut rest) = (String::with_capacity(value.len()), value);
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        let (url, behind) = url.split_at(url.find(is_end).unwrap_or(url.len()));
        out.push_str(before);
        let authority_len = url.find(['/', '?', '#']).unwrap_or(url.len());
        let (authority, path) = url.split_at(authority_len);
        match authority.rsplit_once('@') {
            Some((_, host)) => out.push_str(&format!("{HIDDEN}@{host}")),
            None => out.push_str(authority),
        }
        match path.find(['?', '#']) {
            Some(at) => out.push_str(&format!("{}?{HIDDEN}", &path[..at])),
            None => out.push_str(path),
        }
        rest = behind;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns the setting `headers` of an action with the names of headers and without their values.
pub fn without_values(headers: &str) -> String {
    let shown = headers.lines().map(|line| match line.split_once(':') {
        Some((name, _)) => format!("{name}: {HIDDEN}"),
        None if line.trim().is_empty() => String::new(),
        None => HIDDEN.to_owned(),
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// Returns the value of a setting of the configuration without secrets.
fn without_secrets_of(name: &str, value: &str) -> String {
    let mut parts = name.split('.');
    match (parts.next(), parts.next_back()) {
        (Some("action"), Some("headers")) => without_values(value),
        _ => without_secrets(value).into_owned(),
    }
}

const HIDDEN: &str = "***";

impl ConfigView {
    /// Returns the view for readers who may not change it.
    pub fn without_secrets(mut self) -> Self {
        for setting in &mut self.settings {
            for value in
                [&mut setting.value, &mut setting.default, &mut setting.pending].into_iter().flatten()
            {
                *value = without_secrets_of(&setting.name, value);
            }
            if let Some(replicated) = &mut setting.cluster {
                replicated.value = without_secrets_of(&setting.name, &replicated.value);
            }
        }
        self
    }
}

impl Version {
    /// Returns the version for readers who may not change the configuration.
    pub fn without_secrets(mut self) -> Self {
        for change in &mut self.changes {
            for value in [&mut change.before, &mut change.after].into_iter().flatten() {
                *value = without_secrets_of(&change.name, value);
            }
        }
        self
    }
}

/// The settings in force.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ConfigView {
    pub version: u64,
    pub settings: Vec<SettingView>,
    /// The configuration file, if one was named.
    pub file: Option<String>,
    /// Settings that the cluster agrees on and this node cannot apply. It keeps the previous values.
    pub refused: Vec<SettingProblem>,
}

/// One setting.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct SettingView {
    /// `mqtt.qos_max`, or `listener.0.address`.
    pub name: String,
    pub section: String,
    /// Value as it is written in the environment; `null` when it is unset.
    pub value: Option<String>,
    pub default: Option<String>,
    #[serde(rename = "type")]
    pub type_: &'static str,
    pub doc: String,
    /// `low..=high`, with either end left out where there is none.
    pub range: Option<&'static str>,
    /// Allowed words, when the setting is one of a few.
    pub choices: Option<Vec<&'static str>>,
    /// `default`, `file`, `cluster`, `runtime`, `environment` or `command line`.
    pub source: &'static str,
    /// Value that the cluster agrees on, which may differ from the value in force on this node.
    pub cluster: Option<ReplicatedValue>,
    /// True when a running node can apply another value.
    pub reloadable: bool,
    /// Value that takes effect at the next start, when that is another one; empty when it is unset then.
    pub pending: Option<String>,
}

/// A value for all nodes of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ReplicatedValue {
    pub value: String,
    /// Name of the key; `null` when there was none.
    pub by: Option<String>,
    pub comment: String,
    pub at: Timestamp,
}

/// One setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Change {
    pub name: String,
    /// Previous value; `null` when it was unset.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Result of a change.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Changed {
    /// Version of this node's configuration.
    pub version: u64,
    /// Settings whose values changed on this node.
    pub changed: Vec<Change>,
    /// Settings that were changed for the cluster and that this node still reads from another source.
    pub overridden: Vec<SettingProblem>,
}

/// Result of reading the files again.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Reloaded {
    pub changed: Vec<Change>,
    /// Settings that differ and take effect at the next start.
    pub pending: Vec<String>,
    /// Files that were read again, including certificates. Their changes are in force now.
    pub files: Vec<String>,
}

/// One version of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Version {
    pub version: u64,
    pub at: Timestamp,
    /// Name of the key; `null` when there was none.
    pub by: Option<String>,
    pub comment: String,
    pub changes: Vec<Change>,
}

/// The log level in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LogLevelView {
    pub level: String,
    /// Time at which the configured level returns; `null` when it is in force already, or when this level holds until
    /// the next start.
    pub until: Option<Timestamp>,
}

/// Reason why the configuration was not changed.
#[derive(Debug)]
pub enum Refused {
    /// These settings are wrong, or cannot be changed.
    Settings(Vec<SettingProblem>),
    /// The version does not exist.
    NoVersion(u64),
    /// A file cannot be read or written, or a value that a setting names cannot be used.
    Failed(String),
    /// The cluster has not agreed, or the result is unknown.
    NotCommitted(ProposeError),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Settings(problems) => {
                for (index, problem) in problems.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "; " };
                    write!(f, "{separator}{}: {}", problem.name, problem.detail)?;
                }
                Ok(())
            }
            Self::NoVersion(version) => write!(f, "there is no version {version} in the history"),
            Self::Failed(why) => f.write_str(why),
            Self::NotCommitted(error) => error.fmt(f),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Settings(problems) => Self::invalid_fields(problems),
            Refused::NoVersion(version) => Self::not_found(format!(
                "there is no version {version} in the history; GET /api/v1/config/history lists the versions"
            )),
            Refused::Failed(why) => Self::conflict(format!("nothing has changed: {why}")),
            Refused::NotCommitted(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_user_password_and_query() {
        for (value, shown) in [
            ("plain ? text", "plain ? text"),
            ("https://id.example/keys", "https://id.example/keys"),
            ("https://id.example/keys?token=s3cret", "https://id.example/keys?***"),
            ("https://id.example?token=s3cret/x", "https://id.example?***"),
            ("https://user:s3cret@id.example:1/a#s3cret", "https://***@id.example:1/a?***"),
            (
                "https://a.example/?k=s3cret, http://u:s3cret@b.example",
                "https://a.example/?***, http://***@b.example",
            ),
            ("[\"https://a.example?s3cret\"]", "[\"https://a.example?***\"]"),
            ("https://user:s3cret@x@host/", "https://***@host/"),
        ] {
            assert_eq!(without_secrets(value), shown);
        }
    }
}
