//! `/users`: the built-in user database.

use auth::{Connected, Existing, Imported, UserError, UserRecord, Users};
use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

mod body;
mod csv;
mod item;
mod secret;

use body::{Hashed, UserBody, UserPatch, hashed};
use item::UserItem;
pub(super) use secret::Secret;

use super::listing;
use crate::ask::{propose, run_blocking};
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::{FieldProblem, Problem};
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/users": get list, post add;
    "/api/v1/users/{name}": get get, put replace, patch patch, delete remove;
    "/api/v1/users/import": post import;
}

const LISTING: &str = "users";
/// Maximum number of records that one request reads.
const LOOKED_AT_MAX: usize = 20_000;
const STEP: usize = 500;

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct ListQuery {
    /// Part of the name, the tenant or the description; ASCII upper and lower case are equal.
    search: Option<String>,
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct ChangeQuery {
    /// True to keep the user's connections open, on every node. Their rights are unchanged.
    #[serde(default)]
    keep_connected: bool,
}

impl ChangeQuery {
    fn connected(&self) -> Connected {
        if self.keep_connected { Connected::Keep } else { Connected::Close }
    }
}

/// Lists users by name. Passwords are not stored, and their hashes are not shown.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/users", tag = "users", operation_id = "users",
    security(("token" = ["viewer"])), params(ListQuery),
    responses((status = 200, body = Page<UserItem>)),
))]
async fn list(state: State, Query(query): Query<ListQuery>) -> Result<Json<Page<UserItem>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let after = listing::position::<String>(&state.admin, LISTING, query.cursor.as_deref())?;
    let search = query.search.filter(|text| !text.is_empty()).map(|text| text.to_ascii_lowercase());
    let shared = state.clone();
    let (items, last) = run_blocking(move || page(&shared.users, after, limit, search.as_deref())).await?;
    let next = last.map(|last| listing::next(&state.admin, LISTING, last));
    Ok(Json(Page::new(items, next)))
}

/// Returns a page of users after this name, and the cursor.
fn page(
    users: &Users,
    mut after: Option<String>,
    limit: usize,
    search: Option<&str>,
) -> (Vec<UserItem>, Option<String>) {
    let mut items = Vec::new();
    for _ in 0..LOOKED_AT_MAX / STEP {
        let step = users.page(after.as_deref(), STEP);
        let ended = step.len() < STEP;
        for (name, record) in step {
            if items.len() == limit {
                return (items, after);
            }
            // A record that cannot be read is in the log, and can be removed by its name.
            let item = match record {
                Ok(record) => UserItem::of(&name, &record),
                Err(_) => UserItem::damaged(&name),
            };
            if search.is_none_or(|search| item.matches(search)) {
                items.push(item);
            }
            after = Some(name.into());
        }
        if ended {
            return (items, None);
        }
    }
    (items, after)
}

/// Returns one user.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/users/{name}", tag = "users", operation_id = "user",
    security(("token" = ["viewer"])), params(("name" = String, Path)),
    responses((status = 200, body = UserItem)),
))]
async fn get(state: State, Path(name): Path<String>) -> Result<Json<UserItem>, Problem> {
    let found = run_blocking(move || {
        let record = state.users.get(&name)?.ok_or_else(|| UserError::Unknown(name.clone()))?;
        Ok::<_, UserError>(UserItem::of(&name, &record))
    });
    Ok(Json(found.await??))
}

/// Makes a user.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/users", tag = "users", operation_id = "user_add",
    security(("token" = ["admin"])), request_body = UserBody,
    responses((status = 201, body = UserItem)),
))]
async fn add(
    state: State,
    caller: Caller,
    Body(mut user): Body<UserBody>,
) -> Result<(StatusCode, Json<UserItem>), Problem> {
    let name = user.take_name()?;
    caller.note(|| format!("user {name:?}"));
    let secrets = hashed(user.password.clone(), user.password_hash.clone(), user.scram_iterations).await?;
    let added = propose(&state, &caller, move |state| {
        let record = with(user.record(UserRecord::new(now_ms())), secrets);
        state.users.add(&name, &record)?;
        Ok::<_, UserError>(UserItem::of(&name, &record))
    });
    Ok((StatusCode::CREATED, Json(added.await??)))
}

/// Replaces all fields of a user; without a password the old one stays. The user's connections are closed within
/// seconds, in a cluster on every node.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/users/{name}", tag = "users", operation_id = "user_replace",
    security(("token" = ["admin"])), params(("name" = String, Path), ChangeQuery), request_body = UserBody,
    responses((status = 200, body = UserItem)),
))]
async fn replace(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<ChangeQuery>,
    Body(body): Body<UserBody>,
) -> Result<Json<UserItem>, Problem> {
    if body.name.as_ref().is_some_and(|other| *other != name) {
        return Err(Problem::invalid(
            "name",
            "it differs from the name in the path; a user cannot be renamed",
        ));
    }
    known(&state, &name).await?;
    let secrets = hashed(body.password.clone(), body.password_hash.clone(), body.scram_iterations).await?;
    change(state, caller, name, query, move |record| with(body.record(record), secrets.clone())).await
}

/// Changes a user's password, or whether the user is enabled. The user's connections are closed within seconds, in a
/// cluster on every node.
#[cfg_attr(feature = "document", utoipa::path(
    patch, path = "/api/v1/users/{name}", tag = "users", operation_id = "user_patch",
    security(("token" = ["admin"])), params(("name" = String, Path), ChangeQuery), request_body = UserPatch,
    responses((status = 200, body = UserItem)),
))]
async fn patch(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<ChangeQuery>,
    Body(body): Body<UserPatch>,
) -> Result<Json<UserItem>, Problem> {
    caller.note(|| body.note());
    known(&state, &name).await?;
    let secrets = hashed(body.password, body.password_hash, body.scram_iterations).await?;
    let enabled = body.enabled;
    change(state, caller, name, query, move |record| {
        let enabled = enabled.unwrap_or(record.enabled);
        with(UserRecord { enabled, ..record }, secrets.clone())
    })
    .await
}

/// Removes a user. The user's connections are closed within seconds, in a cluster on every node. The sessions stay
/// until they expire.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/users/{name}", tag = "users", operation_id = "user_remove",
    security(("token" = ["admin"])), params(("name" = String, Path), ChangeQuery),
    responses((status = 204)),
))]
async fn remove(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<ChangeQuery>,
) -> Result<StatusCode, Problem> {
    propose(&state, &caller, move |state| state.users.remove(&name, query.connected())).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Users to import.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Import {
    /// Users as objects, instead of `csv`.
    #[serde(default)]
    users: Vec<UserBody>,
    /// Users as lines of comma-separated values, instead of `users`. The first line names the columns: `name`, and any
    /// of `password`, `password_hash`, `superuser`, `enabled`, `tenant`, `description`.
    csv: Option<String>,
    /// Treatment of users that exist already: `refuse` imports no user, `keep` leaves them unchanged, `replace`
    /// replaces them.
    #[serde(default)]
    existing: ExistingName,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
enum ExistingName {
    #[default]
    Refuse,
    Keep,
    Replace,
}

/// Result of an import.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct ImportResult {
    added: usize,
    replaced: usize,
    /// Users that were left unchanged.
    kept: usize,
}

/// Imports users, up to the size limit of the body. All users are imported, or none.
///
/// Passwords take time to hash, so a request may have at most 200. The number of hashes is limited by the size of the
/// body only.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/users/import", tag = "users", operation_id = "users_import",
    security(("token" = ["admin"])), params(ChangeQuery), request_body = Import,
    responses((status = 200, body = ImportResult)),
))]
async fn import(
    state: State,
    caller: Caller,
    Query(query): Query<ChangeQuery>,
    Body(body): Body<Import>,
) -> Result<Json<ImportResult>, Problem> {
    let Import { users, csv, existing } = body;
    let users = match csv {
        Some(_) if !users.is_empty() => return Err(Problem::invalid("csv", "send either users or csv")),
        Some(text) => csv::read(&text).map_err(|why| Problem::invalid("csv", why))?,
        None => users,
    };
    caller.note(|| format!("{} users", users.len()));
    if users.iter().filter(|user| user.password.is_some()).count() > PASSWORDS_MAX {
        let detail = format!(
            "a request may have at most {PASSWORDS_MAX} passwords; send hashes, or fewer users at a \
                time"
        );
        return Err(Problem::invalid("users", detail));
    }
    let mut records = Vec::with_capacity(users.len());
    for mut user in users {
        let name = user.take_name()?;
        let secrets = hashed(user.password.clone(), user.password_hash.clone(), user.scram_iterations);
        let secrets = secrets.await.map_err(|problem| {
            Problem::new(problem.kind(), format!("user `{name}`: {}", problem.detail()))
        })?;
        records.push((name, with(user.record(UserRecord::new(now_ms())), secrets)));
    }
    let existing = match existing {
        ExistingName::Refuse => Existing::Refuse,
        ExistingName::Keep => Existing::Keep,
        ExistingName::Replace => Existing::Replace,
    };
    let connected = query.connected();
    let done = propose(&state, &caller, move |state| state.users.import(&records, existing, connected));
    let Imported { added, replaced, kept } = done.await??;
    Ok(Json(ImportResult { added, replaced, kept }))
}

/// Maximum number of passwords of an import; each takes about 50 ms.
const PASSWORDS_MAX: usize = 200;

async fn change(
    state: State,
    caller: Caller,
    name: String,
    query: ChangeQuery,
    change: impl Fn(UserRecord) -> UserRecord + Send + 'static,
) -> Result<Json<UserItem>, Problem> {
    let changed = propose(&state, &caller, move |state| {
        let change = |record| UserRecord { changed_ms: now_ms(), ..change(record) };
        let after = state.users.change(&name, query.connected(), change)?;
        Ok::<_, UserError>(UserItem::of(&name, &after))
    });
    Ok(Json(changed.await??))
}

/// Checks that the user exists, so that no password is hashed in vain.
async fn known(state: &State, name: &str) -> Result<(), Problem> {
    let (state, name) = (state.clone(), name.to_owned());
    run_blocking(move || match state.users.get(&name)? {
        Some(_) => Ok(()),
        None => Err(UserError::Unknown(name)),
    })
    .await??;
    Ok(())
}

/// Returns the record with a new password, when there is one. The old keys of SCRAM belong to the old password.
fn with(record: UserRecord, secrets: Option<Hashed>) -> UserRecord {
    match secrets {
        Some(Hashed { hash, scram }) => UserRecord { hash: Some(hash), scram, ..record },
        None => record,
    }
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

impl From<UserError> for Problem {
    fn from(error: UserError) -> Self {
        let detail = error.to_string();
        match error {
            UserError::Unknown(_) => Self::not_found(detail + "; search with `GET /api/v1/users?search=`"),
            UserError::Exists(_) | UserError::TooMany { .. } => Self::conflict(detail),
            UserError::ConfigStore(error) => error.into(),
            UserError::Of { error, .. } => match *error {
                UserError::ConfigStore(error) => Self::new(Self::from(error).kind(), detail),
                _ => Self::invalid("users", detail),
            },
            UserError::Twice(_) => Self::invalid("users", detail),
            UserError::Fields(fields) => Self::invalid_fields(
                fields
                    .into_iter()
                    .map(|(name, detail)| FieldProblem { name: name.to_owned(), detail })
                    .collect(),
            ),
            UserError::Damaged { .. } | UserError::System(_) => {
                tracing::error!("users have not changed: {detail}");
                Self::internal(detail)
            }
        }
    }
}
