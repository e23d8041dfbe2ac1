//! Decoder of JSON with limits.
//!
//! A number without a fraction and an exponent is an integer if it fits 64 bits, and the nearest float otherwise. The
//! last of several members with one name counts.

use std::sync::Arc;

use super::{JsonError, JsonFault};
use crate::error::EvalError;
use crate::limits::JSON_DEPTH_MAX;
use crate::meter::Meter;
use crate::value::{Object, Value};

/// Members of the outermost object that are needed. Others are checked and left out, which saves their allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    Members(Vec<Arc<str>>),
}

impl Wanted {
    /// Adds the member of a path; `None` is a path without a first name.
    pub fn add(&mut self, name: Option<&Arc<str>>) {
        match (&mut *self, name) {
            (Self::Members(names), Some(name)) => {
                if !names.contains(name) {
                    names.push(name.clone());
                }
                if names.len() > WANTED_MAX {
                    *self = Self::All;
                }
            }
            (wanted, None) => *wanted = Self::All,
            (Self::All, Some(_)) => {}
        }
    }
}

/// Maximum number of names to search for each member of a payload.
const WANTED_MAX: usize = 16;

/// Maximum number of names that members share.
const SHARED_MAX: usize = 8;

/// Decodes a text. `source` names the text in errors.
pub fn decode(
    meter: &mut Meter,
    source: &'static str,
    text: &[u8],
    wanted: &Wanted,
) -> Result<Value, EvalError> {
    meter.read(text.len())?;
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let error = JsonError { offset: error.valid_up_to(), fault: JsonFault::NotUtf8 };
            return Err(EvalError::NotJson { source, error });
        }
    };
    let depth_max = meter.limits.json_depth.min(JSON_DEPTH_MAX);
    let mut decoder = Decoder { text, at: 0, source, meter, depth_max, names: Vec::new() };
    decoder.blanks();
    let value = match wanted {
        Wanted::Members(names) => decoder.outermost(names)?,
        Wanted::All => decoder.value(0, true)?,
    };
    decoder.blanks();
    if decoder.at < text.len() {
        return Err(decoder.fault(JsonFault::Trailing));
    }
    Ok(value)
}

struct Decoder<'a> {
    text: &'a str,
    /// Position of the next byte.
    at: usize,
    source: &'static str,
    meter: &'a mut Meter,
    depth_max: usize,
    /// The first names of members, which later members share: objects in an array mostly have equal names.
    names: Vec<Arc<str>>,
}

type Members = Vec<(Arc<str>, Value)>;

impl Decoder<'_> {
    fn fault(&self, fault: JsonFault) -> EvalError {
        EvalError::NotJson { source: self.source, error: JsonError { offset: self.at, fault } }
    }

    /// Error about the next character.
    fn unexpected(&self) -> EvalError {
        match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => self.fault(JsonFault::Unexpected(found)),
            None => self.fault(JsonFault::Truncated),
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Decodes the outermost value. Only the named members of an object are kept. An array is checked and then empty,
    /// because names find nothing in it.
    fn outermost(&mut self, names: &[Arc<str>]) -> Result<Value, EvalError> {
        if self.peek() != Some(b'{') {
            return self.value(0, false);
        }
        self.meter.step(1)?;
        let mut members = Members::new();
        self.members(1, |decoder, name| match names.iter().find(|wanted| ***wanted == *name) {
            Some(name) => {
                let value = decoder.value(1, true)?;
                decoder.meter.produce_elements(1)?;
                members.push((name.clone(), value));
                Ok(())
            }
            None => decoder.value(1, false).map(|_| ()),
        })?;
        Ok(Value::Object(Arc::new(Object::from_iter(members))))
    }

    /// Decodes a value inside `depth` arrays and objects. Returns null when it is not to be kept.
    fn value(&mut self, depth: usize, keep: bool) -> Result<Value, EvalError> {
        self.meter.step(1)?;
        match self.peek() {
            Some(b'{') => {
                let mut members = Members::new();
                self.members(depth + 1, |decoder, name| {
                    let name = keep.then(|| decoder.shared(name));
                    let value = decoder.value(depth + 1, keep)?;
                    if let Some(name) = name {
                        decoder.meter.produce(name.len() + size_of::<(Arc<str>, Value)>())?;
                        members.push((name, value));
                    }
                    Ok(())
                })?;
                Ok(if keep { Value::Object(Arc::new(Object::from_iter(members))) } else { Value::Null })
            }
            Some(b'[') => self.array(depth + 1, keep),
            Some(b'"') => {
                let text = self.string()?;
                if !keep {
                    return Ok(Value::Null);
                }
                match text {
                    Ok(plain) => self.meter.text(&self.text[plain]),
                    Err(unescaped) => self.meter.text(&unescaped),
                }
            }
            Some(b'-' | b'0'..=b'9') => self.number(keep),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => Err(self.unexpected()),
        }
    }

    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.iter().find(|known| ***known == *name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        if self.names.len() < SHARED_MAX {
            self.names.push(name.clone());
        }
        name
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, EvalError> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                return Err(self.unexpected());
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn enter(&mut self, depth: usize) -> Result<(), EvalError> {
        if depth > self.depth_max {
            return Err(self.fault(JsonFault::TooDeep { max: self.depth_max }));
        }
        self.at += 1;
        self.blanks();
        Ok(())
    }

    fn array(&mut self, depth: usize, keep: bool) -> Result<Value, EvalError> {
        self.enter(depth)?;
        let mut elements = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(if keep { Value::array(elements) } else { Value::Null });
        }
        loop {
            let element = self.value(depth, keep)?;
            if keep {
                self.meter.produce(size_of::<Value>())?;
                elements.push(element);
            }
            self.blanks();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.blanks();
                }
                Some(b']') => {
                    self.at += 1;
                    return Ok(if keep { Value::array(elements) } else { Value::Null });
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Decodes an object. Calls `member` with each name when its value is next.
    fn members(
        &mut self,
        depth: usize,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        self.enter(depth)?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.unexpected());
            }
            let text = self.text;
            let name = self.string()?;
            self.blanks();
            if self.peek() != Some(b':') {
                return Err(self.unexpected());
            }
            self.at += 1;
            self.blanks();
            match &name {
                Ok(plain) => member(self, &text[plain.clone()])?,
                Err(unescaped) => member(self, unescaped)?,
            }
            self.blanks();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.blanks();
                }
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Decodes a string: its range in the text, or its characters when it has escapes.
    fn string(&mut self) -> Result<Result<std::ops::Range<usize>, String>, EvalError> {
        self.at += 1;
        let begin = self.at;
        self.plain_characters();
        match self.peek() {
            Some(b'"') => {
                self.at += 1;
                return Ok(Ok(begin..self.at - 1));
            }
            Some(b'\\') => {}
            Some(_) => return Err(self.fault(JsonFault::ControlCharacter)),
            None => return Err(self.fault(JsonFault::Truncated)),
        }
        let mut characters = String::from(&self.text[begin..self.at]);
        loop {
            let plain = self.at;
            self.plain_characters();
            characters.push_str(&self.text[plain..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Err(characters));
                }
                Some(b'\\') => characters.push(self.escape()?),
                Some(_) => return Err(self.fault(JsonFault::ControlCharacter)),
                None => return Err(self.fault(JsonFault::Truncated)),
            }
        }
    }

    /// Skips characters of a string that stand for themselves.
    fn plain_characters(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        let is_special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
        self.at += rest.iter().position(is_special).unwrap_or(rest.len());
    }

    fn escape(&mut self) -> Result<char, EvalError> {
        self.at += 1;
        let Some(byte) = self.peek() else { return Err(self.fault(JsonFault::Truncated)) };
        let character = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.fault(JsonFault::Escape)),
        };
        self.at += 1;
        Ok(character)
    }

    /// Decodes what follows `\u`: four hexadecimal digits, or two halves of a pair.
    fn unicode(&mut self) -> Result<char, EvalError> {
        let first = self.four_digits()?;
        if !(0xD800..0xE000).contains(&first) {
            return char::from_u32(first).ok_or_else(|| self.fault(JsonFault::Escape));
        }
        if first >= 0xDC00 || self.text.as_bytes().get(self.at..self.at + 2) != Some(b"\\u") {
            return Err(self.fault(JsonFault::Escape));
        }
        self.at += 2;
        let second = self.four_digits()?;
        if !(0xDC00..0xE000).contains(&second) {
            return Err(self.fault(JsonFault::Escape));
        }
        char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))
            .ok_or_else(|| self.fault(JsonFault::Escape))
    }

    fn four_digits(&mut self) -> Result<u32, EvalError> {
        let mut number = 0;
        for _ in 0..4 {
            let Some(byte) = self.peek() else { return Err(self.fault(JsonFault::Truncated)) };
            let digit = char::from(byte).to_digit(16).ok_or_else(|| self.fault(JsonFault::Escape))?;
            number = number * 16 + digit;
            self.at += 1;
        }
        Ok(number)
    }

    fn digits(&mut self) -> Result<(), EvalError> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.unexpected());
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self, keep: bool) -> Result<Value, EvalError> {
        let begin = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let (mut is_integer, mut has_exponent) = (true, false);
        if self.peek() == Some(b'.') {
            is_integer = false;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            (is_integer, has_exponent) = (false, true);
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        let number = &self.text[begin..self.at];
        self.meter.read(number.len())?;
        // A number with few digits is never too large.
        if !keep && !has_exponent && number.len() < f64::MAX_10_EXP as usize {
            return Ok(Value::Null);
        }
        if is_integer && let Ok(integer) = number.parse() {
            return Ok(Value::Int(integer));
        }
        match number.parse::<f64>() {
            Ok(float) if float.is_finite() => Ok(Value::Float(float)),
            _ => {
                self.at = begin;
                Err(self.fault(JsonFault::NumberTooLarge))
            }
        }
    }
}
