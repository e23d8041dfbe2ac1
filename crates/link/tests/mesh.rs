//! Nodes that are joined by their meshes, despite faults of the network and hostile connections.

mod introductions;
mod world;

use std::time::Duration;

use link::{Lane, Mesh, Refused};
use world::{Spec, World, some_lane, specs};

/// Prints the seed when a run fails.
struct Seen(u64);

impl Drop for Seen {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "again: MERIDIAN_LINK_SEED={} MERIDIAN_LINK_SEEDS=1 cargo test -p link --test mesh",
                self.0
            );
        }
    }
}

#[test]
fn frames_arrive_once_and_in_order_despite_network_faults() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("MERIDIAN_LINK_SEED").unwrap_or(0);
    let (mut cuts, mut swallowed, mut severed, mut restarts, mut refused) = (0, 0, 0, 0, 0);
    let (mut received, mut retransmitted, mut introduced) = (0, 0, 0);
    for seed in first..first + number("MERIDIAN_LINK_SEEDS").unwrap_or(40) {
        let _seen = Seen(seed);
        let (count, connections) = (3 + seed as usize % 3, 1 + (seed / 3) as u8 % 4);
        let mut specs = specs(count, connections);
        // In half of the runs the nodes also dial each other, and themselves, for discovery. That changes nothing for
        // their links.
        let seeks: Vec<usize> = if seed % 2 == 1 { (0..count).collect() } else { Vec::new() };
        for spec in &mut specs {
            spec.config.handshakes_max += 4 * seeks.len();
            spec.seeks = seeks.clone();
        }
        let mut world = World::new(specs, seed);
        for _ in 0..300 {
            let (one, step) = (world.random.below(count), 1 + world.random.below(count - 1));
            let other = (one + step) % count;
            match world.random.below(100) {
                0..50 => {
                    for _ in 0..world.random.below(20) {
                        let lane = some_lane(&mut world.random);
                        let longest = if world.random.below(20) == 0 { 6_000 } else { 100 };
                        let length = world.random.below(longest);
                        refused += u64::from(world.send(one, other, lane, length).is_err());
                    }
                }
                50..75 => {
                    let count = world.random.below(30);
                    world.consume(one, count);
                }
                75..80 => {
                    cuts += 1;
                    world.cut();
                }
                80..83 => {
                    swallowed += 1;
                    world.swallow();
                }
                83..85 => {
                    severed += 1;
                    world.sever(one, other);
                }
                85..89 => world.severed.clear(),
                89..91 => {
                    restarts += 1;
                    let is_told = world.random.below(2) == 0;
                    world.stop(one, is_told);
                    let pause = world.random.below(3) * 1_500;
                    world.pass(pause as u64);
                    world.start(one);
                }
                91..94 => world.change_descriptor(one),
                94..96 => {
                    world.nodes[one].mesh.stop_discovery(&other.to_string());
                    if !seeks.is_empty() {
                        let now = world.now;
                        world.nodes[one].mesh.discover(now, &other.to_string());
                    }
                }
                _ => {}
            }
            let milliseconds = world.random.below(300) as u64;
            world.pass(milliseconds);
        }
        world.heal();
        for one in &seeks {
            for other in &seeks {
                let edition = Some(world.nodes[*other].edition);
                assert_eq!(world.heard_of(*one, *other, Some(*other)), edition, "{other} at {one}");
                assert_eq!(world.heard_of(*one, *other, None), edition, "{other} has found {one}");
                introduced += 1;
            }
        }
        received += world.received;
        retransmitted += world.retransmitted();
    }
    assert!(cuts > 0 && swallowed > 0 && severed > 0 && restarts > 0 && refused > 0, "every fault fired");
    assert!(received > 1_000 && retransmitted > 0, "{received} received, {retransmitted} sent again");
    assert!(introduced > 0);
}

fn joined(specs: Vec<Spec>) -> World {
    let mut world = World::new(specs, 1);
    world.run(2_000);
    assert!(world.is_joined());
    world
}

#[test]
fn the_node_with_the_smaller_number_dials_and_all_connections_are_made() {
    let world = joined(specs(3, 4));
    for (at, node) in world.nodes.iter().enumerate() {
        for peer in node.mesh.peers() {
            assert_eq!(peer.is_dialed, world.id(at) < peer.node);
            assert_eq!(peer.connections, (4, 4));
            assert_eq!((peer.version, peer.features, peer.last_error), (link::VERSION, 3, None));
            assert!(peer.link.round_trip().is_some());
        }
        assert!(node.log.is_empty(), "nothing to complain about");
    }
    let dials: u64 = world.nodes.iter().map(|node| node.dials).sum();
    assert_eq!(dials, 3 * 4);
}

/// Runs two nodes after `change`: they are never joined, and log the reason.
fn refused(change: impl Fn(&mut Spec), at_one: &str, at_other: &str) {
    for changed in [0, 1] {
        let mut specs = specs(2, 2);
        change(&mut specs[changed]);
        let mut world = World::new(specs, 3);
        world.run(30_000);
        assert!(world.nodes.iter().all(|node| node.mesh.peers().all(|peer| !peer.is_up)));
        let said = |part: &str| {
            let counts = [world.said(0, part), world.said(1, part)];
            assert!(counts.iter().all(|count| *count <= 3), "{part}: {counts:?} times in half a minute");
            counts.iter().sum::<usize>()
        };
        assert!(said(at_one) > 0 && said(at_other) > 0, "{:?} {:?}", world.nodes[0].log, world.nodes[1].log);
        let dials: u64 = world.nodes.iter().map(|node| node.dials).sum();
        assert!((10..60).contains(&dials), "{dials} attempts, ever more seldom");
        let with_error =
            world.nodes.iter().filter(|node| node.mesh.peers().any(|it| it.last_error.is_some()));
        assert!(with_error.count() > 0, "an operator who looks at the peer sees it");
    }
}

#[test]
fn a_node_with_another_secret_is_refused() {
    refused(
        |spec| spec.secret = "guess".into(),
        "the peer does not know the cluster's secret: check that the secret's file is the same",
        "the peer refuses this node: the cluster's secret is not the same on both: check the secret's file",
    );
}

/// A connection that is refused on the way to a link is dialed again, and no action is needed.
#[test]
fn a_restart_logs_nothing_but_that_the_node_cannot_be_reached() {
    for (at, seed) in [0, 1].into_iter().flat_map(|at| (0..20).map(move |seed| (at, seed))) {
        let mut world = World::new(specs(2, 4), seed);
        world.run(2_000);
        for _ in 0..3 {
            world.stop(at, true);
            world.run(200);
            world.start(at);
            world.run(10_000);
            assert!(world.is_joined());
        }
        let mut said = world.nodes.iter().flat_map(|node| &node.log);
        let other = said.find(|(_, _, reason)| !reason.contains("cannot be reached"));
        assert_eq!(other, None, "seed {seed}");
    }
}

#[test]
fn a_node_of_another_cluster_is_refused() {
    refused(|spec| spec.cluster = 2, "different clusters", "the peer refuses this node");
}

#[test]
fn a_node_with_this_nodes_name_is_refused() {
    let mut specs = specs(2, 2);
    // Both have one name, and the address of each is the other's configured address for its peer.
    for (spec, address) in specs.iter_mut().zip([1, 0]) {
        spec.name = "same".into();
        spec.peers = vec![("a".into(), address), ("b".into(), address), ("same".into(), address)];
    }
    let mut world = World::new(specs, 3);
    world.run(10_000);
    for node in [0, 1] {
        assert!(world.said(node, "give each node a name of its own") > 0, "{:?}", world.nodes[node].log);
        assert!(world.nodes[node].mesh.peers().all(|peer| !peer.is_up));
    }
}

#[test]
fn a_peer_at_the_address_of_another_is_not_taken_for_it() {
    let mut specs = specs(3, 2);
    for spec in &mut specs {
        spec.peers.iter_mut().for_each(|(_, address)| *address = (*address + 1) % 3);
    }
    let mut world = World::new(specs, 3);
    world.run(10_000);
    assert!((0..3).any(|node| world.said(node, "check the addresses of both") > 0));
    assert!(world.nodes.iter().all(|node| node.mesh.peers().all(|peer| !peer.is_up)));
}

/// The node that is there stays, the other learns the reason, and the log reports it.
#[test]
fn a_second_process_with_the_name_of_a_peer_does_not_disturb_it() {
    for name in ["n0", "n1"] {
        let mut specs = specs(2, 2);
        let at = specs.iter().position(|spec| spec.name == name).expect("it is one of them");
        let mut impostor = specs[at].clone();
        impostor.peers[0].1 = 1 - at;
        specs.push(impostor);
        let mut world = World::new(specs[..2].to_vec(), 3);
        world.run(2_000);
        let dials_in = world.id(at) < world.id(1 - at);
        let other = World::new(vec![specs[2].clone()], 9).nodes.remove(0);
        world.nodes.push(other);
        for _ in 0..300 {
            world.run(100);
            world.send(at, 1 - at, Lane::CLAIMS, 50).expect("the link is not disturbed");
        }
        world.run(2_000);
        let victim = world.nodes[1 - at].peers.values().next().expect("a peer");
        assert_eq!((victim.ups, victim.suspects, victim.restarts), (1, 0, 0));
        assert_eq!(victim.total, 300);
        if dials_in {
            assert_eq!(world.said(1 - at, "another process with this name"), 1);
            assert_eq!(world.said(2, "another process with this name"), 1);
            assert!(world.nodes[1 - at].mesh.counters().taken > 5);
        }
    }
}

/// A node that has stopped for good frees its name for the next process, and state about the one does not affect the
/// other.
#[test]
fn two_alternating_incarnations_of_a_peer_are_kept_apart() {
    let mut specs = specs(2, 1);
    specs.push(specs[1].clone());
    let mut world = World::new(specs, 3);
    // The third node is the second once more, at another address: each is cut off while the other is reachable.
    world.nodes[2].is_running = false;
    world.run(2_000);
    for round in 0..6 {
        let (there, gone) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        world.severed.clear();
        world.sever(0, gone);
        world.nodes[there].is_running = true;
        let node = world.id(there);
        let now = world.now;
        world.nodes[0].mesh.add_peer(now, "n1", &there.to_string());
        world.run(15_000);
        assert!(world.nodes[0].mesh.peer(node).is_some_and(|peer| peer.is_up), "round {round}");
        let before = world.received;
        world.send(0, there, Lane::CLAIMS, 50).expect("it is there");
        world.send(there, 0, Lane::CLAIMS, 50).expect("it is there");
        world.run(1_000);
        assert!(world.received >= before + 2);
    }
}

/// Pings also flush other output, and would hide a connection that is not reported when it has some.
#[test]
fn nothing_waits_for_a_ping() {
    let mut specs = specs(2, 3);
    for spec in &mut specs {
        spec.config.link.heartbeat = Duration::from_secs(10_000);
        spec.config.link.silence_max = Duration::from_secs(100_000);
    }
    let mut world = joined(specs);
    for round in 0..60_u32 {
        // These are more bytes than a window, on one lane and on all of them.
        for index in 0..30 {
            let lane = if round % 2 == 0 { Lane::assured(round as u8) } else { Lane::assured(index) };
            world.send(0, 1, lane, 300).expect("there is room");
        }
        if round % 5 == 4 {
            world.pass(20);
            world.cut();
        }
        world.run(6_000);
        assert!(world.is_joined());
        world.check_arrived(0, 1);
    }
}

#[test]
fn a_stalled_peer_slows_nobody_else() {
    let mut world = joined(specs(3, 2));
    // Node 2 reads from its sockets and consumes nothing.
    let (mut full, mut taken) = (0, 0);
    for round in 0..400_u32 {
        let lane = Lane::assured(round as u8);
        match world.send(0, 2, lane, 500) {
            Ok(()) => taken += 1,
            Err(Refused::Full { .. }) => full += 1,
            Err(other) => panic!("{other:?}"),
        }
        world.send(0, 1, lane, 500).expect("there is room towards those who read");
        world.pass(50);
        (0..2).for_each(|node| world.consume(node, usize::MAX));
    }
    assert!(full > 0 && taken > 0);
    let id = world.id(2);
    assert!(world.nodes[0].mesh.peer(id).is_some_and(|peer| peer.is_up), "slow is not dead");
    world.heal();
}

#[test]
fn a_peer_that_is_removed_and_added_again_starts_afresh() {
    let mut world = joined(specs(2, 2));
    world.send(0, 1, Lane::CLAIMS, 50).expect("it is there");
    world.run(100);
    let (id, now) = (world.id(1), world.now);
    world.nodes[0].mesh.remove_peer(now, id);
    assert_eq!(world.nodes[0].mesh.send(now, id, Lane::CLAIMS, vec![0; 20].into()), Err(Refused::Down));
    world.run(8_000);
    assert_eq!(world.nodes[0].mesh.peers().count(), 0);
    world.stop(0, true);
    world.start(0);
    world.run(8_000);
    assert!(world.is_joined());
    assert_eq!(world.nodes[1].peers.values().next().map(|peer| peer.restarts), Some(1));
    world.heal();
}

/// Credit returned for frames of a removed link does not count for the next link with the same peer.
#[test]
fn credit_of_a_removed_link_does_not_count_for_the_next() {
    let mut world = joined(specs(2, 2));
    for _ in 0..3 {
        world.send(0, 1, Lane::CLAIMS, 50).expect("it is there");
    }
    world.pass(1_000);
    let (id, now) = (world.id(0), world.now);
    let mesh = &mut world.nodes[1].mesh;
    let held = |mesh: &Mesh| mesh.peer(id).map(|peer| peer.link.unconsumed());
    assert!(held(mesh) > Some(0));
    mesh.remove_peer(now, id);
    mesh.add_peer(now, "n0", "0");
    world.consume(1, usize::MAX);
    assert_eq!(held(&world.nodes[1].mesh), Some(0));
}

#[test]
fn unknown_nodes_are_disconnected_and_logged_at_intervals() {
    let mut world = joined(specs(2, 2));
    let now = world.now;
    for _ in 0..1_000 {
        assert_eq!(world.unauthenticated(0, &[b"GET / HTTP/1.1\r\n\r\n"]), (true, Vec::new()));
        assert!(world.unauthenticated(0, &[b"MLNK\xff\xff"]).0);
        assert!(world.unauthenticated(0, &[b"MLNK\x05\x00\x63\x00\x63\x00\x00"]).0);
    }
    let lines = world.nodes[0].log.iter().filter(|(at, who, _)| *at >= now && who.starts_with("10.9.9.9"));
    assert_eq!(lines.count(), 3, "one for each reason");
    // Silent connections take the available slots, until others come or they time out.
    for _ in 0..20 {
        assert!(!world.unauthenticated(0, &[]).0);
    }
    assert_eq!(world.nodes[0].mesh.counters().unauthenticated_closed, 12);
    assert!(world.is_joined(), "a joined node stays joined");
    world.run(6_000);
    assert!(!world.unauthenticated(0, &[]).0, "there are slots again");
    assert_eq!(world.nodes[0].mesh.counters().late, 8);
    world.send(0, 1, Lane::CLAIMS, 50).expect("it is there");
    world.heal();
}

/// Closed connections are opened again at once.
#[test]
fn many_silent_connections_keep_no_node_out() {
    for addresses in 1..=4 {
        let mut world = World::new(specs(2, 2), u64::from(addresses));
        let dialed = usize::from(world.id(0) < world.id(1));
        for round in 0..500_u32 {
            for number in 0..8 {
                world.unauthenticated_from(((round + number) % addresses) as u8, dialed, &[]);
            }
            world.run(10);
            if world.is_joined() {
                break;
            }
        }
        assert!(world.is_joined(), "{addresses} addresses keep two nodes apart");
        assert!(world.nodes[dialed].mesh.counters().unauthenticated_closed > 0);
    }
}

#[test]
fn unauthenticated_connections_are_logged_at_intervals_with_the_number_that_made_room() {
    let mut world = joined(specs(2, 2));
    let lines = |world: &World| world.said(0, "made room");
    for at in [0_u8, 1] {
        // One more address connects, and has fewer slots than the other.
        (0..40).for_each(|number| drop(world.unauthenticated_from(if number == 39 { 7 } else { 3 }, 0, &[])));
        assert_eq!(lines(&world), usize::from(at) + 1);
        world.run(61_000);
    }
    let told = world.nodes[0].log.iter().filter(|line| line.2.contains("made room"));
    let told: Vec<_> = told.map(|(_, who, what)| (who.as_str(), what.as_str())).collect();
    assert_eq!(told, [("10.9.9.3", "1 made room"), ("10.9.9.3", "32 made room")]);
    assert_eq!(world.nodes[0].mesh.counters().unauthenticated_closed, 64);
}

#[test]
fn one_address_has_its_share_of_slots() {
    let mut specs = specs(2, 2);
    specs[0].config.handshakes_per_address = 3;
    let mut world = World::new(specs, 5);
    let before = world.nodes[0].mesh.connections();
    for _ in 0..10 {
        world.unauthenticated_from(1, 0, &[]);
    }
    assert_eq!(world.nodes[0].mesh.connections() - before, 3);
    (2..=6).for_each(|last| drop(world.unauthenticated_from(last, 0, &[])));
    assert_eq!(world.nodes[0].mesh.connections() - before, 8);
    assert_eq!(world.nodes[0].mesh.counters().unauthenticated_closed, 7, "only those beyond the share");
}

#[test]
fn a_node_at_rest_wakes_up_by_itself_twice_in_a_heartbeat_at_most_for_all_of_its_peers() {
    let mut world = joined(specs(5, 4));
    world.run(3_000);
    let wakeups = |world: &World| world.nodes.iter().map(|node| node.wakeups).collect::<Vec<_>>();
    let before = wakeups(&world);
    world.run(60_000);
    for (before, after) in before.iter().zip(wakeups(&world)) {
        // The node wakes up once for all pings, and once in vain when a peer's ping has arrived before its own was due.
        assert!((55..=125).contains(&(after - before)), "{} in a minute", after - before);
    }
    assert!(world.is_joined());
}
