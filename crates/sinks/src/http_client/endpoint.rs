//! The URL of a connector.

use std::net::IpAddr;

use ureq::http::Uri;

use super::credentials;
use crate::SinkProblem;
use crate::connector::ConnectorSettings;

/// Checked URL, without user information, fragment, and slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    is_https: bool,
    has_query: bool,
}

impl Endpoint {
    /// Checks the settings of a connector that have to do with HTTP, without their files.
    ///
    /// # Errors
    /// The setting that is wrong.
    pub fn check(connector: &ConnectorSettings) -> Result<Self, SinkProblem> {
        let url = connector.url.as_deref().map(str::trim).unwrap_or_default();
        let endpoint = Self::parse(url).map_err(|why| SinkProblem::new("url", why))?;
        credentials::check(connector)?;
        let tls = [
            ("tls_ca", connector.tls_ca.is_some()),
            ("tls_certificate", connector.tls_certificate.is_some()),
            ("tls_key", connector.tls_key.is_some()),
        ];
        if let Some((setting, _)) = tls.into_iter().find(|(_, is_set)| *is_set && !endpoint.is_https) {
            return Err(SinkProblem::new(setting, "has no effect: url must begin with https://"));
        }
        match (&connector.tls_certificate, &connector.tls_key) {
            (Some(_), None) => {
                Err(SinkProblem::new("tls_key", "is missing: write the file with the key of tls_certificate"))
            }
            (None, Some(_)) => Err(SinkProblem::new(
                "tls_certificate",
                "is missing: write the file with the certificate of tls_key",
            )),
            _ => Ok(endpoint),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is missing: write http://HOST[:PORT][/PATH] or https://...".to_owned());
        }
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("is not a URL ({error}): write http://HOST[:PORT][/PATH]"))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("must begin with http:// or https://".to_owned()),
        };
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        if authority.contains('@') {
            return Err("has a user name or password: write them into username and password_file".to_owned());
        }
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || authority.ends_with(':') {
            return Err("has no host, or a colon without a port: write http://HOST[:PORT][/PATH]".to_owned());
        }
        if text.contains('#') {
            return Err("has a fragment (#...), which is never sent: remove it".to_owned());
        }
        if has_dot_segment(uri.path()) {
            return Err("has `.` or `..` as a part of its path: write the path that is meant".to_owned());
        }
        let has_query = uri.query().is_some();
        let text = if has_query { text } else { text.trim_end_matches('/') };
        Ok(Self { text: text.to_owned(), is_https, has_query })
    }

    pub fn is_https(&self) -> bool {
        self.is_https
    }

    pub fn has_query(&self) -> bool {
        self.has_query
    }

    /// Returns the URL with `path`, which begins with `/`, `?` or `&`, or is empty.
    ///
    /// # Errors
    /// A sentence about `path`.
    pub fn join(&self, path: &str) -> Result<Uri, String> {
        format!("{}{path}", self.text).parse().map_err(|error| format!("does not make a URL ({error})"))
    }
}

/// Returns whether a path has a part that servers resolve as "here" or "up".
pub fn has_dot_segment(path: &str) -> bool {
    path.split(['/', '\\']).any(|segment| {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        plain == "." || plain == ".."
    })
}

/// Returns the URL for errors: without its query, which may contain secrets.
pub fn shown(uri: &Uri) -> String {
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let bare = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = if uri.path() == "/" { "" } else { uri.path() };
    format!("{}://{bare}{path}", uri.scheme_str().unwrap_or_default())
}

/// Appends `bytes` with escapes for all but the unreserved characters of RFC 3986.
pub fn percent_encode(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
}

/// Returns the address in the host of a URL; `None` when it is a name.
pub fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_url_is_explained() {
        for (url, expected) in [
            ("http://h", Ok("http://h")),
            ("http://h:8086/", Ok("http://h:8086")),
            ("https://h/a/b/", Ok("https://h/a/b")),
            ("https://[::1]:1/a?x=1", Ok("https://[::1]:1/a?x=1")),
            ("", Err("is missing")),
            ("h:80", Err("must begin with")),
            ("ftp://h", Err("must begin with")),
            ("http://", Err("is not a URL")),
            ("http://h:/", Err("has no host")),
            ("http://u:secret@h", Err("user name or password")),
            ("http://h/#a", Err("fragment")),
            ("http://h/a b", Err("is not a URL")),
            ("http://h/a/../b", Err("`..`")),
            ("http://h/%2e%2E/b", Err("`..`")),
        ] {
            match (Endpoint::parse(url), expected) {
                (Ok(endpoint), Ok(text)) => assert_eq!(endpoint.text, text),
                (Err(why), Err(part)) => {
                    assert!(why.contains(part) && !why.contains("secret"), "{url}: {why}");
                }
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_shown_url_has_neither_password_nor_query() {
        let shown = |text: &str| shown(&text.parse().unwrap());
        assert_eq!(shown("https://u:p@h:1/a/b?token=x"), "https://h:1/a/b");
        assert_eq!(shown("http://h?token=x"), "http://h");
    }
}
