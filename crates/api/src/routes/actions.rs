//! `/actions`: rules whose outputs are written to systems outside, or published at this broker.

use auth::Authorship;
use axum::Json;
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::entries::{Entries, EntriesQuery, RemoveQuery, page, remove_entry};
use crate::actions::{Action, ActionTest, ActionTested, Actions, EntryRefused};
use crate::ask::run_blocking;
use crate::extract::{Body, Path, Query};
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;

api_routes! {
    "/api/v1/actions": get list;
    "/api/v1/actions/{name}": get get, put put, delete remove;
    "/api/v1/actions/test": post test;
}

const ACTIONS: Entries = Entries { noun: "action", path: "/api/v1/actions" };

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

/// Returns one action.
///
/// In a cluster, its status comes from the node that runs it. Only an admin sees values of `headers`.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/actions/{name}", tag = "actions", operation_id = "action",
    security(("token" = ["viewer"])), params(("name" = String, Path)),
    responses((status = 200, body = Action)),
))]
async fn get(state: State, caller: Caller, Path(name): Path<String>) -> Result<Json<Action>, Problem> {
    let found = ACTIONS.get(name, move |name| with_status(&*state.actions, name)).await?;
    Ok(Json(shown(found, &caller)))
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
    let put = |state: &State, name: &str, settings: &Map<String, Value>, by: &Authorship| {
        state.actions.put_action(name, settings, by)
    };
    ACTIONS
        .put((&state, &caller), (name, settings), put, |state, name| with_status(&*state.actions, name))
        .await
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
