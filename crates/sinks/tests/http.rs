//! HTTP targets and a scripted server.

#![cfg(feature = "http")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rules::Value;
use sha2::Sha256;
use sinks::{ActionSettings, Body, ConnectorSettings, Guard, Method, Record, Sink, Target, WriteError};
use support::{OPEN, Reply, Server, Temporary, record, target};

fn connector(server: &Server) -> ConnectorSettings {
    ConnectorSettings { url: server.url(), timeout: Duration::from_secs(60), ..ConnectorSettings::default() }
}

fn action() -> ActionSettings {
    ActionSettings { content: "${v}".to_owned(), ..ActionSettings::default() }
}

fn batch(body: Body) -> ActionSettings {
    ActionSettings { body, ..action() }
}

/// Opens the sink of an action of a server.
fn open(server: &Server, action: &ActionSettings) -> (Arc<dyn Target>, Box<dyn Sink>) {
    let target = target(&connector(server), action);
    let sink = target.open();
    (target, sink)
}

fn records(target: &dyn Target, values: &[&str]) -> Vec<Record> {
    (1..).zip(values).map(|(id, value)| record(target, id, *value)).collect()
}

fn unavailable(result: Result<(), WriteError>) -> String {
    match result {
        Err(WriteError::Unavailable(why) | WriteError::Failed(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_record_is_a_request_with_url_headers_and_body() {
    let server = Server::start([]);
    let connector =
        ConnectorSettings { url: Some(format!("http://{}/base/", server.address)), ..connector(&server) };
    let action = ActionSettings {
        method: Method::Put,
        path: "/d/${v}?q=${v}".to_owned(),
        headers: "X-Constant: a: b\nX-Value: <${v}>".to_owned(),
        content: r#"{"v":${.}}"#.to_owned(),
        ..ActionSettings::default()
    };
    let target = target(&connector, &action);
    let records = records(&*target, &["a/b", "c"]);
    target.open().write(&records).unwrap();
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    let first = &requests[0];
    assert_eq!((first.method.as_str(), first.target.as_str()), ("PUT", "/base/d/a%2Fb?q=a%2Fb"));
    assert_eq!(first.text(), r#"{"v":{"v":"a/b"}}"#);
    for (name, value) in [
        ("content-type", Some("application/json")),
        ("x-constant", Some("a: b")),
        ("x-value", Some("<a/b>")),
        ("host", Some(server.address.to_string().as_str())),
        ("authorization", None),
        ("x-signature", None),
        ("transfer-encoding", None),
    ] {
        assert_eq!(first.header(name), value, "{name}");
    }
    assert!(first.header("user-agent").unwrap().starts_with("meridian/"));
    assert_eq!(requests[1].target, "/base/d/c?q=c");
}

#[test]
fn methods_without_a_body_send_none() {
    let server = Server::start([]);
    for method in [Method::Get, Method::Delete] {
        let action = ActionSettings { method, path: "/${v}".to_owned(), ..action() };
        let (target, mut sink) = open(&server, &action);
        sink.write(&records(&*target, &["a"])).unwrap();
        let request = server.request();
        assert_eq!((request.target.as_str(), request.body.len()), ("/a", 0));
        assert_eq!((request.header("content-length"), request.header("content-type")), (None, None));
    }
}

#[test]
fn a_batch_is_one_request() {
    let server = Server::start([]);
    for (body, values, text, kind) in [
        (Body::JsonArray, &["1", r#"{"a":2}"#, "\"x\""][..], r#"[1,{"a":2},"x"]"#, "application/json"),
        (Body::JsonArray, &["1"], "[1]", "application/json"),
        (Body::Lines, &["a", "b c"], "a\nb c\n", "application/x-ndjson"),
    ] {
        let (target, mut sink) = open(&server, &batch(body));
        sink.write(&records(&*target, values)).unwrap();
        let request = server.request();
        assert_eq!((request.text(), request.header("content-type")), (text, Some(kind)));
    }
    let action = ActionSettings { headers: "content-type: text/csv".to_owned(), ..batch(Body::Lines) };
    let (target, mut sink) = open(&server, &action);
    sink.write(&[]).unwrap();
    sink.write(&records(&*target, &["a,b"])).unwrap();
    assert_eq!(server.request().header("content-type"), Some("text/csv"));
}

#[test]
fn content_that_would_break_a_batch_is_an_error_of_its_record() {
    let server = Server::start([]);
    let output = |v: &str| Value::object([("v", Value::from(v))]);
    let (array, _) = open(&server, &batch(Body::JsonArray));
    for bad in ["", "1,2", "{", "[1]]", "'a'", "NaN"] {
        let error = array.render(&output(bad)).unwrap_err();
        assert!(error.to_string().starts_with("the content is not JSON"), "{error}");
    }
    let (lines, _) = open(&server, &batch(Body::Lines));
    assert_eq!(lines.render(&output("a\nb")).unwrap_err().reason(), "unfit");
    let two = ActionSettings { content: "{\"index\":{}}\n${.}".to_owned(), ..batch(Body::Lines) };
    let (target, mut sink) = open(&server, &two);
    sink.write(&records(&*target, &["a\nb"])).unwrap();
    assert_eq!(server.request().text(), "{\"index\":{}}\n{\"v\":\"a\\nb\"}\n");
}

#[test]
fn header_values_with_line_ends_are_errors_of_their_record() {
    let server = Server::start([]);
    let (target, _) = open(&server, &ActionSettings { headers: "X-V: ${v}".to_owned(), ..action() });
    for bad in ["a\r\nX-Evil: 1", "a\nb", "a\0"] {
        let error = target.render(&Value::object([("v", Value::from(bad))])).unwrap_err();
        assert!(error.to_string().contains("`x-v` would contain a line end"), "{error}");
    }
}

#[test]
fn each_status_decides_about_the_records() {
    let server = Server::start([]);
    let (target, mut sink) = open(&server, &action());
    let records = records(&*target, &["1"]);
    for status in [200, 201, 202, 204] {
        server.then([Reply::Status(status)]);
        assert_eq!(sink.write(&records), Ok(()), "{status}");
    }
    for status in [401, 403, 404, 405, 408, 410, 425, 429, 500, 502, 503, 504] {
        server.then([Reply::Status(status)]);
        let result = sink.write(&records);
        assert_eq!(matches!(&result, Err(WriteError::Failed(_))), status >= 500, "{status}");
        let why = unavailable(result);
        assert!(why.contains(&format!("status {status}")), "{why}");
    }
    for status in [400, 409, 413, 422] {
        server.then([Reply::Status(status)]);
        assert!(matches!(sink.write(&records), Err(WriteError::Refused(_))), "{status}");
    }
    server.then([Reply::Full {
        status: 429,
        headers: "Retry-After: 7\r\n".to_owned(),
        body: "slow\r\ndown".to_owned(),
    }]);
    let why = unavailable(sink.write(&records));
    assert_eq!(
        why,
        format!("http://{} answers with HTTP status 429 (Retry-After: 7) [slow  down]", server.address)
    );
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_missing_url_that_the_record_has_chosen_does_not_stop_the_others() {
    let server = Server::start([Reply::Status(404)]);
    let (target, mut sink) = open(&server, &ActionSettings { path: "/${v}?k=secret".to_owned(), ..action() });
    let error = sink.write(&records(&*target, &["a"])).unwrap_err();
    assert!(matches!(&error, WriteError::Refused(why) if why.contains("/a answers with HTTP status 404")));
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn redirects_are_not_followed() {
    let other = Server::start([]);
    let location = format!("Location: http://u:secret@{}/x?secret\r\n", other.address);
    let server = Server::start([Reply::Full { status: 307, headers: location, body: String::new() }]);
    let (target, mut sink) = open(&server, &action());
    let why = unavailable(sink.write(&records(&*target, &["1"])));
    assert!(why.contains(&format!("redirects to http://{}/x, ", other.address)), "{why}");
    assert!(!why.contains("secret") && other.connections() == 0, "{why}");
}

#[test]
fn an_answer_that_is_no_answer_leaves_the_records_waiting() {
    let endless = |bytes: &str| Reply::Raw([bytes.as_bytes(), &vec![b'a'; 200_000]].concat());
    for (reply, says) in [
        (Reply::Silence, "no complete answer within 200ms (timeout)"),
        (Reply::Close, "the connection ended before"),
        (Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Le".to_vec()), "the connection ended before"),
        (
            Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_vec()),
            "the connection ended before",
        ),
        (
            Reply::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab".to_vec()),
            "the connection ended before",
        ),
        (Reply::Raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()), "does not speak HTTP/1.1"),
        (Reply::Raw(vec![0; 100]), "does not speak HTTP/1.1"),
        (Reply::Raw(b"HTTP/1.1 abc OK\r\n\r\n".to_vec()), "does not speak HTTP/1.1"),
        (
            Reply::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_vec()),
            "does not speak HTTP/1.1",
        ),
        (endless("HTTP/1.1 200 OK\r\nX: "), "the headers of the answer are larger than 16384 bytes"),
    ] {
        let server = Server::start([reply]);
        let connector = ConnectorSettings { timeout: Duration::from_millis(200), ..connector(&server) };
        let target = target(&connector, &action());
        let mut sink = target.open();
        let why = unavailable(sink.write(&records(&*target, &["1"])));
        assert!(why.starts_with(&format!("http://{}: ", server.address)) && why.contains(says), "{why}");
        assert_eq!(server.requests().len(), 1, "{why}");
    }
}

#[test]
fn a_huge_body_is_not_read() {
    let huge = "a".repeat(1_000_000);
    let reply = |status| Reply::Full { status, headers: String::new(), body: huge.clone() };
    let server = Server::start([reply(200), reply(503), reply(200)]);
    let (target, mut sink) = open(&server, &action());
    let records = records(&*target, &["1"]);
    assert_eq!(sink.write(&records), Ok(()));
    let why = unavailable(sink.write(&records));
    assert!(why.len() < 500, "{}", why.len());
    assert_eq!(sink.write(&records), Ok(()));
    assert_eq!(server.connections(), 3);
}

#[test]
fn a_connection_that_the_server_has_closed_is_replaced() {
    let server = Server::start([Reply::OkThenClose, Reply::Status(200), Reply::Close, Reply::Status(200)]);
    let (target, mut sink) = open(&server, &action());
    let records = records(&*target, &["1"]);
    assert_eq!(sink.write(&records), Ok(()));
    assert_eq!(sink.write(&records), Ok(()));
    assert_eq!(server.connections(), 2);
    // Closed while the request was on its way.
    assert_eq!(sink.write(&records), Ok(()));
    assert_eq!(server.connections(), 3);
    let requests = server.requests();
    let keys: Vec<_> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    assert!(keys.len() >= 4 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[test]
fn a_server_that_is_gone_leaves_the_records_waiting() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for (url, says) in [
        (format!("http://{address}"), "connection refused"),
        (format!("http://name.invalid:{}", address.port()), "http://name.invalid"),
    ] {
        let connector = ConnectorSettings { url: Some(url), ..ConnectorSettings::default() };
        let target = target(&connector, &action());
        let mut sink = target.open();
        let why = unavailable(sink.write(&records(&*target, &["1"])));
        assert!(why.contains(says), "{why}");
        assert!(matches!(sink.test(), Err(WriteError::Unavailable(_))));
    }
}

#[test]
fn addresses_that_the_guard_refuses_are_not_reached() {
    let server = Server::start([]);
    let strict = Guard { allow_loopback: false, allow_private: true };
    let port = server.address.port();
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433", "0x7f.1"] {
        let connector =
            ConnectorSettings { url: Some(format!("http://{host}:{port}")), ..connector(&server) };
        let target =
            sinks::target(&connector, &action(), strict).unwrap_or_else(|problem| panic!("{problem}"));
        let mut sink = target.open();
        let why = unavailable(sink.write(&records(&*target, &["1"])));
        let is_refused = why.contains("actions.allow_loopback = true");
        // Not every resolver knows the old forms of addresses.
        assert!(is_refused || why.contains("name") || why.contains("lookup"), "{host}: {why}");
        assert!(is_refused || !["127.0.0.1", "localhost", "[::1]"].contains(&host), "{host}: {why}");
    }
    assert_eq!(server.connections(), 0);
    let connector =
        ConnectorSettings { url: Some("http://169.254.169.254/".to_owned()), ..connector(&server) };
    let why = unavailable(target(&connector, &action()).open().test().map(|_| ()));
    assert!(why.contains("link-local"), "{why}");
}

#[test]
fn a_name_is_resolved_and_used() {
    let server = Server::start([]);
    let url = Some(format!("http://localhost:{}", server.address.port()));
    let target = target(&ConnectorSettings { url, ..connector(&server) }, &action());
    let mut sink = target.open();
    for _ in 0..3 {
        assert_eq!(sink.write(&records(&*target, &["1"])), Ok(()));
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 3));
}

#[test]
fn bodies_are_signed() {
    let server = Server::start([]);
    let key = Temporary::new("signature", "k3y\nsecond line");
    let connector = ConnectorSettings { signature_file: key.path(), ..connector(&server) };
    let expected = |body: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"k3y").unwrap();
        mac.update(body.as_bytes());
        let digits: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256={digits}")
    };
    for (action, body) in [
        (action(), "1"),
        (batch(Body::JsonArray), "[1]"),
        (ActionSettings { method: Method::Get, ..action() }, ""),
    ] {
        let target = target(&connector, &action);
        target.open().write(&records(&*target, &["1"])).unwrap();
        let request = server.request();
        assert_eq!(request.text(), body);
        assert_eq!(request.header("x-signature"), Some(expected(body).as_str()));
    }
}

#[test]
fn credentials_are_read_from_the_first_line_of_files() {
    let server = Server::start([]);
    let secret = Temporary::new("secret", "pass:word \r\nsecond line\n");
    for (username, password_file, token_file, expected) in [
        (Some("user"), secret.path(), None, "Basic dXNlcjpwYXNzOndvcmQ="),
        (None, None, secret.path(), "Bearer pass:word"),
    ] {
        let username = username.map(str::to_owned);
        let connector = ConnectorSettings { username, password_file, token_file, ..connector(&server) };
        let target = target(&connector, &action());
        target.open().write(&records(&*target, &["1"])).unwrap();
        assert_eq!(server.request().header("authorization"), Some(expected));
    }
}

#[test]
fn an_idempotency_key_belongs_to_its_records() {
    let server = Server::start([Reply::Status(503)]);
    let key = |sink: &mut Box<dyn Sink>, records: &[Record]| {
        sink.write(records).ok();
        server.request().header("idempotency-key").map(str::to_owned)
    };
    let (target, mut sink) = open(&server, &action());
    let made = records(&*target, &["1", "2"]);
    let first = key(&mut sink, &made[..1]);
    assert_eq!(first.as_deref(), Some("00000000000000000000000000000001"));
    assert_eq!(key(&mut sink, &made[..1]), first);
    assert_ne!(key(&mut sink, &made[1..]), first);

    let (target, mut sink) = open(&server, &batch(Body::Lines));
    let made = records(&*target, &["1", "2", "3"]);
    server.then([Reply::Status(503)]);
    let all = key(&mut sink, &made);
    assert_eq!(all.as_ref().map(String::len), Some(32));
    assert_eq!(key(&mut sink, &made), all);
    assert_ne!(key(&mut sink, &made[..2]), all);

    let (target, mut sink) =
        open(&server, &ActionSettings { headers: "Idempotency-Key: ${v}".to_owned(), ..action() });
    assert_eq!(key(&mut sink, &records(&*target, &["own"])).as_deref(), Some("own"));
}

#[test]
fn records_before_a_failed_one_are_not_sent_again() {
    let server =
        Server::start([Reply::Status(200), Reply::Status(200), Reply::Status(503), Reply::Status(200)]);
    let (target, mut sink) = open(&server, &action());
    let made = records(&*target, &["1", "2", "3", "4"]);
    let bodies = || server.requests().iter().map(|request| request.text().to_owned()).collect::<Vec<_>>();
    unavailable(sink.write(&made));
    assert_eq!(bodies(), ["1", "2", "3"]);
    server.then([Reply::Status(400)]);
    assert!(matches!(sink.write(&made), Err(WriteError::Refused(_))));
    assert_eq!(bodies(), ["3", "4"]);
    // The caller divides the batch.
    assert_eq!(sink.write(&made[..2]), Ok(()));
    assert_eq!(sink.write(&made[2..3]), Ok(()));
    assert_eq!(bodies(), [""; 0]);
    assert_eq!(sink.write(&made[..1]), Ok(()));
    assert_eq!(bodies(), ["1"]);
}

#[test]
fn a_test_says_what_the_server_answers() {
    let server = Server::start([Reply::Status(204), Reply::Status(401), Reply::Status(500)]);
    let (_, mut sink) = open(&server, &ActionSettings { path: "/hook?k=secret".to_owned(), ..action() });
    let url = format!("http://{}/hook", server.address);
    assert_eq!(sink.test(), Ok(format!("{url} answers with HTTP status 204")));
    let request = server.request();
    assert_eq!((request.method.as_str(), request.target.as_str()), ("OPTIONS", "/hook?k=secret"));
    let wants =
        format!("{url} answers with HTTP status 401; it wants credentials, and the connector has none");
    assert_eq!(sink.test(), Ok(wants));
    assert_eq!(sink.test(), Ok(format!("{url} answers with HTTP status 500")));
}

#[test]
fn wrong_settings_are_explained() {
    let url = || Some("http://h".to_owned());
    let good = ConnectorSettings { url: url(), ..ConnectorSettings::default() };
    let missing = || Some("/does/not/exist".into());
    let with = |change: fn(&mut ActionSettings)| {
        let mut action = action();
        change(&mut action);
        (good.clone(), action)
    };
    let of = |connector: ConnectorSettings| (connector, action());
    for ((connector, action), setting, says) in [
        (of(ConnectorSettings::default()), "url", "is missing"),
        (of(ConnectorSettings { token_file: missing(), ..good.clone() }), "token_file", "/does/not/exist: "),
        (
            of(ConnectorSettings { signature_file: missing(), ..good.clone() }),
            "signature_file",
            "/does/not/exist: ",
        ),
        (of(ConnectorSettings { tls_ca: missing(), ..good.clone() }), "tls_ca", "must begin with https"),
        (
            of(ConnectorSettings { url: Some("https://h".to_owned()), tls_ca: missing(), ..good.clone() }),
            "tls_ca",
            "/does/not/exist: ",
        ),
        (
            of(ConnectorSettings { url: Some("https://h".to_owned()), tls_key: missing(), ..good.clone() }),
            "tls_certificate",
            "is missing",
        ),
        (with(|action| action.content = "${".to_owned()), "content", "no closing brace"),
        (with(|action| action.path = "x".to_owned()), "path", "must begin with"),
        (with(|action| action.headers = "Host: x".to_owned()), "headers", "`host`"),
        (with(|action| (action.body, action.method) = (Body::Lines, Method::Get)), "body", "must be `each`"),
        (
            with(|action| (action.body, action.path) = (Body::Lines, "/${v}".to_owned())),
            "path",
            "needs body = \"each\"",
        ),
        (
            with(|action| (action.body, action.headers) = (Body::JsonArray, "X: ${v}".to_owned())),
            "headers",
            "needs body = \"each\"",
        ),
    ] {
        match sinks::target(&connector, &action, OPEN) {
            Err(problem) => {
                assert!(problem.setting == setting && problem.why.contains(says), "{setting}: {problem}");
            }
            Ok(_) => panic!("{setting} {says}"),
        }
    }
    let token = Temporary::new("token", "t");
    let action = ActionSettings { headers: "Authorization: x".to_owned(), ..action() };
    assert!(sinks::target(&good, &action, OPEN).is_ok());
    let connector = ConnectorSettings { token_file: token.path(), ..good };
    assert_eq!(
        sinks::target(&connector, &action, OPEN).err().map(|problem| problem.setting),
        Some("headers")
    );
}

/// A certificate that signs itself, and the configuration of a server with it.
fn https_server(clients: Option<rustls::RootCertStore>) -> (String, rustls::ServerConfig) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => builder.with_client_cert_verifier(
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .unwrap(),
        ),
    };
    (made.cert.pem(), builder.with_single_cert(vec![made.cert.der().clone()], key).unwrap())
}

#[test]
fn https_shows_the_certificate_of_the_connector() {
    let own = rcgen::generate_simple_self_signed(vec!["broker".to_owned()]).unwrap();
    let mut clients = rustls::RootCertStore::empty();
    clients.add(own.cert.der().clone()).unwrap();
    let (pem, config) = https_server(Some(clients));
    let server = Server::secure(Arc::new(config));
    let ca = Temporary::new("mutual-ca", &pem);
    let certificate = Temporary::new("own-certificate", &own.cert.pem());
    let key = Temporary::new("own-key", &own.signing_key.serialize_pem());
    let without = ConnectorSettings {
        url: Some(format!("https://{}", server.address)),
        tls_ca: ca.path(),
        ..connector(&server)
    };
    let with =
        ConnectorSettings { tls_certificate: certificate.path(), tls_key: key.path(), ..without.clone() };
    let target = target(&with, &action());
    assert_eq!(target.open().write(&records(&*target, &["1"])), Ok(()));
    let target = support::target(&without, &action());
    // The server may reset the connection before its alert is read.
    unavailable(target.open().write(&records(&*target, &["1"])));
    assert_eq!(server.requests().len(), 1);

    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    let key = Temporary::new("other-key", &other.signing_key.serialize_pem());
    let wrong = ConnectorSettings { tls_key: key.path(), ..with };
    let problem = sinks::target(&wrong, &action(), OPEN).err().expect("a problem");
    assert_eq!(problem.setting, "tls_certificate", "{problem}");
}

#[test]
fn https_checks_the_certificate_of_the_server() {
    let (pem, config) = https_server(None);
    let server = Server::secure(Arc::new(config));
    let ca = Temporary::new("ca", &pem);
    let url = Some(format!("https://{}", server.address));
    let trusting = ConnectorSettings { url, tls_ca: ca.path(), ..connector(&server) };
    let target = target(&trusting, &action());
    let mut sink = target.open();
    for _ in 0..2 {
        assert_eq!(sink.write(&records(&*target, &["1"])), Ok(()));
    }
    assert_eq!(server.requests().len(), 2);

    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let ca = Temporary::new("other-ca", &other.cert.pem());
    let target = support::target(&ConnectorSettings { tls_ca: ca.path(), ..trusting.clone() }, &action());
    let why = unavailable(target.open().write(&records(&*target, &["1"])));
    assert!(why.contains("set tls_ca to the file"), "{why}");

    let plain = Server::start([Reply::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())]);
    let url = Some(format!("https://{}", plain.address));
    let target = support::target(&ConnectorSettings { url, ..trusting }, &action());
    let why = unavailable(target.open().write(&records(&*target, &["1"])));
    assert!(why.starts_with("https://"), "{why}");
}
