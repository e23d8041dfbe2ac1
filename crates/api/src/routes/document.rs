//! The OpenAPI document, and its page for people.

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(document)).routes(routes!(page))
}

/// Returns this document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "document", operation_id = "openapi", security(()),
    responses((status = 200, body = Object, content_type = "application/json")))]
async fn document(state: State) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], state.document.to_string())
}

/// Redirects to the page of the dashboard that shows this document.
#[utoipa::path(get, path = "/api/docs", tag = "document", operation_id = "docs", security(()),
    responses((status = 302, description = "The page is at `Location`", headers(("location" = String)))))]
async fn page() -> (StatusCode, [(HeaderName, &'static str); 1]) {
    (StatusCode::FOUND, [(LOCATION, "/#/api")])
}
