//! URL of the node: `http://host:port` or `https://host:port`, with or without a path that a proxy puts before the API.

use std::net::IpAddr;

use ureq::http::Uri;

/// A checked URL without a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// # Errors
    /// A sentence with the correct form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = with_scheme
            .parse()
            .map_err(|error| format!("{error}; write http://HOST:PORT, such as {DEFAULT}"))?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            other => {
                return Err(format!(
                    "{} is not a scheme of this API; write http://HOST:PORT or https://HOST:PORT",
                    other.unwrap_or("")
                ));
            }
        }
        let authority = uri.authority().ok_or("the host is missing")?;
        if authority.host().is_empty() {
            return Err("the host is missing".to_owned());
        }
        if authority.as_str().contains('@') {
            return Err(
                "user and password are not allowed; pass a token with --token-file or MERIDIAN_TOKEN"
                    .to_owned(),
            );
        }
        if uri.query().is_some() || with_scheme.contains('#') {
            return Err("`?` and `#` are not allowed".to_owned());
        }
        Ok(Self(with_scheme.trim_end_matches('/').to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the host certainly is this machine, so that no attacker in between can read a token.
    pub fn loopback(&self) -> bool {
        let host = self.host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Returns whether the URL uses TLS.
    pub fn secure(&self) -> bool {
        self.0.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
    }

    /// Returns the name or address, without the brackets of IPv6.
    pub fn host(&self) -> String {
        let uri: Result<Uri, _> = self.0.parse();
        let host = uri.ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
        host.trim_start_matches('[').trim_end_matches(']').to_owned()
    }
}

/// Default address of a node.
pub const DEFAULT: &str = "http://127.0.0.1:18083";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_forms_are_accepted() {
        assert_eq!(Url::parse("http://h:1/").unwrap().as_str(), "http://h:1");
        assert_eq!(Url::parse("127.0.0.1:18083").unwrap().as_str(), DEFAULT);
        assert_eq!(Url::parse("http://h/mqtt/").unwrap().as_str(), "http://h/mqtt");
        assert!(Url::parse("http://[::1]:1").unwrap().loopback());
        assert_eq!(Url::parse("https://[::1]:1/").unwrap().host(), "::1");
        assert!(Url::parse("https://h").unwrap().secure() && !Url::parse("http://h").unwrap().secure());
        assert!(!Url::parse("http://10.0.0.1").unwrap().loopback());
    }

    #[test]
    fn a_wrong_url_is_explained() {
        for (text, says) in [
            ("http://u:p@h", "token"),
            ("http://h?x=1", "`?`"),
            ("ftp://h", "scheme"),
            ("http://", "http://HOST:PORT"),
            ("http://a b", "http://HOST:PORT"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
