//! Functions of strings.

use super::Arguments;
use crate::error::EvalError;
use crate::json::{self, EncodeError};
use crate::meter::Meter;
use crate::value::Value;

pub fn upper(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let text = it.text(0)?;
    meter.produce(text.len())?;
    meter.text(&text.to_uppercase())
}

pub fn lower(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let text = it.text(0)?;
    meter.produce(text.len())?;
    meter.text(&text.to_lowercase())
}

pub fn trim(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    meter.text(it.text(0)?.trim())
}

/// Occurrences that `split` and `replace` use.
#[derive(Clone, Copy)]
enum Occurrences {
    All,
    /// All, and empty parts stay.
    Every,
    First,
    Last,
}

/// `split(text, separator)`, with `notrim`, `leading` or `trailing`.
pub fn split(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (text, separator) = (it.text(0)?, it.text(1)?);
    let occurrences = match it.len() {
        2 => Occurrences::All,
        _ => it.choice(
            2,
            &[
                ("notrim", Occurrences::Every),
                ("leading", Occurrences::First),
                ("trailing", Occurrences::Last),
            ],
            "'notrim', 'leading' or 'trailing'",
        )?,
    };
    if separator.is_empty() {
        return Err(it.wrong(1, "at least one character"));
    }
    meter.read(text.len())?;
    let pair = |parts: Option<(&str, &str)>| match parts {
        Some((before, after)) => vec![before.to_owned(), after.to_owned()],
        None => vec![text.to_owned()],
    };
    let parts = match occurrences {
        Occurrences::First => pair(text.split_once(separator)),
        Occurrences::Last => pair(text.rsplit_once(separator)),
        Occurrences::All | Occurrences::Every => {
            let keeps_empty = matches!(occurrences, Occurrences::Every);
            return texts(meter, text.split(separator).filter(|part| keeps_empty || !part.is_empty()));
        }
    };
    texts(meter, parts.iter().map(|part| &**part))
}

/// `tokens(text, separators)`: splits at each of the characters, and with `nocrlf` also at the ends of lines.
pub fn tokens(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (text, separators) = (it.text(0)?, it.text(1)?);
    let at_lines = it.len() == 3 && it.choice(2, &[("nocrlf", true)], "'nocrlf'")?;
    meter.read(text.len().saturating_mul(separators.len().max(1)))?;
    let separates = |c: char| separators.contains(c) || (at_lines && matches!(c, '\r' | '\n'));
    texts(meter, text.split(separates).filter(|part| !part.is_empty()))
}

fn texts<'a>(meter: &mut Meter, parts: impl Iterator<Item = &'a str>) -> Result<Value, EvalError> {
    let mut elements = Vec::new();
    for part in parts {
        meter.produce_elements(1)?;
        elements.push(meter.text(part)?);
    }
    Ok(Value::array(elements))
}

/// Appends a value as text: a string as it is, and others as JSON.
pub fn append(meter: &mut Meter, value: &Value, out: &mut Vec<u8>) -> Result<(), EvalError> {
    let bytes = match value {
        Value::Text(text) => text.as_bytes(),
        Value::Bytes(bytes) => bytes,
        other => {
            let before = out.len();
            let max = before.saturating_add(usize::try_from(meter.bytes_left()).unwrap_or(usize::MAX));
            json::encode(other, out, max).map_err(|error| match error {
                EncodeError::NoForm => EvalError::BytesInJson,
                EncodeError::TooLarge => EvalError::ByteLimit { max: meter.limits.bytes },
            })?;
            return meter.produce(out.len() - before);
        }
    };
    meter.produce(bytes.len())?;
    out.extend_from_slice(bytes);
    Ok(())
}

/// `concat(a, b, ...)`: all arguments as text.
pub fn concat(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let mut joined = Vec::new();
    for value in it.values {
        append(meter, value, &mut joined)?;
    }
    Ok(Value::of_bytes(&joined))
}

/// `str(x)`: the value as text.
pub fn str(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    match it.value(0) {
        Value::Bytes(_) => Err(it.wrong_type(0, "text, a number, a boolean, an array or an object")),
        Value::Text(_) => Ok(it.value(0).clone()),
        _ => concat(meter, it),
    }
}

/// `substr(text, start)`, `substr(text, start, length)`: characters from `start`, which counts from 0.
pub fn substr(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (text, start) = (it.text(0)?, it.count(1)?);
    let len = if it.len() == 3 { it.count(2)? } else { usize::MAX };
    meter.read(text.len())?;
    let position = |text: &str, count: usize| text.char_indices().nth(count).map_or(text.len(), |(at, _)| at);
    let rest = &text[position(text, start)..];
    meter.text(&rest[..position(rest, len)])
}

/// `replace(text, from, to)`, with `all`, `leading` or `trailing`.
pub fn replace(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (text, from, to) = (it.text(0)?, it.text(1)?, it.text(2)?);
    let occurrences = match it.len() {
        3 => Occurrences::All,
        _ => it.choice(
            3,
            &[("all", Occurrences::All), ("leading", Occurrences::First), ("trailing", Occurrences::Last)],
            "'all', 'leading' or 'trailing'",
        )?,
    };
    if from.is_empty() {
        return Err(it.wrong(1, "at least one character"));
    }
    meter.read(text.len())?;
    let mut found: Vec<usize> = match occurrences {
        Occurrences::First => text.find(from).into_iter().collect(),
        Occurrences::Last => text.rfind(from).into_iter().collect(),
        Occurrences::All | Occurrences::Every => text.match_indices(from).map(|(at, _)| at).collect(),
    };
    meter.step(found.len())?;
    let size = (text.len() - found.len() * from.len()).saturating_add(found.len().saturating_mul(to.len()));
    meter.produce(size)?;
    let mut replaced = String::with_capacity(size);
    let mut done = 0;
    for at in found.drain(..) {
        replaced.push_str(&text[done..at]);
        replaced.push_str(to);
        done = at + from.len();
    }
    replaced.push_str(&text[done..]);
    Ok(Value::from(replaced))
}

/// `strlen(text)`: number of characters (Unicode code points), or of bytes that are not UTF-8.
pub fn strlen(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    meter.read(it.bytes(0)?.len())?;
    Ok(Value::Int(match it.value(0).as_text() {
        Some(text) => text.chars().count() as i64,
        None => it.bytes(0)?.len() as i64,
    }))
}

/// `pad(text, length)`, `pad(text, length, side)`, `pad(text, length, side, character)`.
pub fn pad(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    #[derive(Clone, Copy)]
    enum Side {
        Leading,
        Trailing,
        Both,
    }
    let (text, len) = (it.text(0)?, it.count(1)?);
    let side = match it.len() {
        2 => Side::Trailing,
        _ => it.choice(
            2,
            &[("leading", Side::Leading), ("trailing", Side::Trailing), ("both", Side::Both)],
            "'leading', 'trailing' or 'both'",
        )?,
    };
    let with = if it.len() == 4 { it.text(3)? } else { " " };
    if with.chars().count() != 1 {
        return Err(it.wrong(3, "one character"));
    }
    meter.read(text.len())?;
    let missing = len.saturating_sub(text.chars().count());
    meter.produce(text.len().saturating_add(missing.saturating_mul(with.len())))?;
    let before = match side {
        Side::Leading => missing,
        Side::Trailing => 0,
        Side::Both => missing / 2,
    };
    Ok(Value::from([&with.repeat(before), text, &with.repeat(missing - before)].concat()))
}
