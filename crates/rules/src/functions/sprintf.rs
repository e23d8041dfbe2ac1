//! The function `sprintf`, and the directives of its format.

use super::{Arguments, append};
use crate::error::EvalError;
use crate::meter::Meter;
use crate::value::Value;

/// One directive of a format: `%[-][0][width][.precision]` and the conversion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Directive {
    is_left: bool,
    is_zero: bool,
    width: usize,
    precision: Option<usize>,
    conversion: char,
}

/// A part of a format.
enum Piece<'a> {
    Text(&'a str),
    Directive(Directive),
}

/// Maximum width and precision.
const WIDTH_MAX: usize = 1_000;

/// Splits a format; `None` when a directive is wrong.
fn pieces(format: &str) -> Option<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        pieces.push(Piece::Text(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            pieces.push(Piece::Text("%"));
            rest = after;
            continue;
        }
        let mut directive = Directive::default();
        while let Some(flag) = rest.chars().next().filter(|c| matches!(c, '-' | '0')) {
            directive.is_left |= flag == '-';
            directive.is_zero |= flag == '0';
            rest = &rest[1..];
        }
        directive.width = number(&mut rest)?.unwrap_or(0);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            directive.precision = Some(number(&mut rest)?.unwrap_or(0));
        }
        directive.conversion =
            rest.chars().next().filter(|c| matches!(c, 's' | 'd' | 'f' | 'e' | 'x' | 'X'))?;
        rest = &rest[1..];
        pieces.push(Piece::Directive(directive));
    }
    pieces.push(Piece::Text(rest));
    Some(pieces)
}

/// Reads digits: `Some(None)` when there are none, and `None` when the number is too large.
fn number(rest: &mut &str) -> Option<Option<usize>> {
    let len = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = rest.split_at(len);
    *rest = after;
    if digits.is_empty() {
        return Some(None);
    }
    digits.parse().ok().filter(|number| *number <= WIDTH_MAX).map(Some)
}

/// Number of directives of a format; `None` when the format is wrong.
pub fn directives(format: &str) -> Option<usize> {
    let pieces = pieces(format)?;
    Some(pieces.iter().filter(|piece| matches!(piece, Piece::Directive(_))).count())
}

/// Description of a right format, for errors.
pub const FORMAT: &str = "a format with one of %s %d %f %e %x %X for each further argument";

/// `sprintf(format, ...)`
pub fn sprintf(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let format = it.text(0)?;
    meter.step(1 + format.bytes().filter(|byte| *byte == b'%').count())?;
    meter.read(format.len())?;
    let pieces = pieces(format).ok_or_else(|| it.wrong(0, FORMAT))?;
    if pieces.iter().filter(|piece| matches!(piece, Piece::Directive(_))).count() + 1 != it.len() {
        return Err(it.wrong(0, FORMAT));
    }
    let mut out = Vec::new();
    let mut at = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => {
                meter.produce(text.len())?;
                out.extend_from_slice(text.as_bytes());
            }
            Piece::Directive(directive) => {
                at += 1;
                directive.write(meter, it, at, &mut out)?;
            }
        }
    }
    Ok(Value::of_bytes(&out))
}

impl Directive {
    /// Appends an argument.
    fn write(
        self,
        meter: &mut Meter,
        it: &Arguments<'_>,
        at: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), EvalError> {
        let precision = self.precision.unwrap_or(6);
        let text = match (self.conversion, it.value(at)) {
            ('s', value) => {
                let mut text = Vec::new();
                append(meter, value, &mut text)?;
                if let (Some(max), Ok(whole)) = (self.precision, std::str::from_utf8(&text)) {
                    let end = whole.char_indices().nth(max).map_or(whole.len(), |(end, _)| end);
                    text.truncate(end);
                }
                return self.pad(meter, &text, false, out);
            }
            ('d', Value::Int(number)) => number.to_string(),
            ('x', Value::Int(number)) => format!("{number:x}"),
            ('X', Value::Int(number)) => format!("{number:X}"),
            ('d' | 'x' | 'X', _) => return Err(it.wrong_type(at, "an integer")),
            ('f', Value::Float(number)) => format!("{number:.precision$}"),
            ('f', Value::Int(number)) => format!("{:.precision$}", *number as f64),
            ('e', Value::Float(number)) => format!("{number:.precision$e}"),
            ('e', Value::Int(number)) => format!("{:.precision$e}", *number as f64),
            _ => return Err(it.wrong_type(at, "a number")),
        };
        self.pad(meter, text.as_bytes(), self.is_zero, out)
    }

    fn pad(self, meter: &mut Meter, text: &[u8], zeros: bool, out: &mut Vec<u8>) -> Result<(), EvalError> {
        let len = std::str::from_utf8(text).map_or(text.len(), |text| text.chars().count());
        let missing = self.width.saturating_sub(len);
        meter.produce(text.len() + missing)?;
        if self.is_left {
            out.extend_from_slice(text);
            out.resize(out.len() + missing, b' ');
        } else if zeros {
            // Zeros follow the sign.
            let (sign, digits) = text.split_at(usize::from(text.first() == Some(&b'-')));
            out.extend_from_slice(sign);
            out.resize(out.len() + missing, b'0');
            out.extend_from_slice(digits);
        } else {
            out.resize(out.len() + missing, b' ');
            out.extend_from_slice(text);
        }
        Ok(())
    }
}
