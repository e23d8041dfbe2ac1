//! The authentication chain: links in the order in which they are asked.
//!
//! [`Chain`] is what the settings gave and knows no client; a [`Run`](run::Run) is one client's way along it when that takes
//! work. The threads are [`Pools`](pool::Pools).

mod deadlines;
mod figures;
mod names;
mod pool;
pub(crate) mod run;

use std::sync::Arc;
use std::time::Instant;

use broker::access::Credentials;

pub(crate) use deadlines::Deadlines;
pub use figures::LinkFigures;
pub(crate) use figures::{Book, LinkCounters};
pub use names::{ChainNames, LinkName};
pub(crate) use pool::{PoolSize, Pools};

use crate::link::{Attempt, Link, Memory, Outcome};
use crate::recent::{Fingerprint, Recent};

/// The links in force, in order.
#[derive(Default)]
pub(crate) struct Chain {
    links: Vec<Member>,
}

/// A link and what is counted of it.
pub(crate) struct Member {
    pub link: Arc<dyn Link>,
    pub counters: Arc<LinkCounters>,
}

impl Chain {
    pub fn new(links: Vec<Arc<dyn Link>>, book: &Book) -> Self {
        let member = |link: Arc<dyn Link>| Member { counters: book.of(link.name()), link };
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

    /// The link whose work hides that nobody knows a client.
    pub fn decoy(&self) -> Option<usize> {
        self.links.iter().position(|member| member.link.decoy().is_some())
    }

    /// Under what a success of these credentials is remembered when the links before `from` have nothing to do with them. Every link
    /// behind counts, also one that says "not mine": it may know the user a moment later.
    pub fn fingerprint(&self, from: usize, credentials: Credentials<'_>, recent: &Recent) -> Fingerprint {
        let memories: Vec<_> =
            self.links[from..].iter().map(|member| (member, member.link.memory(credentials))).collect();
        let everything = memories.iter().any(|(_, memory)| *memory == Memory::Everything);
        let mut print = recent.printer();
        print.optional(credentials.username.map(str::as_bytes));
        print.optional(credentials.password);
        print.optional(credentials.certificate.map(|certificate| &certificate.fingerprint[..]));
        if everything {
            print.part(credentials.client_id.as_bytes());
            print.part(credentials.listener.as_bytes());
            print.part(credentials.peer.map(|peer| peer.to_string()).unwrap_or_default().as_bytes());
        }
        for (member, memory) in &memories {
            print.part(member.link.name().as_bytes());
            match memory {
                Memory::Password(stored) => print.optional(Some(stored)),
                Memory::Nothing | Memory::Everything => print.optional(None),
            }
        }
        print.end()
    }
}

impl Member {
    /// What is known without work, and counted.
    pub fn at_once(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let outcome = self.link.at_once(credentials)?;
        self.counters.note(&outcome);
        Some(outcome)
    }

    /// Finds out, with what it took counted. A link that panics has failed.
    pub fn work(&self, attempt: &Attempt) -> Outcome {
        let began = Instant::now();
        let work = std::panic::AssertUnwindSafe(|| self.link.work(attempt));
        let outcome = std::panic::catch_unwind(work)
            .unwrap_or_else(|_| Outcome::Failed("it panicked; this is a bug".to_owned()));
        self.counters.took(began.elapsed());
        self.counters.note(&outcome);
        outcome
    }

    /// Work in vain, which is counted as work.
    pub fn work_in_vain(&self, attempt: &Attempt) {
        let began = Instant::now();
        let work = std::panic::AssertUnwindSafe(|| {
            if let Some(decoy) = self.link.decoy() {
                decoy.work(attempt);
            }
        });
        if std::panic::catch_unwind(work).is_err() {
            tracing::error!(link = self.link.name(), "a decoy panicked; this is a bug");
        }
        self.counters.took(began.elapsed());
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.links().map(|link| link.name())).finish()
    }
}
