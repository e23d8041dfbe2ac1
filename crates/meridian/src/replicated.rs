//! Settings shared by all nodes of a cluster: records of the configuration store, which each node applies between its
//! file and its own changes.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};

use api::{Author, Changes, Refused, ReplicatedValue, SettingProblem, Timestamp};
use configstore::{Applied, Change, ConfigStore, Table, View};
use serde::{Deserialize, Serialize};
use settings::{Fault, Layers, Loaded, Problem, Runtime, Source};

use crate::config::Config;

const TABLE: Table = Table::named("settings");

/// A replicated setting. Unknown fields of later versions are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    value: String,
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    comment: String,
    at: Timestamp,
}

/// The cluster's settings, as this node knows them.
pub struct ReplicatedSettings {
    config_store: Arc<dyn ConfigStore>,
    wanted: Arc<Records>,
}

struct Records {
    records: Mutex<BTreeMap<String, Record>>,
    updates: SyncSender<()>,
}

/// Signals that settings have changed.
pub type Updates = Receiver<()>;

impl ReplicatedSettings {
    /// Opens the settings.
    ///
    /// # Errors
    /// Records that cannot be read.
    pub fn open(config_store: Arc<dyn ConfigStore>) -> Result<(Self, Updates), String> {
        let (sender, updates) = mpsc::sync_channel(1);
        let wanted = Arc::new(Records { records: Mutex::default(), updates: sender });
        config_store.subscribe(TABLE, wanted.clone())?;
        Ok((Self { config_store, wanted }, updates))
    }

    /// The cluster's settings, whether this node can apply them or not.
    pub fn wanted(&self) -> Runtime {
        let records = self.wanted.lock();
        Runtime::from(
            records.iter().map(|(name, one)| (name.clone(), one.value.clone())).collect::<BTreeMap<_, _>>(),
        )
    }

    pub fn value(&self, name: &str) -> Option<ReplicatedValue> {
        let records = self.wanted.lock();
        let Record { value, by, comment, at } = records.get(name)?.clone();
        Some(ReplicatedValue { value, by, comment, at })
    }

    /// Author of the last change of these settings.
    pub fn author<'a>(&self, names: impl Iterator<Item = &'a str>) -> Author {
        let records = self.wanted.lock();
        let last = names.filter_map(|name| records.get(name)).max_by_key(|one| one.at.0);
        last.map_or_else(
            || cluster_author("", ""),
            |one| cluster_author(one.by.as_deref().unwrap_or_default(), &one.comment),
        )
    }

    /// Proposes these changes to the cluster, all or none. When it returns, this node knows the result. Waits for
    /// other nodes.
    ///
    /// # Errors
    /// The proposal failed; the reason.
    pub fn propose(&self, changes: &Changes, author: &Author) -> Result<(), Refused> {
        let at = Timestamp::now();
        let by = (!author.by.is_empty()).then(|| author.by.clone());
        let batch: Result<Vec<_>, _> = changes
            .iter()
            .map(|(name, value)| match value {
                None => Ok(Change::remove(TABLE, name.as_str())),
                Some(value) => {
                    let (by, comment) = (by.clone(), author.comment.clone());
                    Change::put(TABLE, name.as_str(), &Record { value: value.clone(), by, comment, at })
                }
            })
            .collect();
        let batch = batch.map_err(|error| Refused::Failed(error.to_string()))?;
        self.config_store.propose(batch).map(drop).map_err(Refused::NotCommitted)
    }
}

/// Author of a replicated change in the history of a node.
pub fn cluster_author(by: &str, comment: &str) -> Author {
    let comment = match comment {
        "" => CLUSTER_COMMENT.to_owned(),
        comment => format!("{CLUSTER_COMMENT}: {comment}"),
    };
    Author { by: by.to_owned(), comment }
}

const CLUSTER_COMMENT: &str = "for the whole cluster";

impl Records {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        sync::lock(&self.records)
    }

    fn apply_change(records: &mut BTreeMap<String, Record>, change: Applied<'_>) {
        match change.value.map(serde_json::from_str) {
            None => drop(records.remove(change.key)),
            Some(Ok(record)) => drop(records.insert(change.key.to_owned(), record)),
            Some(Err(error)) => tracing::error!(
                setting = change.key,
                "the settings of the cluster cannot be read, the previous ones stay in force: \
                     {error}"
            ),
        }
    }

    fn notify(&self) {
        // A full channel already holds a signal.
        let _ = self.updates.try_send(());
    }
}

impl View for Records {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut fresh = BTreeMap::new();
        records.for_each(|record| Self::apply_change(&mut fresh, record));
        *self.lock() = fresh;
        self.notify();
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut records = self.lock();
        changes.iter().for_each(|change| Self::apply_change(&mut records, *change));
        drop(records);
        self.notify();
    }
}

/// Adds the cluster's settings to these layers, as far as they are valid on this node. Also returns those that are
/// not.
///
/// # Errors
/// Other layers are wrong.
pub fn merge_replicated(
    layers: &Layers,
    wanted: Runtime,
) -> Result<(Layers, Loaded<Config>, Vec<SettingProblem>), Vec<Problem>> {
    let mut layers = Layers { cluster: wanted, ..layers.clone() };
    let mut refused = Vec::new();
    loop {
        let problems = match settings::load(&layers) {
            Ok(loaded) => return Ok((layers, loaded, refused)),
            Err(problems) => problems,
        };
        if problems.iter().any(|problem| problem.source != Source::Cluster) {
            return Err(problems);
        }
        // Each round removes at least one.
        let before = layers.cluster.values().len();
        for problem in problems {
            let one = setting_problem(&problem);
            layers.cluster.put(&one.name, None);
            refused.push(one);
        }
        if layers.cluster.values().len() == before {
            layers.cluster = Runtime::default();
        }
    }
}

pub fn setting_problem(problem: &Problem) -> SettingProblem {
    SettingProblem {
        name: problem.fault.name().unwrap_or_default().to_owned(),
        detail: match &problem.fault {
            Fault::Invalid { why, .. } => why.to_string(),
            fault => fault.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use configstore::LocalStore;

    use super::*;

    fn changes(of: &[(&str, Option<&str>)]) -> Changes {
        of.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect()
    }

    #[test]
    fn a_replicated_setting_is_known_with_author_and_comment() {
        let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
        let (replicated, updates) = ReplicatedSettings::open(config_store).unwrap();
        let author = Author { by: "ops".into(), comment: "more room".into() };
        let set = changes(&[("queue.messages_max", Some("7")), ("log.level", Some("debug"))]);
        replicated.propose(&set, &author).unwrap();
        replicated.propose(&changes(&[("log.level", None), ("mqtt.qos_max", None)]), &author).unwrap();
        assert_eq!(replicated.wanted().values().len(), 1);
        let value = replicated.value("queue.messages_max").unwrap();
        assert_eq!((value.value.as_str(), value.by.as_deref()), ("7", Some("ops")));
        assert_eq!(replicated.value("log.level"), None);
        let author = replicated.author(["queue.messages_max", "log.level"].into_iter());
        assert_eq!(
            (author.by.as_str(), author.comment.as_str()),
            ("ops", "for the whole cluster: more room")
        );
        assert_eq!(replicated.author(std::iter::empty()).comment, CLUSTER_COMMENT);
        // The first signal is of the empty table; later changes signal once.
        assert!(updates.try_recv().is_ok() && updates.try_recv().is_err());
    }

    #[test]
    fn a_setting_that_is_invalid_here_is_left_out_and_reported() {
        let mut wanted = Runtime::default();
        wanted.put("mqtt.qos_max", Some("1"));
        wanted.put("queue.messages_max", Some("many"));
        wanted.put("queue.of_a_later_version", Some("1"));
        let (layers, loaded, refused) = merge_replicated(&Layers::default(), wanted.clone()).unwrap();
        assert_eq!(loaded.source("mqtt.qos_max"), &Source::Cluster);
        assert_eq!(layers.cluster.values().len(), 1);
        let names: Vec<_> = refused.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["queue.messages_max", "queue.of_a_later_version"]);
        let wrong = Layers { set: vec!["mqtt.qos_max=9".to_owned()], ..Layers::default() };
        assert_eq!(merge_replicated(&wrong, wanted).unwrap_err().len(), 3);
    }

    #[test]
    fn an_unreadable_record_changes_nothing() {
        let config_store = Arc::new(LocalStore::in_memory());
        let (replicated, _updates) = ReplicatedSettings::open(config_store.clone()).unwrap();
        replicated.propose(&changes(&[("log.level", Some("debug"))]), &Author::default()).unwrap();
        config_store.propose(vec![Change::number(TABLE, "log.level", 7)]).unwrap();
        assert_eq!(replicated.wanted().get("log.level"), Some("debug"));
        // A record as a later version might write it.
        let later = serde_json::json!({"value": "warn", "at": "2026-11-22T00:00:00Z", "until": "noon"});
        config_store.propose(vec![Change::put(TABLE, "log.level", &later).unwrap()]).unwrap();
        assert_eq!(replicated.wanted().get("log.level"), Some("warn"));
    }
}
