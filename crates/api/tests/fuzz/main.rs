//! Random and damaged requests over real connections, for two seconds or the time in the environment variable
//! `MERIDIAN_FUZZ_SECONDS`. `MERIDIAN_FUZZ_SEED` selects another run than the default one.

#[allow(dead_code)]
#[path = "../api/support.rs"]
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::Role;
use random::Random;
use support::Server;

/// Number of rounds of a run without a given duration.
const ROUNDS_MAX: u64 = 20_000;
const SECONDS: u64 = 2;
const SIDE_BY_SIDE: usize = 16;
/// Paths that are never requested: they would change the rights of the callers.
const SPARED: &[&str] = &["/api/v1/keys"];

#[test]
fn no_request_makes_the_server_fail_hang_or_panic() {
    let seed = variable("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let asked = variable("MERIDIAN_FUZZ_SECONDS");
    let rounds_max = if asked.is_some() { u64::MAX } else { ROUNDS_MAX };
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS));
    let server = Server::with_keys(|settings| {
        settings.header_timeout = Duration::from_millis(100);
        settings.request_timeout = Duration::from_millis(500);
        settings.refusals_per_second = 100_000;
    });
    let token = server.token(Role::Admin);
    let operations = operations();
    // Many at a time: most of a round is the wait for the missing rest of a damaged request.
    let (rounds, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let round = rounds.fetch_add(1, Ordering::Relaxed);
                    if round >= rounds_max || (round > 0 && Instant::now() >= end) {
                        return;
                    }
                    let number = seed.wrapping_mul(1 << 32).wrapping_add(round);
                    let mut random = Random::new(number);
                    let request = request(&mut random, &operations, &token);
                    answered.fetch_add(u64::from(run(&server, &request, seed, round)), Ordering::Relaxed);
                }
            });
        }
    });
    let (rounds, answered) = (rounds.into_inner(), answered.into_inner());
    println!("{answered} of {rounds} requests were answered");
    assert!(answered > 0, "nothing was understood");
    server.get("/health/live").is(200);
}

/// Sends one request. Returns whether it was answered.
fn run(server: &Server, request: &[u8], seed: u64, round: u64) -> bool {
    let mut client = server.connect();
    // The server may have closed the connection before the end.
    let _ = client.try_send(request);
    let Some(status) = client.line() else { return false };
    let whence =
        || format!("seed {seed} round {round}: {status:?} to {:?}", String::from_utf8_lossy(request));
    let code = status.strip_prefix("HTTP/1.1 ").or_else(|| status.strip_prefix("HTTP/1.0 "));
    let code: u16 =
        code.and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or_else(|| panic!("{}", whence()));
    if code >= 500 {
        // Only a missing body may make the server late.
        assert_eq!(code, 503, "{}", whence());
        let rest: String = std::iter::from_fn(|| client.line()).take_while(|line| !line.is_empty()).collect();
        assert!(rest.contains("application/problem+json"), "{} {rest}", whence());
    }
    true
}

/// Returns method and path of all operations.
fn operations() -> Vec<(String, String)> {
    let document = serde_json::to_value(api::document()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let each = paths.iter().flat_map(|(path, item)| {
        item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
    });
    each.filter(|(_, path)| !SPARED.iter().any(|spared| path.starts_with(spared))).collect()
}

fn request(random: &mut Random, operations: &[(String, String)], token: &str) -> Vec<u8> {
    let (method, path) = random.pick(operations).clone();
    let method = if random.below(6) == 0 { word(random, METHODS).to_owned() } else { method };
    let mut target = String::new();
    for (number, piece) in path.split('{').enumerate() {
        match piece.split_once('}') {
            Some((_, rest)) if number > 0 => {
                target.push_str(word(random, WORDS));
                target.push_str(rest);
            }
            _ => target.push_str(piece),
        }
    }
    if random.below(8) == 0 {
        target = word(random, TARGETS).to_owned();
    }
    if random.below(3) == 0 {
        target.push_str(&format!("?{}={}", word(random, NAMES), word(random, WORDS)));
    }
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
    if random.below(8) > 0 {
        text.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    if random.below(8) > 0 {
        text.push_str("Content-Type: application/json\r\n");
    }
    for _ in 0..random.below(3) {
        text.push_str(word(random, HEADERS));
    }
    let body = body(random);
    if random.below(4) == 0 {
        text.push_str(&format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    } else {
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    }
    let mut bytes = text.into_bytes();
    if random.below(3) == 0 {
        for _ in 0..=random.below(4) {
            damage(random, &mut bytes);
        }
    }
    bytes
}

fn body(random: &mut Random) -> String {
    let value = |random: &mut Random| match random.below(5) {
        0 => word(random, WORDS).replace('"', ""),
        1 => format!("\"{}\"", word(random, WORDS).replace(['"', '\\'], "")),
        2 => format!("[\"{}\",1]", random.below(9)),
        3 => "{\"a\":{}}".to_owned(),
        _ => word(random, &["null", "true", "-1", "1e99", "18446744073709551616", "0.5"]).to_owned(),
    };
    match random.below(5) {
        0 => String::new(),
        1 => word(random, BODIES).to_owned(),
        2 => "[".repeat(1 + random.below(5_000)),
        _ => {
            let fields: Vec<String> = (0..random.below(4))
                .map(|_| format!("\"{}\":{}", word(random, NAMES), value(random)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
    }
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len());
    match random.below(5) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => bytes.insert(at, *random.pick(b"\r\n\0 :;%/\xff")),
        3 => drop(bytes.drain(at..(at + 1 + random.below(16)).min(bytes.len()))),
        _ => {
            let piece = bytes[at..(at + random.below(64)).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    if bytes.is_empty() {
        bytes.push(b'G');
    }
}

const METHODS: &[&str] =
    &["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"];
const TARGETS: &[&str] = &[
    "/",
    "*",
    "//",
    "/../../etc/passwd",
    "/assets/..%2f..%2fetc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/%",
    "/%zz",
    "/index.html/..",
    "/assets/",
    "/\\..\\..",
    "http://localhost/api/v1/node",
    "localhost:80",
    "/api/v1/%00",
    "/api//v1/node",
    "/API/V1/NODE",
    "/api/v1/node/",
    "/api/openapi.json",
    "/metrics",
    "/health/ready",
];
const WORDS: &[&str] = &[
    "a",
    "%2F",
    "%ff",
    "..",
    "a/b",
    "%2e%2e%2f",
    "0",
    "-1",
    "18446744073709551616",
    "$share/g/%23",
    "%23",
    "%2B",
    "true",
    "null",
    "\"",
    "%00",
    "x%0d%0aSet-Cookie:a",
    "1h",
    "debug",
    "10.0.0.0/8",
];
const NAMES: &[&str] = &[
    "limit",
    "cursor",
    "search",
    "level",
    "topic",
    "payload",
    "qos",
    "retain",
    "changes",
    "comment",
    "for",
    "clientid",
    "client_id",
    "filter",
    "kind",
    "value",
    "until",
    "reason",
    "match",
    "names",
    "name",
    "x",
];
const HEADERS: &[&str] = &[
    "Content-Length: 5\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 1, 2\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: upgrade\r\nUpgrade: h2c\r\n",
    "Origin: https://evil.example\r\n",
    "Host: evil.example\r\n",
    "Range: bytes=0-\r\n",
    "If-None-Match: *\r\n",
    "Accept: text/event-stream\r\n",
    "Accept-Encoding: gzip\r\n",
    "Connection: close\r\n",
    "Authorization: Basic eA==\r\n",
    "X: a\r\n b\r\n",
    ": x\r\n",
    "\0: x\r\n",
];
const BODIES: &[&str] = &[
    "{\"level\":\"debug\",\"for\":\"1s\"}",
    "{\"changes\":{\"mqtt.qos_max\":\"1\"}}",
    "{\"topic\":\"a\",\"payload\":\"eA==\"}",
    "{\"topic\":\"a/#\",\"payload\":1}",
    "{\"kind\":\"client_id\",\"value\":\"x\"}",
    "\u{feff}{}",
    "{\"a\":1,\"a\":2}",
    "\"\\ud800\"",
];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn word(random: &mut Random, all: &[&'static str]) -> &'static str {
    random.pick::<&'static str>(all)
}
