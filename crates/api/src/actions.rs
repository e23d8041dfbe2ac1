//! Connectors and actions, as the API sees them.

use auth::Authorship;
use configstore::ProposeError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::configuration::{without_secrets, without_values};
use crate::timestamp::Timestamp;

/// The connectors and actions of a node or its cluster.
pub trait Actions: Send + Sync {
    /// Connectors in the order of their names, after this one: those of a tenant, or all. The name is empty for those
    /// of no tenant.
    fn connectors(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Vec<Connector>;

    fn connector(&self, name: &str) -> Option<Connector>;

    /// Adds or replaces a connector. Returns true when it is new. Like the other changes, it waits for the
    /// configuration store.
    ///
    /// # Errors
    /// [`EntryRefused`]. Nothing has changed then, here and in the other changes.
    fn put_connector(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused>;

    /// # Errors
    /// [`EntryRefused`].
    fn remove_connector(&self, name: &str) -> Result<(), EntryRefused>;

    /// Connects to the system, and writes nothing. Blocks for up to about 15 s.
    ///
    /// # Errors
    /// [`EntryRefused`]: the connector cannot be made. A system that does not answer is a result.
    fn test_connector(&self, test: &ConnectorTest) -> Result<ConnectorTested, EntryRefused>;

    /// Actions in the order of their names, after this one: those of a tenant, or all. They have no status.
    fn actions(&self, tenant: Option<&str>, after: Option<&str>, limit: usize) -> Vec<Action>;

    /// One action, without its status.
    fn action(&self, name: &str) -> Option<Action>;

    /// Adds or replaces an action. Returns true when it is new.
    ///
    /// # Errors
    /// [`EntryRefused`].
    fn put_action(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused>;

    /// Removes an action. With [`WaitingMessages::Delete`] it may be removed already, and its session still there.
    ///
    /// # Errors
    /// [`EntryRefused`]. There is neither the action nor its session: `NotFound`.
    fn remove_action(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused>;

    /// Evaluates a rule with a message, and renders records without writing them. Blocks for up to about 15 s.
    ///
    /// # Errors
    /// [`EntryRefused`]: the action cannot be made. A rule that does not match, or fails, is a result.
    fn test_action(&self, test: &ActionTest) -> Result<ActionTested, EntryRefused>;

    /// Statuses of the actions whose sessions are in shards that this node leads. In a cluster these are the ones that
    /// run here.
    fn views(&self) -> Vec<ActionStatus>;
}

/// Messages that wait for an action or a cluster link that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingMessages {
    /// The session stays, and an entry with the same name gets its messages.
    Keep,
    /// The session ends with its messages.
    Delete,
}

/// Reason why a request about an entry, such as a connector, an action or a cluster link, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryRefused {
    NotFound(String),
    /// The entry comes from the configuration file, is in use, or there are too many.
    Conflict(String),
    /// A setting is wrong.
    Setting {
        setting: String,
        why: String,
    },
    ConfigStore(ProposeError),
    /// The node cannot do it at present.
    Unavailable(String),
}

/// A node without actions.
impl Actions for () {
    fn connectors(&self, _: Option<&str>, _: Option<&str>, _: usize) -> Vec<Connector> {
        Vec::new()
    }

    fn connector(&self, _: &str) -> Option<Connector> {
        None
    }

    fn put_connector(&self, _: &str, _: &Map<String, Value>, _: &Authorship) -> Result<bool, EntryRefused> {
        Err(no_actions())
    }

    fn remove_connector(&self, _: &str) -> Result<(), EntryRefused> {
        Err(no_actions())
    }

    fn test_connector(&self, _: &ConnectorTest) -> Result<ConnectorTested, EntryRefused> {
        Err(no_actions())
    }

    fn actions(&self, _: Option<&str>, _: Option<&str>, _: usize) -> Vec<Action> {
        Vec::new()
    }

    fn action(&self, _: &str) -> Option<Action> {
        None
    }

    fn put_action(&self, _: &str, _: &Map<String, Value>, _: &Authorship) -> Result<bool, EntryRefused> {
        Err(no_actions())
    }

    fn remove_action(&self, _: &str, _: WaitingMessages) -> Result<(), EntryRefused> {
        Err(no_actions())
    }

    fn test_action(&self, _: &ActionTest) -> Result<ActionTested, EntryRefused> {
        Err(no_actions())
    }

    fn views(&self) -> Vec<ActionStatus> {
        Vec::new()
    }
}

fn no_actions() -> EntryRefused {
    EntryRefused::Unavailable("this node runs no actions".to_owned())
}

/// System outside the broker that actions write to.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Connector {
    pub name: String,
    /// `http`, `postgresql`, `kafka`, `line_protocol` or `file`.
    #[cfg_attr(feature = "document", schema(value_type = String))]
    pub kind: &'static str,
    pub source: EntrySource,
    /// Settings that differ from their defaults, with the keys of `[[connector]]`. Secrets are names of files.
    #[cfg_attr(feature = "document", schema(value_type = Object))]
    pub settings: Map<String, Value>,
    /// Names of the actions that use it.
    pub used_by: Vec<String>,
    /// Name of the key that wrote it last; empty in open mode, and for an entry of the configuration file.
    pub author: String,
    /// Null for an entry of the configuration file, and for one whose record cannot be read.
    pub changed_at: Option<Timestamp>,
    /// Reason why it cannot be used, such as a setting of a later version; null when it can.
    pub fault: Option<String>,
}

impl Connector {
    /// Returns the connector for readers who may not change it.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        for value in self.settings.values_mut() {
            if let Value::String(text) = value {
                *text = without_secrets(text).into_owned();
            }
        }
        self
    }
}

/// Origin of a connector, an action, a bridge or a cluster link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntrySource {
    /// The configuration file of the node.
    File,
    /// The configuration store, which all nodes of a cluster share.
    Store,
}

/// Rule whose outputs are written to a connector, or published at this broker.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Action {
    pub name: String,
    pub enabled: bool,
    pub source: EntrySource,
    /// `republish`, or the kind of its connector; null when its connector does not exist.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>))]
    pub kind: Option<&'static str>,
    pub rule: String,
    /// Name of the connector; empty for an action that publishes at this broker.
    pub connector: String,
    pub description: String,
    /// Settings that differ from their defaults, with the keys of `[[action]]`.
    #[cfg_attr(feature = "document", schema(value_type = Object))]
    pub settings: Map<String, Value>,
    /// Name of the key that wrote it last; empty in open mode, and for an entry of the configuration file.
    pub author: String,
    /// Null for an entry of the configuration file, and for one whose record cannot be read.
    pub changed_at: Option<Timestamp>,
    /// Reason why it cannot be used, such as a connector that does not exist; null when it can.
    pub fault: Option<String>,
    /// Null when no node that answered has it.
    pub status: Option<ActionStatus>,
}

impl Action {
    /// Returns the action for readers who may not change it.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        for (name, value) in &mut self.settings {
            if let Value::String(text) = value {
                *text = match name.as_str() {
                    "headers" => without_values(text),
                    _ => without_secrets(text).into_owned(),
                };
            }
        }
        self
    }
}

/// State of an action on the node that has its session. Counters are since the start of the node.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ActionStatus {
    /// Name of the action.
    #[serde(skip)]
    pub name: String,
    /// Node that runs it.
    pub node: String,
    /// `running`, `retrying`, `starting` or `stopped`.
    #[cfg_attr(feature = "document", schema(value_type = String))]
    pub state: &'static str,
    /// True when it has written nothing for more than 30 s although records wait.
    pub failing: bool,
    /// Seconds since it is in this state.
    pub since_s: u64,
    /// Cause of the last failure; null when there was none.
    pub last_error: Option<String>,
    /// Client Identifier of the session in which messages wait.
    pub session: String,
    /// Messages that wait in the session.
    pub queued_messages: u64,
    /// Bytes of these messages.
    pub queued_bytes: u64,
    /// Seconds that the oldest message has waited; null when none waits.
    pub oldest_s: Option<u64>,
    /// Messages that the action works on.
    pub in_flight: u64,
    /// Messages that the action received.
    pub received: u64,
    /// Messages that the rule did not select.
    pub not_selected: u64,
    /// Messages for which the rule failed.
    pub evaluation_errors: u64,
    /// Outputs that were not made into a record.
    pub render_errors: u64,
    /// Records that were made.
    pub records: u64,
    /// Records that the other system has confirmed.
    pub written: u64,
    /// Bytes of these records.
    pub bytes: u64,
    /// Batches that were written.
    pub batches: u64,
    /// Attempts to write that were repeated.
    pub retries: u64,
    /// Records that the other system refused for good.
    pub refused: u64,
    /// Records that were given up after `expire`.
    pub expired: u64,
    /// Records that were given up after `attempts_max`.
    pub given_up: u64,
    /// Records that were published as dead letters.
    pub dead_letters: u64,
    /// Records whose messages were passed to the fallback.
    pub fallbacks: u64,
    /// Records and messages that were dropped for good, for any reason.
    pub dropped: u64,
    /// Messages of them that the session dropped: its queue was full, or they had waited for too long.
    pub dropped_queue: u64,
    /// Messages of them of QoS 0 for which the action had no room.
    pub dropped_qos0: u64,
    /// Messages that had passed too many actions and bridges.
    pub loops: u64,
    /// Time of the last successful write, in milliseconds since 1970; null when there was none.
    pub last_write_ms: Option<u64>,
}

/// Connector to test: one that exists, settings, or both. Settings replace those of the existing one.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ConnectorTest {
    /// Name of a connector that exists.
    pub name: Option<String>,
    /// Settings with the keys of `[[connector]]`.
    #[cfg_attr(feature = "document", schema(value_type = Option<Object>))]
    pub settings: Option<Map<String, Value>>,
}

/// Result of a test of a connector.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ConnectorTested {
    /// True when the system answered as expected.
    pub ok: bool,
    /// A sentence about the other system, or the cause of the failure.
    pub message: String,
    /// Duration of the test in milliseconds.
    pub took_ms: u64,
}

/// Action to test, and the message to test it with.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ActionTest {
    /// Settings with the keys of `[[action]]`.
    #[cfg_attr(feature = "document", schema(value_type = Object))]
    pub settings: Map<String, Value>,
    /// Fields of a message or an event, such as `topic`, `payload`, `qos` and `clientid`.
    #[cfg_attr(feature = "document", schema(value_type = Option<Object>))]
    pub message: Option<Map<String, Value>>,
    /// Name of the event that `message` is, such as `$events/client/connected`; without it, `message` is a message.
    pub event: Option<String>,
    /// Test with the next message that a filter of the rule matches. Waits for up to 10 s.
    #[serde(default)]
    pub live: bool,
}

/// Result of a test of an action.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ActionTested {
    /// True when the rule selected the message.
    pub matched: bool,
    /// Outputs of the rule.
    pub outputs: Vec<Value>,
    /// Records as the action would write them, as far as there is no error.
    pub records: Vec<TestedRecord>,
    /// Null when everything succeeded.
    pub error: Option<TestError>,
    /// Fields of the message that was used; null when none came in time.
    #[cfg_attr(feature = "document", schema(value_type = Option<Object>))]
    pub message: Option<Value>,
}

/// A record.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct TestedRecord {
    pub fields: Vec<TestedField>,
}

/// A field of a record.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct TestedField {
    pub name: String,
    /// Text of the value, in which bytes that are not UTF-8 are replaced; null when the value is missing.
    pub value: Option<String>,
}

/// Error of a test.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct TestError {
    #[serde(rename = "where")]
    pub stage: TestStage,
    /// The fault and its remedy.
    pub message: String,
}

/// Stage of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TestStage {
    /// The text of the rule is wrong.
    Rule,
    /// The evaluation with the message failed.
    Evaluation,
    /// An output has not what a template needs.
    Template,
}
