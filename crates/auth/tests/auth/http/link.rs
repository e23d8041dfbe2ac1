//! Link `http`: decides who may connect.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::Admission;
use auth::settings::{HttpAuthSettings, HttpMethod};
use auth::{Attempt, Circuit, HttpLink, Link, Outcome};
use mqtt::ReasonCode;
use serde_json::json;

use super::file;
use crate::support::server::{Play, Request, Server};
use crate::support::until;

const ALLOW: &str = r#"{"result":"allow"}"#;

fn alice() -> Attempt {
    Attempt {
        client_id: "c1".into(),
        username: Some("alice".into()),
        password: Some(b"s3cret"[..].into()),
        peer: Some([127, 0, 0, 1].into()),
        listener: "main".into(),
        certificate: None,
    }
}

fn named(client_id: &str) -> Attempt {
    let mut attempt = alice();
    attempt.client_id = client_id.into();
    attempt
}

/// Settings without a cache, so that every question is asked.
fn forgetful(url: String) -> HttpAuthSettings {
    HttpAuthSettings {
        url: Some(url),
        cache_ttl_allow: Duration::ZERO,
        cache_ttl_deny: Duration::ZERO,
        ..HttpAuthSettings::default()
    }
}

fn link(settings: &HttpAuthSettings) -> HttpLink {
    HttpLink::open(settings).unwrap().expect("there is a URL")
}

fn admit() -> Outcome {
    Outcome::Admit(Box::default())
}

fn why(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failed(why) => why,
        other => panic!("the link has not failed: {other:?}"),
    }
}

#[test]
fn the_service_decides_by_body_or_by_status() {
    let server = Server::start(|request| match String::from_utf8_lossy(&request.body).as_ref() {
        body if body.contains("\"ok\"") => Play::Answer(200, ALLOW),
        body if body.contains("\"known\"") => {
            Play::Answer(200, r#"{"result":"allow","username":"bob","tenant":"t"}"#)
        }
        body if body.contains("\"no\"") => Play::Answer(200, r#"{"result":"deny"}"#),
        body if body.contains("\"pass\"") => Play::Answer(200, r#"{"result":"ignore"}"#),
        body if body.contains("\"204\"") => Play::Answer(204, ""),
        body if body.contains("\"401\"") => Play::Answer(401, "who?"),
        body if body.contains("\"403\"") => Play::Answer(403, ""),
        body if body.contains("\"chunks\"") => Play::Chunked(ALLOW),
        _ => Play::Answer(404, "<html>"),
    });
    let link = link(&forgetful(server.url("/auth")));
    for (client_id, outcome) in [
        ("ok", admit()),
        ("204", admit()),
        ("chunks", admit()),
        ("no", Outcome::Refuse(ReasonCode::NotAuthorized)),
        ("403", Outcome::Refuse(ReasonCode::NotAuthorized)),
        ("401", Outcome::Refuse(ReasonCode::BadUserNameOrPassword)),
        ("pass", Outcome::NotMine),
        ("other", Outcome::NotMine),
    ] {
        assert_eq!(link.check_immediately(named(client_id).credentials()), None);
        assert_eq!(link.work(&named(client_id)), outcome, "{client_id}");
    }
    let Outcome::Admit(admission) = link.work(&named("known")) else { panic!("the client is admitted") };
    let Admission { username, principal, .. } = *admission;
    assert_eq!(username.as_deref(), Some("bob"));
    assert_eq!(principal.unwrap().mountpoint.as_deref(), Some("t/"));
    let figures = link.figures();
    assert_eq!((figures.requests, figures.allowed, figures.denied, figures.ignored), (9, 4, 3, 2));
    assert_eq!((figures.in_flight, figures.cached, figures.failed), (0, 0, Default::default()));
    assert!(figures.took >= figures.took_max && figures.took_max > Duration::ZERO);
    assert_eq!(server.connections(), 1, "the connection is kept, whatever the answer was");
}

#[test]
fn a_request_names_the_client_and_has_the_headers_of_the_file() {
    let server = Server::start(|_| Play::Answer(200, ALLOW));
    let headers = file("headers", "Authorization: Bearer t0ken\nX-Node: a\n");
    let settings =
        HttpAuthSettings { headers_file: Some(headers.clone()), ..forgetful(server.url("/a?b=c")) };
    let link = link(&settings);
    assert_eq!(link.work(&alice()), admit());
    let Request { line, headers: sent, .. } = server.requests().remove(0);
    assert_eq!(line, "POST /a?b=c HTTP/1.1");
    for header in [
        "authorization: Bearer t0ken",
        "x-node: a",
        "content-type: application/json",
        "accept: application/json",
    ] {
        assert!(sent.iter().any(|line| line == header), "{header}: {sent:?}");
    }
    let who = json!({
        "clientid": "c1", "username": "alice", "password": "s3cret", "peer": "127.0.0.1", "listener": "main", "cert_cn": null,
        "cert_subject": null,
    });
    assert_eq!(server.last(), who);
    std::fs::write(headers, "Authorization: Bearer t1ken\n").unwrap();
    link.read(&settings).unwrap().unwrap().apply();
    assert_eq!(link.work(&alice()), admit());
    assert!(server.requests()[1].headers.contains(&"authorization: Bearer t1ken".to_owned()));
}

#[test]
fn get_sends_everything_in_the_url() {
    let server = Server::start(|_| Play::Answer(204, ""));
    let url = server.url("/clients/${clientid}?user=${username}&cn=${cert_cn}");
    let link = link(&HttpAuthSettings { method: HttpMethod::Get, ..forgetful(url) });
    assert_eq!(link.work(&named("a b&c")), admit());
    assert_eq!(server.requests()[0].line, "GET /clients/a%20b%26c?user=alice&cn= HTTP/1.1");
    assert_eq!(link.work(&named("../admin")), Outcome::Refuse(ReasonCode::BadUserNameOrPassword));
    assert_eq!((server.requests().len(), link.figures().unaskable), (1, 1));
}

/// Values of a client stay values: they add no member, parameter, header or placeholder.
#[test]
fn names_cannot_inject_anything() {
    let server = Server::start(|_| Play::Answer(200, ALLOW));
    let evil = "x\",\"is_superuser\":true,\"a\":\"\r\nX-Admin: 1\r\n\r\nPOST / HTTP/1.1&admin=1#${password}";
    let link = link(&forgetful(server.url("/?id=${clientid}&u=${username}")));
    let mut attempt = named(evil);
    attempt.username = Some(evil.into());
    assert_eq!(link.work(&attempt), admit());
    let requests = server.requests();
    assert_eq!((requests.len(), &server.last()["clientid"]), (1, &json!(evil)));
    assert_eq!(server.last().as_object().unwrap().len(), 7);
    assert!(!requests[0].line.contains("s3cret") && requests[0].line.matches(['&', '#', ' ']).count() == 3);
    assert!(!requests[0].headers.iter().any(|header| header.contains("x-admin")));
}

#[test]
fn invalid_answers_are_failures() {
    let elsewhere = Server::start(|_| Play::Answer(200, ALLOW));
    let target = elsewhere.url("/");
    let server = Server::start(move |request| match String::from_utf8_lossy(&request.body).as_ref() {
        body if body.contains("\"500\"") => Play::Answer(500, ALLOW),
        body if body.contains("\"201\"") => Play::Answer(201, ALLOW),
        body if body.contains("\"words\"") => Play::Answer(200, "<html>allow</html>"),
        body if body.contains("\"empty\"") => Play::Answer(200, ""),
        body if body.contains("\"redirect\"") => {
            Play::Raw(format!("HTTP/1.1 307 X\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n").into())
        }
        body if body.contains("\"huge\"") => {
            let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n".to_vec();
            bytes.resize(200_000, b' ');
            Play::Raw(bytes)
        }
        body if body.contains("\"headers\"") => {
            Play::Raw(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(100_000)).into())
        }
        body if body.contains("\"garbage\"") => Play::Raw(b"\x16\x03\x01 no http at all\r\n\r\n".to_vec()),
        _ => Play::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"result\":\"al".to_vec()),
    });
    let link = link(&HttpAuthSettings { failures_max: 1000, ..forgetful(server.url("/")) });
    for (client_id, says) in [
        ("500", "status 500"),
        ("201", "status 201"),
        ("redirect", "status 307"),
        ("words", "not a JSON object"),
        ("empty", "not a JSON object"),
        ("huge", "larger than response_max"),
        ("headers", "headers of the answer"),
        ("garbage", "HTTP/1.1"),
        ("half", "no connection"),
    ] {
        let why = why(link.work(&named(client_id)));
        assert!(why.contains(says) && !why.contains("s3cret"), "{client_id}: {why}");
    }
    let failed = link.figures().failed;
    assert_eq!((failed.status, failed.body, failed.connect, failed.timeout), (3, 5, 1, 0));
    assert_eq!(elsewhere.connections(), 0, "redirects are not followed");
}

#[test]
fn a_service_that_hangs_fails_after_the_timeout() {
    let server = Server::start(|_| Play::Hang);
    let link = link(&HttpAuthSettings { timeout: Duration::from_millis(100), ..forgetful(server.url("/")) });
    assert_eq!(why(link.work(&alice())), "no answer in time");
    assert_eq!((link.figures().failed.timeout, link.figures().in_flight), (1, 0));
}

/// A service may close connections at any time, also while a request is on its way.
#[test]
fn a_closed_kept_connection_is_not_a_failure() {
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        1 => Play::Close,
        3 => Play::AnswerAndClose(200, ALLOW),
        _ => Play::Answer(200, ALLOW),
    });
    let link = link(&forgetful(server.url("/")));
    for _ in 0..5 {
        assert_eq!(link.work(&alice()), admit());
    }
    let always = Server::start(|_| Play::Close);
    let lost = HttpLink::open(&forgetful(always.url("/"))).unwrap().unwrap();
    assert!(why(lost.work(&alice())).starts_with("no connection"));
    assert_eq!(always.requests().len(), 2, "once more, and no more");
}

#[test]
fn a_service_that_is_down_is_a_failure() {
    let address = Server::start(|_| Play::Close).address;
    let link = link(&forgetful(format!("http://{address}/")));
    // The server may accept one more connection while it ends.
    assert!(why(link.work(&alice())).starts_with("no connection"));
}

#[test]
fn an_outage_opens_the_circuit_and_recovery_closes_it() {
    let down = Arc::new(AtomicBool::new(true));
    let is_down = down.clone();
    let server = Server::start(move |_| match is_down.load(Ordering::Relaxed) {
        true => Play::Answer(503, ""),
        false => Play::Answer(200, ALLOW),
    });
    let link = link(&HttpAuthSettings {
        open_for: Duration::from_secs(3600),
        open_for_max: Duration::from_secs(3600),
        ..forgetful(server.url("/"))
    });
    for _ in 0..5 {
        assert_eq!(link.check_immediately(alice().credentials()), None);
        assert!(why(link.work(&alice())).contains("503"));
    }
    let refused = link.check_immediately(alice().credentials()).expect("the answer is known at once");
    assert!(why(refused).contains("failed too often"));
    assert!(why(link.work(&alice())).contains("failed too often"), "a pending request is not sent either");
    let figures = link.figures();
    assert_eq!((figures.circuit, figures.opened, figures.failed.circuit_open), (Circuit::Open, 1, 2));
    assert_eq!(server.requests().len(), 5);

    let short = HttpAuthSettings {
        open_for: Duration::from_millis(10),
        failures_max: 1,
        ..forgetful(server.url("/"))
    };
    link.read(&short).unwrap().unwrap().apply();
    assert!(why(link.work(&alice())).contains("503"));
    down.store(false, Ordering::Relaxed);
    until("it tries again", || link.check_immediately(alice().credentials()).is_none());
    assert_eq!(link.work(&alice()), admit());
    assert_eq!((link.figures().circuit, link.figures().opened), (Circuit::Closed, 2));
}

/// Otherwise a client with a name that the service answers with an error could lock others out.
#[test]
fn an_invalid_answer_does_not_open_the_circuit() {
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_| match asked.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => Play::Answer(500, ""),
        1 => Play::Answer(400, ""),
        _ => Play::Answer(200, "?"),
    });
    let link = link(&forgetful(server.url("/")));
    for _ in 0..60 {
        why(link.work(&alice()));
    }
    assert_eq!((link.figures().circuit, server.requests().len()), (Circuit::Closed, 60));
}

#[test]
fn answers_are_remembered_for_these_credentials_only() {
    let server = Server::start(|request| match request.body.windows(6).any(|bytes| bytes == b"s3cret") {
        true => Play::Answer(200, ALLOW),
        false => Play::Answer(403, ""),
    });
    let settings = HttpAuthSettings { url: Some(server.url("/")), ..HttpAuthSettings::default() };
    let link = link(&settings);
    let mut wrong = alice();
    wrong.password = Some(b"wrong"[..].into());
    let deny = Outcome::Refuse(ReasonCode::NotAuthorized);
    for _ in 0..3 {
        assert_eq!(link.work(&alice()), admit());
        assert_eq!(link.work(&wrong), deny);
        assert_eq!(link.check_immediately(alice().credentials()), Some(admit()));
        assert_eq!(link.check_immediately(wrong.credentials()), Some(deny.clone()));
        assert_eq!(link.check_immediately(named("c2").credentials()), None);
    }
    let figures = link.figures();
    assert_eq!((figures.requests, figures.cached, figures.remembered), (2, 10, 2));
    link.read(&settings).unwrap().unwrap().apply();
    assert_eq!(link.check_immediately(alice().credentials()), None, "the cache is empty");
    assert_eq!(link.figures().remembered, 0);
}

#[test]
fn the_cache_is_bounded() {
    let server = Server::start(|_| Play::Answer(200, ALLOW));
    let link =
        link(&HttpAuthSettings { url: Some(server.url("/")), cache_max: 16, ..HttpAuthSettings::default() });
    for n in 0..200 {
        assert_eq!(link.work(&named(&format!("c{n}"))), admit());
    }
    assert!((1..=16).contains(&link.figures().remembered), "{}", link.figures().remembered);
    assert!(
        link.check_immediately(named("c199").credentials()).is_some()
            && link.check_immediately(named("c0").credentials()).is_none()
    );
}

#[test]
fn cached_answers_remain_during_an_outage() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = down.clone();
    let server = Server::start(move |_| {
        if is_down.load(Ordering::Relaxed) { Play::Answer(503, "") } else { Play::Answer(200, ALLOW) }
    });
    let link = link(&HttpAuthSettings {
        url: Some(server.url("/")),
        failures_max: 1,
        ..HttpAuthSettings::default()
    });
    assert_eq!(link.work(&alice()), admit());
    down.store(true, Ordering::Relaxed);
    why(link.work(&named("c2")));
    assert_eq!(link.figures().circuit, Circuit::Open);
    assert_eq!(link.check_immediately(alice().credentials()), Some(admit()));
}

#[test]
fn equal_questions_are_asked_once() {
    let server = Server::start(|_| Play::Hang);
    let link =
        Arc::new(link(&HttpAuthSettings { timeout: Duration::from_secs(20), ..forgetful(server.url("/")) }));
    let threads: Vec<_> = (0..100)
        .map(|_| {
            let link = link.clone();
            std::thread::spawn(move || link.work(&alice()))
        })
        .collect();
    until("all but one wait for the same answer", || link.figures().joined == 99);
    server.release();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), admit());
    }
    assert_eq!((server.requests().len(), link.figures().requests, link.figures().allowed), (1, 1, 1));
}

/// The number of connections is bounded; a client that gets none in time fails.
#[test]
fn connections_are_limited() {
    let server = Server::start(|_| Play::Hang);
    let settings = HttpAuthSettings {
        connections_max: 2,
        timeout: Duration::from_millis(300),
        ..forgetful(server.url("/"))
    };
    let link = Arc::new(link(&settings));
    let threads: Vec<_> = (0..12)
        .map(|n| {
            let link = link.clone();
            std::thread::spawn(move || why(link.work(&named(&format!("c{n}")))))
        })
        .collect();
    until("two are asked", || server.requests().len() >= 2);
    assert!(link.figures().in_flight <= 2);
    for thread in threads {
        thread.join().unwrap();
    }
    let figures = link.figures();
    let failed = figures.failed;
    assert_eq!(failed.timeout + failed.busy + failed.circuit_open, 12);
    assert_eq!((figures.requests, figures.in_flight), (failed.timeout, 0));
}

#[test]
fn errors_of_settings_say_what_to_do() {
    let url = || Some("http://127.0.0.1:1/".to_owned());
    let default = HttpAuthSettings::default;
    assert!(matches!(HttpLink::open(&default()), Ok(None)), "no URL, no service");
    for (settings, says) in [
        (
            HttpAuthSettings { url: Some("http://example.com/".into()), ..default() },
            "http_auth.url: passwords would cross",
        ),
        (HttpAuthSettings { url: url(), method: HttpMethod::Get, ..default() }, "?username=${username}"),
        (HttpAuthSettings { url: url(), body: Some("{}".into()), ..default() }, "?username=${username}"),
        (
            HttpAuthSettings { url: url(), method: HttpMethod::Get, body: Some("{}".into()), ..default() },
            "http_auth.body",
        ),
        (
            HttpAuthSettings { url: url(), body: Some("{\"a\":".into()), ..default() },
            "http_auth.body: this is not JSON",
        ),
        (
            HttpAuthSettings { url: url(), headers_file: Some("/nonexistent".into()), ..default() },
            "http_auth.headers_file: /nonexistent",
        ),
        (
            HttpAuthSettings { url: url(), headers_file: Some(file("bad", "A: b\nsecret\n")), ..default() },
            "2: expected `Name: value`",
        ),
    ] {
        let error = HttpLink::open(&settings).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("secret"), "{error}");
    }
}

/// Records the log lines of the test's thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn neither_logs_nor_debug_output_contain_secrets() {
    let server = Server::start(|_| Play::Answer(503, "s3cret"));
    let settings = HttpAuthSettings {
        headers_file: Some(file("secret", "Authorization: Bearer t0ken")),
        failures_max: 1,
        ..forgetful(server.url("/?p=${password}"))
    };
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let mut shown = tracing::subscriber::with_default(subscriber, || {
        let link = link(&settings);
        let why = why(link.work(&alice()));
        format!("{link:?} {why} {:?} {:?}", alice(), link.figures())
    });
    shown.push_str(&String::from_utf8(log.0.lock().unwrap().clone()).unwrap());
    assert!(shown.contains("the service fails") && shown.contains("passwords in it"), "{shown}");
    assert!(!shown.contains("s3cret") && !shown.contains("t0ken"), "{shown}");
    assert!(server.requests()[0].line.contains("s3cret"), "the secret was in the request");
}
