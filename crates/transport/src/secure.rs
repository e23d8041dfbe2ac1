//! TLS between nodes: each presents a certificate of the cluster's authority, and accepts no other.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, ServerConfig,
    ServerConnection, SignatureScheme, client::Resumption,
};
use tls::{Expiry, ExpiryKind, TlsError, pem};

/// Paths of a node's certificate files (PEM).
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// This node's certificate chain.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities that issue the certificates of all nodes. The system's authorities are not used: any server that
    /// they certify could join.
    pub authorities: PathBuf,
    pub names: Names,
}

/// Check of the names in the certificate of a dialed node, in addition to its authority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// No check: every node may be at every address.
    #[default]
    Any,
    /// The certificate must name the dialed host.
    Host,
}

/// Certificates, checked and ready for connections.
#[derive(Clone, Debug)]
pub struct Tls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    expiries: Vec<Expiry>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The files cannot be read or do not match each other.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let authorities = Arc::new(pem::authorities(&files.authorities)?);
        let roots = pem::certificates(&files.authorities)?;
        let (chain, key) = (pem::certificates(&files.certificate)?, pem::key(&files.key)?);
        let ends = [
            Expiry::of_certificates(ExpiryKind::Server, &files.certificate, &chain),
            Expiry::of_certificates(ExpiryKind::ClientCa, &files.authorities, &roots),
        ];
        let unfit =
            |error| TlsError::Unfit { certificate: files.certificate.clone(), key: files.key.clone(), error };
        let unusable = |error: rustls::server::VerifierBuilderError| {
            TlsError::Unusable(Error::General(error.to_string()))
        };
        let clients = WebPkiClientVerifier::builder_with_provider(authorities.clone(), provider.clone());
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(VERSIONS)
            .map_err(TlsError::Unusable)?
            .with_client_cert_verifier(clients.build().map_err(unusable)?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        // A resumed session presents no certificate, which may have expired since. Handshakes are rare.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let servers = WebPkiServerVerifier::builder_with_provider(authorities, provider.clone());
        let chains = servers.build().map_err(unusable)?;
        let verifier: Arc<dyn ServerCertVerifier> = match files.names {
            Names::Host => chains,
            Names::Any => Arc::new(AnyName(chains)),
        };
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS)
            .map_err(TlsError::Unusable)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(unfit)?;
        client.resumption = Resumption::disabled();
        let expiries = ends.into_iter().flatten().collect();
        Ok(Self { server: Arc::new(server), client: Arc::new(client), expiries })
    }

    /// Returns the expiry of each file.
    pub fn expiries(&self) -> &[Expiry] {
        &self.expiries
    }

    /// Creates the TLS state of an accepted connection.
    ///
    /// # Errors
    /// The library rejects the configuration.
    pub(crate) fn accept(&self) -> Result<Connection, Error> {
        let mut connection = ServerConnection::new(self.server.clone())?;
        connection.set_buffer_limit(None);
        Ok(connection.into())
    }

    /// Creates the TLS state of a connection to `address`, a host or IP with a port.
    ///
    /// # Errors
    /// The same as [`Self::accept`], or an invalid host name.
    pub(crate) fn dial(&self, address: &str) -> Result<Connection, Error> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::General(format!("{host:?} is not a valid name in a certificate")))?;
        let mut connection = ClientConnection::new(self.client.clone(), name)?;
        connection.set_buffer_limit(None);
        Ok(connection.into())
    }
}

/// TLS versions. All nodes support this one.
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Verifier that accepts every certificate of the authority, with any name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is checked last, when everything else is valid.
        match self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Explains an error, with a remedy.
pub fn explain(error: &Error) -> String {
    let fix = match error {
        Error::InvalidMessage(_) => {
            "no TLS and no Meridian node at this address: check the address and its port"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the peer's certificate has expired: renew it there, or check both clocks"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            "the peer's certificate does not name the dialed host: dial it by a name in the certificate, or do not check names"
        }
        Error::AlertReceived(_) => "the peer refuses this node's certificate: its log says why",
        _ => "each node must present a certificate of the one authority that all nodes trust",
    };
    format!("TLS: {error}; {fix}")
}
