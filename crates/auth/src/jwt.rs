//! JSON Web Tokens (RFC 7519) in place of passwords: keys, verification, and what claims say of a client.
//!
//! [`JwtLink`] is the link of the chain; read it first. A token counts only when a key of the configuration signed it with an
//! algorithm that the configuration allows: nothing in a token chooses a key outside, and nothing in it is believed before that.
//! Keys behind a URL or in a JWK Set are kept by a thread of their own ([`jwks`]), never fetched on a reactor.

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
