//! Settings of connectors: `[[connector]]`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use settings::{ByteSize, HostPorts, choices, section};
use tls::{OptionStyle, TlsFiles};

use crate::SinkProblem;

choices! {
    /// Kind of system that a connector leads to.
    pub enum ConnectorKind {
        /// An HTTP or HTTPS server.
        Http = "http",
        /// PostgreSQL 12 or later, TimescaleDB, or another server that speaks its protocol.
        PostgreSql = "postgresql",
        /// Apache Kafka 2.8 or later, or another server that speaks its protocol.
        Kafka = "kafka",
        /// A server that accepts line protocol over HTTP, such as InfluxDB and QuestDB.
        LineProtocol = "line_protocol",
        /// Files of this node with a line for each record.
        File = "file",
    }
}

section! {
    /// System outside the broker that actions write to. Several actions can use one connector.
    [connector]
    pub struct ConnectorSettings {
        /// Name of the connector.
        pub name: String = "", at start;
        /// Tenant that the connector belongs to. Only actions of this tenant can use it. Empty: it belongs to no
        /// tenant.
        pub tenant: String = "", at start;
        /// Kind of system.
        pub kind: ConnectorKind = "http", at start;
        /// Address of an `http` or `line_protocol` server: `http://HOST[:PORT][/PATH]` or `https://...`.
        pub url: Option<String> = "", at start;
        /// Addresses of a `postgresql` or `kafka` server, separated by commas: the first one that answers is used.
        pub address: Option<HostPorts> = "", at start;
        /// Name of the database: of `postgresql`, and the value of `db` or `bucket` for `line_protocol`.
        pub database: String = "", at start;
        /// Organization of a bucket of InfluxDB 2 and 3. Without one, `database` is sent as `db`.
        pub organization: String = "", at start;
        /// User name. For `http` and `line_protocol` with a password file it becomes Basic authentication.
        pub username: Option<String> = "", at start;
        /// File with the password.
        pub password_file: Option<PathBuf> = "", at start;
        /// File with a token, sent as `Authorization: Bearer` by `http` and `Authorization: Token` by `line_protocol`.
        pub token_file: Option<PathBuf> = "", at start;
        /// File with a key. `http` signs each body with HMAC-SHA256 and sends the result in `X-Signature`.
        pub signature_file: Option<PathBuf> = "", at start;
        /// Authentication of `kafka` with a user name.
        pub sasl: Sasl = "scram_sha_512", at start;
        /// Connect to `postgresql` or `kafka` with TLS. The others use TLS when their URL says `https`.
        pub tls: bool = "false", at start;
        /// Authorities (PEM) that verify the certificate of the server. Unset: those of the system.
        pub tls_ca: Option<PathBuf> = "", at start;
        /// Certificate chain (PEM) of the client.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// Private key (PEM) of `tls_certificate`.
        pub tls_key: Option<PathBuf> = "", at start;
        /// Maximum time of one attempt to write, with the time to connect.
        pub timeout: Duration = "10s" in "100ms..=5m", at start;
        /// Maximum size of an answer that is read.
        pub response_max: ByteSize = "64KiB" in "1KiB..=16MiB", at start;
        /// Directory of the files of `file`.
        pub directory: Option<PathBuf> = "", at start;
        /// Size of a file at which a new one begins.
        pub file_size_max: ByteSize = "64MiB" in "4KiB..=64GiB", at start;
        /// Maximum number of finished files of each action. The oldest one is removed.
        pub files_max: u32 = "16" in "1..=100000", at start;
        /// Time after which a new file begins, if the current one has lines; 0 is never.
        pub file_age_max: Duration = "0s", at start;
    }
}

impl ConnectorSettings {
    /// Reads the files of TLS. `style` says how errors name TLS itself.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn client_tls(&self, style: OptionStyle) -> Result<Arc<ClientConfig>, SinkProblem> {
        let files = TlsFiles {
            ca: self.tls_ca.as_deref(),
            certificate: self.tls_certificate.as_deref(),
            key: self.tls_key.as_deref(),
        };
        files.config(style).map_err(|(setting, error)| SinkProblem::new(setting, error))
    }
}

choices! {
    /// SASL mechanism.
    pub enum Sasl {
        /// User name and password in clear; use it with TLS only.
        Plain = "plain",
        /// SCRAM-SHA-256.
        ScramSha256 = "scram_sha_256",
        /// SCRAM-SHA-512.
        ScramSha512 = "scram_sha_512",
    }
}
