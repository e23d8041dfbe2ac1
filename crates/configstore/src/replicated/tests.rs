use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use super::*;
use crate::local::{FILE, LocalStore};
use crate::records::Records;

const A: Table = Table::named("a");
const OURS: u128 = 7;

struct DataDir(PathBuf);

impl DataDir {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("meridian-agreed-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn archived(&self) -> PathBuf {
        self.0.join(format!("{FILE}.before-cluster.1"))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // A copy that is still updated writes to the directory.
        UPDATES.take().into_iter().for_each(|update| drop(update.join()));
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

thread_local! {
    /// Threads that update copies after proposals of this thread.
    static UPDATES: RefCell<Vec<JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Cores of a test, in one object. Every copy that belongs to them is updated at once.
struct Cores {
    founded: u128,
    records: Mutex<Records>,
    copies: Mutex<Vec<Arc<ReplicatedStore>>>,
    /// Error that replaces all answers.
    silence: Mutex<Option<ProposalFailed>>,
    /// Number of answers that are still given.
    left: Mutex<usize>,
}

impl Cores {
    fn new(founded: u128) -> Arc<Self> {
        Arc::new(Self {
            founded,
            records: Mutex::default(),
            copies: Mutex::default(),
            silence: Mutex::default(),
            left: Mutex::new(usize::MAX),
        })
    }

    /// Sends a copy the changes that it lacks.
    fn tell(&self, copy: &ReplicatedStore) {
        let at = copy.position();
        let records = self.records.lock().unwrap();
        let revision = if at.founded == self.founded { at.revision } else { 0 };
        if at.founded == self.founded && at.revision == records.revision() || records.revision() == 0 {
            return;
        }
        let update = match records.since(revision, 1 << 20) {
            Some(batches) if at.founded == self.founded || at.founded == 0 => {
                RecordUpdate::Tail { founded: self.founded, first: revision + 1, batches }
            }
            _ => RecordUpdate::Whole { founded: self.founded, bytes: records.whole().into() },
        };
        drop(records);
        copy.take(&update);
    }

    fn open(self: &Arc<Self>, data: &DataDir, name: &str) -> Arc<ReplicatedStore> {
        static INCARNATIONS: AtomicU32 = AtomicU32::new(0);
        let incarnation = INCARNATIONS.fetch_add(1, Ordering::Relaxed).into();
        let mut store = ReplicatedStore::open(&data.0, name, incarnation).unwrap();
        store.timeout = Duration::from_secs(20);
        Arc::new(store)
    }

    fn join(self: &Arc<Self>, store: &Arc<ReplicatedStore>) {
        store.attach(self.clone());
        self.tell(store);
        self.copies.lock().unwrap().push(store.clone());
    }
}

impl Proposer for Cores {
    fn propose(&self, batch: Vec<u8>, callback: ProposalCallback) {
        if let Some(failure) = self.silence.lock().unwrap().clone() {
            return callback(Err(failure));
        }
        let mut left = self.left.lock().unwrap();
        if *left == 0 {
            return callback(Err(ProposalFailed { why: "gone".into(), outcome_unknown: true }));
        }
        *left -= 1;
        drop(left);
        let answer = self.records.lock().unwrap().apply(&batch);
        // Another thread updates the waiting copy, as the link thread does in a node.
        callback(Ok(answer));
        let copies = self.copies.lock().unwrap().clone();
        let cores = Arc::new(self.records.lock().unwrap().clone());
        let founded = self.founded;
        let update = std::thread::spawn(move || {
            for copy in copies {
                let at = copy.position();
                let revision = if at.founded == founded { at.revision } else { 0 };
                if let Some(batches) = cores.since(revision, 1 << 20).filter(|batches| !batches.is_empty()) {
                    copy.take(&RecordUpdate::Tail { founded, first: revision + 1, batches });
                }
            }
        });
        UPDATES.with_borrow_mut(|updates| updates.push(update));
    }

    fn cluster_state(&self) -> ClusterState {
        let revision = Some(self.records.lock().unwrap().revision());
        ClusterState { founded: self.founded, revision, leads: true }
    }
}

fn put(key: &str, number: u64) -> Change {
    Change::number(A, key, number)
}

fn get(store: &dyn ConfigStore, key: &str) -> Option<String> {
    store.read(A, key).map(|stored| stored.value.into())
}

#[test]
fn a_proposal_is_in_the_copy_when_it_returns_and_conflicts_are_reported() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let cores = Cores::new(OURS);
    let (a, b) = (cores.open(&one, "a"), cores.open(&two, "b"));
    [&a, &b].iter().for_each(|store| cores.join(store));
    let first = a.propose(vec![put("x", 1).expecting(Expected::Absent)]).unwrap();
    assert_eq!((first, get(&*a, "x").as_deref()), (Revision(1), Some("1")));
    let conflict = b.propose(vec![put("x", 2).expecting(Expected::Absent)]);
    assert!(matches!(conflict, Err(ProposeError::Conflict { .. })), "{conflict:?}");
    assert_eq!(get(&*b, "x").as_deref(), Some("1"), "a refused caller reads the current value");
    b.propose(vec![put("x", 3).expecting(Expected::At(first))]).unwrap();
    a.catch_up_now().unwrap();
    assert_eq!(get(&*a, "x").as_deref(), Some("3"));
    assert_eq!(a.figures().refused + b.figures().refused, 1);
    let long = Change::put(A, "y", &"x".repeat(VALUE_MAX)).unwrap();
    assert!(matches!(a.propose(vec![long]), Err(ProposeError::ValueLong { .. })));
}

#[test]
fn a_copy_survives_a_restart_and_cannot_be_changed_offline() {
    let data = DataDir::new();
    let cores = Cores::new(OURS);
    {
        let store = cores.open(&data, "a");
        cores.join(&store);
        store.propose(vec![put("x", 1)]).unwrap();
        store.propose(vec![put("y", 1)]).unwrap();
    }
    cores.copies.lock().unwrap().clear();
    let again = cores.open(&data, "a");
    assert_eq!(again.position(), Position { founded: OURS, revision: 2 });
    assert_eq!(get(&*again, "y").as_deref(), Some("1"), "no core has answered");
    let alone = again.propose(vec![put("z", 1)]);
    assert!(matches!(alone, Err(ProposeError::NotCommitted { outcome_unknown: false, .. })), "{alone:?}");
    drop(again);
    let offline = LocalStore::open(&data.0).unwrap();
    assert_eq!(offline.propose(vec![put("z", 1)]), Err(ProposeError::OfCluster));
    assert!(ProposeError::OfCluster.to_string().contains("start the node"));
    assert_eq!(get(&offline, "x").as_deref(), Some("1"));
    drop(offline);
    let own = LocalStore::open_standalone(&data.0).unwrap();
    assert_eq!(own.propose(vec![put("z", 1)]), Ok(Revision(3)));
}

#[test]
fn an_empty_copy_survives_a_restart_and_accepts_changes() {
    let (data, other) = (DataDir::new(), DataDir::new());
    let cores = Cores::new(OURS);
    assert_eq!(cores.open(&data, "a").init_empty(OURS), Position { founded: OURS, revision: 0 });
    let again = cores.open(&data, "a");
    assert_eq!(again.position(), Position { founded: OURS, revision: 0 });
    cores.join(&again);
    again.propose(vec![put("x", 1)]).unwrap();
    assert_eq!(again.position(), Position { founded: OURS, revision: 1 });
    // A node's own records stay until the cluster has decided about them.
    let own = LocalStore::open(&other.0).unwrap();
    own.propose(vec![put("y", 1)]).unwrap();
    drop(own);
    let own = cores.open(&other, "b");
    assert_eq!(own.init_empty(OURS), Position::default());
    assert_eq!(get(&*own, "y").as_deref(), Some("1"));
}

#[test]
fn a_nodes_own_records_are_imported_into_an_empty_cluster() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let own = LocalStore::open(&one.0).unwrap();
    for number in 0..2_500 {
        own.propose(vec![put(&format!("k{number}"), number)]).unwrap();
    }
    drop(own);
    let cores = Cores::new(OURS);
    let (a, b) = (cores.open(&one, "a"), cores.open(&two, "b"));
    a.propose(vec![put("before", 1)]).unwrap();
    cores.join(&b);
    cores.join(&a);
    assert_eq!(
        get(&*a, "k7").as_deref(),
        Some("7"),
        "its own records are in force until the cluster has some"
    );
    a.import_own_records().unwrap();
    b.catch_up_now().unwrap();
    a.catch_up_now().unwrap();
    for store in [&a, &b] {
        assert_eq!(store.position().founded, OURS);
        assert_eq!(get(&**store, "k2499").as_deref(), Some("2499"));
        assert_eq!(get(&**store, "before").as_deref(), Some("1"));
    }
    assert!(!one.archived().exists(), "no record is dropped");
    let revision = a.position().revision;
    a.import_own_records().unwrap();
    assert_eq!(cores.records.lock().unwrap().revision(), revision, "once");
}

#[test]
fn a_node_that_dies_during_an_import_resumes_it_and_undoes_nothing() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let own = LocalStore::open(&one.0).unwrap();
    for number in 0..2_500 {
        own.propose(vec![put(&format!("k{number:04}"), number)]).unwrap();
    }
    drop(own);
    let cores = Cores::new(OURS);
    let b = cores.open(&two, "b");
    cores.join(&b);
    // The import marker and the first batch of 1,000 records are accepted.
    *cores.left.lock().unwrap() = 2;
    let a = cores.open(&one, "a");
    a.attach(cores.clone());
    assert!(a.import_own_records().is_err());
    drop(a);
    *cores.left.lock().unwrap() = usize::MAX;
    b.propose(vec![put("k0001", 77)]).unwrap();
    assert_eq!(get(&*b, "k2000"), None);
    let a = cores.open(&one, "a");
    cores.join(&a);
    a.catch_up_now().unwrap();
    b.catch_up_now().unwrap();
    for store in [&a, &b] {
        assert_eq!(get(&**store, "k2000").as_deref(), Some("2000"));
        assert_eq!(get(&**store, "k0001").as_deref(), Some("77"), "another node has changed it meanwhile");
    }
}

#[test]
fn a_node_that_joins_a_cluster_with_records_archives_its_own() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let own = LocalStore::open(&two.0).unwrap();
    own.propose(vec![put("mine", 1)]).unwrap();
    drop(own);
    let cores = Cores::new(OURS);
    let (a, b) = (cores.open(&one, "a"), cores.open(&two, "b"));
    cores.join(&a);
    a.propose(vec![put("ours", 1)]).unwrap();
    cores.join(&b);
    assert_eq!((get(&*b, "mine"), get(&*b, "ours").as_deref()), (None, Some("1")));
    let kept = std::fs::read_to_string(two.archived()).unwrap();
    assert!(kept.contains("mine"), "{kept}");
    let three = DataDir::new();
    let own = LocalStore::open(&three.0).unwrap();
    own.propose(vec![put("ours", 1)]).unwrap();
    drop(own);
    cores.join(&cores.open(&three, "c"));
    assert!(!three.archived().exists(), "records that the cluster has, too, are not dropped");
    // A copy of another cluster is worthless here.
    let others = Cores::new(OURS + 1);
    others.records.lock().unwrap().apply(&Batch::of(1, &[put("theirs", 1)]).encode());
    others.tell(&b);
    assert_eq!((get(&*b, "ours"), get(&*b, "theirs").as_deref()), (None, Some("1")));
}

#[test]
fn a_proposal_without_an_answer_reports_whether_it_may_be_in_force() {
    let data = DataDir::new();
    let cores = Cores::new(OURS);
    let store = cores.open(&data, "a");
    cores.join(&store);
    for outcome_unknown in [false, true] {
        *cores.silence.lock().unwrap() = Some(ProposalFailed { why: "nobody leads".into(), outcome_unknown });
        let error = store.propose(vec![put("x", 1)]).unwrap_err();
        assert_eq!(error, ProposeError::NotCommitted { why: "nobody leads".into(), outcome_unknown });
        assert_eq!(error.to_string().contains("may be in force"), outcome_unknown);
    }
    assert_eq!(get(&*store, "x"), None);
}

/// A disk that cannot be written does not delay the changes of the cluster.
#[test]
fn a_copy_that_cannot_be_written_is_in_force_and_is_written_later() {
    let data = DataDir::new();
    let cores = Cores::new(OURS);
    let store = cores.open(&data, "a");
    cores.join(&store);
    store.propose(vec![put("x", 1)]).unwrap();
    let wal = data.0.join(FILE);
    let directory_in_the_way = data.0.join("registry.log.new");
    std::fs::remove_file(&wal).unwrap();
    std::fs::create_dir(&directory_in_the_way).unwrap();
    store.propose(vec![put("y", 1)]).unwrap();
    assert_eq!(get(&*store, "y").as_deref(), Some("1"));
    assert_eq!(store.figures().failed, 1);
    store.tidy();
    assert!(!wal.exists(), "the disk cannot be written yet");
    std::fs::remove_dir(&directory_in_the_way).unwrap();
    // The copy is written even if nothing changes any more.
    store.tidy();
    let syncs = store.figures().syncs;
    store.tidy();
    assert_eq!(store.figures().syncs, syncs, "once");
    drop(store);
    cores.copies.lock().unwrap().clear();
    let again = cores.open(&data, "a");
    assert_eq!((again.position().revision, get(&*again, "y").as_deref()), (2, Some("1")));
}
