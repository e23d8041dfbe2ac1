//! HTTPS: certificates, and their use by connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use tls::{Expiry, ExpiryKind, TlsError, pem};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::paced::Paced;
use crate::settings::{HttpSettings, TlsVersion};

/// State that all connections share.
pub(crate) struct Https {
    files: ArcSwap<Files>,
    /// Permits for handshakes: they cost far more than requests, so their number is limited.
    handshakes: Semaphore,
    timeout: Duration,
    write_timeout: Duration,
}

/// Contents of the files.
struct Files {
    config: Arc<ServerConfig>,
    expiries: Vec<Expiry>,
}

impl std::fmt::Debug for Https {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Https").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Reason why a connection is not served.
pub(crate) enum NotServed {
    /// The first byte is not that of TLS: the client used http instead of https.
    PlainText(TcpStream),
    Failed(io::Error),
    TooSlow,
}

impl Https {
    /// Reads the files; `None` without a certificate.
    ///
    /// # Errors
    /// A file cannot be read, or the files do not match.
    pub fn read(settings: &HttpSettings) -> Result<Option<Self>, CertificateError> {
        let Some(files) = read(settings)? else { return Ok(None) };
        Ok(Some(Self {
            files: ArcSwap::from_pointee(files),
            handshakes: Semaphore::new(settings.tls_handshakes_max as usize),
            timeout: settings.tls_handshake_timeout,
            write_timeout: settings.write_timeout,
        }))
    }

    /// Performs the handshake, which may wait for others.
    pub async fn accept(&self, stream: TcpStream) -> Result<TlsStream<Paced>, NotServed> {
        let shake = async {
            // A silent connection takes no permit.
            let mut first = [0];
            if stream.peek(&mut first).await.map_err(NotServed::Failed)? == 0 {
                return Err(NotServed::Failed(io::ErrorKind::UnexpectedEof.into()));
            }
            if first[0] != HANDSHAKE {
                return Err(NotServed::PlainText(stream));
            }
            let permit = self.handshakes.acquire().await;
            let _permit = permit.map_err(|closed| NotServed::Failed(io::Error::other(closed)))?;
            let acceptor = TlsAcceptor::from(self.files.load().config.clone());
            acceptor.accept(Paced::new(stream, self.write_timeout)).await.map_err(NotServed::Failed)
        };
        tokio::time::timeout(self.timeout, shake).await.unwrap_or(Err(NotServed::TooSlow))
    }
}

/// Content type of a handshake record [RFC 8446, 5.1].
const HANDSHAKE: u8 = 22;

/// Certificates of a server that runs, or is about to. Cheap to clone.
#[derive(Clone)]
pub struct Certificates(pub(crate) Option<Arc<Https>>);

/// Files that were read and are not in use yet.
pub struct Renewed(Option<(Arc<Https>, Files)>);

impl Certificates {
    /// Checks that HTTPS can be served with these settings, or is off.
    ///
    /// # Errors
    /// A file cannot be read, or the files do not match.
    pub fn check(settings: &HttpSettings) -> Result<(), CertificateError> {
        read(settings).map(drop)
    }

    /// Reads the files of these settings again. A server that was started without TLS continues without it.
    ///
    /// # Errors
    /// A file cannot be read, or the files do not match; then nothing has changed.
    pub fn read(&self, settings: &HttpSettings) -> Result<Renewed, CertificateError> {
        let Some(https) = &self.0 else { return Ok(Renewed(None)) };
        Ok(Renewed(read(settings)?.map(|files| (https.clone(), files))))
    }

    /// Returns the expiries of the files in use; none without TLS.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.0.as_ref().map(|https| https.files.load().expiries.clone()).unwrap_or_default()
    }
}

impl Renewed {
    /// Uses the files for handshakes from now on. Existing connections continue.
    pub fn apply(self) {
        if let Some((https, files)) = self.0 {
            https.files.store(Arc::new(files));
        }
    }
}

/// Reason why HTTPS cannot be served: the setting, the file, and its fault.
#[derive(Debug)]
pub struct CertificateError(String);

impl std::fmt::Display for CertificateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CertificateError {}

fn read(settings: &HttpSettings) -> Result<Option<Files>, CertificateError> {
    let of = |name: &str| {
        let name = name.to_owned();
        move |error: TlsError| CertificateError(format!("{name}: {error}"))
    };
    let missing = |text: &str| Err(CertificateError(text.to_owned()));
    let (certificate, key) = match (&settings.tls_certificate, &settings.tls_key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if settings.tls_client_ca.is_none() => return Ok(None),
        (Some(_), None) => return missing("http.tls_certificate is set, and http.tls_key is not"),
        (None, _) => return missing("HTTPS needs http.tls_certificate and http.tls_key"),
    };
    let certified = pem::certified(certificate, key).map_err(of("http.tls_certificate, http.tls_key"))?;
    let mut expiries: Vec<_> =
        Expiry::of_certificates(ExpiryKind::Server, certificate, &certified.cert).into_iter().collect();
    let versions: &[_] = match settings.tls_version_min {
        TlsVersion::V1_2 => rustls::ALL_VERSIONS,
        TlsVersion::V1_3 => &[&rustls::version::TLS13],
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| CertificateError(error.to_string()))?;
    let builder = match &settings.tls_client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let authorities = pem::certificates(path).map_err(of("http.tls_client_ca"))?;
            expiries.extend(Expiry::of_certificates(ExpiryKind::ClientCa, path, &authorities));
            let roots = pem::authorities(path).map_err(of("http.tls_client_ca"))?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| CertificateError(format!("http.tls_client_ca: {error}")))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Files { config: Arc::new(config), expiries }))
}
