//! Reasons why a token is not accepted.

use std::fmt;

use mqtt::ReasonCode;

use super::algorithm::Algorithm;

/// Reason without any part of the token that could be secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The token has more bytes than allowed.
    TooLong {
        len: usize,
        max: usize,
    },
    /// The token is not three parts of base64url with JSON objects, or one member is invalid.
    Malformed(&'static str),
    /// The algorithm is unknown, such as `none`.
    AlgorithmUnknown,
    AlgorithmNotAllowed(Algorithm),
    /// No key has the token's `kid` and fits its algorithm.
    NoKey,
    /// The token has no `kid`, and more keys fit than are tried.
    KeyNotNamed,
    /// No key has signed the token.
    Signature,
    Expired {
        seconds: u64,
    },
    /// The time in `nbf` or `iat` is in the future.
    NotYet {
        claim: &'static str,
        seconds: u64,
    },
    ClaimMissing(Box<str>),
    ClaimWrong {
        claim: Box<str>,
        why: &'static str,
    },
    /// CONNECT has another user name than the token.
    OtherUser,
    /// CONNECT has another Client Identifier than the token.
    OtherClient,
    /// No keys are available: none were ever fetched, or too long ago.
    NoKeys,
    /// The token's `kid` is unknown, and a fetch of newer keys failed.
    NotFetched,
}

/// Kind of a refusal, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    Malformed,
    Algorithm,
    Key,
    Signature,
    Time,
    Claims,
    /// Not an error of the client.
    Unavailable,
}

impl Refusal {
    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::TooLong { .. } | Self::Malformed(_) => RefusalKind::Malformed,
            Self::AlgorithmUnknown | Self::AlgorithmNotAllowed(_) => RefusalKind::Algorithm,
            Self::NoKey | Self::KeyNotNamed => RefusalKind::Key,
            Self::Signature => RefusalKind::Signature,
            Self::Expired { .. } | Self::NotYet { .. } => RefusalKind::Time,
            Self::ClaimMissing(_) | Self::ClaimWrong { .. } | Self::OtherUser | Self::OtherClient => {
                RefusalKind::Claims
            }
            Self::NoKeys | Self::NotFetched => RefusalKind::Unavailable,
        }
    }

    /// Returns the Reason Code for CONNACK.
    pub fn reason(&self) -> ReasonCode {
        match self {
            Self::OtherUser | Self::OtherClient => ReasonCode::NotAuthorized,
            Self::NoKeys | Self::NotFetched => ReasonCode::ServerUnavailable,
            _ => ReasonCode::BadUserNameOrPassword,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { len, max } => {
                write!(f, "the token has {len} bytes, more than the maximum of {max}")
            }
            Self::Malformed(why) => write!(f, "the token is malformed: {why}"),
            Self::AlgorithmUnknown => f.write_str("the token's `alg` is not one that can be verified"),
            Self::AlgorithmNotAllowed(algorithm) => {
                write!(f, "the token's `alg` {} is not in jwt.algorithms", algorithm.name())
            }
            Self::NoKey => f.write_str("there is no key of the token's `kid` that fits its `alg`"),
            Self::KeyNotNamed => f.write_str("several keys fit the token, and it has no `kid`"),
            Self::Signature => f.write_str("the token's signature is wrong"),
            Self::Expired { seconds } => write!(f, "the token expired {seconds} s ago"),
            Self::NotYet { claim, seconds } => {
                write!(f, "the token's `{claim}` is {seconds} s in the future")
            }
            Self::ClaimMissing(claim) => write!(f, "the token has no claim `{claim}`"),
            Self::ClaimWrong { claim, why } => write!(f, "the token's claim `{claim}` {why}"),
            Self::OtherUser => f.write_str("CONNECT has another user name than the token"),
            Self::OtherClient => f.write_str("CONNECT has another Client Identifier than the token"),
            Self::NoKeys => {
                f.write_str("there are no keys: they could not be fetched, or the last fetch is too old")
            }
            Self::NotFetched => f.write_str(
                "the token's `kid` is not known, and the keys could not be fetched again just now",
            ),
        }
    }
}
