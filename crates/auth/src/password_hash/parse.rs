//! Parser of stored hashes. It checks the cost of a verification before anything is allocated or computed.

use argon2::{Algorithm, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};

use super::{
    BCRYPT_HASH_LEN, Digest, HashError, Kind, PasswordHash, SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN,
    SCRAM_KEY_LEN,
};

type Bytes = Vec<u8>;

impl PasswordHash {
    /// # Errors
    /// [`HashError`] when the text is not a hash, or one that would take more than 1 GiB or some seconds
    /// ([`MEMORY_MAX_KIB`], [`MEMORY_PASSES_MAX_KIB`], [`ROUNDS_MAX`], [`BCRYPT_COST_MAX`]).
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let fields: Vec<&str> = text.split('$').collect();
        let (kind, salt, hash) = match fields.as_slice() {
            ["SCRAM-SHA-256", salting, keys] => scram(salting, keys)?,
            ["", "7", rounds, salt, hash] => {
                let (salt, hash) = (Base64::decode_vec(salt), Base64::decode_vec(hash));
                pbkdf2(Digest::Sha512, number(rounds)?, salt.ok(), hash.ok())?
            }
            ["", "6", salt, hash] => sha512(salt, hash)?,
            ["", "pbkdf2-sha256", params, salt, hash] => phc_pbkdf2(Digest::Sha256, params, salt, hash)?,
            ["", "pbkdf2-sha512", params, salt, hash] => phc_pbkdf2(Digest::Sha512, params, salt, hash)?,
            // The password of a `2x` hash is ambiguous, because of a bug in one implementation.
            ["", "2a" | "2b" | "2y", cost, rest] => bcrypt(cost, rest)?,
            ["", name, version, params, salt, hash] => {
                let kind = argon2_kind(name, version, params)?;
                (kind, phc_bytes(salt)?, phc_bytes(hash)?)
            }
            _ => return Err(HashError::Unknown),
        };
        // Argon2 refuses shorter ones, and they would be guessed at once.
        if salt.len() < SALT_LEN_MIN || hash.len() < HASH_LEN_MIN || hash.len() > HASH_LEN_MAX {
            return Err(HashError::Unknown);
        }
        Ok(Self { text: text.into(), kind, salt: salt.into(), hash: hash.into() })
    }
}

/// Parses mosquitto's `$6$`. That of crypt(3) has another alphabet and no padding.
fn sha512(salt: &str, hash: &str) -> Result<(Kind, Bytes, Bytes), HashError> {
    let decode = |text| Base64::decode_vec(text).map_err(|_| HashError::Unknown);
    let (salt, hash) = (decode(salt)?, decode(hash)?);
    if hash.len() != SHA512_LEN {
        return Err(HashError::Unknown);
    }
    Ok((Kind::Sha512, salt, hash))
}

fn phc_pbkdf2(
    digest: Digest,
    params: &str,
    salt: &str,
    hash: &str,
) -> Result<(Kind, Bytes, Bytes), HashError> {
    // Passlib writes the bare number, and `.` for `+`.
    let (mut rounds, mut length) = (None, None);
    if params.contains('=') {
        for pair in params.split(',') {
            match pair.split_once('=').ok_or(HashError::Unknown)? {
                ("i", value) if rounds.is_none() => rounds = Some(number(value)?),
                ("l", value) if length.is_none() => length = Some(number(value)?),
                _ => return Err(HashError::Unknown),
            }
        }
    } else {
        rounds = Some(number(params)?);
    }
    let (salt, hash) = (phc_bytes(&salt.replace('.', "+"))?, phc_bytes(&hash.replace('.', "+"))?);
    if length.is_some_and(|length| length as usize != hash.len()) {
        return Err(HashError::Unknown);
    }
    pbkdf2(digest, rounds.ok_or(HashError::Unknown)?, Some(salt), Some(hash))
}

fn pbkdf2(
    digest: Digest,
    rounds: u32,
    salt: Option<Bytes>,
    hash: Option<Bytes>,
) -> Result<(Kind, Bytes, Bytes), HashError> {
    let (Some(salt), Some(hash)) = (salt, hash) else { return Err(HashError::Unknown) };
    if rounds == 0 {
        return Err(HashError::Unknown);
    }
    let digest_len = match digest {
        Digest::Sha256 => 32,
        Digest::Sha512 => 64,
    };
    // Each block of the result takes all rounds.
    if u64::from(rounds) * hash.len().div_ceil(digest_len) as u64 > u64::from(ROUNDS_MAX) {
        return Err(HashError::TooCostly);
    }
    Ok((Kind::Pbkdf2 { digest, rounds }, salt, hash))
}

fn bcrypt(cost: &str, rest: &str) -> Result<(Kind, Bytes, Bytes), HashError> {
    if cost.len() != 2 || rest.len() != BCRYPT_SALT_CHARS + BCRYPT_HASH_CHARS || !rest.is_ascii() {
        return Err(HashError::Unknown);
    }
    let cost = number(cost)?;
    if !(BCRYPT_COST_MIN..=31).contains(&cost) {
        return Err(HashError::Unknown);
    }
    if cost > BCRYPT_COST_MAX {
        return Err(HashError::TooCostly);
    }
    let (salt, hash) = rest.split_at(BCRYPT_SALT_CHARS);
    let (salt, hash) = (bcrypt_base64(salt)?, bcrypt_base64(hash)?);
    debug_assert_eq!((salt.len(), hash.len()), (16, BCRYPT_HASH_LEN));
    Ok((Kind::Bcrypt { cost }, salt, hash))
}

/// Decodes bcrypt's own alphabet. The unused bits at the end need not be 0, because some programs let the caller choose
/// the salt as text.
fn bcrypt_base64(text: &str) -> Result<Bytes, HashError> {
    let (mut out, mut bits, mut have) = (Vec::with_capacity(text.len() * 3 / 4), 0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'.' => 0,
            b'/' => 1,
            b'A'..=b'Z' => byte - b'A' + 2,
            b'a'..=b'z' => byte - b'a' + 28,
            b'0'..=b'9' => byte - b'0' + 54,
            _ => return Err(HashError::Unknown),
        };
        (bits, have) = (bits << 6 | u32::from(value), have + 6);
        if have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
            bits &= (1 << have) - 1;
        }
    }
    Ok(out)
}

/// Parses SCRAM keys, in the form that PostgreSQL uses too.
fn scram(salting: &str, keys: &str) -> Result<(Kind, Bytes, Bytes), HashError> {
    let (iterations, salt) = salting.split_once(':').ok_or(HashError::Unknown)?;
    let (stored_key, server_key) = keys.split_once(':').ok_or(HashError::Unknown)?;
    let bytes = |text| Base64::decode_vec(text).map_err(|_| HashError::Unknown);
    let iterations = number(iterations)?;
    if iterations < SCRAM_ITERATIONS_MIN {
        return Err(HashError::Unknown);
    }
    if iterations > SCRAM_ITERATIONS_MAX {
        return Err(HashError::TooCostly);
    }
    let (salt, stored_key) = (bytes(salt)?, bytes(stored_key)?);
    let server_key = bytes(server_key)?.try_into().map_err(|_| HashError::Unknown)?;
    if stored_key.len() != SCRAM_KEY_LEN || salt.len() > SCRAM_SALT_LEN_MAX {
        return Err(HashError::Unknown);
    }
    Ok((Kind::Scram { iterations, server_key }, salt, stored_key))
}

fn phc_bytes(text: &str) -> Result<Bytes, HashError> {
    Base64Unpadded::decode_vec(text).map_err(|_| HashError::Unknown)
}

fn argon2_kind(name: &str, version: &str, params: &str) -> Result<Kind, HashError> {
    let algorithm = match name {
        "argon2id" => Algorithm::Argon2id,
        "argon2i" => Algorithm::Argon2i,
        "argon2d" => Algorithm::Argon2d,
        _ => return Err(HashError::Unknown),
    };
    let version = match version {
        "v=19" => Version::V0x13,
        "v=16" => Version::V0x10,
        _ => return Err(HashError::Unknown),
    };
    let mut values = [None; 3];
    for pair in params.split(',') {
        let (name, value) = pair.split_once('=').ok_or(HashError::Unknown)?;
        let at = ["m", "t", "p"].iter().position(|known| *known == name).ok_or(HashError::Unknown)?;
        values[at] = Some(number(value)?);
    }
    let [Some(memory), Some(passes), Some(lanes)] = values else { return Err(HashError::Unknown) };
    if memory > MEMORY_MAX_KIB
        || u64::from(memory) * u64::from(passes) > MEMORY_PASSES_MAX_KIB
        || lanes > LANES_MAX
    {
        return Err(HashError::TooCostly);
    }
    let params = Params::new(memory, passes, lanes, None).map_err(|_| HashError::Unknown)?;
    Ok(Kind::Argon2 { algorithm, version, params })
}

/// Parses decimal digits only; `u32::from_str` would accept a sign.
fn number(text: &str) -> Result<u32, HashError> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HashError::Unknown);
    }
    text.parse().map_err(|_| HashError::Unknown)
}

const SALT_LEN_MIN: usize = 8;
const SHA512_LEN: usize = 64;
const HASH_LEN_MIN: usize = 16;
const HASH_LEN_MAX: usize = 128;
const SCRAM_SALT_LEN_MAX: usize = 64;
const BCRYPT_SALT_CHARS: usize = 22;
const BCRYPT_HASH_CHARS: usize = 31;
const BCRYPT_COST_MIN: u32 = 4;
/// Maximum cost of one verification. The file comes from the operator, but a mistake in it must not stop the node. Each
/// limit is a few seconds; hashes in use take a tenth of one.
const MEMORY_MAX_KIB: u32 = 1 << 20;
const MEMORY_PASSES_MAX_KIB: u64 = 4 << 20;
const LANES_MAX: u32 = 64;
const ROUNDS_MAX: u32 = 5_000_000;
const BCRYPT_COST_MAX: u32 = 16;

const _: () = assert!(SCRAM_ITERATIONS_MAX <= ROUNDS_MAX);
