//! Functions of the language: their table, and the checks of their arguments.

mod arrays;
mod codecs;
mod dates;
mod maps;
mod numbers;
mod patterns;
mod sprintf;
mod strings;
mod time;

use crate::error::{EvalError, shown};
use crate::meter::Meter;
use crate::value::{Kind, Value};

pub use maps::put_into;
pub use patterns::Pattern;
pub use sprintf::{FORMAT, directives};
pub use strings::append;

/// A function. [`FUNCTIONS`] has all of them.
#[derive(Debug)]
pub struct Function {
    pub name: &'static str,
    pub min: usize,
    /// Maximum number of arguments; `None` for any.
    pub max: Option<usize>,
    /// True when the result is null as soon as one argument is null.
    pub is_null_with_null: bool,
    pub run: Run,
}

/// Code of a function.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    Plain(fn(&mut Meter, &Arguments<'_>) -> Result<Value, EvalError>),
    /// A function whose second argument is a regular expression, which may be compiled already.
    Regex(fn(&mut Meter, &Pattern, &Arguments<'_>) -> Result<Value, EvalError>),
    /// The function `jq`, whose first argument is a constant program.
    #[cfg(feature = "jq")]
    Jq(fn(&mut Meter, &crate::jq::Program, &Arguments<'_>) -> Result<Value, EvalError>),
    /// The first argument that is not null. Later arguments are not evaluated.
    Coalesce,
    /// The topic, or one of its levels.
    Topic,
    /// The payload, or a path in it.
    Payload,
}

/// Compares names, which are unique.
impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn plain(
    name: &'static str,
    min: usize,
    max: usize,
    run: fn(&mut Meter, &Arguments<'_>) -> Result<Value, EvalError>,
) -> Function {
    Function { name, min, max: Some(max), is_null_with_null: true, run: Run::Plain(run) }
}

/// A function that decides itself about null.
const fn with_null(function: Function) -> Function {
    Function { is_null_with_null: false, ..function }
}

/// A function with any number of arguments from a minimum.
const fn at_least(function: Function) -> Function {
    Function { max: None, ..function }
}

const fn other(name: &'static str, min: usize, max: usize, run: Run) -> Function {
    Function { name, min, max: Some(max), is_null_with_null: true, run }
}

/// All functions.
pub static FUNCTIONS: &[Function] = &[
    // JSON, objects
    with_null(plain("json_encode", 1, 1, maps::json_encode)),
    plain("json_decode", 1, 1, maps::json_decode),
    #[cfg(feature = "jq")]
    other("jq", 2, 2, Run::Jq(crate::jq::run)),
    with_null(plain("map_get", 2, 3, maps::map_get)),
    with_null(plain("map_put", 3, 3, maps::map_put)),
    plain("map_keys", 1, 1, maps::map_keys),
    plain("map_values", 1, 1, maps::map_values),
    with_null(plain("mget", 2, 3, maps::mget)),
    // Arrays
    plain("nth", 2, 2, arrays::nth),
    plain("first", 1, 1, arrays::first),
    plain("last", 1, 1, arrays::last),
    plain("length", 1, 1, arrays::length),
    plain("sublist", 2, 3, arrays::sublist),
    with_null(plain("contains", 2, 2, arrays::contains)),
    // Strings
    plain("upper", 1, 1, strings::upper),
    plain("lower", 1, 1, strings::lower),
    plain("trim", 1, 1, strings::trim),
    plain("split", 2, 3, strings::split),
    at_least(plain("concat", 1, 1, strings::concat)),
    plain("substr", 2, 3, strings::substr),
    plain("replace", 3, 4, strings::replace),
    plain("strlen", 1, 1, strings::strlen),
    plain("tokens", 2, 3, strings::tokens),
    plain("pad", 2, 4, strings::pad),
    at_least(plain("sprintf", 1, 1, sprintf::sprintf)),
    other("regex_match", 2, 2, Run::Regex(patterns::regex_match)),
    other("regex_extract", 2, 2, Run::Regex(patterns::regex_extract)),
    other("regex_replace", 3, 3, Run::Regex(patterns::regex_replace)),
    // Conversions, numbers
    plain("int", 1, 1, numbers::int),
    plain("float", 1, 1, numbers::float),
    plain("str", 1, 1, strings::str),
    plain("bool", 1, 1, numbers::bool),
    plain("abs", 1, 1, numbers::abs),
    plain("round", 1, 1, numbers::round),
    plain("floor", 1, 1, numbers::floor),
    plain("ceil", 1, 1, numbers::ceil),
    plain("mod", 2, 2, numbers::modulo),
    // Types, null
    with_null(plain("is_null", 1, 1, |_, it| Ok(Value::Bool(it.value(0).is_null())))),
    with_null(plain("is_not_null", 1, 1, |_, it| Ok(Value::Bool(!it.value(0).is_null())))),
    with_null(plain("is_num", 1, 1, |_, it| {
        Ok(Value::Bool(matches!(it.value(0).kind(), Kind::Integer | Kind::Float)))
    })),
    with_null(plain("is_str", 1, 1, |_, it| Ok(Value::Bool(it.value(0).kind() == Kind::String)))),
    with_null(at_least(other("coalesce", 1, 1, Run::Coalesce))),
    // Time
    plain("now_timestamp", 0, 1, time::now_timestamp),
    plain("now_rfc3339", 0, 1, time::now_rfc3339),
    plain("unix_ts_to_rfc3339", 1, 2, time::unix_ts_to_rfc3339),
    plain("rfc3339_to_unix_ts", 1, 2, time::rfc3339_to_unix_ts),
    plain("format_date", 3, 4, time::format_date),
    // Bytes, hashes, identifiers
    plain("base64_encode", 1, 1, codecs::base64_encode),
    plain("base64_decode", 1, 1, codecs::base64_decode),
    plain("hexstr2bin", 1, 1, codecs::hexstr2bin),
    plain("bin2hexstr", 1, 1, codecs::bin2hexstr),
    plain("subbits", 2, 6, codecs::subbits),
    plain("md5", 1, 1, codecs::md5),
    plain("sha256", 1, 1, codecs::sha256),
    plain("uuid_v4", 0, 0, codecs::uuid_v4),
    // The message
    other("topic", 0, 1, Run::Topic),
    other("payload", 0, 1, Run::Payload),
];

/// Functions that this program was built without.
#[cfg(feature = "jq")]
pub const NOT_BUILT: &[&str] = &[];
#[cfg(not(feature = "jq"))]
pub const NOT_BUILT: &[&str] = &["jq"];

/// The function with this name, in upper or lower case.
pub fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name.eq_ignore_ascii_case(name))
}

/// Names of all functions.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name)
}

/// Arguments of a call. Positions count from 0 here, and from 1 in errors.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    pub function: &'static str,
    pub values: &'a [Value],
}

impl<'a> Arguments<'a> {
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The argument; null when there is none.
    pub fn value(&self, at: usize) -> &'a Value {
        self.values.get(at).unwrap_or(&Value::Null)
    }

    pub fn wrong_type(&self, at: usize, expected: &'static str) -> EvalError {
        let found = self.value(at).kind();
        EvalError::WrongType { operation: self.function, at: at + 1, expected, found }
    }

    pub fn wrong(&self, at: usize, expected: &'static str) -> EvalError {
        let value = match self.value(at) {
            Value::Text(text) => format!("'{}'", shown(text)).into(),
            Value::Int(number) => number.to_string().into(),
            Value::Float(number) => format!("{number:?}").into(),
            other => other.kind().to_string().into(),
        };
        EvalError::WrongArgument { function: self.function, at: at + 1, value, expected }
    }

    pub fn text(&self, at: usize) -> Result<&'a str, EvalError> {
        self.value(at).as_text().ok_or_else(|| self.wrong_type(at, "a string"))
    }

    /// The bytes of a string, or bytes that are not UTF-8.
    pub fn bytes(&self, at: usize) -> Result<&'a [u8], EvalError> {
        match self.value(at) {
            Value::Text(text) => Ok(text.as_bytes()),
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong_type(at, "a string or bytes")),
        }
    }

    pub fn int(&self, at: usize) -> Result<i64, EvalError> {
        match self.value(at) {
            Value::Int(number) => Ok(*number),
            _ => Err(self.wrong_type(at, "an integer")),
        }
    }

    /// An integer that is not negative.
    pub fn count(&self, at: usize) -> Result<usize, EvalError> {
        let number = self.int(at)?;
        usize::try_from(number).map_err(|_| self.wrong(at, "0 or more"))
    }

    pub fn elements(&self, at: usize) -> Result<&'a [Value], EvalError> {
        self.value(at).as_elements().ok_or_else(|| self.wrong_type(at, "an array"))
    }

    /// One of a few words.
    pub fn choice<T: Copy>(
        &self,
        at: usize,
        choices: &[(&str, T)],
        expected: &'static str,
    ) -> Result<T, EvalError> {
        let word = self.text(at)?;
        choices
            .iter()
            .find(|(known, _)| *known == word)
            .map(|(_, choice)| *choice)
            .ok_or_else(|| self.wrong(at, expected))
    }
}
