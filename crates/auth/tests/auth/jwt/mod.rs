//! JSON Web Tokens: accepted tokens, rejected attacks, and sources of keys.

mod guard;
mod jwks;
mod verify;
