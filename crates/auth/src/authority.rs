//! Authorisation: decides what clients may do, with the sources of authorisation in their order.
//!
//! [`Authority`] decides; read it first. A superuser may do everything. Then the client's own rules (from its token)
//! are asked, then each source of [`Sources`], until one has an opinion. If none has, `auth.no_match` decides. There
//! are two exceptions: `$SYS` and `$events` are readable only where a source allows it, and where a service decides
//! about subscriptions, their messages are delivered.
//!
//! **Invariant:** a source that could not decide refuses (fail closed).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use access::{Action, Identity, Permission, RetryAuthorize};
use arc_swap::ArcSwapOption;

use crate::opinion::Opinion;
use crate::rules::RuleSet;

mod explain;
mod names;
mod sources;

pub use explain::{Explanation, Step};
pub use names::{NoMatch, SourceName, SourceNames};
pub use sources::Sources;

/// Source of authorisation that may have to ask another server. Called on reactors: it never blocks.
pub trait Source: fmt::Debug + Send + Sync {
    /// Returns the opinion about a topic, which is given as for [`access::Access::authorize`].
    /// [`Action::Receive`] is always answered at once.
    fn opinion(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Opinion;
}

/// Asks the sources that do not come from files, and counts the decisions of all sources.
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

/// Part that made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    Superuser,
    /// Rules that came with the client.
    Token,
    Source(SourceName),
    /// No part had an opinion.
    NoMatch,
}

/// Number of decisions of one decider, deliveries excluded. Answers that reactors remember are not counted again.
/// Messages are not counted where no source could refuse them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionFigures {
    /// `superuser`, `token`, the name of a source, or `no_match`.
    pub by: &'static str,
    pub allowed: u64,
    pub denied: u64,
    /// Refused because the decider could not decide. Not included in `denied`.
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
    /// Sets the rules of the database; an empty set is no source.
    pub fn set_database(&self, rules: RuleSet) {
        self.database.store((!rules.is_empty()).then(|| Arc::new(rules)));
    }

    /// Sets the HTTP service.
    pub fn set_http(&self, source: Option<Box<dyn Source>>) {
        self.http.store(source.map(Arc::new));
    }

    /// Returns whether an answer other than "allowed" is possible for clients without their own rules.
    pub fn guards(&self, sources: &Sources) -> bool {
        sources.no_match().is_some() || self.has_source(sources)
    }

    /// Returns whether clients without their own rules may do everything outside `$SYS`: no source could refuse.
    pub fn allows_without_grants(&self, sources: &Sources) -> bool {
        sources.no_match() != Some(NoMatch::Deny) && !self.has_source(sources)
    }

    /// Returns whether an answer can be delayed.
    pub fn may_answer_later(&self, sources: &Sources) -> bool {
        self.http.load().is_some() && sources.is_enabled(SourceName::Http)
    }

    /// Returns whether there is any source.
    fn has_source(&self, sources: &Sources) -> bool {
        SourceName::ALL.into_iter().any(|name| self.is_enabled(sources, name))
    }

    /// Returns whether this source is asked. A named source is, even when it is empty. When none is named, the existing
    /// sources are.
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

    /// Decides whether the client may do this; `None` when the answer is still pending. Allocates only for requests to
    /// other servers.
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
            // Opinions of an HTTP service may change without notice, also when it has none. It is not asked about
            // deliveries.
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
                // The source is named and missing, so its refusals are unknown.
                None => Opinion::Failed,
            },
        }
    }

    /// Returns whether a subscription was granted by an HTTP service or by `auth.no_match`, when no source has an
    /// opinion about its messages. The service is not asked about deliveries, and the broker checks subscriptions
    /// again, so messages of a granted subscription are delivered. Rules that grant a filter apply to all its messages,
    /// except with `auth.acl_subscribe = "always"`, which grants subscriptions without asking.
    fn was_asked_at_subscribe(&self, sources: &Sources) -> bool {
        self.is_enabled(sources, SourceName::Http)
            && !(self.is_enabled(sources, SourceName::AclFile) && sources.grants_every_subscription())
    }

    /// Returns the decision when no source has an opinion.
    fn no_match(&self, sources: &Sources, identity: Identity<'_>, action: Action, topic: &str) -> bool {
        if action == Action::Receive && self.was_asked_at_subscribe(sources) {
            return true;
        }
        if is_read_below("$events", action, topic) {
            return false;
        }
        match sources.no_match() {
            Some(NoMatch::Allow) => !is_read_below("$SYS", action, topic),
            Some(NoMatch::Deny) => false,
            None => !self.has_source(sources) && !has_grants(identity),
        }
    }

    /// Counts a decision, but not a delivery: all reactors decide those at once, and would contend for the counters.
    fn count(&self, action: Action, by: Decider, allowed: bool, lasting: bool) -> Permission {
        if action == Action::Receive {
            return Permission { allowed, lasting };
        }
        let Counters { allowed: yes, denied: no, .. } = &self.counters[by.index()];
        if allowed { yes } else { no }.fetch_add(1, Ordering::Relaxed);
        Permission { allowed, lasting }
    }

    /// Returns one entry for each of [`Decider::ALL`], in that order.
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

/// Returns the decision of the client's own rights, which come before all sources.
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

/// Returns whether the question is about reading topics with this first level.
fn is_read_below(first_level: &str, action: Action, topic: &str) -> bool {
    matches!(action, Action::Subscribe { .. } | Action::Receive)
        && topic.strip_prefix(first_level).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
