//! Encoder of values as JSON, without blanks.

use crate::value::Value;

/// Reason why a value was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// A value is bytes that are not UTF-8, or a float that is not finite.
    NoForm,
    /// The result is larger than the maximum.
    TooLarge,
}

/// Appends a value to `out`, which gets at most `max` bytes in all.
pub fn encode(value: &Value, out: &mut Vec<u8>, max: usize) -> Result<(), EncodeError> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(integer) => write_integer(*integer, out),
        Value::Float(float) if float.is_finite() => write_float(*float, out),
        Value::Float(_) | Value::Bytes(_) => return Err(EncodeError::NoForm),
        Value::Text(text) => {
            if out.len().saturating_add(text.len()) > max {
                return Err(EncodeError::TooLarge);
            }
            write_string(text, out);
        }
        Value::Array(array) => {
            out.push(b'[');
            for (index, element) in array.elements().iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                encode(element, out, max)?;
            }
            out.push(b']');
        }
        Value::Object(object) => {
            out.push(b'{');
            for (index, (name, member)) in object.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                if out.len().saturating_add(name.len()) > max {
                    return Err(EncodeError::TooLarge);
                }
                write_string(name, out);
                out.push(b':');
                encode(member, out, max)?;
            }
            out.push(b'}');
        }
    }
    if out.len() > max { Err(EncodeError::TooLarge) } else { Ok(()) }
}

fn write_integer(integer: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = integer.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if integer < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes the shortest number that is read as the same float. It has a fraction or an exponent.
fn write_float(float: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{float:?}").as_bytes());
}

/// Writes a string in quotation marks.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\')) {
        let (plain, after) = rest.split_at(at);
        out.extend_from_slice(plain);
        match after[0] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = &after[1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}
