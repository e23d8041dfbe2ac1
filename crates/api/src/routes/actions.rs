//! `/actions`: rules whose outputs are written to systems outside, or published at this broker.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::actions::{Action, ActionTest, ActionTested, Actions, EntryRefused, WaitingMessages};
use crate::ask::{propose, run_blocking};
use crate::configuration::without_secrets;
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;

api_routes! {
    "/api/v1/actions": get list;
    "/api/v1/actions/{name}": get get, put put, delete remove;
    "/api/v1/actions/test": post test;
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
pub(super) struct ListQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
pub(super) struct EntriesQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
    /// Tenant whose entries are listed; empty for those of no tenant.
    pub tenant: Option<String>,
}

impl EntriesQuery {
    /// The page that is asked for.
    pub fn page(&self) -> ListQuery {
        ListQuery { limit: self.limit, cursor: self.cursor.clone() }
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
pub(super) struct RemoveQuery {
    /// Treatment of the messages that wait; default: `keep`.
    #[serde(default)]
    #[cfg_attr(feature = "document", param(inline))]
    messages: Messages,
}

/// Treatment of messages that wait for an entry that is removed.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
enum Messages {
    /// Messages wait for an entry with the same name.
    #[default]
    Keep,
    /// Messages are deleted with the session.
    Delete,
}

/// Lists actions by name.
///
/// In a cluster, the statuses come from the nodes that run the actions. `missing` names nodes that did not answer. Only
/// an admin sees values of `headers`.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/actions", tag = "actions", operation_id = "actions",
    security(("token" = ["viewer"])), params(EntriesQuery),
    responses((status = 200, body = Page<Action>)),
))]
async fn list(
    state: State,
    caller: Caller,
    Query(query): Query<EntriesQuery>,
) -> Result<Json<Page<Action>>, Problem> {
    let page_query = query.page();
    let listed = move |after: Option<&str>, limit| {
        let mut statuses = state.actions.views();
        let mut actions = state.actions.actions(query.tenant.as_deref(), after, limit);
        for action in &mut actions {
            let at = statuses.iter().position(|status| status.name == action.name);
            action.status = at.map(|at| statuses.swap_remove(at));
        }
        actions.into_iter().map(|action| shown(action, &caller)).collect()
    };
    page(page_query, listed, |action| &action.name).await
}

/// Returns a page of entries that are in the order of their names.
pub(super) async fn page<T: Send + 'static>(
    query: ListQuery,
    listed: impl FnOnce(Option<&str>, usize) -> Vec<T> + Send + 'static,
    name: fn(&T) -> &String,
) -> Result<Json<Page<T>>, Problem> {
    let limit = paging::limit(query.limit)?;
    // Names have the same order on each node.
    let after: Option<String> = paging::decode(query.cursor.as_deref())?;
    let mut items = run_blocking(move || listed(after.as_deref(), limit + 1)).await?;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| has_more).map(|last| paging::encode(name(last)));
    Ok(Json(Page::new(items, next)))
}

/// Returns one action.
///
/// In a cluster, its status comes from the node that runs it. Only an admin sees values of `headers`.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/actions/{name}", tag = "actions", operation_id = "action",
    security(("token" = ["viewer"])), params(("name" = String, Path)),
    responses((status = 200, body = Action)),
))]
async fn get(state: State, caller: Caller, Path(name): Path<String>) -> Result<Json<Action>, Problem> {
    let found = {
        let name = name.clone();
        run_blocking(move || with_status(&*state.actions, &name)).await?
    };
    found.map(|found| Json(shown(found, &caller))).ok_or_else(|| {
        Problem::not_found(format!("there is no action `{name}`; `GET /api/v1/actions` lists the actions"))
    })
}

/// Hides values of headers from readers who may not change them.
fn shown(action: Action, caller: &Caller) -> Action {
    if caller.role >= Role::Admin { action } else { action.without_secrets() }
}

fn with_status(actions: &dyn Actions, name: &str) -> Option<Action> {
    let mut action = actions.action(name)?;
    action.status = actions.views().into_iter().find(|status| status.name == name);
    Some(action)
}

/// Adds or replaces an action. The body has its settings with the keys of `[[action]]`, without `name`; the others get
/// their defaults. Messages that wait for a replaced action are processed with the new settings.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/actions/{name}", tag = "actions", operation_id = "action_put",
    security(("token" = ["admin"])), params(("name" = String, Path)), request_body(content = Object),
    responses((status = 200, body = Action), (status = 201, body = Action)),
))]
async fn put(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(settings): Body<Map<String, Value>>,
) -> Result<(StatusCode, Json<Action>), Problem> {
    caller.note(|| noted(&settings));
    let by = caller.authorship();
    let done = propose(&state, &caller, move |state| -> Result<_, EntryRefused> {
        let is_new = state.actions.put_action(&name, &settings, &by)?;
        let action = with_status(&*state.actions, &name);
        let removed = || format!("another request has removed the action `{name}` meanwhile");
        Ok((is_new, action.ok_or_else(|| EntryRefused::Conflict(removed()))?))
    });
    let (is_new, action) = done.await??;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(action)))
}

/// Removes an action. By default the messages that wait for it stay in its session, for an action with the same name.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/actions/{name}", tag = "actions", operation_id = "action_remove",
    security(("token" = ["admin"])), params(("name" = String, Path), RemoveQuery),
    responses((status = 204)),
))]
async fn remove(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    remove_entry(&state, &caller, query, move |state, waiting| state.actions.remove_action(&name, waiting))
        .await
}

/// Removes an entry, and then the messages that wait for it if the request says so.
pub(super) async fn remove_entry(
    state: &State,
    caller: &Caller,
    query: RemoveQuery,
    remove: impl Fn(&State, WaitingMessages) -> Result<(), EntryRefused> + Send + Sync + 'static,
) -> Result<StatusCode, Problem> {
    let remove = Arc::new(remove);
    let of_change = remove.clone();
    let removed = propose(state, caller, move |state| of_change(state, WaitingMessages::Keep)).await?;
    if matches!(query.messages, Messages::Keep) {
        removed?;
        return Ok(StatusCode::NO_CONTENT);
    }
    // An earlier attempt may have removed the entry and not its messages.
    let is_gone = matches!(removed, Err(EntryRefused::NotFound(_)));
    if !is_gone {
        removed?;
    }
    // It takes some seconds, in which other changes must not wait.
    let state = state.clone();
    match run_blocking(move || remove(&state, WaitingMessages::Delete)).await? {
        // An entry that never ran has no session.
        Err(EntryRefused::NotFound(_)) if !is_gone => {}
        emptied => emptied?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Tests an action: evaluates its rule with a message, and renders the records that it would write. Nothing is written.
///
/// The message is the one of the request, or with `live` the next one that a filter of the rule matches, for which this
/// node waits up to 10 s. At most four tests run at a time; a further one is refused (429).
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/actions/test", tag = "actions", operation_id = "action_test",
    security(("token" = ["admin"])), request_body = ActionTest,
    responses((status = 200, body = ActionTested)),
))]
async fn test(
    state: State,
    caller: Caller,
    Body(test): Body<ActionTest>,
) -> Result<Json<ActionTested>, Problem> {
    match (&test.message, test.live) {
        (None, false) => {
            return Err(Problem::invalid("message", "send a message, or live = true to wait for one"));
        }
        (Some(_), true) => return Err(Problem::invalid("live", "send either a message or live = true")),
        _ => {}
    }
    caller.note(|| test.settings.get("rule").and_then(Value::as_str).unwrap_or_default().to_owned());
    Ok(Json(run_test(&state, move |actions| actions.test_action(&test)).await?))
}

/// Text of the audit log about settings: without secrets of a URL, and only the beginning of a long one.
pub(super) fn noted(settings: &Map<String, Value>) -> String {
    let text = Value::from(settings.clone()).to_string();
    let mut text = without_secrets(&text).into_owned();
    text.truncate(text.floor_char_boundary(NOTE_MAX));
    text
}

/// Maximum number of bytes of settings in the audit log.
pub(super) const NOTE_MAX: usize = 4096;
/// Maximum number of tests that run at a time. Each blocks a thread.
pub(crate) const TESTS_MAX: usize = 4;

/// Runs a test, unless there are too many.
pub(super) async fn run_test<T: Send + 'static>(
    state: &State,
    test: impl FnOnce(&dyn Actions) -> Result<T, EntryRefused> + Send + 'static,
) -> Result<T, Problem> {
    let permit = state.action_tests.clone().try_acquire_owned().map_err(|_| {
        Problem::too_many(format!("{TESTS_MAX} tests are running already; try again when one has ended"))
    })?;
    let actions = state.actions.clone();
    let done = run_blocking(move || {
        // A test keeps its permit also when its caller is gone.
        let _permit = permit;
        test(&*actions)
    });
    Ok(done.await??)
}

impl From<EntryRefused> for Problem {
    fn from(refused: EntryRefused) -> Self {
        match refused {
            EntryRefused::NotFound(detail) => Self::not_found(detail),
            EntryRefused::Conflict(detail) => Self::conflict(detail),
            EntryRefused::Setting { setting, why } => Self::invalid(setting, why),
            EntryRefused::ConfigStore(error) => error.into(),
            EntryRefused::Unavailable(detail) => Self::unavailable(detail),
        }
    }
}
