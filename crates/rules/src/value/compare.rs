//! Comparison of values of any two types.

use std::cmp::Ordering;

use super::Value;
use crate::error::EvalError;
use crate::meter::Meter;

/// Returns whether two values are equal, as `=` says it. Null equals null only.
pub fn equal(meter: &mut Meter, a: &Value, b: &Value) -> Result<bool, EvalError> {
    meter.step(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Bool(is), Value::Text(text)) | (Value::Text(text), Value::Bool(is)) => {
            **text == *if *is { "true" } else { "false" }
        }
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            let (a, b) = (a.elements(), b.elements());
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !equal(meter, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Object(a), Value::Object(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (name, a) in a.iter() {
                match b.get(name) {
                    Some(b) if equal(meter, a, b)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        _ => order(a, b) == Some(Ordering::Equal),
    })
}

/// Order of two numbers, two strings, or a number and a string that contains one; `None` for all others.
pub fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Float(b)) => integer_and_float(*a, *b),
        (Value::Float(a), Value::Int(b)) => integer_and_float(*b, *a).map(Ordering::reverse),
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Int(_) | Value::Float(_), Value::Text(text)) => order(a, &number(text)?),
        (Value::Text(text), Value::Int(_) | Value::Float(_)) => order(&number(text)?, b),
        _ => None,
    }
}

/// The number that a string contains, without blanks around it.
pub fn number(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Ok(integer) = text.parse() {
        return Some(Value::Int(integer));
    }
    text.parse().ok().filter(|float: &f64| float.is_finite()).map(Value::Float)
}

/// Compares without rounding: 2^53 + 1 is greater than 2^53 as a float.
fn integer_and_float(integer: i64, float: f64) -> Option<Ordering> {
    /// 2^63, the first float above all integers.
    const ABOVE: f64 = 9_223_372_036_854_775_808.0;
    if float.is_nan() {
        return None;
    }
    if float >= ABOVE {
        return Some(Ordering::Less);
    }
    if float < -ABOVE {
        return Some(Ordering::Greater);
    }
    let whole = float.trunc();
    Some(
        integer
            .cmp(&(whole as i64))
            .then_with(|| 0.0.partial_cmp(&(float - whole)).unwrap_or(Ordering::Equal)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_floats_are_compared_without_rounding() {
        let cases = [
            (1, 1.0, Ordering::Equal),
            (1, 1.5, Ordering::Less),
            (-1, -1.5, Ordering::Greater),
            ((1 << 53) + 1, 9_007_199_254_740_992.0, Ordering::Greater),
            (i64::MAX, 9_223_372_036_854_775_808.0, Ordering::Less),
            (i64::MIN, -9_223_372_036_854_775_808.0, Ordering::Equal),
            (i64::MIN, -1e300, Ordering::Greater),
            (0, -0.0, Ordering::Equal),
        ];
        for (integer, float, expected) in cases {
            assert_eq!(
                order(&Value::Int(integer), &Value::Float(float)),
                Some(expected),
                "{integer} {float}"
            );
            assert_eq!(order(&Value::Float(float), &Value::Int(integer)), Some(expected.reverse()));
        }
    }

    #[test]
    fn a_string_with_a_number_is_compared_as_a_number() {
        assert_eq!(order(&Value::from("10"), &Value::Int(9)), Some(Ordering::Greater));
        assert_eq!(order(&Value::from("1e1"), &Value::Int(10)), Some(Ordering::Equal));
        for no_number in ["", "x", " 1", "1x", "inf", "NaN", "1e999", "-", "0x10"] {
            assert_eq!(order(&Value::from(no_number), &Value::Int(1)), None, "{no_number}");
        }
    }
}
