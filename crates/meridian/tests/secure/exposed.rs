//! The steps of docs/security.md and docs/security.toml, unchanged except for loopback addresses and ports of the
//! system.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::authority::Authority;
use crate::node::{Node, meridian, stderr, stdout};

/// Runs the commands of the page in one shell, in an empty directory with the configuration in it.
fn follow(directory: &Path) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::copy(docs.join("security.toml"), directory.join("security.toml")).unwrap();
    let page = std::fs::read_to_string(docs.join("security.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 5, "a block was added or lost");
    let binaries = Path::new(env!("CARGO_BIN_EXE_meridian")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let done = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &blocks.concat()])
        .current_dir(directory)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
}

#[test]
fn the_configuration_of_the_page_admits_exactly_the_intended_clients() {
    let world = Authority::new();
    follow(&world.directory);
    let config = std::fs::read_to_string(world.directory.join("security.toml")).unwrap();
    for port in ["8883", "8084", "18083"] {
        assert_eq!(config.matches(&format!("\"0.0.0.0:{port}\"")).count(), 1);
    }
    let mut config = config.replace("0.0.0.0:", "127.0.0.1:");
    for port in ["8883", "8084", "18083"] {
        config = config.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
    }
    let node = Node::start(&world, &config, &[]);
    let (mqtts, wss) = (node.ports[0].as_str(), node.ports[1].as_str());
    let ca = world.path("ca.pem");
    let password = std::fs::read_to_string(world.directory.join("alice.password")).unwrap();
    let alice = ["-u", "alice", "-P", password.trim()];
    let publish = |url: &str, who: &[&str], topic: &str| {
        let tls: &[&str] = if url.starts_with("mqtt:") { &[] } else { &["--cafile", &ca] };
        let output = meridian(
            &[&["pub", "-L", url, "-t", topic, "-m", "x", "-q", "1", "-W", "20"], tls, who].concat(),
        );
        (output.status.code(), stderr(&output))
    };
    let urls = [format!("mqtts://localhost:{mqtts}"), format!("wss://localhost:{wss}/mqtt")];
    for url in &urls {
        assert_eq!(publish(url, &alice, "home/alice/lamp"), (Some(0), String::new()), "{url}");
        for topic in ["home/bob/lamp", "other", "$SYS/x"] {
            assert_eq!(publish(url, &alice, topic).0, Some(3), "{url} {topic}");
        }
        for refused in [&[][..], &["-u", "alice"], &["-u", "alice", "-P", "wrong"], &["-u", "eve", "-P", "x"]]
        {
            assert_eq!(publish(url, refused, "home/alice/lamp").0, Some(3), "{url} {refused:?}");
        }
        let subscribe = ["sub", "-L", url, "--cafile", &ca, "-t", "#", "-W", "20"];
        let output = meridian(&[&subscribe[..], &alice].concat());
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    }
    assert_eq!(publish(&format!("mqtt://localhost:{mqtts}"), &alice, "home/alice/lamp").0, Some(1));

    plain_bytes_get_no_packet(mqtts);
    another_site_s_page_gets_no_websocket(&world, wss);

    let url = format!("https://localhost:{}", node.http.rsplit(':').next().unwrap());
    let ask = |who: &[&str]| meridian(&[&["ctl", "--url", &url, "--ca", &ca, "status"], who].concat());
    assert_eq!(ask(&[]).status.code(), Some(5));
    assert!(ask(&["--token-file", &world.path("ops.token")]).status.success());
    world.write("wrong.token", "mrd_wrong");
    assert_eq!(ask(&["--token-file", &world.path("wrong.token")]).status.code(), Some(5));
}

/// The client gets no packet, not even a refusal in MQTT.
fn plain_bytes_get_no_packet(port: &str) {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00").unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // At most an alert of TLS.
        Ok(_) => assert!(answer.first().is_none_or(|byte| *byte == 21), "{answer:?}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

fn another_site_s_page_gets_no_websocket(world: &Authority, port: &str) {
    for (origin, status) in [("https://evil.example", "403"), ("https://app.example.com", "101")] {
        let request = format!(
            "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: {origin}\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        let mut stream = world.connect(&format!("127.0.0.1:{port}"));
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{origin}");
    }
}
