/// Counters of a mesh since it was created, without those of its links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshCounters {
    /// Connections that were requested.
    pub dialed: u64,
    /// Requested connections that ended before their handshake was done.
    pub dials_failed: u64,
    /// Incoming connections that were accepted.
    pub accepted: u64,
    /// Incoming connections closed because too many handshakes were open: those that made room, and those that found
    /// none.
    pub unauthenticated_closed: u64,
    /// Handshakes that were refused, by either side.
    pub refused: u64,
    /// Refused handshakes of another process with the name of a connected peer.
    pub taken: u64,
    /// Handshakes that were not done in time.
    pub late: u64,
    /// Channels whose peer violated the protocol.
    pub peer_errors: u64,
    /// Introductions to this node, at either end of the connection and every time.
    pub introduced: u64,
    /// Introductions that were dropped for later ones before they were polled.
    pub introductions_dropped: u64,
}
