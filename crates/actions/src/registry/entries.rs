//! Connectors and actions by their names.

use std::sync::Arc;

use configstore::Table;
use definitions::{Definition, Kind, Listed, Named, Problem, usable};
use sinks::{ActionSettings, ConnectorSettings};

use super::check;
use super::{ACTIONS_MAX, CONNECTORS_MAX};

/// All connectors and actions, by their names.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    pub connectors: Named<ConnectorSettings>,
    pub actions: Named<ActionSettings>,
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
        usable(&self.actions)
    }
}

/// The kind of connectors.
pub struct Connectors;

impl Kind for Connectors {
    type Settings = ConnectorSettings;

    const NOUN: &'static str = "connector";
    const AREA: &'static str = "actions";
    const TABLE: Table = Table::named("connectors");
    const MAX: usize = CONNECTORS_MAX;

    fn name(settings: &ConnectorSettings) -> &str {
        &settings.name
    }

    fn check_alone(settings: &ConnectorSettings) -> Result<(), Problem> {
        check::name(&settings.name)?;
        check::connector_tenant(settings)
    }
}

impl Listed<Definitions> for Connectors {
    fn of(definitions: &Definitions) -> &Named<ConnectorSettings> {
        &definitions.connectors
    }

    fn of_mut(definitions: &mut Definitions) -> &mut Named<ConnectorSettings> {
        &mut definitions.connectors
    }
}

/// The kind of actions.
pub struct Actions;

impl Kind for Actions {
    type Settings = ActionSettings;

    const NOUN: &'static str = "action";
    const AREA: &'static str = "actions";
    const TABLE: Table = Table::named("actions");
    const MAX: usize = ACTIONS_MAX;

    fn name(settings: &ActionSettings) -> &str {
        &settings.name
    }

    fn check_alone(settings: &ActionSettings) -> Result<(), Problem> {
        check::action_alone(settings)
    }
}

impl Listed<Definitions> for Actions {
    fn of(definitions: &Definitions) -> &Named<ActionSettings> {
        &definitions.actions
    }

    fn of_mut(definitions: &mut Definitions) -> &mut Named<ActionSettings> {
        &mut definitions.actions
    }
}
