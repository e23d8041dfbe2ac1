//! HTTP services over TLS.

use auth::settings::HttpAuthSettings;
use auth::{Attempt, HttpLink, Link, Outcome};
use rcgen::KeyPair;

use super::file;
use crate::support::authority::{Authority, authority, issue, server_config};
use crate::support::server::{Play, Server};

/// Starts a server of this authority, which may request client certificates.
fn server(authority: &Authority, wants_certificates: bool) -> Server {
    Server::with_tls(server_config(authority, wants_certificates), |_| Play::Answer(204, ""))
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
fn a_service_of_a_trusted_authority_is_asked() {
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
    let Outcome::Failed(why) = ask(&link) else { panic!("the service is not trusted") };
    assert!(why.contains("no connection"), "{why}");
    assert_eq!((server.requests().len(), link.figures().failed.connect), (0, 1));
}

#[test]
fn a_certificate_is_presented_to_a_service_that_requests_one() {
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
    link.read(&with).unwrap().unwrap().apply();
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
        let error = link.read(&settings).map(drop).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(ask(&link), Outcome::Admit(Box::default()), "the old settings stay in force");
}
