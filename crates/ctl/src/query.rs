//! Paths and query strings, percent-encoded.

use std::fmt::Write as _;

/// A query, `?name=value&..`, in the order of adding.
#[derive(Clone, Debug, Default)]
pub struct Query(String);

impl Query {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&encode(&value.to_string()));
        self
    }

    /// Adds a parameter; nothing for `None`.
    #[must_use]
    pub fn maybe(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Encodes one segment of a path, or a value of a query. Everything but unreserved characters is escaped, including
/// `/`.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~.".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    // A segment of dots alone would be a step in the path. Some proxies treat even the encoded form as one; the node
    // does not.
    match &encoded[..] {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => encoded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_characters_are_escaped() {
        assert_eq!(encode("a/b c+#é.~"), "a%2Fb%20c%2B%23%C3%A9.~");
        assert_eq!(encode(".."), "%2E%2E");
        let query = Query::new().with("limit", 5).maybe("x", None::<u8>).maybe("filter", Some("a/#"));
        assert_eq!(query.as_str(), "?limit=5&filter=a%2F%23");
    }
}
