//! Streams of events.

use serde_json::json;

use crate::support::{Client, Server};

fn follow(server: &Server, query: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("GET /api/v1/log/stream{query} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    let (status, headers) = client.head();
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())));
    // The stream is open when its first bytes arrive.
    client.chunk().unwrap();
    client
}

#[test]
fn the_log_can_be_followed_and_looked_up() {
    let server = Server::start();
    let (mut all, mut severe) = (follow(&server, ""), follow(&server, "?level=warn"));
    server.log(|| {
        tracing::info!(answer = 42, "first");
        tracing::warn!(target: "edge::listener", "second\nline");
    });
    let first = all.event("log");
    assert_eq!((&first["message"], &first["level"]), (&"first".into(), &"INFO".into()));
    assert_eq!(first["fields"], json!({ "answer": 42 }));
    let second = severe.event("log");
    assert_eq!((&second["message"], &second["target"]), (&"second\nline".into(), &"edge::listener".into()));
    let log = server.get("/api/v1/log?limit=1&level=info").is(200);
    assert_eq!(log["items"], json!([second]));
}

#[test]
fn a_slow_reader_gets_the_number_of_lost_events() {
    let server = Server::start();
    let mut reader = follow(&server, "");
    let text = "x".repeat(4000);
    let mut sent = 0;
    // Far more than queue and sockets hold.
    server.log(|| {
        for _ in 0..20_000 {
            tracing::info!(number = sent, text);
            sent += 1;
        }
    });
    let (mut received, mut lost) = (0, 0);
    server.log(|| tracing::info!("the last one"));
    while received + lost < sent {
        for (event, data) in reader.events().expect("the stream goes on") {
            match event.as_str() {
                "log" => received += 1,
                "lost" => lost += data["count"].as_u64().unwrap(),
                other => panic!("{other}"),
            }
        }
    }
    assert!(lost > 0 && received > 0, "{received} received, {lost} lost");
}

#[test]
fn streams_are_limited() {
    let server = Server::with(|settings| settings.streams_max = 2);
    let _open = [follow(&server, ""), follow(&server, "")];
    let answer = server.get("/api/v1/log/stream");
    let detail = answer.problem(429, "too-many-requests");
    assert!(detail.contains("http.streams_max") && answer.header("retry-after").is_some(), "{detail}");
    drop(_open);
    while !server.get("/metrics").text().contains("meridian_http_streams 0\n") {
        std::thread::yield_now();
    }
    follow(&server, "");
}

#[test]
fn a_level_comes_back_by_itself() {
    let server = Server::start();
    let put = json!({ "level": "trace", "for_s": 1 });
    assert_eq!(server.write("PUT", "/api/v1/log/level", Some(&put)).is(200)["level"], "trace");
    while server.get("/api/v1/log/level").is(200)["level"] != "info" {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
