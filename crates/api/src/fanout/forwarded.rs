//! A request that one node passes on to another, and the answer.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, Response};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tower_service::Service as _;

use crate::cluster::{Reply, RequestHandler};
use crate::gate::Peer;
use crate::role::Role;
use crate::state::State;

/// A request of a client that another node has admitted and passes on. In JSON; unknown fields are ignored.
#[derive(Serialize, Deserialize)]
pub struct ForwardedRequest {
    pub method: String,
    /// Path and query.
    pub target: String,
    #[serde(default)]
    pub body: String,
    /// Name of the key.
    pub by: Option<String>,
    pub role: Role,
    pub address: SocketAddr,
}

/// Marks a request that another node passes on: its gate has admitted the client. Only [`ForwardHandler`] creates it.
#[derive(Clone, Debug)]
pub struct Forwarded {
    pub by: Option<Arc<str>>,
    pub role: Role,
    pub address: SocketAddr,
}

/// Answers other nodes as the server answers its clients.
pub struct ForwardHandler {
    pub router: axum::Router,
    pub state: State,
    pub runtime: Handle,
}

impl RequestHandler for ForwardHandler {
    fn answer(&self, from: &str, question: &[u8], reply: Reply) {
        // An invalid request gets no answer; the dropped reply reports that.
        let Some(request) = request(from, question) else { return };
        let (mut router, within) = (self.router.clone(), self.state.settings.request_timeout);
        self.runtime.spawn(async move {
            // A panic or a timeout drops the reply.
            let Ok(Ok(response)) = tokio::time::timeout(within, router.call(request)).await else { return };
            if let Some(answer) = ForwardedResponse::read(response).await {
                reply(answer.encode());
            }
        });
    }
}

fn request(from: &str, question: &[u8]) -> Option<Request<Body>> {
    let ForwardedRequest { method, target, body, by, role, address } =
        serde_json::from_slice(question).ok()?;
    let by = Some(format!("{}@{from}", by.unwrap_or_default()).into());
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).ok()?)
        .uri(target)
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(Body::from(body))
        .ok()?;
    request.extensions_mut().insert(Peer(address));
    request.extensions_mut().insert(Forwarded { by, role, address });
    Some(request)
}

/// Answer of a node: status, little endian, and body.
pub struct ForwardedResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

impl ForwardedResponse {
    /// Reads the response; `None` when its body ends early.
    pub async fn read(response: Response<Body>) -> Option<Self> {
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.ok()?;
        Some(Self { status, body: body.into() })
    }

    pub fn encode(mut self) -> Vec<u8> {
        let mut bytes = self.status.to_le_bytes().to_vec();
        bytes.append(&mut self.body);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (status, body) = bytes.split_first_chunk()?;
        Some(Self { status: u16::from_le_bytes(*status), body: body.to_vec() })
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_decoded_as_it_was_encoded() {
        let answer = ForwardedResponse { status: 404, body: b"{}".to_vec() };
        let bytes = answer.encode();
        assert_eq!(bytes, [0x94, 0x01, b'{', b'}']);
        let back = ForwardedResponse::decode(&bytes).unwrap();
        assert_eq!((back.status, &back.body[..], back.is_success()), (404, &b"{}"[..], false));
        assert!(ForwardedResponse::decode(&[1]).is_none());
    }

    #[test]
    fn an_invalid_question_is_not_answered() {
        for bad in [
            &b""[..],
            b"{}",
            b"\xff",
            br#"{"method":"G T","target":"/","by":null,"role":"viewer","address":"127.0.0.1:1"}"#,
            br#"{"method":"GET","target":"\n","by":null,"role":"viewer","address":"127.0.0.1:1"}"#,
            br#"{"method":"GET","target":"/","by":null,"role":"king","address":"127.0.0.1:1"}"#,
        ] {
            assert!(request("b", bad).is_none(), "{}", String::from_utf8_lossy(bad));
        }
        let good = br#"{"method":"GET","target":"/x?y=1","by":"k","role":"viewer","address":"127.0.0.1:1","later":1}"#;
        let request = request("b", good).unwrap();
        let forwarded = request.extensions().get::<Forwarded>().unwrap();
        assert_eq!((forwarded.by.as_deref(), forwarded.role), (Some("k@b"), Role::Viewer));
    }
}
