//! The settings of the HTTP services.

use std::path::PathBuf;
use std::time::Duration;

use settings::{ByteSize, choices, section};

choices! {
    /// How an HTTP service is asked.
    pub enum Method {
        /// With a body of JSON.
        Post = "post",
        /// Without a body: the URL says everything.
        Get = "get",
    }
}

/// Both services are set alike: two sections of one shape.
macro_rules! services {
    ($($(#[doc = $doc:literal])+ [$section:ident] $Struct:ident { $(#[doc = $url:literal])+ url, $(#[doc = $body:literal])+ body })+) => {$(
        section! {
            $(#[doc = $doc])+
            [$section]
            pub struct $Struct {
                $(#[doc = $url])+
                pub url: Option<String> = "", at start;
                /// How the service is asked.
                pub method: Method = "post", on reload;
                $(#[doc = $body])+
                pub body: Option<String> = "", on reload;
                /// A file with headers for every request, one `Name: value` a line, such as `Authorization: Bearer ...`. Keep it as secret
                /// as what is in it.
                pub headers_file: Option<PathBuf> = "", on reload;
                /// How long a request may take in all: connecting, TLS, and the last byte of the answer.
                pub timeout: Duration = "3s" in "10ms..=1m", on reload;
                /// Requests at one time, each on a connection of its own that is kept for the next.
                pub connections_max: u32 = "16" in "1..=1024", on reload;
                /// Questions that wait for an answer; those beyond it fail.
                pub waiting_max: u32 = "10000" in "1..=1000000", on reload;
                /// The authorities (PEM) that vouch for an `https` service; unset, those of the operating system.
                pub ca_file: Option<PathBuf> = "", on reload;
                /// The certificate chain (PEM) that is shown to the service.
                pub client_certificate: Option<PathBuf> = "", on reload;
                /// The private key (PEM) of `client_certificate`.
                pub client_key: Option<PathBuf> = "", on reload;
                /// Largest body of an answer that is read.
                pub response_max: ByteSize = "64KiB" in "64B..=1MiB", on reload;
                /// How long a permission is remembered; 0 remembers none.
                pub cache_ttl_allow: Duration = "30s" in "0s..=1h", on reload;
                /// How long a refusal, or that the service does not know the client, is remembered; 0 remembers none.
                pub cache_ttl_deny: Duration = "5s" in "0s..=1h", on reload;
                /// Answers that are remembered; the oldest go first.
                pub cache_max: u32 = "100000" in "0..=1000000", on reload;
                /// Outages in a row (no connection, no answer in time, 429, 502, 503, 504) that open the circuit: then nothing is asked for a
                /// while.
                pub failures_max: u32 = "5" in "1..=1000", on reload;
                /// Outages among at least 20 requests of 10 seconds, in percent, that open it too; 0 does not count them.
                pub failures_percent: u32 = "50" in "0..=100", on reload;
                /// How long the circuit stays open before one request tries again; twice as long after each that fails.
                pub open_for: Duration = "5s" in "10ms..=1h", on reload;
                /// Longest time that the circuit stays open.
                pub open_for_max: Duration = "1m" in "10ms..=1h", on reload;
            }
        }

        impl $Struct {
            /// `None` without a URL: there is no such service.
            pub(super) fn service(&self) -> Option<Service> {
                let Self {
                    url, method, body, headers_file, timeout, connections_max, waiting_max, ca_file, client_certificate, client_key,
                    response_max, cache_ttl_allow, cache_ttl_deny, cache_max, failures_max, failures_percent, open_for, open_for_max,
                } = self.clone();
                Some(Service {
                    section: stringify!($section),
                    url: url?,
                    method, body, headers_file, timeout, connections_max, waiting_max, ca_file, client_certificate, client_key,
                    response_max, cache_ttl_allow, cache_ttl_deny, cache_max, failures_max, failures_percent, open_for, open_for_max,
                })
            }
        }
    )+};
}

services! {
    /// An HTTP service that is asked who may connect: the link `http` of the chain. See docs/http-auth.md.
    [http_auth]
    HttpAuthSettings {
        /// Where the service is: `https://...`, or `http://` to a loopback address. Path and query may have placeholders: `${clientid}`,
        /// `${username}`, `${password}`, `${password_base64}`, `${peer}`, `${listener}`, `${cert_cn}`, `${cert_subject}`.
        url,
        /// What is sent with `post`: JSON with placeholders inside its strings. Unset, an object of all of them but `password_base64`.
        body
    }
    /// An HTTP service that is asked what clients may do. See docs/http-auth.md.
    [http_acl]
    HttpAclSettings {
        /// Where the service is: `https://...`, or `http://` to a loopback address. Path and query may have placeholders: `${clientid}`,
        /// `${username}`, `${peer}`, `${listener}`, `${cert_cn}`, `${cert_subject}`, `${action}` (`publish` or `subscribe`), `${topic}`, `${qos}`,
        /// `${retain}`.
        url,
        /// What is sent with `post`: JSON with placeholders inside its strings. Unset, an object of all of them.
        body
    }
}

/// What both sections say.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name in the configuration.
    pub section: &'static str,
    pub url: String,
    pub method: Method,
    pub body: Option<String>,
    pub headers_file: Option<PathBuf>,
    pub timeout: Duration,
    pub connections_max: u32,
    pub waiting_max: u32,
    pub ca_file: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    pub response_max: ByteSize,
    pub cache_ttl_allow: Duration,
    pub cache_ttl_deny: Duration,
    pub cache_max: u32,
    pub failures_max: u32,
    pub failures_percent: u32,
    pub open_for: Duration,
    pub open_for_max: Duration,
}
