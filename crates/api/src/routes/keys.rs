//! `/keys`: API keys.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::ask::propose;
use crate::extract::{Body, Path};
use crate::keys::{Key, KeyError, NewKey};
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/keys": get list, post add;
    "/api/v1/keys/{name}": delete remove;
}

/// A key, without its token.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct KeyView {
    #[cfg_attr(feature = "document", schema(value_type = String))]
    name: Arc<str>,
    role: Role,
    created_at: Timestamp,
    /// Expiry; `null`: never.
    expires_at: Option<Timestamp>,
    /// Last use since the start of the node; `null`: not yet.
    last_used_at: Option<Timestamp>,
}

impl KeyView {
    fn of(key: Key, last_used_at: Option<Timestamp>) -> Self {
        let Key { name, role, created_at, expires_at, .. } = key;
        Self { name, role, created_at, expires_at, last_used_at }
    }
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct AddKey {
    /// 1 to 64 characters of `a-z`, `A-Z`, `0-9`, `.`, `_`, `-`, `@`.
    name: String,
    role: Role,
    /// Time until it expires, in seconds; without it the key never expires.
    expires_in_s: Option<u64>,
}

/// A new key with its token, which is not shown again.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct CreatedKey {
    #[serde(flatten)]
    key: KeyView,
    token: String,
}

/// Lists all keys.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/keys", tag = "access", operation_id = "keys", security(("token" = ["admin"])),
    responses((status = 200, body = Page<KeyView>))))]
async fn list(state: State) -> Json<Page<KeyView>> {
    Json(Page::whole(state.keys.list().into_iter().map(|(key, used)| KeyView::of(key, used)).collect()))
}

/// Makes a key. Once the first key exists, every request needs a token; so the first key must be an admin's.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/keys", tag = "access", operation_id = "key_add", security(("token" = ["admin"])),
    request_body = AddKey, responses((status = 201, body = CreatedKey))))]
async fn add(
    state: State,
    caller: Caller,
    Body(body): Body<AddKey>,
) -> Result<(StatusCode, Json<CreatedKey>), Problem> {
    if body.expires_in_s == Some(0) {
        return Err(Problem::invalid("expires_in_s", "expected at least 1"));
    }
    caller.note(|| format!("key {} for a {}", body.name, body.role.name()));
    let new =
        NewKey { name: body.name, role: body.role, expires_in: body.expires_in_s.map(Duration::from_secs) };
    let (key, token) = propose(&state, &caller, move |state| state.keys.add(&new)).await??;
    Ok((StatusCode::CREATED, Json(CreatedKey { key: KeyView::of(key, None), token })))
}

/// Removes a key; its token is refused from now on.
#[cfg_attr(feature = "document", utoipa::path(delete, path = "/api/v1/keys/{name}", tag = "access", operation_id = "key_remove",
    security(("token" = ["admin"])), params(("name" = String, Path, description = "Name of the key")),
    responses((status = 204, description = "The key is removed"))))]
async fn remove(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let to_none = state.address.ip().to_canonical().is_loopback();
    propose(&state, &caller, move |state| state.keys.remove(&name, to_none)).await??;
    Ok(StatusCode::NO_CONTENT)
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Self {
        let detail = error.to_string();
        match error {
            KeyError::BadName => Self::invalid("name", detail),
            KeyError::BadToken => Self::invalid("token", detail),
            KeyError::BadPassword => Self::invalid("password", detail),
            KeyError::Unknown(_) | KeyError::UnknownAccount(_) => Self::not_found(detail),
            KeyError::Exists(_)
            | KeyError::TooMany
            | KeyError::AccountExists(_)
            | KeyError::TooManyAccounts
            | KeyError::LastAdmin
            | KeyError::Pending(_) => Self::conflict(detail),
            KeyError::Write(error) => error.into(),
            KeyError::Unreadable { .. }
            | KeyError::NotUnderstood { .. }
            | KeyError::InvalidRequest { .. }
            | KeyError::OtherUser { .. }
            | KeyError::NotApplied
            | KeyError::ConfigStore(_)
            | KeyError::Random(_) => Self::internal(detail),
        }
    }
}
