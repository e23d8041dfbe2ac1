//! Why rules are as they were.

use std::fmt;

use configstore::ProposeError;

use super::{RuleId, STORED_RULES_MAX, TEXT_MAX};

/// Why a rule is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleTableError {
    Unknown(RuleId),
    TooMany,
    /// What is wrong with its text, and the fix.
    Rule(String),
    /// Nothing but space or a comment.
    Blank,
    Lines,
    Long,
    /// Of one of many, counted from 1.
    Of {
        number: usize,
        error: Box<RuleTableError>,
    },
    ConfigStore(ProposeError),
}

impl fmt::Display for RuleTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "there is no rule `{}`", id.0),
            Self::TooMany => {
                write!(f, "there may be {STORED_RULES_MAX} rules in the database; a rules file may have more")
            }
            Self::Rule(why) => f.write_str(why),
            Self::Blank => f.write_str("it says nothing; a rule begins with allow or deny"),
            Self::Lines => f.write_str("a rule is one line"),
            Self::Long => write!(f, "a rule and its description may have {TEXT_MAX} bytes each"),
            Self::Of { number, error } => write!(f, "rule {number}: {error}"),
            Self::ConfigStore(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RuleTableError {}
