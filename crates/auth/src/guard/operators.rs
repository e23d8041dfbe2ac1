//! Logins of operators, for an interface other than MQTT: the threads that hash passwords, and the limits on wrong
//! logins.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use access::Credentials;

use super::Guard;
use crate::link::Threads;
use crate::protection::Protection;

/// The threads that hash passwords are busy: `auth.waiting_max` checks wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashingBusy;

/// Limit on a login before its password is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginLimit {
    /// The password is checked, after this time.
    Check(Duration),
    /// The address, alone or with this name, had too many wrong logins.
    BacksOff,
}

impl Guard {
    /// Runs work on the threads that hash passwords. Never waits.
    ///
    /// # Errors
    /// The threads are busy; the work is dropped.
    pub fn hash_later(&self, work: impl FnOnce() + Send + 'static) -> Result<(), HashingBusy> {
        let pools = &self.shared.pools;
        if let Err(error) = pools.start(Threads::Hashing) {
            tracing::error!(%error, "authentication: the threads that hash passwords cannot be started");
            return Err(HashingBusy);
        }
        pools.submit_other(Box::new(work)).map_err(|_| HashingBusy)
    }

    /// Returns the limit that applies to a login of an operator now. Wrong logins of MQTT clients do not count.
    pub fn operator_limit(&self, address: IpAddr, name: &str, now: Instant) -> LoginLimit {
        let credentials = credentials(address, name);
        let logins = &self.shared.operator_logins;
        match logins.backs_off(&credentials, now) {
            true => LoginLimit::BacksOff,
            false => {
                LoginLimit::Check(logins.delay(&credentials, now).map_or(Duration::ZERO, |delay| delay.time))
            }
        }
    }

    /// Records a wrong login of an operator.
    pub fn operator_failed(&self, address: IpAddr, name: &str, now: Instant) {
        self.operator_logins().failed(&credentials(address, name), now);
    }

    pub(super) fn operator_logins(&self) -> &Protection {
        &self.shared.operator_logins
    }
}

fn credentials(address: IpAddr, name: &str) -> Credentials<'_> {
    Credentials { peer: Some(address), username: Some(name), ..Credentials::default() }
}
