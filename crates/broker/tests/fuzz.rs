//! The checks of `fuzz/check.rs` on generated programs, on those of `fuzz/corpus/worker` and on combinations of them,
//! and those of `fuzz/wire.rs` on bytes of other nodes. Each runs for two seconds, or for the number in the environment
//! variable `MERIDIAN_FUZZ_SECONDS`. `MERIDIAN_FUZZ_SEED` gives another run than the usual one; `MERIDIAN_FUZZ_SAVE`
//! names a directory for a program that failed.

#[path = "../fuzz/access.rs"]
mod access;
#[path = "../fuzz/check.rs"]
mod check;
#[path = "../fuzz/generate.rs"]
mod generate;
#[path = "../../mqtt/fuzz/mutate.rs"]
#[allow(dead_code, reason = "the codec's own fuzzing uses the rest")]
mod mutate;
#[path = "../fuzz/peer.rs"]
mod peer;
#[path = "../fuzz/program.rs"]
mod program;
#[path = "../fuzz/wire.rs"]
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use random::Random;

/// Maximum number of rounds of a run without a requested length.
const ROUNDS_MAX: u64 = 20_000;
const ROUNDS_MIN: u64 = 200;
const SECONDS: u64 = 2;

#[global_allocator]
static ALLOCATOR: wire::Counting = wire::Counting;

#[test]
fn a_node_stays_consistent_and_ends_empty_whatever_clients_do() {
    let seed = variable("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let asked = variable("MERIDIAN_FUZZ_SECONDS");
    let rounds_max = if asked.is_some() { u64::MAX } else { ROUNDS_MAX };
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS));
    let corpus = corpus();
    for (name, input) in &corpus {
        run(input, || format!("corpus/worker/{name}"));
    }
    let mut round = 0;
    while round < rounds_max && (round < ROUNDS_MIN || Instant::now() < end) {
        // Each round has its own generator, so that a failure can be run alone.
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(round));
        let mut input = generate::program(&mut random);
        if random.below(2) == 0 {
            let known = &corpus[random.below(corpus.len())].1;
            input = generate::cross(&mut random, known, &input);
        }
        run(&input, || format!("seed {seed} round {round}"));
        round += 1;
    }
    assert!(round >= ROUNDS_MIN);
}

/// A node of the cluster may be of another version, or its memory may be damaged.
#[test]
fn bytes_of_another_node_are_decoded_or_refused_in_memory_that_their_length_bounds() {
    let seed = variable("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(variable("MERIDIAN_FUZZ_SECONDS").unwrap_or(SECONDS));
    let corpus = wire::corpus();
    corpus.iter().for_each(|form| wire::check_counts(form));
    let mut round = 0;
    while round < ROUNDS_MIN || Instant::now() < end {
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(round));
        let mut form = random.pick(&corpus).clone();
        let other = random.pick(&corpus);
        wire::mutate(&mut random, &mut form, other);
        if let Err(panic) = catch_unwind(|| wire::check(&form)) {
            let hex: String = form.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("seed {seed} round {round}: {hex}");
            std::panic::resume_unwind(panic);
        }
        round += 1;
    }
}

/// Programs mean the same after encoding and decoding, or combinations would not resemble their parents.
#[test]
fn programs_are_read_as_they_were_written() {
    for round in 0..50 {
        let input = generate::program(&mut Random::new(round));
        let (variant, ops) = program::decode(&input);
        assert_eq!(generate::encode(variant, &ops), input);
    }
}

fn run(input: &[u8], whence: impl Fn() -> String) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check::check(input))) {
        eprintln!("{}", whence());
        if let Ok(directory) = std::env::var("MERIDIAN_FUZZ_SAVE") {
            let file = Path::new(&directory).join("failed");
            std::fs::write(&file, input).expect("the program can be saved");
        } else {
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{hex}");
        }
        std::panic::resume_unwind(panic);
    }
}

/// Files by name, in the order of their names; none is empty.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/worker");
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut corpus: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let entry = entry.expect("a directory entry");
            let bytes = std::fs::read(entry.path()).expect("a readable file");
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect();
    corpus.sort();
    assert!(!corpus.is_empty(), "the corpus is missing");
    corpus
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
