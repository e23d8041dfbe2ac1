//! JSON Web Tokens: what is accepted, the attacks that are not, and where the keys come from.

mod guard;
mod jwks;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tokens/mod.rs"]
mod tokens;
mod verify;
