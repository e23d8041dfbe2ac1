//! The connectors and actions of the node for the API.

use std::sync::Arc;
use std::time::Instant;

use actions::{Definitions, Engine, RegistryError, Stage, TrialMessage, Tried};
use api::{
    Action, ActionStatus, ActionTest, ActionTested, Connector, ConnectorTest, ConnectorTested, EntryRefused,
    TestError, TestStage, TestedField, TestedRecord, Timestamp, WaitingMessages,
};
use auth::Authorship;
use definitions::{Definition, EntryError, settings_to_json};
use serde_json::{Map, Value};
use sinks::{ActionSettings, ConnectorSettings};

use crate::entry_views::{authorship, entry_refused, remove_messages, source};

/// The actions of a node with its name.
pub struct ActionViews {
    pub engine: Arc<Engine>,
    pub node: String,
}

impl ActionViews {
    fn definitions(&self) -> Arc<Definitions> {
        self.engine.registry().definitions()
    }
}

impl api::Actions for ActionViews {
    fn connectors(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Vec<Connector> {
        let definitions = self.definitions();
        let behind = |name: &str| after.is_none_or(|after| name > after);
        let entries = definitions.connectors.iter().filter(|(name, entry)| {
            behind(name) && tenant.is_none_or(|tenant| entry.settings.tenant == tenant)
        });
        entries.take(limit).map(|(_, entry)| connector(&definitions, entry)).collect()
    }

    fn connector(&self, name: &str) -> Option<Connector> {
        let definitions = self.definitions();
        definitions.connectors.get(name).map(|entry| connector(&definitions, entry))
    }

    fn put_connector(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        self.engine.registry().put_connector(name, settings, &authorship(by)).map_err(refused)
    }

    fn remove_connector(&self, name: &str) -> Result<(), EntryRefused> {
        self.engine.registry().remove_connector(name).map_err(refused)
    }

    fn test_connector(&self, test: &ConnectorTest) -> Result<ConnectorTested, EntryRefused> {
        let registry = self.engine.registry();
        let definitions = registry.definitions();
        let settings = test.settings.clone().map(unnamed);
        let connector =
            registry.connector_to_test(test.name.as_deref(), settings.as_ref()).map_err(refused)?;
        // An action that uses it says more, such as the table. Without one, any action does.
        let of_name = test.name.as_deref().and_then(|name| definitions.used_by(name).next());
        let action =
            of_name.map_or_else(|| actions::trial_action(&connector), |entry| entry.settings.clone());
        let began = Instant::now();
        let tested = actions::test_connector(&connector, &action, registry.guard())
            .map_err(|problem| setting(problem.setting, problem.why))?;
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (ok, message) = match tested {
            Ok(message) => (true, message),
            Err(message) => (false, message),
        };
        Ok(ConnectorTested { ok, message, took_ms })
    }

    fn actions(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Vec<Action> {
        let definitions = self.definitions();
        let behind = |name: &str| after.is_none_or(|after| name > after);
        let entries = definitions.actions.iter().filter(|(name, entry)| {
            behind(name) && tenant.is_none_or(|tenant| entry.settings.tenant == tenant)
        });
        entries.take(limit).map(|(_, entry)| action(&definitions, entry)).collect()
    }

    fn action(&self, name: &str) -> Option<Action> {
        let definitions = self.definitions();
        definitions.actions.get(name).map(|entry| action(&definitions, entry))
    }

    fn put_action(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused> {
        if let Some(why) = self.engine.unfit(settings) {
            return Err(setting("queue_full", why.to_owned()));
        }
        self.engine.registry().put_action(name, settings, &authorship(by)).map_err(refused)
    }

    fn remove_action(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused> {
        let removed = self.engine.registry().remove_action(name).map_err(refused);
        remove_messages(removed, waiting, actions::is_name(name), || self.engine.remove_session(name))
    }

    fn test_action(&self, test: &ActionTest) -> Result<ActionTested, EntryRefused> {
        let registry = self.engine.registry();
        let mut settings = unnamed(test.settings.clone());
        // The name and the rule are those of the test: an error in the rule is a result.
        let rule = settings.get("rule").and_then(Value::as_str).unwrap_or_default().to_owned();
        settings.insert("rule".to_owned(), Value::from("SELECT * FROM \"#\""));
        let connector = settings.get("connector").and_then(Value::as_str).unwrap_or_default();
        if connector.is_empty() && !settings.contains_key("topic") {
            settings.insert("topic".to_owned(), Value::from("test"));
        }
        let mut action = registry.parse_action("unnamed", &settings).map_err(refused)?;
        action.rule = rule;
        let message = match (&test.message, test.live) {
            (Some(message), _) => {
                let event = event(test.event.as_deref())?;
                TrialMessage::Sample(event, Value::Object(message.clone()).to_string())
            }
            (None, true) => TrialMessage::Live,
            (None, false) => {
                let why = "the test has no message; write its fields, or set live to true";
                return Err(setting("message", why.to_owned()));
            }
        };
        let definitions = registry.definitions();
        let connector = definitions.connector_of(&action).map(|entry| &entry.settings);
        let tried = self.engine.test_action(&action, connector, message);
        Ok(tested(tried.map_err(|problem| setting(problem.setting, problem.why))?))
    }

    fn views(&self) -> Vec<ActionStatus> {
        self.engine.statuses().into_iter().map(|status| self.status(status)).collect()
    }
}

impl ActionViews {
    fn status(&self, status: actions::ActionStatus) -> ActionStatus {
        let counters = status.counters;
        let queue_dropped = status.queue.dropped.total();
        ActionStatus {
            name: status.name,
            node: self.node.clone(),
            state: status.state,
            failing: status.is_failing,
            since_s: status.since.map_or(0, |since| since.as_secs()),
            last_error: status.last_error,
            session: status.session,
            queued_messages: status.queue.messages,
            queued_bytes: status.queue.bytes,
            oldest_s: status.queue.oldest.map(|waits| waits.as_secs()),
            in_flight: status.in_flight,
            received: counters.received,
            not_selected: counters.not_selected,
            evaluation_errors: counters.evaluation_errors,
            render_errors: counters.render_errors,
            records: counters.records,
            written: counters.written,
            bytes: counters.bytes,
            batches: counters.batches,
            retries: counters.retries,
            refused: counters.refused,
            expired: counters.expired,
            given_up: counters.given_up,
            dead_letters: counters.dead_letters,
            fallbacks: counters.fallbacks,
            dropped: counters.dropped + counters.dropped_qos0 + queue_dropped,
            dropped_queue: queue_dropped,
            dropped_qos0: counters.dropped_qos0,
            loops: counters.loops,
            last_write_ms: counters
                .last_write
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// Settings to test, which may be an entry of a configuration file with its name.
fn unnamed(mut settings: Map<String, Value>) -> Map<String, Value> {
    settings.remove("name");
    settings
}

fn event(name: Option<&str>) -> Result<rules::Event, EntryRefused> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(rules::Event::Publish) };
    rules::Event::of_name(name).ok_or_else(|| {
        let names: Vec<_> =
            rules::Event::ALL.iter().map(|event| event.name()).filter(|name| !name.is_empty()).collect();
        setting("event", format!("there is no event `{name}`; the events are {}", names.join(", ")))
    })
}

fn tested(tried: Tried) -> ActionTested {
    let parsed = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
    let records = tried.records.into_iter().map(|fields| TestedRecord {
        fields: fields
            .into_iter()
            .map(|(name, value)| TestedField {
                name,
                value: value.map(|value| String::from_utf8_lossy(&value).into_owned()),
            })
            .collect(),
    });
    ActionTested {
        matched: !tried.outputs.is_empty(),
        outputs: tried.outputs.into_iter().map(parsed).collect(),
        records: records.collect(),
        error: tried.error.map(|(stage, message)| TestError {
            stage: match stage {
                Stage::Rule => TestStage::Rule,
                Stage::Evaluation => TestStage::Evaluation,
                Stage::Template => TestStage::Template,
            },
            message,
        }),
        message: tried.message.map(parsed),
    }
}

/// Word of the kind of a connector, as in its settings.
fn kind(connector: &ConnectorSettings) -> &'static str {
    use settings::Value as _;
    let shown = connector.kind.to_toml().unwrap_or_default();
    let mut words = sinks::ConnectorKind::CHOICES.iter().map(|choice| choice.name);
    words.find(|word| shown.trim_matches('"') == *word).unwrap_or_default()
}

fn connector(definitions: &Definitions, entry: &Definition<ConnectorSettings>) -> Connector {
    let name = &entry.settings.name;
    Connector {
        name: name.clone(),
        kind: kind(&entry.settings),
        source: source(entry.source),
        settings: settings_to_json(&entry.settings),
        used_by: definitions.used_by(name).map(|action| action.settings.name.clone()).collect(),
        author: entry.author.clone(),
        changed_at: entry.changed_ms.map(Timestamp::of_ms),
        fault: entry.fault.clone(),
    }
}

fn action(definitions: &Definitions, entry: &Definition<ActionSettings>) -> Action {
    let settings = &entry.settings;
    let of_connector = definitions.connector_of(settings).map(|connector| kind(&connector.settings));
    Action {
        name: settings.name.clone(),
        enabled: settings.enabled,
        source: source(entry.source),
        kind: if settings.connector.is_empty() { Some("republish") } else { of_connector },
        rule: settings.rule.clone(),
        connector: settings.connector.clone(),
        description: settings.description.clone(),
        settings: settings_to_json(settings),
        author: entry.author.clone(),
        changed_at: entry.changed_ms.map(Timestamp::of_ms),
        fault: entry.fault.clone(),
        status: None,
    }
}

fn setting(setting: &str, why: String) -> EntryRefused {
    EntryRefused::Setting { setting: setting.to_owned(), why }
}

fn refused(error: RegistryError) -> EntryRefused {
    let detail = error.to_string();
    match error {
        RegistryError::Entry(error) => {
            let list = match &error {
                EntryError::Unknown { noun, .. } => format!("`GET /api/v1/{noun}s` lists the {noun}s"),
                _ => String::new(),
            };
            entry_refused(error, &list)
        }
        RegistryError::Used { .. } | RegistryError::Breaks { .. } => EntryRefused::Conflict(detail),
    }
}
