//! Templates of lines: `MEASUREMENT[,TAG=VALUE...] FIELD=VALUE[,FIELD=VALUE...] [TIMESTAMP]`.
//!
//! A template is parsed once. Each placeholder is escaped for its position, so that a value never ends its
//! position or its line.

mod parser;

use rules::{Limits, RenderError, Template, Value};

/// A parsed template.
#[derive(Debug)]
pub struct LineTemplate {
    template: Template,
    /// True at the indexes of optional placeholders.
    is_optional: Box<[bool]>,
    measurement: Text,
    tags: Vec<(Text, Text)>,
    fields: Vec<(Text, Field)>,
    timestamp: Option<Text>,
}

/// Texts and placeholders of one position, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    /// Text in the form of line protocol.
    Raw(String),
    /// Index of a placeholder.
    Hole(usize),
}

/// Value of a field.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    /// A number or a boolean.
    Constant(String),
    /// `"..."`
    Quoted(Text),
    /// `${x}`, written by its type.
    Typed(usize),
    /// `${x}i`
    Integer(usize),
    /// `${x}u`
    Unsigned(usize),
}

impl LineTemplate {
    /// Renders an output as one line, without a line feed.
    ///
    /// # Errors
    /// A value is missing, has no form in its position, or no field is left.
    pub fn render(&self, output: &Value, limits: &Limits) -> Result<Vec<u8>, RenderError> {
        let values = self.template.values(output, limits)?;
        let line = Line { template: self, values: &values, max: limits.rendered_bytes };
        let measurement = line.text(&self.measurement, Escape::Measurement)?.filter(|text| !text.is_empty());
        let mut out = measurement.ok_or_else(|| unfit("the measurement", "is empty"))?;
        if out.starts_with(b"#") {
            return Err(unfit("the measurement", "begins with `#`, which begins a comment"));
        }
        for (key, value) in &self.tags {
            let Some(value) = line.text(value, Escape::Key)?.filter(|text| !text.is_empty()) else {
                continue;
            };
            out.push(b',');
            out.extend_from_slice(&line.key(key, "tag")?);
            out.push(b'=');
            out.extend_from_slice(&value);
        }
        let mut separator = b' ';
        for (key, field) in &self.fields {
            let Some(value) = line.field(key, field)? else { continue };
            out.push(separator);
            out.extend_from_slice(&line.key(key, "field")?);
            out.push(b'=');
            out.extend_from_slice(&value);
            separator = b',';
        }
        if separator == b' ' {
            return Err(unfit("the line", "has no field, because all values are missing"));
        }
        if let Some(timestamp) =
            self.timestamp.as_ref().map(|text| line.timestamp(text)).transpose()?.flatten()
        {
            out.push(b' ');
            out.extend_from_slice(&timestamp);
        }
        if out.len() > limits.rendered_bytes {
            return Err(RenderError::TooLarge { max: limits.rendered_bytes });
        }
        Ok(out)
    }
}

/// One rendering.
struct Line<'a> {
    template: &'a LineTemplate,
    values: &'a [Value],
    max: usize,
}

#[derive(Clone, Copy)]
enum Escape {
    Measurement,
    /// Keys, and values of tags.
    Key,
    Quoted,
    /// Numbers.
    None,
}

impl Line<'_> {
    fn value(&self, index: usize) -> &Value {
        self.values.get(index).unwrap_or(&Value::Null)
    }

    /// Returns whether the value may be missing, and is.
    fn is_missing(&self, index: usize) -> bool {
        self.value(index).is_null() && self.template.is_optional.get(index).copied().unwrap_or_default()
    }

    /// Renders a text; `None` when an optional value in it is missing.
    fn text(&self, text: &Text, escape: Escape) -> Result<Option<Vec<u8>>, RenderError> {
        let mut out = Vec::new();
        let mut plain = Vec::new();
        for piece in &text.0 {
            match piece {
                Piece::Raw(raw) => out.extend_from_slice(raw.as_bytes()),
                Piece::Hole(index) if self.is_missing(*index) => return Ok(None),
                Piece::Hole(index) => {
                    plain.clear();
                    self.value(*index).append_to(&mut plain, self.max)?;
                    let text = std::str::from_utf8(&plain).map_err(|_| {
                        unfit("a value", "is bytes that are not UTF-8; use base64_encode in the rule")
                    })?;
                    write_escaped(text, escape, &mut out);
                }
            }
        }
        // InfluxDB takes the separator after a backslash for text, also when the backslash is escaped.
        if matches!(escape, Escape::Measurement | Escape::Key) && out.ends_with(b"\\") {
            return Err(unfit(
                "a measurement, key or tag",
                "ends with a backslash, which line protocol cannot express",
            ));
        }
        Ok(Some(out))
    }

    fn key(&self, key: &Text, kind: &str) -> Result<Vec<u8>, RenderError> {
        let key = self.text(key, Escape::Key)?.filter(|text| !text.is_empty());
        key.ok_or_else(|| unfit(&format!("the key of a {kind}"), "is empty"))
    }

    /// Renders a field; `None` when its value is optional and missing.
    fn field(&self, key: &Text, field: &Field) -> Result<Option<Vec<u8>>, RenderError> {
        match field {
            Field::Constant(text) => Ok(Some(text.clone().into_bytes())),
            Field::Quoted(text) => Ok(self.text(text, Escape::Quoted)?.map(|text| quoted(&text))),
            Field::Typed(index) | Field::Integer(index) | Field::Unsigned(index)
                if self.is_missing(*index) =>
            {
                Ok(None)
            }
            Field::Typed(index) => match self.value(*index) {
                Value::Int(_) | Value::Float(_) | Value::Bool(_) => {
                    self.text(&Text(vec![Piece::Hole(*index)]), Escape::None)
                }
                _ => {
                    let text = self.text(&Text(vec![Piece::Hole(*index)]), Escape::Quoted)?;
                    Ok(text.map(|text| quoted(&text)))
                }
            },
            Field::Integer(index) => self.integer(key, *index, 'i').map(Some),
            Field::Unsigned(index) => self.integer(key, *index, 'u').map(Some),
        }
    }

    fn integer(&self, key: &Text, index: usize, suffix: char) -> Result<Vec<u8>, RenderError> {
        let found = integer(self.value(index)).filter(|number| suffix == 'i' || *number >= 0);
        let number = found.ok_or_else(|| {
            let key = self.key(key, "field").unwrap_or_default();
            let kind = if suffix == 'i' { "an integer" } else { "an integer from 0" };
            unfit(
                &format!("the field `{}`", String::from_utf8_lossy(&key)),
                &format!("is not {kind}, as the suffix `{suffix}` in the template says"),
            )
        })?;
        Ok(format!("{number}{suffix}").into_bytes())
    }

    fn timestamp(&self, text: &Text) -> Result<Option<Vec<u8>>, RenderError> {
        if let [Piece::Hole(index)] = text.0.as_slice()
            && let Some(number) = integer(self.value(*index))
        {
            return Ok(Some(number.to_string().into_bytes()));
        }
        let Some(rendered) = self.text(text, Escape::None)? else { return Ok(None) };
        let number = std::str::from_utf8(&rendered).ok().and_then(|text| text.parse::<i64>().ok());
        let number = number.ok_or_else(|| unfit("the timestamp", "is not an integer"))?;
        Ok(Some(number.to_string().into_bytes()))
    }
}

/// Returns the integer in an integer, in a float without a fraction, or in a string.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        // The comparison is exact: 2^63 is a float.
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9_223_372_036_854_775_808.0 => {
            Some(*number as i64)
        }
        Value::Text(text) => text.parse().ok(),
        _ => None,
    }
}

fn quoted(text: &[u8]) -> Vec<u8> {
    [b"\"", text, b"\""].concat()
}

/// Appends a value. Line ends become `\n` and `\r`, because no position can contain them.
fn write_escaped(text: &str, escape: Escape, out: &mut Vec<u8>) {
    for c in text.chars() {
        match (c, escape) {
            ('\n', _) => {
                out.extend_from_slice(b"\\n");
                continue;
            }
            ('\r', _) => {
                out.extend_from_slice(b"\\r");
                continue;
            }
            ('\\', Escape::Measurement | Escape::Key | Escape::Quoted)
            | (',' | ' ', Escape::Measurement | Escape::Key)
            | ('=', Escape::Key)
            | ('"', Escape::Quoted) => out.push(b'\\'),
            _ => {}
        }
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

fn unfit(what: &str, why: &str) -> RenderError {
    RenderError::Unfit { what: what.into(), why: why.into() }
}

#[cfg(test)]
mod tests;
