//! Files of the dashboard, which are part of the program.

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use rust_embed::{Embed, EmbeddedFile};

use crate::problem::Problem;

#[derive(Embed)]
#[folder = "dashboard/"]
struct Dashboard;

/// Answers all paths that no route matches: a file of the dashboard, or 404. A name is looked up literally, so no path
/// leads elsewhere.
pub async fn serve(request: Request) -> Response {
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return not_found(path).into_response();
    }
    let name = match path {
        "/" => "index.html",
        path => path.strip_prefix('/').unwrap_or(path),
    };
    let Some(file) = Dashboard::get(name) else { return not_found(path).into_response() };
    let etag = etag(&file);
    // The name of a built file contains a hash of its content.
    let caching =
        if name.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let known = request.headers().get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = known.flat_map(|value| value.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
    let headers = [(CACHE_CONTROL, HeaderValue::from_static(caching)), (ETAG, etag.clone())];
    if tags.any(|tag| tag.as_bytes() == etag.as_bytes() || tag == "*") {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    let content_type = [(CONTENT_TYPE, HeaderValue::from_static(content_type(name)))];
    (headers, content_type, file.data).into_response()
}

fn not_found(path: &str) -> Problem {
    Problem::not_found(format!("there is nothing at {path}; /api/openapi.json lists the paths of the API"))
}

fn etag(file: &EmbeddedFile) -> HeaderValue {
    let hash: String = file.metadata.sha256_hash()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::try_from(format!("\"{hash}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("json" | "map") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_type_of_its_own() {
        assert!(Dashboard::get("index.html").is_some());
        for name in Dashboard::iter() {
            assert_ne!(content_type(&name), "application/octet-stream", "{name}");
        }
    }
}
