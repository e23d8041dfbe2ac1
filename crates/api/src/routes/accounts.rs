//! `/accounts`: people who log in with a name and a password.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use super::login::hashed;
use super::users::Secret;
use crate::accounts::Account;
use crate::ask::propose;
use crate::extract::{Body, Path};
use crate::keys::KeyError;
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/accounts": get list, post add;
    "/api/v1/accounts/{name}": patch patch, delete remove;
}

/// An account, without its password.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct AccountView {
    #[cfg_attr(feature = "document", schema(value_type = String))]
    name: Arc<str>,
    role: Role,
    created_at: Timestamp,
    /// Last change of the role or the password.
    changed_at: Timestamp,
    /// Number of its sessions now, as this node knows them.
    sessions: usize,
}

impl AccountView {
    fn of(account: &Account, sessions: usize) -> Self {
        let Account { name, role, created_at, changed_at, .. } = account.clone();
        Self { name, role, created_at, changed_at, sessions }
    }
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct AddAccount {
    /// 1 to 64 characters of `a-z`, `A-Z`, `0-9`, `.`, `_`, `-`, `@`.
    name: String,
    role: Role,
    /// 8 characters to 256 bytes, other than the name.
    #[cfg_attr(feature = "document", schema(value_type = String))]
    password: Secret,
}

/// New values of an account; a field that is left out stays.
#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct PatchAccount {
    role: Option<Role>,
    /// 8 characters to 256 bytes, other than the name.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>))]
    password: Option<Secret>,
}

/// Lists all accounts.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/accounts", tag = "access", operation_id = "accounts", security(("token" = ["admin"])),
    responses((status = 200, body = Page<AccountView>))))]
async fn list(state: State) -> Json<Page<AccountView>> {
    let counts = state.keys.sessions().counts();
    let view = |account: Arc<Account>| {
        AccountView::of(&account, counts.get(&account.name).copied().unwrap_or_default())
    };
    Json(Page::whole(state.keys.accounts().list().into_iter().map(view).collect()))
}

/// Makes an account. Once the first account or key exists, every request needs a session or a token; so the first one
/// must be an admin's.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/accounts", tag = "access", operation_id = "account_add", security(("token" = ["admin"])),
    request_body = AddAccount, responses((status = 201, body = AccountView))))]
async fn add(
    state: State,
    caller: Caller,
    Body(body): Body<AddAccount>,
) -> Result<(StatusCode, Json<AccountView>), Problem> {
    let AddAccount { name, role, password } = body;
    caller.note(|| format!("account {name:?} for {}", role.with_article()));
    let hash = hashed(&state, &name, password).await?;
    let added = propose(&state, &caller, move |state| {
        let account = Account::new(&name, role, hash)?;
        state.keys.accounts().add(&account)?;
        Ok::<_, KeyError>(AccountView::of(&account, 0))
    });
    Ok((StatusCode::CREATED, Json(added.await??)))
}

/// Changes the role or the password of an account. Its sessions end, on every node.
#[cfg_attr(feature = "document", utoipa::path(patch, path = "/api/v1/accounts/{name}", tag = "access", operation_id = "account_patch",
    security(("token" = ["admin"])), params(("name" = String, Path, description = "Name of the account")),
    request_body = PatchAccount, responses((status = 200, body = AccountView))))]
async fn patch(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(body): Body<PatchAccount>,
) -> Result<Json<AccountView>, Problem> {
    let PatchAccount { role, password } = body;
    caller.note(|| {
        let role = role.map(|role| format!("role {}", role.name()));
        let parts: Vec<_> =
            role.into_iter().chain(password.as_ref().map(|_| "password".to_owned())).collect();
        parts.join(", ")
    });
    // No password is hashed in vain.
    if state.keys.accounts().get(&name).is_none() {
        return Err(KeyError::UnknownAccount(name).into());
    }
    let hash = match password {
        Some(password) => Some(hashed(&state, &name, password).await?),
        None => None,
    };
    let changed = propose(&state, &caller, move |state| state.keys.accounts().change(&name, role, hash));
    Ok(Json(AccountView::of(&*changed.await??, 0)))
}

/// Removes an account. Its sessions end, on every node.
#[cfg_attr(feature = "document", utoipa::path(delete, path = "/api/v1/accounts/{name}", tag = "access", operation_id = "account_remove",
    security(("token" = ["admin"])), params(("name" = String, Path, description = "Name of the account")),
    responses((status = 204, description = "The account is removed"))))]
async fn remove(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let to_none = state.address.ip().to_canonical().is_loopback();
    propose(&state, &caller, move |state| state.keys.accounts().remove(&name, to_none)).await??;
    Ok(StatusCode::NO_CONTENT)
}
