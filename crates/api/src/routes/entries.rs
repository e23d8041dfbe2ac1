//! Queries and answers that the routes of connectors, actions, bridges and cluster links have in common.

use std::sync::Arc;

use auth::Authorship;
use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::actions::{EntryRefused, WaitingMessages};
use crate::ask::{propose, run_blocking};
use crate::configuration::without_secrets;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

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

/// A kind of entries.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    /// Word for one of them.
    pub noun: &'static str,
    /// Path of their list.
    pub path: &'static str,
}

impl Entries {
    /// Returns one entry.
    pub async fn get<T: Send + 'static>(
        self,
        name: String,
        get: impl FnOnce(&str) -> Option<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let Self { noun, path } = self;
        let unknown = format!("there is no {noun} `{name}`; `GET {path}` lists the {noun}s");
        run_blocking(move || get(&name)).await?.ok_or_else(|| Problem::not_found(unknown))
    }

    /// Adds or replaces an entry. `put` returns true when it is new, and `get` returns it afterwards.
    pub async fn put<T: Send + 'static>(
        self,
        (state, caller): (&State, &Caller),
        (name, settings): (String, Map<String, Value>),
        put: impl FnOnce(&State, &str, &Map<String, Value>, &Authorship) -> Result<bool, EntryRefused>
        + Send
        + 'static,
        get: impl FnOnce(&State, &str) -> Option<T> + Send + 'static,
    ) -> Result<(StatusCode, Json<T>), Problem> {
        caller.note(|| noted(&settings));
        let by = caller.authorship();
        let done = propose(state, caller, move |state| -> Result<_, EntryRefused> {
            let is_new = put(state, &name, &settings, &by)?;
            let removed = || format!("another request has removed the {} `{name}` meanwhile", self.noun);
            Ok((is_new, get(state, &name).ok_or_else(|| EntryRefused::Conflict(removed()))?))
        });
        let (is_new, entry) = done.await??;
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        Ok((status, Json(entry)))
    }
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

/// Text of the audit log about settings: without secrets of a URL, and only the beginning of a long one.
pub(super) fn noted(settings: &Map<String, Value>) -> String {
    let text = Value::from(settings.clone()).to_string();
    let mut text = without_secrets(&text).into_owned();
    text.truncate(text.floor_char_boundary(NOTE_MAX));
    text
}

/// Maximum number of bytes of settings in the audit log.
pub(super) const NOTE_MAX: usize = 4096;
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
