//! An ephemeral session: it ends with its connection.

use std::sync::Arc;

use crate::ids::SessionUid;

/// Owner of a Client Identifier whose session is not to outlive the connection. Subscriptions and messages of the
/// session are on the node of the connection.
///
/// **Invariant:** small, because replicas have one for each connected client. A Client Identifier has an ephemeral
/// session or a durable one.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    pub client_id: Box<str>,
    pub uid: SessionUid,
    pub connection: u64,
    pub will: Option<Box<EphemeralWill>>,
    pub user: u32,
    /// Era of the node of the connection.
    pub era: u32,
}

/// An encoded [`MessageView`](crate::MessageView). It is due when the session ends, whatever its Will Delay Interval
/// [MQTT-3.1.3-9].
#[derive(Debug)]
pub(crate) struct EphemeralWill(pub Arc<[u8]>);

/// Epoch of every ephemeral session: each Claim begins another one. Epochs of durable sessions begin with 1.
pub const EPHEMERAL_EPOCH: u32 = 0;

const _: () = assert!(size_of::<Ephemeral>() <= 48);
