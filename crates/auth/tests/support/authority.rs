//! Certificate authority of one test.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

pub type Authority = CertifiedIssuer<'static, KeyPair>;

pub fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Issues a certificate for 127.0.0.1.
pub fn issue(authority: &Authority) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// Returns the configuration of a server of this authority, which may request client certificates.
pub fn server_config(authority: &Authority, wants_certificates: bool) -> ServerConfig {
    let (certificate, key) = issue(authority);
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap();
    let builder = match wants_certificates {
        false => builder.with_no_client_auth(),
        true => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from(authority.der().to_vec())).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder.with_single_cert(vec![certificate.der().clone()], key).unwrap()
}
