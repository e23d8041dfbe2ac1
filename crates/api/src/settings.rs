//! Settings of the HTTP server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::proxies::Proxies;
use settings::{ByteSize, Invalid, Raw, Value, choices, section};

section! {
    /// The HTTP server: the API under `/api/v1`, `/metrics`, `/health` and the dashboard.
    [http]
    pub struct HttpSettings {
        /// Address of the HTTP server: an IP address with its port, such as `127.0.0.1:18083`, or `off`. Addresses
        /// other than loopback need an API key or an account (`meridian key add`, `meridian account add`). Port 0 lets
        /// the system choose.
        pub listen: Listen = "127.0.0.1:18083", at start;
        /// Certificate chain (PEM) of the HTTP server, which turns HTTPS on. A reload reads the certificate files
        /// again.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// Private key (PEM) of the certificate.
        pub tls_key: Option<PathBuf> = "", at start;
        /// Authorities (PEM) of client certificates. When set, every client must present a certificate, in addition to
        /// its API key. This includes browsers and programs that collect metrics.
        pub tls_client_ca: Option<PathBuf> = "", at start;
        /// Lowest version of TLS.
        pub tls_version_min: TlsVersion = "1.2", at start;
        /// Maximum duration of a TLS handshake, including the wait for its turn.
        pub tls_handshake_timeout: Duration = "10s" in "100ms..=2m", at start;
        /// Maximum number of simultaneous TLS handshakes; further ones wait.
        pub tls_handshakes_max: u32 = "64" in "1..=4096", at start;
        /// Time for which browsers use HTTPS only (Strict-Transport-Security), on all ports of the host's name; 0s
        /// sends no header. The header is never sent without TLS.
        pub tls_hsts: Duration = "365d" in "0s..=3650d", at start;
        /// Allow HTTP without TLS on addresses other than loopback. API keys and all requests then cross the network
        /// unencrypted. Without this setting the node refuses to start in that case.
        pub plain_text_allowed: bool = "false", at start;
        /// Maximum number of connections. Further ones get 503 and are closed, unless they request `/health`. Sixteen
        /// more are reserved for this machine.
        pub connections_max: u32 = "512" in "1..=65535", at start;
        /// Maximum number of connections of one address; a /64 of IPv6 counts as one. It does not apply to this
        /// machine, where a proxy connects for many clients.
        pub connections_per_address: u32 = "64" in "1..=65535", at start;
        /// Maximum size of a request's body; a larger one is refused (413).
        pub body_max: ByteSize = "4MiB" in "1KiB..=64MiB", at start;
        /// Maximum time until the header of the next request of a connection is complete, including idle time.
        pub header_timeout: Duration = "30s" in "100ms..=10m", at start;
        /// Maximum time from the header of a request to the beginning of its answer, including the request's body.
        pub request_timeout: Duration = "30s" in "100ms..=10m", at start;
        /// Time after which a connection is closed when it accepts no byte of a waiting answer.
        pub write_timeout: Duration = "30s" in "100ms..=10m", at start;
        /// Maximum number of streams (log, trace); further ones are refused (429).
        pub streams_max: u32 = "16" in "1..=1024", at start;
        /// Maximum number of requests per second that are refused with a specific answer because of their token, Host
        /// or Origin. Further ones get 429 and are counted, but are not written to the audit log. Requests with a valid
        /// token are not limited.
        pub refusals_per_second: u32 = "10" in "1..=100000", at start;
        /// Networks of reverse proxies whose X-Forwarded-For header is believed, such as `10.0.0.0/8`, separated by
        /// commas. The audit log and the limits on wrong logins then see the address of the client instead of that of
        /// the proxy.
        pub proxy_networks: String = "", at start;
        /// Maximum time from a login with name and password to the end of its session.
        pub session_lifetime: Duration = "12h" in "1m..=365d", at start;
        /// Time without a request after which a session ends. A page of the dashboard sends requests while it is open.
        pub session_idle: Duration = "1h" in "1m..=365d", at start;
        /// Maximum number of sessions of one account; a further login ends the oldest one.
        pub sessions_per_account: u32 = "16" in "1..=1000", at start;
        /// Maximum number of sessions; a further login ends the oldest one.
        pub sessions_max: u32 = "1000" in "1..=10000", at start;
        /// Directory of secrets, an absolute path without `..`. The files with secrets that connectors, bridges and
        /// cluster links name are below it: `password_file`, `token_file`, `signature_file`, `secret_file` and
        /// `tls_key`. Connectors of tenants have `actions.tenant_directory` instead. Unset: an admin of the API can
        /// name any file that the node may read, and have its first line sent to another system.
        pub secrets_directory: Option<PathBuf> = "", at start;
        /// Maximum number of refused attempts that the audit log records within a minute, for each key and address.
        /// Further ones are refused like the others, and counted.
        pub audit_refused_per_minute: u32 = "30" in "1..=100000", at start;
        /// Size at which a file of the audit log is followed by a new one: `audit.log` for changes, `refused.log` for
        /// refused attempts. One old file of each is kept.
        pub audit_file_max: ByteSize = "16MiB" in "64KiB..=1GiB", at start;
    }
}

impl HttpSettings {
    /// Checks values that have no type of their own.
    ///
    /// # Errors
    /// The setting, and its fault.
    pub fn check(&self) -> Result<(), String> {
        Proxies::parse(&self.proxy_networks)
            .map(drop)
            .map_err(|word| format!("http.proxy_networks: {word:?} is not a network such as 10.0.0.0/8"))
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

/// Address of the HTTP server, or none.
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
