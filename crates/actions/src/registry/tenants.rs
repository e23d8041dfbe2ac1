//! Checks of the connectors and actions of a tenant, and of the files that connectors name.

use std::path::Path;

use definitions::{Problem, is_below, is_plain};
use sinks::{ActionSettings, ConnectorSettings};

use super::Targets;
use super::entries::Definitions;
use crate::settings::ActionsSettings;

/// Checks that an action belongs to the same tenant as another entry that it names.
pub fn same(action: &ActionSettings, tenant: &str, setting: &'static str, name: &str) -> Result<(), Problem> {
    if action.tenant == tenant {
        return Ok(());
    }
    let why = format!(
        "\"{name}\" belongs to {}, and the action to {}; both need the same tenant",
        named(tenant),
        named(&action.tenant)
    );
    Err(Problem::new(setting, why))
}

fn named(tenant: &str) -> String {
    if tenant.is_empty() { "no tenant".to_owned() } else { format!("the tenant \"{tenant}\"") }
}

/// Checks that other actions can still have this action as their fallback.
pub fn fallback_of(action: &ActionSettings, definitions: &Definitions) -> Result<(), Problem> {
    let mut others = definitions.actions.values().map(|entry| &entry.settings);
    let other = others.find(|other| {
        other.fallback == action.name && other.name != action.name && other.tenant != action.tenant
    });
    other.map_or(Ok(()), |other| {
        let why = format!("the action \"{}\" has this one as its fallback, and another tenant", other.name);
        Err(Problem::new("tenant", why))
    })
}

/// Checks the number of actions of a tenant, and the sum of their queues.
pub fn actions(
    action: &ActionSettings,
    definitions: &Definitions,
    settings: &ActionsSettings,
) -> Result<(), Problem> {
    if action.tenant.is_empty() {
        return Ok(());
    }
    let all = definitions.actions.values().map(|entry| &entry.settings);
    let others = all.filter(|other| other.tenant == action.tenant && other.name != action.name);
    let (count, bytes) = others.fold((1_u32, action.queue_bytes_max.bytes()), |(count, bytes), other| {
        (count.saturating_add(1), bytes.saturating_add(other.queue_bytes_max.bytes()))
    });
    let tenant = &action.tenant;
    if count > settings.tenant_actions_max {
        let why = format!(
            "\"{tenant}\" has {} actions, and actions.tenant_actions_max is {}; remove some",
            count - 1,
            settings.tenant_actions_max
        );
        return Err(Problem::new("tenant", why));
    }
    let bytes_max = settings.tenant_queue_bytes_max;
    if bytes > bytes_max.bytes() {
        let why = format!(
            "the queues of all actions of \"{tenant}\" may have {bytes} bytes together, and \
             actions.tenant_queue_bytes_max is {bytes_max}; write less"
        );
        return Err(Problem::new("queue_bytes_max", why));
    }
    Ok(())
}

/// Checks the number of connectors of a tenant.
pub fn connectors(
    connector: &ConnectorSettings,
    definitions: &Definitions,
    settings: &ActionsSettings,
) -> Result<(), Problem> {
    if connector.tenant.is_empty() {
        return Ok(());
    }
    let all = definitions.connectors.values().map(|entry| &entry.settings);
    let others = all.filter(|other| other.tenant == connector.tenant && other.name != connector.name);
    let (count, count_max) = (others.count(), settings.tenant_connectors_max);
    if count < count_max as usize {
        return Ok(());
    }
    let why = format!(
        "\"{}\" has {count} connectors, and actions.tenant_connectors_max is {count_max}; remove some",
        connector.tenant
    );
    Err(Problem::new("tenant", why))
}

/// Checks that all files of a connector of a tenant are below the directory of the tenant, and secrets of others below
/// the directory of secrets.
pub fn paths(connector: &ConnectorSettings, targets: &Targets) -> Result<(), Problem> {
    if connector.tenant.is_empty() {
        return targets.secrets.check(connector);
    }
    for (setting, path) in definitions::paths(connector) {
        let Some(directory) = targets.settings.tenant_directory.as_deref() else {
            let why =
                "a connector of a tenant has files only below actions.tenant_directory, which is not set";
            return Err(Problem::new(setting, why));
        };
        let own = directory.join(&connector.tenant);
        if is_plain(Path::new(&connector.tenant)) && is_below(&path, &own) {
            continue;
        }
        let why = format!(
            "{} is not below {}, the directory of the tenant; write a path below it without ..",
            path.display(),
            own.display()
        );
        return Err(Problem::new(setting, why));
    }
    Ok(())
}
