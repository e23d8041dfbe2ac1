//! Who may connect and what they may do: the questions the broker asks. Crate `auth` answers them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqtt::{QoS, ReasonCode};

/// What a CONNECT and the network say about its sender.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// `None` for Unix sockets and in-memory transports.
    pub peer: Option<IpAddr>,
    /// What the configuration calls the listener; empty for in-memory transports.
    pub listener: &'a str,
    /// Shown by the client, and verified.
    pub certificate: Option<&'a Arc<ClientCertificate>>,
}

/// A connected client, as an access rule sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<'a> {
    /// Without the mountpoint.
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub peer: Option<IpAddr>,
    pub listener: &'a str,
    pub certificate: Option<&'a ClientCertificate>,
    /// Of its [`Admission`].
    pub principal: Option<&'a Principal>,
}

/// A client's certificate that an authority of its listener vouches for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    pub common_name: Option<Box<str>>,
    /// As RFC 4514 writes it.
    pub subject: Box<str>,
    pub issuer: Box<str>,
    /// Hexadecimal, upper case, without separators.
    pub serial: Box<str>,
    /// Subject Alternative Names, in their order.
    pub dns_names: Vec<Box<str>>,
    pub email_addresses: Vec<Box<str>>,
    pub uris: Vec<Box<str>>,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
}

/// The answer to a CONNECT.
#[derive(Clone, Debug, PartialEq)]
pub enum AuthResult {
    /// As the client said it is, with nothing to add.
    Allow,
    Admit(Box<Admission>),
    /// Refuse with this Reason Code: 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C or 0x9F.
    Deny(ReasonCode),
}

/// As what a client is let in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// The Client Identifier instead of CONNECT's. A client is told only where it left the choice to the server (3.2.2.3.7).
    pub client_id: Option<Arc<str>>,
    /// The user name instead of CONNECT's.
    pub username: Option<Box<str>>,
    /// For how long from now; then the client is closed with 0xA0.
    pub lifetime: Option<Duration>,
    /// `None` when there is nothing to say.
    pub principal: Option<Arc<Principal>>,
    /// Of what it was let in by; `None` when that cannot lose its force while the client is here.
    pub validity: Option<Arc<Validity>>,
}

/// Whether what clients were let in by still holds. Whoever ends one has [`Access::revocations`] grow afterwards.
#[derive(Debug, Default)]
pub struct Validity(AtomicBool);

impl Validity {
    pub fn end(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The same one: two that say the same are still two.
impl PartialEq for Validity {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// What else is known of an authenticated client.
#[derive(Debug, Default)]
pub struct Principal {
    /// May do everything; rules are not asked.
    pub superuser: bool,
    /// Comes before every topic of the client, and before its Client Identifier, and is not seen by it. Ends with `/`, has no
    /// wildcards.
    pub mountpoint: Option<Box<str>>,
    /// Of the user or its token, for rules.
    pub attributes: Vec<(Box<str>, Box<str>)>,
    /// Rules of its own.
    pub grants: Option<Box<dyn Grants>>,
    /// Instead of `limits.messages_per_second` and `limits.bytes_per_second`.
    pub rates: Option<Rates>,
}

/// The same one: two that say the same are still two.
impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// How much a client may publish; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub messages_per_second: u32,
    /// Messages at once after a pause; at least one second's.
    pub messages_burst: u32,
    pub bytes_per_second: u64,
    pub bytes_burst: u64,
}

/// Rules that came with a client, such as claims of its token.
pub trait Grants: fmt::Debug + Send + Sync {
    /// `None` when they do not speak of it.
    fn decide(&self, identity: Identity<'_>, action: Action, topic: &str) -> Option<bool>;
}

/// What a client wants to do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Publish {
        qos: QoS,
        retain: bool,
    },
    /// The topic is a Topic Filter, without a share name.
    Subscribe {
        qos: QoS,
    },
    /// A message on this Topic Name is about to be delivered to the client.
    Receive,
}

/// One enhanced authentication of MQTT 5.0 (4.12), at CONNECT or again later. Called on reactors: it never blocks.
pub trait Mechanism: Send {
    /// Takes the client's next Authentication Data, `None` when the packet had none.
    fn step(&mut self, data: Option<&[u8]>) -> Step;
}

/// What follows a step of an enhanced authentication.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// AUTH with 0x18 and this data; the client answers [MQTT-4.12.0-2].
    Continue(Vec<u8>),
    /// The client is let in, or goes on, as this; the data goes with CONNACK or the last AUTH [MQTT-4.12.0-5].
    Success(Option<Vec<u8>>, Box<Admission>),
    /// Refused with this Reason Code [MQTT-4.12.0-4].
    Failure(ReasonCode),
}

/// Completes one authentication from any thread, once. Dropped without an answer it refuses (fail closed).
pub struct AuthReply(Option<Box<dyn FnOnce(AuthResult) + Send>>);

impl AuthReply {
    pub fn new(complete: impl FnOnce(AuthResult) + Send + 'static) -> Self {
        Self(Some(Box::new(complete)))
    }

    pub fn complete(mut self, result: AuthResult) {
        if let Some(complete) = self.0.take() {
            complete(result);
        }
    }
}

impl Drop for AuthReply {
    fn drop(&mut self) {
        if let Some(complete) = self.0.take() {
            complete(AuthResult::Deny(ReasonCode::ServerUnavailable));
        }
    }
}

/// Called, or dropped, when a question that could not be answered will be when it is asked again. From any thread, once.
pub struct RetryAuthorize(Option<Box<dyn FnOnce() + Send>>);

impl RetryAuthorize {
    pub fn new(wake: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(wake)))
    }
}

impl Drop for RetryAuthorize {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}

/// The answer of [`Access::authorize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    pub allowed: bool,
    /// Whether the same question has the same answer until [`Access::generation`] grows or the client is admitted anew.
    pub lasting: bool,
}

/// Authentication and authorisation of one node. Called on reactors: an implementation never blocks.
pub trait Access: Send + Sync + 'static {
    /// `Some` when the answer is known at once. `None` when it needs work (a password hash, another server): the implementation
    /// then completes what `later` returns, from a thread of its own.
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult>;

    /// Whether this listener lets in clients that show neither a user name nor a password. While it does, it refuses web pages of other
    /// hosts.
    fn allows_anonymous(&self, _listener: &str) -> bool {
        true
    }

    /// A run of the Authentication Method that a CONNECT names; `None` when there is no such method here, which refuses the
    /// client with 0x8C.
    fn mechanism(&self, _method: &str, _credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        None
    }

    /// Whether `authorize` can ever say no. When false it is not asked at all.
    fn guards_topics(&self) -> bool;

    /// Whether `authorize` can ever not know the answer yet.
    fn may_answer_later(&self) -> bool {
        false
    }

    /// Topics are as the client writes them, without its mountpoint. `None` when another server has to be asked: what `later` returns
    /// is dropped when the answer is there, and stays there for at least a second. [`Action::Receive`] is always answered at once.
    fn authorize(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission>;

    /// Grows whenever the rules change: subscriptions and cached answers from before are checked again.
    fn generation(&self) -> u64;

    /// Why this client may not be here; `None` when it may. Asked when it is let in, and of all who are here whenever
    /// [`Access::revocations`] has grown.
    fn revoked(&self, _: Identity<'_>) -> Option<ReasonCode> {
        None
    }

    /// Grows when somebody may have lost the right to be here, once that is in force: whoever comes from then on is refused.
    fn revocations(&self) -> u64 {
        0
    }
}

/// Everybody may do everything: what an unconfigured node on loopback does.
#[derive(Debug, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Some(AuthResult::Allow)
    }

    fn guards_topics(&self) -> bool {
        false
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        _: Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        Some(Permission { allowed: true, lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }
}
