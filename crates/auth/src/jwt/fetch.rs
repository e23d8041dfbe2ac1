//! Source of a JWK Set, and one fetch from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use ureq::Agent;
use ureq::http::header::{ACCEPT, CACHE_CONTROL, ETAG, HeaderMap, HeaderName, IF_NONE_MATCH, LOCATION};
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::error::JwtError;
use super::jwk::JWKS_MAX;
use super::keyring::read;
use super::settings::Jwt;

/// File or server.
#[derive(Debug)]
pub enum Origin {
    File(PathBuf),
    Server(Server),
}

/// Result of a fetch.
#[derive(Debug)]
pub struct Fetched {
    /// `None` when the document is unchanged.
    pub document: Option<Vec<u8>>,
    pub etag: Option<String>,
    /// Time for which the server declares the document fresh.
    pub max_age: Option<Duration>,
}

/// Server with a JWK Set over HTTP.
#[derive(Debug)]
pub struct Server {
    agent: Agent,
    uri: Uri,
    timeout: Duration,
}

impl Origin {
    /// Returns the configured source; `None` when neither a file nor a server of keys is configured.
    ///
    /// # Errors
    /// The URL is invalid, or would be fetched from another machine without TLS; or the authorities cannot be read.
    pub fn of(settings: &Jwt) -> Result<Option<Self>, JwtError> {
        if let Some(path) = &settings.jwks_file {
            return Ok(Some(Self::File(path.clone())));
        }
        let Some(url) = &settings.jwks_url else { return Ok(None) };
        let server = Server::new(url, settings.jwks_ca_file.as_deref(), settings.jwks_timeout)?;
        Ok(Some(Self::Server(server)))
    }

    /// # Errors
    /// The failure, as a sentence.
    pub fn fetch(&self, etag: Option<&str>) -> Result<Fetched, String> {
        match self {
            Self::File(path) => {
                let document = read(path).map_err(|error| error.to_string())?;
                Ok(Fetched { document: Some(document), etag: None, max_age: None })
            }
            Self::Server(server) => server.fetch(etag),
        }
    }

    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

impl Server {
    fn new(url: &str, authorities: Option<&Path>, timeout: Duration) -> Result<Self, JwtError> {
        let wrong = |why: &str| JwtError::Settings(format!("jwt.jwks_url {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("is not a URL"))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("has no host"))?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong("has a user or password in it; a JWK Set is public and needs none"));
        }
        let roots = match uri.scheme_str() {
            Some("https") => roots(authorities)?,
            Some("http") if is_loopback(host) => Vec::new(),
            Some("http") => {
                return Err(wrong(
                    "has to begin with https://: others on the network could replace the keys",
                ));
            }
            _ => return Err(wrong("has to begin with https://")),
        };
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(roots))
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, on the same server only.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .max_idle_connections(0)
            .max_response_header_size(HEADERS_MAX)
            .user_agent(concat!("meridian/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Ok(Self { agent: config.new_agent(), uri, timeout })
    }

    fn fetch(&self, etag: Option<&str>) -> Result<Fetched, String> {
        let end = Instant::now() + self.timeout;
        let mut uri = self.uri.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut response = self.get(&uri, etag, end)?;
            let headers = response.headers();
            match response.status().as_u16() {
                200 => {
                    let (etag, max_age) = (text(headers, ETAG).map(str::to_owned), max_age(headers));
                    let body = response.body_mut().with_config().limit(JWKS_MAX as u64).read_to_vec();
                    let document = body.map_err(|error| self.failure(&error))?;
                    return Ok(Fetched { document: Some(document), etag, max_age });
                }
                304 if etag.is_some() => {
                    let max_age = max_age(headers);
                    return Ok(Fetched { document: None, etag: etag.map(str::to_owned), max_age });
                }
                301 | 302 | 303 | 307 | 308 => {
                    let to = text(headers, LOCATION).and_then(|to| same_server(&uri, to));
                    uri = to.ok_or_else(|| {
                        let from = self.name();
                        format!("{from}: it redirects to another server, or nowhere, which is not followed")
                    })?;
                }
                status => return Err(format!("{}: HTTP status {status}", self.name())),
            }
        }
        Err(format!("{}: it redirects too often", self.name()))
    }

    fn get(&self, uri: &Uri, etag: Option<&str>, end: Instant) -> Result<Response<ureq::Body>, String> {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut request = self.agent.get(uri).header(ACCEPT, "application/json");
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let request = request.config().timeout_global(Some(left)).build();
        request.call().map_err(|error| self.failure(&error))
    }

    /// Returns the URL without its query, which may contain secrets.
    fn name(&self) -> String {
        let uri = &self.uri;
        format!("{}://{}{}", uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default(), uri.path())
    }

    fn failure(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => format!("{}: no answer within {:?}", self.name(), self.timeout),
            ureq::Error::BodyExceedsLimit(_) => {
                format!("{}: it is larger than {JWKS_MAX} bytes", self.name())
            }
            error => format!("{}: {error}", self.name()),
        }
    }
}

/// Returns the authorities of the file, or those of the system.
fn roots(path: Option<&Path>) -> Result<Vec<Certificate<'static>>, JwtError> {
    let Some(path) = path else {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let why = "this system has no list of authorities to check the server of jwt.jwks_url by; name one with \
                       jwt.jwks_ca_file, or install the system's (package ca-certificates)";
            return Err(JwtError::Settings(why.to_owned()));
        }
        return Ok(found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect());
    };
    let pem = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem)
        .map(|der| der.map(|der| Certificate::from_der(&der).to_owned()))
        .collect();
    match all {
        Ok(all) if all.is_empty() => Err(JwtError::file(path, "there is no certificate in it (PEM)")),
        Ok(all) => Ok(all),
        Err(error) => Err(JwtError::file(path, format!("it is not a PEM file ({error})"))),
    }
}

/// Returns whether a host name always stands for this machine.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Returns the target of a redirect, if it is the same server with the same protocol.
fn same_server(from: &Uri, to: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    if to.starts_with('/') && !to.starts_with("//") {
        return format!("{scheme}://{authority}{to}").parse().ok();
    }
    let to: Uri = to.parse().ok()?;
    (to.scheme_str() == Some(scheme) && to.authority() == Some(authority)).then_some(to)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the `max-age` of `Cache-Control`. A document that must not be kept gets the minimum that the settings allow.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let directives = text(headers, CACHE_CONTROL)?.to_ascii_lowercase();
    let mut directives = directives.split(',').map(str::trim);
    directives.find_map(|directive| match directive {
        "no-store" | "no-cache" => Some(Duration::ZERO),
        _ => directive.strip_prefix("max-age=")?.parse().ok().map(Duration::from_secs),
    })
}

const REDIRECTS_MAX: usize = 3;
const HEADERS_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_fetched_over_a_network_without_tls() {
        let new = |url: &str| Server::new(url, None, Duration::from_secs(1)).map(|_| ());
        for url in ["http://127.0.0.1:80/k", "http://localhost/k", "http://[::1]:9/k", "http://127.9.9.9/k"] {
            assert!(new(url).is_ok(), "{url}");
        }
        for url in [
            "http://192.0.2.1/k",
            "http://localhost.example.com/k",
            "http://127.0.0.1.example.com/k",
            "http://user:pw@127.0.0.1/k",
            "http://127.0.0.1@192.0.2.1/k",
            "file:///etc/passwd",
            "/k",
            "",
        ] {
            assert!(matches!(new(url), Err(JwtError::Settings(_))), "{url}");
        }
    }

    #[test]
    fn redirects_stay_on_the_same_server() {
        let from: Uri = "https://id.example.com:8443/keys".parse().unwrap();
        let to = |to: &str| same_server(&from, to).map(|uri| uri.to_string());
        assert_eq!(to("/v2/keys?a=b").as_deref(), Some("https://id.example.com:8443/v2/keys?a=b"));
        assert_eq!(to("https://id.example.com:8443/x").as_deref(), Some("https://id.example.com:8443/x"));
        for other in [
            "https://id.example.com/x",
            "http://id.example.com:8443/x",
            "//other.example.com/x",
            "https://other.example.com:8443/x",
            "https://id.example.com:8443@other.example.com/x",
            "https://user@id.example.com:8443/x",
            "keys2",
            "",
        ] {
            assert_eq!(to(other), None, "{other}");
        }
    }

    #[test]
    fn cache_control_sets_the_interval() {
        let age = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, value.parse().unwrap());
            max_age(&headers)
        };
        assert_eq!(age("public, Max-Age=60, must-revalidate"), Some(Duration::from_secs(60)));
        assert_eq!(age("no-store"), Some(Duration::ZERO));
        assert_eq!(age("max-age=x"), None);
        assert_eq!(age("s-maxage=5"), None);
        assert_eq!(max_age(&HeaderMap::new()), None);
    }
}
