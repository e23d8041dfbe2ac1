//! Times of heartbeats.

use super::owner::{Owner, config};
use super::*;
use crate::wire::Appended;

/// Groups that were started at different times send their heartbeats at the same ones.
#[test]
fn the_heartbeats_of_all_groups_of_a_node_go_together() {
    for seed in 1..6 {
        let mut owner = Owner::leads_another(Config { seed, ..config() });
        owner.turns(seed as usize * 7);
        let mut beats = Vec::new();
        owner.is_answered = false;
        for _ in 0..1_000 {
            assert!(owner.replica.timeout() >= Time(owner.now), "it is not busy");
            owner.turns(1);
            for (call, body) in sent(&mut owner.replica) {
                let Body::Append(append) = body else { panic!("{body:?}") };
                assert_eq!(append.entries, []);
                beats.push(owner.now);
                receive(&mut owner.replica, call, Body::Appended(Appended::All));
            }
        }
        let interval = crate::HEARTBEAT.as_micros() as u64;
        let (first, last) = (beats[0].div_ceil(interval), beats[beats.len() - 1] / interval);
        assert_eq!(beats, (first..=last).map(|at| at * interval).collect::<Vec<_>>(), "seed {seed}");
        assert!(beats.len() >= 19 && owner.status().role == Role::Leader);
    }
}
