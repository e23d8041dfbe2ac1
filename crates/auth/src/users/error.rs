//! Errors of changes of users.

use std::fmt;

use configstore::ProposeError;

/// Reason why a user is not changed. No variant contains a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserError {
    Exists(String),
    Unknown(String),
    /// The import contains the same name twice.
    Twice(String),
    TooMany {
        maximum: usize,
    },
    /// Invalid fields, each with its fault.
    Fields(Vec<(&'static str, String)>),
    /// The record in the configuration store is invalid.
    Damaged {
        name: String,
        why: String,
    },
    ConfigStore(ProposeError),
    /// Error of one user among several.
    Of {
        name: String,
        error: Box<UserError>,
    },
    /// The system provides no random bytes, or has a similar fault.
    System(String),
}

impl UserError {
    /// Adds the name of the user to the error.
    pub(super) fn of(self, name: &str) -> Self {
        Self::Of { name: name.to_owned(), error: Box::new(self) }
    }
}

impl From<ProposeError> for UserError {
    fn from(error: ProposeError) -> Self {
        Self::ConfigStore(error)
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(name) => write!(f, "user `{name}` exists already"),
            Self::Unknown(name) => write!(f, "there is no user `{name}`"),
            Self::Twice(name) => write!(f, "`{name}` occurs twice"),
            Self::TooMany { maximum } => {
                write!(f, "the limit of {maximum} users is reached; remove some, or raise `auth.users_max`")
            }
            Self::Fields(fields) => {
                for (at, (field, why)) in fields.iter().enumerate() {
                    write!(f, "{}{field}: {why}", if at > 0 { "; " } else { "" })?;
                }
                Ok(())
            }
            Self::Damaged { name, why } => {
                write!(
                    f,
                    "the record of user `{name}` cannot be used: {why}; remove the user and create it again"
                )
            }
            Self::ConfigStore(error) => error.fmt(f),
            Self::Of { name, error } => write!(f, "user `{name}`: {error}"),
            Self::System(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for UserError {}
