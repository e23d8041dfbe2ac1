//! Address and protocol of a broker: from a URL, or from `-h` and `-p`.

use std::str::FromStr;

/// A URL `mqtt://`, `mqtts://`, `ws://` or `wss://`, as in mosquitto's `-L`: with user name and password, a port, and
/// a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub scheme: Scheme,
    /// Host, without the brackets of IPv6.
    pub host: String,
    pub port: u16,
    pub username: Option<String>,
    pub password: Option<String>,
    /// Text after the port, without its first slash: the topic of MQTT, the path of WebSocket.
    rest: String,
}

/// Protocol of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
}

impl Scheme {
    const ALL: [(&str, Self); 4] =
        [("mqtt", Self::Mqtt), ("mqtts", Self::Mqtts), ("ws", Self::Ws), ("wss", Self::Wss)];

    /// Default port of the scheme; for WebSocket, the default port of Meridian.
    pub fn port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
            Self::Mqtts => 8883,
            Self::Ws => 8083,
            Self::Wss => 8084,
        }
    }

    pub fn secure(self) -> bool {
        matches!(self, Self::Mqtts | Self::Wss)
    }

    pub fn websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

impl Target {
    /// Target of `-h`, `-p` and the TLS options.
    pub fn plain(host: &str, port: Option<u16>, scheme: Scheme) -> Self {
        Self {
            scheme,
            host: bare(host).to_owned(),
            port: port.unwrap_or(scheme.port()),
            username: None,
            password: None,
            rest: String::new(),
        }
    }

    /// Path of a WebSocket request; `/mqtt` by default.
    pub fn path(&self) -> String {
        if self.rest.is_empty() { "/mqtt".to_owned() } else { format!("/{}", self.rest) }
    }

    /// Topic at the end of an MQTT URL.
    pub fn topic(&self) -> Option<&str> {
        (!self.scheme.websocket() && !self.rest.is_empty()).then_some(self.rest.as_str())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "write mqtt://, mqtts://, ws:// or wss://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC or PATH]";
        let (name, after) = text.split_once("://").ok_or(FORM)?;
        let known = Scheme::ALL.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let (_, scheme) = known.ok_or_else(|| format!("`{name}` is not a scheme of MQTT; {FORM}"))?;
        let (authority, rest) = after.split_once('/').unwrap_or((after, ""));
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (Some(user), host_port),
            None => (None, authority),
        };
        let (host, port) = match host_port.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (host, Some(port.ok_or_else(|| format!("the port is a number from 1 to 65535; {FORM}"))?))
            }
            _ => (host_port, None),
        };
        if bare(host).is_empty() {
            return Err(format!("the host is missing; {FORM}"));
        }
        let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((name, "")) => (Some(decoded(name)?), None),
            Some((name, password)) => (Some(decoded(name)?), Some(decoded(password)?)),
            None => (None, None),
        };
        let port = port.unwrap_or(scheme.port());
        Ok(Self { scheme, host: bare(host).to_owned(), port, username, password, rest: rest.to_owned() })
    }
}

/// Correction for `-h HOST:PORT` or `-h URL`; `None` for a host.
pub fn wrong_host(host: &str) -> Option<String> {
    if host.contains("://") {
        return Some(format!("-h takes a host only: write -L {host}"));
    }
    let (name, port) = host.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']'));
    is_port.then(|| format!("-h takes a host without a port: write -h {name} -p {port}"))
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Decodes percent escapes, such as the `%40` of user names and passwords.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return Err("a `%` in user name or password is written %25".to_owned());
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| "user name and password are UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Target {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn urls_are_those_of_mosquitto_and_of_browsers() {
        let all = parse("mqtts://me:s%40crat@broker.example:1/a/#");
        assert_eq!((all.scheme, all.host.as_str(), all.port), (Scheme::Mqtts, "broker.example", 1));
        assert_eq!((all.username.as_deref(), all.password.as_deref()), (Some("me"), Some("s@crat")));
        assert_eq!(all.topic(), Some("a/#"));
        let page = parse("wss://[::1]/some/path?x=1");
        assert_eq!((page.host.as_str(), page.port, page.topic()), ("::1", 8084, None));
        assert_eq!(page.path(), "/some/path?x=1");
        for (text, port) in [("mqtt://h", 1883), ("MQTTS://h/", 8883), ("ws://h", 8083), ("wss://h", 8084)] {
            assert_eq!((parse(text).port, parse(text).path()), (port, "/mqtt".to_owned()), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_url_is_refused_with_the_expected_form() {
        for text in ["h", "http://h", "mqtt://", "mqtt://:1", "mqtt://h:x", "mqtt://h:0", "mqtt://u%4@h"] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains("mqtts://") || error.contains("%25"), "{text}: {error}");
        }
    }

    #[test]
    fn a_host_with_a_port_is_refused_with_a_correction() {
        for (text, says) in [
            ("host:1883", Some("-h host -p 1883")),
            ("[::1]:1883", Some("-h [::1] -p 1883")),
            ("mqtts://host", Some("-L mqtts://host")),
            ("host", None),
            ("::1", None),
            ("[::1]", None),
            ("unix:/run/m.sock", None),
        ] {
            match (wrong_host(text), says) {
                (Some(answer), Some(says)) => assert!(answer.contains(says), "{answer}"),
                (answer, says) => assert_eq!(answer.as_deref(), says, "{text}"),
            }
        }
    }
}
