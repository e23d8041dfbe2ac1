//! Settings as JSON objects, whose values are written as in TOML.

use serde_json::{Map, Value as Json};
use settings::{Invalid, Raw, Section, nearest};

use crate::definition::Kind;
use crate::problem::{Problem, check_name};

/// Reads the settings of an entry from a JSON object, and checks the name.
///
/// # Errors
/// The name, or the first key that is wrong.
pub fn parse<K: Kind>(name: &str, object: &Map<String, Json>) -> Result<K::Settings, Problem> {
    check_name(name)?;
    settings_of_json(name, object)
}

/// Reads settings from a JSON object. A value that is null is the default. `name` is the name of the entry, which is
/// not one of the keys.
///
/// # Errors
/// The first key that is wrong.
pub fn settings_of_json<S: Section + Default>(name: &str, object: &Map<String, Json>) -> Result<S, Problem> {
    let (settings, problem) = readable_settings(name, object);
    problem.map_or(Ok(settings), Err)
}

/// Reads all settings that can be read, and returns the first problem.
pub fn readable_settings<S: Section + Default>(
    name: &str,
    object: &Map<String, Json>,
) -> (S, Option<Problem>) {
    let mut settings = S::default();
    let mut first = None;
    let named = [("name".to_owned(), Json::from(name))];
    let values = object.iter().filter(|(key, value)| *key != "name" && !value.is_null());
    for (key, value) in named.iter().map(|(key, value)| (key, value)).chain(values) {
        let set = settings.set(key, &raw(value)).map_err(|invalid| problem(&settings, key, &invalid));
        first = first.or(set.err());
    }
    if let Some(other) = object.get("name").filter(|other| **other != name) {
        first = first.or(Some(Problem::new(
            "name",
            format!("it is {other} here and \"{name}\" in the path; leave it out"),
        )));
    }
    (settings, first)
}

fn problem<S: Section>(settings: &S, key: &str, invalid: &Invalid) -> Problem {
    if *invalid != Invalid::UnknownKey {
        return Problem::new(key, invalid);
    }
    let known = settings.description().fields.iter().map(|field| field.key);
    let hint = nearest(key, known).map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
    Problem::new(key, format!("{invalid}{hint}"))
}

fn raw(value: &Json) -> Raw {
    match value {
        Json::String(text) => Raw::String(text.clone()),
        Json::Bool(boolean) => Raw::Boolean(*boolean),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Raw::Integer(number),
            None if number.is_f64() => Raw::Other("a number with a fraction"),
            None => Raw::Other("a number beyond 64 bits"),
        },
        Json::Array(_) => Raw::Other("an array"),
        Json::Object(_) => Raw::Other("an object"),
        Json::Null => Raw::Other("null"),
    }
}

/// Returns the settings that differ from their defaults, without the name.
pub fn settings_to_json<S: Section + Default>(settings: &S) -> Map<String, Json> {
    let defaults = S::default();
    let fields = settings.description().fields.iter().filter(|field| field.key != "name");
    let changed = fields.filter_map(|field| {
        let shown = settings.show(field.key)?;
        (defaults.show(field.key).as_ref() != Some(&shown)).then(|| (field.key.to_owned(), json(&shown)))
    });
    changed.collect()
}

/// The JSON of a value in TOML. Settings are strings, integers and booleans.
pub fn json(toml: &str) -> Json {
    let parsed = format!("value = {toml}").parse::<toml::Table>().ok();
    match parsed.and_then(|mut table| table.remove("value")) {
        Some(toml::Value::String(text)) => Json::String(text),
        Some(toml::Value::Integer(number)) => Json::from(number),
        Some(toml::Value::Boolean(boolean)) => Json::Bool(boolean),
        _ => Json::from(toml),
    }
}
