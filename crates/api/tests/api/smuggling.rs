//! Requests whose end two readers may see in different places. Behind a proxy, the rest of one client's request must
//! not become the beginning of another's.

use crate::support::{Client, Server};

/// Returns the statuses of the answers until the server closes the connection.
fn answers(client: &mut Client) -> Vec<u16> {
    let lines = std::iter::from_fn(|| client.line());
    let statuses = lines.filter_map(|line| line.rsplit("HTTP/1.1 ").next()?.get(..3)?.parse().ok());
    statuses.filter(|status: &u16| *status >= 100).collect()
}

const HIDDEN: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The connection ends with the answer, so the bytes after the body are no request.
#[test]
fn after_a_length_and_chunks_nothing_more_is_read() {
    let server = Server::start();
    for lengths in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 60",
    ] {
        let mut client = server.connect();
        let head = "PUT /api/v1/log/level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        client.send(format!("{head}\r\n{lengths}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}").as_bytes());
        let answers = answers(&mut client);
        assert!(answers.len() == 1 && answers[0] >= 400, "{lengths}: {answers:?}");
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let server = Server::start();
    for lengths in [
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 2, 3",
        "Content-Length: +2",
        "Content-Length: 0x2",
        "Content-Length : 2",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
    ] {
        let mut client = server.connect();
        let head = "PUT /api/v1/log/level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
        client.send(format!("{head}\r\n{lengths}\r\n\r\n{{}}{HIDDEN}").as_bytes());
        assert_eq!(answers(&mut client), [400], "{lengths}");
    }
}
