//! Functions of numbers, and conversions to numbers and booleans.

use super::Arguments;
use crate::error::EvalError;
use crate::meter::Meter;
use crate::operators::modulo as remainder;
use crate::value::{Value, number};

/// `int(x)`: cuts off a fraction.
pub fn int(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    match it.value(0) {
        Value::Int(number) => Ok(Value::Int(*number)),
        Value::Float(float) => whole(it, float.trunc()),
        Value::Bool(is) => Ok(Value::Int(i64::from(*is))),
        Value::Text(text) => match number(text) {
            Some(Value::Float(float)) => whole(it, float.trunc()),
            Some(integer) => Ok(integer),
            None => Err(it.wrong(0, "a number or a string with a number")),
        },
        _ => Err(it.wrong_type(0, "a number, a string or a boolean")),
    }
}

pub fn float(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let as_float = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(float) => Some(*float),
        _ => None,
    };
    match it.value(0) {
        Value::Text(text) => number(text)
            .and_then(|number| as_float(&number))
            .map(Value::Float)
            .ok_or_else(|| it.wrong(0, "a number or a string with a number")),
        other => as_float(other).map(Value::Float).ok_or_else(|| it.wrong_type(0, "a number or a string")),
    }
}

/// `bool(x)`: booleans, 1, 0, 'true' and 'false'.
pub fn bool(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    match it.value(0) {
        Value::Bool(is) => Ok(Value::Bool(*is)),
        Value::Int(0) => Ok(Value::Bool(false)),
        Value::Int(1) => Ok(Value::Bool(true)),
        Value::Text(text) if **text == *"true" => Ok(Value::Bool(true)),
        Value::Text(text) if **text == *"false" => Ok(Value::Bool(false)),
        _ => Err(it.wrong(0, "a boolean, 0, 1, 'true' or 'false'")),
    }
}

pub fn abs(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    match it.value(0) {
        Value::Int(number) => {
            number.checked_abs().map(Value::Int).ok_or(EvalError::Overflow { operation: it.function })
        }
        Value::Float(float) => Ok(Value::Float(float.abs())),
        _ => Err(it.wrong_type(0, "a number")),
    }
}

/// `round(x)`: halves are rounded away from 0.
pub fn round(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    rounded(it, f64::round)
}

pub fn floor(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    rounded(it, f64::floor)
}

pub fn ceil(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    rounded(it, f64::ceil)
}

/// `mod(a, b)`: the operator `mod`.
pub fn modulo(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    remainder(it.int(0)?, it.int(1)?)
}

fn rounded(it: &Arguments<'_>, how: fn(f64) -> f64) -> Result<Value, EvalError> {
    match it.value(0) {
        Value::Int(number) => Ok(Value::Int(*number)),
        Value::Float(float) => whole(it, how(*float)),
        _ => Err(it.wrong_type(0, "a number")),
    }
}

/// Converts a float without a fraction to an integer.
fn whole(it: &Arguments<'_>, float: f64) -> Result<Value, EvalError> {
    /// 2^63, the first float above all integers.
    const ABOVE: f64 = 9_223_372_036_854_775_808.0;
    if (-ABOVE..ABOVE).contains(&float) {
        return Ok(Value::Int(float as i64));
    }
    Err(EvalError::Overflow { operation: it.function })
}
