//! Errors of evaluations.

use std::fmt;

use mqtt::TopicError;

use crate::json::JsonError;
use crate::value::Kind;

/// Reason why an evaluation has no result. The message is to be counted as failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// The evaluation needs more steps than [`Limits::steps`](crate::Limits::steps).
    StepLimit {
        max: u64,
    },
    /// The evaluation produces more bytes than [`Limits::bytes`](crate::Limits::bytes).
    ByteLimit {
        max: u64,
    },
    /// FOREACH has more outputs than [`Limits::outputs`](crate::Limits::outputs).
    OutputLimit {
        max: usize,
    },
    /// A value is nested deeper than [`VALUE_DEPTH_MAX`](crate::VALUE_DEPTH_MAX).
    DepthLimit {
        max: usize,
    },
    /// A text is not JSON. `source` is `payload` or the name of a function.
    NotJson {
        source: &'static str,
        error: JsonError,
    },
    /// A value has no form in JSON: bytes that are not UTF-8.
    BytesInJson,
    /// An operand or an argument has the wrong type. `at` is the number of the argument, or 0 for an operator.
    WrongType {
        operation: &'static str,
        at: usize,
        expected: &'static str,
        found: Kind,
    },
    /// An argument has the right type and a wrong value.
    WrongArgument {
        function: &'static str,
        at: usize,
        value: Box<str>,
        expected: &'static str,
    },
    /// The result does not fit a 64-bit integer.
    Overflow {
        operation: &'static str,
    },
    DivisionByZero {
        operation: &'static str,
    },
    /// The result is not a finite number.
    NotFinite {
        operation: &'static str,
    },
    /// The right side of `=~` is not a Topic Filter.
    NotTopicFilter {
        filter: Box<str>,
        error: TopicError,
    },
    /// A regular expression that is not a constant is wrong or too large.
    Regex {
        function: &'static str,
        error: RegexError,
    },
    /// The program of `jq` is wrong or failed.
    #[cfg(feature = "jq")]
    Jq {
        message: Box<str>,
    },
}

/// Reason why a text is not a regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegexError {
    Syntax(Box<str>),
    /// The compiled expression is larger than [`Limits::regex_bytes`](crate::Limits::regex_bytes).
    TooLarge {
        max: usize,
    },
}

impl EvalError {
    /// Short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::StepLimit { .. } => "step_limit",
            Self::ByteLimit { .. } => "byte_limit",
            Self::OutputLimit { .. } => "output_limit",
            Self::DepthLimit { .. } => "depth_limit",
            Self::NotJson { .. } => "not_json",
            Self::BytesInJson => "bytes_in_json",
            Self::WrongType { .. } => "wrong_type",
            Self::WrongArgument { .. } => "wrong_argument",
            Self::Overflow { .. } => "overflow",
            Self::DivisionByZero { .. } => "division_by_zero",
            Self::NotFinite { .. } => "not_finite",
            Self::NotTopicFilter { .. } => "not_topic_filter",
            Self::Regex { .. } => "regex",
            #[cfg(feature = "jq")]
            Self::Jq { .. } => "jq",
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StepLimit { max } => write!(f, "the rule needs more than {max} steps for this message"),
            Self::ByteLimit { max } => write!(f, "the rule produces more than {max} bytes for this message"),
            Self::OutputLimit { max } => {
                write!(f, "FOREACH has more than {max} outputs; select elements with INCASE")
            }
            Self::DepthLimit { max } => write!(f, "a value is nested deeper than {max} levels"),
            Self::NotJson { source, error } => write!(f, "{source}: the text is not JSON: {error}"),
            Self::BytesInJson => f.write_str(
                "a value is bytes that are not UTF-8, which JSON cannot express; use base64_encode or bin2hexstr",
            ),
            Self::WrongType { operation, at: 0, expected, found } => {
                write!(f, "`{operation}` needs {expected}, and an operand is {found}")
            }
            Self::WrongType { operation, at, expected, found } => {
                write!(f, "{operation}: argument {at} must be {expected}, and it is {found}")
            }
            Self::WrongArgument { function, at, value, expected } => {
                write!(f, "{function}: argument {at} must be {expected}, and it is {value}")
            }
            Self::Overflow { operation } => {
                write!(f, "{operation}: the result does not fit a 64-bit integer; use float")
            }
            Self::DivisionByZero { operation } => write!(f, "{operation}: division by zero"),
            Self::NotFinite { operation } => write!(f, "{operation}: the result is not a finite number"),
            Self::NotTopicFilter { filter, error } => {
                write!(f, "`=~`: '{filter}' is not a Topic Filter: {error}")
            }
            Self::Regex { function, error } => write!(f, "{function}: {error}"),
            #[cfg(feature = "jq")]
            Self::Jq { message } => write!(f, "jq: {message}"),
        }
    }
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(message) => write!(f, "the regular expression is wrong: {message}"),
            Self::TooLarge { max } => {
                write!(f, "the regular expression takes more than {max} bytes when compiled; make it simpler")
            }
        }
    }
}

impl std::error::Error for EvalError {}

/// Maximum number of characters of a value in an error.
const SHOWN_MAX: usize = 40;

/// The beginning of a text, for an error. Control characters are replaced, because errors are logged.
pub fn shown(text: &str) -> Box<str> {
    let mut shown: String = text.chars().take(SHOWN_MAX).map(printable).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push_str("...");
    }
    shown.into()
}

/// The character, or a replacement for a control character.
pub fn printable(character: char) -> char {
    if character.is_control() { char::REPLACEMENT_CHARACTER } else { character }
}
