//! Simulations of linked clusters. Each cluster is one node. The program's relays and interest join them, over
//! connections that are cut, while nodes and relays die.

mod client;
mod oracle;
mod plan;
mod pull;
mod world;

pub use world::{Linked, Step};
