//! Fuzzing of the layers between a socket and MQTT, for two seconds or for `MERIDIAN_FUZZ_SECONDS` from the
//! environment. `MERIDIAN_FUZZ_SEED` selects another run than the usual one.

#[path = "../src/layer/mod.rs"]
#[allow(dead_code, reason = "the reactor uses the rest")]
mod layer;
#[path = "../../mqtt/fuzz/mutate.rs"]
#[allow(dead_code, reason = "the codec's own fuzzing uses the rest")]
mod mutate;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use layer::{Decoded, LayerRules, Layers, PageRule, WebSocketRules};
use mutate::mutate;
use random::Random;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

const ROUNDS_MAX: u64 = 5_000;
const ROUNDS_MIN: u64 = 100;
const SECONDS: u64 = 2;

fn rounds(mut round: impl FnMut(&mut Random)) {
    let seed = variable("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let asked = variable("MERIDIAN_FUZZ_SECONDS");
    let rounds_max = if asked.is_some() { u64::MAX } else { ROUNDS_MAX };
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS));
    let mut count = 0;
    while count < rounds_max && (count < ROUNDS_MIN || Instant::now() < end) {
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(count));
        let whence = Whence(seed, count);
        round(&mut random);
        std::mem::forget(whence);
        count += 1;
    }
}

/// Prints the failing round: seed and number.
struct Whence(u64, u64);

impl Drop for Whence {
    fn drop(&mut self) {
        eprintln!("seed {} round {}", self.0, self.1);
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Result of a connection.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    plain: Vec<u8>,
    source: Option<SocketAddr>,
    wire: Vec<u8>,
    ended: bool,
}

fn receive(layers: &mut Layers, bytes: &[u8], outcome: &mut Outcome) {
    let mut decoded = Decoded::default();
    let waiting = !layers.is_through();
    outcome.ended = layers.receive(bytes, &mut decoded).is_err();
    assert!(decoded.source.is_none() || (waiting && outcome.plain.is_empty()), "reported once, before MQTT");
    outcome.source = outcome.source.or(decoded.source);
    outcome.plain.extend_from_slice(&decoded.plain);
    outcome.wire.extend_from_slice(layers.wire());
    layers.advance(layers.wire().len());
    layers.rest();
}

/// Returns the result of `bytes` that arrive in pieces. `piece` returns the size of each, at least one byte.
fn run(rules: &LayerRules, proxy: bool, bytes: &[u8], mut piece: impl FnMut(usize) -> usize) -> Outcome {
    let mut layers = rules
        .start(proxy, || PageRule::SameHost { loopback: false })
        .expect("rules that serve")
        .expect("there are layers");
    let mut outcome = Outcome::default();
    let mut rest = bytes;
    while !rest.is_empty() && !outcome.ended {
        let (now, later) = rest.split_at(piece(rest.len()).clamp(1, rest.len()));
        receive(&mut layers, now, &mut outcome);
        rest = later;
    }
    outcome
}

fn websocket() -> LayerRules {
    let rules = WebSocketRules { path: "/mqtt".into(), origins: vec!["https://a.example".into()] };
    LayerRules { websocket: Some(Arc::new(rules)), tls: None }
}

fn proxy_header(random: &mut Random) -> Vec<u8> {
    match random.below(6) {
        0 => b"PROXY UNKNOWN\r\n".to_vec(),
        1 => b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 1883\r\n".to_vec(),
        2 => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec(),
        3 => [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C"[..], &[7; 12]].concat(),
        4 => {
            let length = 36 + random.below(200);
            let length_bytes = (length as u16).to_be_bytes();
            [&b"\r\n\r\n\0\r\nQUIT\n\x21\x21"[..], &length_bytes, &vec![9; length]].concat()
        }
        _ => b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n".to_vec(),
    }
}

/// Returns a request and some frames, and appends their payload to `plaintext`.
fn frames(random: &mut Random, plaintext: &mut Vec<u8>) -> Vec<u8> {
    let mut bytes = b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n"
        .to_vec();
    if random.below(3) == 0 {
        bytes.extend_from_slice(b"Origin: https://a.example\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    let mut fragment = false;
    for _ in 0..random.below(8) {
        let control = random.below(4) == 0;
        let length = match random.below(4) {
            _ if control => random.below(126),
            0 => 0,
            1 => random.below(126),
            2 => random.below(3_000),
            _ => 65_530 + random.below(12),
        };
        let last = control || random.below(3) > 0;
        let opcode = match (control, fragment) {
            (true, _) => 0x9 + random.below(2) as u8,
            (false, true) => 0,
            (false, false) => 2,
        };
        fragment = if control { fragment } else { !last };
        bytes.push(if last { 0x80 } else { 0 } | opcode);
        match length {
            0..126 => bytes.push(0x80 | length as u8),
            126..65_536 => {
                bytes.push(0x80 | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(0x80 | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        let mask = [random.byte(), random.byte(), random.byte(), random.byte()];
        bytes.extend(mask);
        let payload: Vec<u8> = (0..length).map(|at| (at * 3) as u8).collect();
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        if !control {
            plaintext.extend(payload);
        }
    }
    bytes
}

/// The result does not depend on how bytes are split, and valid input arrives completely.
#[test]
fn the_result_does_not_depend_on_the_pieces() {
    let (plain, framed) = (LayerRules::default(), websocket());
    rounds(|random| {
        let (rules, proxy) = match random.below(3) {
            0 => (&plain, true),
            1 => (&framed, false),
            _ => (&framed, true),
        };
        let mut bytes = if proxy { proxy_header(random) } else { Vec::new() };
        let mut plaintext = Vec::new();
        if rules.websocket.is_some() {
            bytes.extend(frames(random, &mut plaintext));
        } else {
            plaintext = (0..random.below(100)).map(|_| random.byte()).collect();
            bytes.extend_from_slice(&plaintext);
        }
        let harmed = random.below(3) > 0;
        if harmed {
            let other = frames(random, &mut Vec::new());
            mutate(random, &mut bytes, &other);
        }
        let whole = run(rules, proxy, &bytes, |rest| rest);
        assert!(
            harmed || (whole.plain == plaintext && !whole.ended),
            "{} of {}",
            whole.plain.len(),
            plaintext.len()
        );
        let most = 1 + random.below(1 + bytes.len());
        let cut = run(rules, proxy, &bytes, |_| 1 + random.below(most));
        assert!(whole == cut, "{:?}", String::from_utf8_lossy(&bytes));
        if bytes.len() < 4_000 {
            assert!(whole == run(rules, proxy, &bytes, |_| 1), "{:?}", String::from_utf8_lossy(&bytes));
        }
    });
}

/// A required header must be complete before any MQTT bytes. Where no header is allowed, no address is reported.
#[test]
fn no_address_is_reported_without_a_header() {
    let (plain, framed) = (LayerRules::default(), websocket());
    rounds(|random| {
        let header = proxy_header(random);
        // The first byte must remain, or the rest could begin another header.
        let cut = 1 + random.below(header.len() - 1);
        let whole = run(&plain, true, &header[..cut], |rest| rest);
        assert_eq!(whole, Outcome::default(), "half a header says nothing, and ends nothing");
        let mut bytes = header[..cut].to_vec();
        bytes.extend_from_slice(b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00");
        let outcome = run(&plain, true, &bytes, |_| 1 + random.below(20));
        assert!(outcome.plain.is_empty() || outcome.source.is_some());
        let from_untrusted = run(&framed, false, &header, |_| 1 + random.below(20));
        assert_eq!((from_untrusted.source, from_untrusted.plain.len()), (None, 0));
    });
}

fn configurations() -> (LayerRules, Arc<ClientConfig>) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let certificate: CertificateDer<'static> = issued.cert.der().clone();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a server");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (LayerRules { tls: Some(Arc::new(server)), websocket: None }, Arc::new(client))
}

/// Whatever happens to the client's bytes, during its handshake or after it: only data that it sent arrives.
#[test]
fn no_data_comes_out_of_tls_that_was_not_sent() {
    let (rules, client) = configurations();
    let mut whole = 0;
    rounds(|random| {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut peer = ClientConnection::new(client.clone(), name).expect("a client");
        let mut layers =
            rules.start(false, || PageRule::Any).expect("rules that serve").expect("there are layers");
        let plaintext: Vec<u8> = (0..random.below(40_000)).map(|at| at as u8).collect();
        std::io::Write::write_all(&mut peer.writer(), &plaintext).expect("buffered");
        let harmed_flight = random.below(5);
        let mut outcome = Outcome::default();
        for flight in 0..4 {
            let mut sent = Vec::new();
            while peer.wants_write() {
                peer.write_tls(&mut sent).expect("to memory");
            }
            if flight == harmed_flight && !sent.is_empty() {
                let other = sent.clone();
                mutate(random, &mut sent, &other);
            }
            let mut rest = &sent[..];
            while !rest.is_empty() && !outcome.ended {
                let (now, later) = rest.split_at(1 + random.below(rest.len()));
                receive(&mut layers, now, &mut outcome);
                rest = later;
            }
            let mut unread = &outcome.wire[..];
            while !unread.is_empty() {
                if peer.read_tls(&mut unread).is_err() || peer.process_new_packets().is_err() {
                    break;
                }
            }
            outcome.wire.clear();
        }
        assert!(plaintext.starts_with(&outcome.plain), "{} bytes came through", outcome.plain.len());
        whole += u64::from(outcome.plain == plaintext && !outcome.ended);
    });
    assert!(whole > 0, "some runs were undamaged");
}

/// Bytes that are not TLS end the connection without data.
#[test]
fn garbage_before_a_handshake_yields_no_data() {
    let (rules, client) = configurations();
    rounds(|random| {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut peer = ClientConnection::new(client.clone(), name).expect("a client");
        let mut hello = Vec::new();
        peer.write_tls(&mut hello).expect("to memory");
        let mut bytes: Vec<u8> = (0..1 + random.below(300)).map(|_| random.byte()).collect();
        if random.below(2) == 0 {
            mutate(random, &mut bytes, &hello);
        }
        bytes.extend_from_slice(&hello);
        let whole = run(&rules, false, &bytes, |rest| rest);
        let cut = run(&rules, false, &bytes, |_| 1 + random.below(100));
        assert!(whole.plain.is_empty() && cut.plain.is_empty());
        assert_eq!(whole.ended, cut.ended);
    });
}
