//! Hostile input of a peer, for two seconds or the number in the environment variable `MERIDIAN_FUZZ_SECONDS`.
//! `MERIDIAN_FUZZ_SEED` selects another run than the usual one.

use std::time::{Duration, Instant};

use bytes::Bytes;
use link::{
    Config, Demand, Established, Event, Handshake, Identity, Lane, Link, LinkId, Mesh, MeshConfig, MeshEvent,
    Output, Progress, Secret, Time, VERSION,
};
use random::Random;

fn for_a_while(mut round: impl FnMut(&mut Random)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(number("MERIDIAN_FUZZ_SECONDS").unwrap_or(2));
    let mut rounds = 0;
    while rounds < 200 || Instant::now() < end {
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(rounds));
        round(&mut random);
        rounds += 1;
    }
}

/// Flips, cuts, doubles and overwrites bytes.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => bytes.truncate(at),
            3 => {
                let copy = bytes[at..].to_vec();
                bytes.extend(copy);
            }
            _ => drop(bytes.drain(at..(at + 1 + random.below(8)).min(bytes.len()))),
        }
    }
}

fn identity(name: &str) -> Identity {
    let descriptor = Bytes::from(format!("the descriptor of {name}"));
    Identity { name: name.into(), cluster: [1; 16], features: 3, descriptor }
}

#[test]
fn hostile_bytes_never_panic_a_handshake_or_complete_it_without_the_secret() {
    for_a_while(|random| {
        let secret = Secret::new(b"secret");
        let mut hello = Output::default();
        let unauthenticated = Secret::new(b"another");
        let channel_of_link = if random.below(2) == 0 { (0, 2) } else { (0, 0) };
        let mut dials =
            Handshake::dial(&identity("a"), unauthenticated, LinkId(1), channel_of_link, [3; 32], &mut hello);
        let mut accepts = Handshake::accept(&identity("b"), secret.clone(), [4; 32]);
        let mut bytes = hello.take().concat();
        mutate(random, &mut bytes);
        let (mut input, mut out) = (Bytes::from(bytes), Output::default());
        let mut progress = accepts.input(&mut input, &mut out);
        if let Ok(Progress::Named(_)) = progress {
            progress = accepts.answer(LinkId(2), &mut input, &mut out);
        }
        let mut rest: Vec<u8> = (0..random.below(80)).map(|_| random.draw() as u8).collect();
        while progress == Ok(Progress::NeedsMore) && !rest.is_empty() {
            let piece = rest.split_off(random.below(rest.len()));
            progress = accepts.input(&mut piece.into(), &mut out);
        }
        assert!(!matches!(progress, Ok(Progress::Done(_))), "an unknown node has joined");
        // The dialer meets an acceptor that answers with anything.
        let mut answer = out.take().concat();
        mutate(random, &mut answer);
        let done = dials.input(&mut answer.into(), &mut out);
        assert!(!matches!(done, Ok(Progress::Done(_))), "an unknown node was believed");
    });
}

/// Creates a link with its peer's handshake done, and bytes that a correct peer might send.
fn good_stream(random: &mut Random, version: u16) -> (Link, Vec<u8>) {
    let config = Config { window: 1_000, ..Config::default() };
    let (mut good, mut victim) = (Link::new(LinkId(1), config.clone()), Link::new(LinkId(2), config));
    let of = |name: &str, link| Established {
        name: name.into(),
        link: LinkId(link),
        version,
        features: 0,
        channel: 0,
        channels: 1,
        descriptor: Bytes::new(),
    };
    let now = Time(1);
    let (at_good, at_victim) = (good.attach(now, &of("b", 2)), victim.attach(now, &of("a", 1)));
    let mut out = Output::default();
    let mut stream = Vec::new();
    for _ in 0..3 {
        let lanes = [Lane::CLAIMS, Lane::assured(0), Lane::best_effort(1), Lane::requests(2)];
        let lane = lanes[random.below(if version == 1 { 3 } else { 4 })];
        let length = random.below(700);
        good.send(now, lane, vec![7; length].into()).expect("there is room");
        victim.send(now, lane, vec![7; length].into()).expect("there is room");
        if version > 1 && good.is_up() {
            good.send(now, Lane::agreement(1), vec![7; length].into()).expect("the peer is reachable");
        }
        good.output(now, at_good, usize::MAX, &mut out);
        stream.extend(out.take().concat());
        victim.output(now, at_victim, usize::MAX, &mut out);
        good.input(now, at_good, out.take().concat().into()).expect("a good peer");
        good.handle_timeout(Time(2_000_000));
    }
    good.output(now, at_good, usize::MAX, &mut out);
    stream.extend(out.take().concat());
    let (again, _) = (Link::new(LinkId(2), Config { window: 1_000, ..Config::default() }), victim);
    (again, stream)
}

#[test]
fn a_link_stays_consistent_under_hostile_bytes() {
    let (mut refused, mut taken) = (0_u64, 0_u64);
    for_a_while(|random| {
        let version = 1 + random.below(usize::from(VERSION)) as u16;
        let (mut link, mut stream) = good_stream(random, version);
        mutate(random, &mut stream);
        let now = Time(1);
        let established = Established {
            name: "a".into(),
            link: LinkId(1),
            version,
            features: 0,
            channel: 0,
            channels: 1,
            descriptor: Bytes::new(),
        };
        let channel = link.attach(now, &established);
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + random.below(rest.len()));
            let done = link.input(now, channel, Bytes::copy_from_slice(piece));
            link.check_invariants();
            if done.is_err() {
                refused += 1;
                assert_eq!(link.channels().count(), 0, "the channel is gone");
                break;
            }
            rest = after;
        }
        taken += link.counters().bytes_received;
        assert!(link.unconsumed() < 10_000);
        let mut out = Output::default();
        link.output(now, channel, usize::MAX, &mut out);
    });
    assert!(refused > 0 && taken > 0, "both kinds of input were met");
}

/// Takes the output of a mesh for its one connection.
fn written(mesh: &mut Mesh) -> Vec<u8> {
    let mut out = Output::default();
    while let Some(id) = mesh.poll_writable() {
        mesh.output(Time(1), id, 1 << 20, &mut out);
    }
    out.take().concat()
}

fn mesh(name: &str, peer: &str, random: &mut Random) -> Mesh {
    let mut random = Random::new(random.draw());
    let bytes = move |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = random.draw() as u8);
    let config = MeshConfig { connections: 1, ..MeshConfig::default() };
    let mut mesh = Mesh::new(identity(name), Secret::new(b"secret"), Box::new(bytes), config);
    if peer.is_empty() {
        mesh.discover(Time(0), "there");
    } else {
        mesh.add_peer(Time(0), peer, "there");
    }
    mesh
}

#[test]
fn hostile_bytes_never_introduce_a_node_under_another_name() {
    let (mut introduced, mut ended) = (0_u64, 0_u64);
    for_a_while(|random| {
        let (mut seeks, mut accepts) = (mesh("a", "", random), mesh("b", "", random));
        let now = Time(1);
        seeks.handle_timeout(now);
        let Some(Demand::Dial { connection: at_seeks, peer: None, .. }) = seeks.poll_demand() else {
            panic!("it seeks")
        };
        let at_accepts = accepts.accepted(now, ([1, 2, 3, 4], 5).into()).expect("there is room");
        seeks.dialed(now, at_seeks);
        let when = random.below(6);
        for round in 0..6 {
            let (from, to, at) = if round % 2 == 0 {
                (&mut seeks, &mut accepts, at_accepts)
            } else {
                (&mut accepts, &mut seeks, at_seeks)
            };
            let mut bytes = written(from);
            while let Some(demand) = from.poll_demand() {
                if let Demand::Close { last, .. } = demand {
                    ended += 1;
                    bytes.extend(last);
                }
            }
            if round == when {
                mutate(random, &mut bytes);
            }
            let (name, of) = (from.identity().name.clone(), from.identity().descriptor.clone());
            to.input(now, at, bytes.into());
            to.check_invariants();
            while let Some(event) = to.poll_event() {
                if let MeshEvent::Introduced { name: found, descriptor, address } = event {
                    introduced += 1;
                    assert_eq!((found, descriptor), (name.clone(), of.clone()));
                    assert_eq!(address.as_deref(), (round % 2 == 1).then_some("there"));
                }
            }
            assert_eq!(to.peers().count(), 0);
        }
        assert!(accepts.connections() <= 1, "what waits has a deadline");
    });
    assert!(introduced > 0 && ended > 0, "both ends were met");
}

#[test]
fn a_mesh_stays_consistent_under_hostile_bytes() {
    let (mut joined, mut ended) = (0_u64, 0_u64);
    for_a_while(|random| {
        // Node "b" dials: its id is the smaller one.
        let (mut b, mut a) = (mesh("b", "a", random), mesh("a", "b", random));
        let (dials, accepts) = if b.node() < a.node() { (&mut b, &mut a) } else { (&mut a, &mut b) };
        let now = Time(1);
        dials.handle_timeout(now);
        let Some(Demand::Dial { connection: at_dials, .. }) = dials.poll_demand() else {
            panic!("the smaller one dials")
        };
        let at_accepts = accepts.accepted(now, ([1, 2, 3, 4], 5).into()).expect("there is room");
        dials.dialed(now, at_dials);
        let when = random.below(8);
        for round in 0..8 {
            for is_there in [true, false] {
                let (from, to, at) = if is_there {
                    (&mut *dials, &mut *accepts, at_accepts)
                } else {
                    (&mut *accepts, &mut *dials, at_dials)
                };
                let mut bytes = written(from);
                if round == when {
                    mutate(random, &mut bytes);
                }
                to.input(now, at, bytes.into());
                to.check_invariants();
                let peer = from.node();
                // It is refused before they are joined, or for lack of room.
                let _ = to.send(now, peer, Lane::assured(round as u8), vec![7; random.below(300)].into());
                while let Some(demand) = to.poll_demand() {
                    ended += u64::from(matches!(demand, Demand::Close { .. }));
                }
                while let Some(event) = to.poll_event() {
                    if let MeshEvent::Link { peer, event: Event::Received { credit, .. } } = event {
                        joined += 1;
                        to.consume(peer, credit);
                    }
                }
            }
        }
    });
    assert!(joined > 0 && ended > 0, "both ends were met");
}
