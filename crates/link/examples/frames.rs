//! Measures the cost of frames in a mesh: two meshes, with bytes moved by hand. To count instructions:
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/frames 100000 64
//! ```
//!
//! The arguments are the number of frames, and how many of them go together. The difference between two runs is the
//! cost of the frames.

use bytes::Bytes;
use link::{Event, Identity, Lane, Mesh, MeshConfig, MeshEvent, NodeId, Output, Secret, Time};

struct End {
    mesh: Mesh,
    peer: NodeId,
    received: u64,
    out: Output,
}

fn end(name: &str, peer: &str, mut state: u8) -> End {
    let random = move |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(5).wrapping_add(7);
            *byte = state;
        }
    };
    let identity = Identity { name: name.into(), cluster: [1; 16], features: 0, descriptor: Bytes::new() };
    let config = MeshConfig { connections: 1, ..MeshConfig::default() };
    let mut mesh = Mesh::new(identity, Secret::new(b"secret"), Box::new(random), config);
    mesh.add_peer(Time(0), peer, "there");
    End { mesh, peer: NodeId::of_name(peer), received: 0, out: Output::default() }
}

/// Moves the output of `from` to `to`, which handles it.
fn carry(now: Time, from: &mut End, to: &mut End, to_connection: link::ConnectionId) {
    while let Some(id) = from.mesh.poll_writable() {
        from.mesh.output(now, id, 256 * 1024, &mut from.out);
        for chunk in from.out.drain() {
            to.mesh.input(now, to_connection, chunk);
        }
    }
    while let Some(event) = to.mesh.poll_event() {
        if let MeshEvent::Link { event: Event::Received { credit, .. }, .. } = event {
            to.received += 1;
            to.mesh.consume(to.peer, credit);
        }
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (count, batch) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(64));
    let now = Time(1);
    let (mut dials, mut accepts) = (end("b", "a", 1), end("a", "b", 2));
    assert!(dials.mesh.node() < accepts.mesh.node());
    dials.mesh.handle_timeout(now);
    let Some(link::Demand::Dial { connection, .. }) = dials.mesh.poll_demand() else { panic!("it dials") };
    let accepted = accepts.mesh.accepted(now, ([127, 0, 0, 1], 1).into()).expect("there is room");
    dials.mesh.dialed(now, connection);
    for _ in 0..4 {
        carry(now, &mut dials, &mut accepts, accepted);
        carry(now, &mut accepts, &mut dials, connection);
    }
    let frame = Bytes::from(vec![7; 128]);
    for round in 0..count.div_ceil(batch) {
        for index in 0..batch {
            let lane = Lane::assured((round + index) as u8);
            dials.mesh.send(now, dials.peer, lane, frame.clone().into()).expect("there is room");
        }
        carry(now, &mut dials, &mut accepts, accepted);
        carry(now, &mut accepts, &mut dials, connection);
    }
    assert!(accepts.received >= count);
    let left: u64 =
        dials.mesh.peers().map(|peer| peer.waiting(now).map(|(_, (bytes, ..))| bytes).sum::<u64>()).sum();
    assert_eq!(left, 0, "everything is acknowledged");
}
