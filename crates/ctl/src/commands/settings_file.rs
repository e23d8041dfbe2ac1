//! Files with the settings of one entry, such as an action: JSON as in the API, or TOML as in the configuration file.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// File with settings.
#[derive(Args, Clone, Debug)]
pub struct SettingsFile {
    /// File with the settings, in TOML or JSON; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
}

impl SettingsFile {
    /// Reads the settings. `list` is the name of the list in a configuration file, such as `action`.
    ///
    /// # Errors
    /// [`Failure::Local`]: the file cannot be read, or is not the settings of one entry.
    pub fn read(&self, list: &str) -> Result<Map<String, Value>, Failure> {
        read(&self.file, list)
    }
}

/// See [`SettingsFile::read`].
pub fn read(path: &Path, list: &str) -> Result<Map<String, Value>, Failure> {
    let trouble = |why: String| Failure::Local(format!("{}: {why}", path.display()));
    let mut text = String::new();
    let is_stdin = path.as_os_str() == "-";
    let mut file: Box<dyn Read> = match is_stdin {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(path).map_err(|error| trouble(error.to_string()))?),
    };
    file.by_ref().take(SIZE_MAX + 1).read_to_string(&mut text).map_err(|error| trouble(error.to_string()))?;
    if text.len() as u64 > SIZE_MAX {
        return Err(trouble("longer than 1 MiB, which settings are not; name another file".to_owned()));
    }
    parse(&text, list).map_err(trouble)
}

fn parse(text: &str, list: &str) -> Result<Map<String, Value>, String> {
    let read: Value = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| format!("it is not valid JSON: {error}"))?,
        false => toml::from_str(text).map_err(|error| format!("it is not valid TOML: {error}"))?,
    };
    let Value::Object(mut settings) = read else {
        return Err("expected an object with the settings".to_owned());
    };
    // A part of a configuration file, or an answer of the API.
    if let Some(Value::Array(entries)) = settings.get_mut(list) {
        return match (entries.pop(), entries.len()) {
            (Some(Value::Object(entry)), 0) => Ok(entry),
            _ => Err(format!("expected one [[{list}]]; divide the file")),
        };
    }
    match settings.remove("settings") {
        Some(Value::Object(settings)) => Ok(settings),
        Some(_) => Err("settings: expected an object".to_owned()),
        None => Ok(settings),
    }
}

/// Maximum size of a file.
const SIZE_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_from_each_form() {
        let expected = json!({"rule": "SELECT 1", "batch_max": 5, "enabled": false});
        for text in [
            "rule = \"SELECT 1\"\nbatch_max = 5\nenabled = false\n",
            "# One action\n[[action]]\nrule = \"SELECT 1\"\nbatch_max = 5\nenabled = false\n",
            " {\"rule\": \"SELECT 1\", \"batch_max\": 5, \"enabled\": false}",
            "{\"name\": \"a\", \"settings\": {\"rule\": \"SELECT 1\", \"batch_max\": 5, \"enabled\": false}}",
        ] {
            assert_eq!(Value::from(parse(text, "action").unwrap()), expected, "{text}");
        }
        for (text, why) in [
            ("{", "it is not valid JSON"),
            ("rule", "it is not valid TOML"),
            ("[[action]]\n[[action]]\n", "expected one [[action]]"),
            ("{\"settings\": 1}", "settings: expected an object"),
        ] {
            let error = parse(text, "action").unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
        assert!(read(Path::new("/nonexistent"), "action").is_err());
    }
}
