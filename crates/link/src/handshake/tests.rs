use super::*;

fn identity(name: &str) -> Identity {
    Identity { name: name.into(), cluster: [7; 16], features: 0b110 }
}

fn said(out: &mut Output) -> Bytes {
    out.take().concat().into()
}

/// Lets two handshakes talk, `step` bytes at a time, and returns how each ended.
fn talk(
    dialer: (&Identity, &[u8]),
    acceptor: (&Identity, &[u8]),
    step: usize,
) -> (Result<Progress, PeerError>, Result<Progress, PeerError>) {
    let (mut to_acceptor, mut to_dialer) = (Output::default(), Output::default());
    let place = (1, 3);
    let secret = Secret::new(dialer.1);
    let mut dials = Handshake::dial(dialer.0, secret, LinkId(11), place, [1; 32], &mut to_acceptor);
    let mut accepts = Handshake::accept(acceptor.0, Secret::new(acceptor.1), [2; 32]);
    let (mut one, mut other) = (Ok(Progress::Waits), Ok(Progress::Waits));
    for _ in 0..1000 {
        for piece in said(&mut to_acceptor).chunks(step) {
            let mut piece = Bytes::copy_from_slice(piece);
            if other.is_ok() {
                other = accepts.input(&mut piece, &mut to_dialer);
                if let Ok(Progress::Named(_)) = other {
                    other = accepts.answer(LinkId(22), &mut piece, &mut to_dialer);
                }
            }
        }
        for piece in said(&mut to_dialer).chunks(step) {
            let mut piece = Bytes::copy_from_slice(piece);
            if matches!(one, Ok(Progress::Waits)) {
                one = dials.input(&mut piece, &mut to_acceptor);
            }
        }
    }
    (one, other)
}

#[test]
fn two_nodes_with_the_same_secret_learn_who_they_are() {
    let (a, b) = (identity("a"), Identity { features: 0b011, ..identity("b") });
    for step in [1, 7, 4096] {
        let (one, other) = talk((&a, b"secret"), (&b, b"secret"), step);
        let established = |name: &str, link| {
            let (version, features) = (VERSION, 0b010);
            let name = name.into();
            Ok(Progress::Done(Box::new(Established {
                name,
                link,
                version,
                features,
                channel: 1,
                channels: 3,
            })))
        };
        assert_eq!(one, established("b", LinkId(22)));
        assert_eq!(other, established("a", LinkId(11)));
    }
}

#[test]
fn a_node_without_the_secret_learns_nothing_and_joins_nobody() {
    let (one, other) = talk((&identity("a"), b"guess"), (&identity("b"), b"secret"), 4096);
    assert_eq!(one, Err(PeerError::WrongSecret), "the dialer does not trust the answer");
    assert_eq!(other, Ok(Progress::Waits), "and proves nothing itself");
}

/// Whoever dials without the secret has to prove it, whatever it makes of the answer.
#[test]
fn a_proof_of_somebody_else_is_refused() {
    let (mut out, mut answer) = (Output::default(), Output::default());
    Handshake::dial(&identity("a"), Secret::new(b"guess"), LinkId(1), (0, 1), [1; 32], &mut out);
    let mut accepts = Handshake::accept(&identity("b"), Secret::new(b"secret"), [2; 32]);
    let mut input = said(&mut out);
    assert_eq!(accepts.input(&mut input, &mut answer), Ok(Progress::Named("a".into())));
    assert_eq!(accepts.answer(LinkId(2), &mut input, &mut answer), Ok(Progress::Waits));
    // The acceptor's own proof sent back is no proof of the dialer.
    let answer = said(&mut answer);
    let mut reflected = answer.slice(answer.len() - PROOF..);
    assert_eq!(accepts.input(&mut reflected, &mut out), Err(PeerError::WrongSecret));
}

#[test]
fn those_who_do_not_belong_together_are_told_so() {
    let check = |dialer: Identity, reason| {
        let (one, other) = talk((&dialer, b"secret"), (&identity("b"), b"secret"), 4096);
        assert_eq!(one, Err(PeerError::RefusedBy { reason }));
        assert_eq!(other, Err(PeerError::Refuses { reason }));
    };
    check(Identity { cluster: [8; 16], ..identity("a") }, Refusal::Cluster);
    check(identity("b"), Refusal::OwnName);
}

#[test]
fn a_version_that_nobody_knows_is_refused() {
    let mut hello = Output::default();
    let secret = || Secret::new(b"secret");
    Handshake::dial(&identity("a"), secret(), LinkId(1), (0, 1), [1; 32], &mut hello);
    let mut bytes = said(&mut hello).to_vec();
    bytes[PREFIX..PREFIX + 4].copy_from_slice(&[0xff, 0, 0xff, 0]);
    let mut out = Output::default();
    let refused = Handshake::accept(&identity("b"), secret(), [2; 32]).input(&mut bytes.into(), &mut out);
    assert_eq!(refused, Err(PeerError::Refuses { reason: Refusal::Version }));
    assert!(!out.is_empty(), "the peer is told");
}

#[test]
fn a_later_version_with_more_fields_is_understood() {
    let mut hello = Output::default();
    let secret = || Secret::new(b"secret");
    Handshake::dial(&identity("a"), secret(), LinkId(1), (0, 1), [1; 32], &mut hello);
    let mut bytes = said(&mut hello).to_vec();
    bytes.extend(b"more");
    bytes[PREFIX + 2] = 9;
    bytes[4] += 4;
    let mut out = Output::default();
    let known = Handshake::accept(&identity("b"), secret(), [2; 32]).input(&mut bytes.into(), &mut out);
    assert_eq!(known, Ok(Progress::Named("a".into())));
}

#[test]
fn other_protocols_are_noticed_at_once() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0x16, 3, 1], &[0x10, 12], b"MLNX"] {
        let mut handshake = Handshake::accept(&identity("b"), Secret::new(b""), [2; 32]);
        let found = handshake.input(&mut Bytes::copy_from_slice(bytes), &mut Output::default());
        assert_eq!(found, Err(PeerError::NotALink));
    }
}

/// What a node of version 1 says, for ever.
#[test]
fn a_hello_has_these_bytes() {
    let mut out = Output::default();
    Handshake::dial(&identity("n1"), Secret::new(b"s"), LinkId(0x0102), (1, 3), [9; 32], &mut out);
    let found: String = said(&mut out).iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = [
        "4d4c4e4b5100",
        "0100",
        "0100",
        "0600000000000000",
        &"07".repeat(16),
        &format!("0201{}", "00".repeat(14)),
        &"09".repeat(32),
        "0103",
        "026e31",
    ];
    assert_eq!(found, golden.concat());
}
