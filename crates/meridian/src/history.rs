//! Versions of the configuration: changes made while the node ran, with author and time.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use api::{Author, Change, Timestamp, Version, durable};
use serde::{Deserialize, Serialize};
use settings::Runtime;

/// Maximum number of versions kept.
const KEPT: usize = 100;
const FILE: &str = "config-history.json";

/// The versions, oldest first, and the file that keeps them.
#[derive(Debug, Default)]
pub struct History {
    path: PathBuf,
    entries: VecDeque<Entry>,
}

/// A version, with all changes made at run time up to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    version: Version,
    runtime: BTreeMap<String, String>,
}

impl History {
    /// Reads the file. The settings at the start are a version: the last one, or a new one when the changes of run
    /// time differ. They differ when a person edited their file, or the node died before it wrote this one. The new
    /// version is written with the next change.
    pub fn open(data_dir: &Path, runtime: &Runtime) -> Self {
        let path = data_dir.join(FILE);
        let entries = match fs::read(&path).map(|bytes| serde_json::from_slice(&bytes)) {
            Ok(Ok(entries)) => entries,
            Ok(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "the history of the configuration is unreadable; it starts again");
                VecDeque::new()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => VecDeque::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the history of the configuration is unreadable; it starts again");
                VecDeque::new()
            }
        };
        let mut history = Self { path, entries };
        match history.entries.back() {
            Some(last) if last.runtime == *runtime.values() => {}
            last => {
                let comment = if last.is_some() { "found at the start" } else { "at the start" };
                let author = Author { by: String::new(), comment: comment.to_owned() };
                history.push(&author, Vec::new(), runtime);
            }
        }
        history
    }

    /// Number of the current version.
    pub fn current(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.version.version)
    }

    /// Versions, the newest first.
    pub fn versions(&self) -> Vec<Version> {
        self.entries.iter().rev().map(|entry| entry.version.clone()).collect()
    }

    /// All changes made at run time up to that version.
    pub fn runtime(&self, version: u64) -> Option<Runtime> {
        let entry = self.entries.iter().find(|entry| entry.version.version == version)?;
        Some(Runtime::from(entry.runtime.clone()))
    }

    /// Adds a version and writes the file.
    ///
    /// # Errors
    /// Errors of the system. The version exists nevertheless, until the next start.
    pub fn add(&mut self, author: &Author, changes: Vec<Change>, runtime: &Runtime) -> io::Result<()> {
        self.push(author, changes, runtime);
        let mut text = serde_json::to_string_pretty(&self.entries)?;
        text.push('\n');
        durable::replace(&self.path, text.as_bytes())
    }

    fn push(&mut self, author: &Author, changes: Vec<Change>, runtime: &Runtime) {
        let version = Version {
            version: self.current() + 1,
            at: Timestamp::now(),
            by: (!author.by.is_empty()).then(|| author.by.clone()),
            comment: author.comment.clone(),
            changes,
        };
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { version, runtime: runtime.values().clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(value: &str) -> Runtime {
        let mut runtime = Runtime::default();
        runtime.put("log.level", Some(value));
        runtime
    }

    #[test]
    fn versions_are_bounded_and_survive_a_restart() {
        let directory = std::env::temp_dir().join(format!("meridian-history-{}", std::process::id()));
        let mut history = History::open(&directory, &Runtime::default());
        assert_eq!((history.current(), history.versions().len()), (1, 1));
        let author = Author { by: "ops".into(), comment: "louder".into() };
        for number in 0..150 {
            history.add(&author, Vec::new(), &runtime(&number.to_string())).unwrap();
        }
        let again = History::open(&directory, &runtime("149"));
        assert_eq!((again.current(), again.versions().len()), (151, KEPT));
        assert_eq!(again.versions()[0].comment, "louder");
        assert_eq!(again.runtime(151), Some(runtime("149")));
        assert_eq!((again.runtime(51), again.runtime(152)), (None, None));
        // A person edited the other file meanwhile.
        let again = History::open(&directory, &runtime("error"));
        assert_eq!((again.current(), again.versions()[0].comment.as_str()), (152, "found at the start"));
        fs::write(directory.join(FILE), "[{").unwrap();
        assert_eq!(History::open(&directory, &runtime("error")).current(), 1);
        fs::remove_dir_all(directory).unwrap();
    }
}
