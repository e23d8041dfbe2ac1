/// What a mesh has done since it was made, besides what its links count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshCounters {
    /// Connections that were asked for.
    pub dialed: u64,
    /// Of them, those that ended before their handshake was done.
    pub dials_failed: u64,
    /// Connections of others that were taken in.
    pub accepted: u64,
    /// Connections of others that were closed because too many handshakes went on: those that made room, and those that found none.
    pub unauthenticated_closed: u64,
    /// Handshakes that were refused, by either side.
    pub refused: u64,
    /// Of them, those of another process with the name of a peer that is connected.
    pub taken: u64,
    /// Handshakes that were not done in time.
    pub late: u64,
    /// Channels whose peer did what no peer does.
    pub peer_errors: u64,
    /// Nodes that were introduced to this one, at either end of the connection and every time.
    pub introduced: u64,
    /// Of them, those that made room for later ones before anybody asked for them.
    pub introductions_dropped: u64,
}
