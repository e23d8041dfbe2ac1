//! Hashed passwords: Argon2, bcrypt, PBKDF2 in the forms of mosquitto and others, and the stored keys of SCRAM.

use std::fmt;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, Sha512};

mod parse;

/// Hash in the form of a password file: `$argon2id$v=19$m=..,t=..,p=..$salt$hash`, `$7$rounds$salt$hash`,
/// `$6$salt$hash`, `$pbkdf2-sha256$i=..$salt$hash`, `$2b$cost$..` or
/// `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    text: Box<str>,
    kind: Kind,
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Argon2 {
        algorithm: Algorithm,
        version: Version,
        params: Params,
    },
    Pbkdf2 {
        digest: Digest,
        rounds: u32,
    },
    /// One SHA-512 of password and salt, as mosquitto up to 1.6 wrote it.
    Sha512,
    Bcrypt {
        cost: u32,
    },
    /// SCRAM keys; `hash` is the StoredKey.
    Scram {
        iterations: u32,
        server_key: [u8; SCRAM_KEY_LEN],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digest {
    Sha256,
    Sha512,
}

/// Keys that a server needs for a SCRAM-SHA-256 exchange (RFC 5802, 3). They allow checking a password and acting as a
/// server, but not as a client.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    pub iterations: u32,
    pub salt: Box<[u8]>,
    pub stored_key: [u8; SCRAM_KEY_LEN],
    pub server_key: [u8; SCRAM_KEY_LEN],
}

/// Reason why a text is not a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    Unknown,
    TooCostly,
}

/// Reason why SCRAM keys of a password cannot be created.
#[derive(Debug)]
pub enum ScramError {
    /// SASLprep (RFC 4013) does not accept the text: it contains control characters, unassigned ones or mixed
    /// directions.
    Characters,
    /// The number is outside [`SCRAM_ITERATIONS_MIN`] to [`SCRAM_ITERATIONS_MAX`].
    Iterations,
    Random(getrandom::Error),
}

impl fmt::Display for ScramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Characters => f.write_str(
                "SCRAM does not accept passwords with control characters, unassigned ones, or scripts of both directions",
            ),
            Self::Iterations => {
                write!(f, "SCRAM iterations must be {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}")
            }
            Self::Random(error) => write!(f, "the system has no random bytes: {error}"),
        }
    }
}

impl std::error::Error for ScramError {}

/// Memory of Argon2, which a thread keeps from one password to the next.
#[derive(Default)]
pub struct Scratch(Vec<Block>);

impl PasswordHash {
    /// Hashes a new password with Argon2id (19 MiB, two passes: the OWASP recommendation for logins) and a random salt.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn create(password: &[u8]) -> Result<Self, getrandom::Error> {
        let mut salt = [0; SALT_LEN];
        getrandom::fill(&mut salt)?;
        Ok(Self::argon2id(password, &salt, Params::default()))
    }

    fn argon2id(password: &[u8], salt: &[u8], params: Params) -> Self {
        let text = format!(
            "$argon2id$v=19$m={},t={},p={}${}$",
            params.m_cost(),
            params.t_cost(),
            params.p_cost(),
            Base64Unpadded::encode_string(salt),
        );
        let mut hash = Self {
            text: text.into(),
            kind: Kind::Argon2 { algorithm: Algorithm::Argon2id, version: Version::V0x13, params },
            salt: salt.into(),
            hash: vec![0; HASH_LEN].into(),
        };
        hash.hash = hash.compute(password, &mut Scratch::default());
        hash.text = format!("{}{}", hash.text, Base64Unpadded::encode_string(&hash.hash)).into();
        hash
    }

    /// Creates the SCRAM-SHA-256 keys of a new password, with a random salt. The client computes the iterations at each
    /// login.
    ///
    /// # Errors
    /// [`ScramError`].
    pub fn create_scram(password: &str, iterations: u32) -> Result<Self, ScramError> {
        let mut salt = [0; SALT_LEN];
        getrandom::fill(&mut salt).map_err(ScramError::Random)?;
        Self::scram_with_salt(password, &salt, iterations)
    }

    fn scram_with_salt(password: &str, salt: &[u8], iterations: u32) -> Result<Self, ScramError> {
        if !(SCRAM_ITERATIONS_MIN..=SCRAM_ITERATIONS_MAX).contains(&iterations) {
            return Err(ScramError::Iterations);
        }
        let prepared = stringprep::saslprep(password).map_err(|_| ScramError::Characters)?;
        let (stored_key, server_key) = scram_keys(prepared.as_bytes(), salt, iterations);
        let text = format!(
            "SCRAM-SHA-256${iterations}:{}${}:{}",
            Base64::encode_string(salt),
            Base64::encode_string(&stored_key),
            Base64::encode_string(&server_key),
        );
        let kind = Kind::Scram { iterations, server_key };
        Ok(Self { text: text.into(), kind, salt: salt.into(), hash: stored_key.into() })
    }

    /// Returns the keys for a SCRAM-SHA-256 exchange; `None` for hashes of other kinds.
    pub fn scram(&self) -> Option<ScramKeys> {
        let Kind::Scram { iterations, server_key } = self.kind else { return None };
        let mut stored_key = [0; SCRAM_KEY_LEN];
        stored_key.copy_from_slice(&self.hash);
        Some(ScramKeys { iterations, salt: self.salt.clone(), stored_key, server_key })
    }

    /// Returns the cost parameters. Hashes with equal parameters take equally long.
    pub(crate) fn cost(&self) -> (u8, u32, u32, u32) {
        match &self.kind {
            Kind::Argon2 { params, .. } => (0, params.m_cost(), params.t_cost(), params.p_cost()),
            Kind::Pbkdf2 { digest: Digest::Sha256, rounds } => (1, *rounds, 0, 0),
            Kind::Pbkdf2 { digest: Digest::Sha512, rounds } => (2, *rounds, 0, 0),
            Kind::Bcrypt { cost } => (3, *cost, 0, 0),
            Kind::Sha512 => (5, 0, 0, 0),
            Kind::Scram { iterations, .. } => (4, *iterations, 0, 0),
        }
    }

    /// Returns whether guessing is so cheap that a stolen file reveals its weak passwords.
    pub fn is_weak(&self) -> bool {
        self.kind == Kind::Sha512
    }

    /// Returns the form of a password file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether this is the hash of `password`. Takes 10-100 ms. The comparison takes the same time for every
    /// wrong hash.
    pub fn verify(&self, password: &[u8], scratch: &mut Scratch) -> bool {
        equal_in_constant_time(&self.compute(password, scratch), &self.hash)
    }

    /// Calls [`Self::verify`] with memory that the calling thread keeps.
    pub fn matches(&self, password: &[u8]) -> bool {
        thread_local!(static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::default());
        SCRATCH.with_borrow_mut(|scratch| self.verify(password, scratch))
    }

    fn compute(&self, password: &[u8], scratch: &mut Scratch) -> Box<[u8]> {
        let mut out = vec![0; self.hash.len()].into_boxed_slice();
        match &self.kind {
            Kind::Argon2 { algorithm, version, params } => {
                let blocks = params.block_count();
                if scratch.0.len() < blocks {
                    scratch.0.resize(blocks, Block::default());
                }
                let argon2 = Argon2::new(*algorithm, *version, params.clone());
                let memory = &mut scratch.0[..blocks];
                if argon2.hash_password_into_with_memory(password, &self.salt, &mut out, memory).is_err() {
                    // Only a password longer than 4 GiB gets here, because `parse` has checked the rest. An empty
                    // result equals no hash.
                    return Box::default();
                }
            }
            Kind::Pbkdf2 { digest: Digest::Sha256, rounds } => {
                pbkdf2::pbkdf2_hmac::<Sha256>(password, &self.salt, *rounds, &mut out);
            }
            Kind::Pbkdf2 { digest: Digest::Sha512, rounds } => {
                pbkdf2::pbkdf2_hmac::<Sha512>(password, &self.salt, *rounds, &mut out);
            }
            Kind::Sha512 => {
                let digest = Sha512::new().chain_update(password).chain_update(&self.salt).finalize();
                return digest.as_slice().into();
            }
            Kind::Bcrypt { cost } => return bcrypt_hash(password, &self.salt, *cost),
            Kind::Scram { iterations, .. } => {
                // No keys exist for a text that SASLprep refuses.
                let prepared =
                    std::str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok());
                let Some(prepared) = prepared else { return Box::default() };
                return scram_keys(prepared.as_bytes(), &self.salt, *iterations).0.into();
            }
        }
        out
    }
}

impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramKeys")
    }
}

/// Shows only the kind: hashes do not belong in logs.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Argon2 { .. } => "PasswordHash(argon2)",
            Kind::Pbkdf2 { digest: Digest::Sha256, .. } => "PasswordHash(pbkdf2-sha256)",
            Kind::Pbkdf2 { digest: Digest::Sha512, .. } => "PasswordHash(pbkdf2-sha512)",
            Kind::Sha512 => "PasswordHash(sha512)",
            Kind::Bcrypt { .. } => "PasswordHash(bcrypt)",
            Kind::Scram { .. } => "PasswordHash(scram-sha-256)",
        })
    }
}

/// Returns the 23 bytes of bcrypt. Like every implementation, it reads at most 72 bytes, so longer passwords that were
/// hashed elsewhere are still valid.
fn bcrypt_hash(password: &[u8], salt: &[u8], cost: u32) -> Box<[u8]> {
    let Ok(salt) = salt.try_into() else { return Box::default() };
    // The key is repeated with its final 0, so a 0 in the middle would make several passwords equal.
    if password.contains(&0) {
        return Box::default();
    }
    let key: Vec<u8> = password.iter().copied().chain([0]).take(BCRYPT_KEY_MAX).collect();
    bcrypt::bcrypt(cost, salt, &key)[..BCRYPT_HASH_LEN].into()
}

/// Returns StoredKey and ServerKey (RFC 5802, 3).
fn scram_keys(password: &[u8], salt: &[u8], iterations: u32) -> ([u8; SCRAM_KEY_LEN], [u8; SCRAM_KEY_LEN]) {
    let mut salted = [0; SCRAM_KEY_LEN];
    pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted);
    let client_key = hmac_sha256(&salted, &[b"Client Key"]);
    (Sha256::digest(client_key).into(), hmac_sha256(&salted, &[b"Server Key"]))
}

/// Returns SCRAM keys for a user that does not exist. They are constant for a key and a name, of one of these kinds
/// (iterations, length of the salt), and never valid. `None` when there is no kind.
pub fn decoy_scram_keys(key: &[u8], kinds: &[(u32, usize)], user: &str) -> Option<ScramKeys> {
    let part = |name: &[u8]| hmac_sha256(key, &[name, b"\0", user.as_bytes()]);
    let kind = part(b"kind").first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let at = kind.checked_rem(kinds.len() as u64)?;
    let (iterations, salt_len) = *kinds.get(at as usize)?;
    // No salt is longer than two of these.
    let salt: Vec<u8> = [part(b"salt"), part(b"more salt")].concat();
    let salt = salt[..salt_len.min(salt.len())].into();
    Some(ScramKeys { iterations, salt, stored_key: part(b"stored key"), server_key: part(b"server key") })
}

/// Returns the HMAC-SHA-256 over these parts, one after the other.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; SCRAM_KEY_LEN] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Compares two hashes. The time does not reveal where two hashes of the same length differ.
pub fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    difference == 0
}

const SALT_LEN: usize = 16;
const HASH_LEN: usize = 32;
/// Size in bytes of SHA-256, and of both keys of SCRAM-SHA-256.
pub const SCRAM_KEY_LEN: usize = 32;
/// Minimum of RFC 7677, 4. With fewer iterations, a stolen password file is too easy to guess from.
pub const SCRAM_ITERATIONS_MIN: u32 = 4096;
pub const SCRAM_ITERATIONS_MAX: u32 = 5_000_000;
/// Default iterations: a tenth of a second on a small device, which computes them at each login.
pub const SCRAM_ITERATIONS: u32 = 16_384;
const BCRYPT_HASH_LEN: usize = 23;
const BCRYPT_KEY_MAX: usize = 72;

#[cfg(test)]
mod tests;
