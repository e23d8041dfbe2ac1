//! Access control that answers late, refuses some requests, and has an Authentication Method.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, Identity, Mechanism, Permission,
    Principal, Rates, RetryAuthorize, Step,
};
use mqtt::ReasonCode;

#[derive(Default)]
pub struct Moody {
    later: Mutex<Vec<AuthReply>>,
    /// Questions about topics that begin with `ask`.
    waiting: Mutex<Vec<RetryAuthorize>>,
    /// Answer to these questions: 0 is not known.
    known: AtomicU8,
}

impl Moody {
    /// Answers the first client that waits. Odd numbers allow; a multiple of four drops the answer. Then answers all
    /// questions about topics, by the high bits. Returns whether anything was answered.
    pub fn make_up_its_mind(&self, allow: u8) -> bool {
        self.known.store(allow >> 6, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("nothing panics while it holds this"));
        drop(waiting);
        let reply = {
            let mut later = self.later.lock().expect("nothing panics while it holds this");
            if later.is_empty() {
                return false;
            }
            later.remove(0)
        };
        match allow % 4 {
            0 => drop(reply),
            1 | 3 => reply.complete(AuthResult::Allow),
            _ => reply.complete(AuthResult::Deny(ReasonCode::BadUserNameOrPassword)),
        }
        true
    }
}

impl Access for Moody {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult> {
        match credentials.username {
            Some("later") => {
                self.later.lock().expect("nothing panics while it holds this").push(later());
                None
            }
            Some("tenant") => Some(admit(Some("t/"), None)),
            Some("slow") => Some(admit(None, Some(3))),
            Some("nobody") => Some(AuthResult::Deny(ReasonCode::NotAuthorized)),
            _ => Some(AuthResult::Allow),
        }
    }

    fn mechanism(&self, method: &str, _: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        (method == "m").then(|| Box::new(Talk) as Box<dyn Mechanism>)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        if topic.starts_with("ask") && action != Action::Receive {
            return match self.known.load(Ordering::Relaxed) {
                0 => {
                    self.waiting.lock().expect("nothing panics while it holds this").push(later());
                    None
                }
                known => Some(Permission { allowed: known != 1, lasting: known == 2 }),
            };
        }
        Some(Permission { allowed: !topic.starts_with("no/"), lasting: true })
    }

    fn may_answer_later(&self) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        0
    }
}

fn admit(mountpoint: Option<&str>, messages_per_second: Option<u32>) -> AuthResult {
    let rates =
        messages_per_second.map(|messages_per_second| Rates { messages_per_second, ..Rates::default() });
    let principal = Principal { mountpoint: mountpoint.map(Into::into), rates, ..Principal::default() };
    let lifetime = Some(Duration::from_secs(30));
    AuthResult::Admit(Box::new(Admission {
        lifetime,
        principal: Some(Arc::new(principal)),
        ..Admission::default()
    }))
}

struct Talk;

impl Mechanism for Talk {
    fn step(&mut self, data: Option<&[u8]>) -> Step {
        match data {
            Some(b"more") => Step::Continue(b"and?".to_vec()),
            Some(b"bad") => Step::Failure(ReasonCode::NotAuthorized),
            Some(_) => Step::Success(Some(b"well".to_vec()), Box::default()),
            None => Step::Success(None, Box::default()),
        }
    }
}
