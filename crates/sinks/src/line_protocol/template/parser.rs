//! Parser of templates of lines.

use rules::{Limits, Template, TemplatePart};

use super::{Field, LineTemplate, Piece, Text};

impl LineTemplate {
    /// # Errors
    /// A sentence about the template.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, String> {
        let template = Template::parse(text.trim(), limits).map_err(|error| error.to_string())?;
        let mut tokens = Vec::new();
        let mut is_optional = Vec::new();
        for part in template.parts() {
            match part {
                TemplatePart::Text(text) => tokens.extend(text.chars().map(Token::Char)),
                TemplatePart::Placeholder { is_optional: optional, .. } => {
                    tokens.push(Token::Hole(is_optional.len()));
                    is_optional.push(optional);
                }
            }
        }
        if tokens.contains(&Token::Char('\n')) || tokens.contains(&Token::Char('\r')) {
            return Err("has several lines: write one line".to_owned());
        }
        if ends_in_escape_before_a_hole(&tokens) {
            return Err(
                "has a backslash right before a placeholder, whose values are escaped anyway".to_owned()
            );
        }
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let (measurement, tags) = parser.series()?;
        let fields = parser.fields()?;
        let timestamp = parser.timestamp()?;
        Ok(Self { template, is_optional: is_optional.into(), measurement, tags, fields, timestamp })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Char(char),
    /// A placeholder with this index.
    Hole(usize),
}

/// Returns whether a backslash would escape the first character of a value, or the backslash before it.
fn ends_in_escape_before_a_hole(tokens: &[Token]) -> bool {
    let mut is_escaped = false;
    for token in tokens {
        match token {
            Token::Hole(_) if is_escaped => return true,
            token => is_escaped = !is_escaped && *token == Token::Char('\\'),
        }
    }
    false
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<Token> {
        self.tokens.get(self.at).copied()
    }

    fn skip(&mut self, c: char) -> bool {
        let is_next = self.peek() == Some(Token::Char(c));
        self.at += usize::from(is_next);
        is_next
    }

    fn skip_spaces(&mut self) {
        while self.skip(' ') {}
    }

    /// Reads up to one of `ends` that is not escaped, or up to the end.
    fn text(&mut self, ends: &[char]) -> Text {
        let mut text = Text::default();
        while let Some(token) = self.peek() {
            match token {
                Token::Char(c) if ends.contains(&c) => break,
                Token::Char('\\') => {
                    text.push('\\');
                    self.at += 1;
                    if let Some(Token::Char(escaped)) = self.peek() {
                        text.push(escaped);
                        self.at += 1;
                    }
                    continue;
                }
                Token::Char(c) => text.push(c),
                Token::Hole(index) => text.0.push(Piece::Hole(index)),
            }
            self.at += 1;
        }
        text
    }

    fn series(&mut self) -> Result<(Text, Vec<(Text, Text)>), String> {
        let measurement = self.text(&[',', ' ']);
        if measurement.0.is_empty() || measurement.starts_with('#') {
            return Err(format!("has no measurement at its beginning: {FORM}"));
        }
        let mut tags = Vec::new();
        while self.skip(',') {
            let key = self.key("tag")?;
            let value = self.text(&[',', ' ', '=']);
            if value.0.is_empty() || self.peek() == Some(Token::Char('=')) {
                return Err(format!("the tag `{}` has no value, or a second `=`: {FORM}", key.shown()));
            }
            tags.push((key, value));
        }
        Ok((measurement, tags))
    }

    fn key(&mut self, kind: &str) -> Result<Text, String> {
        let key = self.text(&['=', ',', ' ']);
        if key.0.is_empty() || !self.skip('=') {
            return Err(format!("`{}` is not a {kind}, which has the form KEY=VALUE: {FORM}", key.shown()));
        }
        Ok(key)
    }

    fn fields(&mut self) -> Result<Vec<(Text, Field)>, String> {
        self.skip_spaces();
        if self.peek().is_none() {
            return Err(format!("has no field: {FORM}"));
        }
        let mut fields = Vec::new();
        loop {
            let key = self.key("field")?;
            let field = if self.skip('"') {
                let text = self.text(&['"']);
                if !self.skip('"') {
                    return Err(format!("the field `{}` has no closing quotation mark", key.shown()));
                }
                Field::Quoted(text)
            } else {
                let text = self.text(&[',', ' ']);
                text.as_field().ok_or_else(|| {
                    format!(
                        "the field `{0}` is neither a number, a boolean, nor one placeholder: write \
                         {0}=\"...\" for a text",
                        key.shown()
                    )
                })?
            };
            fields.push((key, field));
            if !self.skip(',') {
                return Ok(fields);
            }
        }
    }

    fn timestamp(&mut self) -> Result<Option<Text>, String> {
        if self.peek().is_some() && !self.skip(' ') {
            return Err(format!("has text after the value of a field: {FORM}"));
        }
        self.skip_spaces();
        let text = self.text(&[' ']);
        if self.peek().is_some() {
            return Err(format!("has text after its timestamp: {FORM}"));
        }
        let is_wrong = text.0.iter().any(|piece| match piece {
            Piece::Raw(raw) => raw.parse::<i64>().is_err(),
            Piece::Hole(_) => false,
        });
        match text.0.is_empty() {
            _ if is_wrong => Err(format!("its timestamp `{}` is not an integer", text.shown())),
            true => Ok(None),
            false => Ok(Some(text)),
        }
    }
}

impl Text {
    fn push(&mut self, c: char) {
        match self.0.last_mut() {
            Some(Piece::Raw(raw)) => raw.push(c),
            _ => self.0.push(Piece::Raw(c.to_string())),
        }
    }

    fn starts_with(&self, c: char) -> bool {
        matches!(self.0.first(), Some(Piece::Raw(raw)) if raw.starts_with(c))
    }

    fn shown(&self) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Raw(raw) => raw.as_str(),
            Piece::Hole(_) => "${...}",
        });
        pieces.collect()
    }

    /// Value of a field without quotation marks.
    fn as_field(&self) -> Option<Field> {
        match self.0.as_slice() {
            [Piece::Hole(index)] => Some(Field::Typed(*index)),
            [Piece::Hole(index), Piece::Raw(suffix)] if suffix == "i" => Some(Field::Integer(*index)),
            [Piece::Hole(index), Piece::Raw(suffix)] if suffix == "u" => Some(Field::Unsigned(*index)),
            [Piece::Raw(text)] if is_constant(text) => Some(Field::Constant(text.clone())),
            _ => None,
        }
    }
}

fn is_constant(text: &str) -> bool {
    let is_boolean = ["t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE"].contains(&text);
    let is_integer = text.strip_suffix('i').is_some_and(|number| number.parse::<i64>().is_ok())
        || text.strip_suffix('u').is_some_and(|number| number.parse::<u64>().is_ok());
    let is_float = text.parse::<f64>().is_ok_and(f64::is_finite);
    is_boolean || is_integer || is_float
}

const FORM: &str = "write MEASUREMENT,TAG=VALUE FIELD=VALUE TIMESTAMP, such as \
                    `weather,site=${clientid} temp=${payload.temp} ${timestamp}`";
