//! Encoder of the data types of section 1.5 and of the fixed header. Writes to a `Vec`.

use crate::packet_id::PacketId;
use crate::properties::Properties;
use crate::version::Version;

/// Maximum size of Binary Data or a UTF-8 Encoded String in bytes: the length is a Two Byte Integer (1.5.4, 1.5.6).
pub(crate) const FIELD_SIZE_MAX: usize = u16::MAX as usize;

/// Largest Variable Byte Integer (1.5.5), and thus the largest Remaining Length.
pub(crate) const VARIABLE_BYTE_INTEGER_MAX: u32 = 268_435_455;

/// Returns the minimum number of bytes for `value` [MQTT-1.5.5-1]; `None` above [`VARIABLE_BYTE_INTEGER_MAX`].
#[inline]
pub(crate) const fn variable_byte_integer_len(value: u32) -> Option<usize> {
    Some(match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        0x20_0000..=VARIABLE_BYTE_INTEGER_MAX => 4,
        _ => return None,
    })
}

/// Appends `value`, at most [`VARIABLE_BYTE_INTEGER_MAX`], in as few bytes as possible [MQTT-1.5.5-1].
#[inline]
pub(crate) fn put_variable_byte_integer(out: &mut Vec<u8>, mut value: u32) {
    debug_assert!(value <= VARIABLE_BYTE_INTEGER_MAX);
    while value > 0x7F {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends length and bytes. Returns `false` and appends nothing when there are more than 65,535.
#[inline]
pub(crate) fn put_binary(out: &mut Vec<u8>, value: &[u8]) -> bool {
    let Ok(len) = u16::try_from(value.len()) else { return false };
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(value);
    true
}

/// Appends a string like [`put_binary`]. Also returns `false` for a string with U+0000, which no packet may hold
/// [MQTT-1.5.4-2].
#[inline]
pub(crate) fn put_string(out: &mut Vec<u8>, value: &str) -> bool {
    !value.as_bytes().contains(&0) && put_binary(out, value.as_bytes())
}

/// Writes one small packet: the body first, then its length before it. If a field does not fit into any packet,
/// [`Encoder::finish`] removes the whole packet.
pub(crate) struct Encoder<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    encodable: bool,
}

impl<'o> Encoder<'o> {
    pub(crate) fn new(out: &'o mut Vec<u8>, first_byte: u8) -> Encoder<'o> {
        let start = out.len();
        // The second byte is for the Remaining Length, which is nearly always one byte long.
        out.extend_from_slice(&[first_byte, 0]);
        Encoder { out, start, encodable: true }
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.out.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.out.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(crate) fn packet_id(&mut self, value: PacketId) -> &mut Self {
        self.u16(value.get())
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.out.extend_from_slice(value);
        self
    }

    pub(crate) fn binary(&mut self, value: &[u8]) -> &mut Self {
        self.encodable &= put_binary(self.out, value);
        self
    }

    pub(crate) fn string(&mut self, value: &str) -> &mut Self {
        self.encodable &= put_string(self.out, value);
        self
    }

    /// Appends Property Length and properties in 5.0; nothing in older versions, which have no properties.
    pub(crate) fn properties(&mut self, version: Version, properties: Properties<'_>) -> &mut Self {
        if version == Version::V5 {
            let bytes = properties.as_bytes();
            match u32::try_from(bytes.len()) {
                Ok(len) if len <= VARIABLE_BYTE_INTEGER_MAX => {
                    put_variable_byte_integer(self.out, len);
                    self.out.extend_from_slice(bytes);
                }
                _ => self.encodable = false,
            }
        }
        self
    }

    /// Writes the Remaining Length. Returns `false` and restores the buffer when the packet cannot be encoded.
    pub(crate) fn finish(&mut self) -> bool {
        let body = self.start + 2;
        let len = u32::try_from(self.out.len() - body).ok();
        let (Some(len), Some(width)) = (len, len.and_then(variable_byte_integer_len)) else {
            self.encodable = false;
            self.out.truncate(self.start);
            return false;
        };
        if !self.encodable {
            self.out.truncate(self.start);
            return false;
        }
        if width > 1 {
            let end = self.out.len();
            self.out.resize(end + width - 1, 0);
            self.out.copy_within(body..end, body + width - 1);
        }
        let mut rest = len;
        for byte in &mut self.out[self.start + 1..self.start + 1 + width] {
            *byte = rest as u8 | 0x80;
            rest >>= 7;
        }
        self.out[self.start + width] &= 0x7F;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 1-1 of 5.0: the limits between lengths [MQTT-1.5.5-1].
    #[test]
    fn a_variable_byte_integer_takes_as_few_bytes_as_possible() {
        let cases: [(u32, &[u8]); 8] = [
            (0, &[0x00]),
            (127, &[0x7F]),
            (128, &[0x80, 0x01]),
            (16_383, &[0xFF, 0x7F]),
            (16_384, &[0x80, 0x80, 0x01]),
            (2_097_151, &[0xFF, 0xFF, 0x7F]),
            (2_097_152, &[0x80, 0x80, 0x80, 0x01]),
            (268_435_455, &[0xFF, 0xFF, 0xFF, 0x7F]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            put_variable_byte_integer(&mut out, value);
            assert_eq!(out, bytes, "{value}");
            assert_eq!(variable_byte_integer_len(value), Some(bytes.len()), "{value}");
        }
        assert_eq!(variable_byte_integer_len(268_435_456), None);
    }

    #[test]
    fn the_remaining_length_precedes_bodies_of_every_size() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut out = vec![0xAA];
            assert!(Encoder::new(&mut out, 0xE0).bytes(&body).finish());
            let mut expected = vec![0xAA, 0xE0];
            put_variable_byte_integer(&mut expected, len);
            expected.extend_from_slice(&body);
            assert!(out == expected, "body of {len} bytes");
        }
    }

    #[test]
    fn a_packet_that_cannot_be_encoded_leaves_the_buffer_unchanged() {
        let long = "x".repeat(FIELD_SIZE_MAX + 1);
        let mut out = vec![0xAA];
        assert!(!Encoder::new(&mut out, 0x10).string(&long).finish());
        assert!(!Encoder::new(&mut out, 0x10).binary(long.as_bytes()).u8(0).finish());
        // [MQTT-1.5.4-2]
        assert!(!Encoder::new(&mut out, 0x10).string("a\0b").finish());
        assert_eq!(out, [0xAA]);
        assert!(Encoder::new(&mut out, 0x10).string(&long[1..]).finish());
    }
}
