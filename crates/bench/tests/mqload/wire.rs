//! Bytes on the wire.

use crate::broker::packet;
use crate::mqload;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A packet, or the end of a connection.
#[derive(Debug, PartialEq)]
enum Received {
    Packet(u8, Vec<u8>),
    End,
}

/// Accepts all clients and passes their packets to the test. The first `unacknowledged` PUBLISHes of a connection are
/// not acknowledged.
fn listener(v5: bool, unacknowledged: usize) -> (String, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (received, all) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, received) = (stream.unwrap(), received.clone());
            std::thread::spawn(move || serve(&stream, v5, unacknowledged, &received));
        }
    });
    (address, all)
}

fn serve(mut stream: &TcpStream, v5: bool, mut unacknowledged: usize, received: &Sender<Received>) {
    let mut input = BufReader::new(stream);
    while let Ok((first, body)) = packet(&mut input) {
        let answer = match first >> 4 {
            1 if v5 => vec![0x20, 3, 0, 0, 0],
            1 => vec![0x20, 2, 0, 0],
            3 if first & 6 == 2 && unacknowledged == 0 => {
                let topic = usize::from(body[0]) << 8 | usize::from(body[1]);
                vec![0x40, 2, body[2 + topic], body[3 + topic]]
            }
            3 => {
                unacknowledged = unacknowledged.saturating_sub(1);
                vec![]
            }
            _ => vec![],
        };
        // A finished test receives no more, and a client that is gone gets no answer.
        let _ = received.send(Received::Packet(first, body));
        let _ = stream.write_all(&answer);
    }
    let _ = received.send(Received::End);
}

#[test]
fn properties_and_wills_are_encoded_as_specified() {
    let (address, received) = listener(true, 0);
    let (host, port) = address.split_once(':').unwrap();
    let outcome = mqload(&format!(
        "bench --as mqttx bench pub -h {host} -p {port} -c 1 -L 1 -im 0 -t t -m hi -I me -k 9 -pf -ct c -up k:v -Cup a:b \
         -Wt w/%c -Wm bye -Wq 1 -Wr -Wd 2 --json"
    ));
    assert_eq!((outcome.code, outcome.number("/sent")), (0, 1));
    let will: &[u8] = b"\x05\x18\0\0\0\x02\0\x04w/me\0\x03bye";
    let connect = [b"\0\x04MQTT\x05\x2e\0\x09\x07\x26\0\x01a\0\x01b\0\x02me", will].concat();
    assert_eq!(received.recv().unwrap(), Received::Packet(0x10, connect));
    let publish = b"\0\x01t\x0d\x01\x01\x03\0\x01c\x26\0\x01k\0\x01vhi".to_vec();
    assert_eq!(received.recv().unwrap(), Received::Packet(0x30, publish));
}

#[test]
fn an_unacknowledged_message_is_sent_again_on_request() {
    let (address, received) = listener(false, 1);
    let outcome = mqload(&format!(
        "bench pub -h {address} -V 4 -c 1 -L 1 -I 0 -t t -m hi -q 1 --retry-interval 1 --json"
    ));
    assert_eq!((outcome.code, outcome.number("/acked"), outcome.number("/resent")), (0, 1, 1));
    let body = b"\0\x01t\0\x01hi".to_vec();
    assert!(matches!(received.recv(), Ok(Received::Packet(0x10, _))));
    assert_eq!(received.recv(), Ok(Received::Packet(0x32, body.clone())));
    assert_eq!(received.recv(), Ok(Received::Packet(0x3a, body)));
}

#[test]
fn a_vanishing_client_sends_no_disconnect() {
    for (vanish, goodbye) in [(true, false), (false, true)] {
        let (address, received) = listener(true, 0);
        let path = std::env::temp_dir().join(format!("mqload-vanish-{vanish}-{}.toml", std::process::id()));
        let file = format!(
            "[[stage]]\nname = \"one\"\nseconds = 1\n[[group]]\nname = \"a\"\nclients = 1\nstay = \"50ms\"\n\
             away = \"1h\"\nvanish = {vanish}\nwill = {{ topic = \"w\" }}\n"
        );
        std::fs::write(&path, file).unwrap();
        let outcome = mqload(&format!("bench --scenario {} -h {address} --json", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(outcome.code, 0, "{}", outcome.json);
        let connect = received.recv().unwrap();
        assert!(
            matches!(&connect, Received::Packet(0x10, body) if body[7] & 0x04 != 0),
            "a Will: {connect:?}"
        );
        let said = received.recv().unwrap() == Received::Packet(0xe0, vec![]);
        assert_eq!(said, goodbye);
    }
}
