//! Arguments that handlers extract from a request. Each fault of the request becomes a problem document.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::problem::{Kind, Problem};
use crate::state::State;

/// The query. Its type refuses unknown parameters: `#[serde(deny_unknown_fields)]`. A parameter that can be repeated is
/// a `Vec`.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<State> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(query)
            .map(Self)
            .map_err(|error| Problem::bad_request(format!("the query: {error}")))
    }
}

/// Parameters of the path, percent-decoded.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<State> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(path) => Ok(Self(path.0)),
            Err(error) => Err(Problem::bad_request(format!("the path: {}", error.body_text()))),
        }
    }
}

/// A JSON body. Its type refuses unknown fields: `#[serde(deny_unknown_fields)]`.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<State> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self, Problem> {
        let bytes = whole(state, request.into_body()).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(Problem::bad_request("the request has no body; send a JSON body"));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let name = error.path().to_string();
            wrong(error.into_inner(), &name)
        })?;
        deserializer.end().map_err(|error| wrong(error, "."))?;
        Ok(Self(value))
    }
}

/// Reads a body to its end.
///
/// # Errors
/// 413 beyond `http.body_max`, 400 when the body ends early.
pub(crate) async fn whole(state: &State, body: axum::body::Body) -> Result<Bytes, Problem> {
    let max = state.settings.body_max.bytes() as usize;
    match Limited::new(body, max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            state.metrics.rejected.body();
            Err(too_large(state))
        }
        Err(error) => Err(Problem::bad_request(format!("the body ended early: {error}"))),
    }
}

pub(crate) fn too_large(state: &State) -> Problem {
    Problem::too_large(format!(
        "the body is larger than {} (http.body_max); send less at once",
        state.settings.body_max
    ))
}

/// Converts an error of JSON: invalid syntax is a bad request; a wrong value is a problem that names the field.
fn wrong(error: serde_json::Error, name: &str) -> Problem {
    match error.classify() {
        Category::Data if name == "." => Problem::new(Kind::Invalid, format!("the body: {error}")),
        Category::Data => Problem::invalid(name, error.to_string()),
        Category::Syntax | Category::Eof | Category::Io => {
            Problem::bad_request(format!("the body is not valid JSON: {error}"))
        }
    }
}
