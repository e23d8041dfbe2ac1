//! Link of the chain that verifies tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use access::{Admission, Credentials, Mechanism};
use arc_swap::ArcSwap;

use super::algorithm::Algorithm;
use super::claims::{Bearer, ClaimRules};
use super::error::JwtError;
use super::jwks::{FetchSettings, JwksFigures, Refetched, Wait};
use super::keyring::{Keyring, Keys};
use super::mechanism::TokenMechanism;
use super::refusal::{Refusal, RefusalKind};
use super::settings::{Jwt, TokenField};
use super::token::{TOKEN_MAX, Token};
use crate::link::{Attempt, CacheKey, Link, Outcome};

/// Verifies the tokens of CONNECT, and of the Authentication Method `JWT`.
#[derive(Debug)]
pub struct JwtLink {
    verifier: ArcSwap<Verifier>,
    counters: Counters,
}

/// Settings and files at one moment.
#[derive(Debug)]
struct Verifier {
    from: TokenField,
    algorithms: Vec<Algorithm>,
    keyring: Keyring,
    claims: ClaimRules,
}

/// Settings and files that were read, are usable, and are not in force yet.
#[derive(Debug)]
pub struct JwtChange<'a> {
    link: &'a JwtLink,
    verifier: Arc<Verifier>,
    /// New settings of a JWK Set.
    fetch_settings: Option<Arc<FetchSettings>>,
}

/// Number of tokens by the result of their verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JwtFigures {
    pub accepted: u64,
    /// Not a token, or too long.
    pub malformed: u64,
    /// Signed with an algorithm that is not allowed, or with none.
    pub algorithm: u64,
    /// Signed with an unknown key.
    pub key: u64,
    pub signature: u64,
    /// Expired, or not valid yet.
    pub time: u64,
    /// Wrong audience, user or client, or a required claim is missing.
    pub claims: u64,
    /// Refused because keys could not be fetched.
    pub unavailable: u64,
    /// `None` when keys are not in a JWK Set.
    pub jwks: Option<JwksFigures>,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    malformed: AtomicU64,
    algorithm: AtomicU64,
    key: AtomicU64,
    signature: AtomicU64,
    time: AtomicU64,
    claims: AtomicU64,
    unavailable: AtomicU64,
}

impl JwtLink {
    /// Opens the link; `None` when no source of keys is configured. With a JWK Set at a URL, a thread begins to fetch
    /// it.
    ///
    /// # Errors
    /// [`JwtError`]: settings contradict each other, or a file cannot be used.
    pub fn open(settings: &Jwt) -> Result<Option<Arc<Self>>, JwtError> {
        let claims = ClaimRules::new(settings).map_err(JwtError::Settings)?;
        let Some(keyring) = Keyring::open(settings)? else { return Ok(None) };
        let verifier = ArcSwap::from_pointee(Verifier::new(settings, keyring, claims)?);
        Ok(Some(Arc::new(Self { verifier, counters: Counters::default() })))
    }

    /// Reads secrets and keys again, for these settings. The source of the keys cannot be changed: such settings are
    /// ignored.
    ///
    /// # Errors
    /// Errors of [`Self::open`].
    pub fn read(&self, settings: &Jwt) -> Result<JwtChange<'_>, JwtError> {
        let claims = ClaimRules::new(settings).map_err(JwtError::Settings)?;
        let (keyring, fetch_settings) = self.verifier.load().keyring.read(settings)?;
        Ok(JwtChange {
            link: self,
            verifier: Arc::new(Verifier::new(settings, keyring, claims)?),
            fetch_settings,
        })
    }

    pub fn figures(&self) -> JwtFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { accepted, malformed, algorithm, key, signature, time, claims, unavailable } =
            &self.counters;
        JwtFigures {
            accepted: value(accepted),
            malformed: value(malformed),
            algorithm: value(algorithm),
            key: value(key),
            signature: value(signature),
            time: value(time),
            claims: value(claims),
            unavailable: value(unavailable),
            jwks: match &self.verifier.load().keyring {
                Keyring::Set(jwks) => Some(jwks.figures()),
                Keyring::Secret(_) | Keyring::PublicKeys(_) => None,
            },
        }
    }

    /// Returns the admission of the bearer of this token. Never waits. Counted.
    pub(super) fn admit_immediately(&self, token: &str, bearer: Bearer<'_>) -> Result<Admission, Refusal> {
        self.admit(&self.verifier.load(), token, bearer, Wait::No)
    }

    /// Returns the admission of the bearer of this token. Counted.
    fn admit(
        &self,
        verifier: &Verifier,
        token: &str,
        bearer: Bearer<'_>,
        wait: Wait,
    ) -> Result<Admission, Refusal> {
        let admission = verifier.verify(token, bearer, wait);
        let Counters { accepted, malformed, algorithm, key, signature, time, claims, unavailable } =
            &self.counters;
        let counter = match &admission {
            Ok(_) => accepted,
            Err(refusal) => match refusal.kind() {
                RefusalKind::Malformed => malformed,
                RefusalKind::Algorithm => algorithm,
                RefusalKind::Key => key,
                RefusalKind::Signature => signature,
                RefusalKind::Time => time,
                RefusalKind::Claims => claims,
                RefusalKind::Unavailable => unavailable,
            },
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Err(refusal) = &admission {
            tracing::debug!(client = bearer.client_id, "authentication: token refused; {refusal}");
        }
        admission
    }
}

impl JwtChange<'_> {
    /// Puts the change in force.
    pub fn apply(self) {
        let Self { link, verifier, fetch_settings } = self;
        let before = link.verifier.swap(verifier);
        if let (Keyring::Set(jwks), Some(fetch_settings)) = (&before.keyring, fetch_settings) {
            jwks.change(fetch_settings);
        }
    }
}

impl Verifier {
    fn new(settings: &Jwt, keyring: Keyring, claims: ClaimRules) -> Result<Self, JwtError> {
        let algorithms = keyring.algorithms(&settings.algorithms)?;
        Ok(Self { from: settings.from, algorithms, keyring, claims })
    }

    fn verify(&self, token: &str, bearer: Bearer<'_>, wait: Wait) -> Result<Admission, Refusal> {
        let token = Token::parse(token)?;
        if !self.algorithms.contains(&token.algorithm) {
            return Err(Refusal::AlgorithmNotAllowed(token.algorithm));
        }
        self.check_signature(&token, wait)?;
        self.claims.admit(&token.claims()?, bearer, SystemTime::now())
    }

    fn check_signature(&self, token: &Token<'_>, wait: Wait) -> Result<(), Refusal> {
        let jwks = match &self.keyring {
            Keyring::Secret(keys) | Keyring::PublicKeys(keys) => return keys.verify(token),
            Keyring::Set(jwks) => jwks,
        };
        let verify = |keys: Option<Arc<Keys>>| keys.ok_or(Refusal::NoKeys)?.verify(token);
        let refused = match verify(jwks.keys()) {
            Err(refusal @ (Refusal::NoKey | Refusal::NoKeys)) => refusal,
            verified => return verified,
        };
        if refused == Refusal::NoKey {
            if token.key_id.is_none() {
                return Err(refused);
            }
            jwks.count_unknown_key_id();
        }
        let refetched = jwks.refetch(wait);
        match verify(jwks.keys()) {
            Err(Refusal::NoKey) if refetched == Refetched::Unknown => Err(Refusal::NotFetched),
            verified => verified,
        }
    }

    fn token_of<'a>(&self, credentials: Credentials<'a>) -> Option<&'a [u8]> {
        match self.from {
            TokenField::Password => credentials.password,
            TokenField::Username => credentials.username.map(str::as_bytes),
        }
        .filter(|field| Token::resembles(field))
    }
}

impl Link for JwtLink {
    fn name(&self) -> &'static str {
        "jwt"
    }

    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let verifier = self.verifier.load();
        let Some(token) = verifier.token_of(credentials) else { return Some(Outcome::NotMine) };
        if token.len() <= TOKEN_MAX {
            return None;
        }
        // Not worth a thread.
        self.counters.malformed.fetch_add(1, Ordering::Relaxed);
        Some(Outcome::Refuse(Refusal::TooLong { len: token.len(), max: TOKEN_MAX }.reason()))
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        let credentials = attempt.credentials();
        let verifier = self.verifier.load_full();
        // All its bytes are characters of base64url, so it is text.
        let token = verifier.token_of(credentials).and_then(|token| std::str::from_utf8(token).ok());
        let Some(token) = token else { return Outcome::NotMine };
        let username = match verifier.from {
            TokenField::Password => credentials.username,
            TokenField::Username => None,
        };
        let bearer = Bearer { client_id: credentials.client_id, username };
        match self.admit(&verifier, token, bearer, Wait::ForFetch) {
            Ok(admission) => Outcome::Admit(Box::new(admission)),
            Err(refusal) if refusal.kind() == RefusalKind::Unavailable => {
                Outcome::Failed(refusal.to_string())
            }
            Err(refusal) => Outcome::Refuse(refusal.reason()),
        }
    }

    /// Signatures of 256 bits and more cannot be guessed.
    fn guessable(&self) -> bool {
        false
    }

    /// A token expires, and verifying it again is cheap.
    fn cache_key(&self, _: Credentials<'_>) -> CacheKey {
        CacheKey::Nothing
    }

    fn mechanism(self: Arc<Self>, method: &str, credentials: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        TokenMechanism::of(&self, method, credentials)
    }
}
