//! What is wrong with a password, ACL or rules file, and where.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::rules::RuleError;

/// A file that cannot be used.
#[derive(Debug)]
pub struct FileError {
    pub path: PathBuf,
    /// Counts from 1; `None` when it is the file as a whole.
    pub line: Option<usize>,
    pub fault: Fault,
}

/// What is wrong with it.
#[derive(Debug)]
pub enum Fault {
    Io(std::io::Error),
    /// The file is no UTF-8.
    NotText,
    /// A line of a password file without `:`.
    NoColon,
    UserEmpty,
    UserTwice {
        user: String,
        first: usize,
    },
    /// What stands for a password is not a hash this program knows.
    NotAHash {
        user: String,
    },
    /// A hash that would take more memory or rounds than any sensible one.
    TooCostly {
        user: String,
    },
    /// The first word of a line in an ACL file.
    UnknownWord {
        word: String,
    },
    UnknownAccess {
        word: String,
    },
    TopicMissing,
    /// In a rules file.
    Rule(RuleError),
    /// `auth.sources` names a source that is not configured.
    SourceMissing {
        source: &'static str,
        setting: &'static str,
    },
    /// A source is configured that `auth.sources` does not name.
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
    /// Says the same without a word of the file, for callers who may name files and not read them.
    pub(crate) fn without_contents(&self) -> String {
        match self.fault {
            Fault::Io(_) | Fault::NotText | Fault::SourceMissing { .. } | Fault::SourceUnnamed { .. } => {
                self.to_string()
            }
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
            Self::NotText => f.write_str("the file is not UTF-8 text"),
            Self::NoColon => f.write_str("expected user:hash"),
            Self::UserEmpty => f.write_str("the user name is empty"),
            Self::UserTwice { user, first } => write!(f, "user `{user}` is in line {first} already"),
            Self::NotAHash { user } => write!(
                f,
                "what stands for the password of `{user}` is no hash known here ($argon2id$, $7$, $6$, $2b$, $pbkdf2-sha256$, SCRAM-SHA-256$); set it with `meridian passwd`"
            ),
            Self::TooCostly { user } => {
                write!(
                    f,
                    "the password hash of `{user}` asks for more than 1 GiB or for rounds that take seconds; set it anew with `meridian passwd`"
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
                write!(f, "`{source}` is named and has no file; set {setting}, or leave out `{source}`")
            }
            Self::SourceUnnamed { source, setting } => {
                write!(
                    f,
                    "{setting} is set and `{source}` is not named, so its rules would not hold; name it, or unset {setting}"
                )
            }
            Self::TopicMissing => f.write_str("the topic is missing"),
            Self::TopicInvalid { topic, why } => write!(f, "`{topic}` is no Topic Filter: {why}"),
        }
    }
}
