//! Why users are as they were.

use std::fmt;

use configstore::ProposeError;

/// Why a user is not changed. No variant holds a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserError {
    Exists(String),
    Unknown(String),
    /// The same name twice in what is brought in.
    Twice(String),
    TooMany {
        maximum: usize,
    },
    /// What is wrong with which fields.
    Fields(Vec<(&'static str, String)>),
    /// The record in the registry makes no sense.
    Damaged {
        name: String,
        why: String,
    },
    ConfigStore(ProposeError),
    /// Of one of many.
    Of {
        name: String,
        error: Box<UserError>,
    },
    /// The system has no random bytes, or something like it.
    System(String),
}

impl UserError {
    /// Says whose error it is.
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
            Self::Exists(name) => write!(f, "there is a user `{name}` already"),
            Self::Unknown(name) => write!(f, "there is no user `{name}`"),
            Self::Twice(name) => write!(f, "`{name}` is there twice"),
            Self::TooMany { maximum } => {
                write!(f, "there may be {maximum} users; remove some, or raise `auth.users_max`")
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
                    "what the registry says of `{name}` cannot be used: {why}; remove the user and make it anew"
                )
            }
            Self::ConfigStore(error) => error.fmt(f),
            Self::Of { name, error } => write!(f, "user `{name}`: {error}"),
            Self::System(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for UserError {}
