//! Ids of workers, connections, shards and points in time.

use std::time::Duration;

use mqtt::PacketId;
pub use shard::{ShardId, ShardSet};

/// One worker of a node: a reactor and the state it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u16);

impl WorkerId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the worker that hosts a shard on a node with this number of workers.
    pub fn host_of(shard: ShardId, workers: u16) -> Self {
        Self(shard.0 % workers)
    }
}

/// One client's Network Connection on this node. The generation tells a slot's occupants apart: a command for a
/// previous occupant is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    pub worker: WorkerId,
    pub slot: u32,
    pub generation: u32,
}

impl ConnectionId {
    /// Opaque number for the state of durable sessions.
    pub(crate) fn as_u64(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }
}

/// Slot of a durable session in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub shard: ShardId,
    pub slot: u32,
    pub generation: u32,
}

impl SessionId {
    /// Shard and slot of the session with an [origin](Self::origin).
    pub(crate) fn of_origin(origin: u64) -> (ShardId, u32) {
        (ShardId((origin >> 48) as u16), (origin & u64::from(shard::SESSIONS_MAX - 1)) as u32)
    }

    /// Origin of the session's messages, see [`Identity`](crate::store::Identity). No other session has it while any
    /// node may remember it. The highest bit is not set.
    pub fn origin(self) -> u64 {
        let number = u64::from(self.generation) << 32 | u64::from(self.slot);
        u64::from(self.shard.0) << 48 | number & 0xffff_ffff_ffff
    }
}

/// Slot of a shared group in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    pub shard: ShardId,
    pub slot: u32,
    pub generation: u32,
}

/// SUBSCRIBE or UNSUBSCRIBE of a connection that a completion belongs to: a Packet Identifier for a client's, a greater
/// number for an operator's or for a piece of a client's, 0 for CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u32);

impl Ticket {
    /// Stands for the CONNECT of a connection. No Packet Identifier is 0 [MQTT-2.2.1-3].
    pub(crate) const CONNECT: Self = Self(0);
    /// Maximum number of pieces of one packet.
    pub(crate) const PIECES_MAX: usize = 0x8000;

    pub fn of(packet_id: PacketId) -> Self {
        Self(u32::from(packet_id.get()))
    }

    /// Makes a ticket that equals no Packet Identifier.
    pub fn of_operator(key: usize) -> Self {
        Self(FIRST_OF_OPERATORS + key as u32)
    }

    /// Makes a ticket for a piece of a packet. Pieces are numbered from 0.
    pub(crate) fn of_piece(packet_id: PacketId, number: u32) -> Self {
        Self(FIRST_OF_PIECES | number << 16 | u32::from(packet_id.get()))
    }

    /// Packet Identifier of a client's packet, or of the packet that a piece belongs to.
    pub fn packet_id(self) -> Option<PacketId> {
        self.piece().map_or_else(|| PacketId::new(u16::try_from(self.0).ok()?), |(id, _)| Some(id))
    }

    /// Packet Identifier and number of a piece.
    pub(crate) fn piece(self) -> Option<(PacketId, u32)> {
        let number = self.0.checked_sub(FIRST_OF_PIECES)?;
        Some((PacketId::new(number as u16)?, number >> 16))
    }

    /// Makes a ticket from the output of [`Self::as_u32`].
    pub(crate) fn from_u32(number: u32) -> Self {
        Self(number)
    }

    pub(crate) fn as_u32(self) -> u32 {
        self.0
    }

    pub fn operator(self) -> Option<usize> {
        let key = self.0.checked_sub(FIRST_OF_OPERATORS).filter(|_| self.0 < FIRST_OF_PIECES)?;
        Some(key as usize)
    }
}

const FIRST_OF_OPERATORS: u32 = 0x1_0000;
const FIRST_OF_PIECES: u32 = 0x8000_0000;

/// Milliseconds since the node started, monotonic. It is an input of every core: none of them reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    pub const NEVER: Time = Time(u64::MAX);

    #[must_use]
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Duration since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Hash of a Client Identifier: FNV-1a in 64 bits. It is the same in every process.
pub fn client_key(client_id: &str) -> u64 {
    shard::fnv64(client_id.as_bytes())
}

/// Hash of a Client Identifier that selects its shard, and the member in hash strategies.
pub fn client_hash(client_id: &str) -> u32 {
    fold(client_key(client_id))
}

/// [`client_hash`] of a [`client_key`].
pub fn fold(key: u64) -> u32 {
    (key ^ (key >> 32)) as u32
}

/// FNV-1a, folded: fast for short keys. An attacker gains nothing by filling one shard.
pub(crate) fn hash(bytes: &[u8]) -> u32 {
    fold(shard::fnv64(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other nodes get these numbers, and answer with them.
    #[test]
    fn tickets_have_these_numbers() {
        let id = |number| PacketId::new(number).expect("not 0");
        let last = Ticket::PIECES_MAX as u32 - 1;
        for (ticket, number, packet_id, piece, operator) in [
            (Ticket::CONNECT, 0, None, None, None),
            (Ticket::of(id(65_535)), 65_535, Some(id(65_535)), None, None),
            (Ticket::of_operator(0), 0x1_0000, None, None, Some(0)),
            (Ticket::of_operator(9), 0x1_0009, None, None, Some(9)),
            (Ticket::of_piece(id(7), 0), 0x8000_0007, Some(id(7)), Some((id(7), 0)), None),
            (Ticket::of_piece(id(7), last), 0xffff_0007, Some(id(7)), Some((id(7), last)), None),
        ] {
            assert_eq!((ticket.as_u32(), Ticket::from_u32(number)), (number, ticket));
            assert_eq!((ticket.packet_id(), ticket.piece(), ticket.operator()), (packet_id, piece, operator));
        }
    }

    /// Data on disk and messages of other nodes depend on these numbers.
    #[test]
    fn a_client_identifier_has_the_same_hash_everywhere() {
        assert_eq!(client_key(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(client_key("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(client_key("foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(client_hash("foobar"), 0x8594_4171 ^ 0xf739_67e8);
    }
}
