//! Links between clusters: interest, tokens, settings, and the engine that runs them.
//!
//! Each cluster takes what its clients want from the other one. [`Engine`] runs a `bridges::Runner` for each link and
//! each cluster of origin where the shard of its session is led, and tells it the [`Interest`] of the clients. An
//! [`Acceptor`] admits the other clusters, which connect as clients. Read [`Engine`] first.

#![forbid(unsafe_code)]

mod acceptor;
mod answers;
mod check;
mod cut;
mod engine;
mod filters;
mod giving;
mod histories;
mod interest;
mod names;
mod puller;
mod question;
mod registry;
mod removals;
mod service;
mod settings;
mod subacks;
mod token;
mod view;
mod widen;

pub use acceptor::Acceptor;
pub use check::check;
pub use cut::{Taken, cut};
pub use engine::{Answered, Answerer, Engine, History, Nodes};
pub use filters::{Filters, Names};
pub use interest::{Delta, Interest, Walk};
pub use registry::{LINKS_MAX, Registry};
pub use settings::{LinkSettings, Own, Secret};
pub use token::{CLOCK_TOLERANCE, Parties, TokenError, make as make_token, verify as verify_token};
pub use view::{Giving, LinkView, Refusal, Taking};
