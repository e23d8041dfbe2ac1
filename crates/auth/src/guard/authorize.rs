//! Authorisation functions of the guard for operators and for the node itself.

use std::sync::atomic::Ordering;

use access::{Action, Identity};

use super::Guard;
use crate::authority::{DecisionFigures, Explanation, Source};
use crate::rules::RuleSet;
use crate::web::HttpServices;

impl Guard {
    /// Replaces the rules of the database. Subscriptions are checked again.
    pub fn set_database_rules(&self, rules: RuleSet) {
        self.authority.set_database(rules);
        self.rules_changed();
    }

    /// Replaces the HTTP service that is a source of authorisation.
    pub fn set_http_source(&self, source: Option<Box<dyn Source>>) {
        self.authority.set_http(source);
        self.rules_changed();
    }

    /// Sets the HTTP services; the ACL service is a source of authorisation. Must be called once.
    pub fn set_http_services(&self, services: HttpServices) {
        let source = services.acl().map(|acl| Box::new(acl.clone()) as Box<dyn Source>);
        if self.services.set(services).is_ok() {
            self.set_http_source(source);
        }
    }

    /// Returns the HTTP services; none before they are set.
    pub fn http_services(&self) -> &HttpServices {
        self.services.get().unwrap_or(&HttpServices::NONE)
    }

    fn rules_changed(&self) {
        // Incremented after the change: a thread that sees the new number also sees the new rules.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Explains whether a client may do something, and which rule decides. Counts nothing. The topic of
    /// [`Action::Subscribe`] is a Topic Filter without a share name.
    pub fn explain(&self, identity: Identity<'_>, action: Action, topic: &str) -> Explanation {
        self.authority.explain(&self.shared.policy.load().sources, identity, action, topic)
    }

    /// Returns the number of decisions of each decider.
    pub fn decisions(&self) -> impl Iterator<Item = DecisionFigures> {
        self.authority.figures().into_iter()
    }
}
