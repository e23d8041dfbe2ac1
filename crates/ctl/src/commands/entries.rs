//! Entries of the configuration file and of the configuration store, such as bridges: requests to the API, and settings
//! on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use ureq::http::Method;

use super::settings_file;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, take};
use crate::pages::PageArgs;
use crate::query::{Query, encode};

/// A list of entries.
pub struct Entries {
    /// Path of the list in the API.
    pub path: &'static str,
    /// Name of the list in a configuration file.
    pub list: &'static str,
    /// Settings whose values are texts, even if they look like numbers.
    pub texts: &'static [&'static str],
}

impl Entries {
    /// # Errors
    /// There is no such entry, or the node does not answer.
    pub fn get(&self, console: &Console, name: &str) -> Result<Value, Failure> {
        console.client.get(&self.path_of(name), &Query::new())
    }

    /// Adds or replaces an entry, and returns it.
    ///
    /// # Errors
    /// The node refuses the settings.
    pub fn put(&self, console: &Console, name: &str, settings: Map<String, Value>) -> Result<Value, Failure> {
        console.client.send(Method::PUT, &self.path_of(name), &Query::new(), Some(&settings.into()))
    }

    /// Adds an entry, or changes settings of it. Returns the entry.
    ///
    /// # Errors
    /// A file cannot be read, or the node refuses the settings.
    pub fn set(&self, console: &Console, name: &str, args: &SettingsArgs) -> Result<Value, Failure> {
        let settings = match &args.file {
            Some(file) => settings_file::read(file, self.list)?,
            None => self.changed(console, name, &args.changes)?,
        };
        self.put(console, name, settings)
    }

    /// Removes an entry. `query` says what becomes of its messages, see [`messages`].
    ///
    /// # Errors
    /// The node refuses it.
    pub fn remove(&self, console: &Console, name: &str, query: &Query) -> Result<Value, Failure> {
        console.client.send(Method::DELETE, &self.path_of(name), query, None)
    }

    /// Tests settings without storing them, and returns the result.
    ///
    /// # Errors
    /// The node refuses the test.
    pub fn test(&self, console: &Console, body: &Value) -> Result<Value, Failure> {
        let client = console.client.clone().patient(TEST_MAX);
        client.send(Method::POST, &format!("{}/test", self.path), &Query::new(), Some(body))
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}/{}", self.path, encode(name))
    }

    /// Returns the settings of an entry with these changes. An entry that does not exist has only these settings. A key
    /// that comes twice has two lines.
    ///
    /// # Errors
    /// The node does not answer, or refuses to show the entry.
    fn changed(
        &self,
        console: &Console,
        name: &str,
        changes: &[(String, String)],
    ) -> Result<Map<String, Value>, Failure> {
        let mut settings = match self.get(console, name) {
            Ok(mut entry) => match take(&mut entry, "settings") {
                Value::Object(settings) => settings,
                _ => Map::new(),
            },
            Err(Failure::Refused(problem)) if problem.status == 404 => Map::new(),
            Err(failure) => return Err(failure),
        };
        let mut new = Map::<String, Value>::new();
        for (key, value) in changes {
            match new.get_mut(key) {
                // Lines of the same setting.
                Some(known) => *known = format!("{}\n{value}", known.as_str().unwrap_or_default()).into(),
                None => drop(new.insert(key.clone(), value.clone().into())),
            }
        }
        for (key, value) in new {
            let text = value.as_str().unwrap_or_default();
            let value = if text.is_empty() { Value::Null } else { typed(text, self.texts.contains(&&*key)) };
            settings.insert(key, value);
        }
        Ok(settings)
    }
}

/// Settings of an entry, all or some.
#[derive(Args, Debug)]
pub struct SettingsArgs {
    /// Settings to change; the others stay. A key that comes twice has two lines, and an empty value is the default
    #[arg(value_name = "KEY=VALUE", value_parser = assignment, required_unless_present = "file")]
    changes: Vec<(String, String)>,
    /// File with all settings, in TOML or JSON; `-` is standard input. The other settings get their defaults
    #[arg(long, value_name = "FILE", conflicts_with = "changes")]
    file: Option<PathBuf>,
}

/// Part of a list of actions or connectors, which may belong to tenants.
#[derive(Args, Debug)]
pub struct TenantArgs {
    /// Show those of this tenant only; '' for those of no tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    pub page: PageArgs,
}

impl TenantArgs {
    /// Returns whether all options have their defaults.
    pub fn plain(&self) -> bool {
        self.tenant.is_none() && self.page.plain()
    }

    pub fn query(&self) -> Query {
        Query::new().maybe("tenant", self.tenant.as_deref())
    }
}

/// Returns the query that keeps or deletes the messages of an entry that is removed.
pub fn messages(delete: bool) -> Query {
    Query::new().with("messages", if delete { "delete" } else { "keep" })
}

/// Returns where an entry comes from, and who changed it last, with labels.
pub fn origin(entry: &Value) -> Vec<(&'static str, String)> {
    vec![
        ("source", entry.cell("source")),
        ("fault", entry.text("fault")),
        ("changed by", entry.text("author")),
        ("changed at", entry.text("changed_at")),
    ]
}

/// Writes the settings that differ from their defaults.
///
/// # Errors
/// Those of standard output.
pub fn settings(console: &mut Console, entry: &Value) -> Result<(), Failure> {
    let settings = entry.field("settings").as_object();
    for (key, value) in settings.into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut lines = text.lines();
        console.line(&format!("  {key} = {}", lines.next().unwrap_or_default()))?;
        for line in lines {
            console.line(&format!("    {line}"))?;
        }
    }
    Ok(())
}

/// Parses KEY=VALUE.
fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as enabled=false or topics='plant/#'".to_owned()),
    }
}

/// Value of a setting as JSON. Settings are booleans, integers and texts.
fn typed(text: &str, is_text: bool) -> Value {
    match (is_text, text, text.parse::<i64>()) {
        (true, ..) => text.into(),
        (false, "true", _) => true.into(),
        (false, "false", _) => false.into(),
        (false, _, Ok(number)) => number.into(),
        (false, ..) => text.into(),
    }
}

/// Time that a test takes at most, on a node that is not overloaded.
const TEST_MAX: Duration = Duration::from_secs(25);
