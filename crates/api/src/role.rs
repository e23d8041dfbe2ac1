//! Roles and callers.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::sessions::{Admitted, SessionId};
use crate::state::State;

/// Rights of a key or an account. Each role includes the rights of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything but payloads, keys and the audit log.
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

    /// Name for a sentence: `a viewer`.
    pub fn with_article(self) -> &'static str {
        match self {
            Self::Viewer => "a viewer",
            Self::Operator => "an operator",
            Self::Admin => "an admin",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Proof of the sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// No key and no account exists, or the request needs no role.
    Nothing,
    Key,
    /// An account, by this session.
    Session(SessionId),
}

/// Sender of a request. A handler that needs it takes it as an argument.
#[derive(Clone)]
pub struct Caller {
    /// Name of the key or the account; `None` when none exists, and for requests that need none.
    pub name: Option<Arc<str>>,
    pub role: Role,
    pub way: Way,
    /// Value of the session cookie with a new time of use, when it is time for one.
    pub(crate) refreshed: Option<String>,
    pub address: SocketAddr,
    /// Text of the audit log about the request, in addition to its path.
    note: Arc<OnceLock<String>>,
    /// Account that a login has proved, for the audit log.
    acts_as: Arc<OnceLock<(Arc<str>, Role)>>,
    /// Receiver whose sender is gone when the client no longer waits for the answer. `None` for requests that only
    /// read.
    client_waits: Option<watch::Receiver<()>>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

impl Caller {
    pub(crate) fn new(name: Option<Arc<str>>, role: Role, address: SocketAddr) -> Self {
        let way = if name.is_some() { Way::Key } else { Way::Nothing };
        let (note, acts_as) = (Arc::default(), Arc::default());
        Self { name, role, way, refreshed: None, address, note, acts_as, client_waits: None }
    }

    /// Returns the sender of a request with this session.
    pub(crate) fn of_session(admitted: Admitted, address: SocketAddr) -> Self {
        let Admitted { account, role, id, refreshed } = admitted;
        Self { way: Way::Session(id), refreshed, ..Self::new(Some(account), role, address) }
    }

    /// Notes for the audit log that the sender has proved to be this account. Only the first call has an effect.
    pub(crate) fn acts_as(&self, account: Arc<str>, role: Role) {
        self.acts_as.get_or_init(|| (account, role));
    }

    /// Returns name and role for the audit log.
    pub(crate) fn author(&self) -> (Option<&str>, Role) {
        match self.acts_as.get() {
            Some((name, role)) => (Some(name), *role),
            None => (self.name.as_deref(), self.role),
        }
    }

    /// Sets the receiver whose sender lasts for as long as the client waits for the answer.
    pub(crate) fn client_waits(self, client_waits: watch::Receiver<()>) -> Self {
        Self { client_waits: Some(client_waits), ..self }
    }

    /// Returns whether the client no longer waits for its change.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.client_waits.as_ref().is_some_and(|client_waits| client_waits.has_changed().is_err())
    }

    /// Returns when the client no longer waits for its change.
    pub(crate) async fn abandoned(&self) {
        match self.client_waits.clone() {
            // The sender sends nothing.
            Some(mut client_waits) => while client_waits.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }

    /// Returns a condition that is true while the sender's key or session is valid. It does not know idle sessions,
    /// because an open stream is no idleness.
    pub(crate) fn validity(&self, state: &State) -> impl Fn() -> bool + Send + Sync + use<> {
        let (state, way, name) = (state.clone(), self.way.clone(), self.name.clone());
        move || match &way {
            Way::Nothing => true,
            Way::Key => name.as_deref().is_none_or(|name| state.keys.is_valid(name)),
            Way::Session(id) => state.keys.sessions().is_valid(id),
        }
    }

    /// Returns the name of the key or the account, or an empty text: for `by` fields.
    pub fn by(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns the author and the time of a change that is made now.
    pub fn authorship(&self) -> auth::Authorship {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        auth::Authorship {
            author: self.by().to_owned(),
            now_ms: now.map_or(0, |since| since.as_millis() as u64),
        }
    }

    /// # Errors
    /// 403 when the caller's role is a smaller one.
    pub fn needs(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "this needs the role {}, and the key or account has the role {}; ask an admin for another one",
            role.name(),
            self.role.name()
        )))
    }

    /// Adds to the audit log what was done, beyond the path. Only the first call has an effect.
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
        parts.extensions.get().cloned().ok_or_else(|| Problem::internal("the request has no caller"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_includes_the_rights_of_smaller_ones() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(Role::named(role.name()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
    }
}
