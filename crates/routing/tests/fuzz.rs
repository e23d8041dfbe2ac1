//! Random bytes as filters and topics: everything that parses is inserted, is found by the rules, and is removed.

mod common;

use common::{Model, Subscriber, filter, found, index};
use mqtt::{TopicFilter, TopicName};
use routing::{IndexFull, IndexLimits};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Returns random bytes, characters with a meaning more often than others.
    fn bytes(&mut self) -> Vec<u8> {
        let length = match self.below(10) {
            0 => self.below(300),
            _ => self.below(14),
        };
        let special = b"/////++##$a\0\xc3\xa9\xff";
        (0..length)
            .map(|_| match self.below(3) {
                0 => self.below(256) as u8,
                _ => special[self.below(special.len())],
            })
            .collect()
    }

    /// Returns an earlier text that was cut, joined or changed at one position.
    fn mutate(&mut self, corpus: &[String]) -> Vec<u8> {
        if corpus.is_empty() || self.below(4) == 0 {
            return self.bytes();
        }
        let mut bytes = corpus[self.below(corpus.len())].clone().into_bytes();
        match self.below(4) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => bytes.extend_from_slice(corpus[self.below(corpus.len())].as_bytes()),
            2 => bytes.extend_from_slice([&b"/#"[..], b"/+", b"/", b"+/x"][self.below(4)]),
            _ => {
                let at = self.below(bytes.len());
                bytes[at] = b"/+#a$"[self.below(5)];
            }
        }
        bytes
    }
}

fn run(seed: u64, steps: usize) {
    let limits =
        IndexLimits { levels_max: 20, shapes_max: 30, tries_max: seed as usize % 2 * 8, visits_max: 4 };
    let (index, reader) = index(limits);
    let (mut random, mut model, mut corpus) = (Random(seed), Model::default(), Vec::new());
    let mut parsed = 0;
    for step in 0..steps {
        let bytes = random.mutate(&corpus);
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
