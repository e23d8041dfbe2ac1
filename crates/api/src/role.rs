//! Roles, and who asks.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::state::State;

/// What a key permits; each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees everything but payloads, keys and the audit log.
    Viewer,
    /// Acts on clients and messages: kick, subscribe, publish, ban, trace.
    Operator,
    /// Changes the configuration and the keys.
    Admin,
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Who asks. A handler that wants to know takes it as an argument.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The name of the key; `None` when no key exists, and for what needs none.
    pub name: Option<Arc<str>>,
    pub role: Role,
    pub address: SocketAddr,
    /// What the audit log says about the request besides its path.
    note: Arc<OnceLock<String>>,
    /// Its other end is gone when nobody waits for the answer any more. `None` for what only reads.
    client_waits: Option<watch::Receiver<()>>,
}

impl Caller {
    pub(crate) fn new(name: Option<Arc<str>>, role: Role, address: SocketAddr) -> Self {
        Self { name, role, address, note: Arc::default(), client_waits: None }
    }

    /// With somebody who waits for the answer for as long as the other end is there.
    pub(crate) fn client_waits(self, client_waits: watch::Receiver<()>) -> Self {
        Self { client_waits: Some(client_waits), ..self }
    }

    /// Whether nobody waits any more for what is to be changed.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.client_waits.as_ref().is_some_and(|client_waits| client_waits.has_changed().is_err())
    }

    /// Returns when nobody waits any more for what is to be changed.
    pub(crate) async fn abandoned(&self) {
        match self.client_waits.clone() {
            // Nothing is ever sent.
            Some(mut client_waits) => while client_waits.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }

    /// The key's name, or nothing: for `by` fields.
    pub fn by(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// # Errors
    /// 403 when the caller's role is a smaller one.
    pub fn needs(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "this needs the role {}, and the key is one for a {}; ask an admin for another key",
            role.name(),
            self.role.name()
        )))
    }

    /// Says in the audit log what was done, beyond what the path says. The first word counts.
    pub fn note(&self, note: impl FnOnce() -> String) {
        self.note.get_or_init(note);
    }

    pub(crate) fn noted(&self) -> Option<&str> {
        self.note.get().map(String::as_str)
    }
}

impl FromRequestParts<State> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(|| Problem::internal("nobody asked who you are"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_may_what_smaller_ones_may() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(Role::named(role.name()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
    }
}
