//! Problem: the reason why a request failed, as RFC 9457 problem document.

use axum::Json;
use axum::http::header::{ALLOW, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use broker::admin::Invalid;
use configstore::ProposeError;
use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::routes::clients::Owner;

/// Kind of a problem. Clients distinguish problems by the slug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Conflict,
    /// Another node has the answer.
    Misdirected,
    TooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    Internal,
    Unavailable,
    /// Nothing has changed.
    NotCommitted,
    /// The cores may still agree, or have agreed.
    Undecided,
}

impl Kind {
    fn facts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad-request", "Invalid request"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized", "Valid token required"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "Not permitted"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "Not found"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed")
            }
            Self::Conflict => (StatusCode::CONFLICT, "conflict", "Conflict with the present state"),
            Self::Misdirected => {
                (StatusCode::MISDIRECTED_REQUEST, "misdirected", "Another node has the answer")
            }
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "Body too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "JSON is needed")
            }
            Self::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "Invalid value"),
            Self::TooManyRequests => {
                (StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "Too many requests")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Node unavailable"),
            Self::NotCommitted => {
                (StatusCode::SERVICE_UNAVAILABLE, "not-committed", "Not committed by the cores")
            }
            Self::Undecided => {
                (StatusCode::SERVICE_UNAVAILABLE, "undecided", "Unknown whether the cores committed")
            }
        }
    }

    pub fn status(self) -> StatusCode {
        self.facts().0
    }
}

/// Reason why a request failed. [`IntoResponse`] converts it to its document.
#[derive(Clone, Debug)]
pub struct Problem(Box<Facts>);

#[derive(Clone, Debug)]
struct Facts {
    kind: Kind,
    /// A sentence that includes the remedy.
    detail: String,
    errors: Vec<FieldProblem>,
    header: Option<(HeaderName, HeaderValue)>,
    owner: Option<Owner>,
}

/// Fault of one field of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct FieldProblem {
    pub name: String,
    pub detail: String,
}

/// The document, as it is sent.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = Problem))]
pub struct ProblemDocument {
    /// `urn:meridian:problem:` and a slug that names the kind of problem.
    #[serde(rename = "type")]
    pub type_: String,
    pub title: &'static str,
    pub status: u16,
    /// The fault and its remedy.
    pub detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "document", schema(required = false))]
    pub errors: Vec<FieldProblem>,
    /// Connection of the client on another node, which has the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "document", schema(required = false))]
    pub owner: Option<Owner>,
}

/// Detail that a response carries for the audit log.
#[derive(Clone, Debug)]
pub(crate) struct ProblemDetail(pub String);

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let header = match kind {
            Kind::Unauthorized => Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            Kind::TooManyRequests | Kind::NotCommitted | Kind::Undecided => {
                Some((RETRY_AFTER, HeaderValue::from_static("1")))
            }
            _ => None,
        };
        Self(Box::new(Facts { kind, detail: detail.into(), errors: Vec::new(), header, owner: None }))
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(Kind::BadRequest, detail)
    }

    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(Kind::Unauthorized, detail)
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, detail)
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, detail)
    }

    /// Returns the problem that another node has the answer: that of the client's connection, if it is known, and
    /// otherwise the leader of the client's shard.
    pub fn misdirected(detail: impl Into<String>, owner: Option<Owner>) -> Self {
        let mut problem = Self::new(Kind::Misdirected, detail);
        problem.0.owner = owner;
        problem
    }

    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(Kind::TooLarge, detail)
    }

    pub fn too_many(detail: impl Into<String>) -> Self {
        Self::new(Kind::TooManyRequests, detail)
    }

    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(Kind::Internal, detail)
    }

    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, detail)
    }

    /// Returns the problem that the node has too many requests of this kind. A later try may succeed.
    pub fn busy(detail: impl Into<String>) -> Self {
        let mut problem = Self::unavailable(detail);
        problem.0.header = Some((RETRY_AFTER, HeaderValue::from_static("1")));
        problem
    }

    /// Returns the problem that one field is wrong: 422.
    pub fn invalid(name: impl Into<String>, detail: impl Into<String>) -> Self {
        let (name, detail) = (name.into(), detail.into());
        Self::new(Kind::Invalid, format!("{name}: {detail}")).field(name, detail)
    }

    /// Returns the problem that several fields are wrong: 422.
    pub fn invalid_fields(errors: Vec<FieldProblem>) -> Self {
        let detail: Vec<_> = errors.iter().map(|error| format!("{}: {}", error.name, error.detail)).collect();
        let mut problem = Self::new(Kind::Invalid, detail.join("; "));
        problem.0.errors = errors;
        problem
    }

    pub(crate) fn method_not_allowed(method: &axum::http::Method, allow: &str) -> Self {
        let detail = format!("{method} is not allowed here; allowed: {allow}");
        let header = HeaderValue::from_str(allow).ok().map(|allow| (ALLOW, allow));
        let mut problem = Self::new(Kind::MethodNotAllowed, detail);
        problem.0.header = header;
        problem
    }

    /// Adds a fault of one more field.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, detail: impl Into<String>) -> Self {
        self.0.errors.push(FieldProblem { name: name.into(), detail: detail.into() });
        self
    }

    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns the document, for responses that contain it, such as one result of a batch.
    pub fn document(self) -> ProblemDocument {
        let Facts { kind, detail, errors, header: _, owner } = *self.0;
        let (status, slug, title) = kind.facts();
        ProblemDocument {
            type_: format!("urn:meridian:problem:{slug}"),
            title,
            status: status.as_u16(),
            detail,
            errors,
            owner,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let header = self.0.header.take();
        let (status, note) = (self.kind().status(), ProblemDetail(self.detail().to_owned()));
        let mut response = (status, Json(self.document())).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.extend(header);
        response.extensions_mut().insert(note);
        response
    }
}

/// Converts a refusal of the broker. Handlers that know the field's name better report it themselves.
impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        match invalid {
            Invalid::Topic => Self::invalid(
                "topic",
                "expected a Topic Name: not empty, without + and #, not below $SYS, within mqtt.topic_len_max and \
                 mqtt.topic_levels_max",
            ),
            Invalid::Filter => Self::invalid(
                "filter",
                "expected a Topic Filter: not empty, + alone in its level, # last and alone in its level, within \
                 mqtt.topic_len_max and mqtt.topic_levels_max",
            ),
            Invalid::QoS => Self::invalid("qos", "expected 0, 1 or 2, and not more than mqtt.qos_max"),
            Invalid::Retain => Self::invalid("retain", "mqtt.retain_available is off"),
            Invalid::Text => Self::invalid(
                "properties",
                "a text holds U+0000 or is longer than 65535 bytes [MQTT-1.5.4-2]",
            ),
            Invalid::Size => Self::too_large("the message is larger than mqtt.packet_size_max"),
            Invalid::Payload => Self::invalid(
                "properties.payload_is_text",
                "the payload is not valid UTF-8; leave this out or send text",
            ),
            Invalid::Exists => Self::conflict("there is one already"),
            Invalid::TooMany => Self::too_many("the limit is reached; remove one first"),
        }
    }
}

/// Converts the reason why a change of the configuration store is not in force.
impl From<ProposeError> for Problem {
    fn from(error: ProposeError) -> Self {
        let detail = error.to_string();
        match error {
            ProposeError::NotCommitted { outcome_unknown: false, .. } => {
                Self::new(Kind::NotCommitted, detail)
            }
            ProposeError::NotCommitted { outcome_unknown: true, .. } => Self::new(Kind::Undecided, detail),
            ProposeError::Conflict { .. } | ProposeError::TooManyRecords { .. } => Self::conflict(detail),
            ProposeError::KeyLong { .. }
            | ProposeError::ValueLong { .. }
            | ProposeError::BatchLong { .. } => Self::too_large(detail),
            ProposeError::ValueNull
            | ProposeError::Write { .. }
            | ProposeError::ReadOnly
            | ProposeError::OfCluster
            | ProposeError::Broken { .. } => {
                tracing::error!("configuration store: change failed: {detail}");
                Self::internal(detail)
            }
        }
    }
}
