//! SCRAM-SHA-256 as an enhanced authentication of MQTT 5.0, with the users of a node.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use access::{Admission, Credentials, Mechanism, Step};
use base64ct::{Base64, Encoding};
use mqtt::ReasonCode;

use super::Shared;
use crate::chain::LinkCounters;
use crate::link::Attempt;
use crate::scram::{Challenge, ClientFirst, Failure, METHOD, ScramUser, user_of};

/// One exchange with one client. It takes a few HMACs, so it runs on the reactor.
pub struct Scram {
    shared: Arc<Shared>,
    counters: Arc<LinkCounters>,
    attempt: Attempt,
    /// User name of the first message, once there was one.
    username: Box<str>,
    nonce: String,
    challenge: Option<Challenge>,
}

impl Scram {
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(
        shared: Arc<Shared>,
        counters: Arc<LinkCounters>,
        credentials: Credentials<'_>,
    ) -> Result<Self, getrandom::Error> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce)?;
        // A password in CONNECT is not part of this exchange.
        let attempt = Attempt::of(Credentials { password: None, ..credentials });
        let (username, nonce) = (Box::default(), Base64::encode_string(&nonce));
        Ok(Self { shared, counters, attempt, username, nonce, challenge: None })
    }

    /// Returns the credentials, with the user name that the client claims.
    fn credentials(&self) -> Credentials<'_> {
        let username = (!self.username.is_empty()).then_some(&*self.username);
        Credentials { username: username.or(self.attempt.username.as_deref()), ..self.attempt.credentials() }
    }

    /// Returns the user as the sources in force know it now, with its admission. It may differ from the user at the
    /// start of the exchange.
    fn user(&self) -> Option<(ScramUser, Admission)> {
        let policy = self.shared.policy();
        let (user, source) = user_of(policy.scram_sources(), &self.username)?;
        let admission = source.map(|source| source.admission(&self.username)).unwrap_or_default();
        Some((user, admission))
    }

    fn first(&mut self, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let first = ClientFirst::parse(data)?;
        // A client must not prove one user name and act under another.
        if self.attempt.username.as_deref().is_some_and(|username| username != first.username) {
            return Err(Refusal::OtherName);
        }
        self.username = first.username.as_str().into();
        // CONNECT may not have contained the user name.
        if self.shared.is_banned(&self.credentials()) {
            return Err(Refusal::After(ReasonCode::Banned));
        }
        if self.shared.protection.backs_off(&self.credentials(), Instant::now()) {
            self.shared.counters.backed_off.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::After(ReasonCode::ConnectionRateExceeded));
        }
        let (user, _) = self.user().ok_or(Refusal::Failure(Failure::Wrong))?;
        let (challenge, message) = Challenge::new(&first, user, &self.nonce);
        self.challenge = Some(challenge);
        Ok(message)
    }

    fn last(&self, challenge: &Challenge, data: &[u8]) -> Result<(Vec<u8>, Box<Admission>), Refusal> {
        let message = challenge.finish(data)?;
        let (user, mut admission) = self.user().ok_or(Refusal::Failure(Failure::Wrong))?;
        if user != *challenge.user() {
            return Err(Refusal::Failure(Failure::Wrong)); // The password was changed meanwhile.
        }
        if self.attempt.username.is_none() {
            admission.username = Some(self.username.clone());
        }
        let policy = self.shared.policy();
        let admitted = self.shared.admit(&policy, &self.credentials(), Box::new(admission));
        Ok((message, admitted.map_err(Refusal::After)?))
    }

    fn refuse(&self, refusal: Refusal) -> Step {
        let (client, peer) = (&*self.attempt.client_id, self.attempt.peer);
        tracing::debug!(client, ?peer, ?refusal, "{METHOD} refused");
        let reason = match refusal {
            // Counted where the failure was found.
            Refusal::After(reason) => return Step::Failure(reason),
            Refusal::Failure(Failure::Malformed) => ReasonCode::ProtocolError,
            // Not 0x86, which DISCONNECT does not have.
            Refusal::Failure(Failure::Unsupported | Failure::Wrong) | Refusal::OtherName => {
                ReasonCode::NotAuthorized
            }
        };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        if matches!(refusal, Refusal::Failure(Failure::Wrong)) {
            self.shared.protection.failed(&self.credentials(), Instant::now());
        }
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
                Ok((message, admission)) => {
                    self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    Step::Success(Some(message), admission)
                }
                Err(refusal) => self.refuse(refusal),
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Refusal {
    Failure(Failure),
    /// CONNECT has another user name than the exchange.
    OtherName,
    /// Refused for a reason after a correct proof, such as a ban.
    After(ReasonCode),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Size of the random part in bytes. As text it is a third longer.
const NONCE_LEN: usize = 18;
