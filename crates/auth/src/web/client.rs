//! HTTP client of one service. It blocks its thread; its connections are shared and kept open.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use ureq::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ureq::http::{Method, Request};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Error};

use crate::web::service::Fault;
use crate::web::settings::{self, Service};
use crate::web::template::Rendered;

/// Not `Debug`: its headers contain secrets.
pub struct Client {
    agent: Agent,
    method: Method,
    headers: HeaderMap,
    response_max: u64,
    timeout: Duration,
}

/// Answer with any status.
pub struct Reply {
    pub status: u16,
    /// Body, only with status 200.
    pub body: Vec<u8>,
}

impl Client {
    /// Reads the files. `https` says whether the service uses TLS.
    ///
    /// # Errors
    /// The setting, and a sentence about its fault or that of its file.
    pub fn open(settings: &Service, https: bool) -> Result<Self, (&'static str, String)> {
        let connections = settings.connections_max as usize;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Requests are for this service only, and never for another one that it names.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("meridian/", env!("CARGO_PKG_VERSION")))
            .max_response_header_size(HEADERS_MAX)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .max_idle_age(IDLE_MAX)
            .timeout_global(Some(settings.timeout));
        let config = if https { config.tls_config(tls(settings)?) } else { config };
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let method = match settings.method {
            settings::Method::Get => Method::GET,
            settings::Method::Post => {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Method::POST
            }
        };
        if let Some(path) = &settings.headers_file {
            let text = read(path, HEADERS_FILE_MAX).map_err(|error| ("headers_file", error))?;
            for (name, value) in parse_headers(&text)
                .map_err(|error| ("headers_file", format!("{}:{error}", path.display())))?
            {
                headers.insert(name, value);
            }
        }
        let (response_max, timeout) = (settings.response_max.bytes(), settings.timeout);
        Ok(Self { agent: config.build().new_agent(), method, headers, response_max, timeout })
    }

    /// Sends one request, and repeats it once when a kept connection turns out to be closed.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub fn ask(&self, request: &Rendered) -> Result<Reply, Fault> {
        let began = Instant::now();
        match self.send(request) {
            // Services may close connections at any time, while a request is on its way. Asking twice is harmless.
            Err(Error::Io(error)) if lost(error.kind()) && began.elapsed() < self.timeout / 4 => {
                self.send(request).map_err(Fault::of)
            }
            Err(error) => Err(Fault::of(error)),
            Ok(reply) => Ok(reply),
        }
    }

    fn send(&self, rendered: &Rendered) -> Result<Reply, Error> {
        let mut request = Request::builder().method(self.method.clone()).uri(&rendered.url);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let response = match &rendered.body {
            Some(body) => self.agent.run(request.body(body.as_slice())?)?,
            None => self.agent.run(request.body(())?)?,
        };
        let (parts, mut body) = response.into_parts();
        let status = parts.status.as_u16();
        let read = body.with_config().limit(self.response_max).read_to_vec();
        // Other bodies are read only so that the connection can be kept.
        let body = if status == 200 { read? } else { Vec::new() };
        Ok(Reply { status, body })
    }
}

fn lost(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

impl Fault {
    /// Describes the error without any part of the request, because a URL may contain a password.
    fn of(error: Error) -> Self {
        match error {
            Error::Timeout(_) => Self::Timeout,
            Error::Io(error) if error.kind() == ErrorKind::TimedOut => Self::Timeout,
            Error::Io(error) => Self::Connect(error.to_string()),
            Error::HostNotFound => Self::Connect("its host name has no address".to_owned()),
            Error::Rustls(error) => Self::Connect(format!("TLS: {error}")),
            Error::Tls(error) => Self::Connect(format!("TLS: {error}")),
            Error::ConnectionFailed => Self::Connect("none of its addresses accepts connections".to_owned()),
            Error::Protocol(_) => Self::Body("it does not speak HTTP/1.1"),
            Error::BodyExceedsLimit(_) => Self::Body("the answer is larger than response_max"),
            Error::LargeResponseHeader(..) => Self::Body("the headers of the answer are larger than 16 KiB"),
            _ => Self::Connect("the request cannot be made".to_owned()),
        }
    }
}

fn tls(settings: &Service) -> Result<TlsConfig, (&'static str, String)> {
    let (authorities, setting) = match &settings.ca_file {
        Some(path) => (certificates(path), "ca_file"),
        None => (system_authorities(), "ca_file"),
    };
    let authorities = authorities.map_err(|error| (setting, error))?;
    let mut roots = RootCertStore::empty();
    // Systems have a few authorities that can no longer be parsed. In a configured file, each must be valid.
    let (_, unreadable) = roots.add_parsable_certificates(authorities.iter().cloned());
    if let Some(path) = settings.ca_file.as_ref().filter(|_| unreadable > 0) {
        return Err((
            "ca_file",
            format!("{}: {unreadable} certificates in it are not authorities", path.display()),
        ));
    }
    let shown = match (&settings.client_certificate, &settings.client_key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate).map_err(|error| ("client_certificate", error))?;
            let pem = read(key, KEY_FILE_MAX).map_err(|error| ("client_key", error))?;
            let wrong = |error: &dyn std::fmt::Display| ("client_key", format!("{}: {error}", key.display()));
            let ours = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| wrong(&error))?;
            let theirs = PrivateKey::from_pem(pem.as_bytes()).map_err(|error| wrong(&error))?;
            Some((chain, ours, theirs))
        }
        (Some(_), None) => return Err(("client_key", "client_certificate needs its private key".to_owned())),
        (None, Some(_)) => return Err(("client_certificate", "client_key needs its certificate".to_owned())),
    };
    let provider = Arc::new(ring::default_provider());
    if let Some((chain, key, _)) = &shown {
        // rustls assumes that they match.
        ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .and_then(|builder| {
                builder.with_root_certificates(roots).with_client_auth_cert(chain.clone(), key.clone_key())
            })
            .map_err(|error| ("client_certificate", format!("with client_key: {error}")))?;
    }
    let shown = shown.map(|(chain, _, key)| {
        let chain: Vec<_> = chain.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
        ClientCert::new_with_certs(&chain, key)
    });
    let authorities: Vec<_> = authorities.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&authorities))
        .client_cert(shown)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(found) if found.is_empty() => {
            Err(format!("{}: there is no certificate in it (PEM)", path.display()))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn system_authorities() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let path = found.ok_or("this system has no list of authorities in the usual places: name a file")?;
    certificates(&path)
}

fn read(path: &Path, max: u64) -> Result<String, String> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(max + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > max {
        return Err(format!("{}: it is larger than {max} bytes", path.display()));
    }
    Ok(text)
}

/// Parses header lines. Errors name the line and never its contents.
fn parse_headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), index + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) =
            line.split_once(':').ok_or_else(|| format!("{number}: expected `Name: value`"))?;
        let name = HeaderName::from_bytes(name.trim().as_bytes())
            .map_err(|_| format!("{number}: the text before `:` is not the name of a header"))?;
        if OURS.contains(&name) {
            return Err(format!("{number}: `{name}` is set by the client itself"));
        }
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| {
            format!("{number}: the value of `{name}` has characters that are not allowed in headers")
        })?;
        value.set_sensitive(true);
        found.push((name, value));
    }
    Ok(found)
}

/// Headers that determine the length or the destination of a message.
const OURS: [HeaderName; 8] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::EXPECT,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
];
const HEADERS_FILE_MAX: u64 = 64 << 10;
const KEY_FILE_MAX: u64 = 64 << 10;
const HEADERS_MAX: usize = 16 << 10;
/// Idle time after which a connection is closed: many services close theirs after a minute.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Files in which operating systems keep their trusted authorities.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_their_values_never_shown() {
        let found = parse_headers("# secrets\n\nAuthorization: Bearer t0ken:x \r\nX-Key:k\n").unwrap();
        let found: Vec<_> =
            found.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(found, [("authorization", "Bearer t0ken:x"), ("x-key", "k")]);
        let shown = format!("{:?}", parse_headers("Authorization: Bearer t0ken").unwrap());
        assert!(!shown.contains("t0ken"), "{shown}");
    }

    #[test]
    fn errors_name_a_wrong_line_and_do_not_show_it() {
        for (text, says) in [
            ("A: b\nBearer-t0ken", "2: expected `Name: value`"),
            ("t0 ken: b", "1: the text before"),
            ("A: t0\u{7f}ken", "1: the value of `a`"),
            ("Content-Length: 3", "`content-length` is set by"),
            ("host: evil", "`host` is set by"),
        ] {
            let error = parse_headers(text).unwrap_err();
            assert!(error.contains(says) && !error.contains("t0"), "{text}: {error}");
        }
    }
}
