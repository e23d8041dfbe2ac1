//! Invalid requests, and requests from forbidden origins: each gets a clear problem document and is counted.

use serde_json::json;

use crate::document::{document, operations};
use crate::support::Server;

#[track_caller]
fn counted(server: &Server, reason: &str, count: u32) {
    let metrics = server.get("/metrics");
    let line = format!("meridian_http_rejected_total{{reason=\"{reason}\"}} {count}\n");
    assert!(metrics.text().contains(&line), "{line}{}", metrics.text());
}

#[test]
fn a_name_that_only_points_here_is_not_answered() {
    let server = Server::with(|settings| settings.refusals_per_second = 1000);
    let port = server.address.port();
    let mut refused = 0;
    for host in
        ["evil.example", &format!("evil.example:{port}"), "0.0.0.0", "192.0.2.1", "127.0.0.1.evil.example"]
    {
        for path in ["/api/v1/node", "/metrics", "/", "/health/live", "/api/openapi.json"] {
            let detail = server.request("GET", path, &[("Host", host)], None).problem(403, "forbidden");
            assert!(detail.contains("localhost"), "{detail}");
            refused += 1;
        }
    }
    counted(&server, "host", refused);
    for host in ["localhost", &format!("LOCALHOST:{port}"), "127.0.0.1:1", "[::1]:99"] {
        server.request("GET", "/api/v1/node", &[("Host", host)], None).is(200);
    }
    server
        .request("GET", "/api/v1/node", &[("Host", "localhost"), ("Host", "localhost")], None)
        .problem(400, "bad-request");
    // The target takes precedence over the header.
    server
        .request("GET", "http://evil.example/api/v1/node", &[("Host", "localhost")], None)
        .problem(403, "forbidden");
    let mut client = server.connect();
    client.send(b"GET /api/v1/node HTTP/1.0\r\n\r\n");
    client.answer("GET").problem(400, "bad-request");
}

#[test]
fn with_keys_any_name_will_do() {
    let server = Server::with_keys(|_| ());
    server.request("GET", "/api/v1/node", &[("Host", "broker.example")], None).problem(401, "unauthorized");
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let server = Server::start();
    let own = format!("http://{}", server.address);
    let put = |origin: &str| {
        let headers = [("Origin", origin), ("Content-Type", "application/json")];
        server.request("PUT", "/api/v1/log/level", &headers, Some("{\"level\":\"debug\"}"))
    };
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "https://"] {
        put(origin).problem(403, "forbidden");
    }
    counted(&server, "origin", 4);
    assert_eq!(server.get("/api/v1/log/level").is(200)["level"], "info");
    put(&own).is(200);
    // No header lets the other site's page read a path that needs no role.
    let read = server.request("GET", "/health/live", &[("Origin", "http://evil.example")], None);
    read.is(200);
    assert_eq!(read.header("access-control-allow-origin"), None);
    let preflight = server.request("OPTIONS", "/api/v1/publish", &[("Origin", "http://evil.example")], None);
    preflight.problem(403, "forbidden");
}

/// Otherwise a page that an operator visits could open all streams of a node without a key.
#[test]
fn a_page_of_another_site_reads_nothing_while_there_is_no_key() {
    let server = Server::start();
    let evil = [("Origin", "http://evil.example")];
    for path in ["/api/v1/trace?topic=a", "/api/v1/log/stream", "/api/v1/node", "/metrics"] {
        server.request("GET", path, &evil, None).problem(403, "forbidden");
        server.request("GET", path, &[("Sec-Fetch-Site", "cross-site")], None).problem(403, "forbidden");
    }
    counted(&server, "origin", 8);
    // A link to the dashboard.
    assert_eq!(server.request("GET", "/", &[("Sec-Fetch-Site", "cross-site")], None).status, 200);
    let own = format!("http://{}", server.address);
    server.request("GET", "/api/v1/node", &[("Origin", &own)], None).is(200);
    // A server with keys has no such limit.
    let server = Server::with_keys(|_| ());
    server.request("GET", "/api/v1/node", &evil, None).problem(401, "unauthorized");
}

/// A request from elsewhere through a proxy on this machine looks like one of this machine.
#[test]
fn nothing_is_answered_through_a_proxy_while_there_is_no_key() {
    let server = Server::start();
    let headers = [
        ("Forwarded", "for=192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("X-Real-IP", "192.0.2.1"),
        ("Via", "1.1 proxy"),
    ];
    for header in headers {
        let detail = server.request("GET", "/api/v1/node", &[header], None).problem(403, "forbidden");
        assert!(detail.contains("meridian key add"), "{detail}");
    }
    server.request("GET", "/", &[headers[0]], None).problem(403, "forbidden");
    counted(&server, "proxy", 6);
    // nginx without further settings: no header of its own, and HTTP/1.0.
    let old = |method: &str, target: &str| {
        let head = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n";
        let mut client = server.connect();
        client.send(format!("{method} {target} HTTP/1.0\r\n{head}").as_bytes());
        client.head().0
    };
    assert_eq!((old("POST", "/api/v1/config/reload"), old("DELETE", "/api/v1/clients/c")), (403, 403));
    assert_eq!(old("GET", "/metrics"), 200, "simple collectors speak it too");
    let server = Server::with_keys(|_| ());
    let token = format!("Bearer {}", server.token(api::Role::Viewer));
    let headers = [headers[0], ("Authorization", token.as_str())];
    server.request("GET", "/api/v1/node", &headers, None).is(200);
}

#[test]
fn changes_need_json_also_without_a_body() {
    let server = Server::start();
    for type_ in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "",
    ] {
        let headers = [("Content-Type", type_)];
        server
            .request("PUT", "/api/v1/log/level", &headers, Some("{}"))
            .problem(415, "unsupported-media-type");
    }
    server.request("DELETE", "/api/v1/slow-subscribers", &[], None).problem(415, "unsupported-media-type");
    counted(&server, "media_type", 6);
    let headers = [("Content-Type", "Application/JSON; charset=utf-8")];
    assert_eq!(server.request("DELETE", "/api/v1/slow-subscribers", &headers, None).status, 204);
}

#[test]
fn a_body_is_json_of_the_right_shape() {
    let server = Server::start();
    let put = |body: &str| {
        server.request("PUT", "/api/v1/log/level", &[("Content-Type", "application/json")], Some(body))
    };
    let deep = format!("{{\"level\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    for broken in ["", " \n", "{", "{\"level\":}", "nonsense", "{\"level\":\"info\"} {}", "\u{feff}{}"] {
        put(broken).problem(400, "bad-request");
    }
    for (wrong, name) in [
        ("{}", None),
        (&deep, Some("level")),
        ("[]", None),
        ("{\"level\":7}", Some("level")),
        ("{\"level\":\"info\",\"for_s\":-1}", Some("for_s")),
        ("{\"level\":\"info\",\"for_s\":1.5}", Some("for_s")),
        ("{\"level\":\"info\",\"for_s\":0}", Some("for_s")),
        ("{\"level\":\"info\",\"untill\":0}", Some("untill")),
        ("{\"level\":\"loud\"}", Some("level")),
    ] {
        let answer = put(wrong);
        let detail = answer.problem(422, "invalid");
        if let Some(name) = name {
            assert_eq!(answer.json()["errors"][0]["name"], name, "{wrong}: {detail}");
        }
    }
    assert_eq!(server.get("/api/v1/log/level").is(200)["level"], "info");
}

#[test]
fn a_body_beyond_the_limit_is_not_read() {
    let server = Server::with(|settings| settings.body_max = settings::ByteSize::kib(1));
    let announced = "PUT /api/v1/log/level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999999999999\r\n\r\n";
    let mut client = server.connect();
    client.send(announced.as_bytes());
    client.answer("PUT").problem(413, "too-large");
    // The size is not announced, but sent.
    let mut client = server.connect();
    let head = "PUT /api/v1/log/level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(head.as_bytes());
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
    client.send(chunk.as_bytes());
    client.send(chunk.as_bytes());
    let detail = client.answer("PUT").problem(413, "too-large");
    assert!(detail.contains("http.body_max"), "{detail}");
    counted(&server, "body", 2);
    let fits = format!("{{\"level\":\"debug\"{}}}", " ".repeat(1000));
    server.request("PUT", "/api/v1/log/level", &[("Content-Type", "application/json")], Some(&fits)).is(200);
}

/// A misspelled parameter is refused in every operation.
#[test]
fn unknown_parameters_are_refused_everywhere() {
    let server = Server::start();
    for operation in operations(&document()) {
        let target = format!("{}?no_such_parameter=1", operation.target());
        let answer = match operation.method.as_str() {
            "GET" => server.get(&target),
            method => server.write(method, &target, None),
        };
        let detail = answer.problem(400, "bad-request");
        assert!(detail.contains("no_such_parameter"), "{target}: {detail}");
    }
    let detail = server.get("/api/v1/clients?limt=5").problem(400, "bad-request");
    assert!(detail.contains("`limit`"), "{detail}");
}

#[test]
fn a_parameter_is_of_its_kind() {
    let server = Server::start();
    for bad in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "limit=1&limit=2",
        "level=loud",
        "limit=99999999999999999999",
    ] {
        server.get(&format!("/api/v1/log?{bad}")).problem(400, "bad-request");
    }
    server.get("/api/v1/log?level=WARN&limit=1000").is(200);
}

#[test]
fn an_unknown_method_is_answered_with_the_allowed_ones() {
    let server = Server::start();
    let answer = server.write("POST", "/api/v1/log/level", Some(&json!({})));
    answer.problem(405, "method-not-allowed");
    assert_eq!(answer.header("allow"), Some("GET, PUT, HEAD"));
    server
        .request("BREW", "/api/v1/node", &[("Content-Type", "application/json")], None)
        .problem(405, "method-not-allowed");
    let head = server.request("HEAD", "/api/v1/node", &[], None);
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn paths_lead_nowhere_else() {
    let server = Server::start();
    for path in [
        "/../Cargo.toml",
        "/assets/../index.html",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "/assets/%2e%2e/index.html",
        "/index.html%00.js",
        "/assets/",
        "/api",
        "/api/",
        "/api/v1",
        "/api/v2/node",
        "/api/v1/node/",
        "//api/v1/node",
        "/health",
        "/.",
        "/..",
        "/\\..\\x",
        "/%ff",
    ] {
        let answer = server.get(path);
        answer.problem(404, "not-found");
    }
    server.get("/api/v1/clients/%ff").problem(400, "bad-request");
    server.get("/api/v1/clients/..%2f..%2fetc%2fpasswd").problem(404, "not-found");
}

#[test]
fn invalid_http_is_refused() {
    let server = Server::start();
    for nonsense in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = server.connect();
        client.send(nonsense);
        client.send(b"\r\n\r\n");
        while let Some(line) = client.line() {
            assert!(!line.starts_with("HTTP/1.1 2"), "{nonsense:?}: {line}");
        }
    }
    let long = format!("GET /api/v1/node HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let mut client = server.connect();
    // The server may close the connection before all is sent.
    drop(client.try_send(long.as_bytes()));
    let line = client.line();
    assert!(line.as_ref().is_none_or(|line| line.contains(" 431 ")), "{line:?}");
    server.get("/api/v1/node").is(200);
}
