//! Headers of an action: a line `NAME: TEMPLATE` for each.

use rules::{Limits, RenderError, Template, Value};
use ureq::http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::SinkProblem;

/// Headers of the requests of an action.
#[derive(Default)]
pub struct Headers {
    pub constant: HeaderMap,
    pub of_record: Vec<(HeaderName, Template)>,
}

impl Headers {
    /// # Errors
    /// A line is wrong.
    pub fn parse(text: &str, limits: &Limits) -> Result<Self, SinkProblem> {
        let mut headers = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            headers.add(line, limits).map_err(|why| SinkProblem::new("headers", why))?;
        }
        Ok(headers)
    }

    fn add(&mut self, line: &str, limits: &Limits) -> Result<(), String> {
        let (name, template) = line
            .split_once(':')
            .ok_or_else(|| format!("`{}` has no colon: write NAME: TEMPLATE", line.escape_debug()))?;
        let name: HeaderName = name
            .trim()
            .parse()
            .map_err(|_| format!("`{}` is not the name of a header", name.trim().escape_debug()))?;
        if OURS.contains(&name) || name.as_str().starts_with("proxy-") {
            return Err(format!("`{name}` is set by the client itself: remove the line"));
        }
        if self.contains(&name) {
            return Err(format!("`{name}` is there twice: write one line, with commas between its values"));
        }
        let template =
            Template::parse(template.trim(), limits).map_err(|error| format!("`{name}`: {error}"))?;
        if template.is_constant() {
            let value = render(&name, &template, &Value::Null, limits).map_err(|error| error.to_string())?;
            self.constant.insert(name, value);
        } else {
            self.of_record.push((name, template));
        }
        Ok(())
    }

    pub fn contains(&self, name: &HeaderName) -> bool {
        self.constant.contains_key(name) || self.of_record.iter().any(|(other, _)| other == name)
    }
}

/// Renders the value of a header.
///
/// # Errors
/// A value is missing, or contains characters that are not allowed in headers.
pub fn render(
    name: &HeaderName,
    template: &Template,
    output: &Value,
    limits: &Limits,
) -> Result<HeaderValue, RenderError> {
    let limits = Limits { rendered_bytes: limits.rendered_bytes.min(VALUE_MAX), ..*limits };
    let bytes = template.render(output, &limits)?;
    let unfit = || RenderError::Unfit {
        what: format!("the header `{name}`").into(),
        why:
            "would contain a line end or another control character; use replace or base64_encode in the rule"
                .into(),
    };
    if bytes.iter().any(u8::is_ascii_control) {
        return Err(unfit());
    }
    HeaderValue::from_bytes(&bytes).map_err(|_| unfit())
}

/// Headers that determine the length, the connection or the destination of a request.
const OURS: [HeaderName; 8] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::EXPECT,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
];
/// Maximum size of a value. Servers refuse more than about as much.
const VALUE_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_line_is_explained() {
        for (text, says) in [
            ("X-A", "`X-A` has no colon"),
            ("X A: b", "`X A` is not the name"),
            (": b", "is not the name"),
            ("Host: evil", "`host` is set by"),
            ("content-length: 1", "`content-length` is set by"),
            ("Transfer-Encoding: chunked", "is set by"),
            ("Connection: close", "is set by"),
            ("Proxy-Authorization: x", "is set by"),
            ("X-A: 1\n\nx-a: 2", "`x-a` is there twice"),
            ("X-A: ${", "no closing brace"),
            ("X-A: a\u{7f}b", "control character"),
            ("X-A: a\tb", "control character"),
        ] {
            let Err(problem) = Headers::parse(text, &Limits::default()) else { panic!("{text:?}") };
            assert!(problem.setting == "headers" && problem.why.contains(says), "{text:?}: {problem}");
        }
        let headers = Headers::parse(" X-A: b:c \r\n\r\nX-B:${v}\n", &Limits::default()).unwrap();
        assert_eq!(headers.constant["x-a"], "b:c");
        assert!(headers.contains(&"x-b".parse().unwrap()) && headers.of_record.len() == 1);
    }

    #[test]
    fn values_cannot_add_headers() {
        let headers = Headers::parse("X-A: <${v}>", &Limits::default()).unwrap();
        let (name, template) = &headers.of_record[0];
        let render = |value: &[u8]| {
            let output = Value::object([("v", Value::of_bytes(value))]);
            render(name, template, &output, &Limits::default())
        };
        assert_eq!(render("ä b".as_bytes()).unwrap().as_bytes(), "<ä b>".as_bytes());
        assert_eq!(render(&[0xff]).unwrap().as_bytes(), b"<\xff>");
        for bad in ["a\r\nX-Evil: 1", "a\n b", "\0", "\x7f", "\t"] {
            let error = render(bad.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("the header `x-a` would contain"), "{error}");
            assert_eq!(error.reason(), "unfit");
        }
        assert!(matches!(render(&[b'a'; VALUE_MAX]), Err(RenderError::TooLarge { .. })));
    }
}
