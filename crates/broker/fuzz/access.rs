//! Access control that takes its time, refuses some things, and knows an Authentication Method.

use std::sync::Mutex;

use broker::access::{
    Access, Action, AskAgain, AuthReply, Credentials, Identity, Mechanism, Permission, Step, Verdict,
};
use mqtt::ReasonCode;

#[derive(Default)]
pub struct Moody {
    later: Mutex<Vec<AuthReply>>,
}

impl Moody {
    /// Answers the first client that waits. Odd numbers allow; a multiple of four forgets to answer.
    pub fn make_up_its_mind(&self, allow: u8) -> bool {
        let reply = {
            let mut later = self.later.lock().expect("nothing panics while it holds this");
            if later.is_empty() {
                return false;
            }
            later.remove(0)
        };
        match allow % 4 {
            0 => drop(reply),
            1 | 3 => reply.complete(Verdict::Allow),
            _ => reply.complete(Verdict::Deny(ReasonCode::BadUserNameOrPassword)),
        }
        true
    }
}

impl Access for Moody {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        later: &mut dyn FnMut() -> AuthReply,
    ) -> Option<Verdict> {
        match credentials.username {
            Some("later") => {
                self.later.lock().expect("nothing panics while it holds this").push(later());
                None
            }
            Some("nobody") => Some(Verdict::Deny(ReasonCode::NotAuthorized)),
            _ => Some(Verdict::Allow),
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
        _: Action,
        topic: &str,
        _: &mut dyn FnMut() -> AskAgain,
    ) -> Option<Permission> {
        Some(Permission { allowed: !topic.starts_with("no/"), lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }
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
