//! Checks of `fuzz/damage.rs` on good records and parts that were changed.

#[path = "../fuzz/damage.rs"]
#[allow(dead_code, reason = "this entry point is for the fuzzer only")]
mod damage;
#[path = "../../mqtt/fuzz/mutate.rs"]
#[allow(dead_code, reason = "the codec's own fuzzing uses the rest")]
mod mutate;

use random::Random;
use shard::PartId;

/// Number of rounds for each fixture, so that a run takes seconds.
const ROUNDS: u64 = 300;

#[test]
fn a_damaged_record_is_refused_or_does_no_harm() {
    let of_nodes = fixtures(include_str!("golden/commands_of_nodes.txt"));
    let with_numbers = fixtures(include_str!("golden/commands_with_numbers.txt"));
    let all = fixtures(include_str!("golden/commands.txt")).into_iter().chain(of_nodes).chain(with_numbers);
    for (name, bytes) in all {
        for round in 0..ROUNDS {
            let damaged = change(&mut Random::new(round), &bytes);
            let checked = std::panic::catch_unwind(|| damage::check_batch(&damaged));
            assert!(checked.is_ok(), "{name}, round {round}: {damaged:02x?}");
        }
    }
}

#[test]
fn a_damaged_part_is_refused_or_does_no_harm() {
    let with_nodes = fixtures(include_str!("golden/parts_with_nodes.txt"));
    let with_numbers = fixtures(include_str!("golden/parts_with_numbers.txt"));
    let all = fixtures(include_str!("golden/parts.txt")).into_iter().chain(with_nodes).chain(with_numbers);
    for (name, bytes) in all {
        let part = PartId::from_u32(name.parse().expect("a number"));
        for round in 0..10 * ROUNDS {
            let damaged = change(&mut Random::new(round), &bytes);
            let checked = std::panic::catch_unwind(|| damage::check_part(part, &damaged));
            assert!(checked.is_ok(), "{name}, round {round}: {damaged:02x?}");
        }
    }
}

/// Changes or removes a few bytes, more often those of numbers than those of texts.
fn change(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7F, 0xFF][random.below(4)],
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => bytes[at] = random.byte(),
            4 => bytes.truncate(at + 1),
            _ => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill(0xFF);
            }
        }
    }
    bytes
}

fn fixtures(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut fixtures: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("  "), fixtures.last_mut()) {
            (Some(digits), Some((_, bytes))) => {
                let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
                bytes.extend((0..digits.len()).step_by(2).map(byte));
            }
            _ => fixtures.push((line.to_owned(), Vec::new())),
        }
    }
    assert!(!fixtures.is_empty());
    fixtures
}
