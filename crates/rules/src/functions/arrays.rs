//! Functions of arrays.

use super::Arguments;
use crate::error::EvalError;
use crate::meter::Meter;
use crate::value::{Value, equal};

/// `nth(n, array)`
pub fn nth(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let index = it.int(0)?;
    it.elements(1)?;
    Ok(it.value(1).element(index).cloned().unwrap_or_default())
}

pub fn first(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    Ok(it.elements(0)?.first().cloned().unwrap_or_default())
}

pub fn last(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    Ok(it.elements(0)?.last().cloned().unwrap_or_default())
}

pub fn length(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    Ok(Value::Int(it.elements(0)?.len() as i64))
}

/// `sublist(length, array)`, `sublist(start, length, array)`: the part of the array that exists.
pub fn sublist(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let (start, len, at) = match it.len() {
        2 => (1, it.count(0)?, 1),
        _ => (it.count(0)?, it.count(1)?, 2),
    };
    let elements = it.elements(at)?;
    let Some(before) = start.checked_sub(1) else { return Err(it.wrong(0, "1 or more")) };
    let part = elements.get(before..).unwrap_or_default();
    let part = part.get(..len).unwrap_or(part);
    meter.produce_elements(part.len())?;
    Ok(Value::array(part.to_vec()))
}

/// `contains(value, array)`. Null may be an element.
pub fn contains(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    if it.value(1).is_null() {
        return Ok(Value::Null);
    }
    for element in it.elements(1)? {
        if equal(meter, it.value(0), element)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
