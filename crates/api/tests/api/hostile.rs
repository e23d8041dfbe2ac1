//! Hostile and slow clients: no other client waits for them.

use std::time::Duration;

use crate::support::{Client, Server};

const SHORT: Duration = Duration::from_millis(200);

/// Reads all remaining lines, up to the end.
fn ended(mut client: Client) -> Vec<String> {
    std::iter::from_fn(|| client.line()).collect()
}

#[test]
fn a_connection_with_a_slow_header_is_closed() {
    let server = Server::with(|settings| settings.header_timeout = SHORT);
    let silent = server.connect();
    let mut slow = server.connect();
    slow.send(b"GET /api/v1/node HTTP/1.1\r\nHost: local");
    let mut idle = server.connect();
    idle.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n");
    idle.answer("GET").is(200);
    for client in [silent, slow, idle] {
        assert!(ended(client).iter().all(|line| !line.starts_with("HTTP/1.1 2")));
    }
    server.get("/api/v1/node").is(200);
}

#[test]
fn a_connection_with_a_slow_body_gets_an_error_and_is_closed() {
    let server = Server::with(|settings| settings.request_timeout = SHORT);
    let mut slow = server.connect();
    slow.send(b"PUT /api/v1/log/level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{");
    let answer = slow.answer("PUT");
    let detail = answer.problem(503, "unavailable");
    assert!(detail.contains("http.request_timeout"), "{detail}");
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(ended(slow), [""; 0]);
}

/// Number of slots: `connections_max`, and those reserved for this machine.
const SLOTS: usize = 8 + 16;

/// A probe that restarts the node when it gets no answer must get one.
#[test]
fn health_is_answered_beyond_the_connection_limit() {
    let server = Server::with(|settings| settings.connections_max = 8);
    let idle: Vec<Client> = (0..500).map(|_| server.connect()).collect();
    for _ in 0..100 {
        server.get("/health/live").is(200);
    }
    server.get("/api/v1/node").problem(503, "unavailable");
    drop(idle);
}

#[test]
fn connections_beyond_the_limit_get_an_error() {
    let server = Server::with(|settings| settings.connections_max = 8);
    let live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle: Vec<Client> = (0..SLOTS).map(|_| server.connect()).collect();
    for client in &mut idle {
        client.send(live);
        client.answer("GET").is(200);
    }
    for _ in 0..3 {
        let answer = server.get("/api/v1/node");
        let detail = answer.problem(503, "unavailable");
        assert!(
            detail.contains("http.connections_max") && answer.header("retry-after").is_some(),
            "{detail}"
        );
    }
    // Connections with a slot can continue.
    idle[0].send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let metrics = idle[0].answer("GET");
    assert!(metrics.text().contains("meridian_http_rejected_total{reason=\"connections\"} 3\n"));
    assert!(metrics.text().contains(&format!("meridian_http_connections {SLOTS}\n")));
    drop(idle);
    while server.get("/api/v1/node").status != 200 {
        std::thread::yield_now();
    }
}

#[test]
fn a_stream_that_is_not_read_is_closed_and_delays_nothing() {
    let server = Server::with(|settings| settings.write_timeout = SHORT);
    let mut slow = server.connect();
    slow.send(b"GET /api/v1/log/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(slow.head().0, 200);
    let streams =
        |count: u32| server.get("/metrics").text().contains(&format!("meridian_http_streams {count}\n"));
    assert!(streams(1));
    let text = "x".repeat(4000);
    // Until the sockets' buffers are full and the time is over; each round is about the size of the queue.
    while !streams(0) {
        server.log(|| (0..1000).for_each(|number| tracing::info!(number, text)));
    }
    server.get("/api/v1/node").is(200);
}

#[test]
fn a_stream_ends_when_the_server_stops() {
    let mut server = Server::start();
    let mut reader = server.connect();
    reader.send(b"GET /api/v1/log/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(reader.head().0, 200);
    // The stream is open when its first bytes arrive.
    assert!(reader.chunk().is_some());
    server.stop_http();
    assert_eq!(reader.event("end")["reason"], "stopping");
    assert!(reader.chunk().is_none());
    assert_eq!(ended(reader), [""; 0]);
}

#[test]
fn idle_connections_do_not_hold_up_a_stop() {
    let mut server = Server::start();
    let mut idle = server.connect();
    idle.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n");
    idle.answer("GET").is(200);
    let half = {
        let mut half = server.connect();
        half.send(b"GET / HTTP/1.1\r\n");
        half
    };
    server.stop_http();
    assert_eq!(ended(idle), [""; 0]);
    assert_eq!(ended(half), [""; 0]);
}
