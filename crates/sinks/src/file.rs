//! Files of this node with a line for each record: newline-delimited JSON, or other text.
//!
//! [`FileTarget`] renders records and has one [`Lines`] for all its sinks. `lines` writes, synchronizes and rotates the
//! file, and `finished` names the files that are complete.

mod finished;
mod lines;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rules::{Limits, RenderError, Template, Value};

use crate::{ActionSettings, ConnectorSettings, Record, Sink, SinkProblem, Target, WriteError};
use lines::{Lines, Rotation};

/// Maximum length of the name of an action, so that a finished file still has a valid name.
const NAME_MAX: usize = 200;

/// Files that an action writes to.
pub struct FileTarget {
    content: Template,
    /// Shared, because all sinks of an action write to the same file.
    lines: Arc<Mutex<Lines>>,
}

impl FileTarget {
    /// Creates the target of an action. It opens no file.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn new(connector: &ConnectorSettings, action: &ActionSettings) -> Result<Self, SinkProblem> {
        let directory = checked_directory(connector.directory.clone())?;
        check_name(&action.name)?;
        let content = Template::parse(&action.content, &Limits::default())
            .map_err(|error| SinkProblem::new("content", error))?;
        let rotation = Rotation {
            size_max: connector.file_size_max.bytes(),
            age_max: connector.file_age_max,
            files_max: connector.files_max as usize,
        };
        let lines = Arc::new(Mutex::new(Lines::new(directory, &action.name, rotation)));
        Ok(Self { content, lines })
    }
}

fn checked_directory(directory: Option<PathBuf>) -> Result<PathBuf, SinkProblem> {
    let directory = directory.filter(|path| !path.as_os_str().is_empty()).ok_or_else(|| {
        SinkProblem::new("directory", "it is missing; a connector of kind `file` needs a directory")
    })?;
    if directory.is_absolute() {
        return Ok(directory);
    }
    let why =
        format!("`{}` is a relative path; write an absolute one, such as /var/lib/data", directory.display());
    Err(SinkProblem::new("directory", why))
}

/// Checks that the name of an action is the name of a file in the directory, and of no finished file.
fn check_name(name: &str) -> Result<(), SinkProblem> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.is_empty() || name.starts_with('.') || name.len() > NAME_MAX || !name.chars().all(is_valid) {
        let why = format!(
            "`{}` cannot be the name of a file; use at most {NAME_MAX} of A-Z, a-z, 0-9, `_`, `-` and `.`, and no `.` \
             at the beginning",
            name.escape_debug()
        );
        return Err(SinkProblem::new("name", why));
    }
    if finished::has_suffix(name) {
        let why = format!(
            "`{name}` ends like the name of a finished file, with a time and a number; choose another"
        );
        return Err(SinkProblem::new("name", why));
    }
    Ok(())
}

impl Target for FileTarget {
    fn render(&self, output: &Value) -> Result<Record, RenderError> {
        let content = self.content.render(output, &Limits::default())?;
        Ok(Record { fields: vec![Some(content.into())], id: 0 })
    }

    fn field_names(&self) -> Vec<String> {
        vec!["content".to_owned()]
    }

    fn open(&self) -> Box<dyn Sink> {
        Box::new(FileSink { lines: self.lines.clone() })
    }
}

/// Writes records of one action.
struct FileSink {
    lines: Arc<Mutex<Lines>>,
}

impl Sink for FileSink {
    fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        let batch = joined(records)?;
        if batch.is_empty() {
            return Ok(());
        }
        sync::lock(&self.lines).append(&batch).map_err(WriteError::Unavailable)
    }

    fn test(&mut self) -> Result<String, WriteError> {
        sync::lock(&self.lines).test().map_err(WriteError::Unavailable)
    }
}

/// Joins the contents of records, with a line feed after each. A content with a line feed would be read as two records,
/// so it is refused before anything is written.
fn joined(records: &[Record]) -> Result<Vec<u8>, WriteError> {
    let mut batch = Vec::with_capacity(records.iter().map(|record| record.bytes() + 1).sum());
    for content in records.iter().flat_map(|record| record.fields.iter().flatten()) {
        if content.contains(&b'\n') {
            return Err(WriteError::Refused(
                "the content has a line feed, which would divide the record into two lines; write it as JSON, such \
                 as ${.}, or replace line feeds in the rule"
                    .to_owned(),
            ));
        }
        batch.extend_from_slice(content);
        batch.push(b'\n');
    }
    Ok(batch)
}

#[cfg(test)]
mod tests;
