use std::time::Duration;

use crate::config::Config;

/// Bounds of all links of one node.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Bounds of each link.
    pub link: Config,
    /// Connections to each peer that this node dials: 1 to [`CHANNELS_MAX`](crate::CHANNELS_MAX). When there are
    /// several, the first carries no messages of clients, and nothing for shards.
    pub connections: u8,
    /// Maximum time from a connection to the end of its handshake, and from the decision to dial to the connection.
    pub handshake_max: Duration,
    /// First pause between a failed connection and the next attempt. Each further pause is twice as long, up to
    /// `dial_max`. A random factor between a half and one applies.
    pub dial_first: Duration,
    pub dial_max: Duration,
    /// Pause between introductions at one discovery address.
    pub discovery_interval: Duration,
    /// Maximum incoming connections whose handshake is not done. Beyond it, those that have sent nothing valid make
    /// room.
    pub handshakes_max: usize,
    /// Maximum of these from one IPv4 address or one IPv6 network of 64 bits. Several nodes may be at one address, with
    /// all their connections.
    pub handshakes_per_address: usize,
    /// Minimum time between two reports of the same problem with the same peer.
    pub warning_interval: Duration,
    /// Display name of the cluster, for messages. The identity has its number. Messages name no cluster when it is
    /// empty.
    pub cluster: Box<str>,
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self {
            link: Config::default(),
            connections: 4,
            handshake_max: Duration::from_secs(5),
            dial_first: Duration::from_millis(100),
            dial_max: Duration::from_secs(1),
            discovery_interval: Duration::from_secs(2),
            handshakes_max: 64,
            handshakes_per_address: 32,
            warning_interval: Duration::from_secs(60),
            cluster: Box::default(),
        }
    }
}
