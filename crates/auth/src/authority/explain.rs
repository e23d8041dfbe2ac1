//! Explanations of decisions.

use access::{Action, Identity, RetryAuthorize};

use super::{Authority, Decider, NoMatch, SourceName, Sources, decision_of_identity, is_read_below};
use crate::acl::Why;
use crate::opinion::Opinion;
use crate::rules::{RuleLocation, RuleSet, RulingReason};

/// Decision, and the opinion of every decider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `false` also when the decision failed or is pending.
    pub allowed: bool,
    /// The first step with an opinion other than [`Opinion::None`] decides. The later ones show what would apply
    /// otherwise.
    pub steps: Vec<Step>,
    /// Index in `steps`.
    pub decided_by: usize,
}

/// Opinion of one decider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub by: Decider,
    pub opinion: Opinion,
    /// Explanation for people: the rule, where it is written, and why it applies when that is not obvious.
    pub reason: String,
}

impl Authority {
    /// Returns the decision of [`Authority::decide`] and its reasons. Counts nothing. A source that asks another server
    /// is asked, and may have the answer when this is called again.
    /// when this is called again.
    pub fn explain(
        &self,
        sources: &Sources,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
    ) -> Explanation {
        let mut steps = Vec::new();
        if let Some((by, allowed)) = decision_of_identity(identity, action, topic) {
            let reason = match by {
                Decider::Superuser => "a superuser may do everything",
                _ => "a rule that came with the client applies",
            };
            steps.push(Step { by, opinion: of(allowed), reason: reason.to_owned() });
        }
        for name in sources.order().filter(|name| self.is_enabled(sources, *name)) {
            let (opinion, reason) = match name {
                SourceName::Rules => {
                    let location = sources.rules_path().map(|path| path.display().to_string());
                    opinion_of_rules(sources.rules(), &location.unwrap_or_default(), identity, action, topic)
                }
                SourceName::Database => {
                    opinion_of_rules(self.database.load().as_deref(), "rule", identity, action, topic)
                }
                SourceName::AclFile => acl(sources, identity, action, topic),
                SourceName::Http => {
                    let mut later = || RetryAuthorize::new(|| {});
                    let opinion = self.opinion(sources, name, identity, action, topic, &mut later);
                    let reason = match opinion {
                        Opinion::Allow | Opinion::Deny | Opinion::None => "as the service answered",
                        Opinion::Later => "the service is being asked; ask again",
                        Opinion::Failed => "the service does not answer, so access is refused",
                    };
                    (opinion, reason.to_owned())
                }
            };
            steps.push(Step { by: Decider::Source(name), opinion, reason });
        }
        let allowed = self.no_match(sources, identity, action, topic);
        let reason = match sources.no_match() {
            _ if action == Action::Receive && self.was_asked_at_subscribe(sources) => {
                "no rule applies, and the service decided about the subscription: messages of a granted subscription are delivered"
            }
            _ if is_read_below("$events", action, topic) => {
                "`$events` can be read only where a rule allows it"
            }
            Some(NoMatch::Allow) if is_read_below("$SYS", action, topic) => {
                "`$SYS` can be read only where a rule allows it"
            }
            Some(NoMatch::Allow) => "no source applies, and auth.no_match is \"allow\"",
            Some(NoMatch::Deny) => "no source applies, and auth.no_match is \"deny\"",
            None if allowed => {
                "there is no source of authorisation (auth.rules_file, auth.acl_file, ...), so every client may do everything"
            }
            None => "no source applies, so access is refused (auth.no_match)",
        };
        steps.push(Step { by: Decider::NoMatch, opinion: of(allowed), reason: reason.to_owned() });
        let decided_by = steps.iter().position(|step| step.opinion != Opinion::None).unwrap_or(0);
        Explanation { allowed: steps[decided_by].opinion == Opinion::Allow, steps, decided_by }
    }
}

fn of(allowed: bool) -> Opinion {
    if allowed { Opinion::Allow } else { Opinion::Deny }
}

/// Returns the opinion of `rules`. `location` is the file of the rules, or the kind of their ids.
fn opinion_of_rules(
    rules: Option<&RuleSet>,
    location: &str,
    identity: Identity<'_>,
    action: Action,
    topic: &str,
) -> (Opinion, String) {
    let Some(rules) = rules else { return (Opinion::None, "it has no rules".to_owned()) };
    let Some(ruling) = rules.ruling(identity, action, topic) else {
        let reason = match action {
            Action::Subscribe { .. } => "no single rule allows reading everything that the filter matches",
            Action::Publish { .. } | Action::Receive => "no rule applies",
        };
        return (Opinion::None, reason.to_owned());
    };
    let mut reason = match ruling.location {
        RuleLocation::Line(line) => format!("{location}:{line}: {}", ruling.rule),
        RuleLocation::Id(id) => format!("{location} {id}: {}", ruling.rule),
    };
    if ruling.ruling_reason == RulingReason::DangerousName {
        reason.push_str(DANGEROUS);
    }
    (of(ruling.allowed), reason)
}

fn acl(sources: &Sources, identity: Identity<'_>, action: Action, topic: &str) -> (Opinion, String) {
    let opinion = sources.acl_opinion(identity, action, topic);
    let why = sources.acl_decision(identity, action, topic).map_or(Why::NoRule, |decision| decision.why);
    let file = sources.acl_path().map(|path| path.display().to_string()).unwrap_or_default();
    let rule = |line: u32| {
        format!("{file}:{line}: {}", sources.acl().and_then(|acl| acl.text(line)).unwrap_or_default())
    };
    let reason = match why {
        Why::Line(line) => rule(line),
        Why::DangerousName(line) => rule(line) + DANGEROUS,
        Why::NoRule if matches!(action, Action::Subscribe { .. }) => {
            "no single rule allows reading everything that the filter matches".to_owned()
        }
        Why::NoRule => "no rule applies".to_owned(),
        Why::SubscribeAlways => {
            "auth.acl_subscribe is \"always\"; messages that may not be received are not delivered".to_owned()
        }
    };
    (opinion, reason)
}

const DANGEROUS: &str = "\na name with `+`, `#` or `/`, or a `$` at its beginning, could match topics of other clients here, so this \
                         deny applies to all topics";
