//! Nodes that do not answer as expected, and exit codes.

use super::*;

#[test]
fn a_token_of_https_is_not_shown_to_http() {
    let outcome = ctl(&Mock::always(Reply::empty()), "routes --diff https://127.0.0.1:1");
    assert_eq!(outcome.code(), 2);
}

#[test]
fn an_unreachable_node_is_reported() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let outcome = run(&format!("http://127.0.0.1:{port}"), &["status"]);
    assert_eq!(outcome.code(), 3);
    for part in [&port.to_string()[..], "refused", "meridian start", "--url"] {
        assert!(outcome.error().contains(part), "{}", outcome.error());
    }
}

#[test]
fn a_silent_node_times_out() {
    for reply in [
        Reply { pieces: vec![], hang: true },
        Reply::bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":").hanging(),
        Reply::bytes(b"HTTP/1.1 200 OK\r\ncontent-le").hanging(),
    ] {
        let mock = Mock::always(reply);
        let outcome = run(&mock.url, &["whoami", "--timeout", "200ms"]);
        assert_eq!(outcome.code(), 3, "{outcome:?}");
        assert!(outcome.error().contains("did not answer within 200ms"), "{}", outcome.error());
    }
}

#[test]
fn an_invalid_answer_is_reported() {
    let long = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'x'; 1 << 20]].concat();
    for bytes in [
        &b""[..],
        b"\x20\x02\x00\x00",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 404 X\r\n\r\n<html>no such page",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
        b"HTTP/1.1 301 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}",
        &long,
    ] {
        let mock = Mock::always(Reply::bytes(bytes));
        let outcome = ctl(&mock, "whoami");
        assert_eq!(
            outcome.code(),
            3,
            "{:?}: {outcome:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
        );
    }
}

#[test]
fn missing_rights_have_their_exit_code() {
    let outcome = ctl(&Mock::always(Reply::problem(401, "unauthorized", "no token")), "status");
    assert_eq!(outcome.code(), 5);
    assert!(outcome.error().contains("meridian key add"), "{}", outcome.error());
    let outcome = ctl(&Mock::always(Reply::problem(403, "forbidden", "needs operator")), "kick c");
    assert_eq!(outcome.code(), 5);
}
