//! TLS outside the reactors: certificates and keys in PEM files, TLS settings of clients, and explanations of TLS
//! errors.
//!
//! [`ClientTls`] holds the TLS options of `meridian ctl`, `top`, `pub` and `sub`, and [`TlsFiles`] those of bridges,
//! links and connectors. [`explain`] turns a TLS error into advice, which names the options in their [`OptionStyle`].
//! `pem` reads certificate files, also for servers. [`Expiry`] says when they expire, and [`check_mutual`] checks that
//! other nodes accept a certificate. The listeners of reactors read theirs in `edge`.
//!
//! **Invariant:** certificates of servers are always verified, unless an option explicitly disables that.

#![forbid(unsafe_code)]

mod client;
mod error;
mod expiry;
mod explain;
mod options;
mod own;
pub mod pem;

pub use client::{ClientTls, Trust, Versions};
pub use error::TlsError;
pub use expiry::{Expiry, ExpiryKind};
pub use explain::{explain, explain_io, is_record};
pub use options::{OptionStyle, TlsFiles};
pub use own::{Age, check_mutual};
