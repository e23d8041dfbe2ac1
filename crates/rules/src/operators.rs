//! Operators of expressions.

use std::cmp::Ordering;

use mqtt::{TopicFilter, TopicName};

use crate::error::{EvalError, shown};
use crate::expression::{Arithmetic, Comparison};
use crate::functions;
use crate::meter::Meter;
use crate::value::{Value, equal, order};

/// `=`, `!=` and the orders. Orders of values that have none are false.
pub fn compare(
    meter: &mut Meter,
    comparison: Comparison,
    left: &Value,
    right: &Value,
) -> Result<bool, EvalError> {
    if let (Value::Text(left), Value::Text(right)) = (left, right) {
        meter.read(left.len().min(right.len()))?;
    }
    Ok(match comparison {
        Comparison::Equal => equal(meter, left, right)?,
        Comparison::NotEqual => !equal(meter, left, right)?,
        Comparison::Less => order(left, right) == Some(Ordering::Less),
        Comparison::Greater => order(left, right) == Some(Ordering::Greater),
        Comparison::LessOrEqual => order(left, right).is_some_and(Ordering::is_le),
        Comparison::GreaterOrEqual => order(left, right).is_some_and(Ordering::is_ge),
    })
}

/// `topic =~ filter`. What is no Topic Name matches nothing.
pub fn matches(meter: &mut Meter, topic: &Value, filter: &Value) -> Result<bool, EvalError> {
    let (topic, filter) = match (topic, filter) {
        (Value::Null, _) | (_, Value::Null) => return Ok(false),
        (Value::Text(topic), Value::Text(filter)) => (topic, filter),
        (Value::Text(_), other) | (other, _) => return Err(wrong_operand("=~", "strings", other)),
    };
    meter.read(topic.len() + filter.len())?;
    let filter = TopicFilter::parse(filter)
        .map_err(|error| EvalError::NotTopicFilter { filter: shown(filter), error })?;
    Ok(TopicName::parse(topic).is_ok_and(|topic| filter.matches(topic)))
}

/// `+`, `-`, `*`, `/`, `div` and `mod`. Null gives null.
pub fn arithmetic(
    meter: &mut Meter,
    operator: Arithmetic,
    left: &Value,
    right: &Value,
) -> Result<Value, EvalError> {
    let operation = operator.symbol();
    match (left, right) {
        (Value::Null, _) | (_, Value::Null) => Ok(Value::Null),
        (Value::Int(left), Value::Int(right)) => integers(operator, *left, *right),
        (Value::Int(left), Value::Float(right)) => floats(operator, *left as f64, *right),
        (Value::Float(left), Value::Int(right)) => floats(operator, *left, *right as f64),
        (Value::Float(left), Value::Float(right)) => floats(operator, *left, *right),
        (Value::Text(_) | Value::Bytes(_), Value::Text(_) | Value::Bytes(_))
            if operator == Arithmetic::Add =>
        {
            let mut joined = Vec::new();
            functions::append(meter, left, &mut joined)?;
            functions::append(meter, right, &mut joined)?;
            Ok(Value::of_bytes(&joined))
        }
        (Value::Int(_) | Value::Float(_), other) | (other, _) => {
            let expected = match operator {
                Arithmetic::Add => "two numbers or two strings (use str or concat)",
                _ => "two numbers",
            };
            Err(wrong_operand(operation, expected, other))
        }
    }
}

/// Error about an operand of an operator or a keyword.
pub fn wrong_operand(operation: &'static str, expected: &'static str, found: &Value) -> EvalError {
    EvalError::WrongType { operation, at: 0, expected, found: found.kind() }
}

fn integers(operator: Arithmetic, left: i64, right: i64) -> Result<Value, EvalError> {
    let operation = operator.symbol();
    let result = match operator {
        Arithmetic::Add => left.checked_add(right),
        Arithmetic::Subtract => left.checked_sub(right),
        Arithmetic::Multiply => left.checked_mul(right),
        Arithmetic::Divide => return floats(operator, left as f64, right as f64),
        Arithmetic::Div if right == 0 => return Err(EvalError::DivisionByZero { operation }),
        Arithmetic::Div => left.checked_div(right),
        Arithmetic::Mod => return modulo(left, right),
    };
    result.map(Value::Int).ok_or(EvalError::Overflow { operation })
}

/// Remainder of a division. Its sign is that of `left`.
pub fn modulo(left: i64, right: i64) -> Result<Value, EvalError> {
    if right == 0 {
        return Err(EvalError::DivisionByZero { operation: "mod" });
    }
    // The only overflow is that of a division by -1, whose remainder is 0.
    Ok(Value::Int(left.checked_rem(right).unwrap_or(0)))
}

fn floats(operator: Arithmetic, left: f64, right: f64) -> Result<Value, EvalError> {
    let operation = operator.symbol();
    let result = match operator {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide if right == 0.0 => return Err(EvalError::DivisionByZero { operation }),
        Arithmetic::Divide => left / right,
        Arithmetic::Div | Arithmetic::Mod => {
            return Err(wrong_operand(operation, "two integers (use int)", &Value::Float(left)));
        }
    };
    if result.is_finite() { Ok(Value::Float(result)) } else { Err(EvalError::NotFinite { operation }) }
}
