//! User database as a link of the chain.

use access::{Admission, Credentials};
use mqtt::ReasonCode;

use super::Users;
use crate::link::{Attempt, CacheKey, Decoy, Link, Outcome, ScramRecord, ScramSource, Threads};
use crate::password_hash::{ScramKeys, decoy_scram_keys};

impl Link for Users {
    fn name(&self) -> &'static str {
        "users"
    }

    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let view = credentials.username.is_some_and(|username| self.view.get(username).is_some());
        (!view).then_some(Outcome::NotMine)
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        let username = attempt.username.as_deref().unwrap_or_default();
        let password = attempt.password.as_deref().unwrap_or_default();
        let Some(user) = self.view.get(username) else { return Outcome::NotMine };
        let Some(hash) = &user.hash else {
            // The same time as for others, so that it does not reveal which users have no password.
            Decoy::work(self, attempt);
            return Outcome::Refuse(ReasonCode::BadUserNameOrPassword);
        };
        if hash.matches(password) && user.enabled {
            Outcome::Admit(Box::new(user.admission()))
        } else {
            Outcome::Refuse(ReasonCode::BadUserNameOrPassword)
        }
    }

    fn threads(&self) -> Threads {
        Threads::Hashing
    }

    /// Every change of a user changes its revision.
    fn cache_key(&self, credentials: Credentials<'_>) -> CacheKey {
        let user = credentials.username.and_then(|username| self.view.get(username));
        CacheKey::Password(user.map(|user| user.revision.0.to_le_bytes().to_vec()).unwrap_or_default())
    }

    fn revocations(&self) -> u64 {
        self.view.revocations()
    }

    fn decoy(&self) -> Option<&dyn Decoy> {
        (!self.is_empty()).then_some(self)
    }

    fn is_idle(&self) -> bool {
        self.is_empty()
    }

    fn scram(&self) -> Option<&dyn ScramSource> {
        Some(self)
    }
}

impl Decoy for Users {
    fn work(&self, attempt: &Attempt) {
        let number = self.view.number(attempt.username.as_deref().unwrap_or_default());
        if let Some(hash) = self.view.kinds().decoy(number) {
            // The result does not matter: the answer is a refusal.
            std::hint::black_box(hash.matches(attempt.password.as_deref().unwrap_or_default()));
        }
    }
}

impl ScramSource for Users {
    fn has_scram(&self) -> bool {
        !self.view.kinds().scram.is_empty()
    }

    fn scram(&self, username: &str) -> ScramRecord {
        match self.view.get(username) {
            None => ScramRecord::UnknownUser,
            Some(user) => match &user.scram {
                Some(keys) if user.enabled => ScramRecord::Keys(keys.clone()),
                _ => ScramRecord::NoScramKeys,
            },
        }
    }

    fn decoy_keys(&self, username: &str) -> Option<ScramKeys> {
        let key = self.decoys.get().unwrap_or(&self.temporary_decoy_key);
        decoy_scram_keys(key, &self.view.kinds().scram, username)
    }

    fn admission(&self, username: &str) -> Admission {
        Users::admission(self, username)
    }
}
