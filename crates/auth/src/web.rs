//! HTTP services that say who may connect and what clients may do.
//!
//! [`HttpLink`] is the link `http` of the authentication chain, [`HttpAcl`] a source of authorisation. Both put their questions
//! through a `Service`: a request made from templates (`template`), sent by one client with kept connections (`client`), behind a
//! circuit breaker (`breaker`). Answers are kept for a while, and equal questions are asked once (`answers`).
//!
//! **Invariant:** what a client is called never changes where a request goes, nor how its parts are told apart.
//! **Invariant:** whatever is not a clear answer is no permission.

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
