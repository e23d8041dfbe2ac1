//! Rules for the web pages that may open a WebSocket. They protect a broker without authentication from pages in a
//! browser that can reach the broker.

use std::net::IpAddr;

/// Rule for pages when `websocket_origins` is empty. Programs that are not browsers send no Origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageRule {
    /// Accepts every page: clients have to authenticate, and a page only has the credentials that its user entered.
    Any,
    /// Accepts only pages of the requested host, because clients need not authenticate.
    SameHost {
        /// The connection comes from this machine. Then names in Host that merely resolve to loopback are refused.
        loopback: bool,
    },
}

impl PageRule {
    /// Returns the reason to refuse a request; `None` accepts it. `Some("")` stands for a header that is not text.
    pub fn refuses(self, host: Option<&str>, origin: Option<&str>) -> Option<&'static str> {
        let Self::SameHost { loopback } = self else { return None };
        let host = without_port(host.unwrap_or_default());
        if loopback && !is_loopback(host) {
            return Some(
                "while clients need no login, this port answers as localhost, 127.0.0.1 and [::1] only; use one of them, \
                 or name the pages that may connect in websocket_origins",
            );
        }
        let origin = origin?;
        let page = origin.split_once("://").map(|(_, authority)| without_port(authority)).unwrap_or_default();
        let is_same = !page.is_empty() && page.eq_ignore_ascii_case(host);
        let is_accepted = is_same || is_loopback(page) && is_loopback(host);
        (!is_accepted).then_some(
            "while clients need no login, only pages of this host may connect; name others in websocket_origins",
        )
    }
}

/// Returns whether `host` is `localhost` or a loopback address.
fn is_loopback(host: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: PageRule = PageRule::SameHost { loopback: true };
    const NETWORK: PageRule = PageRule::SameHost { loopback: false };

    #[test]
    fn only_pages_of_the_requested_host_connect_while_login_is_not_required() {
        for (host, origin) in [
            ("broker.example:8083", "http://broker.example"),
            ("Broker.Example:8083", "https://broker.example:8443"),
            ("192.0.2.1:8083", "http://192.0.2.1:3000"),
            ("[2001:db8::1]:8083", "http://[2001:db8::1]"),
        ] {
            assert_eq!(NETWORK.refuses(Some(host), Some(origin)), None, "{host} {origin}");
        }
        for (host, origin) in [
            ("broker.example:8083", "https://evil.example"),
            ("broker.example:8083", "https://broker.example.evil.example"),
            ("broker.example:8083", "https://broker.example@evil.example"),
            ("broker.example:8083", "null"),
            ("broker.example:8083", ""),
            ("", ""),
            ("", "http://"),
            ("192.0.2.1:8083", "http://localhost"),
        ] {
            assert!(NETWORK.refuses(Some(host), Some(origin)).is_some(), "{host} {origin}");
        }
        assert!(NETWORK.refuses(None, Some("http://broker.example")).is_some());
        assert_eq!(NETWORK.refuses(Some("broker.example"), None), None, "a program sends no Origin");
        assert_eq!(PageRule::Any.refuses(Some("broker.example"), Some("https://evil.example")), None);
    }

    #[test]
    fn a_name_that_only_points_to_loopback_is_refused() {
        for host in ["localhost:8083", "127.0.0.1:8083", "127.1.2.3", "[::1]:8083", "LOCALHOST"] {
            assert_eq!(LOOPBACK.refuses(Some(host), None), None, "{host}");
            assert_eq!(LOOPBACK.refuses(Some(host), Some("http://localhost:3000")), None, "{host}");
            assert!(LOOPBACK.refuses(Some(host), Some("http://evil.example:8083")).is_some(), "{host}");
        }
        for host in ["evil.example:8083", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", ""]
        {
            let origin = format!("http://{host}");
            assert!(LOOPBACK.refuses(Some(host), Some(&origin)).is_some(), "{host}");
            assert!(LOOPBACK.refuses(Some(host), None).is_some(), "{host}");
        }
        assert!(LOOPBACK.refuses(None, None).is_some());
    }
}
