//! Password file as a link of the chain.

use access::{Admission, Credentials};
use mqtt::ReasonCode;

use super::{Candidate, PasswordFile};
use crate::link::{Attempt, CacheKey, Decoy, Link, Outcome, ScramRecord, ScramSource, Threads};
use crate::password_hash::ScramKeys;

impl Link for PasswordFile {
    fn name(&self) -> &'static str {
        "password_file"
    }

    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let known = credentials.username.is_some_and(|username| self.users.contains_key(username));
        (!known).then_some(Outcome::NotMine)
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        let username = attempt.username.as_deref().unwrap_or_default();
        let Candidate::User(stored) = self.candidate(username) else { return Outcome::NotMine };
        if stored.matches(attempt.password.as_deref().unwrap_or_default()) {
            Outcome::Admit(Box::default())
        } else {
            Outcome::Refuse(ReasonCode::BadUserNameOrPassword)
        }
    }

    fn threads(&self) -> Threads {
        Threads::Hashing
    }

    fn cache_key(&self, credentials: Credentials<'_>) -> CacheKey {
        let stored = credentials.username.and_then(|username| self.users.get(username));
        CacheKey::Password(stored.map(|at| self.hashes[*at].as_str().into()).unwrap_or_default())
    }

    fn decoy(&self) -> Option<&dyn Decoy> {
        (!self.is_empty()).then_some(self)
    }

    fn scram(&self) -> Option<&dyn ScramSource> {
        Some(self)
    }
}

impl Decoy for PasswordFile {
    fn work(&self, attempt: &Attempt) {
        let username = attempt.username.as_deref().unwrap_or_default();
        if let Candidate::Decoy(stored) = self.candidate(username) {
            // The result does not matter: the answer is a refusal.
            std::hint::black_box(stored.matches(attempt.password.as_deref().unwrap_or_default()));
        }
    }
}

impl ScramSource for PasswordFile {
    fn has_scram(&self) -> bool {
        !self.scram_kinds.is_empty()
    }

    fn scram(&self, username: &str) -> ScramRecord {
        match self.users.get(username).map(|at| self.hashes[*at].scram()) {
            None => ScramRecord::UnknownUser,
            Some(None) => ScramRecord::NoScramKeys,
            Some(Some(keys)) => ScramRecord::Keys(keys),
        }
    }

    fn decoy_keys(&self, username: &str) -> Option<ScramKeys> {
        self.decoy_keys_of(username)
    }

    fn admission(&self, _username: &str) -> Admission {
        Admission::default()
    }
}
