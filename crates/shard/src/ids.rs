//! Ids of commands, effects and parts, and the hashes of texts.

use std::fmt;
use std::hash::Hasher as _;

use fnv::FnvHasher;

/// One part of the durable state of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// Number of shards of a node.
pub const SHARDS: u16 = 16;

impl ShardId {
    /// Returns the shard of a hash: hashes belong to [`BUCKETS`], and buckets to shards.
    pub fn of_hash(hash: u32) -> Self {
        Self((hash % u32::from(BUCKETS)) as u16 % SHARDS)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Id of a durable session of one shard: a counter, and in the low bits the slot of the session. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionUid(u64);

/// Maximum number of sessions of a shard.
pub const SESSIONS_MAX: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 24;

impl SessionUid {
    pub(crate) fn new(count: u64, slot: u32) -> Self {
        debug_assert!(slot < SESSIONS_MAX);
        Self(count << SLOT_BITS | u64::from(slot))
    }

    /// Converts the number in a command or a part. There may be no such session.
    pub fn from_u64(value: u64) -> Self {
        Self(value)
    }

    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Position of the session in a listing of sessions.
    pub fn list_index(self) -> u32 {
        self.slot()
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0 & u64::from(SESSIONS_MAX - 1)) as u32
    }

    pub(crate) fn count(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// Location of a message: the index of the record with its command, and its offset in that record's payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey(u64);

/// Alignment of messages in a batch, in bytes.
pub const MESSAGE_ALIGN: usize = 8;
/// Upper bound of the offset of a message in its batch: 1 MiB.
pub const MESSAGE_OFFSET_MAX: usize = 1 << (OFFSET_BITS + MESSAGE_ALIGN.trailing_zeros());
const OFFSET_BITS: u32 = 17;
/// Upper bound of the indexes of records.
pub const INDEX_MAX: u64 = 1 << (u64::BITS - OFFSET_BITS);

const _: () = assert!(MESSAGE_OFFSET_MAX == 1 << 20);

impl MessageKey {
    /// Creates a key.
    ///
    /// # Panics
    /// Panics on an offset that is not aligned or beyond [`MESSAGE_OFFSET_MAX`], and on an index beyond
    /// [`INDEX_MAX`].
    pub fn new(index: u64, offset: usize) -> Self {
        assert!(offset.is_multiple_of(MESSAGE_ALIGN) && offset < MESSAGE_OFFSET_MAX && index < INDEX_MAX);
        Self(index << OFFSET_BITS | (offset / MESSAGE_ALIGN) as u64)
    }

    pub fn from_u64(value: u64) -> Self {
        Self(value)
    }

    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Index of the record.
    pub fn index(self) -> u64 {
        self.0 >> OFFSET_BITS
    }

    /// Offset in bytes from the beginning of the record's payload.
    pub fn offset(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize * MESSAGE_ALIGN
    }
}

impl fmt::Debug for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageKey({}+{})", self.index(), self.offset())
    }
}

/// Identity by which a message is accepted once.
///
/// The host defines the meaning of the two numbers, with one exception. In a [`Publish`](crate::Command::Publish),
/// a number removes the record of the same origin's number with the last bit flipped. There the number of a QoS 2
/// publish is two times its Packet Identifier, plus the number of its releases modulo two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub origin: u64,
    pub number: u64,
}

/// A piece of a checkpoint: a bucket and a page of it. The low 16 bits are the bucket, so the first page of each
/// bucket has the bucket's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(u32);

/// Number of buckets that Client Identifiers hash to: parts 0 to 4095.
pub const BUCKETS: u16 = 4096;
/// First bucket of retained messages, by their topics: parts 4096 to 8191.
pub const RETAINED_FIRST: u16 = BUCKETS;
/// Bucket of the state that belongs to no other bucket.
pub const REST: u16 = 2 * BUCKETS;

impl PartId {
    pub(crate) fn new(bucket: u16, page: u16) -> Self {
        Self(u32::from(page) << 16 | u32::from(bucket))
    }

    pub fn from_u32(value: u32) -> Self {
        Self(value)
    }

    pub fn as_u32(self) -> u32 {
        self.0
    }

    pub fn bucket(self) -> u16 {
        self.0 as u16
    }

    pub fn page(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// Computes FNV-1a in 64 bits. No Local compares these hashes of Client Identifiers.
#[inline]
pub fn fnv64(bytes: &[u8]) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the bucket of a Client Identifier: the folded hash modulo [`BUCKETS`].
pub fn client_bucket(client_id: &str) -> u16 {
    bucket(client_id)
}

/// Returns the bucket of a Topic Name's retained message, at least [`RETAINED_FIRST`].
pub fn retained_bucket(topic: &str) -> u16 {
    RETAINED_FIRST + bucket(topic)
}

fn bucket(text: &str) -> u16 {
    let hash = fnv64(text.as_bytes());
    ((hash ^ (hash >> 32)) as u32 % u32::from(BUCKETS)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_location_of_its_message() {
        let key = MessageKey::new(INDEX_MAX - 1, MESSAGE_OFFSET_MAX - MESSAGE_ALIGN);
        assert_eq!((key.index(), key.offset()), (INDEX_MAX - 1, MESSAGE_OFFSET_MAX - MESSAGE_ALIGN));
        assert_eq!(key.as_u64(), u64::MAX);
        assert!(MessageKey::new(2, 0) > MessageKey::new(1, MESSAGE_OFFSET_MAX - MESSAGE_ALIGN));
    }

    #[test]
    fn a_session_id_is_a_count_and_a_slot() {
        let uid = SessionUid::new(7, SESSIONS_MAX - 1);
        assert_eq!((uid.count(), uid.slot()), (7, SESSIONS_MAX - 1));
        assert!(SessionUid::new(8, 0) > uid);
    }

    /// Every checkpoint holds these numbers, so they never change.
    #[test]
    fn the_buckets_of_texts_never_change() {
        assert_eq!(fnv64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!((client_bucket("thermostat"), retained_bucket("thermostat")), (2517, 6613));
    }
}
