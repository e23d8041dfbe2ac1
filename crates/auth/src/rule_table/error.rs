//! Errors of changes of rules.

use std::fmt;

use configstore::ProposeError;

use super::{RuleId, STORED_RULES_MAX, TEXT_MAX};

/// Reason why rules are not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleTableError {
    Unknown(RuleId),
    TooMany,
    /// The text is invalid: the fault, and the fix.
    Rule(String),
    /// The text is only space or a comment.
    Blank,
    Lines,
    Long,
    /// Error in one of several rules, counted from 1.
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
                write!(f, "the database can hold {STORED_RULES_MAX} rules; remove some, or use a rules file")
            }
            Self::Rule(why) => f.write_str(why),
            Self::Blank => f.write_str("the rule is empty; a rule begins with allow or deny"),
            Self::Lines => f.write_str("a rule must be one line"),
            Self::Long => {
                write!(f, "a rule and its description can have {TEXT_MAX} bytes each; shorten them")
            }
            Self::Of { number, error } => write!(f, "rule {number}: {error}"),
            Self::ConfigStore(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RuleTableError {}
