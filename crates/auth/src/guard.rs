//! The guard: answers the broker's questions from the files in force.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use broker::access::{
    Access, Action, AskAgain, AuthReply, Credentials, Identity, Mechanism, Permission, Step, Verdict,
};
use mqtt::ReasonCode;

use crate::authority::{Authority, Sources};
use crate::bans::Bans;
use crate::error::FileError;
use crate::password_file::{Candidate, PasswordFile};
use crate::recent::Recent;
use crate::scram::METHOD;
use crate::settings::Auth;
use crate::verifier::{Job, Verifier};

mod authorize;
mod scram;

use scram::{Scram, ScramCounters};

/// Access control of one node.
#[derive(Debug)]
pub struct Guard {
    policy: Arc<ArcSwap<Policy>>,
    bans: Arc<Bans>,
    authority: Authority,
    generation: AtomicU64,
    recent: Arc<Recent>,
    verifier: Verifier,
    remembered: AtomicU64,
    anonymous_refused: AtomicU64,
    banned: Arc<AtomicU64>,
    scram: Arc<ScramCounters>,
}

/// What the files say, read together so that no client meets old users with new rules.
#[derive(Debug)]
struct Policy {
    users: Option<PasswordFile>,
    anonymous: bool,
    sources: Sources,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Passwords that were hashed and right, and right SCRAM exchanges.
    pub accepted: u64,
    /// Passwords that were right and remembered.
    pub remembered: u64,
    /// Passwords and SCRAM exchanges that were wrong, or of unknown users.
    pub refused: u64,
    /// Clients that were sent away because too many passwords waited.
    pub busy: u64,
    /// Clients without a user name that were refused.
    pub anonymous_refused: u64,
    /// Clients that were refused because of a ban, whatever else they had.
    pub banned: u64,
    /// Of `accepted`, those by SCRAM.
    pub scram_accepted: u64,
    /// Of `refused`, those by SCRAM.
    pub scram_refused: u64,
}

/// Why a guard cannot be made.
#[derive(Debug)]
pub enum OpenError {
    File(FileError),
    /// Threads or random bytes are not to be had.
    System(std::io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::System(error) => write!(f, "access control cannot start: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl Guard {
    /// Reads the files and starts the threads that hash passwords. Bans are kept in memory only; see [`Guard::with_bans`].
    ///
    /// # Errors
    /// A file that cannot be used; a system without threads or random bytes.
    pub fn open(settings: &Auth) -> Result<Self, OpenError> {
        let policy = Policy::read(settings).map_err(OpenError::File)?;
        let system = |error: getrandom::Error| OpenError::System(std::io::Error::other(error));
        let remembered_max = settings.remembered_max as usize;
        let recent = Arc::new(Recent::new(remembered_max, settings.remembered_time).map_err(system)?);
        let threads = match settings.workers {
            0 => std::thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2)),
            threads => threads,
        };
        let verifier =
            Verifier::start(threads, settings.waiting_max as usize, &recent).map_err(OpenError::System)?;
        Ok(Self {
            policy: Arc::new(ArcSwap::from_pointee(policy)),
            bans: Arc::new(Bans::in_memory(settings.bans_max as usize)),
            authority: Authority::default(),
            generation: AtomicU64::new(0),
            recent,
            verifier,
            remembered: AtomicU64::new(0),
            anonymous_refused: AtomicU64::new(0),
            banned: Arc::default(),
            scram: Arc::default(),
        })
    }

    /// The same guard with these bans.
    pub fn with_bans(self, bans: Arc<Bans>) -> Self {
        Self { bans, ..self }
    }

    /// Who may not connect. A new ban refuses clients from now on; those that are connected stay until they are closed.
    pub fn bans(&self) -> &Arc<Bans> {
        &self.bans
    }

    fn is_banned(&self, credentials: &Credentials<'_>) -> bool {
        let Credentials { client_id, username, peer, .. } = *credentials;
        is_banned(&self.bans, &self.banned, client_id, username, peer)
    }

    /// A ban that is made while the password is hashed holds for this client too.
    fn unless_banned(&self, credentials: &Credentials<'_>, reply: AuthReply) -> AuthReply {
        let (bans, banned, peer) = (self.bans.clone(), self.banned.clone(), credentials.peer);
        let (client_id, username) =
            (credentials.client_id.to_owned(), credentials.username.map(str::to_owned));
        AuthReply::new(move |verdict| {
            let refused = !matches!(verdict, Verdict::Deny(_))
                && is_banned(&bans, &banned, &client_id, username.as_deref(), peer);
            reply.complete(if refused { Verdict::Deny(ReasonCode::Banned) } else { verdict });
        })
    }

    /// Reads the files again. When one cannot be used everything stays as it was.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn reload(&self, settings: &Auth) -> Result<(), FileError> {
        let policy = Policy::read(settings)?;
        self.policy.store(Arc::new(policy));
        self.recent.clear();
        // After the store: whoever sees the new number meets the new rules.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn figures(&self) -> Figures {
        let counters = self.verifier.counters();
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (scram_accepted, scram_refused) = (value(&self.scram.accepted), value(&self.scram.refused));
        Figures {
            accepted: value(&counters.accepted) + scram_accepted,
            remembered: value(&self.remembered),
            refused: value(&counters.refused) + scram_refused,
            busy: value(&counters.busy),
            anonymous_refused: value(&self.anonymous_refused),
            banned: value(&self.banned),
            scram_accepted,
            scram_refused,
        }
    }
}

impl Policy {
    fn read(settings: &Auth) -> Result<Self, FileError> {
        let users = settings.password_file.as_deref().map(PasswordFile::read).transpose()?;
        if let (Some(users), Some(path)) = (&users, &settings.password_file)
            && users.has_scram()
            && !users.keeps_decoys()
        {
            tracing::warn!(
                file = %path.display(),
                "made-up salts for users that there are not change at each start and reload, which tells them from \
                 others; `meridian passwd --scram` writes a line that keeps them"
            );
        }
        let sources = Sources::read(settings)?;
        let anonymous = settings.allow_anonymous.unwrap_or(users.is_none());
        Ok(Self { users, anonymous, sources })
    }
}

impl Access for Guard {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<Verdict> {
        if self.is_banned(&credentials) {
            return Some(Verdict::Deny(ReasonCode::Banned));
        }
        let policy = self.policy.load();
        let Some(username) = credentials.username else {
            if policy.anonymous {
                return Some(Verdict::Allow);
            }
            self.anonymous_refused.fetch_add(1, Ordering::Relaxed);
            return Some(Verdict::Deny(ReasonCode::NotAuthorized));
        };
        let Some(users) = &policy.users else {
            // Without a file a user name proves nothing, so it gives as much as none.
            let verdict =
                if policy.anonymous { Verdict::Allow } else { Verdict::Deny(ReasonCode::NotAuthorized) };
            return Some(verdict);
        };
        let password = credentials.password.unwrap_or_default();
        let candidate = users.candidate(username);
        if let Candidate::User(stored) = &candidate {
            let fingerprint = self.recent.fingerprint(username, password, stored);
            if self.recent.contains(&fingerprint, Instant::now()) {
                self.remembered.fetch_add(1, Ordering::Relaxed);
                return Some(Verdict::Allow);
            }
        }
        if matches!(candidate, Candidate::Nobody) {
            return Some(Verdict::Deny(ReasonCode::BadUserNameOrPassword));
        }
        let reply = self.unless_banned(&credentials, later());
        if let Some(job) = Job::new(candidate, username, password, &self.recent, reply) {
            self.verifier.submit(job);
        }
        None
    }

    /// SCRAM-SHA-256, when somebody in the password file can use it.
    fn mechanism(&self, method: &str, credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        if self.is_banned(&credentials) {
            return Some(Box::new(Refusal(ReasonCode::Banned)));
        }
        let offered = self.policy.load().users.as_ref().is_some_and(PasswordFile::has_scram);
        if method != METHOD || !offered {
            return None;
        }
        let (policy, bans) = (self.policy.clone(), self.bans.clone());
        match Scram::new(policy, bans, self.banned.clone(), self.scram.clone(), &credentials) {
            Ok(scram) => Some(Box::new(scram)),
            Err(error) => {
                tracing::error!(%error, "the system has no random bytes: a client is refused");
                Some(Box::new(Refusal(ReasonCode::UnspecifiedError)))
            }
        }
    }

    fn guards_topics(&self) -> bool {
        self.authority.guards(&self.policy.load().sources)
    }

    fn asks_others(&self) -> bool {
        self.authority.asks_others(&self.policy.load().sources)
    }

    fn authorize(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> AskAgain,
    ) -> Option<Permission> {
        self.authority.decide(&self.policy.load().sources, identity, action, topic, later)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// Whether a ban in force means this client, which is counted then.
fn is_banned(
    bans: &Bans,
    banned: &AtomicU64,
    client_id: &str,
    username: Option<&str>,
    peer: Option<IpAddr>,
) -> bool {
    let Some(ban) = bans.find(client_id, username, peer, SystemTime::now) else { return false };
    banned.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(client = client_id, ?peer, ban = ban.0, "a banned client is refused");
    true
}

/// An enhanced authentication that fails at its first step.
struct Refusal(ReasonCode);

impl Mechanism for Refusal {
    fn step(&mut self, _data: Option<&[u8]>) -> Step {
        Step::Failure(self.0)
    }
}

#[cfg(test)]
mod tests;
