//! Functions with regular expressions. They match anywhere in the text, unless the expression has `^` and `$`.

use regex::{Captures, Regex, RegexBuilder};

use super::Arguments;
use crate::error::{EvalError, RegexError};
use crate::limits::Limits;
use crate::meter::Meter;
use crate::value::Value;

/// A compiled regular expression with its cost.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    /// Size class: an upper bound of the compiled size, in units of [`SIZE_UNIT`], within a factor of two. The time for
    /// one byte of a text grows with it.
    size: usize,
}

/// Compares the texts.
impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl Pattern {
    /// Compiles a regular expression.
    pub fn compile(pattern: &str, limits: &Limits) -> Result<Self, RegexError> {
        let max = limits.regex_bytes;
        if pattern.len() > max {
            return Err(RegexError::TooLarge { max });
        }
        // The crate does not tell the size of an expression, but only whether it is within a bound.
        let mut size = 1;
        loop {
            let bound = (size * SIZE_UNIT).min(max);
            match RegexBuilder::new(pattern).size_limit(bound).dfa_size_limit(DFA_BYTES).build() {
                Ok(regex) => return Ok(Self { regex, size }),
                Err(regex::Error::CompiledTooBig(_)) if bound < max => size *= 2,
                Err(regex::Error::CompiledTooBig(_)) => return Err(RegexError::TooLarge { max }),
                Err(other) => return Err(RegexError::Syntax(reason(&other))),
            }
        }
    }

    /// The text of the first argument, accounted for a search.
    fn text<'a>(&self, meter: &mut Meter, it: &Arguments<'a>) -> Result<&'a str, EvalError> {
        let text = it.text(0)?;
        meter.step((text.len() / SEARCH_STEP).saturating_mul(self.size))?;
        Ok(text)
    }
}

/// The last line of the message says what is wrong. The others show the place in several lines.
fn reason(error: &regex::Error) -> Box<str> {
    let message = error.to_string();
    let last = message.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").into()
}

/// Compiled size of a small expression, in bytes.
const SIZE_UNIT: usize = 4 * 1024;

/// Memory of the cache of one expression and thread, which a search fills.
const DFA_BYTES: usize = 1024 * 1024;

/// Bytes of a text that a small expression searches in one step.
const SEARCH_STEP: usize = 4;

/// Bytes after a match that count as one step for a small expression, because the next search may read
/// them. Most expressions read few of them, so this is less than a whole search.
const REPEATED_STEP: usize = 128;

/// `regex_match(text, pattern)`
pub fn regex_match(meter: &mut Meter, pattern: &Pattern, it: &Arguments<'_>) -> Result<Value, EvalError> {
    Ok(Value::Bool(pattern.regex.is_match(pattern.text(meter, it)?)))
}

/// `regex_extract(text, pattern)`: the groups of the first match, or the match when the pattern has no groups. An empty
/// array when nothing matches.
pub fn regex_extract(meter: &mut Meter, pattern: &Pattern, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let text = pattern.text(meter, it)?;
    let mut elements = Vec::new();
    if let Some(captures) = pattern.regex.captures(text) {
        let groups_from = usize::from(captures.len() > 1);
        for group in captures.iter().skip(groups_from) {
            elements.push(match group {
                Some(group) => meter.text(group.as_str())?,
                None => Value::Null,
            });
        }
    }
    meter.array(elements)
}

/// `regex_replace(text, pattern, replacement)`: replaces all matches. `$1` and `${name}` are groups, `$$` is a dollar.
pub fn regex_replace(meter: &mut Meter, pattern: &Pattern, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (text, replacement) = (pattern.text(meter, it)?, it.text(2)?);
    let mut out = String::new();
    let mut done = 0;
    for captures in pattern.regex.captures_iter(text) {
        let Some(whole) = captures.get(0) else { continue };
        // Each search may read up to the end of the text, so many matches in a long text are expensive.
        let rest = (text.len() - whole.end()) / REPEATED_STEP;
        meter.step((1 + captures.len()).saturating_add(rest.saturating_mul(pattern.size)))?;
        push(meter, &mut out, &text[done..whole.start()])?;
        expand(meter, &captures, replacement, &mut out)?;
        done = whole.end();
    }
    push(meter, &mut out, &text[done..])?;
    Ok(Value::from(out))
}

fn push(meter: &mut Meter, out: &mut String, text: &str) -> Result<(), EvalError> {
    meter.produce(text.len())?;
    out.push_str(text);
    Ok(())
}

/// Appends the replacement of one match. A group that does not exist is empty.
fn expand(
    meter: &mut Meter,
    captures: &Captures<'_>,
    replacement: &str,
    out: &mut String,
) -> Result<(), EvalError> {
    let mut rest = replacement;
    while let Some(at) = rest.find('$') {
        meter.step(1)?;
        push(meter, out, &rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            push(meter, out, "$")?;
            rest = after;
            continue;
        }
        let (name, after) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some(named) => named,
            None => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        };
        if name.is_empty() {
            push(meter, out, "$")?;
            continue;
        }
        let group = match name.parse::<usize>() {
            Ok(number) => captures.get(number),
            Err(_) => captures.name(name),
        };
        push(meter, out, group.map_or("", |group| group.as_str()))?;
        rest = after;
    }
    push(meter, out, rest)
}
