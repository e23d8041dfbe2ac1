use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::local::{FILE, LocalLedger};
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

    fn aside(&self) -> PathBuf {
        self.0.join(format!("{FILE}.before-cluster.1"))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Those that decide, in one place; every copy that belongs to them is told at once.
struct Cores {
    founded: u128,
    records: Mutex<Records>,
    copies: Mutex<Vec<Arc<AgreedLedger>>>,
    /// Why nobody answers.
    silence: Mutex<Option<Unagreed>>,
    /// Answers that are still given.
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

    /// Tells a copy what it lacks.
    fn tell(&self, copy: &AgreedLedger) {
        let at = copy.position();
        let records = self.records.lock().unwrap();
        let revision = if at.founded == self.founded { at.revision } else { 0 };
        if at.founded == self.founded && at.revision == records.revision() || records.revision() == 0 {
            return;
        }
        let delivery = match records.since(revision, 1 << 20) {
            Some(batches) if at.founded == self.founded || at.founded == 0 => {
                Delivery::Tail { founded: self.founded, first: revision + 1, batches }
            }
            _ => Delivery::Whole { founded: self.founded, bytes: records.whole().into() },
        };
        drop(records);
        copy.take(&delivery);
    }

    fn open(self: &Arc<Self>, data: &DataDir, name: &str) -> Arc<AgreedLedger> {
        static LIVES: AtomicU32 = AtomicU32::new(0);
        let life = LIVES.fetch_add(1, Ordering::Relaxed).into();
        let mut ledger = AgreedLedger::open(&data.0, name, life).unwrap();
        ledger.patience = Duration::from_secs(20);
        Arc::new(ledger)
    }

    fn join(self: &Arc<Self>, ledger: &Arc<AgreedLedger>) {
        ledger.attach(self.clone());
        self.tell(ledger);
        self.copies.lock().unwrap().push(ledger.clone());
    }
}

impl Agree for Cores {
    fn propose(&self, batch: Vec<u8>, told: Told) {
        if let Some(unagreed) = self.silence.lock().unwrap().clone() {
            return told(Err(unagreed));
        }
        let mut left = self.left.lock().unwrap();
        if *left == 0 {
            return told(Err(Unagreed { why: "gone".into(), may_hold: true }));
        }
        *left -= 1;
        drop(left);
        let answer = self.records.lock().unwrap().apply(&batch);
        // Whoever waits for his copy is told by another thread, as by the one of the links.
        told(Ok(answer));
        let copies = self.copies.lock().unwrap().clone();
        let cores = Arc::new(self.records.lock().unwrap().clone());
        let founded = self.founded;
        std::thread::spawn(move || {
            for copy in copies {
                let at = copy.position();
                let revision = if at.founded == founded { at.revision } else { 0 };
                if let Some(batches) = cores.since(revision, 1 << 20).filter(|batches| !batches.is_empty()) {
                    copy.take(&Delivery::Tail { founded, first: revision + 1, batches });
                }
            }
        });
    }

    fn known(&self) -> Known {
        let revision = Some(self.records.lock().unwrap().revision());
        Known { founded: self.founded, revision, leads: true }
    }
}

fn put(key: &str, number: u64) -> Change {
    Change::number(A, key, number)
}

fn get(ledger: &dyn Ledger, key: &str) -> Option<String> {
    ledger.read(A, key).map(|stored| stored.value.into())
}

#[test]
fn what_one_node_proposes_every_copy_has_when_it_returns_there_and_conflicts_are_told() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let cores = Cores::new(OURS);
    let (a, b) = (cores.open(&one, "a"), cores.open(&two, "b"));
    [&a, &b].iter().for_each(|ledger| cores.join(ledger));
    let first = a.propose(vec![put("x", 1).expecting(Expected::Absent)]).unwrap();
    assert_eq!((first, get(&*a, "x").as_deref()), (Revision(1), Some("1")));
    let conflict = b.propose(vec![put("x", 2).expecting(Expected::Absent)]);
    assert!(matches!(conflict, Err(ProposeError::Conflict { .. })), "{conflict:?}");
    assert_eq!(get(&*b, "x").as_deref(), Some("1"), "who was refused reads why");
    b.propose(vec![put("x", 3).expecting(Expected::At(first))]).unwrap();
    a.catch_up_now().unwrap();
    assert_eq!(get(&*a, "x").as_deref(), Some("3"));
    assert_eq!(a.figures().refused + b.figures().refused, 1);
    let long = Change::put(A, "y", &"x".repeat(VALUE_MAX)).unwrap();
    assert!(matches!(a.propose(vec![long]), Err(ProposeError::ValueLong { .. })));
}

#[test]
fn a_copy_outlives_the_process_and_is_no_beginning_for_another_program() {
    let data = DataDir::new();
    let cores = Cores::new(OURS);
    {
        let ledger = cores.open(&data, "a");
        cores.join(&ledger);
        ledger.propose(vec![put("x", 1)]).unwrap();
        ledger.propose(vec![put("y", 1)]).unwrap();
    }
    cores.copies.lock().unwrap().clear();
    let again = cores.open(&data, "a");
    assert_eq!(again.position(), Position { founded: OURS, revision: 2 });
    assert_eq!(get(&*again, "y").as_deref(), Some("1"), "no core has answered");
    let alone = again.propose(vec![put("z", 1)]);
    assert!(matches!(alone, Err(ProposeError::NotAgreed { may_hold: false, .. })), "{alone:?}");
    drop(again);
    let offline = LocalLedger::open(&data.0).unwrap();
    assert_eq!(offline.propose(vec![put("z", 1)]), Err(ProposeError::OfCluster));
    assert!(ProposeError::OfCluster.to_string().contains("start the node"));
    assert_eq!(get(&offline, "x").as_deref(), Some("1"));
    drop(offline);
    let own = LocalLedger::open_own(&data.0).unwrap();
    assert_eq!(own.propose(vec![put("z", 1)]), Ok(Revision(3)));
}

#[test]
fn a_copy_of_nothing_outlives_the_process_and_takes_what_comes() {
    let (data, other) = (DataDir::new(), DataDir::new());
    let cores = Cores::new(OURS);
    assert_eq!(cores.open(&data, "a").take_nothing(OURS), Position { founded: OURS, revision: 0 });
    let again = cores.open(&data, "a");
    assert_eq!(again.position(), Position { founded: OURS, revision: 0 });
    cores.join(&again);
    again.propose(vec![put("x", 1)]).unwrap();
    assert_eq!(again.position(), Position { founded: OURS, revision: 1 });
    // What a node has by itself stays until it is known what becomes of it.
    let own = LocalLedger::open(&other.0).unwrap();
    own.propose(vec![put("y", 1)]).unwrap();
    drop(own);
    let own = cores.open(&other, "b");
    assert_eq!(own.take_nothing(OURS), Position::default());
    assert_eq!(get(&*own, "y").as_deref(), Some("1"));
}

#[test]
fn what_a_node_had_alone_is_the_clusters_when_that_has_nothing() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let own = LocalLedger::open(&one.0).unwrap();
    for number in 0..2_500 {
        own.propose(vec![put(&format!("k{number}"), number)]).unwrap();
    }
    drop(own);
    let cores = Cores::new(OURS);
    let (a, b) = (cores.open(&one, "a"), cores.open(&two, "b"));
    a.propose(vec![put("before", 1)]).unwrap();
    cores.join(&b);
    cores.join(&a);
    assert_eq!(get(&*a, "k7").as_deref(), Some("7"), "its own holds until the cluster has something");
    a.bring_in().unwrap();
    b.catch_up_now().unwrap();
    a.catch_up_now().unwrap();
    for ledger in [&a, &b] {
        assert_eq!(ledger.position().founded, OURS);
        assert_eq!(get(&**ledger, "k2499").as_deref(), Some("2499"));
        assert_eq!(get(&**ledger, "before").as_deref(), Some("1"));
    }
    assert!(!one.aside().exists(), "nothing of it is dropped");
    let revision = a.position().revision;
    a.bring_in().unwrap();
    assert_eq!(cores.records.lock().unwrap().revision(), revision, "once");
}

#[test]
fn who_dies_while_bringing_in_goes_on_and_undoes_nothing() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let own = LocalLedger::open(&one.0).unwrap();
    for number in 0..2_500 {
        own.propose(vec![put(&format!("k{number:04}"), number)]).unwrap();
    }
    drop(own);
    let cores = Cores::new(OURS);
    let b = cores.open(&two, "b");
    cores.join(&b);
    // The mark and the first thousand.
    *cores.left.lock().unwrap() = 2;
    let a = cores.open(&one, "a");
    a.attach(cores.clone());
    assert!(a.bring_in().is_err());
    drop(a);
    *cores.left.lock().unwrap() = usize::MAX;
    b.propose(vec![put("k0001", 77)]).unwrap();
    assert_eq!(get(&*b, "k2000"), None);
    let a = cores.open(&one, "a");
    cores.join(&a);
    a.catch_up_now().unwrap();
    b.catch_up_now().unwrap();
    for ledger in [&a, &b] {
        assert_eq!(get(&**ledger, "k2000").as_deref(), Some("2000"));
        assert_eq!(get(&**ledger, "k0001").as_deref(), Some("77"), "somebody has changed it meanwhile");
    }
}

#[test]
fn who_joins_a_cluster_that_has_records_keeps_his_own_aside() {
    let (one, two) = (DataDir::new(), DataDir::new());
    let own = LocalLedger::open(&two.0).unwrap();
    own.propose(vec![put("mine", 1)]).unwrap();
    drop(own);
    let cores = Cores::new(OURS);
    let (a, b) = (cores.open(&one, "a"), cores.open(&two, "b"));
    cores.join(&a);
    a.propose(vec![put("ours", 1)]).unwrap();
    cores.join(&b);
    assert_eq!((get(&*b, "mine"), get(&*b, "ours").as_deref()), (None, Some("1")));
    let kept = std::fs::read_to_string(two.aside()).unwrap();
    assert!(kept.contains("mine"), "{kept}");
    let three = DataDir::new();
    let own = LocalLedger::open(&three.0).unwrap();
    own.propose(vec![put("ours", 1)]).unwrap();
    drop(own);
    cores.join(&cores.open(&three, "c"));
    assert!(!three.aside().exists(), "of what the cluster has, too, nothing is dropped");
    // Another cluster's copy is worth nothing here.
    let others = Cores::new(OURS + 1);
    others.records.lock().unwrap().apply(&Batch::of(1, &[put("theirs", 1)]).encode());
    others.tell(&b);
    assert_eq!((get(&*b, "ours"), get(&*b, "theirs").as_deref()), (None, Some("1")));
}

#[test]
fn who_gets_no_answer_is_told_what_is_known() {
    let data = DataDir::new();
    let cores = Cores::new(OURS);
    let ledger = cores.open(&data, "a");
    cores.join(&ledger);
    for may_hold in [false, true] {
        *cores.silence.lock().unwrap() = Some(Unagreed { why: "nobody leads".into(), may_hold });
        let error = ledger.propose(vec![put("x", 1)]).unwrap_err();
        assert_eq!(error, ProposeError::NotAgreed { why: "nobody leads".into(), may_hold });
        assert_eq!(error.to_string().contains("may be in force"), may_hold);
    }
    assert_eq!(get(&*ledger, "x"), None);
}

/// A disk that takes nothing keeps nobody from what the cores agree on.
#[test]
fn what_cannot_be_written_is_in_force_and_is_written_later() {
    let data = DataDir::new();
    let cores = Cores::new(OURS);
    let ledger = cores.open(&data, "a");
    cores.join(&ledger);
    ledger.propose(vec![put("x", 1)]).unwrap();
    let journal = data.0.join(FILE);
    let directory_in_the_way = data.0.join("registry.log.new");
    std::fs::remove_file(&journal).unwrap();
    std::fs::create_dir(&directory_in_the_way).unwrap();
    ledger.propose(vec![put("y", 1)]).unwrap();
    assert_eq!(get(&*ledger, "y").as_deref(), Some("1"));
    assert_eq!(ledger.figures().failed, 1);
    ledger.tidy();
    assert!(!journal.exists(), "there is no room yet");
    std::fs::remove_dir(&directory_in_the_way).unwrap();
    // Nothing changes any more: it is written all the same.
    ledger.tidy();
    let syncs = ledger.figures().syncs;
    ledger.tidy();
    assert_eq!(ledger.figures().syncs, syncs, "once");
    drop(ledger);
    cores.copies.lock().unwrap().clear();
    let again = cores.open(&data, "a");
    assert_eq!((again.position().revision, get(&*again, "y").as_deref()), (2, Some("1")));
}
