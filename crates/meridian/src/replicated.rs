//! Settings that hold for all nodes of a cluster: records of its ledger, which each node puts between its file and its own changes.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{Author, Changes, Refused, ReplicatedValue, SettingProblem, Timestamp};
use configstore::{Applied, Change, ConfigStore, Table, View};
use serde::{Deserialize, Serialize};
use settings::{Fault, Layers, Loaded, Problem, Runtime, Source};

use crate::config::Config;

const TABLE: Table = Table::named("settings");

/// What a later version adds to a record is left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    value: String,
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    comment: String,
    at: Timestamp,
}

/// The settings that the cluster agrees on, as this node has heard of them.
pub struct ReplicatedSettings {
    /// `None` where the nodes agree on nothing: their list is in the configuration.
    config_store: Option<Arc<dyn ConfigStore>>,
    wanted: Arc<Records>,
}

struct Records {
    records: Mutex<BTreeMap<String, Record>>,
    updates: SyncSender<()>,
}

/// Something is there to be taken up.
pub type Updates = Receiver<()>;

impl ReplicatedSettings {
    /// # Errors
    /// Records that cannot be had.
    pub fn open(config_store: Option<Arc<dyn ConfigStore>>) -> Result<(Self, Updates), String> {
        let (sender, updates) = mpsc::sync_channel(1);
        let wanted = Arc::new(Records { records: Mutex::default(), updates: sender });
        if let Some(config_store) = &config_store {
            config_store.subscribe(TABLE, wanted.clone())?;
        }
        Ok((Self { config_store, wanted }, updates))
    }

    /// What holds, whether this node can take it up or not.
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

    /// Whoever changed these settings last.
    pub fn author<'a>(&self, names: impl Iterator<Item = &'a str>) -> Author {
        let records = self.wanted.lock();
        let last = names.filter_map(|name| records.get(name)).max_by_key(|one| one.at.0);
        last.map_or_else(
            || cluster_author("", ""),
            |one| cluster_author(one.by.as_deref().unwrap_or_default(), &one.comment),
        )
    }

    /// Whether anything can be agreed upon.
    ///
    /// # Errors
    /// Why not.
    pub fn config_store(&self) -> Result<&Arc<dyn ConfigStore>, Refused> {
        self.config_store.as_ref().ok_or_else(|| {
            Refused::Failed(
                "the nodes of this cluster are listed in the configuration ([[cluster_node]]), and agree on no settings: change it on each \
                 node, or let nodes find each other (cluster.join)"
                    .to_owned(),
            )
        })
    }

    /// Has these changes agreed upon, all or none. When it returns, this node has heard of them. Waits for other nodes.
    ///
    /// # Errors
    /// No agreement, and why.
    pub fn propose(&self, changes: &Changes, author: &Author) -> Result<(), Refused> {
        let config_store = self.config_store()?;
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
        config_store.propose(batch).map(drop).map_err(Refused::NotCommitted)
    }
}

/// What the history of a node says of a change that was agreed upon.
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
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_change(records: &mut BTreeMap<String, Record>, change: Applied<'_>) {
        match change.value.map(serde_json::from_str) {
            None => drop(records.remove(change.key)),
            Some(Ok(record)) => drop(records.insert(change.key.to_owned(), record)),
            Some(Err(error)) => tracing::error!(
                setting = change.key,
                "what the cluster agreed on makes no sense here, and what was known holds on: {error}"
            ),
        }
    }

    fn notify(&self) {
        // Full: who takes it up has not looked yet.
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

/// These layers with what the cluster agrees on, as far as it is known and holds here, and what does not.
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
        // Each round takes one away, at least.
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
    fn what_was_agreed_upon_is_known_with_who_and_why() {
        let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
        let (replicated, updates) = ReplicatedSettings::open(Some(config_store)).unwrap();
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
        // The first is of the empty table; what came since is told once.
        assert!(updates.try_recv().is_ok() && updates.try_recv().is_err());
    }

    #[test]
    fn nodes_of_a_list_agree_on_nothing() {
        let (replicated, _updates) = ReplicatedSettings::open(None).unwrap();
        let refused = replicated.propose(&changes(&[("log.level", Some("debug"))]), &Author::default());
        assert!(refused.unwrap_err().to_string().contains("cluster.join"));
    }

    #[test]
    fn what_does_not_hold_here_is_left_out_and_told() {
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
    fn a_record_without_sense_changes_nothing() {
        let config_store = Arc::new(LocalStore::in_memory());
        let (replicated, _updates) = ReplicatedSettings::open(Some(config_store.clone())).unwrap();
        replicated.propose(&changes(&[("log.level", Some("debug"))]), &Author::default()).unwrap();
        config_store.propose(vec![Change::number(TABLE, "log.level", 7)]).unwrap();
        assert_eq!(replicated.wanted().get("log.level"), Some("debug"));
        // As a later version might write it.
        let later = serde_json::json!({"value": "warn", "at": "2026-11-22T00:00:00Z", "until": "noon"});
        config_store.propose(vec![Change::put(TABLE, "log.level", &later).unwrap()]).unwrap();
        assert_eq!(replicated.wanted().get("log.level"), Some("warn"));
    }
}
