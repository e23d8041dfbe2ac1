//! Registry of connectors and actions: those of the configuration file, and those of the configuration store.
//!
//! [`Registry`] checks changes of the configuration store, and joins both sources into [`Definitions`]. An entry of the
//! file takes precedence over one of the store with the same name.

mod check;
mod entries;
mod error;
mod tenants;

use std::sync::Arc;

use configstore::ConfigStore;
use definitions::{
    Authorship, Definition, EntryError, Join, Kind, Problem, SecretsDirectory, hide, mark, of_file,
    settings_of_json, settings_to_json,
};
use serde_json::{Map, Value as Json};
use sinks::{ActionSettings, ConnectorSettings, Guard, SinkProblem};

pub use check::{check, is_name};
pub use entries::Definitions;
pub use error::RegistryError;

use entries::{Actions, Connectors};

use crate::settings::ActionsSettings;

/// The connectors and actions of a node or its cluster.
pub struct Registry(definitions::Registry<Targets>);

/// Check whether an action has a target, which reads the files that the settings name.
#[derive(Clone)]
pub(crate) struct Targets {
    pub settings: ActionsSettings,
    pub secrets: SecretsDirectory,
    pub target: fn(&ConnectorSettings, &ActionSettings, Guard) -> Result<(), SinkProblem>,
}

impl Targets {
    pub fn new(settings: &ActionsSettings, secrets: &SecretsDirectory) -> Self {
        let target = |connector: &_, action: &_, guard| sinks::target(connector, action, guard).map(drop);
        Self { settings: settings.clone(), secrets: secrets.clone(), target }
    }

    fn check(&self, connector: &ConnectorSettings, action: &ActionSettings) -> Result<(), SinkProblem> {
        (self.target)(connector, action, self.settings.guard())
    }
}

impl Join for Targets {
    type All = Definitions;

    /// Joins both sources. Connectors with files that they may not name have a fault, and actions whose connectors or
    /// fallbacks are missing.
    fn join(&self, all: &mut Definitions, of_file: &Definitions, before: &Definitions) {
        hide::<Connectors>(&mut all.connectors, &of_file.connectors, &before.connectors);
        hide::<Actions>(&mut all.actions, &of_file.actions, &before.actions);
        mark::<Connectors>(&mut all.connectors, &before.connectors, |connector| {
            tenants::paths(&connector.settings, self)
        });
        let present = all.clone();
        mark::<Actions>(&mut all.actions, &before.actions, |action| {
            check::references(&action.settings, &present)
        });
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
        settings: &ActionsSettings,
        secrets: &SecretsDirectory,
    ) -> Result<Self, String> {
        Self::open_with(config_store, connectors_of_file, actions_of_file, Targets::new(settings, secrets))
    }

    fn open_with(
        config_store: Arc<dyn ConfigStore>,
        connectors_of_file: Vec<ConnectorSettings>,
        actions_of_file: Vec<ActionSettings>,
        targets: Targets,
    ) -> Result<Self, String> {
        let of_file = Definitions {
            connectors: of_file::<Connectors>(connectors_of_file),
            actions: of_file::<Actions>(actions_of_file),
        };
        let registry = definitions::Registry::new(config_store, of_file, targets, COUNTER);
        registry.subscribe::<Connectors>()?;
        registry.subscribe::<Actions>()?;
        Ok(Self(registry))
    }

    /// Returns all connectors and actions.
    pub fn definitions(&self) -> Arc<Definitions> {
        self.0.definitions()
    }

    /// Number of the last change. It grows when [`Self::definitions`] change.
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }

    /// Addresses that connectors may reach.
    pub fn guard(&self) -> Guard {
        self.targets().settings.guard()
    }

    fn targets(&self) -> &Targets {
        self.0.rules()
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
        check::connector_alone(&connector, self.targets())?;
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
                let unknown = || EntryError::Unknown { noun: Connectors::NOUN, name: name.to_owned() };
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
        self.0.put::<Connectors, _>(&connector, by, |definitions| {
            tenants::connectors(&connector, definitions, &self.targets().settings)?;
            for action in definitions.used_by(name) {
                let suits = tenants::same(&action.settings, &connector.tenant, Connectors::NOUN, name);
                let replaced = self.targets().check(&connector, &action.settings).map_err(problem_of);
                suits.and(replaced).map_err(|Problem { setting, why }| RegistryError::Breaks {
                    action: action.settings.name.clone(),
                    setting,
                    why,
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
        self.0.remove::<Connectors, _>(name, |definitions| {
            unused::<Connectors>(name, definitions.used_by(name))
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
        self.0.put::<Actions, _>(&action, by, |definitions| self.check_action(definitions, &action))
    }

    /// Removes an action that is the fallback of no other. Messages that wait for it stay in its session.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn remove_action(&self, name: &str) -> Result<(), RegistryError> {
        self.0.remove::<Actions, _>(name, |definitions| {
            let all = definitions.actions.values();
            unused::<Actions>(name, all.filter(|action| action.settings.fallback == name))
        })
    }

    fn check_action(&self, definitions: &Definitions, action: &ActionSettings) -> Result<(), RegistryError> {
        check::action_alone(action)?;
        check::references(action, definitions)?;
        tenants::fallback_of(action, definitions)?;
        tenants::actions(action, definitions, &self.targets().settings)?;
        if let Some(connector) = definitions.connector_of(action) {
            self.targets().check(&connector.settings, action).map_err(problem_of)?;
        }
        Ok(())
    }
}

/// Checks that no action uses an entry.
fn unused<'a, K: Kind>(
    name: &str,
    by: impl Iterator<Item = &'a Arc<Definition<ActionSettings>>>,
) -> Result<(), RegistryError> {
    let by: Vec<String> = by.map(|action| action.settings.name.clone()).collect();
    match by.is_empty() {
        true => Ok(()),
        false => Err(RegistryError::Used { noun: K::NOUN, name: name.to_owned(), by }),
    }
}

fn problem_of(SinkProblem { setting, why }: SinkProblem) -> Problem {
    Problem::new(setting, why)
}

/// Reads settings from JSON, and checks the name.
fn parse<S: settings::Section + Default>(
    name: &str,
    settings: &Map<String, Json>,
) -> Result<S, RegistryError> {
    check::name(name)?;
    Ok(settings_of_json(name, settings)?)
}

/// Maximum number of connectors, with those of the configuration file.
pub const CONNECTORS_MAX: usize = 1_000;
/// Maximum number of actions, with those of the configuration file.
pub const ACTIONS_MAX: usize = 1_000;
/// Counter of changes of connectors and actions.
const COUNTER: &str = "actions";

#[cfg(test)]
mod tests;
