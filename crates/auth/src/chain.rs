//! Authentication chain: links in the order in which they are asked.
//!
//! A [`Chain`] follows from the settings and has no state of clients. A [`Run`](run::Run) is one client's pass through
//! it, when that takes work on threads. The threads are [`Pools`](pool::Pools).

mod deadlines;
mod figures;
mod names;
mod pool;
pub(crate) mod run;

use std::sync::Arc;
use std::time::Instant;

use access::Credentials;

pub(crate) use deadlines::Deadlines;
pub use figures::LinkFigures;
pub(crate) use figures::{LinkCounterTable, LinkCounters};
pub use names::{ChainNames, LinkName};
pub(crate) use pool::{PoolSize, Pools};

use crate::link::{Attempt, CacheKey, Link, Outcome};
use crate::recent::{Fingerprint, Recent};

/// Links in force, in order.
#[derive(Default)]
pub(crate) struct Chain {
    links: Vec<Member>,
}

/// Link with its counters.
pub(crate) struct Member {
    pub link: Arc<dyn Link>,
    pub counters: Arc<LinkCounters>,
}

impl Chain {
    pub fn new(links: Vec<Arc<dyn Link>>, link_counters: &LinkCounterTable) -> Self {
        let member = |link: Arc<dyn Link>| Member { counters: link_counters.of(link.name()), link };
        Self { links: links.into_iter().map(member).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub fn at(&self, at: usize) -> Option<&Member> {
        self.links.get(at)
    }

    pub fn links(&self) -> impl Iterator<Item = &Arc<dyn Link>> {
        self.links.iter().map(|member| &member.link)
    }

    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.links.iter()
    }

    /// Index of the link whose work hides that no link knows a client.
    pub fn decoy(&self) -> Option<usize> {
        self.links.iter().position(|member| member.link.decoy().is_some())
    }

    /// Returns the fingerprint under which a success of these credentials is remembered, when the links before `from`
    /// did not decide. It covers every later link, also one that answers "not mine", because that may know the user a
    /// moment later.
    pub fn fingerprint(&self, from: usize, credentials: Credentials<'_>, recent: &Recent) -> Fingerprint {
        let cache_keys: Vec<_> =
            self.links[from..].iter().map(|member| (member, member.link.cache_key(credentials))).collect();
        let everything = cache_keys.iter().any(|(_, cache_key)| *cache_key == CacheKey::Everything);
        let mut builder = recent.fingerprint_builder();
        builder.optional(credentials.username.map(str::as_bytes));
        builder.optional(credentials.password);
        builder.optional(credentials.certificate.map(|certificate| &certificate.fingerprint[..]));
        if everything {
            builder.part(credentials.client_id.as_bytes());
            builder.part(credentials.listener.as_bytes());
            builder.part(credentials.peer.map(|peer| peer.to_string()).unwrap_or_default().as_bytes());
        }
        for (member, cache_key) in &cache_keys {
            builder.part(member.link.name().as_bytes());
            match cache_key {
                CacheKey::Password(stored) => builder.optional(Some(stored)),
                CacheKey::Nothing | CacheKey::Everything => builder.optional(None),
            }
        }
        builder.end()
    }
}

impl Member {
    /// Returns the answer that needs no work, and counts it.
    pub fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let outcome = self.link.check_immediately(credentials)?;
        self.counters.note(&outcome);
        Some(outcome)
    }

    /// Returns the answer of the link's work, and counts the time. A link that panics has failed.
    pub fn work(&self, attempt: &Attempt) -> Outcome {
        let began = Instant::now();
        let work = std::panic::AssertUnwindSafe(|| self.link.work(attempt));
        let outcome = std::panic::catch_unwind(work)
            .unwrap_or_else(|_| Outcome::Failed("the link panicked; this is a bug".to_owned()));
        self.counters.record_duration(began.elapsed());
        self.counters.note(&outcome);
        outcome
    }

    /// Runs the work of a decoy, and counts it as work.
    pub fn work_decoy(&self, attempt: &Attempt) {
        let began = Instant::now();
        let work = std::panic::AssertUnwindSafe(|| {
            if let Some(decoy) = self.link.decoy() {
                decoy.work(attempt);
            }
        });
        if std::panic::catch_unwind(work).is_err() {
            tracing::error!(link = self.link.name(), "authentication: decoy panicked; this is a bug");
        }
        self.counters.record_duration(began.elapsed());
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.links().map(|link| link.name())).finish()
    }
}
