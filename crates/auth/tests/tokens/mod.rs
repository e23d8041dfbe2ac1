//! Tokens and keys for tests: fixed ones made by `make.py`, and a signer for others.

// Each test file uses a part.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use access::Admission;
use auth::settings::Jwt;
use auth::{Attempt, JwtLink, Link, Outcome};
use base64ct::{Base64UrlUnpadded, Encoding};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use ring::{hmac, rand};
use serde_json::{Value, json};

/// The first of January 2100, in Unix time.
pub const FAR: u64 = 4_102_444_800;

pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens").join(name)
}

/// Returns a token of `golden.txt`.
pub fn golden(name: &str) -> String {
    let all = std::fs::read_to_string(file("golden.txt")).unwrap();
    let found = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{name} is not in golden.txt")).to_owned()
}

/// File that is removed with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(content: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("meridian-jwt-{}-{number}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A remaining file in a temporary directory is harmless.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn part(bytes: impl AsRef<[u8]>) -> String {
    Base64UrlUnpadded::encode_string(bytes.as_ref())
}

/// Signs a header and a payload with the secret of `tests/tokens`.
pub fn hs256(header: &str, claims: &str) -> String {
    let secret = std::fs::read(file("secret")).unwrap();
    let signed = format!("{}.{}", part(header), part(claims));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), signed.as_bytes());
    format!("{signed}.{}", part(signature))
}

/// Returns a token with these claims, and valid values for the others.
pub fn token_of(claims: Value) -> String {
    let mut all = json!({"sub": "alice", "exp": FAR});
    for (name, value) in claims.as_object().unwrap() {
        match value {
            Value::Null => {
                all.as_object_mut().unwrap().remove(name);
            }
            value => all[name] = value.clone(),
        }
    }
    hs256(r#"{"alg":"HS256","typ":"JWT"}"#, &all.to_string())
}

/// Returns settings with the secret of `tests/tokens`.
pub fn with_secret() -> Jwt {
    Jwt { secret_file: Some(file("secret")), ..Jwt::default() }
}

pub fn open(settings: &Jwt) -> Arc<JwtLink> {
    JwtLink::open(settings).unwrap().unwrap()
}

pub fn attempt(username: Option<&str>, password: &str) -> Attempt {
    Attempt {
        client_id: "c1".into(),
        username: username.map(Into::into),
        password: Some(password.as_bytes().into()),
        peer: None,
        listener: "".into(),
        certificate: None,
    }
}

/// Returns the final answer of the link to a token as password, from a client without a user name.
pub fn ask(link: &JwtLink, token: &str) -> Outcome {
    let attempt = attempt(None, token);
    link.check_immediately(attempt.credentials()).unwrap_or_else(|| link.work(&attempt))
}

pub fn admission(link: &JwtLink, token: &str) -> Admission {
    match ask(link, token) {
        Outcome::Admit(admission) => *admission,
        outcome => panic!("{outcome:?}"),
    }
}

/// P-256 key that signs given tokens.
pub struct Signer {
    id: String,
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl Signer {
    pub fn new(id: &str) -> Self {
        let random = rand::SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
        Self { id: id.to_owned(), pair, random }
    }

    pub fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": part(&point[1..33]), "y": part(&point[33..])})
    }

    pub fn sign(&self, header: Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header.to_string()), part(claims.to_string()));
        let signature = self.pair.sign(&self.random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", part(signature))
    }

    /// Returns a valid token of this key.
    pub fn token(&self) -> String {
        self.sign(json!({"alg": "ES256", "kid": self.id}), &json!({"sub": "alice", "exp": FAR}))
    }
}

pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({"keys": keys}).to_string()
}
