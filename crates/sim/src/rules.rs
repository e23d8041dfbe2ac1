//! Access rules that can change during a simulation: whether clients may publish their Wills.

use std::sync::atomic::{AtomicU64, Ordering};

use broker::access::{
    Access, Action, AuthReply, AuthResult, Credentials, Identity, Permission, RetryAuthorize,
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
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Some(AuthResult::Allow)
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
