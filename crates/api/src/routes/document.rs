//! The OpenAPI document, and its page for people.

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;

api_routes! {
    "/api/openapi.json": get document;
    "/api/docs": get page;
}

/// Returns this document.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/openapi.json", tag = "document", operation_id = "openapi", security(()),
    responses((status = 200, body = Object, content_type = "application/json"))))]
async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], crate::DOCUMENT)
}

/// Redirects to the page of the dashboard that shows this document.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/docs", tag = "document", operation_id = "docs", security(()),
    responses((status = 302, description = "The page is at `Location`", headers(("location" = String))))))]
async fn page() -> (StatusCode, [(HeaderName, &'static str); 1]) {
    (StatusCode::FOUND, [(LOCATION, "/#/api")])
}
