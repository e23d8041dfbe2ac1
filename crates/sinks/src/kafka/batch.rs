//! Record batches (format 2), and the partition of a key.

use super::wire::Writer;

/// Bytes of a batch before its checksum: offset, length, leader epoch, and format.
const BEFORE_CHECKSUM: usize = 8 + 4 + 4 + 1;
const CHECKSUM: usize = 4;
/// Version of the format.
const FORMAT: i8 = 2;

/// A record to encode. `key` may be missing.
pub struct Entry<'a> {
    pub key: Option<&'a [u8]>,
    pub value: &'a [u8],
    pub headers: Vec<(&'a str, &'a [u8])>,
}

/// Place of a batch in the sequence of a producer. All fields are -1 without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub producer: i64,
    pub epoch: i16,
    pub first: i32,
}

/// Encodes records as one batch without compression. `time` is in milliseconds since 1970.
pub fn encode(entries: &[Entry<'_>], sequence: Sequence, time: i64) -> Vec<u8> {
    let mut batch = Writer::default();
    batch.i64(0);
    batch.i32(0);
    batch.i32(-1);
    batch.i8(FORMAT);
    batch.i32(0);
    batch.i16(0);
    batch.count(entries.len().saturating_sub(1));
    batch.i64(time);
    batch.i64(time);
    batch.i64(sequence.producer);
    batch.i16(sequence.epoch);
    batch.i32(sequence.first);
    batch.count(entries.len());
    let mut record = Writer::default();
    for (delta, entry) in entries.iter().enumerate() {
        record.0.clear();
        record.i8(0);
        record.varint(0);
        record.varint(delta as i64);
        record.varbytes(entry.key);
        record.varbytes(Some(entry.value));
        record.varint(entry.headers.len() as i64);
        for (name, value) in &entry.headers {
            record.varbytes(Some(name.as_bytes()));
            record.varbytes(Some(value));
        }
        batch.varbytes(Some(&record.0));
    }
    let mut bytes = batch.0;
    let len = (bytes.len() - 12) as i32;
    bytes[8..12].copy_from_slice(&len.to_be_bytes());
    let checksum = crc32c::crc32c(&bytes[BEFORE_CHECKSUM + CHECKSUM..]);
    bytes[BEFORE_CHECKSUM..BEFORE_CHECKSUM + CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// Returns the partition of a key, the same as the clients of Apache Kafka in Java. `count` is not 0.
pub fn partition_of(key: &[u8], count: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % count
}

/// MurmurHash2 with the seed of Kafka.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the tests of Apache Kafka's `Utils.murmur2`.
    #[test]
    fn hashes_are_those_of_the_java_client() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
        assert_eq!(partition_of(b"21", 1), 0);
        assert_eq!(partition_of(b"foobar", 7), ((-790_332_482_i32) & 0x7fff_ffff) as usize % 7);
    }
}
