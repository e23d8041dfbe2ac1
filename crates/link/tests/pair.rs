//! Two links joined by connections that are slow, cut at any byte and made anew, and peers that forget, against what a link promises.

mod network;
mod random;

use link::{Class, Config, Lane, Refused};
use network::{Happened, Pair, Side, config, run};
use random::Random;

/// Says which seed it was when a run fails.
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
fn whatever_happens_to_connections_frames_arrive_once_and_in_order() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("MERIDIAN_LINK_SEED").unwrap_or(0);
    let mut all = Happened::default();
    for seed in first..first + number("MERIDIAN_LINK_SEEDS").unwrap_or(300) {
        let _seen = Seen(seed);
        all.add(&run(seed, &config()));
    }
    let Happened { cuts, restarts, retransmitted, refused, gone_on, stale_credits } = all;
    assert!(cuts > 0 && restarts > 0 && retransmitted > 0 && refused > 0, "every fault fired");
    assert!(gone_on > 0 && stale_credits > 0, "peers go on, and credit of before is given back");
}

/// The lesson of clusters that fed back on themselves: twice as much as fits is refused at the door, and nothing is sent twice.
#[test]
fn overload_is_refused_at_the_door_and_never_sent_again() {
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
        // The other side deals with half of what is offered.
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
    for lane in [Lane::CLAIMS, Lane::ROUTES, Lane::assured(1), Lane::CONTROL] {
        pair.send(Side::A, lane, 100).expect("there is room");
        pair.carry_all();
        assert_eq!(pair.delivered(Side::B, lane), 1);
    }
    assert!(pair.link(Side::A).counters().of(Class::Assured).stalled > 0);
    assert_eq!(pair.delivered(Side::B, Lane::assured(0)), stuck);
    pair.heal(&mut random);
}

/// Acknowledgements, leases and claims overtake messages that are waiting already.
#[test]
fn what_is_urgent_leaves_first() {
    let mut random = Random::new(3);
    let mut pair = Pair::new(Config::default(), 1, &mut random);
    pair.connect_all(&mut random);
    let order = [Lane::CONTROL, Lane::CLAIMS, Lane::ROUTES, Lane::assured(4), Lane::best_effort(4)];
    for lane in order.iter().rev() {
        pair.send(Side::A, *lane, 100).expect("there is room");
    }
    pair.carry_all();
    assert_eq!(pair.arrivals(Side::B), order);
    pair.heal(&mut random);
}

/// Others know first that a peer has begun anew: what is sent from then on arrives there, and what was sent before does not.
#[test]
fn what_is_for_the_next_life_of_a_peer_waits_for_it() {
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
    // Not for the life after that.
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::assured(2)), 0);
}

/// The new life is that of the same process, which answers: what it is given then is not for the one after it.
#[test]
fn what_was_for_the_next_life_of_a_peer_that_goes_on_is_for_this_one() {
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
    pair.send(Side::A, Lane::assured(1), 100).expect("there is room");
    pair.restart(Side::B, &mut random);
    pair.heal(&mut random);
    assert_eq!(pair.delivered(Side::B, Lane::assured(1)), 0);
    assert_eq!(pair.link(Side::A).counters().of(Class::Assured).lost, 1);
}

/// A peer takes what it is sent, and nothing of it is heard before it begins anew: what is for its next life comes to that only.
#[test]
fn what_is_for_the_next_life_of_a_peer_is_not_given_to_one_that_does_not_answer() {
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

/// A peer answers a ping, and is expected to restart before the answer is there: it may have restarted since.
#[test]
fn an_answer_to_a_ping_from_before_a_restart_was_expected_says_nothing() {
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

/// The peer has restarted, and what its previous incarnation sent is consumed after that: its lanes have as much credit as before, and no more.
#[test]
fn credit_of_a_previous_incarnation_counts_no_more() {
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
    // Three frames of each incarnation wait: those of the previous one are consumed first.
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

/// Pings keep an idle link alive and measure how far the peer is.
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

/// One sign of life in each direction over each connection, whenever they were made, and one for the round trip.
#[test]
fn a_link_at_rest_says_no_more_than_it_has_to_and_wakes_up_once_for_all_of_it() {
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
    // Two pings and two answers over the first connection, one and one over the other three.
    let bytes = bytes - before.1;
    assert!((59 * 10 * PING..=62 * 10 * PING).contains(&bytes), "{bytes}");
    assert!(pair.link(Side::A).round_trip().is_some() && pair.link(Side::B).round_trip().is_some());
}

/// Bytes of a ping, or its answer.
const PING: u64 = 20;
