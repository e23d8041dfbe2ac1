//! Services over TLS.

use std::sync::Arc;

use auth::settings::HttpAuthSettings;
use auth::{Attempt, HttpLink, Link, Outcome};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::file;
use crate::server::{Play, Server};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn issue(authority: &Authority) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// A server of this authority, which may want certificates of its clients.
fn server(authority: &Authority, wants_certificates: bool) -> Server {
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
    let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    Server::with_tls(config, |_| Play::Answer(204, ""))
}

fn settings(server: &Server, name: &str, authority: &Authority) -> HttpAuthSettings {
    HttpAuthSettings {
        url: Some(server.url("/")),
        ca_file: Some(file(name, &authority.pem())),
        cache_ttl_allow: std::time::Duration::ZERO,
        ..HttpAuthSettings::default()
    }
}

fn ask(link: &HttpLink) -> Outcome {
    link.work(&Attempt {
        client_id: "c1".into(),
        username: None,
        password: None,
        peer: None,
        listener: "".into(),
        certificate: None,
    })
}

#[test]
fn a_service_is_trusted_by_its_authority() {
    let authority = authority();
    let server = server(&authority, false);
    let link = HttpLink::open(&settings(&server, "ca", &authority)).unwrap().unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&link), Outcome::Admit(Box::default()));
    }
    assert_eq!(server.connections(), 1, "the connection is kept");
}

#[test]
fn a_service_of_another_authority_is_not_asked() {
    let (ours, theirs) = (authority(), authority());
    let server = server(&theirs, false);
    let link = HttpLink::open(&settings(&server, "other-ca", &ours)).unwrap().unwrap();
    let Outcome::Failed(why) = ask(&link) else { panic!("it is nobody we trust") };
    assert!(why.contains("no connection"), "{why}");
    assert_eq!((server.requests().len(), link.figures().failed.connect), (0, 1));
}

#[test]
fn a_certificate_is_shown_to_a_service_that_wants_one() {
    let authority = authority();
    let server = server(&authority, true);
    let without = settings(&server, "m-ca", &authority);
    let link = HttpLink::open(&without).unwrap().unwrap();
    assert!(matches!(ask(&link), Outcome::Failed(_)));
    let (certificate, key) = issue(&authority);
    let with = HttpAuthSettings {
        client_certificate: Some(file("m-crt", &certificate.pem())),
        client_key: Some(file("m-key", &key.serialize_pem())),
        ..without.clone()
    };
    assert_eq!(link.reload(&with), Ok(true));
    assert_eq!(ask(&link), Outcome::Admit(Box::default()));

    let other_key = KeyPair::generate().unwrap();
    for (settings, says) in [
        (
            HttpAuthSettings { client_key: None, ..with.clone() },
            "http_auth.client_key: client_certificate needs",
        ),
        (
            HttpAuthSettings { client_certificate: None, ..with.clone() },
            "http_auth.client_certificate: client_key needs",
        ),
        (
            HttpAuthSettings {
                client_key: Some(file("m-other", &other_key.serialize_pem())),
                ..with.clone()
            },
            "with client_key",
        ),
        (
            HttpAuthSettings { client_key: Some(file("m-none", "no key")), ..with.clone() },
            "http_auth.client_key",
        ),
        (HttpAuthSettings { ca_file: Some(file("m-empty", "")), ..with }, "there is no certificate"),
    ] {
        let error = link.reload(&settings).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(ask(&link), Outcome::Admit(Box::default()), "everything stayed as it was");
}
