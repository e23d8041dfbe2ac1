//! The cookie of a session: its name, its attributes, and how it is found in a request.

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};

/// Name of the cookie without TLS.
const NAME: &str = "meridian_session";
/// Name of the cookie with TLS. Browsers accept this prefix only with `Secure`, `Path=/` and without a domain, so no
/// other host of the site can set it.
const SECURE_NAME: &str = "__Host-meridian_session";
/// Maximum number of bytes of a value that is looked at.
const VALUE_MAX: usize = 256;

/// Returns the value of the cookie; `None` when the request has none, or two of them.
pub fn find(headers: &HeaderMap) -> Option<&str> {
    let named = |name: &str| {
        let values = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut values = pairs.filter(|(other, _)| *other == name).map(|(_, value)| value);
        match (values.next(), values.next()) {
            (Some(value), None) if value.len() <= VALUE_MAX => Some(value),
            _ => None,
        }
    };
    named(SECURE_NAME).or_else(|| named(NAME))
}

/// Returns the header that sets the cookie. A browser forgets it when it is closed; the node ends the session by
/// itself.
pub fn set(value: &str, encrypted: bool) -> Option<HeaderValue> {
    header(&format!("{}={value}", name(encrypted)), encrypted)
}

/// Returns the header that removes the cookie.
pub fn remove(encrypted: bool) -> Option<HeaderValue> {
    header(&format!("{}=; Max-Age=0", name(encrypted)), encrypted)
}

fn name(encrypted: bool) -> &'static str {
    if encrypted { SECURE_NAME } else { NAME }
}

fn header(pair: &str, encrypted: bool) -> Option<HeaderValue> {
    let secure = if encrypted { "; Secure" } else { "" };
    HeaderValue::from_str(&format!("{pair}; Path=/; HttpOnly; SameSite=Strict{secure}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(COOKIE, HeaderValue::from_static(value));
        }
        find(&headers).map(str::to_owned)
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        assert_eq!(found(&["a=b; meridian_session=x.1.y; c=d"]).as_deref(), Some("x.1.y"));
        assert_eq!(found(&["a=b", "meridian_session=x"]).as_deref(), Some("x"));
        let both = found(&["meridian_session=plain; __Host-meridian_session=secure"]);
        assert_eq!(both.as_deref(), Some("secure"));
        for none in [&[][..], &["a=b"], &["xmeridian_session=x"], &["meridian_session=x; meridian_session=y"]]
        {
            assert_eq!(found(none), None, "{none:?}");
        }
    }

    #[test]
    fn no_page_and_no_other_site_gets_the_cookie() {
        let text = |header: Option<HeaderValue>| header.unwrap().to_str().unwrap().to_owned();
        assert_eq!(text(set("x", false)), "meridian_session=x; Path=/; HttpOnly; SameSite=Strict");
        assert_eq!(
            text(set("x", true)),
            "__Host-meridian_session=x; Path=/; HttpOnly; SameSite=Strict; Secure"
        );
        assert!(text(remove(true)).starts_with("__Host-meridian_session=; Max-Age=0; Path=/"));
    }
}
