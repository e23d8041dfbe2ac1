//! The registry of a loft: pigeons live in nests.

use std::sync::atomic::AtomicUsize;

use configstore::{Change, Figures, LocalStore, ProposeError, Revision, Stored, Table};
use serde_json::json;

use super::*;
use crate::definition::{Source, hide, of_file};

settings::section! {
    /// Pigeons.
    [pigeon]
    pub struct Pigeon {
        /// Name of the pigeon.
        pub name: String = "", at start;
        /// Nest of the pigeon.
        pub nest: String = "", at start;
        /// Speed in metres per second.
        pub speed: u32 = "20" in "1..=40", at start;
    }
}

settings::section! {
    /// Nests.
    [nest]
    pub struct Nest {
        /// Name of the nest.
        pub name: String = "", at start;
    }
}

struct Pigeons;

impl Kind for Pigeons {
    type Settings = Pigeon;

    const NOUN: &'static str = "pigeon";
    const AREA: &'static str = "loft";
    const TABLE: Table = Table::named("pigeons");
    const MAX: usize = 4;

    fn name(settings: &Pigeon) -> &str {
        &settings.name
    }

    fn check_alone(settings: &Pigeon) -> Result<(), Problem> {
        match settings.nest.is_empty() {
            true => Err(Problem::new("nest", "it is missing")),
            false => Ok(()),
        }
    }
}

struct Nests;

impl Kind for Nests {
    type Settings = Nest;

    const NOUN: &'static str = "nest";
    const AREA: &'static str = "loft";
    const TABLE: Table = Table::named("nests");
    const MAX: usize = 4;

    fn name(settings: &Nest) -> &str {
        &settings.name
    }

    fn check_alone(_: &Nest) -> Result<(), Problem> {
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Loft {
    pigeons: Named<Pigeon>,
    nests: Named<Nest>,
}

impl Listed<Loft> for Pigeons {
    fn of(loft: &Loft) -> &Named<Pigeon> {
        &loft.pigeons
    }

    fn of_mut(loft: &mut Loft) -> &mut Named<Pigeon> {
        &mut loft.pigeons
    }
}

impl Listed<Loft> for Nests {
    fn of(loft: &Loft) -> &Named<Nest> {
        &loft.nests
    }

    fn of_mut(loft: &mut Loft) -> &mut Named<Nest> {
        &mut loft.nests
    }
}

/// A pigeon without its nest has a fault.
struct Rules;

impl Join for Rules {
    type All = Loft;

    fn join(&self, all: &mut Loft, of_file: &Loft, before: &Loft) {
        hide::<Nests>(&mut all.nests, &of_file.nests, &before.nests);
        hide::<Pigeons>(&mut all.pigeons, &of_file.pigeons, &before.pigeons);
        let nests = all.nests.clone();
        mark::<Pigeons>(&mut all.pigeons, &before.pigeons, |pigeon| nested(&pigeon.settings, &nests));
    }
}

fn nested(pigeon: &Pigeon, nests: &Named<Nest>) -> Result<(), Problem> {
    match nests.contains_key(&pigeon.nest) {
        true => Ok(()),
        false => Err(Problem::new("nest", format!("there is no nest {}", pigeon.nest))),
    }
}

/// A node with its registry.
struct Node(Registry<Rules>);

impl Node {
    fn new(store: &Arc<dyn ConfigStore>, of_file: Loft) -> Self {
        let registry = Registry::new(store.clone(), of_file, Rules, COUNTER);
        registry.subscribe::<Nests>().expect("the nests are read");
        registry.subscribe::<Pigeons>().expect("the pigeons are read");
        Self(registry)
    }

    fn put_nest(&self, name: &str) -> Result<bool, EntryError> {
        self.0.put::<Nests, _>(&nest(name), &by(), |_| Ok(()))
    }

    /// Removes a nest without pigeons.
    fn remove_nest(&self, name: &str) -> Result<(), EntryError> {
        self.0.remove::<Nests, EntryError>(name, |loft| {
            let is_used = loft.pigeons.values().any(|pigeon| pigeon.settings.nest == name);
            if is_used { Err(Problem::new("nest", "pigeons live in it").into()) } else { Ok(()) }
        })
    }

    fn put_pigeon(&self, name: &str, nest: &str) -> Result<bool, EntryError> {
        let pigeon = pigeon(name, nest);
        self.0.put::<Pigeons, EntryError>(&pigeon, &by(), |loft| Ok(nested(&pigeon, &loft.nests)?))
    }

    fn remove_pigeon(&self, name: &str) -> Result<(), EntryError> {
        self.0.remove::<Pigeons, _>(name, |_| Ok(()))
    }

    /// Each pigeon with its source and its fault.
    fn pigeons(&self) -> Vec<(String, Source, Option<String>)> {
        let loft = self.0.definitions();
        loft.pigeons.iter().map(|(name, entry)| (name.clone(), entry.source, entry.fault.clone())).collect()
    }

    fn fault(&self, name: &str) -> Option<String> {
        self.0.definitions().pigeons[name].fault.clone()
    }
}

fn by() -> Authorship {
    Authorship { author: "ops".into(), now_ms: 7 }
}

fn nest(name: &str) -> Nest {
    Nest { name: name.into() }
}

fn pigeon(name: &str, nest: &str) -> Pigeon {
    Pigeon { name: name.into(), nest: nest.into(), ..Pigeon::default() }
}

fn in_memory() -> Arc<dyn ConfigStore> {
    Arc::new(LocalStore::in_memory())
}

fn no_nest(name: &str) -> Option<String> {
    Some(format!("nest: there is no nest {name}"))
}

fn unknown(noun: &'static str, name: &str) -> EntryError {
    EntryError::Unknown { noun, name: name.into() }
}

/// Number of changes that the store has accepted.
fn accepted(store: &Arc<dyn ConfigStore>) -> u64 {
    store.figures().accepted
}

#[test]
fn entries_are_added_replaced_and_removed() {
    let node = Node::new(&in_memory(), Loft::default());
    let mut last = node.0.changes();
    let mut has_changed = || std::mem::replace(&mut last, node.0.changes()) < node.0.changes();
    assert_eq!(node.put_nest("oak"), Ok(true));
    assert!(has_changed());
    assert_eq!(node.put_pigeon("ann", "oak"), Ok(true));
    assert!(has_changed());
    assert_eq!(node.put_pigeon("ann", "oak"), Ok(false));
    let loft = node.0.definitions();
    let expected = Definition {
        settings: pigeon("ann", "oak"),
        source: Source::Store,
        author: "ops".into(),
        changed_ms: Some(7),
        fault: None,
        hides_stored: false,
    };
    assert_eq!(*loft.pigeons["ann"], expected);
    assert_eq!(node.remove_pigeon("ann"), Ok(()));
    assert!(has_changed() && node.pigeons().is_empty());
    assert_eq!(node.remove_pigeon("ann"), Err(unknown("pigeon", "ann")));
    assert!(!has_changed());
    assert!(loft.pigeons.contains_key("ann"), "who has the entries keeps them");
}

/// Nodes have different files. The other node knows the entry of the store.
#[test]
fn an_entry_of_the_file_hides_a_stored_one_and_does_not_change() {
    let store = in_memory();
    let other = Node::new(&store, Loft::default());
    other.put_nest("oak").expect("a nest");
    other.put_pigeon("ann", "oak").expect("a pigeon");
    let of_file = Loft {
        nests: of_file::<Nests>(vec![nest("elm")]),
        pigeons: of_file::<Pigeons>(vec![pigeon("ann", "elm"), pigeon("bob", "")]),
    };
    let node = Node::new(&store, of_file);
    let is_missing = Some("nest: it is missing".to_owned());
    assert_eq!(
        node.pigeons(),
        [("ann".into(), Source::File, None), ("bob".into(), Source::File, is_missing.clone())]
    );
    let hides = |node: &Node, name: &str| node.0.definitions().pigeons[name].hides_stored;
    assert!(hides(&node, "ann") && !hides(&node, "bob"));
    let of_file = |name: &str| EntryError::OfFile { noun: "pigeon", name: name.into() };
    for name in ["ann", "bob"] {
        assert_eq!(node.put_pigeon(name, "elm"), Err(of_file(name)));
        assert_eq!(node.remove_pigeon(name), Err(of_file(name)));
    }
    // A change of the hidden entry reaches the other node only.
    other.put_pigeon("ann", "oak").expect("a pigeon");
    other.put_pigeon("bob", "oak").expect("a pigeon");
    assert!(hides(&node, "ann") && hides(&node, "bob"));
    assert_eq!(node.fault("bob"), is_missing);
    assert_eq!(other.fault("bob"), None);
    for name in ["ann", "bob"] {
        assert_eq!(other.remove_pigeon(name), Ok(()));
    }
    assert!(!hides(&node, "ann") && !hides(&node, "bob"));
    assert_eq!((node.pigeons().len(), other.pigeons().len()), (2, 0));
}

#[test]
fn what_is_refused_is_not_proposed() {
    let store = in_memory();
    let node = Node::new(&store, Loft { nests: of_file::<Nests>(vec![nest("elm")]), ..Loft::default() });
    for name in ["ash", "oak", "yew"] {
        node.put_nest(name).expect("a nest");
    }
    node.put_pigeon("ann", "elm").expect("a pigeon");
    let (before, changes) = (accepted(&store), node.0.changes());
    assert_eq!(node.put_nest("fir"), Err(EntryError::TooMany { noun: "nest", maximum: 4 }));
    let refused = node.put_pigeon("bob", "fir").expect_err("there is no such nest");
    assert_eq!(refused, EntryError::Setting { setting: "nest".into(), why: "there is no nest fir".into() });
    assert_eq!(node.remove_nest("fir"), Err(unknown("nest", "fir")));
    node.put_pigeon("ann", "oak").expect("a pigeon");
    assert!(node.remove_nest("oak").is_err(), "a pigeon lives in it");
    assert_eq!(accepted(&store), before + 1);
    assert_eq!(node.0.changes(), changes + 1);
    // One that exists is replaced, and one that is removed makes room.
    assert_eq!(node.put_nest("yew"), Ok(false));
    assert_eq!(node.remove_nest("yew"), Ok(()));
    assert_eq!(node.put_nest("fir"), Ok(true));
}

/// The fault belongs to the entries of that moment, and not to the stored ones.
#[test]
fn a_fault_ends_with_its_cause() {
    let store = in_memory();
    let node = Node::new(&store, Loft::default());
    node.put_nest("oak").expect("a nest");
    node.put_pigeon("ann", "oak").expect("a pigeon");
    let remove = |name| store.propose(vec![Change::remove(Nests::TABLE, name)]).expect("it is removed");
    remove("oak");
    assert_eq!(node.fault("ann"), no_nest("oak"));
    assert_eq!(usable(&node.0.definitions().pigeons).count(), 0);
    assert_eq!(node.put_nest("oak"), Ok(true));
    assert_eq!(node.fault("ann"), None);
    let late = Node::new(&store, Loft::default());
    assert_eq!(late.fault("ann"), None);
}

#[test]
fn records_that_cannot_be_used_have_a_fault_until_they_are_replaced() {
    let store = in_memory();
    let stored = |name: &str, record: serde_json::Value| {
        let change = Change::put(Pigeons::TABLE, name, &record).expect("JSON");
        store.propose(vec![change]).expect("it is stored");
    };
    stored(
        "before",
        json!({"settings": {"nest": "oak", "wings": 2, "speed": 30}, "author": "new", "changed_ms": 3}),
    );
    let node = Node::new(&store, Loft::default());
    node.put_nest("oak").expect("a nest");
    stored("after", json!({"settings": {"nest": "oak", "speed": 99}, "changed_ms": 3}));
    stored("broken", json!(["nest"]));
    node.put_pigeon("fine", "oak").expect("a pigeon");
    let faults = |node: &Node| {
        let all = node.pigeons().into_iter();
        all.filter_map(|(name, _, fault)| Some((name, fault?))).collect::<Vec<_>>()
    };
    for node in [&node, &Node::new(&store, Loft::default())] {
        let found = faults(node);
        let [(after, of_after), (before, of_before), (broken, of_broken)] = &found[..] else {
            panic!("three: {found:?}")
        };
        assert_eq!([after, before, broken], ["after", "before", "broken"]);
        assert!(of_after.starts_with("speed: "), "{of_after}");
        assert!(of_before.starts_with("wings: there is no such setting"), "{of_before}");
        assert!(of_broken.starts_with("the record cannot be read: "), "{of_broken}");
        let loft = node.0.definitions();
        let of = |name: &str| loft.pigeons[name].clone();
        // What can be read is shown.
        assert_eq!((of("before").settings.speed, &*of("before").author), (30, "new"));
        assert_eq!(of("before").changed_ms, Some(3));
        assert_eq!(
            (of("broken").settings.name.clone(), of("broken").changed_ms),
            ("broken".to_owned(), None)
        );
    }
    for name in ["after", "before"] {
        assert_eq!(node.put_pigeon(name, "oak"), Ok(false));
    }
    assert_eq!(node.remove_pigeon("broken"), Ok(()));
    assert_eq!(faults(&node), []);
}

/// A snapshot of the cluster replaces a table, and changes of one batch come in their order.
#[test]
fn a_view_follows_its_table() {
    let node = Node::new(&in_memory(), Loft::default());
    let pigeons = TableView::<Pigeons, Rules> { shared: node.0.shared.clone(), kind: PhantomData };
    let nests = TableView::<Nests, Rules> { shared: node.0.shared.clone(), kind: PhantomData };
    let record = r#"{"settings": {"nest": "oak"}, "changed_ms": 1}"#;
    let applied = |key, value| Applied { key, value, revision: Revision(1) };
    let names = || node.pigeons().into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
    pigeons
        .reset(&mut [applied("ann", Some(record)), applied("bob", Some(record))].into_iter())
        .expect("no record stops it");
    assert_eq!(names(), ["ann", "bob"]);
    assert_eq!(node.fault("ann"), no_nest("oak"));
    nests.reset(&mut [applied("oak", Some(r#"{"changed_ms": 1, "settings": {}}"#))].into_iter()).expect("ok");
    assert_eq!((names().len(), node.fault("ann")), (2, None));
    let changes = node.0.changes();
    pigeons.apply(&[
        applied("ann", None),
        applied("cid", Some(record)),
        applied("cid", None),
        applied("bob", None),
        applied("bob", Some(record)),
        applied("dot", None),
    ]);
    assert_eq!(names(), ["bob"]);
    assert_eq!(node.0.changes(), changes + 1, "one batch is one change");
    pigeons.reset(&mut [applied("eve", Some(record))].into_iter()).expect("ok");
    assert_eq!(names(), ["eve"]);
    pigeons.reset(&mut [].into_iter()).expect("ok");
    assert_eq!(names(), Vec::<String>::new());
    assert_eq!(node.0.definitions().nests.len(), 1);
}

/// A store that answers proposals as `answer` says, or passes them to the store below.
struct Answering {
    below: Arc<dyn ConfigStore>,
    /// Receives the number of the proposal, from 0.
    answer: Box<dyn Fn(usize) -> Option<ProposeError> + Send + Sync>,
    proposals: AtomicUsize,
}

impl Answering {
    fn new(
        below: &Arc<dyn ConfigStore>,
        answer: impl Fn(usize) -> Option<ProposeError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { below: below.clone(), answer: Box::new(answer), proposals: AtomicUsize::new(0) })
    }

    fn proposals(&self) -> usize {
        self.proposals.load(Ordering::Relaxed)
    }
}

impl ConfigStore for Answering {
    fn propose(&self, batch: Vec<Change>) -> Result<Revision, ProposeError> {
        let number = self.proposals.fetch_add(1, Ordering::Relaxed);
        (self.answer)(number).map_or_else(|| self.below.propose(batch), Err)
    }

    fn read(&self, table: Table, key: &str) -> Option<Stored> {
        self.below.read(table, key)
    }

    fn page(&self, table: Table, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Stored)> {
        self.below.page(table, after, limit)
    }

    fn subscribe(&self, table: Table, view: Arc<dyn View>) -> Result<(), String> {
        self.below.subscribe(table, view)
    }

    fn catch_up(&self) {
        self.below.catch_up();
    }

    fn catch_up_now(&self) -> Result<(), ProposeError> {
        self.below.catch_up_now()
    }

    fn figures(&self) -> Figures {
        self.below.figures()
    }
}

/// The other node removes the nest after this one has seen it, and before its proposal.
#[test]
fn a_change_is_decided_again_when_entries_have_changed_meanwhile() {
    let store = in_memory();
    let other = Arc::new(Node::new(&store, Loft::default()));
    for name in ["ash", "oak"] {
        other.put_nest(name).expect("a nest");
    }
    let acts = other.clone();
    let racing = Answering::new(&store, move |number| {
        match number {
            0 => acts.remove_nest("oak").expect("no pigeon lives in it"),
            2 => acts.put_pigeon("ann", "ash").map(drop).expect("a pigeon"),
            _ => {}
        }
        None
    });
    let node = Node::new(&(racing.clone() as Arc<dyn ConfigStore>), Loft::default());
    let refused = node.put_pigeon("ann", "oak").expect_err("its nest is removed");
    assert_eq!(refused, EntryError::Setting { setting: "nest".into(), why: "there is no nest oak".into() });
    assert_eq!(racing.proposals(), 1);
    // An unrelated change meanwhile is no reason to refuse.
    assert_eq!(node.put_pigeon("bob", "ash"), Ok(true));
    assert_eq!(racing.proposals(), 2);
    assert_eq!(node.put_pigeon("ann", "ash"), Ok(false), "the other node has added it");
    assert_eq!(racing.proposals(), 4);
    assert_eq!(node.pigeons(), other.pigeons());
}

#[test]
fn other_errors_of_the_store_are_returned_at_once_and_change_nothing() {
    let store = in_memory();
    Node::new(&store, Loft::default()).put_nest("oak").expect("a nest");
    let not_committed =
        |outcome_unknown| ProposeError::NotCommitted { why: "no majority".into(), outcome_unknown };
    for error in [ProposeError::ReadOnly, not_committed(false), not_committed(true)] {
        let failing = Answering::new(&store, {
            let error = error.clone();
            move |_| Some(error.clone())
        });
        let node = Node::new(&(failing.clone() as Arc<dyn ConfigStore>), Loft::default());
        let changes = node.0.changes();
        assert_eq!(node.put_nest("elm"), Err(EntryError::ConfigStore(error.clone())));
        assert_eq!(node.remove_nest("oak"), Err(EntryError::ConfigStore(error.clone())));
        assert_eq!(failing.proposals(), 2);
        assert_eq!(node.0.changes(), changes);
        assert_eq!(node.0.definitions().nests.keys().collect::<Vec<_>>(), ["oak"]);
    }
}

/// Nobody waits for ever: a proposal that always conflicts is given up.
#[test]
fn a_change_that_always_conflicts_is_given_up() {
    let conflict = || ProposeError::Conflict { table: "counters".into(), key: COUNTER.into(), found: None };
    let busy = Answering::new(&in_memory(), move |_| Some(conflict()));
    let node = Node::new(&(busy.clone() as Arc<dyn ConfigStore>), Loft::default());
    assert_eq!(node.put_nest("oak"), Err(EntryError::ConfigStore(conflict())));
    assert_eq!(busy.proposals(), 17);
    assert_eq!(node.put_nest("oak"), Err(EntryError::ConfigStore(conflict())), "the lock is free again");
}

#[test]
fn a_counter_that_cannot_be_read_or_is_at_its_end_stops_no_change() {
    for broken in [json!("many"), json!(u64::MAX), json!(-1)] {
        let store = in_memory();
        let counters = Table::named("counters");
        store.propose(vec![Change::put(counters, COUNTER, &broken).expect("JSON")]).expect("it is stored");
        let node = Node::new(&store, Loft::default());
        for (name, is_new) in [("oak", true), ("oak", false), ("elm", true)] {
            assert_eq!(node.put_nest(name), Ok(is_new), "{broken}");
        }
    }
}

/// Threads of two nodes take nests away from pigeons, and put pigeons into nests.
#[test]
fn concurrent_changes_keep_what_each_has_checked() {
    let store = in_memory();
    let nodes = [Node::new(&store, Loft::default()), Node::new(&store, Loft::default())];
    let rounds = 40;
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (node, nest) = (&nodes[thread % 2], ["ash", "elm"][thread / 2 % 2]);
            scope.spawn(move || {
                for round in 0..rounds {
                    let done = match thread / 4 {
                        0 => [node.put_nest(nest).map(drop), node.remove_nest(nest)],
                        _ => {
                            let name = format!("p{}", round % 6);
                            [node.put_pigeon(&name, nest).map(drop), node.remove_pigeon(&name)]
                        }
                    };
                    for error in done.into_iter().filter_map(Result::err) {
                        // A node may lose each attempt of a change to the other one.
                        let is_expected = match &error {
                            EntryError::ConfigStore(error) => matches!(error, ProposeError::Conflict { .. }),
                            _ => true,
                        };
                        assert!(is_expected, "{error}");
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..1_000 {
                for node in &nodes {
                    assert!(node.pigeons().iter().all(|(.., fault)| fault.is_none()), "{:?}", node.pigeons());
                    assert!(node.pigeons().len() <= Pigeons::MAX);
                }
            }
        });
    });
    assert_eq!(nodes[0].pigeons(), nodes[1].pigeons());
    let counter = store.read(Table::named("counters"), COUNTER).expect("there were changes");
    assert_eq!(counter.value.parse(), Ok(accepted(&store)), "each change is counted once");
}

const COUNTER: &str = "loft";
