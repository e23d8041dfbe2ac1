//! Requests from templates. Values are quoted for their position, so that no value can end its own part.
//!
//! A body is JSON when it is parsed, and JSON of the same shape when it is rendered. A URL keeps its scheme, host,
//! port, number of path segments and names of query parameters. Values are never searched for placeholders.

use std::fmt::Write as _;
use std::net::IpAddr;

use ureq::http::Uri;
use zeroize::Zeroize;

use crate::web::question::{Field, Kind, Question, Value};

/// Template of a request.
#[derive(Debug)]
pub struct Template {
    url: Vec<Piece>,
    body: Option<Vec<Piece>>,
    /// Placeholders that occur, each once, in order.
    fields: Vec<Field>,
    https: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    /// A separate JSON value: `null` when it is missing.
    Whole(Field),
    /// Part of the text of a JSON string.
    Inside(Field),
    /// Part of a segment of a URL's path.
    Path(Field),
    Query(Field),
}

/// Request to send. Not `Debug`: it may contain a password.
pub struct Rendered {
    pub url: String,
    pub body: Option<Vec<u8>>,
}

impl Drop for Rendered {
    fn drop(&mut self) {
        self.url.zeroize();
        self.body.zeroize();
    }
}

/// A value cannot be expressed at its position: it would change the path, or is a password that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unaskable;

impl Template {
    /// Parses a template. `body` is `None` when no body is sent.
    ///
    /// # Errors
    /// `url` or `body`, and a sentence about its fault.
    pub fn parse(kind: Kind, url: &str, body: Option<&str>) -> Result<Self, (&'static str, String)> {
        let (url, https) = parse_url(kind, url).map_err(|error| ("url", error))?;
        let body = body.map(|text| parse_body(kind, text)).transpose().map_err(|error| ("body", error))?;
        let mut fields: Vec<Field> = url
            .iter()
            .chain(body.iter().flatten())
            .filter_map(|piece| match piece {
                Piece::Text(_) => None,
                Piece::Whole(field) | Piece::Inside(field) | Piece::Path(field) | Piece::Query(field) => {
                    Some(*field)
                }
            })
            .collect();
        fields.sort_unstable();
        fields.dedup();
        Ok(Self { url, body, fields, https })
    }

    /// Returns an object of all placeholders, except the password in Base64.
    pub fn default_body(kind: Kind) -> String {
        let fields = kind.fields().iter().filter(|field| **field != Field::PasswordBase64);
        let members: Vec<String> =
            fields.map(|field| format!("\"{0}\":\"${{{0}}}\"", field.name())).collect();
        format!("{{{}}}", members.join(","))
    }

    /// Returns the placeholders that occur: two questions with the same values for them are equal.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub fn https(&self) -> bool {
        self.https
    }

    /// Returns whether the URL has this placeholder, where servers and proxies may log it.
    pub fn url_has(&self, field: Field) -> bool {
        self.url.contains(&Piece::Path(field)) || self.url.contains(&Piece::Query(field))
    }

    /// # Errors
    /// [`Unaskable`].
    pub fn render(&self, question: &Question<'_>) -> Result<Rendered, Unaskable> {
        let url = render(&self.url, question)?;
        // A segment of two placeholders may become one of these too.
        let path = url.split('?').next().unwrap_or_default();
        if path.split('/').any(|segment| segment == "." || segment == "..") {
            return Err(Unaskable);
        }
        let body = self.body.as_ref().map(|body| render(body, question)).transpose()?;
        Ok(Rendered { url, body: body.map(String::into_bytes) })
    }
}

fn render(pieces: &[Piece], question: &Question<'_>) -> Result<String, Unaskable> {
    let mut out = String::with_capacity(256);
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Whole(field) => match question.value(*field) {
                Value::Absent => out.push_str("null"),
                Value::Text(text) => push_json(&mut out, &text),
                Value::Bytes(bytes) => push_json(&mut out, text_of(bytes)?),
                Value::Number(number) => push(&mut out, format_args!("{number}")),
                Value::Flag(flag) => push(&mut out, format_args!("{flag}")),
            },
            Piece::Inside(field) => match question.value(*field) {
                Value::Absent => {}
                Value::Text(text) => push_escaped(&mut out, &text),
                Value::Bytes(bytes) => push_escaped(&mut out, text_of(bytes)?),
                Value::Number(number) => push(&mut out, format_args!("{number}")),
                Value::Flag(flag) => push(&mut out, format_args!("{flag}")),
            },
            Piece::Path(field) => {
                let value = plain(question.value(*field));
                // An empty value would change the path, and servers differ in their treatment of an encoded slash.
                if value.is_empty() || value.iter().any(|byte| matches!(byte, b'/' | b'\\' | 0)) {
                    return Err(Unaskable);
                }
                push_percent(&mut out, &value);
            }
            Piece::Query(field) => push_percent(&mut out, &plain(question.value(*field))),
        }
    }
    Ok(out)
}

fn text_of(bytes: &[u8]) -> Result<&str, Unaskable> {
    std::str::from_utf8(bytes).map_err(|_| Unaskable)
}

fn plain(value: Value<'_>) -> Vec<u8> {
    match value {
        Value::Absent => Vec::new(),
        Value::Text(text) => text.into_owned().into_bytes(),
        Value::Bytes(bytes) => bytes.to_vec(),
        Value::Number(number) => number.to_string().into_bytes(),
        Value::Flag(flag) => flag.to_string().into_bytes(),
    }
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("writing to a String succeeds");
}

fn push_json(out: &mut String, text: &str) {
    out.push('"');
    push_escaped(out, text);
    out.push('"');
}

/// Appends text between the quotes of a JSON string.
fn push_escaped(out: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Line separators end a line for JavaScript; the others are those that JSON does not allow unescaped.
            '\0'..='\x1f' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                push(out, format_args!("\\u{:04x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
}

/// Appends bytes, and encodes all but the unreserved characters of RFC 3986, 2.3.
fn push_percent(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte))
            }
            _ => push(out, format_args!("%{byte:02X}")),
        }
    }
}

/// Part of a text with placeholders.
enum Part<'a> {
    Text(&'a str),
    Field(Field),
}

fn parts(kind: Kind, text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) =
            after.split_once('}').ok_or_else(|| format!("`${{{after}` has no `}}` at its end"))?;
        let field = kind.fields().iter().find(|field| field.name() == name).ok_or_else(|| {
            let known: Vec<_> = kind.fields().iter().map(|field| format!("${{{}}}", field.name())).collect();
            format!("there is no placeholder `${{{name}}}` here; known are {}", known.join(", "))
        })?;
        if !before.is_empty() {
            found.push(Part::Text(before));
        }
        found.push(Part::Field(*field));
        rest = after;
    }
    if !rest.is_empty() {
        found.push(Part::Text(rest));
    }
    Ok(found)
}

fn parse_body(kind: Kind, text: &str) -> Result<Vec<Piece>, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
        format!(
            "this is not JSON ({error}); placeholders must be inside strings, as in {{\"qos\":\"${{qos}}\"}}"
        )
    })?;
    let mut pieces = Vec::new();
    compile(kind, &value, &mut pieces)?;
    Ok(pieces)
}

fn compile(kind: Kind, value: &serde_json::Value, out: &mut Vec<Piece>) -> Result<(), String> {
    use serde_json::Value as Json;
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => text(out, &value.to_string()),
        Json::String(string) => {
            let found = parts(kind, string)?;
            if let [Part::Field(field)] = found[..] {
                out.push(Piece::Whole(field));
                return Ok(());
            }
            text(out, "\"");
            for part in found {
                match part {
                    Part::Text(part) => {
                        let mut escaped = String::new();
                        push_escaped(&mut escaped, part);
                        text(out, &escaped);
                    }
                    Part::Field(field) => out.push(Piece::Inside(field)),
                }
            }
            text(out, "\"");
        }
        Json::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                text(out, if index == 0 { "[" } else { "," });
                compile(kind, value, out)?;
            }
            text(out, if values.is_empty() { "[]" } else { "]" });
        }
        Json::Object(members) => {
            for (index, (key, value)) in members.iter().enumerate() {
                if key.contains("${") {
                    return Err(format!("`{key}`: a placeholder may be a value, not the name of a member"));
                }
                let mut name = String::new();
                push_json(&mut name, key);
                text(out, &format!("{}{name}:", if index == 0 { "{" } else { "," }));
                compile(kind, value, out)?;
            }
            text(out, if members.is_empty() { "{}" } else { "}" });
        }
    }
    Ok(())
}

/// Appends text, and joins it with preceding text.
fn text(out: &mut Vec<Piece>, more: &str) {
    match out.last_mut() {
        Some(Piece::Text(text)) => text.push_str(more),
        _ => out.push(Piece::Text(more.to_owned())),
    }
}

fn parse_url(kind: Kind, url: &str) -> Result<(Vec<Piece>, bool), String> {
    let (scheme, rest) =
        url.split_once("://").ok_or("it must begin with https://, or http:// for a loopback address")?;
    let https = match scheme {
        "https" => true,
        "http" => false,
        _ => {
            return Err(format!(
                "`{scheme}` is not supported; write https://, or http:// for a loopback address"
            ));
        }
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.contains("${") {
        return Err("placeholders may be in the path and the query, not in the host: otherwise clients could choose the server".into());
    }
    if authority.contains('@') {
        return Err(
            "user and password do not belong in a URL: put an Authorization header into headers_file".into(),
        );
    }
    if target.contains('#') {
        return Err("remove `#` and what follows: a fragment is never sent".into());
    }
    let host = Uri::try_from(format!("{scheme}://{authority}/"))
        .ok()
        .and_then(|uri| uri.host().map(str::to_owned))
        .filter(|host| !host.is_empty())
        .ok_or_else(|| format!("`{authority}` is not a host, or host:port"))?;
    if !https && !loopback(&host) {
        return Err(format!(
            "passwords would cross the network to `{host}` in plain text: write https://, or run the service on a loopback address"
        ));
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut pieces =
        vec![Piece::Text(format!("{scheme}://{authority}{}", if path.is_empty() { "/" } else { "" }))];
    for part in parts(kind, path)? {
        match part {
            Part::Text(part) => text(&mut pieces, part),
            Part::Field(Field::Topic) => {
                return Err(
                    "`${topic}` has slashes and would become several segments of the path: put it into the query"
                        .into(),
                );
            }
            Part::Field(field) => pieces.push(Piece::Path(field)),
        }
    }
    if let Some(query) = query {
        text(&mut pieces, "?");
        for part in parts(kind, query)? {
            match part {
                Part::Text(part) => text(&mut pieces, part),
                Part::Field(field) => pieces.push(Piece::Query(field)),
            }
        }
    }
    // The URL must be valid with a simple value for each placeholder; rendered values contain the same characters only.
    let sample: String = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text,
            _ => "x",
        })
        .collect();
    match Uri::try_from(&sample) {
        Ok(_) if !path.split('/').any(|segment| segment == "." || segment == "..") => Ok((pieces, https)),
        Ok(_) => Err("its path has a segment `.` or `..`: write the resulting path instead".into()),
        Err(error) => Err(format!("this is not a URL ({error}); write spaces and the like as %20")),
    }
}

fn loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
