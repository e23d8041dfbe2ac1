//! Functions with regular expressions. They match anywhere in the text, unless the expression has `^` and `$`.

use regex::{Captures, Regex};

use super::Arguments;
use crate::error::EvalError;
use crate::meter::Meter;
use crate::value::Value;

/// Bytes of a text that are searched in one step.
const SEARCH_STEP: usize = 4;

/// Bytes after a match that count as one step, because the next search may read them.
const REPEATED_STEP: usize = 128;

/// The text of the first argument, accounted for a search.
fn text<'a>(meter: &mut Meter, it: &Arguments<'a>) -> Result<&'a str, EvalError> {
    let text = it.text(0)?;
    meter.step(text.len() / SEARCH_STEP)?;
    Ok(text)
}

/// `regex_match(text, pattern)`
pub fn regex_match(meter: &mut Meter, regex: &Regex, it: &Arguments<'_>) -> Result<Value, EvalError> {
    Ok(Value::Bool(regex.is_match(text(meter, it)?)))
}

/// `regex_extract(text, pattern)`: the groups of the first match, or the match when the pattern has no groups. An empty
/// array when nothing matches.
pub fn regex_extract(meter: &mut Meter, regex: &Regex, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let text = text(meter, it)?;
    let mut elements = Vec::new();
    if let Some(captures) = regex.captures(text) {
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
pub fn regex_replace(meter: &mut Meter, regex: &Regex, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (text, replacement) = (text(meter, it)?, it.text(2)?);
    let mut out = String::new();
    let mut done = 0;
    for captures in regex.captures_iter(text) {
        let Some(whole) = captures.get(0) else { continue };
        // Each search may read up to the end of the text, so many matches in a long text are expensive.
        meter.step(1 + captures.len() + (text.len() - whole.end()) / REPEATED_STEP)?;
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
