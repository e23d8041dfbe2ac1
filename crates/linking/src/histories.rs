//! State of other clusters that links have seen last. It is in the configuration store, so that a restore is noticed
//! although this node was restarted, or another node runs the link.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use configstore::{Change, ConfigStore, Table};

use crate::puller::Key;

const TABLE: Table = Table::named("link_histories");
/// Pause after a change that was not stored, and shortest pause between two states of one link.
const PAUSE_MIN: Duration = Duration::from_secs(60);
/// Longest pause between two states of one link. It doubles with each one, because a hostile cluster may have another
/// one on each connection.
const PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// Time without a change after which the pause is the shortest again.
const CALM: Duration = Duration::from_secs(24 * 3_600);
/// Time between two looks for states of links that do not exist.
const SWEEP: Duration = Duration::from_secs(60);
/// Number of records of the store that are read at once.
const PAGE: usize = 256;

/// The stored states. One change is stored at a time, on a thread of its own, because that may wait for other nodes.
pub struct Histories {
    config_store: Arc<dyn ConfigStore>,
    is_writing: Arc<AtomicBool>,
    /// Links and origins that do not exist any more, until the store has no state of them.
    removed: BTreeSet<Key>,
    /// Last change that was to be stored, of each link and origin.
    writes: BTreeMap<Key, Write>,
    next_sweep: Option<Instant>,
}

/// A change that was to be stored.
struct Write {
    /// The state; `None` if it was to be removed.
    history: Option<String>,
    at: Instant,
    /// Time until another state may be stored.
    pause: Duration,
}

impl Write {
    /// Returns whether another attempt may be made.
    fn allows(&self, now: Instant, history: Option<&str>) -> bool {
        let pause = match history {
            _ if self.history.as_deref() == history => PAUSE_MIN,
            Some(_) => self.pause,
            None => Duration::ZERO,
        };
        now.duration_since(self.at) >= pause
    }

    /// Returns the pause after another attempt.
    fn next_pause(&self, now: Instant, history: Option<&str>) -> Duration {
        match history {
            Some(_) if now.duration_since(self.at) >= CALM => PAUSE_MIN,
            Some(_) if self.history.as_deref() != history => self.pause.saturating_mul(2).min(PAUSE_MAX),
            _ => self.pause,
        }
    }
}

impl Histories {
    pub fn new(config_store: Arc<dyn ConfigStore>) -> Self {
        Self {
            config_store,
            is_writing: Arc::default(),
            removed: BTreeSet::new(),
            writes: BTreeMap::new(),
            next_sweep: None,
        }
    }

    /// Returns the state that was seen last.
    pub fn of(&self, key: &Key) -> Option<String> {
        let stored = self.config_store.read(TABLE, &name(key))?;
        serde_json::from_str(&stored.value).ok()
    }

    /// Forgets the state of a link that was removed. Another cluster may get its name. [`Self::look`] does the work.
    pub fn forget(&mut self, key: &Key) {
        self.removed.insert(key.clone());
    }

    /// Stores the first state of `seen` that is another one than in the store, or removes one of a link that does not
    /// exist. `seen` has the states that links of this node see now. `hosts` says whether this node has the session of
    /// a link: other nodes do the work for others.
    pub fn look(
        &mut self,
        now: Instant,
        seen: &[(Key, String)],
        is_defined: impl Fn(&Key) -> bool,
        hosts: impl Fn(&Key) -> bool,
    ) {
        // What is being written may be about a link that was removed meanwhile.
        if self.is_writing.load(Ordering::Acquire) {
            return;
        }
        if self.next_sweep.is_none_or(|due| due <= now) {
            self.next_sweep = Some(now + SWEEP);
            self.sweep(|key| !is_defined(key) && hosts(key));
        }
        let config_store = &self.config_store;
        self.removed.retain(|key| !is_defined(key) && config_store.read(TABLE, &name(key)).is_some());
        self.writes.retain(|key, _| is_defined(key) || self.removed.contains(key));
        let states = seen.iter().map(|(key, history)| (key, Some(history.as_str())));
        let states = states.filter(|(key, history)| self.of(key).as_deref() != *history);
        let mut changes = states.chain(self.removed.iter().map(|key| (key, None)));
        let may_write =
            |key: &Key, history| self.writes.get(key).is_none_or(|last| last.allows(now, history));
        let due = changes.find(|(key, history)| may_write(key, *history));
        if let Some((key, history)) = due.map(|(key, history)| (key.clone(), history.map(str::to_owned))) {
            self.write(now, key, history);
        }
    }

    /// Finds states of links that do not exist, such as those of links that were removed while no node had their
    /// session.
    fn sweep(&mut self, is_left: impl Fn(&Key) -> bool) {
        let mut after: Option<Box<str>> = None;
        loop {
            let page = self.config_store.page(TABLE, after.as_deref(), PAGE);
            let keys = page.iter().filter_map(|(name, _)| key_of(name));
            self.removed.extend(keys.filter(|key| is_left(key)));
            if page.len() < PAGE {
                return;
            }
            after = page.into_iter().next_back().map(|(name, _)| name);
        }
    }

    fn write(&mut self, now: Instant, key: Key, history: Option<String>) {
        let change = match &history {
            None => Change::remove(TABLE, name(&key)),
            Some(history) => match Change::put(TABLE, name(&key), history) {
                Ok(change) => change,
                Err(error) => {
                    tracing::debug!(%error, "cluster links: the state of the other cluster cannot be stored");
                    return;
                }
            },
        };
        let pause = self.writes.get(&key).map_or(PAUSE_MIN, |last| last.next_pause(now, history.as_deref()));
        self.writes.insert(key, Write { history, at: now, pause });
        let (config_store, is_writing) = (self.config_store.clone(), self.is_writing.clone());
        is_writing.store(true, Ordering::Release);
        let run = move || {
            if let Err(error) = config_store.propose(vec![change]) {
                tracing::debug!(%error, "cluster links: the state of the other cluster is not stored; trying again");
            }
            is_writing.store(false, Ordering::Release);
        };
        if let Err(error) = critical::spawn("link-history", run) {
            tracing::debug!(%error, "cluster links: no thread to store the state of the other cluster; trying again");
            self.is_writing.store(false, Ordering::Release);
        }
    }
}

fn name(key: &Key) -> String {
    format!("{}/{}", key.link, key.origin)
}

fn key_of(name: &str) -> Option<Key> {
    let (link, origin) = name.split_once('/')?;
    Some(Key { link: link.to_owned(), origin: origin.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use configstore::{Applied, Figures, LocalStore, ProposeError, Revision, Stored, View};

    use super::*;

    /// A store that reports each change, and waits with it while it is held.
    struct Store {
        inner: LocalStore,
        changes: Mutex<Sender<(String, Option<String>)>>,
        held: Mutex<()>,
    }

    impl ConfigStore for Store {
        fn propose(&self, batch: Vec<Change>) -> Result<Revision, ProposeError> {
            let _until_released = sync::lock(&self.held);
            self.inner.propose(batch)
        }

        fn read(&self, table: Table, key: &str) -> Option<Stored> {
            self.inner.read(table, key)
        }

        fn page(&self, table: Table, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Stored)> {
            self.inner.page(table, after, limit)
        }

        fn subscribe(&self, table: Table, view: Arc<dyn View>) -> Result<(), String> {
            self.inner.subscribe(table, view)
        }

        fn catch_up(&self) {
            self.inner.catch_up();
        }

        fn catch_up_now(&self) -> Result<(), ProposeError> {
            self.inner.catch_up_now()
        }

        fn figures(&self) -> Figures {
            self.inner.figures()
        }
    }

    impl View for Store {
        fn reset(&self, _: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
            Ok(())
        }

        fn apply(&self, changes: &[Applied<'_>]) {
            let sender = sync::lock(&self.changes);
            for change in changes {
                let change = (change.key.to_owned(), change.value.map(str::to_owned));
                sender.send(change).expect("the test listens");
            }
        }
    }

    struct Bench {
        store: Arc<Store>,
        histories: Histories,
        changes: Receiver<(String, Option<String>)>,
        now: Instant,
        /// Links that exist.
        defined: Vec<Key>,
    }

    impl Bench {
        fn new() -> Self {
            let (sender, changes) = channel();
            let inner = LocalStore::in_memory();
            let store = Arc::new(Store { inner, changes: Mutex::new(sender), held: Mutex::default() });
            store.subscribe(TABLE, store.clone()).expect("a view");
            let histories = Histories::new(store.clone());
            Self { store, histories, changes, now: Instant::now(), defined: vec![key("south")] }
        }

        /// Looks, without a wait for the change that is stored.
        fn begin(&mut self, seen: &[(&str, &str)]) {
            let seen: Vec<(Key, String)> =
                seen.iter().map(|(link, history)| (key(link), (*history).to_owned())).collect();
            let defined = &self.defined;
            self.histories.look(self.now, &seen, |key| defined.contains(key), |key| key.link != "elsewhere");
        }

        fn settle(&self) -> Vec<(String, Option<String>)> {
            while self.histories.is_writing.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            self.changes.try_iter().collect()
        }

        /// Looks once, and returns what was stored.
        fn look(&mut self, seen: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
            self.begin(seen);
            self.settle()
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
        }
    }

    fn key(link: &str) -> Key {
        Key { link: link.into(), origin: "east".into() }
    }

    fn put(link: &str, history: &str) -> (String, Option<String>) {
        (format!("{link}/east"), Some(format!("\"{history}\"")))
    }

    fn removal(link: &str) -> (String, Option<String>) {
        (format!("{link}/east"), None)
    }

    #[test]
    fn the_last_state_is_stored_once_and_forgotten_with_the_link() {
        let mut bench = Bench::new();
        assert_eq!(bench.histories.of(&key("south")), None);
        assert_eq!(bench.look(&[("south", "n:1")]), [put("south", "n:1")]);
        assert_eq!(bench.look(&[("south", "n:1")]), []);
        bench.pass(PAUSE_MIN);
        assert_eq!(bench.look(&[("south", "n:2")]), [put("south", "n:2")]);
        bench.histories = Histories::new(bench.store.clone());
        assert_eq!(bench.histories.of(&key("south")).as_deref(), Some("n:2"));
        assert_eq!(bench.look(&[("south", "n:2")]), [], "what is stored is not stored again");
        bench.defined.clear();
        bench.histories.forget(&key("south"));
        assert_eq!(bench.look(&[]), [removal("south")]);
        assert_eq!((bench.histories.of(&key("south")), bench.look(&[])), (None, vec![]));
        assert!(bench.histories.removed.is_empty() && bench.histories.writes.is_empty());
    }

    /// Each state is an entry of the replicated configuration store.
    #[test]
    fn a_cluster_whose_state_changes_all_the_time_causes_few_changes() {
        let mut bench = Bench::new();
        let mut count = 0;
        for number in 0..24 * 60 {
            let history = format!("n:{number}");
            count += bench.look(&[("south", &history)]).len();
            bench.pass(Duration::from_secs(60));
        }
        assert!((24..=32).contains(&count), "{count} in a day");
        bench.pass(CALM);
        for number in 1..=2 {
            let history = format!("c:{number}");
            assert_eq!(bench.look(&[("south", &history)]).len(), 1, "a calm day lets the next ones pass");
            bench.pass(PAUSE_MIN);
        }
    }

    #[test]
    fn a_link_that_is_removed_while_its_state_is_stored_is_forgotten() {
        let mut bench = Bench::new();
        let store = bench.store.clone();
        let held = sync::lock(&store.held);
        bench.begin(&[("south", "n:1")]);
        bench.defined.clear();
        bench.histories.forget(&key("south"));
        bench.begin(&[]);
        drop(held);
        assert_eq!(bench.settle(), [put("south", "n:1")]);
        assert_eq!(bench.look(&[]), [removal("south")]);
    }

    #[test]
    fn states_of_links_that_do_not_exist_are_found() {
        let mut bench = Bench::new();
        for link in ["south", "gone", "elsewhere"] {
            assert_eq!(bench.look(&[(link, "n:1")]), [put(link, "n:1")]);
        }
        assert_eq!(bench.look(&[]), []);
        bench.pass(SWEEP);
        assert_eq!(bench.look(&[]), [removal("gone")], "it belongs to this node, and no link has it");
        bench.pass(SWEEP);
        assert_eq!(bench.look(&[]), []);
    }
}
