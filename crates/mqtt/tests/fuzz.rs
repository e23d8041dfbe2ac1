//! Runs the checks of `fuzz/check.rs` on mutations of `fuzz/corpus/decode`, for two seconds or for
//! `MERIDIAN_FUZZ_SECONDS` seconds. `MERIDIAN_FUZZ_SEED` selects another run than the usual one.

#[path = "../fuzz/check.rs"]
mod check;
#[path = "../fuzz/mutate.rs"]
mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use mutate::mutate;
use random::Random;

/// Maximum number of rounds of a run without a requested duration.
const ROUNDS_MAX: u64 = 1_500_000;
const SECONDS: u64 = 2;

#[test]
fn mutations_of_the_corpus_find_no_contradiction() {
    let seed = variable("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let asked = variable("MERIDIAN_FUZZ_SECONDS");
    let rounds_max = if asked.is_some() { u64::MAX } else { ROUNDS_MAX };
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS));
    let corpus = corpus();

    for (name, input) in &corpus {
        run(input, || format!("corpus/decode/{name}"));
    }
    let mut round = 0;
    while round < rounds_max && (round % 256 != 0 || Instant::now() < end) {
        // Each round has its own generator, so that a failure can be run alone.
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(round));
        let [base, other] = [0, 1].map(|_| &corpus[random.below(corpus.len())].1);
        let mut stream = base[1..].to_vec();
        mutate(&mut random, &mut stream, &other[1..]);
        if random.below(4) == 0 {
            stream.extend_from_slice(&other[1..]);
        }
        let selector = if random.below(4) == 0 { random.byte() } else { base[0] };
        stream.insert(0, selector);
        run(&stream, || format!("seed {seed} round {round}"));
        round += 1;
    }
    assert!(round > 0);
}

fn run(input: &[u8], whence: impl Fn() -> String) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check::check(input))) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{}: {hex}", whence());
        std::panic::resume_unwind(panic);
    }
}

/// Returns the files by name, in the order of their names; none is empty.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/decode");
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
    assert!(corpus.len() > 20, "the corpus is missing");
    corpus
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
