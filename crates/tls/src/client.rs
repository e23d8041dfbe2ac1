//! TLS settings of a client: trusted authorities, its own certificate, protocol versions.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};

use crate::{OptionStyle, TlsError, pem};

/// TLS options of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    pub trust: Trust,
    /// Certificate chain and key of the client itself (PEM).
    pub own: Option<(PathBuf, PathBuf)>,
    pub versions: Versions,
    /// Protocols to offer by ALPN, the preferred one first. Empty: no ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// Notation of these options, for errors.
    pub style: OptionStyle,
}

/// Server certificates that the client accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Certificates that the authorities of the system have signed.
    #[default]
    System,
    /// Certificates that the authorities of this file (PEM) have signed, and no others.
    File(PathBuf),
    /// All certificates. Anyone on the path to the server can then read and change everything.
    Anybody,
}

/// Allowed versions of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    #[default]
    Both,
    Only1_2,
    Only1_3,
}

impl ClientTls {
    /// Reads the files and builds the configuration.
    ///
    /// # Errors
    /// A file cannot be read, certificate and key do not match, or the system has no authorities.
    pub fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let versions: &[&SupportedProtocolVersion] = match self.versions {
            Versions::Both => rustls::ALL_VERSIONS,
            Versions::Only1_2 => &[&rustls::version::TLS12],
            Versions::Only1_3 => &[&rustls::version::TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(TlsError::Unusable)?;
        let builder = match &self.trust {
            Trust::System => builder.with_root_certificates(system(self.style)?),
            Trust::File(path) => builder.with_root_certificates(pem::authorities(path)?),
            Trust::Anybody => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
            }
        };
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = pem::certificates(certificate)?;
                builder.with_client_auth_cert(chain, pem::key(key)?).map_err(|error| TlsError::Unfit {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    error,
                })?
            }
        };
        config.alpn_protocols = self.alpn.clone();
        Ok(Arc::new(config))
    }
}

/// Returns the authorities that this system trusts. SSL_CERT_FILE and SSL_CERT_DIR select others.
fn system(style: OptionStyle) -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems still carry very old certificates that cannot be parsed. They are skipped, and the others are used.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(TlsError::NoAuthorities { why, style });
    }
    Ok(roots)
}

/// Verifier that accepts every certificate, but still checks that the server has its private key.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
