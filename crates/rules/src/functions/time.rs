//! Functions of time. The current time is an input of the evaluation.

use super::Arguments;
use super::dates::{DateTime, parse_offset};
use crate::error::EvalError;
use crate::meter::Meter;
use crate::value::Value;

/// Nanoseconds in one unit, and the digits of a fraction of a second in that unit.
#[derive(Clone, Copy)]
struct Unit {
    nanoseconds: i128,
    digits: usize,
}

const SECOND: Unit = Unit { nanoseconds: 1_000_000_000, digits: 0 };

const UNITS: [(&str, Unit); 4] = [
    ("second", SECOND),
    ("millisecond", Unit { nanoseconds: 1_000_000, digits: 3 }),
    ("microsecond", Unit { nanoseconds: 1_000, digits: 6 }),
    ("nanosecond", Unit { nanoseconds: 1, digits: 9 }),
];

const UNIT: &str = "'second', 'millisecond', 'microsecond' or 'nanosecond'";

/// The unit in an argument; seconds when there is none.
fn unit(it: &Arguments<'_>, at: usize) -> Result<Unit, EvalError> {
    if it.len() > at { it.choice(at, &UNITS, UNIT) } else { Ok(SECOND) }
}

fn now(meter: &Meter) -> i128 {
    i128::try_from(meter.context.now.as_nanos()).unwrap_or(i128::MAX)
}

fn timestamp(it: &Arguments<'_>, nanoseconds: i128, unit: Unit) -> Result<Value, EvalError> {
    i64::try_from(nanoseconds.div_euclid(unit.nanoseconds))
        .map(Value::Int)
        .map_err(|_| EvalError::Overflow { operation: it.function })
}

/// `now_timestamp()`, `now_timestamp(unit)`
pub fn now_timestamp(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    timestamp(it, now(meter), unit(it, 0)?)
}

/// `now_rfc3339()`, `now_rfc3339(unit)`
pub fn now_rfc3339(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let unit = unit(it, 0)?;
    rfc3339(meter, it, now(meter), unit)
}

/// `unix_ts_to_rfc3339(time)`, `unix_ts_to_rfc3339(time, unit)`
pub fn unix_ts_to_rfc3339(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let unit = unit(it, 1)?;
    rfc3339(meter, it, i128::from(it.int(0)?) * unit.nanoseconds, unit)
}

fn rfc3339(meter: &mut Meter, it: &Arguments<'_>, at: i128, unit: Unit) -> Result<Value, EvalError> {
    let date = DateTime::of_unix(at, 0).ok_or_else(|| out_of_range(it, 0))?;
    let mut text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        date.year, date.month, date.day, date.hour, date.minute, date.second
    );
    if unit.digits > 0 {
        text.push('.');
        text.push_str(&fraction(date, unit.digits));
    }
    text.push('Z');
    meter.text(&text)
}

/// The first digits of the fraction of a second.
fn fraction(date: DateTime, digits: usize) -> String {
    let mut text = format!("{:09}", date.nanosecond);
    text.truncate(digits);
    text
}

fn out_of_range(it: &Arguments<'_>, at: usize) -> EvalError {
    it.wrong(at, "a time in the years 0 to 9999")
}

/// `rfc3339_to_unix_ts(text)`, `rfc3339_to_unix_ts(text, unit)`
pub fn rfc3339_to_unix_ts(_: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let unit = unit(it, 1)?;
    let at = DateTime::parse(it.text(0)?).ok_or_else(|| {
        it.wrong(0, "a time such as '2024-01-31T12:00:00Z' or '2024-01-31T12:00:00.5+01:00'")
    })?;
    timestamp(it, at, unit)
}

/// `format_date(unit, offset, format)`, `format_date(unit, offset, format, time)`: the time, or now, in an offset from
/// UTC.
pub fn format_date(meter: &mut Meter, it: &Arguments<'_>) -> Result<Value, EvalError> {
    let unit = unit(it, 0)?;
    let offset = match it.value(1) {
        Value::Int(seconds) => Some(*seconds).filter(|seconds| seconds.abs_diff(0) < 86_400),
        Value::Text(text) => parse_offset(text),
        _ => return Err(it.wrong_type(1, "a string such as '+01:00', or a number of seconds")),
    };
    let offset = offset.ok_or_else(|| it.wrong(1, "an offset such as 'Z', '+01:00' or 3600"))?;
    let at = if it.len() == 4 { i128::from(it.int(3)?) * unit.nanoseconds } else { now(meter) };
    let date = DateTime::of_unix(at, offset).ok_or_else(|| out_of_range(it, 3))?;

    let mut out = String::new();
    let mut rest = it.text(2)?;
    meter.step(rest.len())?;
    while let Some(place) = rest.find('%') {
        out.push_str(&rest[..place]);
        rest = &rest[place..];
        let (directive, text) = DIRECTIVES
            .iter()
            .find(|(directive, _)| rest.starts_with(directive))
            .ok_or_else(|| it.wrong(2, FORMAT))?;
        out.push_str(&text(date, offset));
        rest = &rest[directive.len()..];
    }
    out.push_str(rest);
    meter.text(&out)
}

const FORMAT: &str = "a format with %Y %m %d %H %M %S %N %3N %6N %z %:z and %%";

type Write = fn(DateTime, i64) -> String;

const DIRECTIVES: [(&str, Write); 12] = [
    ("%Y", |date, _| format!("{:04}", date.year)),
    ("%m", |date, _| format!("{:02}", date.month)),
    ("%d", |date, _| format!("{:02}", date.day)),
    ("%H", |date, _| format!("{:02}", date.hour)),
    ("%M", |date, _| format!("{:02}", date.minute)),
    ("%S", |date, _| format!("{:02}", date.second)),
    ("%N", |date, _| fraction(date, 9)),
    ("%3N", |date, _| fraction(date, 3)),
    ("%6N", |date, _| fraction(date, 6)),
    ("%z", |_, offset| offset_text(offset, "")),
    ("%:z", |_, offset| offset_text(offset, ":")),
    ("%%", |_, _| "%".to_owned()),
];

fn offset_text(offset: i64, between: &str) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    let minutes = offset.abs() / 60;
    format!("{sign}{:02}{between}{:02}", minutes / 60, minutes % 60)
}
