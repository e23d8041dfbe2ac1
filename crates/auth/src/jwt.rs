//! JSON Web Tokens (RFC 7519) in place of passwords: keys, verification, and the claims about a client.
//!
//! [`JwtLink`] is the link of the chain; read it first. A token is accepted only when a configured key has signed it
//! with an allowed algorithm. A token cannot name a key elsewhere, and none of its contents is trusted before
//! verification. A separate thread maintains keys from a URL or a JWK Set ([`jwks`]); reactors never fetch them.

mod algorithm;
mod claims;
mod der;
mod error;
mod fetch;
mod jwk;
mod jwks;
mod key;
mod keyring;
mod link;
mod mechanism;
mod refusal;
mod settings;
mod token;

pub use error::JwtError;
pub use jwks::JwksFigures;
pub use link::{JwtChange, JwtFigures, JwtLink};
pub use settings::{Jwt, SecretEncoding, TokenField};
