//! The caller of a request.

use std::sync::Arc;

use axum::Json;
use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::role::{Caller, Role, Way};
use crate::state::State;

api_routes! {
    "/api/v1/whoami": get whoami;
}

/// Caller of a request.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct WhoAmI {
    /// Name of the key or the account; `null` when there is none at all.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>))]
    name: Option<Arc<str>>,
    role: Role,
    /// True when no API key and no account exists: every client that reaches this server is an admin.
    open: bool,
    /// True when the caller has a session of an account, which can change its password and log out.
    session: bool,
}

/// Returns the name and the role of this token or session.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/whoami", tag = "access", operation_id = "whoami", security(("token" = ["viewer"])),
    responses((status = 200, body = WhoAmI))))]
async fn whoami(state: State, caller: Caller) -> Json<WhoAmI> {
    let session = matches!(caller.way, Way::Session(_));
    Json(WhoAmI { name: caller.name, role: caller.role, open: state.is_open(), session })
}
