use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;
use crate::change::Expected;
use crate::error::OpenFault;

const A: Table = Table::named("a");
const B: Table = Table::named("b");

/// Data directory of one test, removed at its end.
struct DataDir(PathBuf);

impl DataDir {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("meridian-registry-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn open(&self) -> Result<LocalStore, OpenError> {
        LocalStore::open(&self.0)
    }

    fn wal(&self) -> PathBuf {
        self.0.join(FILE)
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn put(table: Table, key: &str, value: &str) -> Change {
    Change::put(table, key, &value).unwrap()
}

fn get(store: &LocalStore, key: &str) -> Option<String> {
    store.read(A, key).map(|stored| serde_json::from_str(&stored.value).unwrap())
}

#[test]
fn the_records_of_a_cluster_become_those_of_a_node() {
    let mut records = Records::default();
    let marker = Change::put(crate::replicated::IMPORT_TABLE, "brought_in", &"n1").unwrap();
    let changes = [put(A, "k", "v"), put(B, "node", "drained"), marker];
    assert!(!records.apply(&crate::encode_batch(1, &changes)).is_empty());
    assert_eq!(records.len(), 3);
    let dir = DataDir::new();
    assert_eq!(LocalStore::create(&dir.0, &records, &[B]).unwrap(), 1);
    let store = LocalStore::open_standalone(&dir.0).unwrap();
    assert_eq!(get(&store, "k").as_deref(), Some("v"));
    assert!(store.page(B, None, 10).is_empty(), "a table that was left out");
    store.propose(vec![put(A, "more", "w")]).unwrap();
    let again = LocalStore::create(&dir.0, &records, &[]).unwrap_err();
    assert!(matches!(again.fault, OpenFault::Io(ref error) if error.kind() == io::ErrorKind::AlreadyExists));
}

type Model = BTreeMap<String, (String, u64)>;

/// A view that keeps all that it receives.
#[derive(Default)]
struct Recorder(Mutex<(Model, Vec<u64>)>);

impl View for Recorder {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut recorder = self.0.lock().unwrap();
        recorder.0 = records
            .map(|record| (record.key.to_owned(), (record.value.unwrap().to_owned(), record.revision.0)))
            .collect();
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut recorder = self.0.lock().unwrap();
        for change in changes {
            recorder.1.push(change.revision.0);
            match change.value {
                Some(value) => {
                    recorder.0.insert(change.key.to_owned(), (value.to_owned(), change.revision.0))
                }
                None => recorder.0.remove(change.key),
            };
        }
    }
}

fn model(store: &LocalStore) -> Model {
    let recorder = Arc::new(Recorder::default());
    store.subscribe(A, recorder.clone()).unwrap();
    recorder.0.lock().unwrap().0.clone()
}

#[test]
fn records_survive_a_restart_and_only_their_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let data = DataDir::new();
    let store = data.open().unwrap();
    assert!(!data.wal().exists(), "nothing is written before there is something to keep");
    assert_eq!(store.propose(vec![put(A, "x", "1"), put(B, "x", "2")]), Ok(Revision(1)));
    assert_eq!(store.propose(vec![put(A, "y", "3"), Change::remove(B, "x")]), Ok(Revision(2)));
    for file in std::fs::read_dir(&data.0).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let again = data.open().unwrap();
    assert_eq!((get(&again, "x"), get(&again, "y")), (Some("1".into()), Some("3".into())));
    assert_eq!(again.read(B, "x").map(|stored| stored.revision), None);
    assert_eq!(again.read(A, "x").map(|stored| stored.revision), Some(Revision(1)));
    assert_eq!(again.propose(vec![put(A, "z", "4")]), Ok(Revision(3)));
}

#[test]
fn a_batch_is_applied_whole_or_not_at_all() {
    let store = LocalStore::in_memory();
    store.propose(vec![put(A, "x", "1")]).unwrap();
    #[track_caller]
    fn refused(store: &LocalStore, change: Change, found: Option<u64>) {
        let key: Box<str> = change.key().into();
        let found = found.map(Revision);
        let batch = vec![put(A, "new", "1"), change];
        assert_eq!(store.propose(batch), Err(ProposeError::Conflict { table: "a".into(), key, found }));
        assert_eq!(get(store, "new"), None);
    }
    refused(&store, put(A, "x", "2").expecting(Expected::Absent), Some(1));
    refused(&store, put(A, "y", "2").expecting(Expected::Present), None);
    refused(&store, put(A, "x", "2").expecting(Expected::At(Revision(7))), Some(1));
    refused(&store, Change::remove(A, "new").expecting(Expected::Absent), Some(2));
    let right = put(A, "x", "2").expecting(Expected::At(Revision(1)));
    assert_eq!(store.propose(vec![right]), Ok(Revision(2)));
    assert_eq!(store.figures().refused, 4);
}

#[test]
fn a_batch_beyond_a_limit_is_refused_with_the_limit() {
    let data = DataDir::new();
    let limits = Limits { records_max: 2, key_max: 3, value_max: 10, changes_max: 3, batch_max: 300 };
    let store = LocalStore::open_with(&data.0, limits).unwrap();
    let refused = |batch: Vec<Change>| store.propose(batch).unwrap_err();
    assert_eq!(refused(vec![put(A, "long", "")]), ProposeError::KeyLong { maximum: 3 });
    assert_eq!(refused(vec![put(A, "", "")]), ProposeError::KeyLong { maximum: 3 });
    assert_eq!(refused(vec![put(A, "x", "123456789")]), ProposeError::ValueLong { bytes: 11, maximum: 10 });
    assert_eq!(refused(vec![Change::put(A, "x", &()).unwrap()]), ProposeError::ValueNull);
    let four = (0..4).map(|n| put(A, &n.to_string(), "")).collect();
    assert_eq!(refused(four), ProposeError::BatchLong { changes: 4, maximum: 3 });
    let three = (0..3).map(|n| put(A, &n.to_string(), "")).collect();
    assert_eq!(refused(three), ProposeError::TooManyRecords { maximum: 2 });
    store.propose(vec![put(A, "x", ""), put(A, "y", "")]).unwrap();
    assert_eq!(refused(vec![put(A, "z", "")]), ProposeError::TooManyRecords { maximum: 2 });
    store.propose(vec![put(A, "x", "again")]).unwrap();
    store.propose(vec![put(A, "z", ""), Change::remove(A, "x")]).unwrap();
    assert_eq!(store.figures().records, [("a".into(), 2)]);
    assert_eq!(store.figures().refused, 7);
}

#[test]
fn views_receive_every_change_in_order() {
    let store = LocalStore::in_memory();
    store.propose(vec![put(A, "x", "1")]).unwrap();
    let recorder = Arc::new(Recorder::default());
    store.subscribe(A, recorder.clone()).unwrap();
    store.propose(vec![put(B, "x", "1")]).unwrap();
    store.propose(vec![put(A, "y", "2"), Change::remove(A, "x")]).unwrap();
    let recorder = recorder.0.lock().unwrap();
    assert_eq!(recorder.1, [3, 3]);
    assert_eq!(recorder.0, Model::from([("y".into(), ("\"2\"".into(), 3))]));
}

#[test]
fn records_are_paged_by_key() {
    let store = LocalStore::in_memory();
    store.propose(["c", "a", "b"].map(|key| put(A, key, key)).to_vec()).unwrap();
    let keys = |after, limit| {
        let page = store.page(A, after, limit);
        page.iter().map(|(key, _)| key.to_string()).collect::<String>()
    };
    assert_eq!(
        (keys(None, 2), keys(Some("b"), 2), keys(Some("aa"), 9)),
        ("ab".into(), "c".into(), "bc".into())
    );
    assert!(store.page(B, None, 9).is_empty());
}

/// Several threads increment one record by the value that they read. No increment is lost.
#[test]
fn conditional_changes_do_not_overwrite_each_other() {
    let data = DataDir::new();
    let store = Arc::new(data.open().unwrap());
    store.propose(vec![Change::put(A, "n", &0).unwrap()]).unwrap();
    let count = |store: &LocalStore| {
        let stored = store.read(A, "n").unwrap();
        (serde_json::from_str::<u64>(&stored.value).unwrap(), stored.revision)
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let store = store.clone();
            scope.spawn(move || {
                for _ in 0..10 {
                    loop {
                        let (n, revision) = count(&store);
                        let next = Change::put(A, "n", &(n + 1)).unwrap();
                        match store.propose(vec![next.expecting(Expected::At(revision))]) {
                            Ok(_) => break,
                            Err(ProposeError::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(count(&store).0, 40);
    assert_eq!(count(&data.open().unwrap()).0, 40);
    let figures = store.figures();
    assert!(figures.accepted == 41 && figures.syncs <= 41);
}

/// The case is `meridian key` next to a running node.
#[test]
fn two_processes_see_each_others_changes_and_lose_none() {
    let data = DataDir::new();
    let (one, two) = (data.open().unwrap(), data.open().unwrap());
    let recorder = Arc::new(Recorder::default());
    two.subscribe(A, recorder.clone()).unwrap();
    one.propose(vec![put(A, "x", "1")]).unwrap();
    assert_eq!(get(&two, "x"), None);
    two.catch_up();
    assert_eq!(get(&two, "x").as_deref(), Some("1"));
    assert_eq!(two.propose(vec![put(A, "y", "2")]), Ok(Revision(2)));
    let stale = put(A, "y", "3").expecting(Expected::Absent);
    assert!(
        matches!(one.propose(vec![stale]), Err(ProposeError::Conflict { .. })),
        "it reads the log before it writes"
    );
    assert_eq!(one.propose(vec![put(A, "z", "4")]), Ok(Revision(3)));
    assert_eq!(two.propose(vec![put(A, "x", "5")]), Ok(Revision(4)));
    assert_eq!(recorder.0.lock().unwrap().0, model(&two));
    assert_eq!(model(&data.open().unwrap()), model(&two));
}

#[test]
fn compaction_leaves_outdated_lines_out() {
    let data = DataDir::new();
    let (store, other) = (data.open().unwrap(), data.open().unwrap());
    let recorder = Arc::new(Recorder::default());
    other.subscribe(A, recorder.clone()).unwrap();
    let long = "x".repeat(60_000);
    for n in 0..20 {
        store.propose(vec![put(A, &(n % 2).to_string(), &long), put(A, "last", &n.to_string())]).unwrap();
    }
    let figures = store.figures();
    assert_eq!(figures.compactions, 1);
    assert_eq!(figures.wal_bytes, std::fs::metadata(data.wal()).unwrap().len());
    assert!(figures.wal_bytes < COMPACT_FROM, "{figures:?}");
    assert!(!data.0.join("registry.log.new").exists());
    assert_eq!(other.propose(vec![put(A, "more", "1")]), Ok(Revision(21)));
    assert_eq!(
        recorder.0.lock().unwrap().0,
        model(&other),
        "a log that was replaced is read from the beginning"
    );
    assert_eq!(get(&data.open().unwrap(), "last").as_deref(), Some("19"));
    assert_eq!(store.propose(vec![put(A, "more", "2")]), Ok(Revision(22)));
}

#[test]
fn a_half_written_next_log_is_ignored() {
    let data = DataDir::new();
    std::fs::write(data.0.join("registry.log.new"), "half a jour").unwrap();
    let store = data.open().unwrap();
    store.propose(vec![put(A, "x", "1")]).unwrap();
    assert_eq!(get(&data.open().unwrap(), "x").as_deref(), Some("1"));
}

/// Makes three changes. Returns the length of the log and the records after each.
fn some_history(data: &DataDir) -> Vec<(u64, Model)> {
    let store = data.open().unwrap();
    let mut states = Vec::new();
    store.propose(vec![put(A, "x", "1"), put(A, "y", "with \n and \u{0} and ä")]).unwrap();
    states.push((store.figures().wal_bytes, model(&store)));
    store.propose(vec![Change::remove(A, "x")]).unwrap();
    states.push((store.figures().wal_bytes, model(&store)));
    store.propose(vec![put(A, "z", "3")]).unwrap();
    states.push((store.figures().wal_bytes, model(&store)));
    states
}

/// A crash while a line is written leaves any part of it.
#[test]
fn a_log_cut_at_any_byte_holds_the_complete_changes() {
    let data = DataDir::new();
    let states = some_history(&data);
    let whole = std::fs::read(data.wal()).unwrap();
    let (first, _) = &states[0];
    for cut in *first as usize..whole.len() {
        for zeros in [0, 5] {
            std::fs::write(data.wal(), [&whole[..cut], &vec![0; zeros]].concat()).unwrap();
            let store = data.open().unwrap();
            let (len, expected) = states.iter().rfind(|(len, _)| *len <= cut as u64).unwrap();
            assert_eq!(&model(&store), expected, "cut at {cut}");
            assert_eq!(std::fs::metadata(data.wal()).unwrap().len(), *len);
            assert_eq!(store.figures().torn_bytes, cut as u64 - len + zeros as u64);
            store.propose(vec![put(A, "after", "1")]).unwrap();
            assert_eq!(get(&data.open().unwrap(), "after").as_deref(), Some("1"));
        }
    }
}

/// The end of the last line is on the disk, and a part before it is not.
#[test]
fn a_last_line_with_missing_pages_is_cut_off() {
    let data = DataDir::new();
    let states = some_history(&data);
    let mut whole = std::fs::read(data.wal()).unwrap();
    let at = states[1].0 as usize + 12;
    whole[at..at + 4].fill(0);
    std::fs::write(data.wal(), &whole).unwrap();
    assert_eq!(model(&data.open().unwrap()), states[1].1);
}

/// A changed byte is detected, or the change is in the last line, which nobody may have seen.
#[test]
fn a_changed_byte_is_refused_with_advice() {
    let data = DataDir::new();
    let states = some_history(&data);
    let whole = std::fs::read(data.wal()).unwrap();
    for at in 0..whole.len() {
        for change in [1, 0x20] {
            let mut damaged = whole.clone();
            damaged[at] ^= change;
            std::fs::write(data.wal(), &damaged).unwrap();
            match data.open() {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("registry.log") && text.contains("put back a copy"), "{text}");
                }
                // Without its line feed, or with a zero in it, the last line counts as half-written. A checksum in
                // capitals is the same.
                Ok(store) => {
                    let in_last = at as u64 >= states[1].0;
                    let last = at + 1 == whole.len() || in_last && damaged[at] == 0;
                    let as_it_was = model(&store) == states[2].1;
                    assert!(as_it_was || last && model(&store) == states[1].1, "byte {at}");
                }
            }
        }
    }
}

#[test]
fn missing_and_repeated_lines_are_detected() {
    let data = DataDir::new();
    some_history(&data);
    let text = std::fs::read_to_string(data.wal()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    #[track_caller]
    fn refused(data: &DataDir, lines: &[&str]) {
        std::fs::write(data.wal(), lines.join("\n") + "\n").unwrap();
        assert!(data.open().is_err());
    }
    assert_eq!(lines.len(), 4);
    refused(&data, &[lines[0], lines[1], lines[3]]);
    refused(&data, &[lines[0], lines[1], lines[2], lines[2], lines[3]]);
    refused(&data, &[lines[1], lines[2]]);
    refused(&data, &[lines[0], lines[0]]);
    std::fs::write(data.wal(), "").unwrap();
    data.open().unwrap().propose(vec![put(A, "x", "1")]).unwrap();
    assert_eq!(
        get(&data.open().unwrap(), "x").as_deref(),
        Some("1"),
        "an empty file is a store without records"
    );
    let mut later = Vec::new();
    crate::line::write(&mut later, &serde_json::json!({"registry": 3, "more": 1})).unwrap();
    std::fs::write(data.wal(), later).unwrap();
    assert!(matches!(data.open().err().unwrap().fault, OpenFault::Version(3)));
}

#[test]
fn a_change_that_cannot_be_written_is_not_in_force() {
    let data = DataDir::new();
    let store = data.open().unwrap();
    store.propose(vec![put(A, "x", "1")]).unwrap();
    std::fs::remove_file(data.wal()).unwrap();
    // A directory at the path of the file cannot be replaced by a file, even by root.
    std::fs::create_dir_all(data.wal().join("x")).unwrap();
    let error = store.propose(vec![put(A, "y", "2")]).unwrap_err();
    assert!(matches!(error, ProposeError::Write { .. }), "{error}");
    assert_eq!((get(&store, "x").as_deref(), get(&store, "y")), (Some("1"), None));
    std::fs::remove_dir_all(data.wal()).unwrap();
    store.propose(vec![put(A, "y", "2")]).unwrap();
    assert_eq!(model(&data.open().unwrap()), model(&store), "a log that was removed is written again");
    assert_eq!(store.figures().failed, 1);
}

#[test]
fn a_read_only_store_changes_nothing() {
    let data = DataDir::new();
    assert!(LocalStore::read_only(&data.0.join("nowhere")).is_ok());
    some_history(&data);
    let torn = [std::fs::read(data.wal()).unwrap(), b"0123".to_vec()].concat();
    std::fs::write(data.wal(), &torn).unwrap();
    let store = LocalStore::read_only(&data.0).unwrap();
    assert_eq!(get(&store, "z").as_deref(), Some("3"));
    assert_eq!(store.propose(vec![put(A, "x", "1")]), Err(ProposeError::ReadOnly));
    assert_eq!(std::fs::read(data.wal()).unwrap(), torn);
}

#[derive(Clone, Debug)]
enum Step {
    Propose { by: usize, batch: Vec<(bool, u8, Option<u8>, u8)> },
    Reopen { which: usize, torn: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (any::<bool>(), 0u8..6, proptest::option::of(any::<u8>()), 0u8..4);
    let propose = (0usize..2, proptest::collection::vec(change, 1..4))
        .prop_map(|(by, batch)| Step::Propose { by, batch });
    let reopen = (0usize..2, 0usize..40).prop_map(|(which, torn)| Step::Reopen { which, torn });
    proptest::collection::vec(prop_oneof![8 => propose, 1 => reopen], 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Compares two processes, restarts and torn lines with a map.
    #[test]
    fn a_store_behaves_like_a_durable_map(steps in steps()) {
        let data = DataDir::new();
        let mut stores = [data.open().unwrap(), data.open().unwrap()];
        let mut map: BTreeMap<(bool, u8), (u8, u64)> = BTreeMap::new();
        let mut revision = 0;
        let table = |b: bool| if b { B } else { A };
        for step in steps {
            match step {
                Step::Propose { by, batch } => {
                    let mut next = map.clone();
                    let mut holds = true;
                    let mut changes = Vec::new();
                    for (b, key, value, expects) in batch {
                        let found = next.get(&(b, key)).map(|(_, revision)| Revision(*revision));
                        let expected = match expects {
                            0 => Expected::Absent,
                            1 => Expected::Present,
                            2 => found.map_or(Expected::Absent, Expected::At),
                            _ => Expected::Anything,
                        };
                        holds &= expected.holds(found);
                        let change = match value {
                            Some(value) => {
                                next.insert((b, key), (value, revision + 1));
                                Change::put(table(b), key.to_string(), &value).unwrap()
                            }
                            None => {
                                next.remove(&(b, key));
                                Change::remove(table(b), key.to_string())
                            }
                        };
                        changes.push(change.expecting(expected));
                    }
                    match stores[by].propose(changes) {
                        Ok(given) => {
                            prop_assert!(holds);
                            revision += 1;
                            prop_assert_eq!(given, Revision(revision));
                            map = next;
                        }
                        Err(ProposeError::Conflict { .. }) => prop_assert!(!holds),
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Step::Reopen { which, torn } => {
                    if torn > 0 && data.wal().exists() {
                        let line = b"00000000 {\"r\":999,\"b\":[[{\"t\":\"a\",\"k\":\"";
                        let whole = std::fs::read(data.wal()).unwrap();
                        std::fs::write(data.wal(), [&whole[..], &line[..torn.min(line.len())]].concat()).unwrap();
                    }
                    stores[which] = data.open().unwrap();
                }
            }
        }
        for store in [&stores[0], &stores[1], &data.open().unwrap()] {
            store.catch_up_now().unwrap();
            for b in [false, true] {
                for key in 0..6 {
                    let stored = store.read(table(b), &key.to_string());
                    let stored = stored.map(|stored| (stored.value.parse().unwrap(), stored.revision.0));
                    prop_assert_eq!(stored, map.get(&(b, key)).copied());
                }
            }
        }
    }
}
