//! JWK Set (RFC 7517): the public keys of an issuer.

use base64ct::{Base64UrlUnpadded, Encoding};
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::key::{Key, Material};
use crate::json;

/// Maximum size of the document in bytes.
pub const JWKS_MAX: usize = 256 << 10;
/// Maximum number of keys in a set, including those that cannot be used.
pub const KEYS_MAX: usize = 64;

/// Content of a document.
#[derive(Debug, PartialEq, Eq)]
pub struct JwkSet {
    pub keys: Vec<Key>,
    /// Number of skipped keys: those for other purposes or of other kinds, which RFC 7517 (5) says to ignore.
    pub skipped: usize,
}

/// Reason why a document is not a set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwkSetError {
    TooLarge,
    NotJson,
    /// The document has no array `keys` of objects.
    NoKeys,
    TooMany,
}

impl JwkSet {
    /// Parses a set. A key that cannot be used is skipped: an issuer may add kinds that are unknown here.
    ///
    /// # Errors
    /// [`JwkSetError`]: the document as a whole is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, JwkSetError> {
        if bytes.len() > JWKS_MAX {
            return Err(JwkSetError::TooLarge);
        }
        let document = json::object(bytes).map_err(|_| JwkSetError::NotJson)?;
        let Some(Value::Array(all)) = document.get("keys") else { return Err(JwkSetError::NoKeys) };
        if all.len() > KEYS_MAX {
            return Err(JwkSetError::TooMany);
        }
        let mut set = Self { keys: Vec::new(), skipped: 0 };
        for jwk in all {
            let Value::Object(jwk) = jwk else { return Err(JwkSetError::NoKeys) };
            match key(jwk) {
                Some(key) => set.keys.push(key),
                None => set.skipped += 1,
            }
        }
        Ok(set)
    }
}

/// Returns the key; `None` when it is not for signatures, of an unknown kind, or incomplete.
fn key(jwk: &Map<String, Value>) -> Option<Key> {
    let id = match jwk.get("kid") {
        None => None,
        Some(Value::String(id)) => Some(id.as_str().into()),
        Some(_) => return None,
    };
    let signs = jwk.get("use").is_none_or(|usage| usage == "sig");
    let verifies = match jwk.get("key_ops") {
        None => true,
        Some(Value::Array(operations)) => operations.iter().any(|operation| operation == "verify"),
        Some(_) => false,
    };
    if !signs || !verifies {
        return None;
    }
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| Base64UrlUnpadded::decode_vec(text(name)?).ok();
    let material = match (text("kty")?, text("crv")) {
        ("RSA", _) => Material::rsa(&bytes("n")?, &bytes("e")?).ok()?,
        ("EC", Some("P-256")) => Material::p256(&point(&bytes("x")?, &bytes("y")?)?)?,
        ("EC", Some("P-384")) => Material::p384(&point(&bytes("x")?, &bytes("y")?)?)?,
        ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x")?.try_into().ok()?),
        // `oct` is a secret, which does not belong in a document of public keys.
        _ => return None,
    };
    let algorithm = match jwk.get("alg") {
        None => None,
        Some(Value::String(name)) => {
            let name = if name == "Ed25519" { "EdDSA" } else { name }; // RFC 9864 renamed it.
            Some(Algorithm::parse(name).filter(|algorithm| algorithm.key_kind() == material.kind())?)
        }
        Some(_) => return None,
    };
    Some(Key { id, algorithm, material })
}

/// Returns a point from both coordinates in full length (RFC 7518, 6.2.1.2).
fn point(x: &[u8], y: &[u8]) -> Option<Vec<u8>> {
    (x.len() == y.len()).then(|| [&[4], x, y].concat())
}

impl std::fmt::Display for JwkSetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge => write!(f, "it is larger than {JWKS_MAX} bytes"),
            Self::NotJson => f.write_str("it is not a JSON object, or has a member twice"),
            Self::NoKeys => f.write_str("it has no array `keys` of objects (RFC 7517)"),
            Self::TooMany => write!(f, "it has more than {KEYS_MAX} keys"),
        }
    }
}
