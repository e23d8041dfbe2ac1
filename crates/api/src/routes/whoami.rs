//! The caller of a request.

use std::sync::Arc;

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::role::{Caller, Role};
use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(whoami))
}

/// Caller of a request.
#[derive(Serialize, ToSchema)]
struct WhoAmI {
    /// Name of the key; `null` when there is no key at all.
    #[schema(value_type = Option<String>)]
    name: Option<Arc<str>>,
    role: Role,
    /// True when no API key exists: every client that reaches this server is an admin.
    open: bool,
}

/// Returns the key and the role of this token.
#[utoipa::path(get, path = "/api/v1/whoami", tag = "access", operation_id = "whoami", security(("token" = ["viewer"])),
    responses((status = 200, body = WhoAmI)))]
async fn whoami(state: State, caller: Caller) -> Json<WhoAmI> {
    Json(WhoAmI { name: caller.name, role: caller.role, open: state.is_open() })
}
