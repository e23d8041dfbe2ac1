//! Reverse proxies in front of the HTTP port: which of them are trusted, and what they say about a client.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;
use broker::admin::is_within;

/// Networks of trusted proxies.
#[derive(Clone, Debug, Default)]
pub struct Proxies(Vec<(IpAddr, u8)>);

/// True when the client's connection is encrypted: to this server, or to a proxy on this machine or a trusted one.
#[derive(Clone, Copy, Debug)]
pub struct Encrypted(pub bool);

impl Proxies {
    /// Reads networks such as `10.0.0.0/8`, separated by commas.
    ///
    /// # Errors
    /// The word that is no network.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let networks = words.map(|word| network(word).ok_or_else(|| word.to_owned()));
        Ok(Self(networks.collect::<Result<_, _>>()?))
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(network, bits)| is_within(address, *network, *bits))
    }

    /// Returns the client of a request from `peer`: the last address of X-Forwarded-For that is no trusted proxy. Each
    /// proxy appends the address that it sees, and everything before may be invented.
    pub fn client(&self, peer: SocketAddr, headers: &HeaderMap) -> SocketAddr {
        if !self.trusts(peer.ip()) {
            return peer;
        }
        let mut client = peer;
        let values = headers.get_all("x-forwarded-for");
        let values: Vec<&str> = values.iter().filter_map(|value| value.to_str().ok()).collect();
        for word in values.iter().flat_map(|value| value.split(',')).rev() {
            let Some(address) = address(word.trim()) else { break };
            client = SocketAddr::new(address.to_canonical(), 0);
            if !self.trusts(client.ip()) {
                break;
            }
        }
        client
    }

    /// Returns whether a proxy that may say so says that the client's connection to it is encrypted.
    pub fn is_encrypted(&self, peer: SocketAddr, headers: &HeaderMap) -> bool {
        let ip = peer.ip().to_canonical();
        let https = |value: &axum::http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"https");
        (ip.is_loopback() || self.trusts(ip)) && headers.get("x-forwarded-proto").is_some_and(https)
    }
}

/// Reads an address of X-Forwarded-For, which may have a port.
fn address(word: &str) -> Option<IpAddr> {
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    bare.parse().ok().or_else(|| word.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = if bits.is_empty() { most } else { bits.parse().ok()? };
    (bits <= most).then_some((address, bits))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
        let proxies = Proxies::parse("10.0.0.0/8, ::1").unwrap();
        let client = |peer: &str, values: &[&'static str]| {
            let peer = SocketAddr::new(peer.parse().unwrap(), 7);
            proxies.client(peer, &headers("x-forwarded-for", values)).ip().to_string()
        };
        for (peer, values, expected) in [
            ("10.1.1.1", &["192.0.2.7"][..], "192.0.2.7"),
            ("10.1.1.1", &["203.0.113.9, 192.0.2.7, 10.2.2.2"], "192.0.2.7"),
            ("10.1.1.1", &["203.0.113.9", "192.0.2.7"], "192.0.2.7"),
            ("10.1.1.1", &["192.0.2.7:4711"], "192.0.2.7"),
            ("10.1.1.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("10.1.1.1", &["192.0.2.7, nonsense"], "10.1.1.1"),
            ("10.1.1.1", &["10.2.2.2"], "10.2.2.2"),
            ("10.1.1.1", &[], "10.1.1.1"),
            ("198.51.100.1", &["192.0.2.7"], "198.51.100.1"),
            ("127.0.0.1", &["192.0.2.7"], "127.0.0.1"),
            ("::1", &["192.0.2.7"], "192.0.2.7"),
        ] {
            assert_eq!(client(peer, values), expected, "{peer} {values:?}");
        }
    }

    #[test]
    fn a_proxy_on_this_machine_or_a_trusted_one_says_whether_a_client_uses_https() {
        let proxies = Proxies::parse("10.0.0.0/8").unwrap();
        let says = |peer: &str, value| {
            proxies.is_encrypted(
                SocketAddr::new(peer.parse().unwrap(), 7),
                &headers("x-forwarded-proto", &[value]),
            )
        };
        assert!(says("127.0.0.1", "https") && says("10.0.0.1", "HTTPS"));
        assert!(!says("10.0.0.1", "http") && !says("198.51.100.1", "https"));
        assert!(!proxies.is_encrypted("127.0.0.1:1".parse().unwrap(), &HeaderMap::new()));
    }

    #[test]
    fn a_word_that_is_no_network_is_reported() {
        assert_eq!(Proxies::parse("10.0.0.0/8,10.0.0.0/33").unwrap_err(), "10.0.0.0/33");
        assert_eq!(Proxies::parse("proxy").unwrap_err(), "proxy");
        assert!(Proxies::parse(" ").is_ok());
    }
}
