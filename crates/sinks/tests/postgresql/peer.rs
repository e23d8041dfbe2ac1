//! Peers that are not PostgreSQL, and settings that are wrong.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use rules::{RenderError, Value};
use sinks::{ConnectorSettings, Guard, Sink, WriteError};

use super::{OPEN, Scene, connector, target_of, unavailable};

const LOGGED_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

/// Accepts connections and answers each with these bytes. Then it ends its direction unless `is_open`. To close would
/// reset a connection on which the client has sent more.
fn peer(answer: Vec<u8>, is_open: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            _ = stream.read(&mut [0; 1024]);
            _ = stream.write_all(&answer);
            if !is_open {
                _ = stream.shutdown(Shutdown::Write);
            }
            open.push(stream);
        }
    });
    port
}

fn sink(port: u16, timeout: Duration) -> Box<dyn Sink> {
    let settings = ConnectorSettings { timeout, ..connector(&[port], None) };
    Scene::new(&settings, "SELECT ${payload}::text").sink
}

#[test]
fn a_peer_that_is_no_server_makes_the_target_unavailable() {
    let long = Duration::from_secs(60);
    let short = Duration::from_millis(300);
    let then = |more: &[u8]| [LOGGED_IN, more].concat();
    for (name, answer, is_open, timeout, says) in [
        ("closes", vec![], false, long, "closed"),
        ("is silent", vec![], true, short, "within"),
        (
            "speaks HTTP",
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            true,
            long,
            "the server sends more than",
        ),
        ("sends a huge length", b"E\x7f\xff\xff\xff".to_vec(), true, long, "the server sends more than"),
        ("sends a length of 0", b"R\0\0\0\0".to_vec(), true, long, "invalid message length"),
        ("asks for Kerberos", b"R\0\0\0\x08\0\0\0\x02".to_vec(), true, long, "unsupported authentication"),
        ("asks for a password", b"R\0\0\0\x08\0\0\0\x03".to_vec(), true, long, "password missing"),
        (
            "sends notices without an end",
            [&LOGGED_IN[..9], &b"N\0\0\0\x0bSNOTE\0\0".repeat(100_000)].concat(),
            true,
            long,
            "the server sends more than",
        ),
        ("closes after the login", LOGGED_IN.to_vec(), false, long, "clos"),
        ("is silent after the login", LOGGED_IN.to_vec(), true, short, "within"),
        (
            "sends a huge length after the login",
            then(b"T\x7f\0\0\0"),
            true,
            long,
            "the server sends more than",
        ),
        ("answers something else", then(b"1\0\0\0\x04Z\0\0\0\x05I"), true, long, "unexpected message"),
        (
            "shuts down",
            then(b"E\0\0\0\x1fSFATAL\0C57P01\0Mgoing down\0\0"),
            false,
            long,
            "going down (SQLSTATE 57P01)",
        ),
    ] {
        let why = unavailable(sink(peer(answer, is_open), timeout).test());
        assert!(why.contains(says), "{name}: {why}");
    }
}

#[test]
fn garbage_never_panics() {
    let mut state = 7_u64;
    for round in 0..200 {
        let mut garbage = if round % 2 == 0 { LOGGED_IN.to_vec() } else { vec![] };
        for _ in 0..12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (state >> 16).to_be_bytes();
            garbage.push(b"RZETDCISKNAt12n"[random[2] as usize % 15]);
            let len = 4 + random[3] % 24;
            garbage.extend([0, 0, 0, len]);
            garbage.extend((4..len).map(|n| random[4 + n as usize % 4] & 0x4f));
        }
        let result = sink(peer(garbage, false), Duration::from_secs(60)).test();
        assert!(
            matches!(result, Err(WriteError::Unavailable(_) | WriteError::Failed(_))),
            "{round}: {result:?}"
        );
    }
}

#[test]
fn addresses_that_connectors_must_not_reach_are_not_connected_to() {
    let settings = connector(&[1], None);
    let action = sinks::ActionSettings { statement: "SELECT ${x}::text".to_owned(), ..Default::default() };
    let strict = Guard { allow_loopback: false, ..OPEN };
    let target = sinks::target(&settings, &action, strict).expect("a target");
    let why = unavailable(target.open().test());
    assert!(why.contains("allow_loopback"), "{why}");
}

#[test]
fn missing_values_are_an_error_unless_they_are_optional() {
    let settings = connector(&[1], None);
    let target = target_of(&settings, "INSERT INTO t VALUES (${a}, ${b?}, ${meridian_id}, ${.}, ${b?})")
        .expect("a target");
    let render = |a: Value, b: Value| target.render(&Value::object([("a", a), ("b", b)]));
    let record = render(Value::from(1_i64), Value::Null).expect("a record");
    let text = |text: &str| Some(text.as_bytes().into());
    assert_eq!(record.fields, [text("1"), None, None, text(r#"{"a":1,"b":null}"#), None]);
    let record = render(Value::from(""), Value::of_bytes(b"\xff")).map_err(|error| error.reason());
    assert_eq!(record, Err("bytes_in_json"));
    assert!(matches!(render(Value::Null, Value::Null), Err(RenderError::Missing { .. })));
}

#[test]
fn wrong_settings_are_named() {
    let good = connector(&[1], None);
    let statement = "SELECT ${x}::text";
    for (settings, statement, setting) in [
        (ConnectorSettings { address: None, ..good.clone() }, statement, "address"),
        (ConnectorSettings { database: String::new(), ..good.clone() }, statement, "database"),
        (ConnectorSettings { username: None, ..good.clone() }, statement, "username"),
        (
            ConnectorSettings { password_file: Some("/nowhere/password".into()), ..good.clone() },
            statement,
            "password_file",
        ),
        (ConnectorSettings { tls_ca: Some("/nowhere/ca".into()), ..good.clone() }, statement, "tls"),
        (
            ConnectorSettings { tls: true, tls_ca: Some("/nowhere/ca".into()), ..good.clone() },
            statement,
            "tls_ca",
        ),
        (
            ConnectorSettings { tls: true, tls_key: Some("/nowhere/key".into()), ..good.clone() },
            statement,
            "tls_certificate",
        ),
        (good.clone(), "", "statement"),
        (good.clone(), "SELECT '${x}'", "statement"),
        (good.clone(), "SELECT ${a..b}", "statement"),
    ] {
        let problem =
            target_of(&settings, statement).err().unwrap_or_else(|| panic!("{setting} is accepted"));
        assert_eq!(problem.setting, setting, "{problem}");
    }
}
