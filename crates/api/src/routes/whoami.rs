//! The caller of a request.

use std::sync::Arc;

use axum::Json;
use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::role::{Caller, Role};
use crate::state::State;

api_routes! {
    "/api/v1/whoami": get whoami;
}

/// Caller of a request.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct WhoAmI {
    /// Name of the key; `null` when there is no key at all.
    #[cfg_attr(feature = "document", schema(value_type = Option<String>))]
    name: Option<Arc<str>>,
    role: Role,
    /// True when no API key exists: every client that reaches this server is an admin.
    open: bool,
}

/// Returns the key and the role of this token.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/whoami", tag = "access", operation_id = "whoami", security(("token" = ["viewer"])),
    responses((status = 200, body = WhoAmI))))]
async fn whoami(state: State, caller: Caller) -> Json<WhoAmI> {
    Json(WhoAmI { name: caller.name, role: caller.role, open: state.is_open() })
}
