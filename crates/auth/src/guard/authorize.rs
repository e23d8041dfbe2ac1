//! What operators and the node itself tell the guard about authorisation, and ask it.

use std::sync::atomic::Ordering;

use broker::access::{Action, Identity};

use super::Guard;
use crate::authority::{DecisionFigures, Explanation, Source};
use crate::rules::RuleSet;
use crate::web::HttpServices;

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

    /// The HTTP services that are asked from now on: as a source of authorisation. Once.
    pub fn set_http_services(&self, services: HttpServices) {
        let source = services.acl().map(|acl| Box::new(acl.clone()) as Box<dyn Source>);
        if self.services.set(services).is_ok() {
            self.set_http_source(source);
        }
    }

    /// Those that were set; none before.
    pub fn http_services(&self) -> &HttpServices {
        self.services.get().unwrap_or(&HttpServices::NONE)
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
