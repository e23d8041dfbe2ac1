//! Log lines about clients.

use crate::authority::Authority;
use crate::node::{Node, meridian};

const CONFIG: &str = r#"
[http]
listen = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
[auth]
allow_anonymous = true
password_file = "passwords"
rules_file = "rules"
"#;

fn world() -> Authority {
    let authority = Authority::new();
    authority.write("rules", "deny everyone all secret/#\nallow everyone all #\n");
    authority.write("passwords", "");
    authority
}

fn publish(node: &Node, client: &str, arguments: &[&str]) {
    let common =
        ["pub", "-h", "127.0.0.1", "-p", &node.ports[0], "-i", client, "-m", "x", "-q", "1", "-W", "20"];
    meridian(&[&common, arguments].concat());
}

#[track_caller]
fn says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
}

#[test]
fn a_refused_client_and_a_denied_packet_are_warnings_with_client_user_address_and_reason() {
    let mut node = Node::start(&world(), CONFIG, &["--set", "log.clients=off"]);
    publish(&node, "guesser", &["-t", "a", "-u", "nobody", "-P", "wrong"]);
    says(
        &node.wait_for("client refused"),
        &["WARN", "client=\"guesser\"", "user=\"nobody\"", "address=127.0.0.1:", "reason=Bad User Name"],
    );
    publish(&node, "writer", &["-t", "secret/x"]);
    says(
        &node.wait_for("PUBLISH denied by the access rules"),
        &["WARN", "client=\"writer\"", "address=127.0.0.1:", "topic=\"secret/x\"", "reason=Not authorized"],
    );
    publish(&node, "leaver", &["-t", "a", "--will-topic", "secret/will", "--will-payload", "gone"]);
    says(&node.wait_for("may not publish its Will"), &["WARN", "client=\"leaver\"", "topic=\"secret/will\""]);
}

#[test]
fn refusals_beyond_the_limit_of_a_minute_are_no_warnings() {
    let mut node = Node::start(
        &world(),
        CONFIG,
        &["--set", "limits.refusals_logged_per_minute=0", "--set", "log.clients=on"],
    );
    publish(&node, "writer", &["-t", "secret/x"]);
    publish(&node, "last", &["-t", "a"]);
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line: &String| !line.contains("client=\"last\"")) {
        lines.push(node.wait_for(""));
    }
    assert!(!lines.iter().any(|line| line.contains("denied")), "{lines:?}");
}

#[test]
fn clients_that_connect_and_disconnect_are_logged_when_the_setting_is_on() {
    let mut node = Node::start(&world(), CONFIG, &["--set", "log.clients=on"]);
    publish(&node, "writer", &["-t", "a"]);
    says(
        &node.wait_for("client connected"),
        &["INFO", "client=\"writer\"", "address=127.0.0.1:", "session_present=false"],
    );
    says(&node.wait_for("client disconnected"), &["INFO", "client=\"writer\"", "why=\"DISCONNECT\""]);
}

/// Standard error is not a terminal in this test.
#[test]
fn clients_that_connect_are_not_logged_by_default() {
    let mut node = Node::start(&world(), CONFIG, &[]);
    publish(&node, "writer", &["-t", "a"]);
    publish(&node, "denied", &["-t", "secret/x"]);
    let line = node.wait_for("client=");
    says(&line, &["PUBLISH denied", "client=\"denied\""]);
}
