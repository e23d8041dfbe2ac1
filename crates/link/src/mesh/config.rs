use std::time::Duration;

use crate::config::Config;

/// Bounds of all links of one node.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Of each link.
    pub link: Config,
    /// Connections to each peer that this node dials: 1 to [`CHANNELS_MAX`](crate::CHANNELS_MAX). The first carries no messages of
    /// clients when there are more.
    pub connections: u8,
    /// From a connection to the end of its handshake, and from the wish to dial to the connection.
    pub handshake_max: Duration,
    /// From a connection that failed to the next attempt: this long at first, then twice as long each time, up to `dial_max`; half to all
    /// of it by chance.
    pub dial_first: Duration,
    pub dial_max: Duration,
    /// From an introduction at a sought address to the next one there.
    pub discovery_interval: Duration,
    /// Whether those who know the secret and are no peers are told who this node is, and are heard of. Others are refused.
    pub introduces: bool,
    /// Connections from others whose handshake is not done. With more, those that have said nothing make room.
    pub handshakes_max: usize,
    /// Of them, those from one address, or one network of 64 bits of version 6. Several nodes may be at one address, with all their
    /// connections.
    pub handshakes_per_address: usize,
    /// The same complaint about the same peer comes again only after this.
    pub warning_interval: Duration,
    /// What people call the cluster, whose number the identity has: for complaints. They name none when it is empty.
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
            introduces: false,
            handshakes_max: 64,
            handshakes_per_address: 32,
            warning_interval: Duration::from_secs(60),
            cluster: Box::default(),
        }
    }
}
