//! What a client trusts, shows and speaks.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};

use crate::{TlsError, pem};

/// Everything that a command line can say of it.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    pub trust: Trust,
    /// The client's own certificate chain and its key (PEM).
    pub own: Option<(PathBuf, PathBuf)>,
    pub versions: Versions,
    /// What is asked for by ALPN, the favourite first; none is asked for when it is empty.
    pub alpn: Vec<Vec<u8>>,
}

/// Whose certificates are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those that the system's authorities signed.
    #[default]
    System,
    /// Those that the authorities of this file (PEM) signed, and no others.
    File(PathBuf),
    /// Everybody's: whoever sits between can read and change everything.
    Anybody,
}

/// Which versions of TLS are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    #[default]
    Both,
    Only1_2,
    Only1_3,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Files that cannot be read or do not fit each other, a system without authorities.
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
            Trust::System => builder.with_root_certificates(system()?),
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

/// The authorities that this system trusts; SSL_CERT_FILE and SSL_CERT_DIR name others.
fn system() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems carry certificates of the last century that cannot be read any more; the others still count.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(TlsError::NoAuthorities { why });
    }
    Ok(roots)
}

/// Believes every certificate, but not that it is somebody's who does not have its key.
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
