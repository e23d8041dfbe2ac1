//! Line protocol targets and a scripted server.

#![cfg(feature = "line_protocol")]

mod support;

use std::sync::Arc;

use rules::Value;
use sinks::{ActionSettings, ConnectorKind, ConnectorSettings, Record, Sink, Target, WriteError};
use support::{OPEN, Reply, Server, Temporary, record, target};

fn connector(server: &Server) -> ConnectorSettings {
    ConnectorSettings {
        kind: ConnectorKind::LineProtocol,
        url: server.url(),
        database: "d".to_owned(),
        ..ConnectorSettings::default()
    }
}

fn action() -> ActionSettings {
    ActionSettings { content: "m,site=a v=${v}".to_owned(), ..ActionSettings::default() }
}

fn open(server: &Server) -> (Arc<dyn Target>, Box<dyn Sink>, Vec<Record>) {
    let target = target(&connector(server), &action());
    let records = (1..=3).map(|id| record(&*target, id as u128, Value::Int(id))).collect();
    let sink = target.open();
    (target, sink, records)
}

#[test]
fn a_batch_is_one_request_with_a_line_for_each_record() {
    let server = Server::start([Reply::Status(204)]);
    let token = Temporary::new("influx-token", "t0ken\n");
    let connector =
        ConnectorSettings { organization: "o".to_owned(), token_file: token.path(), ..connector(&server) };
    let target = target(&connector, &action());
    let records: Vec<_> = [Value::Int(1), "a\nb".into(), Value::Bool(true)]
        .into_iter()
        .map(|value| record(&*target, 1, value))
        .collect();
    let mut sink = target.open();
    assert_eq!(sink.write(&[]), Ok(()));
    assert_eq!(sink.write(&records), Ok(()));
    let request = server.request();
    assert_eq!(
        (request.method.as_str(), request.target.as_str()),
        ("POST", "/api/v2/write?org=o&bucket=d&precision=ms")
    );
    assert_eq!(request.text(), "m,site=a v=1\nm,site=a v=\"a\\nb\"\nm,site=a v=true\n");
    assert_eq!(request.header("authorization"), Some("Token t0ken"));
    assert_eq!(request.header("content-type"), Some("text/plain; charset=utf-8"));
}

#[test]
fn the_status_decides_about_the_batch() {
    let server = Server::start([]);
    let (_, mut sink, records) = open(&server);
    for status in [200, 204] {
        server.then([Reply::Status(status)]);
        assert_eq!(sink.write(&records), Ok(()), "{status}");
    }
    for status in [201, 400, 413, 422] {
        let body = "partial write: field type conflict".to_owned();
        server.then([Reply::Full { status, headers: String::new(), body }]);
        let error = sink.write(&records).unwrap_err();
        assert!(matches!(&error, WriteError::Refused(why) if why.contains("field type conflict")), "{error}");
    }
    for status in [301, 401, 403, 404, 429, 500, 503] {
        server.then([Reply::Status(status)]);
        assert!(
            matches!(sink.write(&records), Err(WriteError::Unavailable(_) | WriteError::Failed(_))),
            "{status}"
        );
    }
}

#[test]
fn a_test_writes_nothing_and_checks_credentials_and_database() {
    let influx = "X-Influxdb-Version: v2.7\r\n".to_owned();
    let server = Server::start([
        Reply::Full { status: 204, headers: influx, body: String::new() },
        Reply::Status(400),
        Reply::Status(401),
        Reply::Status(404),
        Reply::Status(500),
    ]);
    let (_, mut sink, _) = open(&server);
    let text = sink.test().unwrap();
    assert!(text.ends_with("status 204 (InfluxDB v2.7)"), "{text}");
    assert_eq!(server.request().body, b"");
    assert!(sink.test().unwrap().ends_with("status 400"));
    for says in ["credentials", "nothing at this URL", "500"] {
        let error = sink.test().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn wrong_settings_are_explained() {
    let server = Server::start([]);
    let content = |content: &str| ActionSettings { content: content.to_owned(), ..action() };
    for (action, setting) in [
        (content("${.}"), "content"),
        (content("m f=abc"), "content"),
        (ActionSettings { headers: "X: y".to_owned(), ..action() }, "headers"),
        (ActionSettings { path: "write".to_owned(), ..action() }, "path"),
    ] {
        let problem = sinks::target(&connector(&server), &action, OPEN).err().expect("a problem");
        assert_eq!(problem.setting, setting, "{problem}");
    }
}
