//! State that the guard, the threads and the exchanges share, and the last step of every authentication.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use access::{Action, Admission, AuthResult, Credentials, Grants, Identity, Principal};
use arc_swap::ArcSwap;
use mqtt::ReasonCode;

use super::figures::Counters;
use super::policy::Policy;
use crate::bans::Bans;
use crate::chain::{Deadlines, LinkCounterTable, Pools};
use crate::mountpoint::{self, MountpointError};
use crate::protection::Protection;
use crate::recent::Recent;

/// State that the guard, the threads and the exchanges share.
#[derive(Debug)]
pub struct Shared {
    pub(super) policy: ArcSwap<Policy>,
    pub(super) bans: Arc<Bans>,
    pub(super) recent: Recent,
    pub(super) protection: Protection,
    /// The same for logins of operators, by another interface than MQTT.
    pub(super) operator_logins: Protection,
    pub(super) pools: Pools,
    pub(super) deadlines: Deadlines,
    pub(super) link_counters: LinkCounterTable,
    pub(super) counters: Counters,
}

/// Decision of the chain about a client.
#[derive(Debug)]
pub enum Decision {
    Admit(Box<Admission>),
    /// Admitted because a recent success is remembered.
    Remembered(Box<Admission>),
    /// A link knows the client, and its credentials are wrong.
    Refuse(ReasonCode),
    /// No link knows the client.
    Unknown,
    /// A link failed.
    Failed,
    /// No link was asked, after too many wrong logins.
    BacksOff,
}

impl Shared {
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    pub fn protection(&self) -> &Protection {
        &self.protection
    }

    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    pub fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the answer to a client for a decision of the chain.
    pub fn conclude(&self, policy: &Policy, credentials: &Credentials<'_>, decision: Decision) -> AuthResult {
        let counters = &self.counters;
        let (counter, admission) = match decision {
            Decision::Admit(admission) => (&counters.accepted, admission),
            Decision::Remembered(admission) => (&counters.remembered, admission),
            Decision::Refuse(reason) => return self.refuse_wrong(credentials, reason),
            Decision::Unknown if policy.admits_anonymous(credentials) => {
                return self
                    .admit(policy, credentials, Box::default())
                    .map_or_else(AuthResult::Deny, verdict);
            }
            Decision::Unknown => return self.refuse_unknown(policy, credentials),
            Decision::Failed => {
                count(&counters.failed);
                return AuthResult::Deny(ReasonCode::ServerUnavailable);
            }
            Decision::BacksOff => {
                count(&counters.backed_off);
                return AuthResult::Deny(ReasonCode::ConnectionRateExceeded);
            }
        };
        match self.admit(policy, credentials, admission) {
            Ok(admission) => {
                count(counter);
                verdict(admission)
            }
            Err(reason) => AuthResult::Deny(reason),
        }
    }

    fn refuse_unknown(&self, policy: &Policy, credentials: &Credentials<'_>) -> AuthResult {
        let has_credentials = credentials.username.is_some() || credentials.password.is_some();
        if policy.chain.is_empty() || !has_credentials {
            count(&self.counters.anonymous_refused);
            return AuthResult::Deny(ReasonCode::NotAuthorized);
        }
        self.refuse_wrong(credentials, ReasonCode::BadUserNameOrPassword)
    }

    fn refuse_wrong(&self, credentials: &Credentials<'_>, reason: ReasonCode) -> AuthResult {
        count(&self.counters.refused);
        tracing::debug!(
            client = credentials.client_id,
            username = credentials.username,
            peer = ?credentials.peer,
            "authentication: client refused"
        );
        if matches!(reason, ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized) {
            self.protection.failed(credentials, Instant::now());
        }
        AuthResult::Deny(allowed_reason_code(reason))
    }

    /// Applies the checks for every admitted client, however it authenticated. Returns the admission with the additions
    /// of the node.
    ///
    /// # Errors
    /// The Reason Code, when the client is refused after all.
    pub fn admit(
        &self,
        policy: &Policy,
        credentials: &Credentials<'_>,
        mut admission: Box<Admission>,
    ) -> Result<Box<Admission>, ReasonCode> {
        if admission.client_id.is_none()
            && let Some(certificate) = credentials.certificate
            && let Some(name) = policy.certificate_client_id.of(certificate)
            && name != credentials.client_id
        {
            admission.client_id = Some(name.into());
        }
        let effective = Credentials {
            client_id: admission.client_id.as_deref().unwrap_or(credentials.client_id),
            username: admission.username.as_deref().or(credentials.username),
            ..*credentials
        };
        if self.is_banned(&effective) {
            return Err(ReasonCode::Banned);
        }
        let principal =
            with_mountpoint(policy, &effective, admission.principal.as_ref()).map_err(|error| {
                count(&self.counters.mountpoint_refused);
                tracing::warn!(
                    client = effective.client_id,
                    username = effective.username,
                    "authentication: client refused; {error}"
                );
                ReasonCode::NotAuthorized
            })?;
        let mounted = principal.as_ref().or(admission.principal.as_ref());
        let mountpoint = mounted.and_then(|principal| principal.mountpoint.as_deref()).unwrap_or_default();
        if self.protection.flaps((mountpoint, effective.client_id), &self.bans, Instant::now()) {
            count(&self.counters.rate_limited);
            return Err(ReasonCode::Banned);
        }
        if let Some(principal) = principal {
            admission.principal = Some(principal);
        }
        Ok(admission)
    }

    /// Returns whether a ban in force applies to this client, and counts the ban.
    pub fn is_banned(&self, credentials: &Credentials<'_>) -> bool {
        let Credentials { client_id, username, peer, .. } = *credentials;
        let Some(ban) = self.bans.find(client_id, username, peer, SystemTime::now) else { return false };
        count(&self.counters.banned);
        tracing::debug!(
            client = client_id,
            ?peer,
            ban = ban.0,
            "authentication: client refused because of a ban"
        );
        true
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn verdict(admission: Box<Admission>) -> AuthResult {
    if *admission == Admission::default() { AuthResult::Allow } else { AuthResult::Admit(admission) }
}

/// Returns a Reason Code that [`AuthResult::Deny`] accepts.
fn allowed_reason_code(reason: ReasonCode) -> ReasonCode {
    match reason {
        ReasonCode::BadUserNameOrPassword
        | ReasonCode::NotAuthorized
        | ReasonCode::ServerUnavailable
        | ReasonCode::ServerBusy
        | ReasonCode::Banned
        | ReasonCode::BadAuthenticationMethod
        | ReasonCode::ConnectionRateExceeded => reason,
        _ => ReasonCode::NotAuthorized,
    }
}

/// Returns the principal with its mountpoint; `None` when nothing changes.
fn with_mountpoint(
    policy: &Policy,
    credentials: &Credentials<'_>,
    principal: Option<&Arc<Principal>>,
) -> Result<Option<Arc<Principal>>, MountpointError> {
    let own = principal.and_then(|principal| principal.mountpoint.as_deref());
    let mountpoint = match (own, &policy.mountpoint) {
        (Some(own), _) => mountpoint::check(own)?,
        (None, Some(template)) => template.fill(credentials, principal.map(|principal| &**principal))?,
        (None, None) => return Ok(None),
    };
    if own == Some(&*mountpoint) {
        return Ok(None);
    }
    let Some(principal) = principal else {
        return Ok(Some(Arc::new(Principal { mountpoint: Some(mountpoint), ..Principal::default() })));
    };
    let grants = principal.grants.as_ref();
    Ok(Some(Arc::new(Principal {
        superuser: principal.superuser,
        mountpoint: Some(mountpoint),
        attributes: principal.attributes.clone(),
        grants: grants.map(|_| Box::new(SharedGrants(principal.clone())) as Box<dyn Grants>),
        rates: principal.rates,
        link: None,
    })))
}

/// Grants of another principal, which may be remembered and used elsewhere.
struct SharedGrants(Arc<Principal>);

impl Grants for SharedGrants {
    fn decide(&self, identity: Identity<'_>, action: Action, topic: &str) -> Option<bool> {
        self.0.grants.as_ref()?.decide(identity, action, topic)
    }
}

impl fmt::Debug for SharedGrants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.grants.fmt(f)
    }
}
