//! PROXY protocol from trusted sources.

use std::io::{Read as _, Write as _};

use edge::settings::Listener;

use crate::client::{Client, echo};
use crate::everywhere;

fn trusting(networks: &str) -> Listener {
    Listener { proxy_networks: networks.into(), ..Listener::default() }
}

#[test]
fn a_balancer_reports_the_address_of_its_client() {
    everywhere(
        || trusting("10.0.0.0/8, 127.0.0.0/8"),
        |node| {
            for piece in [1, 1000] {
                let mut stream = node.open();
                for bytes in b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n".chunks(piece) {
                    stream.write_all(bytes).expect("sent");
                }
                let mut client = Client::connect(stream, "behind");
                assert_eq!(
                    node.seen("behind").map(|seen| seen.to_string()).as_deref(),
                    Some("192.0.2.7:56324")
                );
                echo(&mut client, &[1, 100_000]);
            }
            let mut stream = node.open();
            let local = stream.local_addr().expect("a socket");
            // LOCAL in version 2: a health check of the balancer itself.
            stream.write_all(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0").expect("sent");
            let _client = Client::connect(stream, "balancer");
            assert_eq!(node.seen("balancer"), Some(local));
        },
    );
}

#[test]
fn a_trusted_source_without_a_header_is_closed() {
    everywhere(
        || trusting("127.0.0.1"),
        |node| {
            let mut client = Client::over(node.open());
            client.send_connect("c");
            assert_eq!(client.next(), "");
            assert_eq!(node.seen("c"), None);
        },
    );
}

/// A source that is not trusted counts as itself, and its PROXY header is refused as malformed MQTT.
#[test]
fn untrusted_sources_cannot_report_an_address() {
    everywhere(
        || trusting("10.0.0.0/8"),
        |node| {
            let mut stream = node.open();
            stream.write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n").expect("sent");
            assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
            let stream = node.open();
            let local = stream.local_addr().expect("a socket");
            let _client = Client::connect(stream, "plain");
            assert_eq!(node.seen("plain"), Some(local));
        },
    );
}
