//! URLs of requests: the URL of the connector and the rendered `path` of the action.

use rules::{Limits, RenderError, Template, TemplatePart, Value};
use ureq::http::Uri;

use crate::SinkProblem;
use crate::http_client::{Endpoint, has_dot_segment, percent_encode};

/// URL of the requests of an action.
pub enum Path {
    Constant(Uri),
    OfRecord(PathTemplate),
}

/// A template for the text after the URL of the connector. Values are percent-encoded, and cannot change the
/// structure of the path.
pub struct PathTemplate {
    template: Template,
    endpoint: Endpoint,
}

impl Path {
    /// # Errors
    /// The template is wrong.
    pub fn parse(text: &str, endpoint: &Endpoint, limits: &Limits) -> Result<Self, SinkProblem> {
        let problem = |why: String| SinkProblem::new("path", why);
        let template = Template::parse(text, limits).map_err(|error| problem(error.to_string()))?;
        let expected: &[char] = if endpoint.has_query() { &['&'] } else { &['/', '?'] };
        if !text.is_empty() && !text.starts_with(expected) {
            let why = match endpoint.has_query() {
                true => "must begin with `&`, because url of the connector has a query",
                false => "must begin with `/` or `?`",
            };
            return Err(problem(why.to_owned()));
        }
        if text.contains('#') {
            return Err(problem("has `#`, which begins a fragment: write %23".to_owned()));
        }
        let mut example = String::new();
        for part in template.parts() {
            match part {
                TemplatePart::Text(text) => example.push_str(text),
                TemplatePart::Placeholder { .. } if ends_in_escape(&example) => {
                    return Err(problem("has a placeholder within an escape such as %20".to_owned()));
                }
                TemplatePart::Placeholder { .. } => example.push('x'),
            }
        }
        let uri = endpoint.join(&example).map_err(problem)?;
        if has_dot_segment(uri.path()) {
            return Err(problem("has `.` or `..` as a part: write the path that is meant".to_owned()));
        }
        Ok(match template.is_constant() {
            true => Self::Constant(uri),
            false => Self::OfRecord(PathTemplate { template, endpoint: endpoint.clone() }),
        })
    }
}

/// Returns whether the next character belongs to a percent-encoded byte.
fn ends_in_escape(text: &str) -> bool {
    text.bytes().rev().take(2).any(|byte| byte == b'%')
}

impl PathTemplate {
    /// Renders an output. The result makes a URL with [`Self::uri`].
    ///
    /// # Errors
    /// A value is missing, or would change the structure of the path.
    pub fn render(&self, output: &Value, limits: &Limits) -> Result<String, RenderError> {
        let mut values = self.template.values(output, limits)?.into_iter();
        let (mut path, mut plain) = (String::new(), Vec::new());
        for part in self.template.parts() {
            match part {
                TemplatePart::Text(text) => path.push_str(text),
                TemplatePart::Placeholder { path: name, is_optional } => {
                    plain.clear();
                    values.next().unwrap_or_default().append_to(&mut plain, PATH_MAX)?;
                    let is_in_path = !self.endpoint.has_query() && !path.contains('?');
                    if is_in_path && plain.is_empty() && !is_optional {
                        let why = format!(
                            "is empty, and it is a part of the path; write ${{{name}?}} if it may be empty"
                        );
                        return Err(unfit(name, &why));
                    }
                    if is_in_path && has_dot_segment(&String::from_utf8_lossy(&plain)) {
                        return Err(unfit(
                            name,
                            "is `.` or `..`, or has such a part, and it is a part of the path",
                        ));
                    }
                    percent_encode(&plain, &mut path);
                }
            }
            if path.len() > PATH_MAX {
                return Err(RenderError::TooLarge { max: PATH_MAX });
            }
        }
        // Values can also make such a part together.
        if has_dot_segment(path.split('?').next().unwrap_or_default()) {
            return Err(unfit("path", "has `.` or `..` as a part"));
        }
        Ok(path)
    }

    /// # Errors
    /// A sentence.
    pub fn uri(&self, path: &str) -> Result<Uri, String> {
        self.endpoint.join(path)
    }
}

fn unfit(name: &str, why: &str) -> RenderError {
    RenderError::Unfit { what: format!("`{name}`").into(), why: why.into() }
}

/// Maximum size of a rendered path. Servers refuse more than about as much.
const PATH_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::ConnectorSettings;

    fn parse(url: &str, path: &str) -> Result<Path, SinkProblem> {
        let connector = ConnectorSettings { url: Some(url.to_owned()), ..ConnectorSettings::default() };
        Path::parse(path, &Endpoint::check(&connector).expect("a URL"), &Limits::default())
    }

    fn render(path: &str, value: &str) -> Result<String, RenderError> {
        let output = Value::object([("v", Value::from(value)), ("dot", ".".into())]);
        match parse("http://h", path).expect("a path") {
            Path::OfRecord(template) => {
                let path = template.render(&output, &Limits::default())?;
                assert_eq!(template.uri(&path).expect("a URL").host(), Some("h"), "{path}");
                Ok(path)
            }
            Path::Constant(uri) => Ok(uri.to_string()),
        }
    }

    #[test]
    fn values_cannot_change_the_structure_of_a_path() {
        for (path, value, expected) in [
            ("/d/${v}/x", "a-b_c.d~1", Some("/d/a-b_c.d~1/x")),
            ("/d/${v}/x", "a/b?c#d&e=%2F", Some("/d/a%2Fb%3Fc%23d%26e%3D%252F/x")),
            ("/d/${v}", "@evil:80", Some("/d/%40evil%3A80")),
            ("/d/${v}", "ä\r\n", Some("/d/%C3%A4%0D%0A")),
            ("/d/${v}", "...", Some("/d/...")),
            ("/d/${v}/x", "..", None),
            ("/d/${v}/x", ".", None),
            ("/d/${v}/x", "../../admin", None),
            ("/d/${v}/x", "a/..", None),
            ("/d/${v}/x", "..\\a", None),
            ("/d/${v}/x", "%2e%2E", None),
            ("/d/.${v}/x", ".", None),
            ("/d/${dot}${v}/x", ".", None),
            ("/d/${v}", "", None),
            ("/d/${v?}", "", Some("/d/")),
            ("/d/${none?}", "", Some("/d/")),
            ("/d/${none}", "", None),
            ("/d?q=${v}", "..", Some("/d?q=..")),
            ("/d?q=${v}", "", Some("/d?q=")),
            ("/d?q=${v}", "a&b=c", Some("/d?q=a%26b%3Dc")),
        ] {
            assert_eq!(render(path, value).ok().as_deref(), expected, "{path} {value}");
        }
        assert!(matches!(render("/${v}", &"ä".repeat(PATH_MAX)), Err(RenderError::TooLarge { .. })));
        assert_eq!(render("/constant/", "").unwrap(), "http://h/constant/");
    }

    #[test]
    fn a_wrong_path_is_explained() {
        for (url, path, says) in [
            ("http://h", "x", "must begin with `/`"),
            ("http://h", "${v}", "must begin with `/`"),
            ("http://h", "@evil/", "must begin with `/`"),
            ("http://h?k=1", "/x", "must begin with `&`"),
            ("http://h", "/a#b", "fragment"),
            ("http://h", "/a b", "does not make a URL"),
            ("http://h", "/a/../b", "`..`"),
            ("http://h", "/%2e./b", "`..`"),
            ("http://h", "/%${v}", "escape"),
            ("http://h", "/%2${v}", "escape"),
            ("http://h", "/${v", "no closing brace"),
        ] {
            let Err(problem) = parse(url, path) else { panic!("{path}") };
            assert!(problem.setting == "path" && problem.why.contains(says), "{path}: {problem}");
        }
        assert!(parse("http://h?k=1", "&v=${v}").is_ok() && parse("http://h/a", "").is_ok());
    }
}
