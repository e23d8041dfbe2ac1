//! JSON: decoding into values and encoding of values.

mod decode;
mod encode;

use std::fmt;

pub use decode::{Wanted, decode};
pub use encode::{EncodeError, encode, write_string};

/// Reason why a text is not JSON, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Number of bytes before the error.
    pub offset: usize,
    pub fault: JsonFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonFault {
    NotUtf8,
    /// The text ends within a value.
    Truncated,
    /// A character that cannot be here.
    Unexpected(char),
    /// Text follows the value.
    Trailing,
    /// A string has a control character without an escape.
    ControlCharacter,
    /// An escape is unknown, or half of a pair.
    Escape,
    /// The number does not fit a float.
    NumberTooLarge,
    /// Arrays and objects are nested deeper than [`Limits::json_depth`](crate::Limits::json_depth).
    TooDeep {
        max: usize,
    },
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            JsonFault::NotUtf8 => f.write_str("it is not UTF-8")?,
            JsonFault::Truncated => f.write_str("it ends too early")?,
            JsonFault::Unexpected(found) => write!(f, "unexpected {found:?}")?,
            JsonFault::Trailing => f.write_str("more text follows the value")?,
            JsonFault::ControlCharacter => f.write_str("a control character in a string")?,
            JsonFault::Escape => f.write_str("a wrong escape in a string")?,
            JsonFault::NumberTooLarge => f.write_str("a number that does not fit a float")?,
            JsonFault::TooDeep { max } => write!(f, "nested deeper than {max} levels")?,
        }
        write!(f, ", after {} bytes", self.offset)
    }
}
