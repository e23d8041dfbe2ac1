//! Access control from the outside: a node without sockets, HTTP services on loopback, and sources of tokens.

mod attacks;
mod http;
mod jwt;
mod scram;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tokens/mod.rs"]
mod tokens;
