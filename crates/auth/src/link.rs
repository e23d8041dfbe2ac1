//! One link of the authentication chain, and what it is asked.

use std::net::IpAddr;
use std::sync::Arc;

use broker::access::{Admission, ClientCertificate, Credentials, Mechanism};
use mqtt::ReasonCode;
use zeroize::Zeroize;

use crate::password_hash::ScramKeys;

/// What a link says of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Admit(Box<Admission>),
    /// It knows the client, and this is wrong: nobody else is asked.
    Refuse(ReasonCode),
    /// Not a client of this link: the next one is asked.
    NotMine,
    /// It could not find out, for this reason: the client is refused (fail closed), or the next link is asked where the operator
    /// said so.
    Failed(String),
}

/// A way to authenticate.
pub trait Link: Send + Sync {
    /// As in `auth.chain` and in figures.
    fn name(&self) -> &'static str;

    /// What is known without work. On a reactor: takes microseconds, and waits for nobody. `None`: [`Self::work`] has to find out.
    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome>;

    /// Finds out, on a thread where it may take its time, up to the link's own time-out.
    fn work(&self, attempt: &Attempt) -> Outcome;

    /// Whose threads do [`Self::work`].
    fn threads(&self) -> Threads {
        Threads::Network
    }

    /// Whether trying often gets in at last. One that cannot be guessed is asked even while an address or a user name backs off.
    fn guessable(&self) -> bool {
        true
    }

    /// On what an answer of [`Self::work`] depends, as successes are remembered for a while. On a reactor, like [`Self::check_immediately`].
    fn cache_key(&self, _: Credentials<'_>) -> CacheKey {
        CacheKey::Everything
    }

    /// Takes as long as [`Self::work`] does for a client it knows, and ends in no in any case. Asked when no link knows the client, so
    /// that the time to the answer does not tell who is known. Whether there is anything to do is known at once.
    fn decoy(&self) -> Option<&dyn Decoy> {
        None
    }

    /// Whether it is there and knows nobody, so that it is no way to authenticate until somebody is added. Asked of links that
    /// `auth.chain` does not name; one that is named is always a way.
    fn is_idle(&self) -> bool {
        false
    }

    /// Grows when a [`Validity`](broker::access::Validity) that it gave has ended.
    fn revocations(&self) -> u64 {
        0
    }

    /// A run of an Authentication Method of its own; `None` when it has none of this name. On a reactor: it never waits.
    fn mechanism(self: Arc<Self>, _method: &str, _: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        None
    }

    /// Its users' keys for SCRAM, when it can have any.
    fn scram(&self) -> Option<&dyn ScramSource> {
        None
    }
}

/// Work in vain.
pub trait Decoy {
    /// On the threads of the link.
    fn work(&self, attempt: &Attempt);
}

/// A bounded pool of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// As many as CPUs allow: `auth.workers`.
    Hashing,
    /// Many, that wait for others most of the time: `auth.network_workers`.
    Network,
}

/// On what a success depends; it is remembered as long as this stays the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheKey {
    /// Not remembered.
    Nothing,
    /// User name, password, certificate, and these bytes: what is stored of the user (empty when there is none).
    Password(Vec<u8>),
    /// All of [`Credentials`], as what another server goes by is not known.
    Everything,
}

/// Users who can log in by SCRAM-SHA-256.
pub trait ScramSource {
    /// Whether there is any.
    fn has_scram(&self) -> bool;

    fn scram(&self, username: &str) -> ScramRecord;

    /// Keys for a user that there is not, or who cannot use SCRAM: always the same for a name, of the kind that others have, and
    /// good for nothing. `None` when nobody here can use SCRAM.
    fn decoy_keys(&self, username: &str) -> Option<ScramKeys>;

    /// As what this user is let in.
    fn admission(&self, _username: &str) -> Admission {
        Admission::default()
    }
}

/// What a source knows of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScramRecord {
    /// No user of this source: the next one is asked.
    UnknownUser,
    /// A user who cannot use SCRAM.
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

/// Without the password.
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
