//! TLS where no reactor runs: certificates and keys in PEM files, what a client trusts and shows, and what went wrong, with the fix.
//!
//! [`ClientTls`] is what the command lines of `meridian ctl`, `top`, `pub` and `sub` make; [`explain`] says what an error means to
//! whoever typed them; `pem` reads files for servers too, [`Expiry`] says when they end, and [`check_mutual`] whether others will take them. Listeners on reactors
//! read theirs in `edge`.
//!
//! **Invariant:** without a word that says so, nobody is talked to whose certificate was not checked.

#![forbid(unsafe_code)]

mod client;
mod error;
mod expiry;
mod explain;
mod own;
pub mod pem;

pub use client::{ClientTls, Trust, Versions};
pub use error::TlsError;
pub use expiry::{Expiry, ExpiryKind};
pub use explain::{explain, explain_io};
pub use own::{Age, check_mutual};
