//! TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use edge::settings::{Listener, TlsClient, TlsVersion, Transport};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use tls::{Expiry, ExpiryKind};

use crate::client::{Client, echo};
use crate::websocket::Frames;
use crate::{Directory, Node, everywhere};

pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Authority with certificates for servers and clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("parameters");
        let certificate: Certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Returns an empty revocation list, whose next update is due at the beginning of `year`.
    fn revoked_until(&self, year: i32) -> String {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).expect("a list").pem().expect("PEM")
    }

    pub fn client(&self, own: Option<(String, String)>) -> ClientConfig {
        self.client_of(rustls::ALL_VERSIONS, own)
    }

    fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<(String, String)>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).expect("PEM")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a certificate")
            }
        }
    }
}

pub fn tls(directory: &Directory, authority: &Authority) -> Listener {
    let (certificate, key) = authority.issue("localhost");
    Listener {
        tls_certificate: Some(directory.write("server.crt", &certificate)),
        tls_key: Some(directory.write("server.key", &key)),
        ..Listener::default()
    }
}

pub fn connect(node: &Node, config: &ClientConfig, name: &'static str) -> Stream {
    let name = ServerName::try_from(name).expect("a name");
    let connection = ClientConnection::new(Arc::new(config.clone()), name).expect("a client");
    StreamOwned::new(connection, node.open())
}

#[test]
fn mqtt_flows_over_tls() {
    let (directory, authority) = (Directory::new("flows"), Authority::new());
    everywhere(
        || tls(&directory, &authority),
        |node| {
            for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                let mut config = authority.client_of(&[version], None);
                config.alpn_protocols = vec![b"mqtt".to_vec()];
                // The second connection resumes the session of the first.
                for _ in 0..2 {
                    let mut client = Client::connect(connect(node, &config, "localhost"), "c");
                    assert_eq!(client.stream.conn.protocol_version(), Some(version.version));
                    assert_eq!(client.stream.conn.alpn_protocol(), Some(&b"mqtt"[..]));
                    echo(&mut client, &[0, 1, 16_384, 16_385, 900_000, 5]);
                }
            }
        },
    );
}

#[test]
fn mqtt_flows_over_secure_websocket() {
    let (directory, authority) = (Directory::new("wss"), Authority::new());
    everywhere(
        || Listener { transport: Transport::WebSocket, ..tls(&directory, &authority) },
        |node| {
            for cut in [7, usize::MAX] {
                let stream = connect(node, &authority.client(None), "localhost");
                let mut client = Client::connect(Frames::over(stream, cut), "c");
                echo(&mut client, &[0, 1, 70_000, 600_000]);
            }
        },
    );
}

#[test]
fn clients_authenticate_by_certificate() {
    let (directory, authority, other) = (Directory::new("mutual"), Authority::new(), Authority::new());
    for (mode, without) in [(TlsClient::Required, false), (TlsClient::Optional, true)] {
        everywhere(
            || Listener {
                tls_client_ca: Some(directory.write("ca.crt", &authority.pem())),
                tls_client: mode,
                ..tls(&directory, &authority)
            },
            |node| {
                let served = |config: &ClientConfig| {
                    let mut client = Client::over(connect(node, config, "localhost"));
                    let mut bytes = Vec::new();
                    mqtt_connect(&mut bytes);
                    // A refusal may become visible during this write.
                    client.stream.write_all(&bytes).is_ok() && client.next().starts_with("ConnAck")
                };
                assert!(served(&authority.client(Some(authority.issue("client")))));
                assert_eq!(served(&authority.client(None)), without);
                assert!(!served(&authority.client(Some(other.issue("client")))));
            },
        );
    }
}

/// `mqtt.packet_size_before_login_max`: on every transport, the fixed header of a CONNECT that is too large ends the
/// connection.
#[test]
fn a_connect_that_is_too_large_is_refused_at_its_fixed_header_on_every_transport() {
    /// Announces 64 KiB and a byte, and waits for the end without sending them.
    fn is_refused(mut stream: impl Read + Write) {
        stream.write_all(&[0x10, 0xFD, 0xFF, 0x03]).expect("sent");
        stream.flush().expect("sent");
        assert_eq!(Client::over(stream).next(), "");
    }
    let (directory, authority) = (Directory::new("large"), Authority::new());
    let config = authority.client(None);
    for transport in [Transport::Mqtt, Transport::WebSocket] {
        everywhere(
            || Listener { transport, ..Listener::default() },
            |node| match transport {
                Transport::Mqtt => is_refused(node.open()),
                Transport::WebSocket => is_refused(Frames::over(node.open(), 2)),
            },
        );
        everywhere(
            || Listener { transport, ..tls(&directory, &authority) },
            |node| {
                let stream = connect(node, &config, "localhost");
                match transport {
                    Transport::Mqtt => is_refused(stream),
                    Transport::WebSocket => is_refused(Frames::over(stream, 2)),
                }
            },
        );
    }
}

/// Access control gets the certificate, also of a resumed session, and the listener.
#[test]
fn the_names_of_a_certificate_are_known_before_connect() {
    let (directory, authority) = (Directory::new("facts"), Authority::new());
    for transport in [Transport::Mqtt, Transport::WebSocket] {
        everywhere(
            || Listener {
                name: "door".into(),
                transport,
                tls_client_ca: Some(directory.write("ca.crt", &authority.pem())),
                tls_client: TlsClient::Optional,
                ..tls(&directory, &authority)
            },
            |node| {
                let enter = |config: &ClientConfig| {
                    let stream = connect(node, config, "localhost");
                    let kind = match transport {
                        Transport::Mqtt => {
                            let mut client = Client::connect(stream, "c");
                            echo(&mut client, &[1]);
                            let connection = node.client("c").expect("there").connection;
                            assert_eq!(connection.expect("connected").listener.as_deref(), Some("door"));
                            client.stream.conn.handshake_kind()
                        }
                        Transport::WebSocket => {
                            let mut client = Client::connect(Frames::over(stream, 1000), "c");
                            echo(&mut client, &[1]);
                            client.stream.socket.get_ref().conn.handshake_kind()
                        }
                    };
                    let (client_id, listener, certificate) = node.last_shown();
                    assert_eq!((&*client_id, &*listener), ("c", "door"));
                    (kind, certificate)
                };
                for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                    let (_, certificate) = enter(&authority.client_of(&[version], None));
                    assert_eq!(certificate, None);
                    let config = authority.client_of(&[version], Some(authority.issue("sensor-7")));
                    let (_, certificate) = enter(&config);
                    assert_eq!(certificate.expect("shown").dns_names, ["sensor-7".into()]);
                    let (kind, certificate) = enter(&config);
                    assert_eq!(kind, Some(HandshakeKind::Resumed));
                    assert_eq!(certificate.expect("of the session").dns_names, ["sensor-7".into()]);
                }
            },
        );
    }
}

fn mqtt_connect(bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c");
}

#[test]
fn a_certificate_is_chosen_by_name_and_changes_without_a_restart() {
    let (directory, authority) = (Directory::new("names"), Authority::new());
    let names = directory.0.join("names");
    std::fs::create_dir_all(&names).expect("a directory");
    for (file, name) in [("a.example", "a.example"), ("_.b.example", "*.b.example")] {
        let (certificate, key) = authority.issue(name);
        directory.write(&format!("names/{file}.crt"), &certificate);
        directory.write(&format!("names/{file}.key"), &key);
    }
    everywhere(
        || Listener { tls_names: Some(names.clone()), ..tls(&directory, &authority) },
        |node| {
            for name in ["localhost", "a.example", "x.b.example"] {
                // The client checks the name in the certificate.
                let mut client = Client::connect(connect(node, &authority.client(None), name), name);
                echo(&mut client, &[10]);
            }
            let mut old = Client::connect(connect(node, &authority.client(None), "localhost"), "old");
            let next = Authority::new();
            let (certificate, key) = next.issue("localhost");
            directory.write("server.crt", &certificate);
            let edge = node.edge.clone();
            let certificates = node.node.certificates();
            let error =
                certificates.read(&edge).err().expect("the key belongs to another certificate").to_string();
            assert!(error.contains("server.crt"), "{error}");
            Client::connect(connect(node, &authority.client(None), "localhost"), "still the first");
            directory.write("server.key", &key);
            certificates.read(&edge).expect("both are there").apply();
            Client::connect(connect(node, &next.client(None), "localhost"), "new");
            echo(&mut old, &[10]);
            let (certificate, key) = authority.issue("localhost");
            directory.write("server.crt", &certificate);
            directory.write("server.key", &key);
        },
    );
}

/// The reported dates are those of the files that were read last.
#[test]
fn expiry_dates_of_certificates_are_known_and_renewed() {
    let (directory, authority) = (Directory::new("ends"), Authority::new());
    let names = directory.path("names");
    std::fs::create_dir_all(&names).expect("a directory");
    let issue = |file: &str, year: i32| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("parameters");
        params.not_after = date_time_ymd(year, 1, 1);
        let issued = params.signed_by(&key, &authority.0).expect("a certificate");
        let certificate = directory.write(&format!("{file}.crt"), &issued.pem());
        (certificate, directory.write(&format!("{file}.key"), &key.serialize_pem()))
    };
    let start = |listener| Node::try_start(1, listener, &|_| {}).expect("the node starts");
    let node = start(Listener::default());
    assert_eq!(node.node.certificates().expiries(), []);
    node.stop();
    let (certificate, key) = issue("server", 2031);
    issue("names/a.example", 2030);
    let node = start(Listener {
        name: "secure".to_owned(),
        tls_certificate: Some(certificate.clone()),
        tls_key: Some(key),
        tls_names: Some(names.clone()),
        tls_client_ca: Some(directory.write("ca.crt", &authority.pem())),
        tls_client_crl: Some(directory.write("ca.crl", &authority.revoked_until(2029))),
        ..Listener::default()
    });
    let certificates = node.node.certificates();
    let found = || -> Vec<(ExpiryKind, PathBuf, i64)> {
        let all = certificates.expiries().into_iter();
        all.map(|(listener, Expiry { kind, file, not_after })| {
            assert_eq!(listener, "secure");
            (kind, file, not_after)
        })
        .collect()
    };
    // The authority of the tests expires in the year 4096.
    let authority_ends = (ExpiryKind::ClientCa, directory.path("ca.crt"), 67_090_118_400);
    let mut expected = vec![
        (ExpiryKind::Server, certificate, 1_924_992_000),
        (ExpiryKind::Server, names.join("a.example.crt"), 1_893_456_000),
        authority_ends,
        (ExpiryKind::ClientCrl, directory.path("ca.crl"), 1_861_920_000),
    ];
    assert_eq!(found(), expected);
    issue("server", 2032);
    assert_eq!(found(), expected, "not in use yet");
    certificates.read(&node.edge).expect("both are there").apply();
    expected[0].2 = 1_956_528_000;
    assert_eq!(found(), expected);
    node.stop();
}

#[test]
fn old_versions_of_tls_and_plain_connections_are_refused() {
    let (directory, authority) = (Directory::new("refused"), Authority::new());
    everywhere(
        || Listener { tls_version_min: TlsVersion::V1_3, tls_tickets: false, ..tls(&directory, &authority) },
        |node| {
            let mut plain = node.open();
            plain.write_all(b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c").expect("sent");
            let mut answer = Vec::new();
            let _ = plain.read_to_end(&mut answer);
            assert_ne!(answer.first(), Some(&0x20), "no CONNACK");
            let mut garbage = node.open();
            let _ = garbage.write_all(&[0x16; 70_000]);
            let _ = garbage.read_to_end(&mut answer);
            // Only the version is wrong: this client trusts the authority.
            let old = authority.client_of(&[&rustls::version::TLS12], None);
            let mut client = Client::over(connect(node, &old, "localhost"));
            let mut bytes = Vec::new();
            mqtt_connect(&mut bytes);
            assert!(client.stream.write_all(&bytes).is_err());
            Client::connect(connect(node, &authority.client(None), "localhost"), "c");
        },
    );
}

/// A burst of handshakes starves no client: a connected one is served meanwhile.
#[test]
fn connected_clients_are_served_during_a_burst_of_handshakes() {
    let (directory, authority) = (Directory::new("storm"), Authority::new());
    // The last handshake has to wait for all the others, on a machine that may be busy.
    let handshake_timeout = Duration::from_secs(60);
    everywhere(
        || Listener { handshake_timeout, ..tls(&directory, &authority) },
        |node| {
            let config = authority.client(None);
            let mut client = Client::connect(connect(node, &config, "localhost"), "there");
            client.subscribe("t");
            let mut storm: Vec<Stream> = (0..100).map(|_| connect(node, &config, "localhost")).collect();
            for stream in &mut storm {
                stream.conn.write_tls(&mut stream.sock).expect("sent");
            }
            client.publish("t", b"x", 2);
            let mut seen = [client.next(), client.next()];
            seen.sort();
            assert!(seen[0].starts_with("PubAck") && seen[1].starts_with("Publish"), "{seen:?}");
            for (number, stream) in storm.into_iter().enumerate() {
                Client::connect(stream, &format!("c{number}"));
            }
        },
    );
}
