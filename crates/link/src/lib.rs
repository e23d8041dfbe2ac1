//! What joins two nodes: lanes with sequence numbers, credit and acknowledgements over a few connections, without I/O, clocks or
//! randomness.
//!
//! Read [`Link`] first. A [`Handshake`] proves to two nodes that they belong together; the connection is then a *channel* of the link
//! ([`Link::attach`]), and frames flow over its lanes until the connection ends; what was not acknowledged goes again over the next one.
//! A [`Mesh`] is all links of one node, with who dials whom and when again.
//!
//! **Invariant:** acknowledgements and credit never wait behind data, and nothing is sent twice over a connection that lives.

#![forbid(unsafe_code)]

mod channel;
mod config;
mod counters;
mod error;
mod handshake;
mod lane;
mod link;
mod mesh;
mod mutation;
mod node;
mod output;
mod receiving;
mod sending;
mod time;
mod wire;

pub use config::{BufferMax, Config};
pub use counters::{ClassCounters, Counters};
pub use error::{PeerError, Refusal, Refused};
pub use handshake::{
    CHANNELS_MAX, DESCRIPTOR_MAX, Established, Handshake, Identity, LinkId, Progress, Secret, VERSION,
    VERSION_MIN, is_handshake,
};
pub use lane::{Class, LANES_MAX, Lane};
pub use link::{ChannelId, Credit, Event, Link};
pub use mesh::{ConnectionId, Demand, Mesh, MeshConfig, MeshCounters, MeshEvent, PeerStatus, Random};
pub use mutation::Mutation;
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use node::NodeId;
pub use output::Output;
pub use time::Time;
pub use wire::FRAME_MAX;
