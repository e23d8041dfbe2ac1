//! Errors in the text of a rule.

use std::fmt;

use mqtt::TopicError;

use crate::error::{RegexError, printable};
use crate::source::{Event, Field};

/// Error in the text of a rule, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Counted from 1.
    pub line: u32,
    /// Counts characters from 1.
    pub column: u32,
    /// Text at the error; empty at the end of the rule.
    pub near: Box<str>,
    pub fault: ParseFault,
}

/// Kind of an error in the text of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseFault {
    TooLong {
        size: usize,
        max: usize,
    },
    NestedTooDeep {
        max: usize,
    },
    /// The rule has more columns than [`Limits::columns`](crate::Limits::columns).
    TooManyColumns {
        max: usize,
    },
    /// The rule has more sources than [`Limits::columns`](crate::Limits::columns).
    TooManySources {
        max: usize,
    },
    /// A string or a Topic Filter has no closing quotation mark.
    QuoteOpen {
        quote: char,
    },
    Character(char),
    IntegerTooLarge,
    FloatTooLarge,
    /// A name begins with a digit.
    NumberAndName,
    Expected {
        expected: &'static str,
    },
    /// The rule does not begin with SELECT or FOREACH.
    NoSelect,
    NoFrom,
    /// A keyword is where a value or a name is expected.
    Keyword {
        word: Box<str>,
        expected: &'static str,
    },
    /// A string is in double quotation marks.
    DoubleQuotes,
    /// A Topic Filter is in single quotation marks, or in none.
    NoDoubleQuotes,
    EventUnknown {
        name: Box<str>,
        nearest: Event,
    },
    TopicFilter {
        filter: Box<str>,
        error: TopicError,
    },
    SharedFilter,
    SourceRepeated,
    FunctionUnknown {
        name: Box<str>,
        nearest: &'static str,
    },
    /// The function is known, but this program was built without it.
    FunctionNotBuilt {
        name: &'static str,
    },
    ArgumentCount {
        function: &'static str,
        min: usize,
        max: Option<usize>,
        found: usize,
    },
    /// A constant argument is wrong.
    Argument {
        function: &'static str,
        at: usize,
        expected: &'static str,
    },
    Regex(RegexError),
    /// The rule has more regular expressions than [`Limits::regexes`](crate::Limits::regexes).
    TooManyRegexes {
        max: usize,
    },
    NameUnknown {
        name: Box<str>,
        nearest: Box<str>,
    },
    /// No source of the rule has the field. `event` is one that has it.
    FieldNotInSources {
        field: Field,
        event: Event,
        nearest: Box<str>,
    },
    /// The name is the beginning of an alias.
    PartOfAlias {
        alias: Box<str>,
    },
    ColumnRepeated {
        name: Box<str>,
    },
    /// An alias has an index.
    AliasIndex,
    IndexZero,
}

impl ParseError {
    /// Creates the error at a byte of the text.
    pub(super) fn at(text: &str, offset: usize, fault: ParseFault) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_begin = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before[line_begin..].chars().count() + 1;
        let rest = text.get(offset..).unwrap_or_default();
        let near = rest.lines().next().unwrap_or_default();
        let near: String = near.trim_end().chars().take(NEAR_MAX).map(printable).collect();
        Self { line: line as u32, column: column as u32, near: near.into(), fault }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.fault)?;
        if self.near.is_empty() { f.write_str(" (at the end)") } else { write!(f, " (at: {})", self.near) }
    }
}

impl fmt::Display for ParseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { size, max } => write!(f, "the text has {size} bytes, and the maximum is {max}"),
            Self::NestedTooDeep { max } => {
                write!(f, "the expression is nested deeper than {max} levels; use an alias for a part of it")
            }
            Self::TooManyColumns { max } => write!(f, "the rule has more than {max} columns; use two rules"),
            Self::TooManySources { max } => write!(f, "the rule has more than {max} sources; use two rules"),
            Self::QuoteOpen { quote: '"' } => f.write_str("the Topic Filter has no closing \""),
            Self::QuoteOpen { .. } => {
                f.write_str("the string has no closing '; write a quotation mark within a string as ''")
            }
            Self::Character(found) => write!(f, "unexpected character {found:?}"),
            Self::IntegerTooLarge => {
                f.write_str("the integer does not fit 64 bits; write it as a float, with a fraction")
            }
            Self::FloatTooLarge => f.write_str("the number is too large for a float"),
            Self::NumberAndName => f.write_str(
                "a name does not begin with a digit; write such a name in quotation marks after a dot: .'1st'",
            ),
            Self::Expected { expected } => write!(f, "expected {expected}"),
            Self::NoSelect => f.write_str("a rule begins with SELECT or FOREACH"),
            Self::NoFrom => f.write_str("the rule names no source; add FROM \"topic/filter\""),
            Self::Keyword { word, expected } => {
                write!(
                    f,
                    "expected {expected}, and `{word}` is a keyword; write a name as '{word}' after a dot"
                )
            }
            Self::DoubleQuotes => f.write_str("a string is in single quotation marks: 'text'"),
            Self::NoDoubleQuotes => {
                f.write_str("a source is in double quotation marks: FROM \"topic/filter\"")
            }
            Self::EventUnknown { name, nearest } => {
                write!(f, "unknown event `{name}`; the nearest known one is `{}`", nearest.name())
            }
            Self::TopicFilter { filter, error } => write!(f, "`{filter}` is not a Topic Filter: {error}"),
            Self::SharedFilter => {
                f.write_str("a rule cannot be shared; write the Topic Filter without $share")
            }
            Self::SourceRepeated => f.write_str("the source is named twice; remove one of them"),
            Self::FunctionUnknown { name, nearest } => {
                write!(f, "unknown function `{name}`; the nearest known one is `{nearest}`")
            }
            Self::FunctionNotBuilt { name } => {
                write!(
                    f,
                    "this program was built without the function `{name}`; use paths and other functions"
                )
            }
            Self::ArgumentCount { function, min, max, found } => {
                write!(f, "`{function}` takes ")?;
                match max {
                    Some(max) if max == min => write!(f, "{min}")?,
                    Some(max) => write!(f, "{min} to {max}")?,
                    None => write!(f, "at least {min}")?,
                }
                write!(f, " argument{}, and has {found}", if *max == Some(1) { "" } else { "s" })
            }
            Self::Argument { function, at, expected } => {
                write!(f, "argument {at} of `{function}` must be {expected}")
            }
            Self::Regex(error) => error.fmt(f),
            Self::TooManyRegexes { max } => {
                write!(f, "the rule has more than {max} regular expressions; join them with |, or use two rules")
            }
            Self::NameUnknown { name, nearest } => {
                write!(f, "unknown name `{name}`; the nearest known one is `{nearest}`")
            }
            Self::FieldNotInSources { field, event, nearest } => {
                write!(f, "no source of this rule has the field `{field}`; ")?;
                match event {
                    Event::Publish => f.write_str("messages of a Topic Filter have it")?,
                    event => write!(f, "`{}` has it", event.name())?,
                }
                write!(f, ", and the nearest field here is `{nearest}`")
            }
            Self::PartOfAlias { alias } => {
                write!(f, "the name is only the beginning of the alias `{alias}`; write the whole alias")
            }
            Self::ColumnRepeated { name } => {
                write!(f, "two columns have the name `{name}`; give one of them another name with AS")
            }
            Self::AliasIndex => f.write_str("an alias is names with dots between them, without an index"),
            Self::IndexZero => f.write_str("elements count from 1, or from -1 at the end"),
        }
    }
}

impl std::error::Error for ParseError {}

/// Maximum number of characters of [`ParseError::near`].
const NEAR_MAX: usize = 24;
