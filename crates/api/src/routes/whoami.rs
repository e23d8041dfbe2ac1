//! Who asks.

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

/// What the token stands for.
#[derive(Serialize, ToSchema)]
struct WhoAmI {
    /// Name of the key; `null` when there is no key at all.
    #[schema(value_type = Option<String>)]
    name: Option<Arc<str>>,
    role: Role,
    /// No API key exists: everybody who reaches this server is an admin.
    open: bool,
}

/// Whose token this is, and what it permits.
#[utoipa::path(get, path = "/api/v1/whoami", tag = "access", operation_id = "whoami", security(("token" = ["viewer"])),
    responses((status = 200, body = WhoAmI)))]
async fn whoami(state: State, caller: Caller) -> Json<WhoAmI> {
    Json(WhoAmI { name: caller.name, role: caller.role, open: state.is_open() })
}
