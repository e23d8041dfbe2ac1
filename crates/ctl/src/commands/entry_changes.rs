//! Changes of one entry, such as a cluster link: KEY=VALUE on the command line, or a file.

use std::path::Path;

use serde_json::{Map, Value};
use ureq::http::Method;

use super::settings_file;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::take;
use crate::query::Query;

/// Parses KEY=VALUE.
///
/// # Errors
/// What to write instead.
pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as enabled=false or topics='plant/#'".to_owned()),
    }
}

/// Replaces the settings of the entry at `path` by those of a file, or changes some of them. Returns the entry. `list`
/// is the name of the list in a configuration file. See [`changed`] for `texts`.
///
/// # Errors
/// The file cannot be read, or the node refuses the settings.
pub fn put(
    console: &Console,
    path: &str,
    list: &str,
    (changes, file): (&[(String, String)], Option<&Path>),
    texts: &[&str],
) -> Result<Value, Failure> {
    let settings = match file {
        Some(file) => settings_file::read(file, list)?,
        None => changed(console, path, changes, texts)?,
    };
    console.client.send(Method::PUT, path, &Query::new(), Some(&settings.into()))
}

/// Removes the entry at `path`. Its messages stay, or are deleted with its session.
///
/// # Errors
/// The node refuses it.
pub fn remove(console: &Console, path: &str, delete_messages: bool) -> Result<Value, Failure> {
    let query = Query::new().with("messages", if delete_messages { "delete" } else { "keep" });
    console.client.send(Method::DELETE, path, &query, None)
}

/// Returns the settings of the entry at `path` with these changes. An entry that does not exist has only these
/// settings. A key that comes twice has two lines. `texts` are the keys whose values are texts, even if they look
/// like numbers.
///
/// # Errors
/// The node does not answer, or refuses to show the entry.
fn changed(
    console: &Console,
    path: &str,
    changes: &[(String, String)],
    texts: &[&str],
) -> Result<Map<String, Value>, Failure> {
    let mut settings = match console.client.get(path, &Query::new()) {
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
        let value = if text.is_empty() { Value::Null } else { typed(text, texts.contains(&&*key)) };
        settings.insert(key, value);
    }
    Ok(settings)
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
