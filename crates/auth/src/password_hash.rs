//! A hashed password: Argon2, bcrypt, PBKDF2 as mosquitto and others write it, and what SCRAM keeps of one.

use std::fmt;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, Sha512};

mod parse;

/// A hash as it stands in a password file: `$argon2id$v=19$m=..,t=..,p=..$salt$hash`, `$7$rounds$salt$hash`, `$6$salt$hash`,
/// `$pbkdf2-sha256$i=..$salt$hash`, `$2b$cost$..` or `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`.
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
    /// One SHA-512 of password and salt, as mosquitto wrote it up to 1.6.
    Sha512,
    Bcrypt {
        cost: u32,
    },
    /// `hash` is the StoredKey.
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

/// What a SCRAM-SHA-256 exchange needs to know of a password (RFC 5802, 3). With it a password can be checked, and a
/// server be played, but no client.
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    pub iterations: u32,
    pub salt: Box<[u8]>,
    pub stored_key: [u8; SCRAM_KEY_LEN],
    pub server_key: [u8; SCRAM_KEY_LEN],
}

/// Why a text is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    Unknown,
    TooCostly,
}

/// Why what SCRAM keeps of a password cannot be made.
#[derive(Debug)]
pub enum ScramError {
    /// SASLprep (RFC 4013) takes no such text: it has control characters, unassigned ones or mixed directions.
    Characters,
    /// Outside [`SCRAM_ITERATIONS_MIN`] to [`SCRAM_ITERATIONS_MAX`].
    Iterations,
    Random(getrandom::Error),
}

impl fmt::Display for ScramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Characters => f.write_str(
                "SCRAM takes no password with control characters, unassigned ones, or scripts of both directions",
            ),
            Self::Iterations => {
                write!(f, "SCRAM iterations are {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}")
            }
            Self::Random(error) => write!(f, "the system has no random bytes: {error}"),
        }
    }
}

impl std::error::Error for ScramError {}

/// Memory that Argon2 works in, kept by a thread from one password to the next.
#[derive(Default)]
pub struct Scratch(Vec<Block>);

impl PasswordHash {
    /// Hashes a new password with Argon2id (19 MiB, two passes: OWASP's choice for logins) and a random salt.
    ///
    /// # Errors
    /// When the system has no random bytes.
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

    /// What SCRAM-SHA-256 keeps of a new password, with a random salt. The client does the iterations at each login.
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

    /// What a SCRAM-SHA-256 exchange needs; `None` for hashes of other kinds.
    pub fn scram(&self) -> Option<ScramKeys> {
        let Kind::Scram { iterations, server_key } = self.kind else { return None };
        let mut stored_key = [0; SCRAM_KEY_LEN];
        stored_key.copy_from_slice(&self.hash);
        Some(ScramKeys { iterations, salt: self.salt.clone(), stored_key, server_key })
    }

    /// What it takes to compute: hashes that have this in common take as long as each other.
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

    /// Whether guessing takes next to no work, so that a stolen file is as good as its weak passwords.
    pub fn is_weak(&self) -> bool {
        self.kind == Kind::Sha512
    }

    /// As it stands in a password file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether this is the hash of `password`. Takes 10-100 ms; the comparison takes as long for every wrong hash.
    pub fn verify(&self, password: &[u8], scratch: &mut Scratch) -> bool {
        equal_in_constant_time(&self.compute(password, scratch), &self.hash)
    }

    /// [`Self::verify`] in memory that the calling thread keeps for the next one.
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
                    // Only a password longer than 4 GiB gets here, as the rest was checked by `parse`. An empty
                    // answer is equal to no hash.
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
                // A text that SASLprep refuses was never made a key of.
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

/// Only what kind it is: hashes do not belong into logs.
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

/// bcrypt's 23 bytes. It reads no further than 72 bytes, as every implementation does, so that longer passwords
/// hashed elsewhere are still right.
fn bcrypt_hash(password: &[u8], salt: &[u8], cost: u32) -> Box<[u8]> {
    let Ok(salt) = salt.try_into() else { return Box::default() };
    // The key is repeated with its final 0, so that one in the middle would make several passwords the same.
    if password.contains(&0) {
        return Box::default();
    }
    let key: Vec<u8> = password.iter().copied().chain([0]).take(BCRYPT_KEY_MAX).collect();
    bcrypt::bcrypt(cost, salt, &key)[..BCRYPT_HASH_LEN].into()
}

/// StoredKey and ServerKey (RFC 5802, 3).
fn scram_keys(password: &[u8], salt: &[u8], iterations: u32) -> ([u8; SCRAM_KEY_LEN], [u8; SCRAM_KEY_LEN]) {
    let mut salted = [0; SCRAM_KEY_LEN];
    pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted);
    let client_key = hmac_sha256(&salted, &[b"Client Key"]);
    (Sha256::digest(client_key).into(), hmac_sha256(&salted, &[b"Server Key"]))
}

/// SCRAM keys for a user that there is not: always the same for a key and a name, of one of these kinds (iterations, length of the salt),
/// and good for nothing. `None` when there is no kind.
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

/// HMAC-SHA-256 over these parts, one after the other.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; SCRAM_KEY_LEN] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// How long it takes tells nothing about where two hashes of one length differ.
pub fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    difference == 0
}

const SALT_LEN: usize = 16;
const HASH_LEN: usize = 32;
/// Bytes of SHA-256, and so of both keys of SCRAM-SHA-256.
pub const SCRAM_KEY_LEN: usize = 32;
/// RFC 7677, 4: fewer make a stolen password file too easy to guess from.
pub const SCRAM_ITERATIONS_MIN: u32 = 4096;
pub const SCRAM_ITERATIONS_MAX: u32 = 5_000_000;
/// A tenth of a second on a small device, which does the work at each login.
pub const SCRAM_ITERATIONS: u32 = 16_384;
const BCRYPT_HASH_LEN: usize = 23;
const BCRYPT_KEY_MAX: usize = 72;

#[cfg(test)]
mod tests;
