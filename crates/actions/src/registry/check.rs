//! Checks of connectors and actions before they are used.

use std::sync::Arc;

use definitions::{Kind, Named, Problem, SecretsDirectory, defined};
use settings::Section as _;
use sinks::{ActionSettings, ConnectorKind, ConnectorSettings};

use super::Targets;
use super::entries::{Actions, Connectors, Definitions};
use super::{ACTIONS_MAX, CONNECTORS_MAX, problem_of, tenants};
use crate::parts::Parts;
use crate::settings::ActionsSettings;
use crate::tenant::Namespace;

/// Checks the connectors and actions of a configuration file, with the files that they name. Returns what is wrong.
pub fn check(
    connectors: &[ConnectorSettings],
    actions: &[ActionSettings],
    settings: &ActionsSettings,
    secrets: &SecretsDirectory,
) -> Vec<String> {
    check_with(connectors, actions, &Targets::new(settings, secrets))
}

pub(crate) fn check_with(
    connectors: &[ConnectorSettings],
    actions: &[ActionSettings],
    targets: &Targets,
) -> Vec<String> {
    let mut problems = Vec::new();
    let definitions =
        Definitions { connectors: named::<Connectors>(connectors), actions: named::<Actions>(actions) };
    for (at, connector) in connectors.iter().enumerate() {
        let wrong = unique::<Connectors>(connectors, at)
            .and_then(|()| connector_alone(connector, targets))
            .and_then(|()| tenants::connectors(connector, &definitions, &targets.settings));
        problems.extend(wrong.err().map(|problem| format!("connector.{at}.{problem}")));
    }
    for (at, action) in actions.iter().enumerate() {
        let wrong = unique::<Actions>(actions, at)
            .and_then(|()| action_alone(action))
            .and_then(|()| references(action, &definitions))
            .and_then(|()| tenants::actions(action, &definitions, &targets.settings))
            .and_then(|()| target(action, &definitions, targets));
        problems.extend(wrong.err().map(|problem| format!("action.{at}.{problem}")));
    }
    for (list, count, maximum) in
        [("connector", connectors.len(), CONNECTORS_MAX), ("action", actions.len(), ACTIONS_MAX)]
    {
        if count > maximum {
            problems.push(format!("{list}: {count} entries, and the maximum is {maximum}; remove some"));
        }
    }
    problems
}

fn named<K: Kind>(entries: &[K::Settings]) -> Named<K::Settings> {
    let entries = entries.iter();
    entries
        .map(|settings| (K::name(settings).to_owned(), Arc::new(defined(settings.clone(), None))))
        .collect()
}

fn unique<K: Kind>(entries: &[K::Settings], at: usize) -> Result<(), Problem> {
    let own = K::name(&entries[at]);
    match entries[..at].iter().any(|other| K::name(other) == own) {
        true => {
            Err(Problem::new("name", format!("another {} has the name \"{own}\"; use another one", K::NOUN)))
        }
        false => Ok(()),
    }
}

fn target(action: &ActionSettings, definitions: &Definitions, targets: &Targets) -> Result<(), Problem> {
    let Some(connector) = definitions.connector_of(action) else { return Ok(()) };
    match targets.check(&connector.settings, action) {
        // A wrong setting of the connector is reported at the connector.
        Err(problem) if is_of_connector(problem.setting) => Ok(()),
        Err(problem) => Err(problem_of(problem)),
        Ok(()) => Ok(()),
    }
}

/// Returns whether a connector or an action can have this name.
pub fn is_name(text: &str) -> bool {
    name(text).is_ok()
}

/// Checks the name of a connector or an action.
pub fn name(name: &str) -> Result<(), Problem> {
    if name == RESERVED {
        return Err(Problem::new("name", "the API uses the name \"test\" itself; choose another one"));
    }
    definitions::check_name(name)
}

/// Checks a connector that no action uses, with the files that it names.
pub fn connector_alone(connector: &ConnectorSettings, targets: &Targets) -> Result<(), Problem> {
    name(&connector.name)?;
    connector_tenant(connector)?;
    // A file that does not belong to the tenant is not read.
    tenants::paths(connector, targets)?;
    match targets.check(connector, &sample_action(connector.kind)) {
        // Settings of the sample say nothing about the connector.
        Err(problem) if is_of_connector(problem.setting) => Err(problem_of(problem)),
        _ => Ok(()),
    }
}

/// Checks the tenant of a connector.
pub fn connector_tenant(connector: &ConnectorSettings) -> Result<(), Problem> {
    Namespace::new(&connector.tenant).map(drop).map_err(|why| Problem::new("tenant", why))
}

fn is_of_connector(setting: &str) -> bool {
    ConnectorSettings::default().description().fields.iter().any(|field| field.key == setting)
}

/// An action that has what each kind of connector needs.
fn sample_action(kind: ConnectorKind) -> ActionSettings {
    let statement = match kind {
        ConnectorKind::PostgreSql => "INSERT INTO t (c) VALUES (${c})".to_owned(),
        _ => String::new(),
    };
    let topic = if kind == ConnectorKind::Kafka { "t".to_owned() } else { String::new() };
    ActionSettings {
        name: "sample".to_owned(),
        rule: "SELECT * FROM \"t\"".to_owned(),
        topic,
        statement,
        ..ActionSettings::default()
    }
}

/// Checks what can be checked of an action without files and without other entries.
pub fn action_alone(action: &ActionSettings) -> Result<(), Problem> {
    name(&action.name)?;
    Parts::new(action).map(drop).map_err(|problem| Problem::new(problem.setting, problem.why))
}

/// Checks that the connector and the fallback of an action exist, and that fallbacks make no cycle.
pub fn references(action: &ActionSettings, definitions: &Definitions) -> Result<(), Problem> {
    if !action.connector.is_empty() {
        let Some(connector) = definitions.connector_of(action) else {
            let why = format!("there is no connector \"{}\"; create it first", action.connector);
            return Err(Problem::new("connector", why));
        };
        if let Some(fault) = &connector.fault {
            let why = format!("the connector \"{}\" cannot be used: {fault}", action.connector);
            return Err(Problem::new("connector", why));
        }
        tenants::same(action, &connector.settings.tenant, Connectors::NOUN, &action.connector)?;
    }
    let mut names = vec![action.name.as_str()];
    let mut next = action.fallback.as_str();
    while !next.is_empty() {
        if names.contains(&next) {
            let cycle = names.iter().chain([&next]).copied().collect::<Vec<_>>().join(" -> ");
            let why =
                format!("the fallbacks make a cycle: {cycle}; let one of these actions have no fallback");
            return Err(Problem::new("fallback", why));
        }
        let Some(fallback) = definitions.actions.get(next) else {
            let why = format!("there is no action \"{next}\"; create it first");
            return Err(Problem::new("fallback", why));
        };
        tenants::same(action, &fallback.settings.tenant, "fallback", next)?;
        if names.len() >= FALLBACKS_MAX {
            let why = format!("more than {FALLBACKS_MAX} actions follow each other; shorten the chain");
            return Err(Problem::new("fallback", why));
        }
        names.push(next);
        next = &fallback.settings.fallback;
    }
    Ok(())
}

/// Name that is a path of the API.
const RESERVED: &str = "test";
/// Maximum number of actions that are fallbacks of each other.
const FALLBACKS_MAX: usize = 16;
