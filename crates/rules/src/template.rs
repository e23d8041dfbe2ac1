//! Templates: text with placeholders for values of an output.

use std::fmt;

use crate::error::{EvalError, shown};
use crate::expression::{Part, descend};
use crate::json::{self, EncodeError, Wanted};
use crate::limits::Limits;
use crate::meter::{Context, Meter};
use crate::path_text;
use crate::value::Value;

/// A parsed template. `Display` writes the text that it was parsed from.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    text: Box<str>,
    pieces: Box<[Piece]>,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(Box<str>),
    /// `${.}`
    Whole,
    Path {
        parts: Box<[Part]>,
        /// Text between the braces, without `?`.
        text: Box<str>,
        is_optional: bool,
    },
}

/// A part of a template, for targets that write values in a form of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplatePart<'a> {
    /// Text that is the same in each result.
    Text(&'a str),
    Placeholder {
        /// Text between the braces, without `?`.
        path: &'a str,
        is_optional: bool,
    },
}

/// Error in the text of a template, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// Number of bytes before the error.
    pub offset: usize,
    pub fault: TemplateFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateFault {
    TooLong {
        size: usize,
        max: usize,
    },
    /// A placeholder has no `}`.
    Open,
    /// The text between the braces is not a path.
    Placeholder(Box<str>),
}

/// Reason why a template was not rendered. The output is to be counted as failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderError {
    /// The output has no such value, or it is null.
    Missing { path: Box<str> },
    /// The result is larger than [`Limits::rendered_bytes`].
    TooLarge { max: usize },
    /// A value within JSON is bytes that are not UTF-8.
    BytesInJson,
    /// Strings that are decoded as JSON exceed the limits of an evaluation.
    Limit(EvalError),
    /// The target has no form for a value.
    Unfit { what: Box<str>, why: Box<str> },
}

impl Template {
    /// Parses a template: `${a.b}`, `${a[1]}`, `${.}` for the whole output, `${a?}` for a value that may be missing,
    /// and `$${` for the characters `${`.
    ///
    /// # Errors
    /// A placeholder is wrong, or the text is too long.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, TemplateError> {
        if text.len() > limits.text_bytes {
            let fault = TemplateFault::TooLong { size: text.len(), max: limits.text_bytes };
            return Err(TemplateError { offset: limits.text_bytes, fault });
        }
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut at = 0;
        while let Some(found) = text[at..].find("${") {
            let begin = at + found;
            if text[at..begin].ends_with('$') {
                plain.push_str(&text[at..begin]);
                plain.push('{');
                at = begin + 2;
                continue;
            }
            plain.push_str(&text[at..begin]);
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain).into()));
            }
            let (piece, len) =
                placeholder(&text[begin + 2..]).map_err(|fault| TemplateError { offset: begin, fault })?;
            pieces.push(piece);
            at = begin + 2 + len;
        }
        plain.push_str(&text[at..]);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain.into()));
        }
        Ok(Self { text: text.into(), pieces: pieces.into() })
    }

    /// Returns whether the template has no placeholders.
    pub fn is_constant(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// Renders an output. Strings and bytes are written as they are, arrays and objects as JSON.
    ///
    /// # Errors
    /// A value that is not optional is missing, or the result is too large.
    pub fn render(&self, output: &Value, limits: &Limits) -> Result<Vec<u8>, RenderError> {
        let max = limits.rendered_bytes;
        let mut out = Vec::with_capacity(self.text.len().min(max));
        let mut finder = Finder::new(output, limits);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => append(text.as_bytes(), &mut out, max)?,
                Piece::Whole => append_json(output, &mut out, max)?,
                Piece::Path { parts, text, is_optional } => {
                    finder.find(parts, text, *is_optional)?.append_to(&mut out, max)?;
                }
            }
        }
        Ok(out)
    }

    /// Returns the parts in their order.
    pub fn parts(&self) -> impl Iterator<Item = TemplatePart<'_>> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => TemplatePart::Text(text),
            Piece::Whole => TemplatePart::Placeholder { path: ".", is_optional: false },
            Piece::Path { text, is_optional, .. } => {
                TemplatePart::Placeholder { path: text, is_optional: *is_optional }
            }
        })
    }

    /// Returns the values of the placeholders in their order. Only the value of an optional one can be null.
    ///
    /// # Errors
    /// A value that is not optional is missing.
    pub fn values(&self, output: &Value, limits: &Limits) -> Result<Vec<Value>, RenderError> {
        let mut finder = Finder::new(output, limits);
        let mut values = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(_) => {}
                Piece::Whole => values.push(output.clone()),
                Piece::Path { parts, text, is_optional } => {
                    values.push(finder.find(parts, text, *is_optional)?);
                }
            }
        }
        Ok(values)
    }
}

impl Value {
    /// Appends the value as templates write it: strings and bytes as they are, nothing for null, others as JSON.
    /// `out` gets at most `max` bytes in all.
    ///
    /// # Errors
    /// The result is too large, or JSON cannot express a part of the value.
    pub fn append_to(&self, out: &mut Vec<u8>, max: usize) -> Result<(), RenderError> {
        match self {
            Self::Null => Ok(()),
            Self::Text(text) => append(text.as_bytes(), out, max),
            Self::Bytes(bytes) => append(bytes, out, max),
            other => append_json(other, out, max),
        }
    }
}

fn append(bytes: &[u8], out: &mut Vec<u8>, max: usize) -> Result<(), RenderError> {
    if out.len().saturating_add(bytes.len()) > max {
        return Err(RenderError::TooLarge { max });
    }
    out.extend_from_slice(bytes);
    Ok(())
}

fn append_json(value: &Value, out: &mut Vec<u8>, max: usize) -> Result<(), RenderError> {
    json::encode(value, out, max).map_err(|error| match error {
        EncodeError::NoForm => RenderError::BytesInJson,
        EncodeError::TooLarge => RenderError::TooLarge { max },
    })
}

/// Parses a placeholder after `${`. Returns it and its length with `}`.
fn placeholder(text: &str) -> Result<(Piece, usize), TemplateFault> {
    let mut is_quoted = false;
    let end = text.find(|c| {
        is_quoted ^= c == '\'';
        c == '}' && !is_quoted
    });
    let end = end.ok_or(TemplateFault::Open)?;
    let inner = &text[..end];
    let piece = if inner == "." {
        Piece::Whole
    } else {
        let (path, is_optional) = inner.strip_suffix('?').map_or((inner, false), |path| (path, true));
        let parts = path_text::parse(path).ok_or_else(|| TemplateFault::Placeholder(shown(inner)))?;
        Piece::Path { parts: parts.into(), text: path.into(), is_optional }
    };
    Ok((piece, end + 1))
}

/// Finds the values of placeholders in an output.
struct Finder<'a> {
    output: &'a Value,
    meter: Meter,
    /// The string that was decoded last, and its value; null when it is not JSON.
    decoded: Option<(std::sync::Arc<str>, Value)>,
}

impl<'a> Finder<'a> {
    fn new(output: &'a Value, limits: &Limits) -> Self {
        Self { output, meter: Meter::new(limits, &Context::default()), decoded: None }
    }

    fn find(&mut self, parts: &[Part], text: &str, is_optional: bool) -> Result<Value, RenderError> {
        let value = self.descend(parts)?;
        if value.is_null() && !is_optional {
            return Err(RenderError::Missing { path: text.into() });
        }
        Ok(value)
    }

    /// The value of a path. A string on the way is decoded as JSON, so that `${payload.x}` works with a whole payload.
    fn descend(&mut self, parts: &[Part]) -> Result<Value, RenderError> {
        if let Some(value) = descend(self.output, parts) {
            return Ok(value.clone());
        }
        let mut value = self.output.clone();
        for part in parts {
            if let Value::Text(text) = &value {
                let is_known =
                    self.decoded.as_ref().is_some_and(|(known, _)| std::sync::Arc::ptr_eq(known, text));
                if !is_known {
                    let decoded =
                        match json::decode(&mut self.meter, "template", text.as_bytes(), &Wanted::All) {
                            Ok(decoded) => decoded,
                            Err(EvalError::NotJson { .. }) => Value::Null,
                            Err(error) => return Err(RenderError::Limit(error)),
                        };
                    self.decoded = Some((text.clone(), decoded));
                }
                value = self.decoded.as_ref().map(|(_, decoded)| decoded.clone()).unwrap_or_default();
            }
            match descend(&value, std::slice::from_ref(part)) {
                Some(inner) => value = inner.clone(),
                None => return Ok(Value::Null),
            }
        }
        Ok(value)
    }
}

impl RenderError {
    /// Short name for counters.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::TooLarge { .. } => "too_large",
            Self::BytesInJson => "bytes_in_json",
            Self::Limit(error) => error.reason(),
            Self::Unfit { .. } => "unfit",
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            TemplateFault::TooLong { size, max } => {
                write!(f, "the template has {size} bytes, and the maximum is {max}")
            }
            TemplateFault::Open => write!(
                f,
                "the placeholder after {} bytes has no closing brace; write $${{ for the characters ${{",
                self.offset
            ),
            TemplateFault::Placeholder(text) => write!(
                f,
                "`${{{text}}}` after {} bytes is not a placeholder; write ${{name}}, ${{a.b}}, ${{a[1]}}, ${{a?}} or ${{.}}",
                self.offset
            ),
        }
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => {
                write!(f, "the output has no `{path}`; write ${{{path}?}} if it may be missing")
            }
            Self::TooLarge { max } => write!(f, "the rendered template has more than {max} bytes"),
            Self::BytesInJson => f.write_str(
                "a value is bytes that are not UTF-8, which JSON cannot express; use base64_encode in the rule",
            ),
            Self::Limit(error) => write!(f, "decoding a string as JSON: {error}"),
            Self::Unfit { what, why } => write!(f, "{what} {why}"),
        }
    }
}

impl std::error::Error for TemplateError {}
impl std::error::Error for RenderError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Template {
        Template::parse(text, &Limits::default()).unwrap()
    }

    #[test]
    fn parts_are_texts_and_placeholders_in_their_order() {
        use TemplatePart::{Placeholder, Text};
        let template = parse("a$${b}${c.d?}${.} e${f[1]}");
        assert_eq!(
            template.parts().collect::<Vec<_>>(),
            [
                Text("a${b}"),
                Placeholder { path: "c.d", is_optional: true },
                Placeholder { path: ".", is_optional: false },
                Text(" e"),
                Placeholder { path: "f[1]", is_optional: false },
            ]
        );
    }

    #[test]
    fn values_keep_their_type_and_only_optional_ones_are_null() {
        let output = Value::object([("n", Value::Int(7)), ("payload", r#"{"t":1.5,"on":true}"#.into())]);
        let limits = Limits::default();
        let values = |text| parse(text).values(&output, &limits);
        assert_eq!(
            values("${n},${payload.t}${payload.on} ${x?}${payload.x?}"),
            Ok(vec![Value::Int(7), Value::Float(1.5), Value::Bool(true), Value::Null, Value::Null])
        );
        assert_eq!(values("constant"), Ok(vec![]));
        assert_eq!(values("${.}"), Ok(vec![output.clone()]));
        assert_eq!(values("${x?} ${payload.x}"), Err(RenderError::Missing { path: "payload.x".into() }));
    }
}
