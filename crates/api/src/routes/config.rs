//! `/config`: the settings, and changes of those that a running node can change.

use axum::Json;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::ask::{change_node, propose, run_blocking};
use crate::configuration::{
    Author, Change, Changed, Changes, ConfigView, Reloaded, Scope, SettingProblem, Version,
};
use crate::extract::Body;
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;

api_routes! {
    "/api/v1/config": get view, patch change;
    "/api/v1/config/validate": post validate;
    "/api/v1/config/history": get history;
    "/api/v1/config/rollback": post rollback;
    "/api/v1/config/reload": post reload;
}

/// Maximum number of settings in one request.
const CHANGES_MAX: usize = 256;
/// Maximum number of bytes of a comment.
const COMMENT_MAX: usize = 1024;

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Validate {
    /// Values by name of the setting, written as in the environment; `null` reverts a change.
    changes: Changes,
    /// Scope of the changes; default `node`.
    #[serde(default)]
    scope: Scope,
}

#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Validated {
    valid: bool,
    problems: Vec<SettingProblem>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct ConfigPatch {
    /// Values by name of the setting, written as in the environment; `null` reverts a change.
    changes: Changes,
    /// Scope of the changes; default `node`.
    #[serde(default)]
    scope: Scope,
    /// Comment for the history.
    #[serde(default)]
    comment: String,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Rollback {
    /// Version in the history.
    version: u64,
    /// Comment for the history.
    #[serde(default)]
    comment: String,
}

/// Lists every setting: its value, its source, and whether it can be changed now. Only an admin sees users, passwords
/// and queries of URLs.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/config", tag = "configuration", operation_id = "config",
    security(("token" = ["viewer"])), responses((status = 200, body = ConfigView))))]
async fn view(state: State, caller: Caller) -> Result<Json<ConfigView>, Problem> {
    let view = run_blocking(move || state.configuration.view()).await?;
    Ok(Json(if caller.role == Role::Admin { view } else { view.without_secrets() }))
}

/// Checks whether these changes could be made; nothing changes.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/config/validate", tag = "configuration", operation_id = "config_validate",
    security(("token" = ["operator"])), request_body = Validate, responses((status = 200, body = Validated))))]
async fn validate(state: State, Body(body): Body<Validate>) -> Result<Json<Validated>, Problem> {
    bounded(&body.changes)?;
    let problems = run_blocking(move || state.configuration.validate(body.scope, &body.changes)).await?;
    Ok(Json(Validated { valid: problems.is_empty(), problems }))
}

/// Changes settings, all of them or none. They take effect at once and persist across restarts.
///
/// Settings of `node` are stored in `DATA_DIR/runtime.toml`, which takes precedence over the configuration file.
/// Settings of `cluster` are agreed upon by the cores and take effect on each node when it receives them. They take
/// precedence over the file, and `runtime.toml` takes precedence over them.
#[cfg_attr(feature = "document", utoipa::path(patch, path = "/api/v1/config", tag = "configuration", operation_id = "config_change",
    security(("token" = ["admin"])), request_body = ConfigPatch, responses((status = 200, body = Changed))))]
async fn change(
    state: State,
    caller: Caller,
    Body(body): Body<ConfigPatch>,
) -> Result<Json<Changed>, Problem> {
    let ConfigPatch { changes, scope, comment } = body;
    bounded(&changes)?;
    let author = author(&caller, comment)?;
    let change = move |state: &State| state.configuration.change(scope, &changes, &author);
    let changed = match scope {
        Scope::Node => change_node(&state, &caller, change).await??,
        Scope::Cluster => propose(&state, &caller, change).await??,
    };
    caller.note(|| describe_changes(&changed.changed));
    Ok(Json(changed))
}

/// Lists the last 100 versions, newest first. Only an admin sees users, passwords and queries of URLs.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/config/history", tag = "configuration", operation_id = "config_history",
    security(("token" = ["viewer"])), responses((status = 200, body = Page<Version>))))]
async fn history(state: State, caller: Caller) -> Result<Json<Page<Version>>, Problem> {
    let mut versions = run_blocking(move || state.configuration.history()).await?;
    if caller.role != Role::Admin {
        versions = versions.into_iter().map(Version::without_secrets).collect();
    }
    Ok(Json(Page::whole(versions)))
}

/// Restores the changes made on this node at run time to their state in a version. The result is a new version.
/// Settings that the cluster agrees on stay.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/config/rollback", tag = "configuration", operation_id = "config_rollback",
    security(("token" = ["admin"])), request_body = Rollback, responses((status = 200, body = Changed))))]
async fn rollback(
    state: State,
    caller: Caller,
    Body(body): Body<Rollback>,
) -> Result<Json<Changed>, Problem> {
    let Rollback { version, comment } = body;
    let comment = if comment.is_empty() { format!("back to version {version}") } else { comment };
    let author = author(&caller, comment)?;
    let rollback = move |state: &State| state.configuration.rollback(version, &author);
    let changed = change_node(&state, &caller, rollback).await??;
    caller.note(|| format!("version {version}: {}", describe_changes(&changed.changed)));
    Ok(Json(changed))
}

/// Reads the configuration file, password file, access rules, certificates and the other files that settings name
/// again, as SIGHUP does. Returns the names of the files.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/config/reload", tag = "configuration", operation_id = "config_reload",
    security(("token" = ["admin"])), responses((status = 200, body = Reloaded))))]
async fn reload(state: State, caller: Caller) -> Result<Json<Reloaded>, Problem> {
    let by = caller.by().to_owned();
    let reloaded = change_node(&state, &caller, move |state| {
        state.keys.refresh();
        state.configuration.reload(&by)
    })
    .await??;
    caller.note(|| {
        format!("{}; read again: {}", describe_changes(&reloaded.changed), reloaded.files.join(", "))
    });
    Ok(Json(reloaded))
}

fn bounded(changes: &Changes) -> Result<(), Problem> {
    match changes.len() {
        0 => Err(Problem::invalid("changes", "no changes; name a setting and its value")),
        1..=CHANGES_MAX => Ok(()),
        _ => Err(Problem::invalid(
            "changes",
            format!("more than {CHANGES_MAX} at once; send several requests"),
        )),
    }
}

fn author(caller: &Caller, comment: String) -> Result<Author, Problem> {
    if comment.len() > COMMENT_MAX {
        return Err(Problem::invalid("comment", format!("more than {COMMENT_MAX} bytes; shorten it")));
    }
    Ok(Author { by: caller.by().to_owned(), comment })
}

/// Text of the changes for the audit log.
fn describe_changes(changes: &[Change]) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "unset".to_owned());
    let one =
        |change: &Change| format!("{} {} -> {}", change.name, value(&change.before), value(&change.after));
    match changes {
        [] => "nothing changed".to_owned(),
        changes => changes.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}
