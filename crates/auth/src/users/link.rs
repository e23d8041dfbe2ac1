//! The user database as a link of the chain.

use broker::access::{Admission, Credentials};
use mqtt::ReasonCode;

use super::Users;
use crate::link::{Attempt, Decoy, Link, Memory, Outcome, ScramRecord, ScramSource, Threads};
use crate::password_hash::{ScramKeys, made_up_scram};

impl Link for Users {
    fn name(&self) -> &'static str {
        "users"
    }

    fn at_once(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let known = credentials.username.is_some_and(|username| self.known.get(username).is_some());
        (!known).then_some(Outcome::NotMine)
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        let username = attempt.username.as_deref().unwrap_or_default();
        let password = attempt.password.as_deref().unwrap_or_default();
        let Some(user) = self.known.get(username) else { return Outcome::NotMine };
        let Some(hash) = &user.hash else {
            // As long as for others: that somebody has no password is nobody's business.
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

    /// Whatever changes about a user, its revision does.
    fn memory(&self, credentials: Credentials<'_>) -> Memory {
        let user = credentials.username.and_then(|username| self.known.get(username));
        Memory::Password(user.map(|user| user.revision.0.to_le_bytes().to_vec()).unwrap_or_default())
    }

    fn revocations(&self) -> u64 {
        self.known.revocations()
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
        let number = self.known.number(attempt.username.as_deref().unwrap_or_default());
        if let Some(hash) = self.known.kinds().decoy(number) {
            // Whatever comes out, the answer is no.
            std::hint::black_box(hash.matches(attempt.password.as_deref().unwrap_or_default()));
        }
    }
}

impl ScramSource for Users {
    fn has_scram(&self) -> bool {
        !self.known.kinds().scram.is_empty()
    }

    fn scram(&self, username: &str) -> ScramRecord {
        match self.known.get(username) {
            None => ScramRecord::Stranger,
            Some(user) => match &user.scram {
                Some(keys) if user.enabled => ScramRecord::Keys(keys.clone()),
                _ => ScramRecord::Without,
            },
        }
    }

    fn made_up(&self, username: &str) -> Option<ScramKeys> {
        let key = self.decoys.get().unwrap_or(&self.passing_decoys);
        made_up_scram(key, &self.known.kinds().scram, username)
    }

    fn admission(&self, username: &str) -> Admission {
        Users::admission(self, username)
    }
}
