//! The settings of the HTTP server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use settings::{ByteSize, Invalid, Raw, Value, choices, section};

section! {
    /// The HTTP server: the API under `/api/v1`, `/metrics`, `/health` and the dashboard.
    [http]
    pub struct HttpSettings {
        /// An IP address with its port, such as `127.0.0.1:18083`, or `off`. Other than loopback addresses need an API key
        /// (`meridian key add`). Port 0 lets the system choose.
        pub listen: Listen = "127.0.0.1:18083", at start;
        /// The certificate chain (PEM) that is shown; with it, HTTPS is spoken. A reload reads the files of certificates again.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// The certificate's private key (PEM).
        pub tls_key: Option<PathBuf> = "", at start;
        /// Authorities (PEM) of which everybody has to show a certificate, besides a key of the API. Browsers and whoever
        /// collects metrics need one too.
        pub tls_client_ca: Option<PathBuf> = "", at start;
        /// Lowest version of TLS.
        pub tls_version_min: TlsVersion = "1.2", at start;
        /// How long a TLS handshake may take, the wait for its turn included.
        pub tls_handshake_timeout: Duration = "10s" in "100ms..=2m", at start;
        /// TLS handshakes at one time; more wait.
        pub tls_handshakes_max: u32 = "64" in "1..=4096", at start;
        /// How long browsers are told to come by HTTPS only (Strict-Transport-Security), which holds for all ports of the host's
        /// name; 0s is not at all. Never said without TLS.
        pub tls_hsts: Duration = "365d" in "0s..=3650d", at start;
        /// Serve without TLS on other than loopback addresses: keys of the API and all that is asked go over the network for
        /// everybody on the way to read. Otherwise the node does not start like that.
        pub plain_text_allowed: bool = "false", at start;
        /// Connections at one time; those beyond it are told so (503) and closed, unless they ask for `/health`. Sixteen more are kept for
        /// this machine.
        pub connections_max: u32 = "512" in "1..=65535", at start;
        /// The same of one address; a /64 of IPv6 counts as one. Not for this machine, where a proxy stands for many.
        pub connections_per_address: u32 = "64" in "1..=65535", at start;
        /// Bytes of a request's body; a larger one is refused (413).
        pub body_max: ByteSize = "4MiB" in "1KiB..=64MiB", at start;
        /// How long a connection may take, and may wait, until the header of its next request is complete.
        pub header_timeout: Duration = "30s" in "100ms..=10m", at start;
        /// How long a request may take from its header to the beginning of its answer, its body included.
        pub request_timeout: Duration = "30s" in "100ms..=10m", at start;
        /// How long a connection may take no byte of an answer that waits for it; then it is closed.
        pub write_timeout: Duration = "30s" in "100ms..=10m", at start;
        /// Streams (log, trace) at one time; more are refused (429).
        pub streams_max: u32 = "16" in "1..=1024", at start;
        /// Requests a second that may be refused for their token, Host or Origin; those beyond it get 429 and are counted,
        /// but not written to the audit log. Requests with a valid token are never held back by it.
        pub refusals_per_second: u32 = "10" in "1..=100000", at start;
        /// Refused attempts to change something that are written to the audit log within a minute, for each key and address. Further ones are
        /// refused like the others, and counted.
        pub audit_refused_per_minute: u32 = "30" in "1..=100000", at start;
        /// Size at which each file of the audit log, `audit.log` for changes and `refused.log` for refused attempts, is followed by a new one;
        /// one old file of each is kept.
        pub audit_file_max: ByteSize = "16MiB" in "64KiB..=1GiB", at start;
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

/// Where HTTP is served, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    Off,
    At(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Value for Listen {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let listen = match raw {
            Raw::Text(text) | Raw::String(text) if text == "off" => Some(Self::Off),
            Raw::Text(text) | Raw::String(text) => text.parse().ok().map(Self::At),
            _ => None,
        };
        let expected = "an IP address with its port, such as 127.0.0.1:18083 or [::1]:18083, or `off`";
        listen.ok_or_else(|| raw.expected(expected))
    }

    fn to_toml(&self) -> Option<String> {
        self.to_string().to_toml()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Listen, String> {
        Listen::from_raw(&Raw::Text(text.to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_or_off_is_where_http_is_served() {
        assert_eq!(read("off"), Ok(Listen::Off));
        assert_eq!(read("[::1]:80").map(|listen| listen.to_string()).as_deref(), Ok("[::1]:80"));
        for bad in ["", "on", "127.0.0.1", "localhost:80", "127.0.0.1:99999"] {
            assert!(read(bad).unwrap_err().contains("an IP address with its port"), "{bad}");
        }
    }

    /// A node without configuration can be operated from its own machine only.
    #[test]
    fn the_default_is_on_loopback() {
        let Listen::At(address) = HttpSettings::default().listen else { panic!("on") };
        assert!(address.ip().is_loopback());
        assert_eq!(address.port(), 18083);
    }
}
