//! The guard answers the broker's access control requests, with the settings in force.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, Identity, LinkAccess, Mechanism,
    Permission, Principal, RetryAuthorize, Step,
};
use arc_swap::ArcSwap;
use mqtt::ReasonCode;

use crate::authority::Authority;
use crate::bans::Bans;
use crate::chain::run::{ChainProgress, NextStep, Run};
use crate::chain::{Deadlines, LinkCounterTable, LinkFigures, PoolSize, Pools};
use crate::jwt::JwtLink;
use crate::link::Link;
use crate::protection::{Protection, ProtectionFigures};
use crate::recent::Recent;
use crate::scram::METHOD;
use crate::settings::{Auth, Protection as ProtectionSettings};
use crate::web::HttpServices;

mod authorize;
mod figures;
mod method;
mod operators;
mod policy;
mod scram;
mod shared;

use figures::Counters;
pub use figures::Figures;
use method::LinkMethod;
pub use operators::{HashingBusy, LoginLimit};
pub(crate) use policy::Policy;
pub use policy::{ListenerNames, PolicyError};
use scram::Scram;
pub(crate) use shared::{Decision, Shared};

/// Access control of one node.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    /// Links that do not come from settings.
    extra_links: ExtraLinks,
    authority: Authority,
    services: OnceLock<HttpServices>,
    tokens: OnceLock<Arc<JwtLink>>,
    /// Admits linked clusters.
    clusters: OnceLock<Arc<dyn LinkAccess>>,
    generation: AtomicU64,
    /// Refuses every client: its users, rules or bans are not known yet.
    is_closed: AtomicBool,
}

/// Reason why a guard cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    Policy(PolicyError),
    /// The system provides no threads or no random bytes.
    System(std::io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Policy(error) => error.fmt(f),
            Self::System(error) => write!(f, "access control cannot start: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Settings and files that were read, are usable, and are not in force yet.
pub struct GuardChange<'a> {
    guard: &'a Guard,
    policy: Policy,
}

impl GuardChange<'_> {
    /// Puts the change in force. Connected clients are checked again.
    pub fn apply(self) {
        let Self { guard, policy } = self;
        guard.shared.policy.store(Arc::new(policy));
        guard.shared.recent.clear();
        // Incremented after the store: a thread that sees the new number also sees the new rules.
        guard.generation.fetch_add(1, Ordering::Release);
    }
}

impl Guard {
    /// Reads the files and starts the threads. Bans are kept in memory only; see [`Guard::with_bans`].
    ///
    /// # Errors
    /// A setting or file cannot be used, or the system provides no threads or random bytes.
    pub fn open(settings: &Auth) -> Result<Self, OpenError> {
        Self::open_with(settings, &ProtectionSettings::default(), Vec::new())
    }

    /// Opens a guard with links that do not come from settings. Their position is that of their name in `auth.chain`.
    ///
    /// # Errors
    /// Errors of [`Guard::open`].
    pub fn open_with(
        settings: &Auth,
        protection: &ProtectionSettings,
        links: Vec<Arc<dyn Link>>,
    ) -> Result<Self, OpenError> {
        let link_counters = LinkCounterTable::default();
        // The counters of SCRAM exist from the start, like those of configured links.
        link_counters.of(SCRAM_LINK);
        let policy = Policy::read(settings, &links, &link_counters).map_err(OpenError::Policy)?;
        let system = |error: getrandom::Error| OpenError::System(std::io::Error::other(error));
        let cache_max = settings.cache_max as usize;
        let recent = Recent::new(cache_max, settings.cache_ttl).map_err(system)?;
        let threads = match settings.workers {
            0 => std::thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2)),
            threads => threads,
        };
        let hashing = PoolSize { threads, waiting_max: settings.waiting_max as usize };
        let network = PoolSize {
            threads: settings.network_workers,
            waiting_max: settings.network_waiting_max as usize,
        };
        let shared = Shared {
            policy: ArcSwap::from_pointee(policy),
            bans: Arc::new(Bans::in_memory(settings.bans_max as usize)),
            recent,
            protection: Protection::new(protection.clone()),
            operator_logins: Protection::new(protection.clone()),
            pools: Pools::new(hashing, network),
            deadlines: Deadlines::start().map_err(OpenError::System)?,
            link_counters,
            counters: Counters::default(),
        };
        let guard = Self {
            shared: Arc::new(shared),
            extra_links: ExtraLinks(links),
            authority: Authority::default(),
            services: OnceLock::new(),
            tokens: OnceLock::new(),
            clusters: OnceLock::new(),
            generation: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        };
        guard.start_threads(&guard.shared.policy()).map_err(OpenError::System)?;
        Ok(guard)
    }

    /// Refuses every client (0x88, Server unavailable), because users, rules or bans are not known yet.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Ends [`Guard::close`].
    pub fn open_up(&self) {
        self.is_closed.store(false, Ordering::Release);
    }

    /// Sets who admits linked clusters. Without it they are refused. Only the first call has an effect.
    pub fn set_links(&self, clusters: Arc<dyn LinkAccess>) {
        if self.clusters.set(clusters).is_err() {
            debug_assert!(false, "a node has one list of linked clusters");
        }
    }

    /// Replaces the bans.
    pub fn with_bans(mut self, bans: Arc<Bans>) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("bans are given before the first client is there");
        shared.bans = bans;
        self
    }

    /// Returns the bans. A new ban refuses clients from now on; connected ones are closed a moment later.
    pub fn bans(&self) -> &Arc<Bans> {
        &self.shared.bans
    }

    /// Reads settings and files again.
    ///
    /// # Errors
    /// A setting or file cannot be used.
    pub fn read(&self, settings: &Auth) -> Result<GuardChange<'_>, PolicyError> {
        let policy = Policy::read(settings, &self.extra_links.0, &self.shared.link_counters)?;
        self.start_threads(&policy).map_err(PolicyError::Threads)?;
        Ok(GuardChange { guard: self, policy })
    }

    /// Applies new settings of protection, and keeps its recorded state.
    pub fn protect(&self, settings: &ProtectionSettings) {
        self.shared.protection.set(settings.clone());
        self.operator_logins().set(settings.clone());
    }

    pub fn figures(&self) -> Figures {
        let scram = self.link_figures().into_iter().find(|link| link.name == SCRAM_LINK).unwrap_or_default();
        self.shared.counters.figures(&scram)
    }

    /// Returns the counters of each link, also of links of earlier settings. SCRAM is counted like a link.
    pub fn link_figures(&self) -> Vec<LinkFigures> {
        self.shared.link_counters.figures()
    }

    pub fn protection_figures(&self) -> ProtectionFigures {
        self.shared.protection.figures()
    }

    /// Returns whether clients may connect without a login only because the user database is empty. The first user ends
    /// that.
    pub fn is_open_until_first_user(&self) -> bool {
        self.shared.policy.load().is_open_until_first_user()
    }

    /// Returns whether clients may publish and subscribe to everything only because there is no rule. The first rule
    /// ends that.
    pub fn is_open_until_first_rule(&self) -> bool {
        !self.authority.guards(&self.shared.policy.load().sources)
    }

    /// Sets the link that verifies tokens, for reloads of its keys and for its counters. Must be called once, at the
    /// start.
    pub fn set_tokens(&self, tokens: Arc<JwtLink>) {
        assert!(self.tokens.set(tokens).is_ok(), "the link of tokens is set once");
    }

    pub fn tokens(&self) -> Option<&Arc<JwtLink>> {
        self.tokens.get()
    }

    /// Starts the threads that the links of this policy need.
    fn start_threads(&self, policy: &Policy) -> std::io::Result<()> {
        policy.chain.links().try_for_each(|link| self.shared.pools.start(link.threads()))
    }

    /// Returns a refusal that needs no link and costs nothing, if any.
    fn refused_immediately(&self, credentials: &Credentials<'_>) -> Option<ReasonCode> {
        if self.is_closed.load(Ordering::Acquire) {
            return Some(ReasonCode::ServerUnavailable);
        }
        if self.shared.is_banned(credentials) {
            return Some(ReasonCode::Banned);
        }
        if self.shared.protection.connects_too_often(credentials.peer, Instant::now()) {
            self.shared.counters.rate_limited.fetch_add(1, Ordering::Relaxed);
            return Some(ReasonCode::ConnectionRateExceeded);
        }
        None
    }
}

impl Access for Guard {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult> {
        if credentials.listener == access::INTERNAL_LISTENER {
            return Some(admit_internal());
        }
        if let Some(reason) = self.refused_immediately(&credentials) {
            return Some(AuthResult::Deny(reason));
        }
        if credentials.client_id.starts_with(access::LINKED_CLUSTER) {
            let refused = AuthResult::Deny(ReasonCode::NotAuthorized);
            return Some(self.clusters.get().map_or(refused, |clusters| clusters.admit(credentials)));
        }
        let policy = self.shared.policy.load();
        let mut progress = ChainProgress::default();
        match progress.advance(&self.shared, &policy, credentials, 0) {
            NextStep::Done(decision) => Some(self.shared.conclude(&policy, &credentials, decision)),
            NextStep::Work(task) => {
                Run::start(&self.shared, policy.clone(), credentials, (task, progress), later());
                None
            }
        }
    }

    fn allows_anonymous(&self, listener: &str) -> bool {
        self.shared.policy.load().admits_anonymous(&Credentials { listener, ..Credentials::default() })
    }

    /// Returns a run of SCRAM-SHA-256, when some user can use it.
    fn mechanism(&self, method: &str, credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        if let Some(reason) = self.refused_immediately(&credentials) {
            return Some(Box::new(Refusal(reason)));
        }
        if credentials.client_id.starts_with(access::LINKED_CLUSTER) {
            return Some(Box::new(Refusal(ReasonCode::BadAuthenticationMethod)));
        }
        let policy = self.shared.policy();
        let of_link = policy
            .chain
            .members()
            .find_map(|member| LinkMethod::of(&self.shared, member, method, credentials));
        if let Some(exchange) = of_link {
            return Some(Box::new(exchange));
        }
        let offered = policy.scram_sources().any(|source| source.has_scram());
        if method != METHOD || !offered {
            return None;
        }
        match Scram::new(self.shared.clone(), self.shared.link_counters.of(SCRAM_LINK), credentials) {
            Ok(scram) => Some(Box::new(scram)),
            Err(error) => {
                tracing::error!(%error, "authentication: no random bytes from the system; refusing the client");
                Some(Box::new(Refusal(ReasonCode::UnspecifiedError)))
            }
        }
    }

    fn guards_topics(&self) -> bool {
        let policy = self.shared.policy.load();
        // Users and tokens may have their own rules, which must be checked even without any source.
        let own = |name: &str| !matches!(name, "certificate" | "password_file");
        policy.chain.links().any(|link| own(link.name())) || self.authority.guards(&policy.sources)
    }

    fn allows_without_grants(&self) -> bool {
        self.authority.allows_without_grants(&self.shared.policy.load().sources)
    }

    fn may_answer_later(&self) -> bool {
        self.authority.may_answer_later(&self.shared.policy.load().sources)
    }

    fn authorize(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        self.authority.decide(&self.shared.policy.load().sources, identity, action, topic, later)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn revoked(&self, Identity { client_id, username, peer, .. }: Identity<'_>) -> Option<ReasonCode> {
        let ban = self.shared.bans.find(client_id, username, peer, SystemTime::now)?;
        tracing::debug!(
            client = client_id,
            ?peer,
            ban = ban.0,
            "bans: connected client is banned; disconnecting"
        );
        Some(ReasonCode::Banned)
    }

    fn flaps_in_cluster(&self, name: &str) -> bool {
        let shared = &self.shared;
        let flaps = shared.protection.flaps_in_cluster(name, Instant::now());
        if flaps {
            shared.counters.rate_limited.fetch_add(1, Ordering::Relaxed);
        }
        flaps
    }

    fn flapped(&self, Identity { client_id, principal, .. }: Identity<'_>) {
        let mountpoint = principal.and_then(|principal| principal.mountpoint.as_deref());
        let name = (mountpoint.unwrap_or_default(), client_id);
        self.shared.protection.ban_flapping(name, &self.shared.bans);
    }

    fn revocations(&self) -> u64 {
        let of_links = self.extra_links.0.iter().map(|link| link.revocations());
        let of_clusters = self.clusters.get().map_or(0, |clusters| clusters.revocations());
        of_links.fold(self.shared.bans.revocations().wrapping_add(of_clusters), u64::wrapping_add)
    }
}

/// Admits a connection that the process makes to itself. Access rules do not apply to it.
fn admit_internal() -> AuthResult {
    let principal = Arc::new(Principal { superuser: true, ..Principal::default() });
    AuthResult::Admit(Box::new(Admission { principal: Some(principal), ..Admission::default() }))
}

/// Enhanced authentication that fails at its first step.
struct Refusal(ReasonCode);

impl Mechanism for Refusal {
    fn step(&mut self, _data: Option<&[u8]>) -> Step {
        Step::Failure(self.0)
    }
}

struct ExtraLinks(Vec<Arc<dyn Link>>);

impl std::fmt::Debug for ExtraLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|link| link.name())).finish()
    }
}

/// Name of SCRAM in metrics.
const SCRAM_LINK: &str = "scram";

#[cfg(test)]
mod tests;
