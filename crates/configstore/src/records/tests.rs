use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::batch::{Answer, Mode};
use crate::change::{Change, Expected, Table};
use crate::error::ProposeError;
use crate::state::Proposed;

const T: Table = Table::named("t");
const OURS: u128 = 7;

fn bytes(id: u128, changes: &[Change]) -> Vec<u8> {
    Batch::of(id, changes).encode()
}

fn put(key: &str, number: u64) -> Change {
    Change::number(T, key, number)
}

fn propose(records: &mut Records, id: u128, changes: &[Change]) -> Answer {
    Answer::decode(&records.apply(&bytes(id, changes))).expect("an answer")
}

#[test]
fn a_repeated_batch_is_applied_once() {
    let mut records = Records::default();
    assert_eq!(propose(&mut records, 1, &[put("a", 1)]).revision, Revision(1));
    assert_eq!(propose(&mut records, 2, &[put("a", 2)]).revision, Revision(2));
    let again = propose(&mut records, 1, &[put("a", 1)]);
    assert_eq!((again.revision, again.outcome), (Revision(1), Ok(())));
    assert_eq!((records.get("t", "a"), records.revision()), (Some("2"), 2));
    // A refused proposal stays refused, even if it would be accepted now.
    let absent = [put("a", 3).expecting(Expected::Absent)];
    let refused = propose(&mut records, 3, &absent);
    let conflict = ProposeError::Conflict { table: "t".into(), key: "a".into(), found: Some(Revision(2)) };
    assert_eq!(refused.outcome, Err(conflict));
    propose(&mut records, 4, &[Change::remove(T, "a")]);
    assert_eq!(propose(&mut records, 3, &absent), refused);
    assert_eq!(records.get("t", "a"), None);
    let mut same = Records::default();
    assert!(same.restore(&records.snapshot()));
    assert_eq!(propose(&mut same, 3, &absent), refused, "a snapshot includes the answer");
}

#[test]
fn an_import_adds_missing_records_and_keeps_existing_ones() {
    let mut records = Records::default();
    propose(&mut records, 1, &[put("a", 1)]);
    let changes = [put("a", 9), put("b", 9)];
    let batch = Batch { mode: Mode::Missing, ..Batch::of(2, &changes) };
    records.apply(&batch.encode());
    assert_eq!((records.get("t", "a"), records.get("t", "b")), (Some("1"), Some("9")));
}

#[test]
fn records_tail_and_recent_answers_have_limits() {
    let limits = RecordsLimits { records_max: 2, tail_max: 3, tail_bytes_max: 1000, recent_max: 2 };
    let mut records = Records::new(limits);
    for number in 1..=5 {
        propose(&mut records, number, &[put("a", number as u64)]);
    }
    assert_eq!(records.since(1, 1 << 20), None, "three are kept");
    assert_eq!(records.since(2, 1 << 20).map(|batches| batches.len()), Some(3));
    assert_eq!(records.since(2, 1).map(|batches| batches.len()), Some(1), "one always");
    assert_eq!(records.since(5, 1 << 20), Some(Vec::new()));
    assert_eq!(records.since(6, 1 << 20), None);
    assert_eq!(records.recent.len(), 2);
    propose(&mut records, 6, &[put("b", 1)]);
    let refused = propose(&mut records, 7, &[put("c", 1)]).outcome;
    assert_eq!(refused, Err(ProposeError::TooManyRecords { maximum: 2 }));
    let long = Change::put(T, "a", &"x".repeat(500)).unwrap();
    propose(&mut records, 8, std::slice::from_ref(&long));
    propose(&mut records, 9, &[long]);
    assert_eq!(records.tail.len(), 1, "the bytes allow one of two");
    let nothing = propose(&mut records, 10, &[]);
    assert_eq!((nothing.revision, nothing.outcome), (Revision(8), Ok(())));
    assert_eq!(records.apply(b"no batch"), batch::encode_no_batch(8));
}

/// Version 1 keeps these bytes for ever.
#[test]
fn a_snapshot_has_these_bytes() {
    let mut records = Records::default();
    propose(&mut records, 0x0102, &[put("a", 7)]);
    let snapshot = records.snapshot();
    let found: String = snapshot.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = concat!(
        "01",
        "01000000",
        "02010000000000000000000000000000",
        "09000000",
        "000100000000000000",
        "01",
        "0100000000000000",
        "0100000000000000",
        "0174",
        "010061",
        "0100000000000000",
        "0100000037",
    );
    assert_eq!(found, golden);
    assert!(snapshot.ends_with(&records.whole()));
    let mut other = Records::default();
    assert!(other.restore(&snapshot));
    assert_eq!(other.snapshot(), snapshot);
    for length in 0..snapshot.len() {
        assert!(!other.restore(&snapshot[..length]), "{length}");
    }
    for at in 0..snapshot.len() {
        for value in 0..=255 {
            let mut bad = snapshot.clone();
            bad[at] = value;
            let _ = other.restore(&bad);
            let _ = Copy::default().take(&RecordUpdate::Whole { founded: 1, bytes: bad.into() });
        }
    }
}

#[test]
fn a_copy_accepts_only_the_next_changes() {
    let mut records = Records::default();
    for number in 1..=4 {
        propose(&mut records, number, &[put("a", number as u64)]);
    }
    let tail = |records: &Records, from: u64| RecordUpdate::Tail {
        founded: OURS,
        first: from + 1,
        batches: records.since(from, 1 << 20).unwrap(),
    };
    let mut copy = Copy::default();
    assert!(!copy.take(&tail(&records, 1)), "the first is missing");
    assert!(copy.take(&tail(&records, 0)));
    assert_eq!(copy.position(), Position { founded: OURS, revision: 4 });
    let digest = copy.digest();
    assert!(copy.take(&tail(&records, 1)), "repeated");
    assert_eq!(copy.digest(), digest);
    propose(&mut records, 5, &[put("b", 5)]);
    propose(&mut records, 6, &[put("b", 6)]);
    assert!(!copy.take(&tail(&records, 5)));
    assert_eq!(copy.position().revision, 4);
    assert!(copy.take(&tail(&records, 4)));
    let other = RecordUpdate::Tail { founded: OURS + 1, first: 2, batches: Vec::new() };
    assert!(!copy.take(&other));
    assert!(copy.take(&RecordUpdate::Whole { founded: OURS + 1, bytes: Records::default().whole().into() }));
    assert_eq!(copy.position(), Position { founded: OURS + 1, revision: 0 });
}

#[derive(Clone, Debug)]
enum Step {
    /// A proposal: key, value or removal, condition, and whether it is repeated at once.
    Propose { key: u8, value: Option<u8>, expected: u8, again: bool },
    /// Repeats an earlier batch.
    Again(u8),
    /// Sends a copy what it lacks, up to a number of bytes.
    Notify { copy: usize, bytes_max: usize },
    /// Sends a copy an older update.
    TellOld { copy: usize, from: u8 },
    /// Restarts a copy from nothing.
    Forget { copy: usize },
    /// Restarts a core from a snapshot.
    Restart { node: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let propose = (0..6_u8, proptest::option::of(any::<u8>()), 0..4_u8, any::<bool>())
        .prop_map(|(key, value, expected, again)| Step::Propose { key, value, expected, again });
    let step = prop_oneof![
        6 => propose,
        2 => any::<u8>().prop_map(Step::Again),
        4 => (0..COPIES, 1..400_usize).prop_map(|(copy, bytes_max)| Step::Notify { copy, bytes_max }),
        1 => (0..COPIES, any::<u8>()).prop_map(|(copy, from)| Step::TellOld { copy, from }),
        1 => (0..COPIES).prop_map(|copy| Step::Forget { copy }),
        1 => (0..NODES).prop_map(|node| Step::Restart { node }),
    ];
    proptest::collection::vec(step, 1..120)
}

const COPIES: usize = 3;
const NODES: usize = 2;

/// Update that a core has for a copy.
fn lacking(records: &Records, at: Position, bytes_max: usize) -> RecordUpdate {
    let revision = if at.founded == OURS { at.revision } else { 0 };
    match records.since(revision, bytes_max) {
        Some(batches) => RecordUpdate::Tail { founded: OURS, first: revision + 1, batches },
        None => RecordUpdate::Whole { founded: OURS, bytes: records.whole().into() },
    }
}

proptest! {
    /// Repeats, loses and restarts parts: cores stay the same, and copies become equal to them.
    #[test]
    fn copies_end_up_equal_to_a_map(steps in steps()) {
        let limits = RecordsLimits { tail_max: 8, tail_bytes_max: 600, ..RecordsLimits::default() };
        let mut nodes = vec![Records::new(limits); NODES];
        let mut copies = vec![Copy::default(); COPIES];
        let (mut model, mut revisions) = (BTreeMap::<String, (u8, u64)>::new(), 0_u64);
        let mut said: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            match step {
                Step::Propose { key, value, expected, again } => {
                    let key = format!("k{key}");
                    let found = model.get(&key).map(|(_, revision)| *revision);
                    let (expected, holds) = match expected {
                        0 => (Expected::Anything, true),
                        1 => (Expected::Absent, found.is_none()),
                        2 => (Expected::Present, found.is_some()),
                        _ => (Expected::At(Revision(found.unwrap_or(1))), found.is_some()),
                    };
                    let change = match value {
                        Some(value) => put(&key, value.into()),
                        None => Change::remove(T, key.as_str()),
                    };
                    let batch = bytes(said.len() as u128, &[change.expecting(expected)]);
                    let answers: Vec<Vec<u8>> = nodes.iter_mut().map(|node| node.apply(&batch)).collect();
                    prop_assert!(answers.windows(2).all(|two| two[0] == two[1]));
                    let answer = Answer::decode(&answers[0]).expect("an answer");
                    prop_assert_eq!(answer.outcome.is_ok(), holds);
                    if holds {
                        revisions += 1;
                        match value {
                            Some(value) => drop(model.insert(key, (value, revisions))),
                            None => drop(model.remove(&key)),
                        }
                    }
                    prop_assert_eq!(answer.revision, Revision(revisions));
                    if again {
                        nodes.iter_mut().for_each(|node| prop_assert_eq_quietly(&node.apply(&batch), &answers[0]));
                    }
                    said.push(batch);
                }
                Step::Again(which) => {
                    if let Some(batch) = said.get(usize::from(which)) {
                        nodes.iter_mut().for_each(|node| drop(node.apply(batch)));
                    }
                }
                Step::Notify { copy, bytes_max } => {
                    let update = lacking(&nodes[copy % NODES], copies[copy].position(), bytes_max);
                    if revisions > 0 {
                        prop_assert!(copies[copy].take(&update));
                    }
                }
                Step::TellOld { copy, from } => {
                    let before = copies[copy].position();
                    let at = Position { founded: OURS, revision: from.into() };
                    let is_taken = u64::from(from) <= revisions && copies[copy].take(&lacking(&nodes[0], at, 300));
                    prop_assert!(is_taken || copies[copy].position() == before);
                }
                Step::Forget { copy } => copies[copy] = Copy::default(),
                Step::Restart { node } => {
                    let snapshot = nodes[node].snapshot();
                    let mut again = Records::new(limits);
                    prop_assert!(again.restore(&snapshot));
                    nodes[node] = again;
                }
            }
        }
        prop_assert_eq!(nodes[0].snapshot(), nodes[1].snapshot());
        for copy in &mut copies {
            while copy.position().revision < revisions {
                prop_assert!(copy.take(&lacking(&nodes[0], copy.position(), 200)));
            }
            prop_assert_eq!(copy.state.len(), model.len());
            for (key, (value, revision)) in &model {
                let stored = copy.get("t", key).expect("the record");
                prop_assert_eq!(&*stored.value, &*value.to_string());
                prop_assert_eq!(stored.revision, Revision(*revision));
            }
        }
    }
}

fn prop_assert_eq_quietly(found: &[u8], expected: &[u8]) {
    assert_eq!(found, expected, "a repeated proposal has one answer");
}

/// Batches that are applied while a snapshot is written are not in it, wherever they change records.
#[test]
fn a_snapshot_in_pieces_is_the_state_when_it_began() {
    for seed in 0..200 {
        let mut random = random::Random::new(seed);
        let mut records = Records::default();
        let mut number = 0;
        let mut change = |records: &mut Records, random: &mut random::Random| {
            number += 1;
            let table = *random.pick(&["a", "bb", "c"]);
            let key = format!("{}", random.below(20));
            let value = random.percent(60).then_some("7");
            let change = Proposed { table, key: &key, value, expected: Expected::Anything };
            records.apply(&Batch { id: number, mode: Mode::All, changes: vec![change] }.encode());
        };
        (0..random.below(60)).for_each(|_| change(&mut records, &mut random));
        let (whole, mut pieces) = (records.snapshot(), Vec::new());
        records.begin_snapshot(&mut pieces);
        while !records.write_snapshot(pieces.len() + 1 + random.below(50), &mut pieces) {
            (0..random.below(6)).for_each(|_| change(&mut records, &mut random));
        }
        assert!(pieces == whole, "seed {seed}");
        let mut reader = SnapshotReader::default();
        let size = 1 + random.below(pieces.len());
        assert!(pieces.chunks(size).all(|piece| reader.feed(piece)), "seed {seed}");
        let again = reader.finish(RecordsLimits::default()).expect("it was just made");
        assert!(again.snapshot() == whole, "seed {seed}");
    }
}
