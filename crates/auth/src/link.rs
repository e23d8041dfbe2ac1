//! One link of the authentication chain, and what it is asked.

use std::net::IpAddr;
use std::sync::Arc;

use broker::access::{Admission, ClientCertificate, Credentials};
use mqtt::ReasonCode;

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
    fn at_once(&self, credentials: Credentials<'_>) -> Option<Outcome>;

    /// Finds out, on a thread where it may take its time, up to the link's own time-out.
    fn work(&self, attempt: &Attempt) -> Outcome;
}

/// [`Credentials`] that outlive the packet.
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
