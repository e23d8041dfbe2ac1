//! SCRAM-SHA-256 as an enhanced authentication of MQTT 5.0: an exchange, and what the node knows.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use base64ct::{Base64, Encoding};
use broker::access::{Credentials, Mechanism, Step};
use mqtt::ReasonCode;

use super::{Policy, is_banned};
use crate::bans::Bans;
use crate::scram::{Challenge, ClientFirst, Failure, METHOD, ScramUser};

/// One exchange with one client. It takes a few HMACs, so it runs on the reactor.
pub struct Scram {
    policy: Arc<ArcSwap<Policy>>,
    bans: Arc<Bans>,
    banned: Arc<AtomicU64>,
    counters: Arc<ScramCounters>,
    client_id: Box<str>,
    /// Of CONNECT: the name that rules and bans go by.
    username: Option<Box<str>>,
    peer: Option<IpAddr>,
    nonce: String,
    challenge: Option<Challenge>,
}

#[derive(Debug, Default)]
pub struct ScramCounters {
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
}

impl Scram {
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(
        policy: Arc<ArcSwap<Policy>>,
        bans: Arc<Bans>,
        banned: Arc<AtomicU64>,
        counters: Arc<ScramCounters>,
        credentials: &Credentials<'_>,
    ) -> Result<Self, getrandom::Error> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce)?;
        Ok(Self {
            policy,
            bans,
            banned,
            counters,
            client_id: credentials.client_id.into(),
            username: credentials.username.map(Into::into),
            peer: credentials.peer,
            nonce: Base64::encode_string(&nonce),
            challenge: None,
        })
    }

    /// The user as the file in force knows it, not the one of when the exchange began.
    fn user(&self) -> Option<ScramUser> {
        let username = self.username.as_deref()?;
        self.policy.load().users.as_ref()?.scram(username)
    }

    fn first(&mut self, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let first = ClientFirst::parse(data)?;
        // Rules, bans and the Will go by CONNECT's name, so nobody proves to be one user and acts as another.
        if self.username.as_deref() != Some(&first.username) {
            return Err(Refusal::OtherName);
        }
        let user = self.user().ok_or(Refusal::Failure(Failure::Wrong))?;
        let (challenge, message) = Challenge::new(&first, user, &self.nonce);
        self.challenge = Some(challenge);
        Ok(message)
    }

    fn last(&self, challenge: &Challenge, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let message = challenge.finish(data)?;
        if self.user().as_ref() != Some(challenge.user()) {
            return Err(Refusal::Failure(Failure::Wrong)); // The password was changed meanwhile.
        }
        if is_banned(&self.bans, &self.banned, &self.client_id, self.username.as_deref(), self.peer) {
            return Err(Refusal::Banned);
        }
        Ok(message)
    }

    fn refuse(&self, refusal: Refusal) -> Step {
        tracing::debug!(client = &*self.client_id, peer = ?self.peer, ?refusal, "{METHOD} refused");
        let reason = match refusal {
            Refusal::Banned => return Step::Failure(ReasonCode::Banned),
            Refusal::Failure(Failure::Malformed) => ReasonCode::ProtocolError,
            // Not 0x86, which DISCONNECT does not have.
            Refusal::Failure(Failure::Unsupported | Failure::Wrong) | Refusal::OtherName => {
                ReasonCode::NotAuthorized
            }
        };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        Step::Failure(reason)
    }
}

impl Mechanism for Scram {
    fn step(&mut self, data: Option<&[u8]>) -> Step {
        let data = data.unwrap_or_default();
        match self.challenge.take() {
            None => match self.first(data) {
                Ok(message) => Step::Continue(message),
                Err(refusal) => self.refuse(refusal),
            },
            Some(challenge) => match self.last(&challenge, data) {
                Ok(message) => {
                    self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    Step::Success(Some(message), Box::default())
                }
                Err(refusal) => self.refuse(refusal),
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Refusal {
    Failure(Failure),
    /// CONNECT has no user name, or another one than the exchange.
    OtherName,
    Banned,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Bytes of randomness; as text a third longer.
const NONCE_LEN: usize = 18;
