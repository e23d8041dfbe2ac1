//! What operators and the node itself tell the guard about authorisation, and ask it.

use std::sync::atomic::Ordering;

use broker::access::{Action, Identity};

use super::Guard;
use crate::authority::{DecisionFigures, Explanation, Source};
use crate::rules::RuleSet;

impl Guard {
    /// The rules of the database from now on. Subscriptions are checked again.
    pub fn set_database_rules(&self, rules: RuleSet) {
        self.authority.set_database(rules);
        self.rules_changed();
    }

    /// The HTTP service that is asked from now on.
    pub fn set_http_source(&self, source: Option<Box<dyn Source>>) {
        self.authority.set_http(source);
        self.rules_changed();
    }

    fn rules_changed(&self) {
        // After the change: whoever sees the new number meets the new rules.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// What a client may do, and who says so. Counts nothing. The topic of [`Action::Subscribe`] is a Topic Filter without a share name.
    pub fn explain(&self, identity: Identity<'_>, action: Action, topic: &str) -> Explanation {
        self.authority.explain(&self.shared.policy.load().sources, identity, action, topic)
    }

    /// What was decided so far, by whom.
    pub fn decisions(&self) -> impl Iterator<Item = DecisionFigures> {
        self.authority.figures().into_iter()
    }
}
