//! A hashed password: Argon2, or PBKDF2 as mosquitto writes it.

use std::fmt;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64ct::{Base64, Base64Unpadded, Encoding};
use sha2::Sha512;

/// A hash as it stands in a password file: `$argon2id$v=19$m=..,t=..,p=..$salt$hash` or `$7$rounds$salt$hash`.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    text: Box<str>,
    kind: Kind,
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Argon2 { algorithm: Algorithm, version: Version, params: Params },
    Pbkdf2Sha512 { rounds: u32 },
}

/// Why a text is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    Unknown,
    TooCostly,
}

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

    /// # Errors
    /// [`HashError`] when the text is no such hash, or one that would cost more than [`MEMORY_MAX_KIB`] or
    /// [`ROUNDS_MAX`].
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let mut fields = text.split('$');
        if fields.next() != Some("") {
            return Err(HashError::Unknown);
        }
        let name = fields.next().ok_or(HashError::Unknown)?;
        let fields: Vec<&str> = fields.collect();
        let (kind, salt, hash) = match (name, fields.as_slice()) {
            ("7", [rounds, salt, hash]) => {
                let rounds = number(rounds)?;
                if rounds == 0 {
                    return Err(HashError::Unknown);
                }
                if rounds > ROUNDS_MAX {
                    return Err(HashError::TooCostly);
                }
                (Kind::Pbkdf2Sha512 { rounds }, Base64::decode_vec(salt), Base64::decode_vec(hash))
            }
            (_, [version, params, salt, hash]) => {
                let kind = argon2_kind(name, version, params)?;
                (kind, Base64Unpadded::decode_vec(salt), Base64Unpadded::decode_vec(hash))
            }
            _ => return Err(HashError::Unknown),
        };
        let (Ok(salt), Ok(hash)) = (salt, hash) else { return Err(HashError::Unknown) };
        // Shorter ones are refused by Argon2 and would be guessed in no time.
        if salt.len() < SALT_LEN_MIN || hash.len() < HASH_LEN_MIN || hash.len() > HASH_LEN_MAX {
            return Err(HashError::Unknown);
        }
        Ok(Self { text: text.into(), kind, salt: salt.into(), hash: hash.into() })
    }

    /// As it stands in a password file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether this is the hash of `password`. Takes 10-100 ms; the comparison takes as long for every wrong hash.
    pub fn verify(&self, password: &[u8], scratch: &mut Scratch) -> bool {
        equal_in_constant_time(&self.compute(password, scratch), &self.hash)
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
            Kind::Pbkdf2Sha512 { rounds } => {
                pbkdf2::pbkdf2_hmac::<Sha512>(password, &self.salt, *rounds, &mut out);
            }
        }
        out
    }
}

/// Only what kind it is: hashes do not belong into logs.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Argon2 { .. } => "PasswordHash(argon2)",
            Kind::Pbkdf2Sha512 { .. } => "PasswordHash(pbkdf2-sha512)",
        })
    }
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
    if memory > MEMORY_MAX_KIB || passes > PASSES_MAX || lanes > LANES_MAX {
        return Err(HashError::TooCostly);
    }
    let params = Params::new(memory, passes, lanes, None).map_err(|_| HashError::Unknown)?;
    Ok(Kind::Argon2 { algorithm, version, params })
}

/// Decimal digits only; `u32::from_str` would take a sign.
fn number(text: &str) -> Result<u32, HashError> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HashError::Unknown);
    }
    text.parse().map_err(|_| HashError::Unknown)
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
const SALT_LEN_MIN: usize = 8;
const HASH_LEN_MIN: usize = 16;
const HASH_LEN_MAX: usize = 128;
/// Most that one verification may take: the file is the operator's, but a slip of the pen must not stop the node.
const MEMORY_MAX_KIB: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;
const LANES_MAX: u32 = 64;
const ROUNDS_MAX: u32 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(text: &str, password: &str) -> bool {
        PasswordHash::parse(text).unwrap().verify(password.as_bytes(), &mut Scratch::default())
    }

    /// Little work, so that tests are quick.
    fn cheap(password: &str) -> PasswordHash {
        PasswordHash::argon2id(password.as_bytes(), b"0123456789abcdef", Params::new(64, 1, 1, None).unwrap())
    }

    /// Written by mosquitto_passwd 2.0.11.
    const WONDERLAND: &str = "$7$101$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcYnlJzEsUhmW2Z8M0Jf8z+bYGdowivmp+N4XDkl9XYOeLzGD/bulvak0iBt2Q==";

    #[test]
    fn passwords_of_mosquitto_are_verified() {
        assert!(verify(WONDERLAND, "wonderland"));
        assert!(!verify(WONDERLAND, "Wonderland"));
        assert!(!verify(WONDERLAND, ""));
    }

    /// The reference implementation's own example: `echo -n password | argon2 somesalt -t 2 -m 16 -p 1 -l 32 -id`.
    #[test]
    fn passwords_of_the_reference_argon2_are_verified() {
        let text = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert!(verify(text, "password"));
        assert!(!verify(text, "passwor"));
    }

    #[test]
    fn a_created_hash_is_salted_and_reads_back() {
        let (first, second) = (PasswordHash::create(b"pw").unwrap(), PasswordHash::create(b"pw").unwrap());
        assert_ne!(first.as_str(), second.as_str());
        assert!(first.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", first.as_str());
        let again = PasswordHash::parse(first.as_str()).unwrap();
        assert_eq!(again, first);
        assert!(again.verify(b"pw", &mut Scratch::default()));
        assert!(!again.verify(b"pW", &mut Scratch::default()));
    }

    #[test]
    fn scratch_memory_serves_hashes_of_different_sizes() {
        let mut scratch = Scratch::default();
        let large = PasswordHash::argon2id(b"b", b"01234567", Params::new(256, 2, 2, None).unwrap());
        for _ in 0..2 {
            assert!(cheap("a").verify(b"a", &mut scratch));
            assert!(large.verify(b"b", &mut scratch));
            assert!(!large.verify(b"a", &mut scratch));
        }
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        for text in [
            "",
            "$",
            "secret",
            "$1$x$y",
            "$7$101$short$x",
            "$7$0$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcY=",
            "$7$+5$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcY=",
            "$7$101$8rC3COp401qO7A/N$",
            "$argon2id$v=19$m=64,t=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
            "$argon2id$v=1$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
            "$argon2x$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
            "$argon2id$v=19$m=1,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg",
            "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEy",
            "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg$",
        ] {
            assert_eq!(PasswordHash::parse(text).err(), Some(HashError::Unknown), "{text}");
        }
    }

    #[test]
    fn a_hash_that_would_take_all_memory_is_refused() {
        let text = "$argon2id$v=19$m=4294967295,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg";
        assert_eq!(PasswordHash::parse(text).err(), Some(HashError::TooCostly));
        assert_eq!(PasswordHash::parse("$7$4294967295$QUFB$QUFB").err(), Some(HashError::TooCostly));
    }

    #[test]
    fn debug_shows_no_hash() {
        assert_eq!(format!("{:?}", PasswordHash::parse(WONDERLAND).unwrap()), "PasswordHash(pbkdf2-sha512)");
    }

    proptest::proptest! {
        #[test]
        fn equality_is_equality(a in "[ab]{0,3}", b in "[ab]{0,3}") {
            proptest::prop_assert_eq!(equal_in_constant_time(a.as_bytes(), b.as_bytes()), a == b);
        }

        #[test]
        fn no_text_panics(text in "(\\$(7|argon2id|v=19|m=8,t=1,p=1|[A-Za-z0-9+/=,]{0,12})){0,7}") {
            if let Ok(hash) = PasswordHash::parse(&text) {
                proptest::prop_assert_eq!(hash.as_str(), text);
            }
        }
    }
}
