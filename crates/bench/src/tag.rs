//! Tag at the start of every payload, which identifies the message for a receiver. It consists of little-endian
//! numbers, in a long form and, for small payloads, a short one.

/// Bytes of the long form: run (4), publisher (4), sequence number (8), nanoseconds (8).
pub const LONG: usize = 24;
/// Bytes of the short form: run (2), publisher (2), sequence number (4), nanoseconds (8).
pub const SHORT: usize = 16;
/// Number of publishers that the short form can distinguish.
pub const SHORT_PUBLISHERS: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tag {
    pub publisher: usize,
    pub seq: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
}

/// Length in bytes of the tag in a payload of this size.
pub fn length(payload: usize) -> usize {
    if payload < LONG { SHORT } else { LONG }
}

impl Tag {
    #[inline]
    pub fn write(self, run: u32, payload: usize, b: &mut Vec<u8>) {
        let mut h = [0u8; LONG];
        let length = length(payload);
        if length == SHORT {
            h[0..2].copy_from_slice(&(run as u16).to_le_bytes());
            h[2..4].copy_from_slice(&(self.publisher as u16).to_le_bytes());
            h[4..8].copy_from_slice(&(self.seq as u32).to_le_bytes());
            h[8..16].copy_from_slice(&self.at.to_le_bytes());
        } else {
            h[0..4].copy_from_slice(&run.to_le_bytes());
            h[4..8].copy_from_slice(&(self.publisher as u32).to_le_bytes());
            h[8..16].copy_from_slice(&self.seq.to_le_bytes());
            h[16..24].copy_from_slice(&self.at.to_le_bytes());
        }
        b.extend_from_slice(&h[..length]);
    }

    /// Decodes a tag. `size` is the payload size of this run. `None` when the message does not belong to this run.
    #[inline]
    pub fn read(run: u32, size: usize, payload: &[u8]) -> Option<Tag> {
        let number = |from: usize, to: usize| -> u64 {
            let mut bytes = [0; 8];
            bytes[..to - from].copy_from_slice(&payload[from..to]);
            u64::from_le_bytes(bytes)
        };
        if payload.len() < length(size) {
            return None;
        }
        if length(size) == SHORT {
            (number(0, 2) == u64::from(run as u16)).then(|| Tag {
                publisher: number(2, 4) as usize,
                seq: number(4, 8),
                at: number(8, 16),
            })
        } else {
            (number(0, 4) == u64::from(run)).then(|| Tag {
                publisher: number(4, 8) as usize,
                seq: number(8, 16),
                at: number(16, 24),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_reads_back_in_either_form() {
        let tag = Tag { publisher: 60_000, seq: 4_000_000_000, at: 1 << 60 };
        for (size, bytes) in [(16, SHORT), (23, SHORT), (24, LONG), (256, LONG)] {
            let mut payload = vec![];
            tag.write(0x4d51_1234, size, &mut payload);
            assert_eq!(payload.len(), bytes, "{size}");
            payload.resize(size, 0);
            assert_eq!(Tag::read(0x4d51_1234, size, &payload), Some(tag), "{size}");
            assert_eq!(Tag::read(0x4d51_1235, size, &payload), None, "another run's, {size}");
            assert_eq!(Tag::read(0x4d51_1234, size, &payload[..bytes - 1]), None, "cut short, {size}");
        }
    }
}
