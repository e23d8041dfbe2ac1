//! Authentication and authorisation: the questions that the broker asks. Crate `auth` answers them.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqtt::{QoS, ReasonCode};

/// Data of a CONNECT and of its Network Connection, for authentication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// Address of the client; `None` for Unix sockets and in-memory transports.
    pub peer: Option<IpAddr>,
    /// Name of the listener in the configuration; empty for in-memory transports.
    pub listener: &'a str,
    /// Verified certificate of the client.
    pub certificate: Option<&'a Arc<ClientCertificate>>,
}

/// A connected client, as an access rule sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<'a> {
    /// Client Identifier without the mountpoint.
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub peer: Option<IpAddr>,
    pub listener: &'a str,
    pub certificate: Option<&'a ClientCertificate>,
    /// Principal of the client's [`Admission`].
    pub principal: Option<&'a Principal>,
}

/// A client's certificate that an authority of its listener has issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    pub common_name: Option<Box<str>>,
    /// Subject in the form of RFC 4514.
    pub subject: Box<str>,
    pub issuer: Box<str>,
    /// Serial number: hexadecimal, upper case, without separators.
    pub serial: Box<str>,
    /// Subject Alternative Names, in the order of the certificate.
    pub dns_names: Vec<Box<str>>,
    pub email_addresses: Vec<Box<str>>,
    pub uris: Vec<Box<str>>,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
}

/// The answer to a CONNECT.
#[derive(Clone, Debug, PartialEq)]
pub enum AuthResult {
    /// The client is admitted under the names of its CONNECT, without limits of its own.
    Allow,
    Admit(Box<Admission>),
    /// Refuse with this Reason Code: 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C or 0x9F.
    Deny(ReasonCode),
}

/// Result of a successful authentication: names, lifetime and principal of the client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// Client Identifier that replaces the one of CONNECT. The client learns it only if it left the choice to the
    /// server (3.2.2.3.7).
    pub client_id: Option<Arc<str>>,
    /// User name that replaces the one of CONNECT.
    pub username: Option<Box<str>>,
    /// Duration of the admission from now. At its end the client is closed with 0xA0.
    pub lifetime: Option<Duration>,
    /// `None` when nothing else is known of the client.
    pub principal: Option<Arc<Principal>>,
    /// Validity of the credentials; `None` when they cannot become invalid while the client is connected.
    pub validity: Option<Arc<Validity>>,
}

/// A flag that says whether the credentials of clients are still valid. Code that ends a validity then increments
/// [`Access::revocations`].
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

/// Compares identity: two validities with equal contents are different.
impl PartialEq for Validity {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Further properties of an authenticated client.
#[derive(Debug, Default)]
pub struct Principal {
    /// Superusers may do everything; rules are not evaluated.
    pub superuser: bool,
    /// Prefix of every topic of the client and of its Client Identifier, invisible to the client. It ends with `/` and
    /// has no wildcards.
    pub mountpoint: Option<Box<str>>,
    /// Attributes of the user or its token, for rules.
    pub attributes: Vec<(Box<str>, Box<str>)>,
    /// Rules of this client only.
    pub grants: Option<Box<dyn Grants>>,
    /// Rates that replace `limits.messages_per_second` and `limits.bytes_per_second`.
    pub rates: Option<Rates>,
    /// The client is a linked cluster.
    pub link: Option<LinkTerms>,
}

/// Terms of a linked cluster. Its Client Identifier begins with [`LINKED_CLUSTER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTerms {
    /// Name of the other cluster.
    pub name: Box<str>,
    /// Cluster whose messages it takes, which come here over another link; `None` for those of this cluster.
    pub origin: Option<Box<str>>,
    /// Topic Filters that it may subscribe to, or to a part of one. None has topics that begin with `$`.
    pub export: Box<[Box<str>]>,
    /// Limits of what waits for it.
    pub queue: LinkQueue,
    /// Name of the state that the sessions here continue. After a restore from a backup it is another one. `None` if it
    /// is not known.
    pub history: Option<Box<str>>,
}

/// Limits of the messages that wait for a linked cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkQueue {
    pub messages_max: u32,
    pub bytes_max: u64,
    /// `u64::MAX` until a message expires.
    pub age_max_ms: u64,
    /// Drop the new message when the queue is full, instead of the oldest one.
    pub drop_newest: bool,
}

/// Admission of linked clusters. Its functions are called on reactors and never block.
pub trait LinkAccess: fmt::Debug + Send + Sync + 'static {
    /// Answers a CONNECT whose Client Identifier begins with [`LINKED_CLUSTER`]. An [`Admission`] has
    /// [`Principal::link`].
    fn admit(&self, credentials: Credentials<'_>) -> AuthResult;

    /// Number that grows when a linked cluster may have lost the right to be connected, see [`Access::revocations`].
    fn revocations(&self) -> u64 {
        0
    }
}

/// Beginning of the Client Identifiers that [`LinkAccess`] admits.
pub const LINKED_CLUSTER: &str = "$link/";

/// Compares identity: two principals with equal contents are different.
impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Rates at which a client may publish; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub messages_per_second: u32,
    /// Messages that the client may publish at once after a pause; at least the number of one second.
    pub messages_burst: u32,
    pub bytes_per_second: u64,
    pub bytes_burst: u64,
}

/// Rules that belong to one client, such as claims of its token.
pub trait Grants: fmt::Debug + Send + Sync {
    /// Decides about an action; `None` when no rule of these applies.
    fn decide(&self, identity: Identity<'_>, action: Action, topic: &str) -> Option<bool>;
}

/// An action of a client on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Publish {
        qos: QoS,
        retain: bool,
    },
    /// A SUBSCRIBE; the topic is a Topic Filter, without a share name.
    Subscribe {
        qos: QoS,
    },
    /// A message on this Topic Name is about to be delivered to the client.
    Receive,
}

/// One enhanced authentication of MQTT 5.0 (4.12), at CONNECT or later. It is called on reactors and never blocks.
pub trait Mechanism: Send {
    /// Handles the client's next Authentication Data, `None` when the packet had none.
    fn step(&mut self, data: Option<&[u8]>) -> Step;
}

/// Result of one step of an enhanced authentication.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The server sends AUTH with 0x18 and this data; the client answers [MQTT-4.12.0-2].
    Continue(Vec<u8>),
    /// The client is admitted, or stays connected, with this admission. The data is sent in CONNACK or in the last AUTH
    /// [MQTT-4.12.0-5].
    Success(Option<Vec<u8>>, Box<Admission>),
    /// The client is refused with this Reason Code [MQTT-4.12.0-4].
    Failure(ReasonCode),
}

/// Completes one authentication, once, from any thread. Dropping it without an answer refuses the client (fail closed).
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

/// Notifies the broker that a question will be answered when it is asked again. It is called or dropped once, from any
/// thread.
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
    /// True when the answer stays the same until [`Access::generation`] grows or the client is authenticated again.
    pub lasting: bool,
}

/// Authentication and authorisation of one node. Its functions are called on reactors: an implementation never blocks.
pub trait Access: Send + Sync + 'static {
    /// Authenticates a client. Returns `Some` when the answer is known at once. Returns `None` when it needs work, such
    /// as a password hash or another server: the implementation then completes the value of `later` from a thread of
    /// its own.
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult>;

    /// Returns whether this listener admits clients without user name and password. Such a listener refuses web pages
    /// of other hosts.
    fn allows_anonymous(&self, _listener: &str) -> bool {
        true
    }

    /// Starts the Authentication Method that a CONNECT names. `None` when the method is unknown here, which refuses the
    /// client with 0x8C.
    fn mechanism(&self, _method: &str, _credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        None
    }

    /// Returns whether `authorize` can ever refuse. When false, `authorize` is not called. Changes only together with
    /// [`Access::generation`].
    fn guards_topics(&self) -> bool;

    /// Returns whether `authorize` allows everything outside `$SYS` to clients without [`Grants`]. It is then not
    /// called when they publish and receive other topics. Changes only together with [`Access::generation`].
    fn allows_without_grants(&self) -> bool {
        !self.guards_topics()
    }

    /// Returns whether `authorize` can ever return `None`. Changes only together with [`Access::generation`].
    fn may_answer_later(&self) -> bool {
        false
    }

    /// Decides whether a client may do an action. Topics are as the client writes them, without its mountpoint. Returns
    /// `None` when another server has to be asked: the value of `later` is dropped when the answer is available. The
    /// answer stays available for at least a second. [`Action::Receive`] is always answered at once.
    fn authorize(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission>;

    /// Generation of the rules. It grows whenever the rules have changed; subscriptions and cached answers of earlier
    /// generations are checked again. The broker asks for each message.
    fn generation(&self) -> u64;

    /// Reason to disconnect this client; `None` when it may stay. The broker asks when the client is admitted, and asks
    /// about all clients whenever [`Access::revocations`] has grown.
    fn revoked(&self, _: Identity<'_>) -> Option<ReasonCode> {
        None
    }

    /// Counts a connection of a client to any node of the cluster, and returns whether there are too many. The node
    /// that leads the client's shard calls it when the client may have this Client Identifier. The name is the Client
    /// Identifier with the mountpoint.
    fn flaps_in_cluster(&self, _name: &str) -> bool {
        false
    }

    /// Handles that a client was refused, because it connects too often to the nodes of the cluster. The node of the
    /// connection calls it.
    fn flapped(&self, _: Identity<'_>) {}

    /// Number that grows when a client may have lost the right to be connected. It grows once the change is in force,
    /// so that later clients are refused.
    fn revocations(&self) -> u64 {
        0
    }
}

/// Name of the listener of connections that the process makes to itself. No configured listener has it.
pub const INTERNAL_LISTENER: &str = "$internal";

/// Access control that allows everything: used by an unconfigured node on loopback.
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
