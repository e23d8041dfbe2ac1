//! TLS and WebSocket for users: `ctl` over HTTPS, `pub` and `sub` over every transport, wrong certificates, renewed
//! ones.

mod authority;
mod bench;
mod checked;
mod clients;
mod exposed;
mod links;
mod logged;
mod node;
mod operators;
mod watched;
