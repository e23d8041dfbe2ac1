//! The host that a request names, and the origin of its page: the defence against pages of other sites in the
//! operator's browser.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};

/// Returns host and port that the request names: from its target when that has one, else from the Host header.
pub fn authority<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    if let Some(authority) = uri.authority() {
        return Some(authority.as_str());
    }
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    }
}

/// Returns whether the authority is `localhost` or a loopback address, with any port. A name whose DNS entry is
/// 127.0.0.1 does not count.
pub fn is_loopback(authority: &str) -> bool {
    let host = without_port(authority);
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && (!host.contains(':') || host.ends_with(']')) =>
        {
            host
        }
        _ => authority,
    }
}

/// Returns the header of a proxy in the request; `None` when it came without one.
pub fn proxied_by(headers: &HeaderMap) -> Option<&str> {
    let is_of_proxy = |name: &&str| {
        matches!(*name, "forwarded" | "via" | "x-real-ip" | "x-client-ip") || name.starts_with("x-forwarded-")
    };
    headers.keys().map(|name| name.as_str()).find(is_of_proxy)
}

/// Returns whether the request comes from a page of another site: its Origin is not `authority`.
pub fn is_cross_origin(authority: &str, headers: &HeaderMap) -> bool {
    if headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") {
        return true;
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return false };
    let own = |origin: &str| {
        let (scheme, host) = origin.split_once("://")?;
        let default = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return None,
        };
        let bare = |host: &str| host.strip_suffix(default).unwrap_or(host).to_ascii_lowercase();
        Some(bare(host) == bare(authority))
    };
    origins.next().is_some() || !origin.to_str().ok().and_then(own).unwrap_or(false)
}

/// Returns whether the request certainly comes from a page of this server. Programs send neither of these headers.
pub fn is_own_page(authority: &str, headers: &HeaderMap) -> bool {
    let own_site = headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin");
    !is_cross_origin(authority, headers) && (headers.contains_key(ORIGIN) || own_site)
}

/// Returns whether a page of another origin made the request: of another site, or of another port or host of this one.
pub fn is_other_page(authority: &str, headers: &HeaderMap) -> bool {
    let same_site = headers.get("sec-fetch-site").is_some_and(|site| site == "same-site");
    same_site || is_cross_origin(authority, headers)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn loopback_is_distinguished_from_names_that_point_to_it() {
        for good in [
            "localhost",
            "LOCALHOST:18083",
            "127.0.0.1",
            "127.1.2.3:80",
            "[::1]",
            "[::1]:18083",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:18083",
            "192.0.2.1",
            "[2001:db8::1]:1",
            "127.0.0.1@evil",
            "0.0.0.0",
        ] {
            assert!(!is_loopback(bad), "{bad}");
        }
    }

    #[test]
    fn an_origin_that_is_not_the_host_is_cross_origin() {
        let cross = |authority: &str, origins: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for origin in origins {
                headers.append(ORIGIN, HeaderValue::from_static(origin));
            }
            is_cross_origin(authority, &headers)
        };
        assert!(!cross("127.0.0.1:18083", &[]));
        assert!(!cross("127.0.0.1:18083", &["http://127.0.0.1:18083"]));
        assert!(!cross("Broker.example", &["https://broker.example:443"]));
        for bad in [
            "null",
            "",
            "http://evil.example",
            "http://127.0.0.1",
            "http://127.0.0.1:18084",
            "file://127.0.0.1:18083",
        ] {
            assert!(cross("127.0.0.1:18083", &[bad]), "{bad}");
        }
        assert!(cross("a", &["http://a", "http://b"]));
        let mut headers = HeaderMap::new();
        headers.insert("sec-fetch-site", HeaderValue::from_static("cross-site"));
        assert!(is_cross_origin("a", &headers));
    }

    #[test]
    fn a_page_of_this_server_is_distinguished_from_others_and_from_programs() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            (is_own_page("a:1", &headers), is_other_page("a:1", &headers))
        };
        assert_eq!(of(&[]), (false, false), "a program");
        assert_eq!(of(&[("origin", "http://a:1")]), (true, false));
        assert_eq!(of(&[("sec-fetch-site", "same-origin")]), (true, false));
        assert_eq!(of(&[("sec-fetch-site", "none")]), (false, false), "an address that a person typed");
        assert_eq!(of(&[("sec-fetch-site", "same-site")]), (false, true), "another port");
        assert_eq!(of(&[("origin", "http://a:2")]), (false, true));
        assert_eq!(of(&[("origin", "http://a:1"), ("sec-fetch-site", "cross-site")]), (false, true));
    }
}
