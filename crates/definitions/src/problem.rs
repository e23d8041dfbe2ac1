//! Problems of settings, and the check of names.

use std::fmt;

/// Setting that is wrong: why, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub setting: String,
    pub why: String,
}

impl Problem {
    pub fn new(setting: &str, why: impl fmt::Display) -> Self {
        Self { setting: setting.to_owned(), why: why.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.why)
    }
}

impl std::error::Error for Problem {}

/// Checks the name of an entry.
///
/// # Errors
/// It has a character that no name has, or too many.
pub fn check_name(name: &str) -> Result<(), Problem> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric();
    let is_inner = |byte: &u8| is_word(byte) || b"_.-".contains(byte);
    let bytes = name.as_bytes();
    if bytes.first().is_some_and(is_word) && bytes.iter().all(is_inner) && bytes.len() <= NAME_MAX {
        return Ok(());
    }
    let why = format!(
        "\"{}\" is not a name; write 1 to {NAME_MAX} letters, digits and the characters `_`, `.` and `-`, beginning with \
         a letter or a digit",
        name.escape_debug()
    );
    Err(Problem::new("name", why))
}

/// Maximum number of characters of a name.
const NAME_MAX: usize = 64;
