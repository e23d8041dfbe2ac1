//! Link of the authentication chain.

use std::net::IpAddr;
use std::sync::Arc;

use access::{Admission, ClientCertificate, Credentials, Mechanism};
use mqtt::ReasonCode;
use zeroize::Zeroize;

use crate::password_hash::ScramKeys;

/// Answer of a link about a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Admit(Box<Admission>),
    /// The link knows the client, and the credentials are wrong: no other link is asked.
    Refuse(ReasonCode),
    /// The client is unknown to this link: the next one is asked.
    NotMine,
    /// The link failed, for this reason. The client is refused (fail closed), or the next link is asked if the operator
    /// has configured that.
    Failed(String),
}

/// Way to authenticate.
pub trait Link: Send + Sync {
    /// Name in `auth.chain` and in metrics.
    fn name(&self) -> &'static str;

    /// Returns the answer if it needs no work. Called on a reactor: takes microseconds and never waits. `None`:
    /// [`Self::work`] has to decide.
    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome>;

    /// Decides, on a thread where it may take time, up to the link's own timeout.
    fn work(&self, attempt: &Attempt) -> Outcome;

    /// Returns the threads that run [`Self::work`].
    fn threads(&self) -> Threads {
        Threads::Network
    }

    /// Returns whether repeated attempts can succeed. A link that cannot be guessed is asked even while an address or a
    /// user name backs off.
    fn guessable(&self) -> bool {
        true
    }

    /// Returns the inputs of an answer of [`Self::work`], because successes are remembered for a while. Called on a
    /// reactor, like [`Self::check_immediately`].
    fn cache_key(&self, _: Credentials<'_>) -> CacheKey {
        CacheKey::Everything
    }

    /// Returns work that takes as long as [`Self::work`] for a known client, and is never successful. It runs when no
    /// link knows the client, so that the response time does not reveal who is known. Whether there is such work is
    /// known at once.
    fn decoy(&self) -> Option<&dyn Decoy> {
        None
    }

    /// Returns whether the link has no users, so that it is no way to authenticate until one is added. Only used for
    /// links that `auth.chain` does not name; a named link always is a way.
    fn is_idle(&self) -> bool {
        false
    }

    /// Returns a number that grows when a [`Validity`](access::Validity) of this link has ended.
    fn revocations(&self) -> u64 {
        0
    }

    /// Returns a run of an Authentication Method of this link; `None` when it has none of this name. Called on a
    /// reactor: never waits.
    fn mechanism(self: Arc<Self>, _method: &str, _: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        None
    }

    /// Returns the SCRAM keys of its users, if it can have any.
    fn scram(&self) -> Option<&dyn ScramSource> {
        None
    }
}

/// Work without a result.
pub trait Decoy {
    /// Runs the work, on the threads of the link.
    fn work(&self, attempt: &Attempt);
}

/// Bounded pool of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Threads for computation, as many as the CPUs can use: `auth.workers`.
    Hashing,
    /// Many threads, which mostly wait for servers: `auth.network_workers`.
    Network,
}

/// Inputs of a success. It is remembered as long as they stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheKey {
    /// The success is not remembered.
    Nothing,
    /// User name, password, certificate, and these bytes: the stored data of the user (empty when there is none).
    Password(Vec<u8>),
    /// All of [`Credentials`], because another server may use any of them.
    Everything,
}

/// Users who can log in by SCRAM-SHA-256.
pub trait ScramSource {
    /// Returns whether there are any.
    fn has_scram(&self) -> bool;

    fn scram(&self, username: &str) -> ScramRecord;

    /// Returns keys for a user that does not exist or cannot use SCRAM. They are constant for a name, similar to those
    /// of other users, and never valid. `None` when no user of this source can use SCRAM.
    fn decoy_keys(&self, username: &str) -> Option<ScramKeys>;

    /// Returns the admission of this user.
    fn admission(&self, _username: &str) -> Admission {
        Admission::default()
    }
}

/// Record of a user in a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScramRecord {
    /// The user is unknown to this source: the next one is asked.
    UnknownUser,
    /// The user cannot use SCRAM.
    NoScramKeys,
    Keys(ScramKeys),
}

/// [`Credentials`] that outlive the packet. The password is overwritten when it is no longer needed.
#[derive(Clone)]
pub struct Attempt {
    pub client_id: Box<str>,
    pub username: Option<Box<str>>,
    pub password: Option<Box<[u8]>>,
    pub peer: Option<IpAddr>,
    pub listener: Box<str>,
    pub certificate: Option<Arc<ClientCertificate>>,
}

impl Attempt {
    pub fn of(credentials: Credentials<'_>) -> Self {
        Self {
            client_id: credentials.client_id.into(),
            username: credentials.username.map(Into::into),
            password: credentials.password.map(Into::into),
            peer: credentials.peer,
            listener: credentials.listener.into(),
            certificate: credentials.certificate.cloned(),
        }
    }

    pub fn credentials(&self) -> Credentials<'_> {
        Credentials {
            client_id: &self.client_id,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            peer: self.peer,
            listener: &self.listener,
            certificate: self.certificate.as_ref(),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(password) = &mut self.password {
            password.zeroize();
        }
    }
}

/// Shows everything but the password.
impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt")
            .field("client_id", &self.client_id)
            .field("username", &self.username)
            .field("peer", &self.peer)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}
