//! Key of an issuer of tokens, and its verification.

use std::fmt;

use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RsaPublicKeyComponents, UnparsedPublicKey,
};

use super::algorithm::{Algorithm, KeyKind};

/// Allowed bits of an RSA modulus. Fewer are weak, and more cost milliseconds.
pub const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Key, and its permitted use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub id: Option<Box<str>>,
    /// The only permitted algorithm, if the key names one.
    pub algorithm: Option<Algorithm>,
    pub material: Material,
}

/// Key material.
#[derive(Clone, PartialEq, Eq)]
pub enum Material {
    Secret(Box<[u8]>),
    /// Big-endian, without leading zeros.
    Rsa {
        n: Box<[u8]>,
        e: Box<[u8]>,
    },
    /// Points as 0x04, x and y.
    P256([u8; 65]),
    P384(Box<[u8; 97]>),
    Ed25519([u8; 32]),
}

impl Key {
    /// Returns whether the key may verify this algorithm, by its kind, its length and its own restriction.
    pub fn fits(&self, algorithm: Algorithm) -> bool {
        let long_enough = match &self.material {
            Material::Secret(secret) => secret.len() >= algorithm.secret_len_min(),
            _ => true,
        };
        self.material.kind() == algorithm.key_kind()
            && self.algorithm.is_none_or(|only| only == algorithm)
            && long_enough
    }

    /// Returns whether the signature belongs to this message and this key. False for an algorithm that does not fit.
    pub fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.fits(algorithm) {
            return false;
        }
        let verified = match &self.material {
            Material::Secret(secret) => match algorithm.hmac() {
                Some(hmac) => hmac::verify(&hmac::Key::new(hmac, secret), message, signature),
                None => return false,
            },
            Material::Rsa { n, e } => match algorithm.rsa() {
                Some(rsa) => RsaPublicKeyComponents { n, e }.verify(rsa, message, signature),
                None => return false,
            },
            Material::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Material::P384(point) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, &**point).verify(message, signature)
            }
            Material::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}

impl Material {
    pub fn kind(&self) -> KeyKind {
        match self {
            Self::Secret(_) => KeyKind::Secret,
            Self::Rsa { .. } => KeyKind::Rsa,
            Self::P256(_) => KeyKind::P256,
            Self::P384(_) => KeyKind::P384,
            Self::Ed25519(_) => KeyKind::Ed25519,
        }
    }

    /// Builds an RSA key from big-endian numbers; leading zeros are removed.
    ///
    /// # Errors
    /// The modulus is outside [`RSA_BITS`], or the exponent is invalid.
    pub fn rsa(n: &[u8], e: &[u8]) -> Result<Self, &'static str> {
        let (n, e) = (number(n), number(e));
        let bits = n.first().map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize);
        if !RSA_BITS.contains(&bits) {
            return Err("an RSA key has to have 2048 to 8192 bits");
        }
        let exponent = e.iter().fold(0u64, |value, byte| (value << 8) | u64::from(*byte));
        if e.len() > 4 || exponent < 3 || exponent % 2 == 0 {
            return Err("an RSA key has an invalid exponent");
        }
        Ok(Self::Rsa { n: n.into(), e: e.into() })
    }

    /// Returns a key from an uncompressed point; `None` when the size is wrong. Verification checks that it lies on the
    /// curve.
    pub fn p256(point: &[u8]) -> Option<Self> {
        let point: [u8; 65] = point.try_into().ok()?;
        (point[0] == 4).then_some(Self::P256(point))
    }

    /// Returns a key like [`Material::p256`].
    pub fn p384(point: &[u8]) -> Option<Self> {
        let point: [u8; 97] = point.try_into().ok()?;
        (point[0] == 4).then(|| Self::P384(Box::new(point)))
    }
}

fn number(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

/// Shows only the kind, because one kind is a secret.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}
