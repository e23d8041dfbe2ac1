//! `meridian pub` and `meridian sub` over every transport.

use std::process::{Command, Stdio};

use crate::authority::Authority;
use crate::node::{Node, meridian, stderr, stdout};

/// Listeners for TCP, TLS, WebSocket, secure WebSocket, and TLS with client certificates.
pub const LISTENERS: &str = r#"
[http]
listen = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
[[listener]]
address = "127.0.0.1:0"
tls_certificate = "server.crt"
tls_key = "server.key"
[[listener]]
address = "127.0.0.1:0"
transport = "websocket"
[[listener]]
address = "127.0.0.1:0"
transport = "websocket"
tls_certificate = "server.crt"
tls_key = "server.key"
[[listener]]
address = "127.0.0.1:0"
tls_certificate = "server.crt"
tls_key = "server.key"
tls_client_ca = "ca.pem"
"#;

struct World {
    authority: Authority,
    node: Node,
    ca: String,
}

impl World {
    fn new() -> Self {
        let authority = Authority::new();
        authority.issue("server", &["localhost", "127.0.0.1", "elsewhere.example"]);
        authority.issue("me", &["me"]);
        let node = Node::start(&authority, LISTENERS, &[]);
        let ca = authority.path("ca.pem");
        Self { authority, node, ca }
    }

    fn urls(&self) -> [String; 4] {
        let port = |number: usize| &self.node.ports[number];
        [
            format!("mqtt://localhost:{}", port(0)),
            format!("mqtts://localhost:{}", port(1)),
            format!("ws://localhost:{}", port(2)),
            format!("wss://127.0.0.1:{}/mqtt", port(3)),
        ]
    }

    /// Runs `pub` with this URL; returns the exit code and its output.
    fn publish(&self, url: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let output = meridian(&[&["pub", "-L", url, "-t", "a", "-m", "x", "-q", "1"], arguments].concat());
        (output.status.code(), stderr(&output))
    }
}

fn secure<'a>(url: &str, ca: &'a str) -> Vec<&'a str> {
    if url.starts_with("mqtts") || url.starts_with("wss") { vec!["--cafile", ca] } else { Vec::new() }
}

/// A message published over one transport is received over every other, also a large one in many frames and records.
#[test]
fn messages_go_from_every_transport_to_every_other() {
    let world = World::new();
    let large = world.authority.write("large", &"m".repeat(300_000));
    for version in ["5", "3.1.1"] {
        let urls = world.urls();
        let begin = |url: &String, extra: &[&str]| {
            let id = url.split(':').next().unwrap();
            let trust = secure(url, &world.ca);
            let fixed = ["sub", "-L", url, "-V", version, "-i", id, "-c", "-q", "2", "-t", "all/#"];
            meridian(&[&fixed[..], &trust, extra].concat())
        };
        for url in &urls {
            let output = begin(url, &["-E"]);
            assert!(output.status.success(), "{url}: {}", stderr(&output));
        }
        for url in &urls {
            let (name, trust) = (url.split(':').next().unwrap(), secure(url, &world.ca));
            let topic = format!("all/{name}");
            for what in [["-m", "small"], ["-f", &large]] {
                let fixed = ["pub", "-L", url, "-V", version, "-t", &topic, "-q", "2"];
                let output = meridian(&[&fixed[..], &what, &trust].concat());
                assert!(output.status.success(), "{url}: {}", stderr(&output));
            }
        }
        let expected: String = ["mqtt", "mqtts", "ws", "wss"]
            .iter()
            .map(|name| format!("all/{name} 5\nall/{name} 300000\n"))
            .collect();
        for url in &urls {
            let output = begin(url, &["-C", "8", "-W", "60", "-F", "%t %l"]);
            assert_eq!(stdout(&output), expected, "{url}: {}", stderr(&output));
        }
    }
}

#[test]
fn urls_carry_topic_user_and_password_like_those_of_mosquitto() {
    let world = World::new();
    let plain = format!("mqtt://me:secret@localhost:{}/from/url", world.node.ports[0]);
    let output = meridian(&["pub", "-L", &plain, "-m", "x", "-q", "1", "-r"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = meridian(&["sub", "-L", &plain, "-C", "1", "-W", "20", "-v"]);
    assert_eq!(stdout(&output), "from/url x\n", "{}", stderr(&output));
    let (code, text) = world.publish("http://localhost", &[]);
    assert!(code == Some(2) && text.contains("mqtts://"), "{text}");
    let (code, text) = world.publish(&plain, &["--cafile", &world.ca]);
    assert!(code == Some(2) && text.contains("write mqtts://"), "{text}");
    let websocket = format!("ws://localhost:{}", world.node.ports[2]);
    let output = meridian(&["pub", "-L", &websocket, "-m", "x"]);
    assert!(stderr(&output).contains("a topic is missing"), "{}", stderr(&output));
}

#[test]
fn a_broker_that_cannot_be_trusted_receives_nothing() {
    let world = World::new();
    let [_, mqtts, _, wss] = world.urls();
    let stranger = Authority::new();
    for url in [&mqtts, &wss] {
        let (code, text) = world.publish(url, &["--cafile", &stranger.path("ca.pem")]);
        assert!(code == Some(1) && text.contains("not known here"), "{text}");
        let (code, text) = world.publish(url, &["--cafile", &world.ca, "--sni", "other.example"]);
        assert!(code == Some(1) && text.contains("not for other.example"), "{text}");
        let (code, text) = world.publish(url, &["--cafile", &world.ca, "--sni", "elsewhere.example"]);
        assert!(code == Some(0), "{text}");
        let (code, text) = world.publish(url, &["--insecure"]);
        assert!(code == Some(0) && text.contains("WARNING: --insecure"), "{text}");
        for version in ["1.2", "tlsv1.3"] {
            let (code, text) = world.publish(url, &["--cafile", &world.ca, "--tls-version", version]);
            assert!(code == Some(0), "{text}");
        }
    }
    // The system does not know this authority either.
    let (code, text) = world.publish(&mqtts, &[]);
    assert!(code == Some(1) && text.contains("--ca FILE"), "{text}");
    let (code, text) = world.publish(&mqtts, &["--cafile", &world.ca, "--alpn", "mqtt"]);
    assert!(code == Some(0), "{text}");
    let (code, text) = world.publish(&mqtts, &["--cafile", &world.ca, "--alpn", "h2"]);
    assert!(code == Some(1) && text.contains("ALPN"), "{text}");
    let (code, text) = world.publish(&mqtts, &["--cafile", "/nonexistent/ca"]);
    assert!(code == Some(1) && text.contains("/nonexistent/ca"), "{text}");
}

#[test]
fn the_authorities_of_the_system_are_used_by_default() {
    let world = World::new();
    let url = &world.urls()[1];
    // This variable replaces the authorities of the system.
    let output = Command::new(env!("CARGO_BIN_EXE_meridian"))
        .args(["pub", "-L", url, "-t", "a", "-m", "x", "-q", "1"])
        .env("SSL_CERT_FILE", &world.ca)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_client_certificate_is_presented_on_request() {
    let world = World::new();
    let url = format!("mqtts://localhost:{}", world.node.ports[4]);
    let (code, text) = world.publish(&url, &["--cafile", &world.ca]);
    assert!(code == Some(1) && text.contains("--cert FILE"), "{text}");
    let (certificate, key) = (world.authority.path("me.crt"), world.authority.path("me.key"));
    let (code, text) = world.publish(&url, &["--cafile", &world.ca, "--cert", &certificate, "--key", &key]);
    assert!(code == Some(0), "{text}");
}

#[test]
fn missing_files_and_protocols_are_reported() {
    let world = World::new();
    let port = |number: usize| world.node.ports[number].as_str();
    let (code, text) = world.publish(&format!("mqtts://localhost:{}", port(0)), &["--cafile", &world.ca]);
    assert!(code == Some(1) && text.contains("TLS"), "{text}");
    let (code, text) = world.publish(&format!("ws://localhost:{}/other", port(2)), &[]);
    assert!(code == Some(1) && text.contains("/mqtt"), "{text}");
    let (code, text) =
        world.publish(&format!("ws://localhost:{}", world.node.http.rsplit(':').next().unwrap()), &[]);
    assert!(code == Some(1) && text.contains("404"), "{text}");
    let (code, text) = world.publish(&format!("mqtt://localhost:{}", port(1)), &[]);
    assert_eq!(code, Some(1), "{text}");
}
