//! HTTP services that decide who may connect and what clients may do.
//!
//! [`HttpLink`] is the link `http` of the authentication chain, and [`HttpAcl`] a source of authorisation. Both send
//! their questions through a `Service`. It builds requests from templates (`template`), sends them with a client that
//! keeps connections (`client`), and has a circuit breaker (`breaker`). Answers are cached for a while, and equal
//! questions are asked once (`answers`).
//!
//! **Invariant:** the name of a client never changes where a request goes, nor how its parts are separated.
//! **Invariant:** an answer that is not clear is no permission.

mod acl;
mod answers;
mod breaker;
mod client;
mod figures;
mod link;
mod question;
mod reply;
mod service;
mod services;
mod template;

pub mod settings;

pub use acl::{AclChange, HttpAcl};
pub use breaker::Circuit;
pub use figures::{ServiceFailures, ServiceFigures};
pub use link::{HttpLink, LinkChange};
pub use service::ServiceError;
pub use services::{HttpServices, ServicesChange};
