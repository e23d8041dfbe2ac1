//! JSON Web Tokens (RFC 7519) in place of passwords: keys, verification, and the claims about a client.
//!
//! Read [`JwtLink`] first: it is the link of the authentication chain. A token is accepted only when a configured key
//! has signed it with an allowed algorithm. A token cannot bring its own key or the address of one, and none of its
//! contents is trusted before verification. A separate thread keeps the keys of a JWK Set up to date, from a URL or a
//! file ([`jwks`]); reactors never fetch them.

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
