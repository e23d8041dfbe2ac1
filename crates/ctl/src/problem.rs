//! Errors of the API: RFC 9457 problem documents.

use serde_json::{Value, json};

/// A problem that the server reports. Its texts are the server's: escape them before printing.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// HTTP status of the answer.
    pub status: u16,
    /// Short name of the kind, the last part of `type`: `not-found`.
    pub slug: String,
    pub title: String,
    pub detail: String,
    /// Wrong fields: name, and fault.
    pub errors: Vec<(String, String)>,
    /// Seconds to wait before the next try.
    pub retry_after_s: Option<u64>,
    /// The document as received.
    pub document: Value,
}

impl Problem {
    /// Reads the body of an error answer. `None` when it is no problem document: then the server is not this API.
    pub fn read(status: u16, retry_after_s: Option<u64>, body: &[u8]) -> Option<Self> {
        let document: Value = serde_json::from_slice(body).ok()?;
        let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
        let slug = document["type"].as_str()?.rsplit(':').next()?.to_owned();
        let errors = document["errors"].as_array().map_or(&[][..], |errors| errors);
        let errors = errors
            .iter()
            .map(|error| {
                let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
                (text("name"), text("detail"))
            })
            .collect();
        let (title, detail) = (text("title"), text("detail"));
        Some(Self { status, slug, title, detail, errors, retry_after_s, document })
    }

    /// Returns a problem of this program, in the same form.
    pub fn local(slug: &str, title: &str, detail: &str) -> Value {
        json!({"type": format!("urn:meridian:problem:{slug}"), "title": title, "detail": detail})
    }

    /// Returns one sentence.
    pub fn summary(&self) -> String {
        match (&self.detail[..], &self.title[..]) {
            ("", "") => format!("refused with HTTP status {}", self.status),
            ("", title) => title.to_owned(),
            (detail, _) => detail.to_owned(),
        }
    }
}
