//! Random bytes as filters and topics: everything that parses is inserted, is found by the rules, and is removed.

mod common;

use common::{Model, Subscriber, filter, found, index};
use mqtt::{TopicFilter, TopicName};
use random::Random;
use routing::{IndexFull, IndexLimits};

/// Returns random bytes, characters with a meaning more often than others.
fn bytes(random: &mut Random) -> Vec<u8> {
    let length = match random.below(10) {
        0 => random.below(300),
        _ => random.below(14),
    };
    let special = b"/////++##$a\0\xc3\xa9\xff";
    (0..length)
        .map(|_| match random.below(3) {
            0 => random.below(256) as u8,
            _ => special[random.below(special.len())],
        })
        .collect()
}

/// Returns an earlier text that was cut, joined or changed at one position.
fn mutate(random: &mut Random, corpus: &[String]) -> Vec<u8> {
    if corpus.is_empty() || random.below(4) == 0 {
        return bytes(random);
    }
    let mut bytes = corpus[random.below(corpus.len())].clone().into_bytes();
    match random.below(4) {
        0 => bytes.truncate(random.below(bytes.len() + 1)),
        1 => bytes.extend_from_slice(corpus[random.below(corpus.len())].as_bytes()),
        2 => bytes.extend_from_slice([&b"/#"[..], b"/+", b"/", b"+/x"][random.below(4)]),
        _ => {
            let at = random.below(bytes.len());
            bytes[at] = b"/+#a$"[random.below(5)];
        }
    }
    bytes
}

fn run(seed: u64, steps: usize) {
    let limits =
        IndexLimits { levels_max: 20, shapes_max: 30, tries_max: seed as usize % 2 * 8, visits_max: 4 };
    let (index, reader) = index(limits);
    let (mut random, mut model, mut corpus) = (Random::new(seed), Model::default(), Vec::new());
    let mut parsed = 0;
    for step in 0..steps {
        let bytes = mutate(&mut random, &corpus);
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let subscriber = Subscriber { id: random.below(4) as u64, options: step as u64 };
        if let Ok(parsed_filter) = TopicFilter::parse(&text) {
            parsed += 1;
            if random.below(3) == 0 {
                assert_eq!(
                    index.remove(parsed_filter, subscriber.id),
                    model.remove(&text, subscriber.id),
                    "{text:?}"
                );
            } else {
                match index.insert(parsed_filter, subscriber) {
                    Ok(inserted) => assert_eq!(inserted, model.insert(&text, subscriber), "{text:?}"),
                    Err(IndexFull::Levels { levels_max }) => assert!(text.split('/').count() > levels_max),
                    Err(IndexFull::Numbers) => panic!("a few filters exhaust nothing"),
                }
            }
            if corpus.len() < 300 {
                corpus.push(text.clone());
            }
        }
        let name = text.replace(['+', '#'], "a");
        if TopicName::parse(&name).is_ok() {
            assert_eq!(found(&reader, &name), model.found(&name), "{name:?}, seed {seed}");
        }
        if step % 256 == 0 {
            reader.quiescent();
        }
    }
    assert!(parsed > steps / 8, "{parsed} of {steps} were filters");
    index.check_invariants(&reader);
    let left: Vec<(String, u64)> =
        model.dump().into_iter().map(|(text, subscriber)| (text, subscriber.id)).collect();
    for (text, id) in left {
        assert_eq!(index.remove(filter(&text), id), model.remove(&text, id));
    }
    index.check_invariants(&reader);
    assert!(index.is_empty());
}

#[test]
fn random_bytes_are_refused_or_found_by_the_rules() {
    let steps = if cfg!(miri) { 150 } else { 4_000 };
    (0..6).for_each(|seed| run(seed, steps));
}
