//! Registry of connectors and actions: those of the configuration file, and those of the configuration store.
//!
//! [`Registry`] checks and proposes changes of the configuration store. Its view joins both sources into
//! [`Definitions`]. An entry of the file takes precedence over one of the store with the same name.

mod check;
mod definitions;
mod error;
mod json;
mod record;
mod view;

use std::sync::{Arc, Mutex};

use configstore::{Change, ConfigStore, Expected, ProposeError, Table};
use serde_json::{Map, Value as Json};
use settings::Section;
use sinks::{ActionSettings, ConnectorSettings, Guard, SinkProblem};

pub use check::{check, is_name};
pub use definitions::{Definition, Definitions, Noun, Source};
pub use error::RegistryError;
pub use json::{settings_of_json, settings_to_json};

use check::Problem;
use definitions::Entry;
use record::Record;
use view::Shared;

/// Author and time of a change.
#[derive(Clone, Debug)]
pub struct Authorship {
    pub author: String,
    /// Time in milliseconds since 1970.
    pub now_ms: u64,
}

/// The connectors and actions of a node or its cluster.
pub struct Registry {
    shared: Arc<Shared>,
    config_store: Arc<dyn ConfigStore>,
    targets: Targets,
    /// Held while entries are changed on this node.
    changing: Mutex<()>,
}

/// Check whether an action has a target, which reads the files that the settings name.
#[derive(Clone, Copy)]
pub(crate) struct Targets {
    pub guard: Guard,
    pub check: fn(&ConnectorSettings, &ActionSettings, Guard) -> Result<(), SinkProblem>,
}

impl Targets {
    pub fn new(guard: Guard) -> Self {
        Self { guard, check: |connector, action, guard| sinks::target(connector, action, guard).map(drop) }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("changes", &self.changes()).finish_non_exhaustive()
    }
}

impl Registry {
    /// Opens the entries of the configuration store, and joins them with those of the configuration file. A record
    /// that cannot be used is logged, and has a [`Definition::fault`].
    ///
    /// # Errors
    /// The configuration store cannot be read.
    pub fn open(
        config_store: Arc<dyn ConfigStore>,
        connectors_of_file: Vec<ConnectorSettings>,
        actions_of_file: Vec<ActionSettings>,
        guard: Guard,
    ) -> Result<Self, String> {
        Self::open_with(config_store, connectors_of_file, actions_of_file, Targets::new(guard))
    }

    fn open_with(
        config_store: Arc<dyn ConfigStore>,
        connectors_of_file: Vec<ConnectorSettings>,
        actions_of_file: Vec<ActionSettings>,
        targets: Targets,
    ) -> Result<Self, String> {
        let shared = Shared::new(connectors_of_file, actions_of_file);
        config_store.subscribe(ConnectorSettings::TABLE, Shared::view::<ConnectorSettings>(&shared))?;
        config_store.subscribe(ActionSettings::TABLE, Shared::view::<ActionSettings>(&shared))?;
        Ok(Self { shared, config_store, targets, changing: Mutex::default() })
    }

    /// Returns all connectors and actions.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.shared.definitions()
    }

    /// Number of the last change. It grows when [`Self::definitions`] change.
    pub fn changes(&self) -> u64 {
        self.shared.changes()
    }

    /// Addresses that connectors may reach.
    pub fn guard(&self) -> Guard {
        self.targets.guard
    }

    /// Reads and checks the settings of an action that need not exist, for a test of it. The name is free.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn parse_action(
        &self,
        name: &str,
        settings: &Map<String, Json>,
    ) -> Result<ActionSettings, RegistryError> {
        let action: ActionSettings = parse(name, settings)?;
        self.check_action(&self.definitions(), &action)?;
        Ok(action)
    }

    /// Reads and checks the settings of a connector that need not exist, for a test of it.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn parse_connector(
        &self,
        name: &str,
        settings: &Map<String, Json>,
    ) -> Result<ConnectorSettings, RegistryError> {
        let connector: ConnectorSettings = parse(name, settings)?;
        check::connector_alone(&connector, self.targets)?;
        Ok(connector)
    }

    /// Returns the settings of a connector to test: those of the one with this name, replaced by these, or these alone.
    ///
    /// # Errors
    /// There is no such connector, or a setting is wrong.
    pub fn connector_to_test(
        &self,
        name: Option<&str>,
        settings: Option<&Map<String, Json>>,
    ) -> Result<ConnectorSettings, RegistryError> {
        let mut merged = match name {
            None => Map::new(),
            Some(name) => {
                let definitions = self.definitions();
                let unknown = || RegistryError::Unknown { noun: Noun::Connector, name: name.to_owned() };
                settings_to_json(&definitions.connectors.get(name).ok_or_else(unknown)?.settings)
            }
        };
        merged.extend(settings.cloned().unwrap_or_default());
        self.parse_connector(name.unwrap_or("unnamed"), &merged)
    }

    /// Adds or replaces a connector. Returns true when it is new. Like the following functions, it waits for the
    /// configuration store: not for a reactor.
    ///
    /// # Errors
    /// [`RegistryError`]. Nothing has changed then, here and in the following functions.
    pub fn put_connector(
        &self,
        name: &str,
        settings: &Map<String, Json>,
        by: &Authorship,
    ) -> Result<bool, RegistryError> {
        let connector = self.parse_connector(name, settings)?;
        self.put(&connector, by, |definitions| {
            for action in definitions.used_by(name) {
                let replaced = (self.targets.check)(&connector, &action.settings, self.targets.guard);
                replaced.map_err(|problem| RegistryError::Breaks {
                    action: action.settings.name.clone(),
                    setting: problem.setting.to_owned(),
                    why: problem.why,
                })?;
            }
            Ok(())
        })
    }

    /// Removes a connector that no action uses.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn remove_connector(&self, name: &str) -> Result<(), RegistryError> {
        self.remove::<ConnectorSettings>(name, |definitions| {
            definitions.used_by(name).map(|action| action.settings.name.clone()).collect()
        })
    }

    /// Adds or replaces an action. Returns true when it is new.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn put_action(
        &self,
        name: &str,
        settings: &Map<String, Json>,
        by: &Authorship,
    ) -> Result<bool, RegistryError> {
        let action: ActionSettings = parse(name, settings)?;
        self.put(&action, by, |definitions| self.check_action(definitions, &action))
    }

    /// Removes an action that is the fallback of no other. Messages that wait for it stay in its session.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn remove_action(&self, name: &str) -> Result<(), RegistryError> {
        self.remove::<ActionSettings>(name, |definitions| {
            let others = definitions.actions.values().filter(|action| action.settings.fallback == name);
            others.map(|action| action.settings.name.clone()).collect()
        })
    }

    fn check_action(&self, definitions: &Definitions, action: &ActionSettings) -> Result<(), RegistryError> {
        check::action_alone(action)?;
        check::references(action, definitions)?;
        if let Some(connector) = definitions.connector_of(action) {
            (self.targets.check)(&connector.settings, action, self.targets.guard)
                .map_err(|problem| Problem::new(problem.setting, problem.why))?;
        }
        Ok(())
    }

    fn put<S: Entry>(
        &self,
        settings: &S,
        by: &Authorship,
        check: impl Fn(&Definitions) -> Result<(), RegistryError>,
    ) -> Result<bool, RegistryError> {
        let name = settings.name();
        self.change(|definitions| {
            let entries = S::of(definitions);
            let existing = entries.get(name);
            if existing.is_some_and(|entry| entry.source == Source::File) {
                return Err(RegistryError::OfFile { noun: S::NOUN, name: name.to_owned() });
            }
            if existing.is_none() && entries.len() >= S::MAX {
                return Err(RegistryError::TooMany { noun: S::NOUN, maximum: S::MAX });
            }
            check(definitions)?;
            Ok((Record::put(settings, by)?, existing.is_none()))
        })
    }

    fn remove<S: Entry>(
        &self,
        name: &str,
        used_by: impl Fn(&Definitions) -> Vec<String>,
    ) -> Result<(), RegistryError> {
        self.change(|definitions| {
            let noun = S::NOUN;
            match S::of(definitions).get(name) {
                None => return Err(RegistryError::Unknown { noun, name: name.to_owned() }),
                Some(entry) if entry.source == Source::File => {
                    return Err(RegistryError::OfFile { noun, name: name.to_owned() });
                }
                Some(_) => {}
            }
            let by = used_by(definitions);
            if !by.is_empty() {
                return Err(RegistryError::Used { noun, name: name.to_owned(), by });
            }
            Ok((Change::remove(S::TABLE, name), ()))
        })
    }

    /// Proposes a change that depends on the present entries. Repeats that when another writer changed entries
    /// meanwhile.
    fn change<T>(
        &self,
        decide: impl Fn(&Definitions) -> Result<(Change, T), RegistryError>,
    ) -> Result<T, RegistryError> {
        let _changing = sync::lock(&self.changing);
        let mut attempts = 0;
        loop {
            // The counter is part of each change, so a decision about outdated entries is refused.
            let counter = self.config_store.read(COUNTERS, COUNTER);
            let number: u64 = counter.as_ref().and_then(|counter| counter.value.parse().ok()).unwrap_or(0);
            let (change, done) = decide(&self.definitions())?;
            let expected = counter.map_or(Expected::Absent, |counter| Expected::At(counter.revision));
            let counted = Change::number(COUNTERS, COUNTER, number.saturating_add(1)).expecting(expected);
            match self.config_store.propose(vec![counted, change]) {
                Ok(_) => return Ok(done),
                // The copy of a node that lags may show outdated entries again.
                Err(ProposeError::Conflict { .. }) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(error) => return Err(RegistryError::ConfigStore(error)),
            }
        }
    }
}

/// Reads settings from JSON, and checks the name.
fn parse<S: Section + Entry>(name: &str, settings: &Map<String, Json>) -> Result<S, RegistryError> {
    check::name(name)?;
    Ok(settings_of_json(name, settings)?)
}

/// Maximum number of connectors, with those of the configuration file.
pub const CONNECTORS_MAX: usize = 1_000;
/// Maximum number of actions, with those of the configuration file.
pub const ACTIONS_MAX: usize = 1_000;
/// Maximum number of times that a change is decided again.
const ATTEMPTS_MAX: u32 = 16;
/// Table of counters that only grow.
const COUNTERS: Table = Table::named("counters");
const COUNTER: &str = "actions";

#[cfg(test)]
mod tests;
