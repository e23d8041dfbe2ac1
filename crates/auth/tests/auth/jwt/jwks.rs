//! JWK Set at a URL, with a server that is correct, slow, down, faulty or hostile.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use auth::settings::Jwt;
use auth::{JwtLink, Outcome};
use mqtt::ReasonCode;

use crate::support::authority::{authority, server_config};
use crate::support::server::{Play, Request, Server};
use crate::support::until;
use crate::tokens::{Scratch, Signer, admission, ask, jwks, open};

const BAD: Outcome = Outcome::Refuse(ReasonCode::BadUserNameOrPassword);
const HOUR: Duration = Duration::from_secs(3600);
const AT_ONCE: Duration = Duration::from_millis(1);

/// Current set of the issuer, which a test changes.
#[derive(Clone)]
struct Issuer(Arc<Mutex<String>>);

impl Issuer {
    fn new(signers: &[&Signer]) -> Self {
        Self(Arc::new(Mutex::new(jwks(signers))))
    }

    fn publish(&self, signers: &[&Signer]) {
        *self.0.lock().unwrap() = jwks(signers);
    }

    fn answer(&self) -> Play {
        reply(200, "", &self.0.lock().unwrap())
    }
}

fn reply(status: u16, headers: &str, body: &str) -> Play {
    let length = body.len();
    Play::Raw(format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}\r\n{body}").into_bytes())
}

/// Settings that fetch only at the start and for unknown keys.
fn settings(server: &Server) -> Jwt {
    Jwt {
        jwks_url: Some(server.url("/keys")),
        jwks_refresh: HOUR,
        jwks_fetch_pause: Duration::ZERO,
        jwks_timeout: Duration::from_secs(20),
        ..Jwt::default()
    }
}

fn ready(settings: &Jwt) -> Arc<JwtLink> {
    let link = open(settings);
    until("the keys are fetched", || link.figures().jwks.unwrap().fetched > 0);
    link
}

fn failed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_))
}

fn failures(link: &JwtLink) -> u64 {
    link.figures().jwks.unwrap().failures
}

#[test]
fn the_first_clients_wait_for_the_first_fetch() {
    let a = Signer::new("a");
    let issuer = Issuer::new(&[&a]);
    let server = Server::start(move |_| issuer.answer());
    let link = open(&settings(&server));
    assert_eq!(admission(&link, &a.token()).username.as_deref(), Some("alice"));
    admission(&link, &a.token());
    let requests = server.requests();
    assert_eq!((requests.len(), &*requests[0].line), (1, "GET /keys HTTP/1.1"));
    assert!(requests[0].headers.contains(&"accept: application/json".to_owned()), "{requests:?}");
    let figures = link.figures().jwks.unwrap();
    assert_eq!((figures.fetched, figures.failures, figures.keys), (1, 0, 1));
}

#[test]
fn a_new_key_is_fetched_when_the_first_token_names_it() {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let issuer = Issuer::new(&[&a]);
    let server = Server::start({
        let issuer = issuer.clone();
        move |_| issuer.answer()
    });
    let link = ready(&settings(&server));
    assert_eq!(ask(&link, &b.token()), BAD, "the issuer has no such key");
    assert_eq!(server.requests().len(), 2);
    issuer.publish(&[&b]);
    admission(&link, &a.token());
    admission(&link, &b.token());
    assert_eq!(ask(&link, &a.token()), BAD, "the issuer has removed it");
    let figures = link.figures().jwks.unwrap();
    assert_eq!((figures.fetched, figures.failures, figures.unknown_key_ids), (4, 0, 3));
}

#[test]
fn nothing_is_fetched_twice_within_the_pause() {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let issuer = Issuer::new(&[&a]);
    let server = Server::start({
        let issuer = issuer.clone();
        move |_| issuer.answer()
    });
    let link = ready(&Jwt { jwks_fetch_pause: HOUR, ..settings(&server) });
    issuer.publish(&[&b]);
    for _ in 0..50 {
        assert_eq!(ask(&link, &b.token()), BAD);
    }
    assert_eq!(server.requests().len(), 1);

    // However many ask, there is at most one fetch in a pause, by a clock that started before the link's.
    let pause = Duration::from_millis(50);
    let (issuer, began) = (Issuer::new(&[&a]), Instant::now());
    let server = Server::start({
        let issuer = issuer.clone();
        move |_| issuer.answer()
    });
    let link = ready(&Jwt { jwks_fetch_pause: pause, ..settings(&server) });
    issuer.publish(&[&a, &b]);
    let foreign_token = Signer::new("c").token();
    until("the new key is fetched", || {
        assert!(!matches!(ask(&link, &foreign_token), Outcome::Admit(_)));
        matches!(ask(&link, &b.token()), Outcome::Admit(_))
    });
    for _ in 0..200 {
        ask(&link, &foreign_token);
    }
    let fetches = server.requests().len() as u128;
    assert!(fetches <= 1 + began.elapsed().as_millis() / pause.as_millis(), "{fetches}");
}

#[test]
fn one_fetch_serves_all_clients_and_few_wait_for_it() {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let issuer = Issuer::new(&[&a]);
    let gate = Arc::new(Mutex::new(()));
    let server = Server::start({
        let (issuer, gate) = (issuer.clone(), gate.clone());
        move |_| {
            drop(gate.lock().unwrap());
            issuer.answer()
        }
    });
    let link = ready(&settings(&server));
    issuer.publish(&[&a, &b]);
    let closed = gate.lock().unwrap();
    let (send, outcomes) = channel();
    let token = b.token();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            let (send, link, token) = (send.clone(), link.clone(), &token);
            scope.spawn(move || send.send(ask(&link, token)).unwrap());
        }
        for _ in 0..8 {
            let outcome = outcomes.recv_timeout(Duration::from_secs(15)).unwrap();
            assert!(failed(&outcome), "{outcome:?}");
        }
        // Known keys are not delayed.
        admission(&link, &a.token());
        drop(closed);
        for _ in 0..4 {
            let outcome = outcomes.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(matches!(outcome, Outcome::Admit(_)), "{outcome:?}");
        }
    });
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn old_keys_stay_valid_for_a_limited_time_while_the_server_is_down() {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let issuer = Issuer::new(&[&a]);
    let away = Arc::new(AtomicBool::new(false));
    let server = Server::start({
        let (issuer, away) = (issuer.clone(), away.clone());
        move |_| if away.load(Ordering::Acquire) { Play::Close } else { issuer.answer() }
    });
    let patient = ready(&Jwt { jwks_fetch_pause: AT_ONCE, ..settings(&server) });
    let strict =
        ready(&Jwt { jwks_fetch_pause: AT_ONCE, jwks_stale_max: Duration::ZERO, ..settings(&server) });
    away.store(true, Ordering::Release);
    for link in [&patient, &strict] {
        until("a fetch fails", || {
            ask(link, &b.token());
            failures(link) > 0
        });
    }
    admission(&patient, &a.token());
    assert!(failed(&ask(&patient, &b.token())), "whether the key exists is unknown");
    assert!(failed(&ask(&strict, &a.token())), "its time is over");
    let figures = patient.figures();
    assert!(figures.jwks.unwrap().with_old_keys > 0 && figures.unavailable > 0, "{figures:?}");

    issuer.publish(&[&b]);
    away.store(false, Ordering::Release);
    for link in [&patient, &strict] {
        until("the server is back", || matches!(ask(link, &b.token()), Outcome::Admit(_)));
        assert_eq!(ask(link, &a.token()), BAD, "the new set replaces the old one");
    }
}

#[test]
fn without_keys_no_client_is_admitted() {
    let a = Signer::new("a");
    let server = Server::start(|_| Play::Close);
    let link = open(&Jwt { jwks_fetch_pause: AT_ONCE, ..settings(&server) });
    let Outcome::Failed(why) = ask(&link, &a.token()) else { panic!("there are no keys") };
    assert!(why.contains("there are no keys"), "{why}");
    let figures = link.figures();
    assert!(figures.unavailable == 1 && figures.jwks.unwrap().age.is_none(), "{figures:?}");
}

/// Checks an invalid answer after a valid one: the keys of the first stay valid, and those of the second are refused.
fn keeps_its_keys_after(
    bad: impl Fn(&Request) -> Play + Send + Sync + 'static,
    timeout: Duration,
    what: &str,
) {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let issuer = Issuer::new(&[&a]);
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |request| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => issuer.answer(),
        _ => bad(request),
    });
    let link = ready(&Jwt { jwks_fetch_pause: AT_ONCE, ..settings(&server) });
    let hasty = Jwt { jwks_fetch_pause: AT_ONCE, jwks_timeout: timeout, ..settings(&server) };
    // This also requests a fetch.
    link.read(&hasty).unwrap().apply();
    until(what, || failures(&link) > 0);
    admission(&link, &a.token());
    assert!(failed(&ask(&link, &b.token())), "{what}");
    assert_eq!(link.figures().jwks.unwrap().keys, 1, "{what}");
}

#[test]
fn a_slow_server_times_out() {
    let short = Duration::from_millis(100);
    keeps_its_keys_after(|_| Play::Hang, short, "it sends nothing");
    keeps_its_keys_after(
        |_| Play::Drip("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
        short,
        "its document never ends",
    );
    keeps_its_keys_after(|_| Play::Drip("HTTP/1.1 200 OK\r\nX-A: "), short, "its header never ends");
}

#[test]
fn answers_that_are_too_large_are_not_read() {
    let long = HOUR;
    let blanks = |count: usize| " ".repeat(count);
    let set = jwks(&[&Signer::new("b")]);
    let huge = format!("{}{set}", blanks(256 << 10));
    keeps_its_keys_after(move |_| reply(200, "", &huge), long, "a large document");
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}{set}", blanks(300 << 10));
    keeps_its_keys_after(move |_| Play::Raw(endless.clone().into_bytes()), long, "of no stated length");
    let headers = format!("X-A: {}\r\n", "a".repeat(64 << 10));
    let document = set.clone();
    keeps_its_keys_after(move |_| reply(200, &headers, &document), long, "a large header");
    let many = format!("{{\"keys\":[{}]}}", vec!["{}"; 65].join(","));
    keeps_its_keys_after(move |_| reply(200, "", &many), long, "many keys");
}

#[test]
fn invalid_sets_change_nothing() {
    let set = jwks(&[&Signer::new("b")]);
    for body in [
        "",
        "<html>Log in</html>",
        "null",
        "[]",
        "{}",
        r#"{"keys":null}"#,
        r#"{"keys":{}}"#,
        r#"{"keys":[1]}"#,
        r#"{"keys":[],"keys":[]}"#,
        &set[..set.len() - 1],
        &format!("{set}x"),
        &format!("{{\"keys\":{}", "[".repeat(100_000)),
    ] {
        let (what, body) = (body.chars().take(40).collect::<String>(), body.to_owned());
        keeps_its_keys_after(move |_| reply(200, "", &body), HOUR, &what);
    }
    for status in [204, 206, 304, 400, 401, 404, 500, 503] {
        let set = set.clone();
        let what = format!("status {status}");
        let body = if matches!(status, 204 | 304) { String::new() } else { set };
        keeps_its_keys_after(move |_| reply(status, "", &body), HOUR, &what);
    }
    for bytes in ["", "\0", "SSH-2.0-x\r\n", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}"]
    {
        keeps_its_keys_after(move |_| Play::Raw(bytes.as_bytes().to_vec()), HOUR, bytes);
    }
}

#[test]
fn a_redirect_is_followed_on_the_same_server_only() {
    let (a, attacker) = (Signer::new("a"), Signer::new("x"));
    let theirs = Issuer::new(&[&attacker]);
    let other = Arc::new(Server::start(move |_| theirs.answer()));
    for status in [301, 302, 303, 307, 308] {
        let to = format!("Location: {}\r\n", other.url("/keys"));
        keeps_its_keys_after(move |_| reply(status, &to, ""), HOUR, "to another server");
    }
    keeps_its_keys_after(|_| reply(302, "Location: /keys\r\n", ""), HOUR, "in a circle");
    keeps_its_keys_after(|_| reply(302, "", ""), HOUR, "nowhere");
    assert_eq!(other.connections(), 0);

    let issuer = Issuer::new(&[&a]);
    let server = Server::start(move |request| match &*request.line {
        "GET /keys HTTP/1.1" => reply(307, "Location: /v2/keys?x=1\r\n", ""),
        _ => issuer.answer(),
    });
    admission(&ready(&settings(&server)), &a.token());
    assert_eq!(server.requests()[1].line, "GET /v2/keys?x=1 HTTP/1.1");
}

#[test]
fn an_unchanged_set_is_not_sent_again() {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let issuer = Issuer::new(&[&a]);
    let version = Arc::new(AtomicU64::new(1));
    let server = Server::start({
        let (issuer, version) = (issuer.clone(), version.clone());
        move |request| {
            let etag = format!("\"v{}\"", version.load(Ordering::Acquire));
            if request.headers.contains(&format!("if-none-match: {etag}")) {
                return reply(304, "", "");
            }
            reply(200, &format!("ETag: {etag}\r\n"), &issuer.0.lock().unwrap())
        }
    });
    let link = ready(&settings(&server));
    for asked in 2..4 {
        assert_eq!(ask(&link, &b.token()), BAD, "it is certain that there is no such key");
        let requests = server.requests();
        assert_eq!(requests.len(), asked);
        assert!(requests[asked - 1].headers.contains(&"if-none-match: \"v1\"".to_owned()), "{requests:?}");
    }
    admission(&link, &a.token());
    issuer.publish(&[&a, &b]);
    version.store(2, Ordering::Release);
    admission(&link, &b.token());
    admission(&link, &a.token());
    assert_eq!(failures(&link), 0);
}

#[test]
fn a_server_may_shorten_the_interval() {
    let a = Signer::new("a");
    for header in ["Cache-Control: max-age=0\r\n", "Cache-Control: no-store\r\n"] {
        let set = jwks(&[&a]);
        let server = Server::start(move |_| reply(200, header, &set));
        let link = ready(&Jwt { jwks_fetch_pause: AT_ONCE, ..settings(&server) });
        until(header, || server.requests().len() > 3);
        admission(&link, &a.token());
    }
}

#[test]
fn a_server_of_a_trusted_authority_is_asked() {
    let (a, ours, theirs) = (Signer::new("a"), authority(), authority());
    let issuer = Issuer::new(&[&a]);
    let server = Server::with_tls(server_config(&ours, false), move |_| issuer.answer());
    let (our_file, their_file) = (Scratch::new(ours.pem().as_bytes()), Scratch::new(theirs.pem().as_bytes()));
    let with = |file: &Scratch| Jwt {
        jwks_ca_file: Some(file.0.clone()),
        jwks_fetch_pause: AT_ONCE,
        ..settings(&server)
    };
    let mistrusts = open(&with(&their_file));
    assert!(failed(&ask(&mistrusts, &a.token())));
    assert!(failures(&mistrusts) > 0);
    assert_eq!(server.requests().len(), 0, "no request is sent to an untrusted server");

    let trusts = ready(&with(&our_file));
    admission(&trusts, &a.token());
    // Another authority is an ordinary change of settings.
    mistrusts.read(&with(&our_file)).unwrap().apply();
    until("it is trusted now", || matches!(ask(&mistrusts, &a.token()), Outcome::Admit(_)));
    let nothing = Scratch::new(b"");
    assert!(trusts.read(&with(&nothing)).unwrap_err().to_string().contains("no certificate"));
    admission(&trusts, &a.token());
}

#[test]
fn a_set_in_a_file_is_checked_and_read_again() {
    let (a, b) = (Signer::new("a"), Signer::new("b"));
    let set = Scratch::new(jwks(&[&a]).as_bytes());
    let settings =
        Jwt { jwks_file: Some(set.0.clone()), jwks_refresh: HOUR, jwks_fetch_pause: HOUR, ..Jwt::default() };
    let link = open(&settings);
    admission(&link, &a.token());
    std::fs::write(&set.0, "{}").unwrap();
    let error = link.read(&settings).unwrap_err().to_string();
    assert!(error.contains(&*set.0.to_string_lossy()), "{error}");
    admission(&link, &a.token());
    std::fs::write(&set.0, jwks(&[&b])).unwrap();
    link.read(&settings).unwrap().apply();
    until("the file is read", || matches!(ask(&link, &b.token()), Outcome::Admit(_)));
    assert_eq!(ask(&link, &a.token()), BAD);
}
