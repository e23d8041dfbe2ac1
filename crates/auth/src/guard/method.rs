//! An enhanced authentication that a link of the chain offers.

use std::sync::Arc;

use broker::access::{Credentials, Mechanism, Step};

use super::shared::Shared;
use crate::link::Attempt;

/// The link's own exchange; whom it lets in is held against bans and gets its mountpoint like everybody else.
pub struct LinkMethod {
    shared: Arc<Shared>,
    attempt: Attempt,
    exchange: Box<dyn Mechanism>,
}

impl LinkMethod {
    pub fn new(shared: Arc<Shared>, credentials: Credentials<'_>, exchange: Box<dyn Mechanism>) -> Self {
        let attempt = Attempt::of(Credentials { password: None, ..credentials });
        Self { shared, attempt, exchange }
    }
}

impl Mechanism for LinkMethod {
    fn step(&mut self, data: Option<&[u8]>) -> Step {
        match self.exchange.step(data) {
            Step::Success(last, admission) => {
                let policy = self.shared.policy();
                match self.shared.admit(&policy, &self.attempt.credentials(), admission) {
                    Ok(admission) => Step::Success(last, admission),
                    Err(reason) => Step::Failure(reason),
                }
            }
            step => step,
        }
    }
}
