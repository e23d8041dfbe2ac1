//! Connectors and actions of a node that only remembers them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Condvar, Mutex};

use api::{
    Action, ActionStatus, ActionTest, ActionTested, Actions, Connector, ConnectorTest, ConnectorTested,
    EntryRefused, EntrySource, TestError, TestStage, TestedField, TestedRecord, Timestamp, WaitingMessages,
};
use auth::Authorship;
use serde_json::{Map, Value, json};

/// The actions of a node of this name. It has the action `alarms` and the connector `archive` of its configuration
/// file.
/// Nodes with other names than `a` and `c` run `alarms`.
pub struct FakeActions {
    node: String,
    pub entries: Mutex<Entries>,
    /// Number of tests that wait, and whether they may go on.
    waiting: Mutex<(usize, bool)>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Entries {
    pub connectors: BTreeMap<String, Connector>,
    pub actions: BTreeMap<String, Action>,
    /// Actions that were removed with their messages.
    pub emptied: Vec<String>,
    /// Actions that have a session.
    pub sessions: Vec<String>,
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn connector(name: &str, settings: &Map<String, Value>, by: Option<&Authorship>) -> Connector {
    Connector {
        name: name.to_owned(),
        kind: "http",
        source: if by.is_some() { EntrySource::Store } else { EntrySource::File },
        settings: settings.clone(),
        used_by: Vec::new(),
        author: by.map_or_else(String::new, |by| by.author.clone()),
        changed_at: by.map(|by| Timestamp::of_ms(by.now_ms)),
        fault: None,
    }
}

fn action(name: &str, settings: &Map<String, Value>, by: Option<&Authorship>) -> Action {
    let text = |key: &str| settings.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Action {
        name: name.to_owned(),
        enabled: true,
        source: if by.is_some() { EntrySource::Store } else { EntrySource::File },
        kind: Some("republish"),
        rule: text("rule"),
        connector: text("connector"),
        description: text("description"),
        settings: settings.clone(),
        author: by.map_or_else(String::new, |by| by.author.clone()),
        changed_at: by.map(|by| Timestamp::of_ms(by.now_ms)),
        fault: None,
        status: None,
    }
}

fn of_file(name: &str) -> EntryRefused {
    EntryRefused::Conflict(format!("`{name}` is in the configuration file of the node"))
}

impl FakeActions {
    pub fn on(node: &str) -> Self {
        let settings = object(json!({"rule": "SELECT * FROM \"alarm/#\"", "topic": "t"}));
        let url = object(json!({"url": "http://user:pass@h/?key=1"}));
        let entries = Entries {
            connectors: [("archive".to_owned(), connector("archive", &url, None))].into(),
            actions: [("alarms".to_owned(), action("alarms", &settings, None))].into(),
            emptied: Vec::new(),
            sessions: Vec::new(),
        };
        let entries = Mutex::new(entries);
        Self { node: node.to_owned(), entries, waiting: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until so many tests wait.
    pub fn await_tests(&self, count: usize) {
        let waiting = self.waiting.lock().unwrap();
        drop(self.changed.wait_while(waiting, |waiting| waiting.0 < count).unwrap());
    }

    pub fn release_tests(&self) {
        self.waiting.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(waiting, |waiting| !waiting.1).unwrap());
    }
}

fn is_of(tenant: Option<&str>, settings: &Map<String, Value>) -> bool {
    let own = settings.get("tenant").and_then(Value::as_str).unwrap_or_default();
    tenant.is_none_or(|tenant| own == tenant)
}

/// A page of the entries, as a node lists them.
pub fn page<T: Clone>(entries: &BTreeMap<String, T>, after: Option<&str>, limit: usize) -> Vec<T> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    entries.range::<str, _>((from, Bound::Unbounded)).take(limit).map(|(_, entry)| entry.clone()).collect()
}

impl Actions for FakeActions {
    fn connectors(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Vec<Connector> {
        let mut connectors = self.entries.lock().unwrap().connectors.clone();
        connectors.retain(|_, connector| is_of(tenant, &connector.settings));
        page(&connectors, after, limit)
    }

    fn connector(&self, name: &str) -> Option<Connector> {
        self.entries.lock().unwrap().connectors.get(name).cloned()
    }

    fn put_connector(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        if name == "archive" {
            return Err(of_file(name));
        }
        let new = connector(name, settings, Some(by));
        Ok(self.entries.lock().unwrap().connectors.insert(name.to_owned(), new).is_none())
    }

    fn remove_connector(&self, name: &str) -> Result<(), EntryRefused> {
        let removed = self.entries.lock().unwrap().connectors.remove(name);
        removed.map(drop).ok_or_else(|| EntryRefused::NotFound(format!("there is no connector `{name}`")))
    }

    fn test_connector(&self, _: &ConnectorTest) -> Result<ConnectorTested, EntryRefused> {
        Ok(ConnectorTested { ok: false, message: "it does not answer".to_owned(), took_ms: 3 })
    }

    fn actions(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Vec<Action> {
        let mut actions = self.entries.lock().unwrap().actions.clone();
        actions.retain(|_, action| is_of(tenant, &action.settings));
        page(&actions, after, limit)
    }

    fn action(&self, name: &str) -> Option<Action> {
        self.entries.lock().unwrap().actions.get(name).cloned()
    }

    fn put_action(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        if name == "alarms" {
            return Err(of_file(name));
        }
        if !settings.contains_key("rule") {
            let (setting, why) = ("rule".to_owned(), "the action has no rule; write one".to_owned());
            return Err(EntryRefused::Setting { setting, why });
        }
        let new = action(name, settings, Some(by));
        Ok(self.entries.lock().unwrap().actions.insert(name.to_owned(), new).is_none())
    }

    fn remove_action(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused> {
        let mut entries = self.entries.lock().unwrap();
        let removed = entries.actions.remove(name);
        let unknown = || EntryRefused::NotFound(format!("there is no action `{name}`"));
        if waiting == WaitingMessages::Delete {
            // An earlier request may have removed the action.
            let at = entries.sessions.iter().position(|session| session == name).ok_or_else(unknown)?;
            entries.sessions.remove(at);
            entries.emptied.push(name.to_owned());
            return Ok(());
        }
        removed.map(drop).ok_or_else(unknown)
    }

    fn test_action(&self, test: &ActionTest) -> Result<ActionTested, EntryRefused> {
        if test.live {
            self.wait();
        }
        let field = TestedField { name: "topic".to_owned(), value: Some("b".to_owned()) };
        Ok(ActionTested {
            matched: true,
            outputs: vec![json!({"a": 1})],
            records: vec![TestedRecord { fields: vec![field] }],
            error: Some(TestError {
                stage: TestStage::Template,
                message: "the output has no `x`".to_owned(),
            }),
            message: test.message.clone().map(Value::from),
        })
    }

    fn views(&self) -> Vec<ActionStatus> {
        let runs_here = !["a", "c"].contains(&self.node.as_str());
        let status = ActionStatus {
            name: "alarms".to_owned(),
            node: self.node.clone(),
            state: "running",
            session: "$action/alarms".to_owned(),
            written: 5,
            expired: 2,
            queued_messages: 3,
            queued_bytes: 300,
            oldest_s: Some(60),
            dropped: 7,
            dropped_queue: 4,
            dropped_qos0: 1,
            ..ActionStatus::default()
        };
        runs_here.then_some(status).into_iter().collect()
    }
}
