//! State of one client's session and connection, without I/O, clocks or randomness: deliveries in flight to the client,
//! publishes in flight from it, and Topic Aliases in both directions.
//!
//! Read [`Deliveries`] first.
//!
//! **Invariant:** nothing here knows a protocol version, a socket or another session.

#![forbid(unsafe_code)]

mod alias;
mod deliveries;
mod inbound;
mod toggles;

pub use alias::{InboundAliases, OutboundAliases, TopicAlias};
pub use deliveries::{AckOutcome, Deliveries, PubRecOutcome, Resend};
pub use inbound::{Completion, Dispatched, DueIdentifier, Inbound, Keep, Received, Released};
pub use toggles::Toggles;
