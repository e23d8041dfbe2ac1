//! The meaning of the status of an answer for the records of its request.
//!
//! | Status | Meaning |
//! |---|---|
//! | 2xx | The records are written. |
//! | 3xx, 401, 402, 405, 407, 411, 415, 421, 423, 426 | The settings are wrong: the records wait for an operator. |
//! | 403, 404, 410 | The URL is wrong. If all records have the same, they wait; otherwise it is refused. |
//! | 408, 425, 429, 5xx with `Retry-After` | The server is busy: the records wait. |
//! | other 5xx | The server has a fault, perhaps because of a record. |
//! | 409 with `Retry-After` | The server still works on the same request: the records wait. |
//! | other 4xx | The server refuses the records. |
//! | others | The server does not speak HTTP as expected: the records wait. |

use ureq::http::header::{self, HeaderName};

use super::{Answer, one_line};
use crate::record::WriteError;

/// Dependence of the URL of a request on its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Constant,
    OfRecord,
}

/// Returns whether the records are written.
///
/// # Errors
/// They are not, as the table of this module says. The text begins with `url`.
pub fn check(answer: &Answer, address: Address, url: &str) -> Result<(), WriteError> {
    let status = answer.status;
    let retry = answer.text(header::RETRY_AFTER);
    let text = |advice: &str| sentence(answer, url, advice);
    let of_address = match address {
        Address::Constant => WriteError::Unavailable,
        Address::OfRecord => WriteError::Refused,
    };
    match status {
        200..=299 => Ok(()),
        300..=399 => Err(WriteError::Unavailable(text(&redirect(answer)))),
        401 | 407 => Err(WriteError::Unavailable(text(CREDENTIALS))),
        // With the value of a message in the URL it may be about that value.
        403 => Err(of_address(text(CREDENTIALS))),
        402 | 411 | 421 | 423 | 426 => {
            Err(WriteError::Unavailable(text("it refuses all requests of this kind")))
        }
        404 | 410 => Err(of_address(text(
            "there is nothing at this URL; check url of the connector and path of the action",
        ))),
        405 => Err(WriteError::Unavailable(text("check method of the action and url of the connector"))),
        415 => Err(WriteError::Unavailable(text("check the header Content-Type in headers of the action"))),
        408 | 425 | 429 => Err(WriteError::Unavailable(text(""))),
        500..=599 if retry.is_some() => Err(WriteError::Unavailable(text(""))),
        500..=599 => Err(WriteError::Failed(text(""))),
        409 if retry.is_some() => Err(WriteError::Unavailable(text(""))),
        400..=499 => Err(WriteError::Refused(text(""))),
        _ => Err(WriteError::Unavailable(text("it is not a status that ends a request"))),
    }
}

const CREDENTIALS: &str = "it does not accept the credentials; check username and password_file, or token_file, of \
                           the connector";

/// Describes any answer: the result of a test of the connection.
pub fn describe(answer: &Answer, url: &str, has_credentials: bool) -> String {
    let advice = match answer.status {
        300..=399 => redirect(answer),
        401 | 403 if has_credentials => "it does not accept the credentials of the connector".to_owned(),
        401 | 403 => "it wants credentials, and the connector has none".to_owned(),
        _ => String::new(),
    };
    let note = if advice.is_empty() { advice } else { format!("; {advice}") };
    format!("{url} answers with HTTP status {}{note}", answer.status)
}

fn sentence(answer: &Answer, url: &str, advice: &str) -> String {
    let mut text = format!("{url} answers with HTTP status {}", answer.status);
    if let Some(retry) = answer.text(header::RETRY_AFTER) {
        text.push_str(&format!(" (Retry-After: {retry})"));
    }
    if !advice.is_empty() {
        text.push_str(&format!(": {advice}"));
    }
    if !answer.excerpt.is_empty() {
        text.push_str(&format!(" [{}]", answer.excerpt));
    }
    text
}

fn redirect(answer: &Answer) -> String {
    match answer.text(header::LOCATION) {
        Some(location) => format!(
            "it redirects to {}, and redirects are not followed; write the new address into url of the \
             connector",
            without_secrets(&location)
        ),
        None => "it redirects, and redirects are not followed; correct url of the connector".to_owned(),
    }
}

/// Returns a URL or a path without user information, query and fragment.
fn without_secrets(location: &str) -> String {
    let end = location.find(['?', '#']).unwrap_or(location.len());
    let plain = &location[..end];
    let Some((scheme, rest)) = plain.split_once("//") else { return plain.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}//{host}{path}")
}

impl Answer {
    /// Returns a header as one line of text.
    pub fn text(&self, name: HeaderName) -> Option<String> {
        let value = self.headers.get(name)?;
        Some(one_line(&String::from_utf8_lossy(value.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use ureq::http::{HeaderMap, HeaderValue};

    use super::*;

    fn answer(status: u16, headers: &[(HeaderName, &'static str)]) -> Answer {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        Answer { status, headers, excerpt: String::new() }
    }

    #[derive(Debug, PartialEq)]
    enum Fate {
        Written,
        Waits,
        Failed,
        Refused,
    }

    fn fate(answer: &Answer, address: Address) -> Fate {
        match check(answer, address, "http://h") {
            Ok(()) => Fate::Written,
            Err(WriteError::Unavailable(_)) => Fate::Waits,
            Err(WriteError::Failed(_)) => Fate::Failed,
            Err(WriteError::Refused(_)) => Fate::Refused,
        }
    }

    #[test]
    fn each_status_has_the_meaning_of_the_table() {
        use Fate::{Failed, Refused, Waits, Written};
        for (statuses, constant, of_record) in [
            (&[200, 201, 202, 204, 206, 299][..], Written, Written),
            (&[300, 301, 302, 303, 304, 307, 308], Waits, Waits),
            (&[403, 404, 410], Waits, Refused),
            (&[401, 402, 405, 407, 411, 415, 421, 423, 426], Waits, Waits),
            (&[408, 425, 429], Waits, Waits),
            (&[500, 501, 502, 503, 504, 507, 599], Failed, Failed),
            (&[400, 406, 409, 412, 413, 414, 416, 422, 431, 451, 499], Refused, Refused),
            (&[101, 199, 600, 999], Waits, Waits),
        ] {
            for status in statuses {
                let answer = answer(*status, &[]);
                assert_eq!(fate(&answer, Address::Constant), constant, "{status}");
                assert_eq!(fate(&answer, Address::OfRecord), of_record, "{status}");
            }
        }
        for status in [409, 503] {
            assert_eq!(fate(&answer(status, &[(header::RETRY_AFTER, "1")]), Address::Constant), Waits);
        }
    }

    #[test]
    fn texts_say_when_to_retry_and_where_a_redirect_leads() {
        let text = |answer: &Answer| check(answer, Address::Constant, "http://h").unwrap_err().to_string();
        let busy = Answer { excerpt: "later".to_owned(), ..answer(503, &[(header::RETRY_AFTER, "120")]) };
        assert_eq!(text(&busy), "http://h answers with HTTP status 503 (Retry-After: 120) [later]");
        for (location, shown) in [
            ("https://u:secret@new.example/a?token=secret#secret", "to https://new.example/a, "),
            ("/login?secret", "to /login, "),
            ("//other/x", "to //other/x, "),
        ] {
            let text = text(&answer(307, &[(header::LOCATION, location)]));
            assert!(text.contains(shown) && !text.contains("secret"), "{text}");
        }
    }
}
