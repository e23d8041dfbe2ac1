//! `meridian bench` over every transport, with every message checked.

use crate::authority::Authority;
use crate::clients::LISTENERS;
use crate::node::{Node, meridian, stderr, stdout};

fn run(line: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = std::iter::once("bench").chain(line.split_whitespace()).collect();
    let output = meridian(&words);
    (output.status.code(), stdout(&output) + &stderr(&output))
}

/// Cases: large messages that span several records and frames, and small ones that share a record.
#[test]
fn messages_are_checked_over_every_transport() {
    let authority = Authority::new();
    authority.issue("server", &["localhost", "127.0.0.1"]);
    authority.issue("me", &["me"]);
    let node = Node::start(&authority, LISTENERS, &[]);
    let ca = authority.path("ca.pem");
    let own = format!("--certfile {} --keyfile {}", authority.path("me.crt"), authority.path("me.key"));
    for (port, options) in [
        (1, format!("-S --cacertfile {ca}")),
        (1, "--ssl-version tlsv1.2 --insecure -V 4".to_owned()),
        (2, "--ws -V 3".to_owned()),
        (3, format!("-S --ws --cacertfile {ca} --processes 2")),
        (4, format!("-S --cacertfile {ca} {own}")),
    ] {
        let port = &node.ports[port];
        for (size, qos) in [(100_000, 1), (64, 2)] {
            let line = format!(
                "pubsub -h 127.0.0.1 -p {port} {options} -c 3 -i 0 -I 0 -t p/%i -q {qos} -s {size} -F 8 -L 90 --json --quiet"
            );
            let (code, text) = run(&line);
            assert_eq!(code, Some(0), "{line}\n{text}");
            assert!(text.contains("\"received\":90,") && text.contains("\"lost\":0,"), "{line}\n{text}");
        }
    }
    let port = &node.ports[1];
    for (line, says) in [
        (format!("conn -p {port} -c 1 -S"), "--ca FILE"),
        (format!("conn -p {} -c 1 -S --ca {ca}", node.ports[2]), "does not speak TLS"),
        (format!("conn -p {} -c 1 -S --cacertfile {ca}", node.ports[4]), "wants a certificate"),
        (format!("conn -p {} -c 1 --ws --path /other", node.ports[2]), "404"),
        (format!("conn -p {port} -c 1 -S --cacertfile /no/such.pem"), "/no/such.pem"),
        (format!("--as mqttx bench conn -l mqtts -p {port} -c 1 -rp 0 --ca /no/such.pem"), "/no/such.pem"),
    ] {
        let (code, text) = run(&format!("{line} -h 127.0.0.1"));
        assert_eq!(code, Some(2), "{line}\n{text}");
        assert!(text.contains(says), "{line}\n{text}");
    }
}
