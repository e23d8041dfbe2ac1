use super::*;

fn identity(name: &str) -> Identity {
    Identity { name: name.into(), cluster: [7; 16], features: 0b110, descriptor: Bytes::new() }
}

fn said(out: &mut Output) -> Bytes {
    out.take().concat().into()
}

type Ended = Result<Progress, PeerError>;

/// Connects two handshakes, moves `step` bytes at a time, and returns the result of each.
fn talk(dialer: (&Identity, &[u8]), acceptor: (&Identity, &[u8]), step: usize) -> (Ended, Ended) {
    talk_of((1, 3), dialer, acceptor, step)
}

fn talk_of(
    channel_of_link: (u8, u8),
    dialer: (&Identity, &[u8]),
    acceptor: (&Identity, &[u8]),
    step: usize,
) -> (Ended, Ended) {
    let (mut to_acceptor, mut to_dialer) = (Output::default(), Output::default());
    let secret = Secret::new(dialer.1);
    let mut dials = Handshake::dial(dialer.0, secret, LinkId(11), channel_of_link, [1; 32], &mut to_acceptor);
    let mut accepts = Handshake::accept(acceptor.0, Secret::new(acceptor.1), [2; 32]);
    let (mut one, mut other) = (Ok(Progress::NeedsMore), Ok(Progress::NeedsMore));
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
            if matches!(one, Ok(Progress::NeedsMore)) {
                one = dials.input(&mut piece, &mut to_acceptor);
            }
        }
    }
    (one, other)
}

#[test]
fn two_nodes_with_the_same_secret_learn_who_they_are() {
    let a = Identity { descriptor: vec![5; DESCRIPTOR_MAX].into(), ..identity("a") };
    let b = Identity { features: 0b011, descriptor: "b's".into(), ..identity(&"b".repeat(255)) };
    for step in [1, 7, 4096] {
        let (one, other) = talk((&a, b"secret"), (&b, b"secret"), step);
        let established = |of: &Identity, link| {
            Ok(Progress::Done(Box::new(Established {
                name: of.name.clone(),
                link,
                version: VERSION,
                features: 0b010,
                channel: 1,
                channels: 3,
                descriptor: of.descriptor.clone(),
            })))
        };
        assert_eq!(one, established(&b, LinkId(22)));
        assert_eq!(other, established(&a, LinkId(11)));
    }
}

#[test]
fn an_introduction_has_no_channel_and_a_node_may_introduce_itself_to_itself() {
    for names in [("a", "b"), ("a", "a")] {
        let dialer = Identity { descriptor: "of the dialer".into(), ..identity(names.0) };
        let acceptor = Identity { descriptor: "of the acceptor".into(), ..identity(names.1) };
        let (one, other) = talk_of((0, 0), (&dialer, b"secret"), (&acceptor, b"secret"), 9);
        for (found, of) in [(one, acceptor), (other, dialer)] {
            let Ok(Progress::Done(found)) = found else { panic!("{found:?}") };
            assert!(found.is_introduction());
            assert_eq!((found.name, found.descriptor), (of.name, of.descriptor));
        }
    }
    let (one, other) = talk_of((0, 0), (&identity("a"), b"guess"), (&identity("a"), b"secret"), 9);
    let refusal = PeerError::RefusedBy { reason: Refusal::Secret };
    assert_eq!((one, other), (Err(PeerError::WrongSecret), Err(refusal)));
}

#[test]
fn a_node_without_the_secret_learns_nothing_and_joins_nobody() {
    for step in [1, 4096] {
        let (one, other) = talk((&identity("a"), b"guess"), (&identity("b"), b"secret"), step);
        assert_eq!(one, Err(PeerError::WrongSecret), "the dialer does not trust the answer");
        let refusal = PeerError::RefusedBy { reason: Refusal::Secret };
        assert_eq!(other, Err(refusal), "and proves nothing itself, but says why");
    }
}

/// A dialer has to prove that it knows the secret, even if it ignores the acceptor's proof.
#[test]
fn a_proof_of_another_node_is_refused() {
    let (mut out, mut answer) = (Output::default(), Output::default());
    Handshake::dial(&identity("a"), Secret::new(b"guess"), LinkId(1), (0, 1), [1; 32], &mut out);
    let mut accepts = Handshake::accept(&identity("b"), Secret::new(b"secret"), [2; 32]);
    let mut input = said(&mut out);
    assert_eq!(accepts.input(&mut input, &mut answer), Ok(Progress::Named("a".into())));
    assert_eq!(accepts.answer(LinkId(2), &mut input, &mut answer), Ok(Progress::NeedsMore));
    // The acceptor's own proof sent back is no proof of the dialer.
    let answer = said(&mut answer);
    let mut reflected = answer.slice(answer.len() - PROOF..);
    assert_eq!(accepts.input(&mut reflected, &mut out), Err(PeerError::WrongSecret));
}

#[test]
fn nodes_that_do_not_belong_together_learn_the_reason() {
    let check = |dialer: Identity, reason| {
        let (one, other) = talk((&dialer, b"secret"), (&identity("b"), b"secret"), 4096);
        assert_eq!(one, Err(PeerError::RefusedBy { reason }));
        assert_eq!(other, Err(PeerError::Refuses { reason }));
    };
    check(Identity { cluster: [8; 16], ..identity("a") }, Refusal::Cluster);
    check(identity("b"), Refusal::OwnName);
    let of_no_channel = |channel_of_link| {
        talk_of(channel_of_link, (&identity("a"), b"secret"), (&identity("b"), b"secret"), 9)
    };
    for channel_of_link in [(1, 0), (3, 3), (0, CHANNELS_MAX + 1)] {
        assert_eq!(of_no_channel(channel_of_link).0, Err(PeerError::RefusedBy { reason: Refusal::Channel }));
    }
}

#[test]
fn an_unknown_version_is_refused() {
    let mut hello = Output::default();
    let secret = || Secret::new(b"secret");
    Handshake::dial(&identity("a"), secret(), LinkId(1), (0, 1), [1; 32], &mut hello);
    let mut bytes = said(&mut hello).to_vec();
    bytes[PREFIX..PREFIX + 4].copy_from_slice(&[0xff, 0, 0xff, 0]);
    let mut out = Output::default();
    let refused = Handshake::accept(&identity("b"), secret(), [2; 32]).input(&mut bytes.into(), &mut out);
    assert_eq!(refused, Err(PeerError::Refuses { reason: Refusal::Version }));
    assert!(!out.is_empty(), "the peer receives the reason");
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
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0x16, 2, 1], &[0x10, 12], b"MLNX"] {
        let (mut handshake, mut out) =
            (Handshake::accept(&identity("b"), Secret::new(b""), [2; 32]), Output::default());
        let found = handshake.input(&mut Bytes::copy_from_slice(bytes), &mut out);
        assert_eq!((found, out.is_empty()), (Err(PeerError::NotALink), true));
    }
}

/// A node with TLS cannot read the refusal, but recognizes by its first bytes that it comes from a node.
#[test]
fn tls_on_one_side_only_is_recognized_by_both_sides() {
    for hello in [&[0x16, 3, 1, 2, 0][..], &[0x16, 3, 3]] {
        let (mut accepts, mut out) =
            (Handshake::accept(&identity("b"), Secret::new(b""), [2; 32]), Output::default());
        let found = accepts.input(&mut Bytes::copy_from_slice(hello), &mut out);
        assert_eq!(found, Err(PeerError::SpeaksTls));
        assert!(is_handshake(&said(&mut out)));
    }
    let mut out = Output::default();
    let mut dials = Handshake::dial(&identity("a"), Secret::new(b""), LinkId(1), (0, 1), [1; 32], &mut out);
    assert!(is_handshake(&said(&mut out)));
    let alert = dials.input(&mut Bytes::from_static(&[0x15, 3, 3, 0, 2, 2, 50]), &mut out);
    assert_eq!((alert, out.is_empty()), (Err(PeerError::SpeaksTls), true));
}

/// Permanent byte format of the handshake messages, between the length and the descriptor, of a node that speaks
/// version 1 only. The first nodes of version 1 sent no descriptor.
const GOLDEN_DIALER: [&str; 7] = [
    "0100",
    "0100",
    "0600000000000000",
    "07070707070707070707070707070707",
    "02010000000000000000000000000000",
    "0909090909090909090909090909090909090909090909090909090909090909",
    "0103026e31",
];
const GOLDEN_ACCEPTOR: [&str; 7] = [
    "00",
    "0100",
    "0600000000000000",
    "07070707070707070707070707070707",
    "04030000000000000000000000000000",
    "0808080808080808080808080808080808080808080808080808080808080808",
    "026e32",
];

/// The same messages of a node that speaks versions 1 and 2, to one that does, too.
fn golden_2() -> ([&'static str; 7], [&'static str; 7]) {
    let (mut dialer, mut acceptor) = (GOLDEN_DIALER, GOLDEN_ACCEPTOR);
    dialer[1] = "0200";
    acceptor[1] = "0200";
    (dialer, acceptor)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Returns the message of n1 to n2, and that of n2 to n1 with its proof.
fn hellos(descriptors: (&'static str, &'static str)) -> (Bytes, Bytes) {
    let (mut hello, mut answer) = (Output::default(), Output::default());
    let n1 = Identity { descriptor: descriptors.0.into(), ..identity("n1") };
    let n2 = Identity { descriptor: descriptors.1.into(), ..identity("n2") };
    Handshake::dial(&n1, Secret::new(b"s"), LinkId(0x0102), (1, 3), [9; 32], &mut hello);
    let hello = said(&mut hello);
    let mut accepts = Handshake::accept(&n2, Secret::new(b"s"), [8; 32]);
    let mut input = hello.clone();
    assert_eq!(accepts.input(&mut input, &mut answer), Ok(Progress::Named("n1".into())));
    assert_eq!(accepts.answer(LinkId(0x0304), &mut input, &mut answer), Ok(Progress::NeedsMore));
    (hello, said(&mut answer))
}

#[test]
fn handshake_messages_keep_their_byte_format() {
    let check = |found: &[u8], length: &str, golden: [&str; 7], descriptor: &str| {
        assert_eq!(hex(found), ["4d4c4e4b", length, &golden.concat(), descriptor].concat());
    };
    let (dialer, acceptor) = golden_2();
    let (hello, answer) = hellos(("", "core"));
    check(&hello, "5300", dialer, "0000");
    let (said, proof) = answer.split_at(answer.len() - PROOF);
    check(said, "5400", acceptor, "0400636f7265");
    assert_eq!(hex(proof), "2c8b9463baf43335a15d4cdd48daa057d1f32488d804d89b9075129397a451e3");
    // To a dialer that speaks version 1 only.
    let n2 = Identity { descriptor: "core".into(), ..identity("n2") };
    let mut accepts = Handshake::accept(&n2, Secret::new(b"s"), [8; 32]);
    let mut hello = message(&[&unhex(&GOLDEN_DIALER.concat())[..], &[0, 0]].concat());
    let mut answer = Output::default();
    assert_eq!(accepts.input(&mut hello, &mut answer), Ok(Progress::Named("n1".into())));
    assert_eq!(accepts.answer(LinkId(0x0304), &mut hello, &mut answer), Ok(Progress::NeedsMore));
    let answer = self::said(&mut answer);
    let (said, proof) = answer.split_at(answer.len() - PROOF);
    check(said, "5400", GOLDEN_ACCEPTOR, "0400636f7265");
    assert_eq!(hex(proof), "b658494f83a63a9b7dc60fa768d141faf714a55454f8a36de2efc968ef52ba84");
}

#[test]
fn a_node_without_descriptors_is_understood() {
    let secret = || Secret::new(b"s");
    let whole = |golden: [&str; 7]| message(&unhex(&golden.concat()));
    // As acceptor, and as dialer.
    let n2 = Identity { descriptor: "n2".into(), ..identity("n2") };
    let mut accepts = Handshake::accept(&n2, secret(), [8; 32]);
    let mut out = Output::default();
    assert_eq!(accepts.input(&mut whole(GOLDEN_DIALER), &mut out), Ok(Progress::Named("n1".into())));
    assert_eq!(accepts.named().map(|it| (it.version, it.descriptor.clone())), Some((1, Bytes::new())));
    let n1 = Identity { descriptor: "n1".into(), ..identity("n1") };
    let mut dials = Handshake::dial(&n1, secret(), LinkId(0x0102), (1, 3), [9; 32], &mut out);
    let said = [said(&mut out), whole(GOLDEN_ACCEPTOR)];
    let proof = dials.proof(b"acceptor", &said.concat());
    let mut answer = Bytes::from([&said[1][..], proof.as_ref()].concat());
    let Ok(Progress::Done(found)) = dials.input(&mut answer, &mut out) else { panic!("it is understood") };
    assert_eq!((&*found.name, found.version, found.descriptor), ("n2", 1, Bytes::new()));
}

#[test]
fn an_invalid_descriptor_is_refused() {
    let hello = |descriptor: &[u8]| message(&[&unhex(&GOLDEN_DIALER.concat()), descriptor].concat());
    let accept = |mut hello| {
        let mut accepts = Handshake::accept(&identity("n2"), Secret::new(b"s"), [8; 32]);
        accepts.input(&mut hello, &mut Output::default())
    };
    for descriptor in [&[1][..], &[1, 0], &[0, 2], &[2, 0, 7]] {
        assert_eq!(
            accept(hello(descriptor)),
            Err(PeerError::BadHandshake { what: "too little" }),
            "{descriptor:?}"
        );
    }
    let longer = PeerError::BadHandshake { what: "a descriptor longer than the maximum" };
    assert_eq!(accept(hello(&[&[1, 2][..], &[0; 513]].concat())), Err(longer));
    assert_eq!(accept(hello(&[&[0, 2][..], &[0; 512]].concat())), Ok(Progress::Named("n1".into())));
}
