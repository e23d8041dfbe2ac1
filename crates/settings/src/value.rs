//! Types of settings, and how each is read and printed.

use std::fmt;
use std::path::PathBuf;

/// A value as it was written, before its type is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// A value of the environment or the command line, where everything is text.
    Text(String),
    String(String),
    Integer(i64),
    Boolean(bool),
    /// A value of a kind that no setting accepts: a float, a date, an array, a table. Holds the name of its kind.
    Other(&'static str),
}

impl Raw {
    /// The error for a value that does not have the expected form.
    pub fn expected(&self, expected: impl Into<String>) -> Invalid {
        Invalid::Type { expected: expected.into(), found: self.to_string() }
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "`{text}`"),
            Self::String(text) => write!(f, "the string {text:?}"),
            Self::Integer(number) => write!(f, "the number {number}"),
            Self::Boolean(boolean) => write!(f, "{boolean}"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Reason why a setting refuses a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    Type {
        expected: String,
        found: String,
    },
    /// The value does not have the expected form. Holds the reason.
    Form {
        expected: &'static str,
        found: String,
        why: String,
    },
    Range {
        found: String,
        range: &'static str,
    },
    UnknownKey,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { expected, found } => write!(f, "expected {expected}, found {found}"),
            Self::Form { expected, found, why } => write!(f, "expected {expected}, found {found}: {why}"),
            Self::Range { found, range } => {
                write!(f, "{found} is out of range, allowed is {}", in_words(range))
            }
            Self::UnknownKey => f.write_str("there is no such setting"),
        }
    }
}

impl std::error::Error for Invalid {}

/// Describes a range for people: the declared `1..=9` becomes `1 to 9`.
fn in_words(range: &str) -> String {
    match range.split_once("..") {
        Some((least, "")) => format!("{least} or more"),
        Some(("", most)) => format!("up to {}", most.trim_start_matches('=')),
        Some((least, most)) => format!("{least} to {}", most.trim_start_matches('=')),
        None => range.to_owned(),
    }
}

/// A word of a setting that accepts a few words only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub name: &'static str,
    pub doc: &'static str,
}

/// A type that a setting can have.
pub trait Value: Sized {
    /// Name of the type on the reference page.
    const TYPE: &'static str;
    /// Accepted words; empty when the type is not a choice.
    const CHOICES: &'static [Choice] = &[];

    fn from_raw(raw: &Raw) -> Result<Self, Invalid>;

    /// The value as TOML text; `None` when it is unset, which TOML cannot express.
    fn to_toml(&self) -> Option<String>;
}

impl Value for bool {
    const TYPE: &'static str = "boolean";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        match raw {
            Raw::Boolean(value) => Ok(*value),
            Raw::Text(text) if text == "true" => Ok(true),
            Raw::Text(text) if text == "false" => Ok(false),
            _ => Err(raw.expected("true or false")),
        }
    }

    fn to_toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            const TYPE: &'static str = "integer";

            fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
                let number = match raw {
                    Raw::Integer(number) => <$type>::try_from(*number).ok(),
                    Raw::Text(text) => text.replace('_', "").parse().ok(),
                    _ => None,
                };
                number.ok_or_else(|| raw.expected(format!("a whole number from {} to {}", <$type>::MIN, <$type>::MAX)))
            }

            fn to_toml(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, usize);

impl Value for String {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        match raw {
            Raw::Text(text) | Raw::String(text) => Ok(text.clone()),
            _ => Err(raw.expected("a string in quotes")),
        }
    }

    fn to_toml(&self) -> Option<String> {
        Some(toml::Value::String(self.clone()).to_string())
    }
}

impl Value for PathBuf {
    const TYPE: &'static str = "path";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        match raw {
            Raw::Text(text) | Raw::String(text) if !text.is_empty() => Ok(Self::from(text)),
            _ => Err(raw.expected("a path in quotes")),
        }
    }

    fn to_toml(&self) -> Option<String> {
        Some(toml::Value::String(self.to_string_lossy().into_owned()).to_string())
    }
}

/// Optional values: an unset one is an empty text in the environment and on the command line, and a missing key in
/// the file.
impl<T: Value> Value for Option<T> {
    const TYPE: &'static str = T::TYPE;
    const CHOICES: &'static [Choice] = T::CHOICES;

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        match raw {
            Raw::Text(text) if text.is_empty() => Ok(None),
            _ => T::from_raw(raw).map(Some),
        }
    }

    fn to_toml(&self) -> Option<String> {
        self.as_ref().and_then(T::to_toml)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Raw {
        Raw::Text(text.to_owned())
    }

    #[test]
    fn integers_name_the_range_that_fits() {
        assert_eq!(u16::from_raw(&Raw::Integer(65_535)), Ok(65_535));
        assert_eq!(u16::from_raw(&text("1_024")), Ok(1_024));
        for raw in [
            Raw::Integer(65_536),
            Raw::Integer(-1),
            text("many"),
            Raw::String("7".into()),
            Raw::Boolean(true),
        ] {
            let error = u16::from_raw(&raw).unwrap_err().to_string();
            assert!(error.contains("a whole number from 0 to 65535"), "{error}");
        }
    }

    #[test]
    fn booleans_are_the_two_words_only() {
        assert_eq!(bool::from_raw(&text("true")), Ok(true));
        assert_eq!(bool::from_raw(&Raw::Boolean(false)), Ok(false));
        for raw in [text("yes"), text("1"), Raw::Integer(1), Raw::String("true".into())] {
            assert!(bool::from_raw(&raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn an_empty_text_unsets_an_optional_setting() {
        assert_eq!(Option::<bool>::from_raw(&text("")), Ok(None));
        assert_eq!(Option::<bool>::from_raw(&text("true")), Ok(Some(true)));
        assert_eq!(Option::<PathBuf>::from_raw(&text("")), Ok(None));
        assert!(PathBuf::from_raw(&text("")).is_err());
    }

    #[test]
    fn strings_are_printed_as_toml_reads_them() {
        let hard = "a \"quote\" and a \\ and a\nline".to_owned();
        let table: toml::Table = format!("key = {}", hard.to_toml().unwrap()).parse().unwrap();
        assert_eq!(table["key"].as_str(), Some(hard.as_str()));
    }
}
