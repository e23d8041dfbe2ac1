//! Errors of password, ACL and rules files, with their location.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::rules::RuleError;

/// File that cannot be used.
#[derive(Debug)]
pub struct FileError {
    pub path: PathBuf,
    /// Line, counted from 1; `None` for the file as a whole.
    pub line: Option<usize>,
    pub fault: Fault,
}

/// Fault of a file.
#[derive(Debug)]
pub enum Fault {
    Io(std::io::Error),
    /// The file of a setting does not exist.
    Missing {
        setting: &'static str,
        advice: &'static str,
    },
    /// The file is not UTF-8.
    NotText,
    /// A line of a password file has no `:`.
    NoColon,
    UserEmpty,
    UserTwice {
        user: String,
        first: usize,
    },
    /// The stored value is not a hash that this program knows.
    NotAHash {
        user: String,
    },
    /// The hash takes more memory or rounds than any sensible one.
    TooCostly {
        user: String,
    },
    /// The first word of a line in an ACL file is unknown.
    UnknownWord {
        word: String,
    },
    UnknownAccess {
        word: String,
    },
    TopicMissing,
    /// A fault in a rules file.
    Rule(RuleError),
    /// `auth.sources` names a source that is not configured.
    SourceMissing {
        source: &'static str,
        setting: &'static str,
    },
    /// A configured source is missing in `auth.sources`.
    SourceUnnamed {
        source: &'static str,
        setting: &'static str,
    },
    TopicInvalid {
        topic: String,
        why: String,
    },
}

impl FileError {
    pub(crate) fn new(path: &Path, line: impl Into<Option<usize>>, fault: Fault) -> Self {
        Self { path: path.to_owned(), line: line.into(), fault }
    }
}

impl FileError {
    /// Names the setting of a file that does not exist, and says what to do.
    pub(crate) fn of_setting(self, setting: &'static str, advice: &'static str) -> Self {
        match &self.fault {
            Fault::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Self { fault: Fault::Missing { setting, advice }, ..self }
            }
            _ => self,
        }
    }

    /// Returns the message without any contents of the file, for callers who may name files and not read them.
    pub(crate) fn without_contents(&self) -> String {
        match self.fault {
            Fault::Io(_)
            | Fault::Missing { .. }
            | Fault::NotText
            | Fault::SourceMissing { .. }
            | Fault::SourceUnnamed { .. } => self.to_string(),
            _ => {
                let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
                format!("{}{line}: the file cannot be used; the node's log says why", self.path.display())
            }
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Fault::Rule(error) = &self.fault {
            return write!(f, ":{}: {}", error.column, error.fault);
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for FileError {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Missing { setting, advice } => {
                write!(f, "there is no such file, and {setting} names it; {advice}")
            }
            Self::NotText => f.write_str("the file is not UTF-8 text"),
            Self::NoColon => f.write_str("expected user:hash"),
            Self::UserEmpty => f.write_str("the user name is empty"),
            Self::UserTwice { user, first } => write!(f, "user `{user}` is in line {first} already"),
            Self::NotAHash { user } => write!(
                f,
                "the password of `{user}` is not stored in a known form ($argon2id$, $7$, $6$, $2b$, $pbkdf2-sha256$, SCRAM-SHA-256$); set it with `meridian passwd`"
            ),
            Self::TooCostly { user } => {
                write!(
                    f,
                    "the password hash of `{user}` asks for more than 1 GiB or for rounds that take seconds; set it again with `meridian passwd`"
                )
            }
            Self::UnknownWord { word } => {
                write!(f, "unknown word `{word}`; a line begins with user, topic, pattern or #")
            }
            Self::UnknownAccess { word } => {
                write!(f, "unknown access `{word}`; known are read, write, readwrite and deny")
            }
            Self::Rule(error) => write!(f, "{error}"),
            Self::SourceMissing { source, setting } => {
                write!(
                    f,
                    "auth.sources names `{source}`, which has no file; set {setting}, or remove `{source}`"
                )
            }
            Self::SourceUnnamed { source, setting } => {
                write!(
                    f,
                    "{setting} is set and `{source}` is not named in auth.sources, so its rules would not apply; name it, or unset {setting}"
                )
            }
            Self::TopicMissing => f.write_str("the topic is missing"),
            Self::TopicInvalid { topic, why } => write!(f, "`{topic}` is not a Topic Filter: {why}"),
        }
    }
}
