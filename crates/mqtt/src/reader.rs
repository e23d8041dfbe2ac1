//! Reader of the data types of section 1.5.

use crate::encoder::variable_byte_integer_len;
use crate::error::DecodeError;
use crate::packet_id::PacketId;

/// The rest of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a Variable Byte Integer (1.5.5): at most four bytes, and no more than the value needs [MQTT-1.5.5-1].
    #[inline]
    pub(crate) fn variable_byte_integer(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7F) << (7 * index);
            if byte & 0x80 == 0 {
                return match variable_byte_integer_len(value) {
                    Some(len) if len == index + 1 => Ok(value),
                    _ => Err(DecodeError::VariableByteIntegerNotMinimal),
                };
            }
        }
        Err(DecodeError::VariableByteIntegerTooLong)
    }

    /// Reads Binary Data (1.5.6).
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Reads a UTF-8 Encoded String (1.5.4): well-formed UTF-8 [MQTT-1.5.4-1] [MQTT3-1.5.3-1] without U+0000
    /// [MQTT-1.5.4-2] [MQTT3-1.5.3-2]. U+FEFF is an ordinary character and stays [MQTT-1.5.4-3] [MQTT3-1.5.3-3].
    /// Control characters and non-characters, which a sender should avoid, are accepted.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let string = self.topic()?;
        if string.as_bytes().contains(&0) { Err(DecodeError::StringContainsNull) } else { Ok(string) }
    }

    /// Reads a string like [`Reader::string`], but without the check for U+0000: the caller examines every byte
    /// anyway.
    #[inline]
    pub(crate) fn topic(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.binary()?).map_err(|_| DecodeError::StringNotUtf8)
    }

    /// Reads a Packet Identifier, which is not 0 [MQTT-2.2.1-3] [MQTT-2.2.1-4] [MQTT3-2.3.1-1].
    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16()?).ok_or(DecodeError::PacketIdentifierZero)
    }

    /// Returns all remaining bytes.
    #[inline]
    pub(crate) fn remainder(self) -> &'a [u8] {
        self.rest
    }

    /// Checks that no bytes remain.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes { count: count as u32 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_big_endian() {
        let mut reader = Reader::new(&[0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07]);
        assert_eq!(reader.u8(), Ok(0x01));
        assert_eq!(reader.u16(), Ok(0x0203));
        assert_eq!(reader.u32(), Ok(0x0405_0607));
        assert_eq!(reader.u8(), Err(DecodeError::Truncated));
        assert_eq!(reader.finish(), Ok(()));
    }

    /// [MQTT-1.5.5-1]
    #[test]
    fn variable_byte_integers_have_at_most_four_bytes_and_no_padding() {
        let cases: [(&[u8], Result<u32, DecodeError>); 12] = [
            (&[0x00], Ok(0)),
            (&[0x7F], Ok(127)),
            (&[0x80, 0x01], Ok(128)),
            (&[0xFF, 0x7F], Ok(16_383)),
            (&[0x80, 0x80, 0x01], Ok(16_384)),
            (&[0xFF, 0xFF, 0xFF, 0x7F], Ok(268_435_455)),
            (&[0x80, 0x00], Err(DecodeError::VariableByteIntegerNotMinimal)),
            (&[0xFF, 0x80, 0x00], Err(DecodeError::VariableByteIntegerNotMinimal)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0x01], Err(DecodeError::VariableByteIntegerTooLong)),
            (&[0x80, 0x80, 0x80, 0x80], Err(DecodeError::VariableByteIntegerTooLong)),
            (&[0x80], Err(DecodeError::Truncated)),
            (&[], Err(DecodeError::Truncated)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Reader::new(bytes).variable_byte_integer(), expected, "{bytes:02X?}");
        }
    }

    #[test]
    fn strings_are_utf_8_without_null() {
        let cases: [(&[u8], Result<&str, DecodeError>); 14] = [
            (b"\0\0", Ok("")),
            (b"\0\x03abc", Ok("abc")),
            ("\0\u{2}ü".as_bytes(), Ok("ü")),
            // 1.5.4: the longest character
            (b"\0\x04\xF4\x8F\xBF\xBF", Ok("\u{10FFFF}")),
            // [MQTT-1.5.4-3] [MQTT3-1.5.3-3]
            (b"\0\x04\xEF\xBB\xBFa", Ok("\u{FEFF}a")),
            // The specification only advises against control characters and non-characters (1.5.4).
            (b"\0\x02\x01\x1F", Ok("\u{1}\u{1F}")),
            (b"\0\x03\xEF\xBF\xBF", Ok("\u{FFFF}")),
            // [MQTT-1.5.4-2] [MQTT3-1.5.3-2]
            (b"\0\x03a\0b", Err(DecodeError::StringContainsNull)),
            // [MQTT-1.5.4-1] [MQTT3-1.5.3-1]: a surrogate, an overlong form, a lone continuation, a cut character
            (b"\0\x03\xED\xA0\x80", Err(DecodeError::StringNotUtf8)),
            (b"\0\x02\xC0\x80", Err(DecodeError::StringNotUtf8)),
            (b"\0\x01\x80", Err(DecodeError::StringNotUtf8)),
            (b"\0\x01\xC3", Err(DecodeError::StringNotUtf8)),
            (b"\0\x04abc", Err(DecodeError::Truncated)),
            (b"\0", Err(DecodeError::Truncated)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Reader::new(bytes).string(), expected, "{bytes:02X?}");
        }
    }

    #[test]
    fn remaining_bytes_are_an_error() {
        assert_eq!(Reader::new(&[0, 0]).finish(), Err(DecodeError::TrailingBytes { count: 2 }));
    }
}
