//! Who may connect and what they may do: the questions the broker asks. Crate `auth` answers them.

use std::net::IpAddr;

use mqtt::{QoS, ReasonCode};

/// What a CONNECT says about its sender.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// `None` for Unix sockets and in-memory transports.
    pub peer: Option<IpAddr>,
}

/// A connected client, as an access rule sees it.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub peer: Option<IpAddr>,
}

/// The answer to a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// Refuse with this Reason Code: 0x86, 0x87 or 0x8C.
    Deny(ReasonCode),
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// AUTH with 0x18 and this data; the client answers [MQTT-4.12.0-2].
    Continue(Vec<u8>),
    /// The client is who it says; the data goes with CONNACK or the last AUTH [MQTT-4.12.0-5].
    Success(Option<Vec<u8>>),
    /// Refused with this Reason Code [MQTT-4.12.0-4].
    Failure(ReasonCode),
}

/// Completes one authentication from any thread, once. Dropped without an answer it refuses (fail closed).
pub struct AuthReply(Option<Box<dyn FnOnce(Verdict) + Send>>);

impl AuthReply {
    pub fn new(complete: impl FnOnce(Verdict) + Send + 'static) -> Self {
        Self(Some(Box::new(complete)))
    }

    pub fn complete(mut self, verdict: Verdict) {
        if let Some(complete) = self.0.take() {
            complete(verdict);
        }
    }
}

impl Drop for AuthReply {
    fn drop(&mut self) {
        if let Some(complete) = self.0.take() {
            complete(Verdict::Deny(ReasonCode::ServerUnavailable));
        }
    }
}

/// Authentication and authorisation of one node. Called on reactors: an implementation never blocks.
pub trait Access: Send + Sync + 'static {
    /// `Some` when the answer is known at once. `None` when it needs work (a password hash): the implementation
    /// then completes what `later` returns, from a thread of its own.
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<Verdict>;

    /// A run of the Authentication Method that a CONNECT names; `None` when there is no such method here, which refuses the
    /// client with 0x8C.
    fn mechanism(&self, _method: &str, _credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        None
    }

    /// Whether `authorize` can ever say no. When false it is not asked at all.
    fn guards_topics(&self) -> bool;

    fn authorize(&self, identity: Identity<'_>, action: Action, topic: &str) -> bool;

    /// Grows whenever the rules change: subscriptions and cached answers from before are checked again.
    fn generation(&self) -> u64;
}

/// Everybody may do everything: what an unconfigured node on loopback does.
#[derive(Debug, Default)]
pub struct AllowAll;

impl Access for AllowAll {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<Verdict> {
        Some(Verdict::Allow)
    }

    fn guards_topics(&self) -> bool {
        false
    }

    fn authorize(&self, _: Identity<'_>, _: Action, _: &str) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        0
    }
}
