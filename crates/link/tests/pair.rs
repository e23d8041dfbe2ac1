//! Two links, checked against their guarantees. Their connections are slow, cut at any byte and made again, and the
//! peers forget.

mod network;

use std::time::Duration;

use link::{Class, Config, Lane, Refused, Time};
use network::{Happened, Pair, Side, config, run};
use random::Random;

/// Prints the seed when a run fails.
struct Seen(u64);

impl Drop for Seen {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "again: MERIDIAN_LINK_SEED={} MERIDIAN_LINK_SEEDS=1 cargo test -p link --test pair",
                self.0
            );
        }
    }
}

#[test]
fn frames_arrive_once_and_in_order_despite_lost_connections() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("MERIDIAN_LINK_SEED").unwrap_or(0);
    let mut all = Happened::default();
    for seed in first..first + number("MERIDIAN_LINK_SEEDS").unwrap_or(300) {
        let _seen = Seen(seed);
        all.add(&run(seed, &config()));
    }
    let Happened { cuts, restarts, retransmitted, refused, for_shards, unsupported, gone_on, stale_credits } =
        all;
    assert!(cuts > 0 && restarts > 0 && retransmitted > 0 && refused > 0, "every fault fired");
    assert!(for_shards > 0 && unsupported > 0, "peers of both versions were met");
    assert!(
        gone_on > 0 && stale_credits > 0,
        "peers continue, and credit of previous incarnations is returned"
    );
}

/// Checks that twice the possible load is refused at once, and that nothing is sent twice. Clusters have collapsed
/// because retransmissions added load.
#[test]
fn overload_is_refused_at_once_and_never_sent_again() {
    let mut random = Random::new(1);
    let mut pair = Pair::new(config(), 3, &mut random);
    pair.connect_all(&mut random);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..5_000_u32 {
        for lane in [Lane::assured(round as u8), Lane::best_effort(round as u8)] {
            match pair.send(Side::A, lane, 500) {
                Ok(()) => taken += 1,
                Err(Refused::Full { .. }) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        // The other side consumes half of the offered load.
        pair.carry_all();
        pair.consume(Side::B, 1);
        pair.check();
    }
    assert!(refused > taken / 2, "{taken} taken, {refused} refused");
    assert_eq!(pair.retransmitted(), 0);
    pair.heal(&mut random);
}

#[test]
fn a_lane_without_credit_stops_no_other() {
    let mut random = Random::new(2);
    let mut pair = Pair::new(config(), 1, &mut random);
    pair.connect_all(&mut random);
    for _ in 0..20 {
        pair.send(Side::A, Lane::assured(0), 900).expect("there is room");
    }
    pair.carry_all();
    let stuck = pair.delivered(Side::B, Lane::assured(0));
    assert_eq!(stuck, 3, "a frame may begin within the window");
    let others = [Lane::agreement(0), Lane::requests(0), Lane::assured(1)];
    for lane in [Lane::CLAIMS, Lane::ROUTES, Lane::CONTROL].into_iter().chain(others) {
        pair.send(Side::A, lane, 100).expect("there is room");
        pair.carry_all();
        assert_eq!(pair.delivered(Side::B, lane), 1);
    }
    assert!(pair.link(Side::A).counters().of(Class::Assured).stalled > 0);
    assert_eq!(pair.delivered(Side::B, Lane::assured(0)), stuck);
    pair.heal(&mut random);
}

/// Acknowledgements, leases, claims and what shards need overtake messages that are waiting already.
#[test]
fn urgent_frames_leave_first() {
    let mut random = Random::new(3);
    let mut pair = Pair::new(Config::default(), 1, &mut random);
    pair.connect_all(&mut random);
    let for_shards = [Lane::agreement(4), Lane::requests(4)];
    let messages = [Lane::assured(4), Lane::best_effort(4)];
    let order = [&[Lane::CONTROL, Lane::CLAIMS][..], &for_shards, &[Lane::ROUTES], &messages].concat();
    for lane in order.iter().rev() {
        pair.send(Side::A, *lane, 100).expect("there is room");
    }
    pair.carry_all();
    assert_eq!(pair.arrivals(Side::B), order);
    pair.heal(&mut random);
}

/// A connection that carries requests is lost: each request arrives once and in order. Raft messages are not sent
/// again, and those that come later are in order.
#[test]
fn requests_survive_a_lost_connection_and_raft_messages_do_not() {
    let mut random = Random::new(11);
    let mut pair = Pair::new(Config::default(), 2, &mut random);
    pair.connect_all(&mut random);
    let lanes = [Lane::agreement(3), Lane::requests(3)];
    let send_both = |pair: &mut Pair| {
        lanes.iter().for_each(|lane| pair.send(Side::A, *lane, 100).expect("there is room"));
    };
    let delivered = |pair: &Pair| lanes.map(|lane| pair.delivered(Side::B, lane));
    send_both(&mut pair);
    pair.carry_all();
    assert_eq!(delivered(&pair), [1, 1]);
    // The first is on the way, and the second waits in the link.
    send_both(&mut pair);
    pair.write_to_wire(1);
    send_both(&mut pair);
    pair.cut_at(1);
    assert!(pair.link(Side::A).is_up(), "the peer is reachable without that connection");
    send_both(&mut pair);
    pair.connect_all(&mut random);
    assert_eq!(delivered(&pair), [2, 4]);
    let counters = pair.link(Side::A).counters();
    let figures = |class| (counters.of(class).lost, counters.of(class).retransmitted);
    assert_eq!([figures(Class::Agreement), figures(Class::Requests)], [(2, 0), (0, 1)]);
    pair.heal(&mut random);
}

/// Raft messages for a suspect peer are useless when it is back. Requests wait.
#[test]
fn raft_messages_for_a_suspect_peer_are_refused() {
    let mut random = Random::new(12);
    let mut pair = Pair::new(Config::default(), 2, &mut random);
    assert_eq!(pair.send(Side::A, Lane::requests(0), 9), Err(Refused::Unsupported), "its version is unknown");
    pair.connect_all(&mut random);
    pair.cut_at(1);
    pair.send(Side::A, Lane::agreement(0), 100).expect("the peer is up");
    pair.cut_at(0);
    assert_eq!(pair.link(Side::A).waiting(link::Time(0), Class::Agreement).0, 0, "it was dropped");
    assert_eq!(pair.send(Side::A, Lane::agreement(0), 100), Err(Refused::Down));
    pair.send(Side::A, Lane::requests(0), 100).expect("it waits");
    pair.connect_all(&mut random);
    let arrived = [Lane::agreement(0), Lane::requests(0)].map(|lane| pair.delivered(Side::B, lane));
    assert_eq!(arrived, [0, 1]);
    // Requests are not for the peer's next incarnation: it does not know them.
    pair.expect_restart(Side::A);
    pair.send(Side::A, Lane::requests(1), 100).expect("there is room");
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::requests(1)), 0);
}

#[test]
fn the_buffer_of_requests_is_their_own() {
    let mut random = Random::new(13);
    let mut pair = Pair::new(config(), 1, &mut random);
    pair.connect_all(&mut random);
    let mut sent = 0;
    let refused = loop {
        match pair.send(Side::A, Lane::requests(sent), 900) {
            Ok(()) => sent += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((sent, refused), (12, Refused::Full { bytes: 10_800 }), "the last one may exceed the bound");
    for lane in [Lane::agreement(0), Lane::ROUTES, Lane::assured(0)] {
        pair.send(Side::A, lane, 900).expect("there is room");
    }
    assert_eq!(pair.link(Side::A).counters().of(Class::Requests).refused, 1);
    pair.heal(&mut random);
}

/// The requests of one worker are much smaller than that of another one, and there are always some.
#[test]
fn a_large_request_is_not_refused_because_of_small_ones() {
    let mut random = Random::new(17);
    let mut pair = Pair::new(config(), 1, &mut random);
    pair.connect_all(&mut random);
    for _ in 0..9 {
        pair.send(Side::A, Lane::requests(0), 1_000).expect("there is room");
    }
    assert_eq!(pair.send(Side::A, Lane::requests(1), 3_900), Ok(()));
    assert_eq!(pair.send(Side::A, Lane::requests(0), 1), Err(Refused::Full { bytes: 12_900 }));
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::requests(1)), 1);
}

/// A node of version 1 would end a connection on which it finds a lane that it does not know.
#[test]
fn a_peer_of_version_1_gets_no_lanes_for_shards() {
    let mut random = Random::new(14);
    let mut pair = Pair::new(config(), 3, &mut random);
    pair.version = 1;
    pair.connect_all(&mut random);
    for lane in [Lane::agreement(0), Lane::requests(0)] {
        assert_eq!(pair.send(Side::A, lane, 10), Err(Refused::Unsupported));
    }
    pair.send(Side::A, Lane::ROUTES, 10).expect("there is room");
    pair.cut(&mut random);
    pair.heal(&mut random);
    assert_eq!(pair.lanes_written(), (0..35).collect::<Vec<u8>>(), "resume points of the known lanes");
    // The node is upgraded.
    pair.restart(Side::B, &mut random);
    pair.version = link::VERSION;
    pair.connect_all(&mut random);
    pair.send(Side::A, Lane::requests(0), 10).expect("the peer has the lane now");
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::requests(0)), 1);
}

/// Other nodes learn first that a peer has restarted: frames sent from then on arrive there, and frames sent before do
/// not.
#[test]
fn frames_for_the_next_incarnation_of_a_peer_wait_for_it() {
    let mut random = Random::new(6);
    let mut pair = Pair::new(config(), 2, &mut random);
    pair.connect_all(&mut random);
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    pair.send(Side::A, Lane::CLAIMS, 100).expect("there is room");
    pair.expect_restart(Side::A);
    for lane in [Lane::assured(1), Lane::assured(2), Lane::CLAIMS, Lane::assured(2)] {
        pair.send(Side::A, lane, 100).expect("there is room");
    }
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    let arrived = [1, 2].map(|lane| pair.delivered(Side::B, Lane::assured(lane)));
    assert_eq!((arrived, pair.delivered(Side::B, Lane::CLAIMS)), ([1, 2], 0));
    assert_eq!(pair.link(Side::A).counters().of(Class::Assured).lost, 1);
    // The incarnation after that receives nothing.
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::assured(2)), 0);
}

/// The new incarnation turns out to be the same process, which answers: frames sent to it then are not for the one
/// after it.
#[test]
fn frames_for_the_next_incarnation_go_to_a_peer_that_continues() {
    let mut random = Random::new(7);
    let mut pair = Pair::new(config(), 2, &mut random);
    pair.connect_all(&mut random);
    pair.pass(1);
    pair.expect_restart(Side::A);
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    pair.carry_to(Side::B);
    assert_eq!(pair.delivered(Side::B, Lane::assured(1)), 0, "it has not answered yet");
    pair.carry_all();
    assert_eq!(pair.delivered(Side::B, Lane::assured(1)), 1);
    pair.pass_until_acknowledged();
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::assured(1)), 0);
    assert_eq!(pair.link(Side::A).counters().of(Class::Assured).lost, 1);
}

/// A peer receives bytes but does not answer before it restarts: frames for its next incarnation arrive only there.
#[test]
fn frames_for_the_next_incarnation_are_not_sent_to_a_peer_that_does_not_answer() {
    let mut random = Random::new(8);
    let mut pair = Pair::new(config(), 1, &mut random);
    pair.connect_all(&mut random);
    pair.pass(1);
    pair.expect_restart(Side::A);
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    pair.send(Side::A, Lane::ROUTES, 100).expect("there is room");
    pair.carry_to(Side::B);
    let arrived = |pair: &Pair| [Lane::assured(1), Lane::ROUTES].map(|lane| pair.delivered(Side::B, lane));
    assert_eq!(arrived(&pair), [0, 1]);
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    assert_eq!(arrived(&pair), [1, 0]);
}

/// A peer answers a ping, and is expected to restart before the answer arrives: it may have restarted since.
#[test]
fn a_pong_to_a_ping_from_before_an_expected_restart_proves_nothing() {
    let mut random = Random::new(9);
    let mut pair = Pair::new(Config::default(), 1, &mut random);
    pair.connect_all(&mut random);
    pair.pass(2_000);
    pair.carry_to(Side::B);
    pair.pass(1);
    pair.expect_restart(Side::A);
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    let measured = pair.link(Side::A).round_trip();
    pair.carry_to(Side::A);
    assert_ne!(pair.link(Side::A).round_trip(), measured, "the answer has come");
    pair.carry_to(Side::B);
    assert_eq!(pair.delivered(Side::B, Lane::assured(1)), 0, "the peer has not been asked since");
    pair.carry_all();
    assert_eq!(pair.delivered(Side::B, Lane::assured(1)), 1);
}

/// The peer has restarted, and what its previous incarnation sent is consumed after that: its lanes have as much credit
/// as before, and no more.
#[test]
fn credit_of_a_previous_incarnation_does_not_count() {
    let mut random = Random::new(10);
    let mut pair = Pair::new(config(), 1, &mut random);
    pair.connect_all(&mut random);
    let sends = |pair: &mut Pair| {
        for _ in 0..10 {
            pair.send(Side::A, Lane::assured(0), 900).expect("there is room");
        }
        pair.carry_all();
        pair.check();
    };
    sends(&mut pair);
    pair.restart(Side::A, &mut random);
    pair.connect_all(&mut random);
    sends(&mut pair);
    assert_eq!(pair.delivered(Side::B, Lane::assured(0)), 3, "a frame may begin within the window");
    // Three frames of each incarnation wait. Those of the previous one are consumed first.
    pair.consume(Side::B, 3);
    pair.carry_all();
    pair.check();
    assert_eq!(pair.delivered(Side::B, Lane::assured(0)), 3);
    pair.consume(Side::B, 1);
    pair.carry_all();
    pair.check();
    assert_eq!(pair.delivered(Side::B, Lane::assured(0)), 4);
    pair.heal(&mut random);
}

#[test]
fn a_silent_peer_is_suspect_and_its_frames_wait() {
    let mut random = Random::new(4);
    let mut pair = Pair::new(Config::default(), 2, &mut random);
    pair.connect_all(&mut random);
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    pair.pass_in_silence(6_000);
    assert!(!pair.link(Side::A).is_up());
    assert_eq!(pair.link(Side::A).counters().silent, 2);
    assert_eq!(pair.send(Side::A, Lane::CONTROL, 10), Err(Refused::Down));
    pair.send(Side::A, Lane::assured(1), 100).expect("it waits for the peer");
    pair.heal(&mut random);
}

/// Pings keep an idle link up and measure the round trip to the peer.
#[test]
fn an_idle_link_stays_up() {
    let mut random = Random::new(5);
    let mut pair = Pair::new(Config::default(), 2, &mut random);
    pair.connect_all(&mut random);
    for _ in 0..100 {
        pair.pass(500);
        pair.carry_all();
    }
    assert!(pair.link(Side::A).is_up() && pair.link(Side::B).is_up());
    assert_eq!(pair.link(Side::A).counters().silent, 0);
    assert!(pair.link(Side::A).round_trip().is_some());
    // An idle minute costs a few dozen records.
    assert!(pair.link(Side::A).counters().bytes_sent < 12_000);
}

/// Frames wait for their acknowledgement for a moment, and share it. All are acknowledged at once when the peer wants
/// one of them to be.
#[test]
fn frames_of_a_moment_share_an_acknowledgement() {
    let mut random = Random::new(8);
    let config = Config { heartbeat: Duration::from_secs(100), ..Config::default() };
    let mut pair = Pair::new(config, 2, &mut random);
    pair.connect_all(&mut random);
    let send = |pair: &mut Pair, lane| {
        pair.send(Side::A, lane, 100).expect("there is room");
        pair.carry_all();
        assert!(pair.delivered(Side::B, lane) > 0);
    };
    let waiting = |pair: &Pair| {
        let all = [Class::Claims, Class::Requests, Class::Routes, Class::Assured];
        all.map(|class| pair.link(Side::A).waiting(pair.now, class).1)
    };
    for lane in [Lane::CLAIMS, Lane::requests(1), Lane::requests(2), Lane::assured(3)] {
        send(&mut pair, lane);
        pair.pass(1);
        pair.carry_all();
    }
    assert_eq!(waiting(&pair), [1, 2, 0, 1]);
    pair.pass_until_acknowledged();
    assert_eq!(waiting(&pair), [0; 4]);
    send(&mut pair, Lane::requests(1));
    send(&mut pair, Lane::ROUTES);
    assert_eq!(waiting(&pair), [0, 1, 1, 0]);
    pair.acknowledge(Side::B);
    pair.carry_all();
    assert_eq!(waiting(&pair), [0; 4]);
    // Many bytes do not wait.
    for _ in 0..64 {
        assert!(waiting(&pair)[3] < 64);
        pair.send(Side::A, Lane::assured(3), 1024).expect("there is room");
        pair.carry_all();
    }
    assert_eq!(waiting(&pair), [0; 4]);
    assert_eq!(pair.link(Side::B).acknowledge_at(), Time::NEVER);
}

/// Each connection carries one ping or answer in each direction, however old it is. One more measures the round trip.
#[test]
fn an_idle_link_sends_the_minimum_and_wakes_up_once_for_all_of_it() {
    let mut random = Random::new(6);
    let mut pair = Pair::new(Config::default(), 4, &mut random);
    for _ in 0..40 {
        pair.dial(&mut random);
        pair.pass(170);
        pair.carry_all();
    }
    let before = pair.spent();
    for _ in 0..6_000 {
        pair.pass(10);
        pair.carry_all();
    }
    let (wakeups, bytes) = pair.spent();
    let wakeups = [wakeups[0] - before.0[0], wakeups[1] - before.0[1]];
    assert!(wakeups.iter().all(|count| *count <= 62), "in a minute: {wakeups:?}");
    // Two pings and two answers cross the first connection, one and one the other three.
    let bytes = bytes - before.1;
    assert!((59 * 10 * PING..=62 * 10 * PING).contains(&bytes), "{bytes}");
    assert!(pair.link(Side::A).round_trip().is_some() && pair.link(Side::B).round_trip().is_some());
}

/// Bytes of a ping, or of its answer.
const PING: u64 = 20;
