//! Functions of objects and JSON.

use std::sync::Arc;

use super::{Arguments, append};
use crate::error::EvalError;
use crate::expression::{Part, descend};
use crate::json::{self, Wanted};
use crate::limits::VALUE_DEPTH_MAX;
use crate::meter::Meter;
use crate::path_text;
use crate::value::{Object, Value};

/// `json_encode(x)`; null becomes `null`.
pub fn json_encode(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let mut out = Vec::new();
    match it.value(0) {
        Value::Text(text) => {
            // Each character takes at most six bytes.
            meter.produce(text.len().saturating_add(2))?;
            json::write_string(text, &mut out);
        }
        Value::Bytes(_) => return Err(EvalError::BytesInJson),
        other => append(meter, other, &mut out)?,
    }
    Ok(Value::of_bytes(&out))
}

/// `json_decode(text)`
pub fn json_decode(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    json::decode(meter, it.function, it.bytes(0)?, &Wanted::All)
}

/// A value to look into. Text is decoded as JSON.
fn container(meter: &mut Meter, it: &Arguments<'_>, at: usize) -> Result<Value, EvalError> {
    match it.value(at) {
        Value::Text(text) => json::decode(meter, it.function, text.as_bytes(), &Wanted::All),
        other => Ok(other.clone()),
    }
}

fn path(it: &Arguments<'_>) -> Result<Vec<Part>, EvalError> {
    path_text::parse(it.text(0)?).ok_or_else(|| it.wrong(0, "a path such as 'a.b' or 'a.b[1]'"))
}

/// `map_get(path, object)`, `map_get(path, object, default)`
pub fn map_get(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let parts = path(it)?;
    meter.step(parts.len())?;
    let object = container(meter, it, 1)?;
    Ok(descend(&object, &parts).unwrap_or_else(|| it.value(2)).clone())
}

/// `mget(name, object)`, `mget(name, object, default)`: the member with exactly this name.
pub fn mget(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let name = it.text(0)?;
    let object = container(meter, it, 1)?;
    Ok(object.member(name).unwrap_or_else(|| it.value(2)).clone())
}

/// `map_put(path, value, object)`
pub fn map_put(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let names: Option<Vec<Arc<str>>> = path(it)?.into_iter().map(|part| part.name().cloned()).collect();
    let names = names.ok_or_else(|| it.wrong(0, "names with dots between them"))?;
    match container(meter, it, 2)? {
        Value::Null => put(meter, Value::Null, &names, it.value(1).clone()),
        object @ Value::Object(_) => put(meter, object, &names, it.value(1).clone()),
        _ => Err(it.wrong_type(2, "an object")),
    }
}

/// Returns `target` with another value at a path. What is not an object on the way is replaced by one.
fn put(meter: &mut Meter, target: Value, names: &[Arc<str>], value: Value) -> Result<Value, EvalError> {
    let mut object = match target {
        Value::Object(object) => object,
        _ => Arc::new(Object::new()),
    };
    if Arc::get_mut(&mut object).is_none() {
        meter.produce_elements(object.len())?;
    }
    put_into(meter, Arc::make_mut(&mut object), names, value)?;
    meter.checked(Value::Object(object))
}

/// Puts a value into an object at a path of at least one name.
pub fn put_into(
    meter: &mut Meter,
    object: &mut Object,
    names: &[Arc<str>],
    value: Value,
) -> Result<(), EvalError> {
    let Some((name, rest)) = names.split_first() else { return Ok(()) };
    if names.len() > VALUE_DEPTH_MAX {
        return Err(EvalError::DepthLimit { max: VALUE_DEPTH_MAX });
    }
    meter.produce_elements(1)?;
    let inner = if rest.is_empty() {
        value
    } else {
        let before = object.take(name).unwrap_or_default();
        put(meter, before, rest, value)?
    };
    object.insert(name.clone(), inner);
    Ok(())
}

pub fn map_keys(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let value = container(meter, it, 0)?;
    let Some(object) = value.as_object() else { return Err(it.wrong_type(0, "an object")) };
    let names = object.iter().map(|(name, _)| Value::Text(name.clone())).collect();
    meter.array(names)
}

pub fn map_values(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let value = container(meter, it, 0)?;
    let Some(object) = value.as_object() else { return Err(it.wrong_type(0, "an object")) };
    let values = object.iter().map(|(_, value)| value.clone()).collect();
    meter.array(values)
}
