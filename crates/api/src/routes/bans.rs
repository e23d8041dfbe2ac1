//! `/bans`: clients that may not connect.

use std::time::{Duration, SystemTime};

use auth::{Ban, BanError, BanId, BanKind, BanTarget, NewBan};
use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::listing;
use crate::ask::propose;
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::{FieldProblem, Problem};
use crate::role::Caller;
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/bans": get list, post add;
    "/api/v1/bans/{id}": delete remove;
}

const LISTING: &str = "bans";
/// Maximum duration of a ban in seconds. A longer one must be unlimited.
const FOR_S_MAX: u64 = 100 * 365 * 24 * 3600;

/// A ban.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct BanItem {
    #[cfg_attr(feature = "document", schema(examples("17")))]
    id: String,
    /// `client_id`, `username` or `address`.
    kind: &'static str,
    value: String,
    reason: String,
    /// Name of the key that made it; empty in open mode.
    by: String,
    created_at: Timestamp,
    /// End of the ban; `null`: never.
    until: Option<Timestamp>,
}

impl From<&Ban> for BanItem {
    fn from(ban: &Ban) -> Self {
        Self {
            id: ban.id.0.to_string(),
            kind: ban.target.kind().name(),
            value: ban.target.to_string(),
            reason: ban.reason.to_string(),
            by: ban.by.to_string(),
            created_at: ban.created_at.into(),
            until: ban.until.map(Timestamp::from),
        }
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct PageQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists bans, oldest first.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/bans", tag = "bans", operation_id = "list_bans",
    security(("token" = ["viewer"])),
    params(PageQuery),
    responses((status = 200, body = Page<BanItem>)),
))]
async fn list(state: State, Query(query): Query<PageQuery>) -> Result<Json<Page<BanItem>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let after = listing::position::<u64>(&state.admin, LISTING, query.cursor.as_deref())?.map(BanId);
    let (page, more) = state.guard.bans().list(after, limit, SystemTime::now());
    let next = page.last().filter(|_| more).map(|last| listing::next(&state.admin, LISTING, last.id.0));
    Ok(Json(Page::new(page.iter().map(|ban| BanItem::from(&**ban)).collect(), next)))
}

/// Clients to ban.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct BanBody {
    /// `client_id`, `username` or `address`.
    kind: String,
    /// A Client Identifier or User Name, where a `*` at the end makes it a prefix; or an address or a network such as
    /// `10.0.0.0/8`.
    #[cfg_attr(feature = "document", schema(examples("sensor-17*")))]
    value: String,
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(max_length = 1024))]
    reason: String,
    /// Duration in seconds; without it the ban never ends.
    for_s: Option<u64>,
}

impl BanBody {
    fn check(self, by: &str, now: SystemTime) -> Result<NewBan, Problem> {
        let mut errors = Vec::new();
        let mut wrong =
            |name: &str, detail: String| errors.push(FieldProblem { name: name.to_owned(), detail });
        let target = match BanKind::parse(&self.kind) {
            None => {
                wrong("kind", format!("expected client_id, username or address, found `{}`", self.kind));
                None
            }
            Some(kind) => {
                BanTarget::parse(kind, &self.value).map_err(|error| wrong("value", error.to_string())).ok()
            }
        };
        if self.for_s.is_some_and(|seconds| !(1..=FOR_S_MAX).contains(&seconds)) {
            wrong("for_s", format!("expected 1 to {FOR_S_MAX} seconds, or null for a ban that never ends"));
        }
        match target {
            Some(target) if errors.is_empty() => {
                let until = self.for_s.map(|seconds| now + Duration::from_secs(seconds));
                Ok(NewBan { target, reason: self.reason, by: by.to_owned(), until })
            }
            _ => Err(Problem::invalid_fields(errors)),
        }
    }
}

/// Bans clients.
///
/// Connections of banned clients are closed within seconds (DISCONNECT with 0x98), in a cluster on every node. Their
/// sessions stay.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/bans", tag = "bans", operation_id = "add_ban",
    security(("token" = ["operator"])),
    request_body = BanBody,
    responses((status = 201, body = BanItem)),
))]
async fn add(
    state: State,
    caller: Caller,
    Body(body): Body<BanBody>,
) -> Result<(StatusCode, Json<BanItem>), Problem> {
    caller.note(|| format!("{} {}", body.kind, body.value));
    let now = SystemTime::now();
    let new = body.check(caller.by(), now)?;
    let ban = propose(&state, &caller, move |state| state.guard.bans().add(new, now)).await??;
    Ok((StatusCode::CREATED, Json(BanItem::from(&*ban))))
}

/// Removes a ban.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/bans/{id}", tag = "bans", operation_id = "remove_ban",
    security(("token" = ["operator"])),
    params(("id" = String, Path)),
    responses((status = 204)),
))]
async fn remove(state: State, caller: Caller, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    let unknown = || Problem::not_found(format!("there is no ban `{id}`; `GET /api/v1/bans` lists the bans"));
    let number = id.parse().map_err(|_| unknown())?;
    let removed =
        propose(&state, &caller, move |state| state.guard.bans().remove(BanId(number), SystemTime::now()));
    let removed = removed.await??.ok_or_else(unknown)?;
    caller.note(|| format!("{} {}", removed.target.kind().name(), removed.target));
    Ok(StatusCode::NO_CONTENT)
}

impl From<BanError> for Problem {
    fn from(error: BanError) -> Self {
        match error {
            BanError::Exists(_) => Self::conflict(error.to_string()),
            BanError::TooMany { .. } => Self::invalid("value", error.to_string()),
            BanError::ReasonLong => Self::invalid("reason", error.to_string()),
            BanError::Write(error) => error.into(),
        }
    }
}
