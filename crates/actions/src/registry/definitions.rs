//! Connectors and actions by their names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use configstore::Table;
use settings::Section;
use sinks::{ActionSettings, ConnectorSettings};

use super::check::{self, Problem};
use super::{ACTIONS_MAX, CONNECTORS_MAX};

/// All connectors and actions, by their names.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    pub connectors: BTreeMap<String, Arc<Definition<ConnectorSettings>>>,
    pub actions: BTreeMap<String, Arc<Definition<ActionSettings>>>,
}

/// A connector or an action.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition<S> {
    pub settings: S,
    pub source: Source,
    /// Last author: the name of an API key. Empty for an entry of the file, and in open mode.
    pub author: String,
    /// Time of the last change in milliseconds since 1970; `None` for an entry of the file.
    pub changed_ms: Option<u64>,
    /// Reason why the entry cannot be used. The settings are then those that could be read.
    pub fault: Option<String>,
    /// True when the configuration store has an entry with the same name, which is not used.
    pub hides_stored: bool,
}

/// Origin of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The configuration file of this node.
    File,
    /// The configuration store.
    Store,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Store => "store",
        }
    }
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noun {
    Connector,
    Action,
}

impl fmt::Display for Noun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connector => "connector",
            Self::Action => "action",
        })
    }
}

impl Definitions {
    /// Actions that name this connector.
    pub fn used_by(&self, connector: &str) -> impl Iterator<Item = &Arc<Definition<ActionSettings>>> {
        self.actions
            .values()
            .filter(move |action| !connector.is_empty() && action.settings.connector == connector)
    }

    /// The connector of an action; `None` when the action publishes at this broker, or has a connector that does not
    /// exist.
    pub fn connector_of(&self, action: &ActionSettings) -> Option<&Arc<Definition<ConnectorSettings>>> {
        self.connectors.get(&action.connector)
    }

    /// Actions without a fault, enabled or not.
    pub fn usable_actions(&self) -> impl Iterator<Item = &Arc<Definition<ActionSettings>>> {
        self.actions.values().filter(|action| action.fault.is_none())
    }
}

/// Common properties of connectors and actions.
pub(crate) trait Entry: Section + Default + Clone + PartialEq + Send + Sync + 'static {
    const NOUN: Noun;
    const TABLE: Table;
    const MAX: usize;

    fn name(&self) -> &str;
    fn of(definitions: &Definitions) -> &BTreeMap<String, Arc<Definition<Self>>>;
    fn of_mut(definitions: &mut Definitions) -> &mut BTreeMap<String, Arc<Definition<Self>>>;

    /// Checks what can be checked without files and without other entries.
    fn check_alone(&self) -> Result<(), Problem>;
}

impl Entry for ConnectorSettings {
    const NOUN: Noun = Noun::Connector;
    const TABLE: Table = Table::named("connectors");
    const MAX: usize = CONNECTORS_MAX;

    fn name(&self) -> &str {
        &self.name
    }

    fn of(definitions: &Definitions) -> &BTreeMap<String, Arc<Definition<Self>>> {
        &definitions.connectors
    }

    fn of_mut(definitions: &mut Definitions) -> &mut BTreeMap<String, Arc<Definition<Self>>> {
        &mut definitions.connectors
    }

    fn check_alone(&self) -> Result<(), Problem> {
        check::name(&self.name)
    }
}

impl Entry for ActionSettings {
    const NOUN: Noun = Noun::Action;
    const TABLE: Table = Table::named("actions");
    const MAX: usize = ACTIONS_MAX;

    fn name(&self) -> &str {
        &self.name
    }

    fn of(definitions: &Definitions) -> &BTreeMap<String, Arc<Definition<Self>>> {
        &definitions.actions
    }

    fn of_mut(definitions: &mut Definitions) -> &mut BTreeMap<String, Arc<Definition<Self>>> {
        &mut definitions.actions
    }

    fn check_alone(&self) -> Result<(), Problem> {
        check::action_alone(self)
    }
}
