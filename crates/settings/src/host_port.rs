//! A network address: `HOST:PORT`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::value::{Invalid, Raw, Value};

/// A host, by name or IP address, and a port that is not 0. The caller looks names up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    text: Box<str>,
    /// Length of the host in bytes: the text before the port's colon.
    host: usize,
    port: u16,
}

impl HostPort {
    /// The text as it was written, without surrounding space.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        let host = &self.text[..self.host];
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The IP address; `None` for a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host().parse().ok().map(|ip: IpAddr| ip.to_canonical())
    }

    /// Returns whether the host stands for all addresses of a machine. A node can listen there; no other node can
    /// connect to it.
    pub fn is_unspecified(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// Returns whether the host is reachable from the same machine only.
    pub fn is_loopback(&self) -> bool {
        self.host().eq_ignore_ascii_case("localhost") || self.ip().is_some_and(|ip| ip.is_loopback())
    }

    /// Returns whether both addresses are equal as written: names are not looked up.
    pub fn is_same(&self, other: &Self) -> bool {
        let are_hosts_same = match (self.ip(), other.ip()) {
            (Some(one), Some(another)) => one == another,
            (None, None) => self.host().eq_ignore_ascii_case(other.host()),
            _ => false,
        };
        self.port == other.port && are_hosts_same
    }

    /// Returns whether one machine cannot listen at both, as far as is known without looking names up.
    pub fn overlaps(&self, other: &Self) -> bool {
        let covers = |one: &Self, another: &Self| match one.ip() {
            Some(IpAddr::V6(ip)) => ip.is_unspecified(),
            Some(IpAddr::V4(ip)) => ip.is_unspecified() && !matches!(another.ip(), Some(IpAddr::V6(_))),
            None => false,
        };
        self.port == other.port && (self.is_same(other) || covers(self, other) || covers(other, self))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reason why a text is not a `HOST:PORT`, with a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotHostPort {
    Empty,
    /// A scheme before the host. Holds the text without it.
    Scheme(String),
    Several,
    NoHost,
    NoPort(String),
    Port(String),
    /// An IPv6 address without brackets.
    Bare,
    /// A bracket that is not closed, or a text in brackets that is not an IPv6 address.
    Bracket,
    /// A `*` as host, as in `*:7883`.
    Star,
    Ipv4(String),
    Host(String),
    Long,
}

impl fmt::Display for NotHostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the value is empty"),
            Self::Scheme(rest) => write!(f, "a scheme is not allowed: write {rest}"),
            Self::Several => f.write_str("expected one address, found a list"),
            Self::NoHost => f.write_str("the host before the colon is missing"),
            Self::NoPort(host) => write!(f, "the port is missing: write {host}:PORT"),
            Self::Port(port) => write!(f, "{port:?} is not a port: write a number from 1 to 65535"),
            Self::Bare => f.write_str(
                "an IPv6 address needs brackets, and the port belongs behind them, as in [fd00::1]:7883",
            ),
            Self::Bracket => f.write_str(
                "brackets are for a whole IPv6 address, with the port behind them, as in \
                     [fd00::1]:7883",
            ),
            Self::Star => f.write_str("all addresses of a machine are written 0.0.0.0 or [::]"),
            Self::Ipv4(host) => {
                write!(f, "{host:?} is not an IPv4 address: write four numbers from 0 to 255")
            }
            Self::Host(host) => {
                write!(
                    f,
                    "{host:?} is not a host name: use alphanumeric characters, `-`, `_` and single dots \
                         only"
                )
            }
            Self::Long => write!(f, "a host has at most {HOST_MAX} bytes"),
        }
    }
}

impl std::error::Error for NotHostPort {}

/// Maximum length of a DNS name in bytes.
const HOST_MAX: usize = 253;

impl FromStr for HostPort {
    type Err = NotHostPort;

    fn from_str(text: &str) -> Result<Self, NotHostPort> {
        let text = text.trim();
        if text.is_empty() {
            return Err(NotHostPort::Empty);
        }
        if let Some((_, rest)) = text.split_once("://") {
            let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
            return Err(NotHostPort::Scheme(rest.to_owned()));
        }
        if text.contains(',') {
            return Err(NotHostPort::Several);
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(NotHostPort::Bare);
        }
        let after_brackets = text.rfind(']').map_or(0, |at| at + 1);
        let Some(colon) = text[after_brackets..].rfind(':').map(|at| after_brackets + at) else {
            return Err(if text.starts_with('[') && after_brackets == 0 {
                NotHostPort::Bracket
            } else {
                NotHostPort::NoPort(text.to_owned())
            });
        };
        let (host, port) = (&text[..colon], &text[colon + 1..]);
        check_host(host)?;
        if port.is_empty() {
            return Err(NotHostPort::NoPort(host.to_owned()));
        }
        let is_digits = port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse() {
            Ok(port) if port > 0 && is_digits => Ok(Self { text: text.into(), host: colon, port }),
            _ => Err(NotHostPort::Port(port.to_owned())),
        }
    }
}

fn check_host(host: &str) -> Result<(), NotHostPort> {
    if host.is_empty() {
        return Err(NotHostPort::NoHost);
    }
    if host.contains(['[', ']']) {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_address = inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok());
        return if is_address { Ok(()) } else { Err(NotHostPort::Bracket) };
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        return Err(NotHostPort::Bare);
    }
    if host == "*" {
        return Err(NotHostPort::Star);
    }
    if host.len() > HOST_MAX {
        return Err(NotHostPort::Long);
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_named = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_named)) {
        return Err(NotHostPort::Host(host.to_owned()));
    }
    // A top-level domain is never a number: the system would read it as an address in another notation.
    let is_number =
        name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if is_number && host.parse::<Ipv4Addr>().is_err() {
        return Err(NotHostPort::Ipv4(host.to_owned()));
    }
    Ok(())
}

/// An address such as `10.0.0.1:7883`, `[fd00::1]:7883` or `a.example.com:7883`.
impl Value for HostPort {
    const TYPE: &'static str = "address";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let (Raw::Text(text) | Raw::String(text)) = raw else { return Err(raw.expected(IN_QUOTES)) };
        text.parse().map_err(|why| not_one(text, &why))
    }

    fn to_toml(&self) -> Option<String> {
        self.text.to_string().to_toml()
    }
}

/// Several addresses, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPorts(pub Vec<HostPort>);

impl fmt::Display for HostPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Value for HostPorts {
    const TYPE: &'static str = "addresses";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let (Raw::Text(text) | Raw::String(text)) = raw else { return Err(raw.expected(IN_QUOTES)) };
        let addresses = text.split(',').map(str::trim).filter(|address| !address.is_empty());
        addresses.map(|one| one.parse().map_err(|why| not_one(one, &why))).collect::<Result<_, _>>().map(Self)
    }

    fn to_toml(&self) -> Option<String> {
        self.to_string().to_toml()
    }
}

fn not_one(text: &str, why: &NotHostPort) -> Invalid {
    Invalid::Form { expected: EXPECTED, found: format!("{text:?}"), why: why.to_string() }
}

const EXPECTED: &str = "HOST:PORT, such as 10.0.0.1:7883";
const IN_QUOTES: &str = "HOST:PORT in quotes, such as \"10.0.0.1:7883\"";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HostPort, String> {
        HostPort::from_raw(&Raw::Text(text.to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn names_and_addresses_of_both_kinds_are_read() {
        for (text, host, port) in [
            ("10.0.0.1:7883", "10.0.0.1", 7883),
            (" [fd00::1]:1 ", "fd00::1", 1),
            ("[::]:65535", "::", 65535),
            ("localhost:7883", "localhost", 7883),
            ("meridian-cores.default.svc:7883", "meridian-cores.default.svc", 7883),
            ("a_b.example.com.:7883", "a_b.example.com.", 7883),
            ("n1:7883", "n1", 7883),
        ] {
            let address = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((address.host(), address.port(), address.as_str()), (host, port, text.trim()));
            assert_eq!(read(address.as_str()), Ok(address));
        }
    }

    #[test]
    fn a_text_that_is_not_an_address_is_refused_with_a_correction() {
        for (text, says) in [
            ("", "the value is empty"),
            ("http://10.0.0.1:7883", "a scheme is not allowed: write 10.0.0.1:7883"),
            ("mqtt://a:7883/path", "a scheme is not allowed: write a:7883"),
            ("10.0.0.1", "the port is missing: write 10.0.0.1:PORT"),
            ("[::1]", "the port is missing: write [::1]:PORT"),
            ("10.0.0.1:", "the port is missing: write 10.0.0.1:PORT"),
            (":7883", "the host before the colon is missing"),
            ("10.0.0.1:port", "\"port\" is not a port"),
            ("h:0", "\"0\" is not a port"),
            ("h:+1", "\"+1\" is not a port"),
            ("h:65536", "\"65536\" is not a port"),
            ("h:7883/", "\"7883/\" is not a port"),
            ("[::1", "brackets are for a whole"),
            ("[::1:7883", "brackets are for a whole"),
            ("::1]:7883", "brackets are for a whole"),
            ("[10.0.0.1]:7883", "brackets are for a whole"),
            ("[]:7883", "brackets are for a whole"),
            ("::1", "needs brackets"),
            ("fd00::1:7883", "needs brackets"),
            ("1:2:3:4:5:6:7:8:7883", "needs brackets"),
            ("10.0.0.1:7883:7884", "not a host name"),
            ("10.0.0.1:7883,10.0.0.2:7883", "found a list"),
            ("*:7883", "0.0.0.0 or [::]"),
            ("10.0.0.300:7883", "not an IPv4 address"),
            ("10.0.1:7883", "not an IPv4 address"),
            ("a..b:7883", "not a host name"),
            ("a b:7883", "not a host name"),
            ("user@h:7883", "not a host name"),
            ("ä:7883", "not a host name"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(says) && error.contains("expected HOST:PORT"), "{text}: {error}");
        }
        assert!(read(&format!("{}:1", "x".repeat(254))).unwrap_err().contains("253 bytes"));
        assert!(HostPort::from_raw(&Raw::Integer(7883)).unwrap_err().to_string().contains("in quotes"));
    }

    #[test]
    fn an_address_is_classified_without_looking_names_up() {
        let of = |text: &str| read(text).expect(text);
        assert!(of("0.0.0.0:1").is_unspecified() && of("[::]:1").is_unspecified());
        assert!(
            of("127.9.9.9:1").is_loopback() && of("[::1]:1").is_loopback() && of("Localhost:1").is_loopback()
        );
        assert!(!of("h:1").is_loopback() && !of("10.0.0.1:1").is_unspecified());
        assert_eq!((of("h:1").ip(), of("[::ffff:10.0.0.1]:1").ip()), (None, "10.0.0.1".parse().ok()));
        assert!(of("[fd00:0::1]:1").is_same(&of("[fd00::1]:1")) && of("H:1").is_same(&of("h:1")));
        assert!(!of("h:1").is_same(&of("h:2")) && !of("h:1").is_same(&of("10.0.0.1:1")));
    }

    #[test]
    fn an_address_overlaps_with_every_address_of_the_machine() {
        let overlap = |one: &str, other: &str| read(one).unwrap().overlaps(&read(other).unwrap());
        for (one, other) in [
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("0.0.0.0:1", "10.0.0.1:1"),
            ("h:1", "0.0.0.0:1"),
            ("[::]:1", "10.0.0.1:1"),
        ] {
            assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
        }
        for (one, other) in
            [("10.0.0.1:1", "10.0.0.2:1"), ("0.0.0.0:1", "10.0.0.1:2"), ("0.0.0.0:1", "[fd00::1]:1")]
        {
            assert!(!overlap(one, other) && !overlap(other, one), "{one} {other}");
        }
    }

    #[test]
    fn an_error_in_a_list_names_the_wrong_entry() {
        let list = |text: &str| HostPorts::from_raw(&Raw::String(text.to_owned()));
        let two = list(" a:1 ,b:2,").expect("two");
        assert_eq!((two.to_string(), two.to_toml().as_deref()), ("a:1,b:2".to_owned(), Some("\"a:1,b:2\"")));
        assert_eq!(list(""), Ok(HostPorts::default()));
        let error = list("a:1,b").unwrap_err().to_string();
        assert!(error.contains("found \"b\": the port is missing"), "{error}");
        assert!(HostPorts::from_raw(&Raw::Boolean(true)).is_err());
    }
}
