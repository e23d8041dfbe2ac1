//! State of other clusters that links have seen last. It is in the configuration store, so that a restore is noticed
//! although this node was restarted, or another node runs the link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use configstore::{Change, ConfigStore, Table};

use crate::puller::Key;

const TABLE: Table = Table::named("link_histories");
/// Pause after a change that was not stored.
const RETRY: Duration = Duration::from_secs(60);

/// The stored states. One change is stored at a time, on a thread of its own, because that may wait for other nodes.
pub struct Histories {
    config_store: Arc<dyn ConfigStore>,
    is_writing: Arc<AtomicBool>,
    /// Time of the last attempt for each link and origin, with the state.
    attempts: BTreeMap<Key, (String, Instant)>,
}

impl Histories {
    pub fn new(config_store: Arc<dyn ConfigStore>) -> Self {
        Self { config_store, is_writing: Arc::default(), attempts: BTreeMap::new() }
    }

    /// Returns the state that was seen last.
    pub fn of(&self, key: &Key) -> Option<String> {
        let stored = self.config_store.read(TABLE, &name(key))?;
        serde_json::from_str(&stored.value).ok()
    }

    /// Stores the state that a link sees, if it is another one.
    pub fn note(&mut self, key: &Key, history: &str) {
        let is_known = self.attempts.get(key).is_some_and(|(known, _)| known == history);
        let is_early = self.attempts.get(key).is_some_and(|(_, at)| at.elapsed() < RETRY);
        if is_known && is_early || self.is_writing.load(Ordering::Acquire) {
            return;
        }
        self.attempts.insert(key.clone(), (history.to_owned(), Instant::now()));
        if self.of(key).as_deref() != Some(history) {
            self.write(Change::put(TABLE, name(key), &history).ok());
        }
    }

    /// Forgets the state of a link that was removed. Another cluster may get its name.
    pub fn forget(&mut self, key: &Key) {
        self.attempts.remove(key);
        if self.of(key).is_some() {
            self.write(Some(Change::remove(TABLE, name(key))));
        }
    }

    fn write(&self, change: Option<Change>) {
        let Some(change) = change else { return };
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use configstore::{Applied, LocalStore, View};

    use super::*;

    /// Reports each change.
    struct Changes(Sender<(String, Option<String>)>);

    impl View for Changes {
        fn reset(&self, _: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
            Ok(())
        }

        fn apply(&self, changes: &[Applied<'_>]) {
            for change in changes {
                self.0
                    .send((change.key.to_owned(), change.value.map(str::to_owned)))
                    .expect("the test listens");
            }
        }
    }

    #[test]
    fn the_last_state_is_stored_once_and_forgotten_with_the_link() {
        let store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
        let (sender, changes) = channel();
        store.subscribe(TABLE, Arc::new(Changes(sender))).expect("a view");
        let mut histories = Histories::new(store.clone());
        let key = Key { link: "south".into(), origin: "east".into() };
        let wait = |histories: &Histories| {
            let change = changes.recv_timeout(Duration::from_secs(30)).expect("a change");
            while histories.is_writing.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            change
        };
        assert_eq!(histories.of(&key), None);
        histories.note(&key, "n:1");
        assert_eq!(wait(&histories), ("south/east".into(), Some("\"n:1\"".into())));
        histories.note(&key, "n:1");
        histories.note(&key, "n:2");
        assert_eq!(wait(&histories), ("south/east".into(), Some("\"n:2\"".into())));
        let mut later = Histories::new(store);
        assert_eq!(later.of(&key).as_deref(), Some("n:2"));
        later.note(&key, "n:2");
        later.forget(&key);
        assert_eq!(wait(&later), ("south/east".into(), None), "what is stored is not stored again");
        assert_eq!(later.of(&key), None);
    }
}
