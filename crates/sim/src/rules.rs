//! Access rules that can change during a simulation: whether clients may publish their Wills.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, Identity, LINKED_CLUSTER, LinkQueue,
    LinkTerms, Permission, Principal, RetryAuthorize,
};

/// Topic of all Wills.
pub const WILL_TOPIC: &str = "w/y";

/// Access rules that allow everything until Wills are denied.
#[derive(Debug, Default)]
pub struct Rules {
    generation: AtomicU64,
}

impl Rules {
    /// Denies all further Wills.
    pub fn deny_wills(&self) {
        self.generation.store(1, Ordering::SeqCst);
    }

    pub fn deny_anything(&self) -> bool {
        self.generation() > 0
    }
}

impl Access for Rules {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        _: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult> {
        let Some(name) = credentials.client_id.strip_prefix(LINKED_CLUSTER) else {
            return Some(AuthResult::Allow);
        };
        let (name, origin) = name.split_once('/').map_or((name, None), |(name, origin)| (name, Some(origin)));
        let link = LinkTerms {
            name: name.into(),
            origin: origin.map(Into::into),
            export: ["#".into()].into(),
            queue: LinkQueue {
                messages_max: 1_000_000,
                bytes_max: 1 << 30,
                age_max_ms: u64::MAX,
                drop_newest: false,
            },
            history: None,
        };
        let principal = Principal { superuser: true, link: Some(link), ..Principal::default() };
        let admission = Admission { principal: Some(Arc::new(principal)), ..Admission::default() };
        Some(AuthResult::Admit(Box::new(admission)))
    }

    fn guards_topics(&self) -> bool {
        self.deny_anything()
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        action: Action,
        topic: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let is_denied = matches!(action, Action::Publish { .. }) && topic == WILL_TOPIC;
        Some(Permission { allowed: !(is_denied && self.deny_anything()), lasting: true })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
}
