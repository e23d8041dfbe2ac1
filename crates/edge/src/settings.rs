//! Settings of threads and listeners.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use broker::settings::{Durability, SubackLevel};
use settings::{Invalid, Raw, Value, choices, section};

section! {
    /// Threads that serve connections.
    [edge]
    pub struct EdgeSettings {
        /// Number of threads that serve connections; 0 is one for each CPU.
        pub workers: usize = "0" in "0..=1024", at start;
        /// Maximum number of TLS handshakes that one of these threads advances before it serves its other connections.
        pub handshakes_per_turn: u32 = "8" in "1..=10000", at start;
    }
    and {
        /// Listeners for clients. Never empty.
        pub listeners: Vec<Listener> = vec![Listener::default(), Listener::websocket()];
    }
}

section! {
    /// Listener: an address where clients connect.
    [listener]
    pub struct Listener {
        /// Name of the listener in logs, metrics and access rules. Empty: its address.
        pub name: String = "", at start;
        /// Address to listen on: `127.0.0.1:1883`, `[::1]:1883`, `0.0.0.0:1883` for every IPv4 address, `[::]:1883` for
        /// every address, `localhost:1883` for all addresses of a name, or `unix:/run/meridian.sock`. Port 0 lets the
        /// system choose.
        pub address: ListenAddress = "127.0.0.1:1883", at start;
        /// Maximum number of simultaneous connections of this listener; 0 is no limit.
        pub connections_max: u32 = "0", at start;
        /// Maximum number of new connections a second; others wait in the backlog. 0 is no limit.
        pub connect_rate: u32 = "0", at start;
        /// Maximum number of connections that the system queues until they are accepted.
        pub backlog: u32 = "1024" in "1..=65535", at start;
        /// Maximum time of the PROXY header, the TLS handshake and the WebSocket request together.
        pub handshake_timeout: Duration = "5s" in "100ms..=10m", at start;
        /// Transport of MQTT: directly on the stream, or in WebSocket frames.
        pub transport: Transport = "mqtt", at start;
        /// Path of WebSocket requests.
        pub websocket_path: String = "/mqtt", at start;
        /// Origins of web pages that may connect by WebSocket, separated by commas, such as `https://app.example.com`,
        /// or `*` for any. Empty: any page while clients have to log in, else only pages of the host that they connect
        /// to. Programs that are not browsers send no Origin and are not restricted.
        pub websocket_origins: String = "", at start;
        /// Certificate chain (PEM) of the listener. With it, the listener speaks TLS.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// Private key (PEM) of `tls_certificate`.
        pub tls_key: Option<PathBuf> = "", at start;
        /// Directory of further certificates, chosen by the host name that a client asks for (SNI): NAME.crt and
        /// NAME.key. A leading `_.` stands for `*.`.
        pub tls_names: Option<PathBuf> = "", at start;
        /// Lowest version of TLS.
        pub tls_version_min: TlsVersion = "1.2", at start;
        /// Authorities (PEM) that verify the certificates of clients; see `tls_client`.
        pub tls_client_ca: Option<PathBuf> = "", at start;
        /// Requirement for certificates of clients, with `tls_client_ca`.
        pub tls_client: TlsClient = "required", at start;
        /// Certificate revocation lists (PEM) for certificates of clients.
        pub tls_client_crl: Option<PathBuf> = "", at start;
        /// Send session tickets to clients, so that they can resume a TLS session without a full handshake.
        pub tls_tickets: bool = "true", at start;
        /// Networks of load balancers that send PROXY headers (version 1 or 2), separated by commas, such as
        /// `10.0.0.0/8`. Connections from them must begin with a header; other connections must not.
        pub proxy_networks: String = "", at start;
        /// Guarantee behind the acknowledgement of messages received here, unless a `[[durability]]` rule applies.
        pub durability: Durability = "local-disk", at start;
        /// Nodes that must know a subscription made here before SUBACK is sent, in a cluster. Unset: `routing.suback`.
        pub suback: Option<SubackLevel> = "", at start;
    }
}

/// Address of a listener: a host with a port, or the path of a Unix socket. Host names are resolved when the listener
/// opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress(String);

impl ListenAddress {
    /// Returns the fault in `text` and what to write instead.
    fn wrong(text: &str) -> Option<String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path.is_empty().then(|| "the path is missing: write unix:/run/meridian.sock".to_owned());
        }
        let both = |port: &str| {
            format!("write 127.0.0.1:{port} for this machine only, or 0.0.0.0:{port} for all networks")
        };
        if text.parse::<u16>().is_ok() {
            return Some(format!("the host is missing: {}", both(text)));
        }
        if text.starts_with('/') {
            return Some(format!("write unix:{text} for a Unix socket"));
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return Some(format!(
                "write {rest} without {scheme}://; tls_certificate brings TLS, transport = \"websocket\" WebSocket"
            ));
        }
        match text.rsplit_once(':') {
            Some(("", port)) => Some(format!("the host is missing: {}", both(port))),
            Some((_, port)) if port.parse::<u16>().is_ok() => None,
            Some((host, _)) if !host.contains(':') || host.ends_with(']') => {
                Some("the port is a number from 0 to 65535".to_owned())
            }
            Some(_) => Some(format!("the port is missing: write [{text}]:1883")),
            None => Some(format!("the port is missing: write {text}:1883")),
        }
    }
}

impl Value for ListenAddress {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let expected = "an address with its port, such as 127.0.0.1:1883, or unix:PATH";
        let text = match raw {
            Raw::Text(text) | Raw::String(text) => text.clone(),
            Raw::Integer(port) => {
                let why = Self::wrong(&port.to_string()).unwrap_or_default();
                return Err(Invalid::Form { expected, found: raw.to_string(), why });
            }
            _ => return Err(raw.expected(expected)),
        };
        match Self::wrong(&text) {
            None => Ok(Self(text)),
            Some(why) => Err(Invalid::Form { expected, found: raw.to_string(), why }),
        }
    }

    fn to_toml(&self) -> Option<String> {
        self.0.to_toml()
    }
}

impl Deref for ListenAddress {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Converts an address that is written in the program itself. It is not checked.
impl From<&str> for ListenAddress {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for ListenAddress {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Listener {
    /// Returns the default listener for browsers.
    pub fn websocket() -> Self {
        let address = "127.0.0.1:8083".into();
        Self { address, transport: Transport::WebSocket, ..Self::default() }
    }
}

choices! {
    /// Transport of a listener.
    pub enum Transport {
        /// MQTT on TCP, or on TLS with `tls_certificate`.
        Mqtt = "mqtt",
        /// MQTT in WebSocket, on TLS with `tls_certificate`.
        WebSocket = "websocket",
    }
}

choices! {
    /// A version of TLS.
    pub enum TlsVersion {
        /// TLS 1.2 and 1.3.
        V1_2 = "1.2",
        /// TLS 1.3 only.
        V1_3 = "1.3",
    }
}

choices! {
    /// Requirement for client certificates, with `tls_client_ca`.
    pub enum TlsClient {
        /// Clients without a certificate are refused.
        Required = "required",
        /// Clients without a certificate have to authenticate in another way.
        Optional = "optional",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node without configuration is reachable from its own machine only.
    #[test]
    fn the_default_listener_is_on_loopback() {
        let EdgeSettings { workers, handshakes_per_turn, listeners } = EdgeSettings::default();
        assert_eq!((workers, handshakes_per_turn), (0, 8));
        let addresses: Vec<_> = listeners.iter().map(|listener| &*listener.address).collect();
        assert_eq!(addresses, ["127.0.0.1:1883", "127.0.0.1:8083"]);
    }

    #[test]
    fn an_invalid_address_is_refused_with_advice() {
        let read = |text: &str| ListenAddress::from_raw(&Raw::Text(text.to_owned()));
        for text in ["127.0.0.1:1883", "[::1]:0", "localhost:1883", "0.0.0.0:8883", "unix:/run/m.sock"] {
            assert_eq!(read(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for (text, says) in [
            ("1883", "write 127.0.0.1:1883 for this machine only, or 0.0.0.0:1883"),
            (":1883", "write 127.0.0.1:1883 for this machine only"),
            ("localhost", "write localhost:1883"),
            ("::", "write [::]:1883"),
            ("[::1]:x", "the port is a number"),
            ("broker:99999", "the port is a number"),
            ("mqtt://broker:1883", "write broker:1883 without mqtt://"),
            ("/run/m.sock", "write unix:/run/m.sock"),
            ("unix:", "write unix:/run/meridian.sock"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says) && error.contains(&format!("`{text}`")), "{error}");
        }
        let number = ListenAddress::from_raw(&Raw::Integer(1883)).expect_err("a number").to_string();
        assert!(number.contains("write 127.0.0.1:1883"), "{number}");
    }
}
