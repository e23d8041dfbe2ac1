//! Signature algorithms of tokens (RFC 7518, RFC 8037).

use ring::hmac;
use ring::signature::{self, RsaParameters};

/// Algorithm, as `alg` in a token names it. `none` is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

/// Kind of key that an algorithm needs. A key of one kind never serves another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Secret,
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Algorithm {
    pub const ALL: [(&'static str, Self); 12] = [
        ("HS256", Self::Hs256),
        ("HS384", Self::Hs384),
        ("HS512", Self::Hs512),
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];

    /// Parses a name. Names are case-sensitive.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find_map(|(known, algorithm)| (known == name).then_some(algorithm))
    }

    pub fn name(self) -> &'static str {
        let (name, _) = Self::ALL.into_iter().find(|(_, algorithm)| *algorithm == self).expect("ALL has all");
        name
    }

    pub fn key_kind(self) -> KeyKind {
        match self {
            Self::Hs256 | Self::Hs384 | Self::Hs512 => KeyKind::Secret,
            Self::Rs256 | Self::Rs384 | Self::Rs512 | Self::Ps256 | Self::Ps384 | Self::Ps512 => KeyKind::Rsa,
            Self::Es256 => KeyKind::P256,
            Self::Es384 => KeyKind::P384,
            Self::EdDsa => KeyKind::Ed25519,
        }
    }

    /// Returns the HMAC algorithm. A secret must be at least as long as its output (RFC 7518, 3.2).
    pub fn hmac(self) -> Option<hmac::Algorithm> {
        match self {
            Self::Hs256 => Some(hmac::HMAC_SHA256),
            Self::Hs384 => Some(hmac::HMAC_SHA384),
            Self::Hs512 => Some(hmac::HMAC_SHA512),
            _ => None,
        }
    }

    /// Returns the minimum size of a secret in bytes; 0 for public keys.
    pub fn secret_len_min(self) -> usize {
        self.hmac().map_or(0, |hmac| hmac.digest_algorithm().output_len())
    }

    pub fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Self::Rs256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
            _ => None,
        }
    }
}
