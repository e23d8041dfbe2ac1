//! JSON Web Tokens: accepted tokens, rejected attacks, and sources of keys.

mod guard;
mod jwks;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tokens/mod.rs"]
mod tokens;
mod verify;
