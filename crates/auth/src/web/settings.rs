//! Settings of the HTTP services.

use std::path::PathBuf;
use std::time::Duration;

use settings::{ByteSize, choices, section};

choices! {
    /// HTTP method of requests to a service.
    pub enum Method {
        /// POST with a JSON body.
        Post = "post",
        /// GET without a body: the URL contains everything.
        Get = "get",
    }
}

/// Defines two sections of the same form, one for each service.
macro_rules! services {
    ($($(#[doc = $doc:literal])+ [$section:ident] $Struct:ident { $(#[doc = $url:literal])+ url, $(#[doc = $body:literal])+ body })+) => {$(
        section! {
            $(#[doc = $doc])+
            [$section]
            pub struct $Struct {
                $(#[doc = $url])+
                pub url: Option<String> = "", at start;
                /// HTTP method of the requests.
                pub method: Method = "post", on reload;
                $(#[doc = $body])+
                pub body: Option<String> = "", on reload;
                /// File with headers for every request, one `Name: value` a line, such as `Authorization: Bearer ...`.
                /// Protect the file like the secrets in it.
                pub headers_file: Option<PathBuf> = "", on reload;
                /// Maximum time of a request: connecting, TLS, and the last byte of the answer.
                pub timeout: Duration = "3s" in "10ms..=1m", on reload;
                /// Maximum number of simultaneous requests. Each has its own connection, which is kept for the next
                /// one.
                pub connections_max: u32 = "16" in "1..=1024", on reload;
                /// Maximum number of requests that wait for an answer; others fail.
                pub waiting_max: u32 = "10000" in "1..=1000000", on reload;
                /// Authorities (PEM) that verify an `https` service. Unset: those of the operating system.
                pub ca_file: Option<PathBuf> = "", on reload;
                /// Certificate chain (PEM) that is presented to the service.
                pub client_certificate: Option<PathBuf> = "", on reload;
                /// Private key (PEM) of `client_certificate`.
                pub client_key: Option<PathBuf> = "", on reload;
                /// Maximum size of the body of an answer.
                pub response_max: ByteSize = "64KiB" in "64B..=1MiB", on reload;
                /// Time for which a permission is remembered; 0 remembers none.
                pub cache_ttl_allow: Duration = "30s" in "0s..=1h", on reload;
                /// Time for which a refusal, or that the service does not know the client, is remembered; 0 remembers
                /// none.
                pub cache_ttl_deny: Duration = "5s" in "0s..=1h", on reload;
                /// Maximum number of remembered answers; the oldest are removed first.
                pub cache_max: u32 = "100000" in "0..=1000000", on reload;
                /// Number of consecutive outages (no connection, no answer in time, 429, 502, 503, 504) that open the
                /// circuit: then no requests are sent for a time.
                pub failures_max: u32 = "5" in "1..=1000", on reload;
                /// Percentage of outages among at least 20 requests of 10 seconds that opens the circuit too; 0
                /// disables this.
                pub failures_percent: u32 = "50" in "0..=100", on reload;
                /// Time for which the circuit stays open before one request tries again. It doubles after each failure.
                pub open_for: Duration = "5s" in "10ms..=1h", on reload;
                /// Maximum time for which the circuit stays open.
                pub open_for_max: Duration = "1m" in "10ms..=1h", on reload;
            }
        }

        impl $Struct {
            /// Returns the settings of the service; `None` without a URL.
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
    /// HTTP service that decides who may connect: the link `http` of the chain. See docs/http-auth.md.
    [http_auth]
    HttpAuthSettings {
        /// URL of the service: `https://...`, or `http://` to a loopback address. Path and query may have placeholders:
        /// `${clientid}`, `${username}`, `${password}`, `${password_base64}`, `${peer}`, `${listener}`, `${cert_cn}`,
        /// `${cert_subject}`.
        url,
        /// Body of `post` requests: JSON with placeholders inside its strings. Unset: an object of all of them but
        /// `password_base64`.
        body
    }
    /// HTTP service that decides what clients may do. See docs/http-auth.md.
    [http_acl]
    HttpAclSettings {
        /// URL of the service: `https://...`, or `http://` to a loopback address. Path and query may have placeholders:
        /// `${clientid}`, `${username}`, `${peer}`, `${listener}`, `${cert_cn}`, `${cert_subject}`, `${action}`
        /// (`publish` or `subscribe`), `${topic}`, `${qos}`, `${retain}`.
        url,
        /// Body of `post` requests: JSON with placeholders inside its strings. Unset: an object of all of them.
        body
    }
}

/// Settings that both sections have.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name of the section in the configuration.
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
