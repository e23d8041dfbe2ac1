//! Links between nodes: lanes with sequence numbers, credit and acknowledgements over a few connections, without I/O,
//! clocks or randomness.
//!
//! Read [`Link`] first. A [`Handshake`] proves to two nodes that they belong together. The connection is then a
//! *channel* of the link ([`Link::attach`]), and frames flow over its lanes until the connection ends. Frames that were
//! not acknowledged are sent again over the next connection. A [`Mesh`] is all links of one node; it decides who dials
//! whom and when.
//!
//! **Invariant:** acknowledgements and credit never wait for data, and no frame is sent twice over one connection.

#![forbid(unsafe_code)]

mod channel;
mod config;
mod counters;
mod error;
mod frame;
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
pub use frame::Frame;
pub use handshake::{
    CHANNELS_MAX, DESCRIPTOR_MAX, Established, Handshake, Identity, LinkId, Progress, Secret, VERSION,
    VERSION_MIN, is_handshake,
};
pub use lane::{Class, LANES_MAX, Lane, SHARD_LANES_MAX};
pub use link::{ChannelId, Credit, Event, Link};
pub use mesh::{ConnectionId, Demand, Mesh, MeshConfig, MeshCounters, MeshEvent, PeerStatus, Random};
pub use mutation::Mutation;
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use node::NodeId;
pub use output::Output;
pub use time::Time;
pub use wire::FRAME_MAX;
