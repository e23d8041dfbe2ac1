//! Enhanced authentication that a link of the chain offers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use access::{Credentials, Mechanism, Step};
use mqtt::ReasonCode;

use super::shared::Shared;
use crate::chain::{LinkCounters, Member};
use crate::link::Attempt;

/// The link's exchange. Like a CONNECT that the link decides, it is counted and subject to back-off. An admitted client
/// is checked against bans and gets its mountpoint, like every other.
pub struct LinkMethod {
    shared: Arc<Shared>,
    counters: Arc<LinkCounters>,
    attempt: Attempt,
    exchange: Box<dyn Mechanism>,
    guessable: bool,
}

impl LinkMethod {
    /// Returns the exchange; `None` when the link has no such method.
    pub fn of(
        shared: &Arc<Shared>,
        member: &Member,
        method: &str,
        credentials: Credentials<'_>,
    ) -> Option<Self> {
        let exchange = member.link.clone().mechanism(method, credentials)?;
        Some(Self {
            shared: shared.clone(),
            counters: member.counters.clone(),
            attempt: Attempt::of(Credentials { password: None, ..credentials }),
            exchange,
            guessable: member.link.guessable(),
        })
    }

    fn failed(&self, reason: ReasonCode) {
        let all = self.shared.counters();
        match reason {
            ReasonCode::ServerBusy | ReasonCode::ServerUnavailable | ReasonCode::UnspecifiedError => {
                count(&self.counters.failed);
                count(&all.failed);
            }
            _ => {
                count(&self.counters.refused);
                count(&all.refused);
            }
        }
        if matches!(reason, ReasonCode::NotAuthorized | ReasonCode::BadUserNameOrPassword) {
            self.shared.protection().failed(&self.attempt.credentials(), Instant::now());
        }
    }
}

impl Mechanism for LinkMethod {
    fn step(&mut self, data: Option<&[u8]>) -> Step {
        if self.guessable && self.shared.protection().backs_off(&self.attempt.credentials(), Instant::now()) {
            count(&self.shared.counters().backed_off);
            return Step::Failure(ReasonCode::ConnectionRateExceeded);
        }
        match self.exchange.step(data) {
            Step::Success(last, admission) => {
                count(&self.counters.accepted);
                let policy = self.shared.policy();
                match self.shared.admit(&policy, &self.attempt.credentials(), admission) {
                    Ok(admission) => {
                        count(&self.shared.counters().accepted);
                        Step::Success(last, admission)
                    }
                    // Counted where the failure was found.
                    Err(reason) => Step::Failure(reason),
                }
            }
            Step::Failure(reason) => {
                self.failed(reason);
                Step::Failure(reason)
            }
            step @ Step::Continue(_) => step,
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
