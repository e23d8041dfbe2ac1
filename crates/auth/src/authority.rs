//! What clients may do: the sources of authorisation in their order.
//!
//! [`Authority`] decides; read it first. A superuser may do everything. Then the rules that came with a client (of its token) are
//! asked, then each source of [`Sources`], until one has an opinion. What nobody speaks of is decided by `auth.no_match`, but `$SYS` is
//! read only by those to whom a source allows it, and where a service is asked about subscriptions, what they bring is delivered.
//!
//! **Invariant:** a source that could not find out refuses (fail closed).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use broker::access::{Action, Identity, Permission, RetryAuthorize};

use crate::opinion::Opinion;
use crate::rules::RuleSet;

mod explain;
mod names;
mod sources;

pub use explain::{Explanation, Step};
pub use names::{NoMatch, SourceName, SourceNames};
pub use sources::Sources;

/// A source of authorisation that may have to ask elsewhere. Called on reactors: it never blocks.
pub trait Source: fmt::Debug + Send + Sync {
    /// Topics are as for [`broker::access::Access::authorize`]. [`Action::Receive`] is always answered at once.
    fn opinion(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Opinion;
}

/// Asks the sources that do not come from files, and counts what all of them say.
#[derive(Debug, Default)]
pub struct Authority {
    database: ArcSwapOption<RuleSet>,
    http: ArcSwapOption<Box<dyn Source>>,
    counters: [Counters; Decider::COUNT],
}

#[derive(Debug, Default)]
struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
}

/// Who decided a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    Superuser,
    /// Rules that came with the client.
    Token,
    Source(SourceName),
    /// Nobody spoke of it.
    NoMatch,
}

/// What was decided by one of the deciders so far, but for deliveries. Answers that reactors remember are not decided again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionFigures {
    /// `superuser`, `token`, the name of a source, or `no_match`.
    pub by: &'static str,
    pub allowed: u64,
    pub denied: u64,
    /// Refused because it could not find out; not in `denied`.
    pub failed: u64,
}

impl Decider {
    const COUNT: usize = 7;
    pub const ALL: [Self; Self::COUNT] = [
        Self::Superuser,
        Self::Token,
        Self::Source(SourceName::Rules),
        Self::Source(SourceName::Database),
        Self::Source(SourceName::AclFile),
        Self::Source(SourceName::Http),
        Self::NoMatch,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Superuser => "superuser",
            Self::Token => "token",
            Self::Source(name) => name.as_str(),
            Self::NoMatch => "no_match",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Superuser => 0,
            Self::Token => 1,
            Self::Source(name) => 2 + name as usize,
            Self::NoMatch => 6,
        }
    }
}

impl Authority {
    /// The rules of the database from now on; none when it is empty.
    pub fn set_database(&self, rules: RuleSet) {
        self.database.store((!rules.is_empty()).then(|| Arc::new(rules)));
    }

    /// The HTTP service from now on.
    pub fn set_http(&self, source: Option<Box<dyn Source>>) {
        self.http.store(source.map(Arc::new));
    }

    /// Whether anything but `allowed` can come out, for clients without rules of their own.
    pub fn guards(&self, sources: &Sources) -> bool {
        sources.no_match().is_some() || self.has_source(sources)
    }

    /// Whether an answer can take time.
    pub fn may_answer_later(&self, sources: &Sources) -> bool {
        self.http.load().is_some() && sources.is_enabled(SourceName::Http)
    }

    /// Whether there is anything to ask.
    fn has_source(&self, sources: &Sources) -> bool {
        SourceName::ALL.into_iter().any(|name| self.is_enabled(sources, name))
    }

    /// Whether this is a source. One that is named is, also when it has nothing to say; when none is named those that are there are.
    fn is_enabled(&self, sources: &Sources, name: SourceName) -> bool {
        sources.is_enabled(name)
            && (sources.are_named()
                || match name {
                    SourceName::Rules => sources.rules().is_some(),
                    SourceName::Database => self.database.load().is_some(),
                    SourceName::AclFile => sources.acl().is_some(),
                    SourceName::Http => self.http.load().is_some(),
                })
    }

    /// Whether the client may; `None` when that is not known yet. Does not allocate but for questions to others.
    pub fn decide(
        &self,
        sources: &Sources,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        if let Some((by, allowed)) = decision_of_identity(identity, action, topic) {
            return Some(self.count(action, by, allowed, true));
        }
        let mut lasting = true;
        for name in sources.order().filter(|name| self.is_enabled(sources, *name)) {
            // What others say, and also that they say nothing, may change without our knowing. They are not asked about deliveries.
            lasting &= name != SourceName::Http || action == Action::Receive;
            let by = Decider::Source(name);
            match self.opinion(sources, name, identity, action, topic, later) {
                Opinion::None => {}
                Opinion::Allow => return Some(self.count(action, by, true, lasting)),
                Opinion::Deny => return Some(self.count(action, by, false, lasting)),
                Opinion::Later if action != Action::Receive => return None,
                Opinion::Later | Opinion::Failed => {
                    self.counters[by.index()].failed.fetch_add(1, Ordering::Relaxed);
                    return Some(Permission { allowed: false, lasting: false });
                }
            }
        }
        let allowed = self.no_match(sources, identity, action, topic);
        Some(self.count(action, Decider::NoMatch, allowed, lasting))
    }

    fn opinion(
        &self,
        sources: &Sources,
        name: SourceName,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Opinion {
        let ruled = |rules: &RuleSet| match rules.ruling(identity, action, topic) {
            Some(ruling) if ruling.allowed => Opinion::Allow,
            Some(_) => Opinion::Deny,
            None => Opinion::None,
        };
        match name {
            SourceName::Rules => sources.rules().map_or(Opinion::None, ruled),
            SourceName::Database => self.database.load().as_deref().map_or(Opinion::None, ruled),
            SourceName::AclFile => sources.acl_opinion(identity, action, topic),
            SourceName::Http => match &*self.http.load() {
                Some(source) => source.opinion(identity, action, topic, later),
                // It is named and not there: what it would have refused cannot be told.
                None => Opinion::Failed,
            },
        }
    }

    /// Whether a subscription that brings what no source speaks of was granted by asking, or by `auth.no_match`. A service is not asked
    /// about each delivery, and the broker checks subscriptions again; so what was granted is delivered. Rules that grant a filter speak of
    /// all that it matches, but for `auth.acl_subscribe = "always"`, which grants what nobody was asked about.
    fn was_asked_at_subscribe(&self, sources: &Sources) -> bool {
        self.is_enabled(sources, SourceName::Http)
            && !(self.is_enabled(sources, SourceName::AclFile) && sources.grants_every_subscription())
    }

    /// What follows when nobody speaks of it.
    fn no_match(&self, sources: &Sources, identity: Identity<'_>, action: Action, topic: &str) -> bool {
        if action == Action::Receive && self.was_asked_at_subscribe(sources) {
            return true;
        }
        match sources.no_match() {
            Some(NoMatch::Allow) => !is_sys_read(action, topic),
            Some(NoMatch::Deny) => false,
            None => !self.has_source(sources) && !has_grants(identity),
        }
    }

    /// Deliveries are not counted: each asks, on all reactors at once, and would wait for the others' counting.
    fn count(&self, action: Action, by: Decider, allowed: bool, lasting: bool) -> Permission {
        if action == Action::Receive {
            return Permission { allowed, lasting };
        }
        let Counters { allowed: yes, denied: no, .. } = &self.counters[by.index()];
        if allowed { yes } else { no }.fetch_add(1, Ordering::Relaxed);
        Permission { allowed, lasting }
    }

    /// One for each of [`Decider::ALL`], in that order.
    pub fn figures(&self) -> [DecisionFigures; Decider::COUNT] {
        Decider::ALL.map(|by| {
            let Counters { allowed, denied, failed } = &self.counters[by.index()];
            let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            DecisionFigures {
                by: by.name(),
                allowed: value(allowed),
                denied: value(denied),
                failed: value(failed),
            }
        })
    }
}

/// What comes with the client, before all sources.
fn decision_of_identity(identity: Identity<'_>, action: Action, topic: &str) -> Option<(Decider, bool)> {
    let principal = identity.principal?;
    if principal.superuser {
        return Some((Decider::Superuser, true));
    }
    let allowed = principal.grants.as_ref()?.decide(identity, action, topic)?;
    Some((Decider::Token, allowed))
}

fn has_grants(identity: Identity<'_>) -> bool {
    identity.principal.is_some_and(|principal| principal.grants.is_some())
}

/// Whether it is about reading what the broker says about itself.
fn is_sys_read(action: Action, topic: &str) -> bool {
    matches!(action, Action::Subscribe { .. } | Action::Receive)
        && topic.strip_prefix("$SYS").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
