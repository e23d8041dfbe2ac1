//! Nodes that know addresses and no names: which ones are introduced, and which are not.

use crate::world::{Spec, World, specs};
use bytes::Bytes;
use link::{
    ConnectionId, Demand, Handshake, Identity, Lane, LinkId, MeshEvent, Output, Progress, Secret, Time,
};

/// Returns nodes without peers. Each of them dials all addresses for discovery.
fn unauthenticated_nodes(count: usize) -> Vec<Spec> {
    let mut specs = specs(count, 2);
    for spec in &mut specs {
        spec.peers.clear();
        spec.seeks = (0..count).collect();
    }
    specs
}

/// Returns two nodes: the first dials the second for discovery.
fn seeker_and_sought() -> Vec<Spec> {
    let mut specs = unauthenticated_nodes(2);
    specs[0].seeks = vec![1];
    specs[1].seeks.clear();
    specs
}

fn heard(world: &World, at: usize) -> Vec<(&str, Option<usize>)> {
    world.nodes[at].introduced.iter().map(|it| (&*it.1, it.3)).collect()
}

#[test]
fn two_unknown_nodes_are_introduced_repeatedly() {
    let mut world = World::new(seeker_and_sought(), 1);
    world.run(2_000);
    assert_eq!(heard(&world, 0), [("n1", Some(1))]);
    assert_eq!(heard(&world, 1), [("n0", None)]);
    (0..2).for_each(|node| world.change_descriptor(node));
    world.run(18_000);
    assert_eq!(world.heard_of(0, 1, Some(1)), Some(world.nodes[1].edition), "the other's new descriptor");
    assert_eq!(world.heard_of(1, 0, None), Some(world.nodes[0].edition));
    let count = heard(&world, 0).len();
    assert!((5..=7).contains(&count), "every three seconds: {count}");
    for node in &world.nodes {
        assert_eq!(node.mesh.counters().introduced, count as u64);
        assert_eq!((node.mesh.peers().count(), node.mesh.counters().refused), (0, 0));
        assert_eq!(node.mesh.counters().dials_failed, 0);
        assert!(node.log.is_empty(), "nothing to complain about: {:?}", node.log);
    }
}

#[test]
fn every_node_finds_all_nodes_and_itself() {
    let mut world = World::new(unauthenticated_nodes(3), 2);
    world.run(20_000);
    for one in 0..3 {
        for other in 0..3 {
            let edition = Some(world.nodes[other].edition);
            assert_eq!(world.heard_of(one, other, Some(other)), edition);
            assert_eq!(world.heard_of(one, other, None), edition);
        }
        assert_eq!(world.nodes[one].mesh.peers().count(), 0);
        assert!(world.nodes[one].mesh.connections() <= 3, "none is kept");
    }
}

/// Existing links of peers continue undisturbed while the peers are introduced.
#[test]
fn peers_that_are_introduced_are_not_disturbed() {
    let mut specs = specs(2, 2);
    for spec in &mut specs {
        spec.seeks = vec![0, 1];
    }
    let mut world = World::new(specs, 3);
    world.run(2_000);
    for _ in 0..200 {
        world.run(100);
        world.send(0, 1, Lane::CLAIMS, 50).expect("it is there");
    }
    world.run(2_000);
    let peer = world.nodes[1].peers.values().next().expect("a peer");
    assert_eq!((peer.ups, peer.suspects, peer.restarts, peer.total), (1, 0, 0, 200));
    assert!(heard(&world, 0).len() > 12 && heard(&world, 1).len() > 12);
    assert_eq!(world.nodes[0].dials + world.nodes[1].dials, 2, "for the link");
    assert_eq!(world.retransmitted(), 0);
    world.heal();
}

/// Runs two nodes after `change`: neither learns of the other, and the seeker logs what to do.
fn not_introduced(change: impl Fn(&mut [Spec]), at_seeker: &str, at_sought: &str) {
    let mut specs = seeker_and_sought();
    change(&mut specs);
    let mut world = World::new(specs, 4);
    world.run(30_000);
    assert!(world.nodes.iter().all(|node| node.introduced.is_empty()));
    assert_eq!(world.said(0, at_seeker), 1, "once in half a minute: {:?}", world.nodes[0].log);
    assert!(world.nodes[0].log.iter().all(|(_, who, _)| who == "1"), "the address is named");
    assert_eq!(world.said(1, at_sought), 1, "{:?}", world.nodes[1].log);
    let counters = world.nodes[0].mesh.counters();
    assert!((10..60).contains(&counters.dialed), "{} attempts, ever more seldom", counters.dialed);
    assert!(counters.dials_failed >= counters.dialed - 1);
    assert_eq!(world.nodes[1].mesh.counters().introduced, 0);
}

#[test]
fn a_node_with_another_secret_is_not_introduced() {
    let change = |specs: &mut [Spec]| specs[1].secret = "guess".into();
    not_introduced(
        change,
        "the peer does not know the cluster's secret: check that the secret's file is the same",
        "the peer refuses this node: the cluster's secret is not the same on both: check the secret's file",
    );
}

#[test]
fn a_node_of_another_cluster_is_not_introduced() {
    let change = |specs: &mut [Spec]| {
        specs[0].cluster = 2;
        for (spec, name) in specs.iter_mut().zip(["plant-7", "plant-8"]) {
            spec.config.cluster = name.into();
        }
    };
    let told = |own| {
        format!(
            "different clusters: check cluster.id on both, and the addresses. The cluster.id of this node is {own:?}"
        )
    };
    not_introduced(change, &told("plant-7"), &told("plant-8"));
}

#[test]
fn an_address_that_cannot_be_reached_is_named_and_tried_until_it_can() {
    let mut world = World::new(seeker_and_sought(), 5);
    world.stop(1, true);
    world.run(20_000);
    assert_eq!(world.said(0, "check that the node runs"), 1);
    assert!(world.nodes[0].introduced.is_empty());
    world.start(1);
    world.run(3_000);
    assert_eq!(heard(&world, 0)[0], ("n1", Some(1)));
}

/// Dials by hand, as the first demand of a node asks.
fn dial(world: &mut World, at: usize) -> ConnectionId {
    let now = world.now;
    world.nodes[at].mesh.handle_timeout(now);
    let Some(Demand::Dial { connection, peer: None, .. }) = world.nodes[at].mesh.poll_demand() else {
        panic!("it seeks")
    };
    world.nodes[at].mesh.dialed(now, connection);
    connection
}

/// Returns the reasons for which the connections of a node were refused.
fn complaints(world: &mut World, at: usize) -> Vec<String> {
    let mut reasons = Vec::new();
    while let Some(event) = world.nodes[at].mesh.poll_event() {
        match event {
            MeshEvent::Refused { reason, .. } => reasons.push(reason.into()),
            MeshEvent::UnauthenticatedLimit { address, closed } => {
                reasons.push(format!("{closed} of {address}"))
            }
            other => panic!("{other:?}"),
        }
    }
    reasons
}

#[test]
fn an_address_without_a_node_is_given_up_and_tried_again() {
    let mut world = World::new(seeker_and_sought(), 6);
    // One peer is silent, one sends something else, and one closes the connection.
    let silent = dial(&mut world, 0);
    world.now = Time(world.now.0 + 5_000_000);
    let now = world.now;
    world.nodes[0].mesh.handle_timeout(now);
    let closed = world.nodes[0].mesh.poll_demand();
    assert!(matches!(closed, Some(Demand::Close { connection, .. }) if connection == silent), "{closed:?}");
    assert!(complaints(&mut world, 0)[0].contains("was not joined within 5s"));
    world.now = Time(world.now.0 + 5_000_000);
    let (garbage, now) = (dial(&mut world, 0), world.now);
    world.nodes[0].mesh.input(now, garbage, Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    assert!(matches!(world.nodes[0].mesh.poll_demand(), Some(Demand::Close { .. })));
    assert!(complaints(&mut world, 0)[0].contains("no Meridian node's cluster port"));
    world.now = Time(world.now.0 + 5_000_000);
    let (short, now) = (dial(&mut world, 0), world.now);
    world.nodes[0].mesh.closed(now, short, "the peer closed the connection");
    assert!(complaints(&mut world, 0)[0].contains("check that the address is that of a node's cluster port"));
    assert_eq!(world.nodes[0].mesh.counters().dials_failed, 3);
    world.run(10_000);
    assert_eq!(heard(&world, 0)[0], ("n1", Some(1)));
}

#[test]
fn an_address_is_not_dialed_after_its_discovery_ends() {
    let mut world = World::new(seeker_and_sought(), 7);
    let id = dial(&mut world, 0);
    let now = world.now;
    world.nodes[0].mesh.discover(now, "1");
    world.nodes[0].mesh.check_invariants();
    assert_eq!(world.nodes[0].mesh.discovery().collect::<Vec<_>>(), ["1"], "once, however often it is added");
    world.nodes[0].mesh.stop_discovery("1");
    world.nodes[0].mesh.stop_discovery("nobody's");
    world.nodes[0].mesh.check_invariants();
    let demand = world.nodes[0].mesh.poll_demand();
    assert!(matches!(demand, Some(Demand::Close { connection, .. }) if connection == id));
    assert_eq!((world.nodes[0].mesh.discovery().count(), world.nodes[0].mesh.connections()), (0, 0));
    world.run(10_000);
    assert_eq!(world.nodes[0].mesh.counters().dialed, 1);
    // The same again from the start.
    let now = world.now;
    world.nodes[0].mesh.discover(now, "1");
    world.nodes[0].mesh.discover(now, "1");
    world.run(1_000);
    assert_eq!(heard(&world, 0), [("n1", Some(1))]);
}

#[test]
fn discovery_addresses_have_a_bound() {
    let mut world = World::new(seeker_and_sought(), 8);
    let (now, mesh) = (world.now, &mut world.nodes[0].mesh);
    for address in 1..=300 {
        mesh.discover(now, &address.to_string());
    }
    mesh.check_invariants();
    assert_eq!(mesh.discovery().count(), 256);
    mesh.stop_discovery("7");
    mesh.discover(now, "300");
    assert_eq!(mesh.discovery().count(), 256);
    let said = complaints(&mut world, 0);
    assert!(said.iter().any(|reason| reason.contains("256 addresses are sought already")), "{said:?}");
}

/// The user of the mesh notices by the descriptors that it is not the linked peer.
#[test]
fn another_process_with_the_name_of_a_peer_learns_why_it_is_refused() {
    let mut specs = specs(2, 2);
    for (at, spec) in specs.iter_mut().enumerate() {
        spec.seeks = vec![1 - at];
    }
    let mut world = World::new(specs.clone(), 13);
    world.run(2_000);
    assert!(world.is_joined());
    let impostor = Spec { peers: Vec::new(), seeks: vec![0], ..specs[1].clone() };
    let impostor = World::new(vec![impostor], 9).nodes.remove(0);
    let descriptor = impostor.mesh.identity().descriptor.clone();
    world.nodes.push(impostor);
    let (owner, now) = (world.id(1), world.now);
    world.nodes[0].mesh.refuse_namesake(now, owner, descriptor, "2");
    world.run(10_000);
    let taken = "another process with this name is connected and alive: give each node a name of its own";
    assert_eq!((world.said(2, taken), world.said(2, "the peer refuses this node")), (1, 1));
    let told = &world.nodes[0].log;
    assert_eq!(told.len(), 1, "one report");
    assert!(
        told[0].1 == "2" && told[0].2.ends_with("The one that is connected is at 1"),
        "it names the address of the connected process"
    );
    let of_owner = world.nodes[0].introduced.iter().filter(|it| it.2 == world.nodes[1].edition).count();
    assert!(of_owner > 3 && of_owner == world.nodes[0].introduced.len(), "only the owner is reported");
    let peer = world.nodes[0].peers.values().next().expect("a peer");
    assert_eq!((peer.ups, peer.suspects, peer.restarts), (1, 0, 0));
    // From time to time it is examined again.
    let heard =
        |world: &World| world.nodes[0].introduced.iter().filter(|it| it.2 == world.nodes[2].edition).count();
    world.run(60_000);
    assert!(heard(&world) > 0);
    // It is not refused once the other one is gone.
    world.stop(1, true);
    let (now, descriptor) = (world.now, world.nodes[2].mesh.identity().descriptor.clone());
    world.nodes[0].mesh.refuse_namesake(now, owner, descriptor, "2");
    let before = heard(&world);
    world.run(10_000);
    assert!(heard(&world) > before);
}

/// Introduces by hand a node that knows the secret; returns the bytes that it received.
fn introduce(world: &mut World, to: usize, identity: &Identity, proves: bool) -> Option<Progress> {
    introduce_from([10, 9, 9, 9], world, to, identity, proves)
}

fn introduce_from(
    from: [u8; 4],
    world: &mut World,
    to: usize,
    identity: &Identity,
    proves: bool,
) -> Option<Progress> {
    let (mut out, now) = (Output::default(), world.now);
    let secret = Secret::new(b"secret");
    let mut dials = Handshake::dial(identity, secret, LinkId(0), (0, 0), [3; 32], &mut out);
    let mesh = &mut world.nodes[to].mesh;
    let id = mesh.accepted(now, (from, 99).into())?;
    mesh.input(now, id, out.take().concat().into());
    let mut answer = Output::default();
    mesh.output(now, id, 1 << 20, &mut answer);
    let done = dials.input(&mut answer.take().concat().into(), &mut out).expect("it answers");
    if proves {
        mesh.input(now, id, out.take().concat().into());
    }
    mesh.check_invariants();
    Some(done)
}

fn named(name: &str) -> Identity {
    Identity { name: name.into(), cluster: [1; 16], features: 0, descriptor: format!("of {name}").into() }
}

#[test]
fn unpolled_introductions_have_a_bound() {
    let mut world = World::new(seeker_and_sought(), 9);
    for number in 0..300 {
        introduce(&mut world, 1, &named(&format!("x{number}")), true).expect("there is room");
    }
    let mesh = &mut world.nodes[1].mesh;
    assert_eq!((mesh.counters().introduced, mesh.counters().introductions_dropped), (300, 44));
    assert_eq!(mesh.connections(), 0);
    for number in 44..300 {
        let (name, descriptor) = (format!("x{number}"), format!("of x{number}").into());
        let expected = MeshEvent::Introduced { name: name.into(), descriptor, address: None };
        assert_eq!(mesh.poll_event(), Some(expected), "the latest are left, in order");
    }
    assert_eq!(mesh.poll_event(), None);
}

/// Nodes that prove nothing take the available slots, and are never reported.
#[test]
fn introductions_without_a_proof_count_as_handshakes_and_end() {
    let mut world = World::new(seeker_and_sought(), 10);
    world.nodes[0].mesh.stop_discovery("1");
    for _ in 0..8 {
        let found = introduce(&mut world, 1, &named("x"), false);
        let Some(Progress::Done(found)) = found else {
            panic!("the sought one has proved itself: {found:?}")
        };
        assert_eq!(*found.name, *"n1");
    }
    assert_eq!(introduce(&mut world, 1, &named("x"), false), None);
    assert_eq!(world.nodes[1].mesh.counters().unauthenticated_closed, 1);
    assert_eq!(complaints(&mut world, 1), ["1 of 10.9.9.9"]);
    world.run(6_000);
    assert_eq!((world.nodes[1].mesh.counters().late, world.nodes[1].mesh.connections()), (8, 0));
    assert!(world.nodes[1].introduced.is_empty());
}

/// A node that knows the id of the cluster can announce a name, and then be silent until the handshake times out.
#[test]
fn a_connection_from_the_network_of_a_peer_gets_a_slot_despite_unknown_nodes() {
    let mut world = World::new(specs(2, 2), 12);
    world.run(8_000);
    assert!(world.is_joined());
    // The node that is dialed knows the address of the other.
    let (at, other) = if world.id(0) < world.id(1) { (1, 0) } else { (0, 1) };
    let before = world.nodes[at].mesh.connections();
    for last in 0..8 {
        let name = named(&format!("x{last}"));
        introduce_from([10, 9, 9, last], &mut world, at, &name, false).expect("there is room");
    }
    let now = world.now;
    let mesh = &mut world.nodes[at].mesh;
    assert_eq!(mesh.accepted(now, ([10, 9, 9, 99], 99).into()), None, "all unknown nodes are equal");
    let node = mesh.accepted(now, ([10, 0, 0, other as u8], 99).into());
    assert!(node.is_some());
    for last in 0..20 {
        assert_eq!(mesh.accepted(now, ([10, 9, 8, last], 99).into()), None, "it keeps its slot");
    }
    assert_eq!((mesh.connections() - before, mesh.counters().unauthenticated_closed), (8, 22));
    mesh.check_invariants();
}

/// Bytes that one node sent to another are useless to a node that recorded them.
#[test]
fn a_replayed_introduction_is_not_believed() {
    let mut world = World::new(seeker_and_sought(), 11);
    let now = world.now;
    let at_seeker = dial(&mut world, 0);
    let at_sought = world.nodes[1].mesh.accepted(now, ([10, 0, 0, 1], 1).into()).expect("there is room");
    let mut spoken = Vec::new();
    for (from, at, to, at_other) in
        [(0, at_seeker, 1, at_sought), (1, at_sought, 0, at_seeker), (0, at_seeker, 1, at_sought)]
    {
        let mut out = Output::default();
        world.nodes[from].mesh.output(now, at, 1 << 20, &mut out);
        let mut bytes = out.take().concat();
        if let Some(Demand::Close { last, .. }) = world.nodes[from].mesh.poll_demand() {
            bytes.extend(last);
        }
        world.nodes[to].mesh.input(now, at_other, bytes.clone().into());
        spoken.push(bytes);
    }
    world.run(10);
    assert_eq!((heard(&world, 0).len(), heard(&world, 1).len()), (1, 1));
    let (is_closed, _) = world.unauthenticated(1, &[&spoken[0], &spoken[2]]);
    assert!(is_closed && world.said(1, "does not know the cluster's secret") == 1);
    // The acceptor's own answer is no proof of a dialer either.
    let proof = &spoken[1][spoken[1].len() - 32..];
    assert!(world.unauthenticated(1, &[&spoken[0], proof]).0);
    assert_eq!(heard(&world, 1).len(), 1);
}

/// A node with an ordinary connection is refused before it has proved anything, and so is not reported.
#[test]
fn a_dialer_that_is_no_peer_yet_is_refused_and_both_log_what_they_wait_for() {
    let mut specs = specs(2, 2);
    let world = World::new(specs.clone(), 12);
    let acceptor = usize::from(world.id(0) < world.id(1));
    specs[acceptor].peers.clear();
    let mut world = World::new(specs, 12);
    world.run(10_000);
    assert_eq!(world.said(acceptor, "this node does not know it as a member yet"), 1);
    assert_eq!(world.said(1 - acceptor, "the node there does not know this one as a member yet"), 1);
    assert_eq!(world.nodes[acceptor].mesh.peers().count(), 0);
    assert!(world.nodes.iter().all(|node| node.introduced.is_empty()));
}
