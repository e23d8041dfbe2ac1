//! The fixed header (section 2.1): the length of a packet, and early checks of its first bytes.

use crate::encoder::VARIABLE_BYTE_INTEGER_MAX;
use crate::error::DecodeError;
use crate::packet_type::PacketType;
use crate::qos::QoS;

/// Largest packet that the wire format can hold, in bytes, fixed header included.
pub const PACKET_SIZE_MAX: u32 = 1 + 4 + VARIABLE_BYTE_INTEGER_MAX;

/// Returns the total length in bytes of the first packet in `bytes`, which may exceed `bytes`; `None` while its
/// fixed header is incomplete.
///
/// Examines the fixed header only. So a packet with an invalid type or invalid flags, or larger than
/// `packet_size_max` bytes, is refused before its body arrives. [`decode`](crate::decode()) does the checks that
/// depend on the version: the DUP flag that 3.1 has in PUBREL, SUBSCRIBE and UNSUBSCRIBE, AUTH before 5.0, and
/// padding of the Remaining Length.
///
/// # Errors
/// The reserved type 0, flags other than those of table 2-2 [MQTT-2.1.3-1] [MQTT3-2.2.2-2], a Remaining Length of
/// more than four bytes, a body of a packet that never has one, a packet that is too large.
#[inline]
pub fn frame(bytes: &[u8], packet_size_max: u32) -> Result<Option<usize>, DecodeError> {
    let Some(&first) = bytes.first() else { return Ok(None) };
    if LEGAL_FLAGS[usize::from(first >> 4)] & 1 << (first & 0x0F) == 0 {
        return Err(illegal_first_byte(first));
    }
    let Some((remaining, header)) = remaining_length(bytes)? else { return Ok(None) };
    let size = remaining + header as u32;
    if size > packet_size_max {
        return Err(DecodeError::PacketTooLarge { size, maximum: packet_size_max });
    }
    if remaining != 0 && matches!(first >> 4, PINGREQ | PINGRESP) {
        return Err(DecodeError::TrailingBytes { count: remaining });
    }
    Ok(Some(size as usize))
}

/// Returns the Remaining Length and the length of the fixed header of the packet that `bytes` begins with; `None`
/// if incomplete.
#[inline]
pub(crate) fn remaining_length(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    let mut value = 0;
    for index in 0..4 {
        let Some(&byte) = bytes.get(1 + index) else { return Ok(None) };
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, 2 + index)));
        }
    }
    Err(DecodeError::VariableByteIntegerTooLong)
}

#[cold]
fn illegal_first_byte(first: u8) -> DecodeError {
    let flags = first & 0x0F;
    match PacketType::of(first) {
        None => DecodeError::PacketTypeReserved,
        Some(PacketType::Publish) if QoS::from_bits(flags >> 1 & 0b11).is_none() => DecodeError::QoSReserved,
        Some(PacketType::Publish) => DecodeError::DupWithoutQoS,
        Some(packet_type) => DecodeError::FlagsReserved { packet_type, flags },
    }
}

const PINGREQ: u8 = PacketType::PingReq as u8;
const PINGRESP: u8 = PacketType::PingResp as u8;

/// Set of the legal flags of each packet type: bit `n` is set when `n` is legal.
const LEGAL_FLAGS: [u16; 16] = {
    let mut table = [1 << 0b0000; 16];
    table[0] = 0;
    let mut flags = 0;
    table[PacketType::Publish as usize] = 0;
    while flags < 16 {
        let (dup, qos) = (flags & 0b1000 != 0, QoS::from_bits(flags >> 1 & 0b11));
        // [MQTT-3.3.1-2] [MQTT-3.3.1-4] [MQTT3-3.3.1-2] [MQTT3-3.3.1-4]
        let legal = match qos {
            Some(QoS::AtMostOnce) => !dup,
            Some(_) => true,
            None => false,
        };
        if legal {
            table[PacketType::Publish as usize] |= 1 << flags;
        }
        flags += 1;
    }
    // [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1], and with the DUP flag of 3.1.
    let with_qos1 = 1 << 0b0010 | 1 << 0b1010;
    table[PacketType::PubRel as usize] = with_qos1;
    table[PacketType::Subscribe as usize] = with_qos1;
    table[PacketType::Unsubscribe as usize] = with_qos1;
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_header_has_no_length_yet() {
        assert_eq!(frame(&[], 100), Ok(None));
        assert_eq!(frame(&[0x10], 100), Ok(None));
        assert_eq!(frame(&[0x30, 0x80], 100), Ok(None));
        assert_eq!(frame(&[0x30, 0xFF, 0xFF, 0xFF], 100), Ok(None));
    }

    #[test]
    fn the_length_is_known_before_the_body() {
        assert_eq!(frame(&[0xC0, 0x00], 2), Ok(Some(2)));
        assert_eq!(frame(&[0x10, 0x7F], u32::MAX), Ok(Some(129)));
        assert_eq!(frame(&[0x10, 0x80, 0x01], u32::MAX), Ok(Some(131)));
        assert_eq!(frame(&[0x10, 0xFF, 0xFF, 0xFF, 0x7F], u32::MAX), Ok(Some(268_435_460)));
        assert_eq!(frame(&[0x10, 0xFF, 0xFF, 0xFF, 0x7F], PACKET_SIZE_MAX), Ok(Some(268_435_460)));
        // The next packet does not matter.
        assert_eq!(frame(&[0xC0, 0x00, 0x00, 0xFF], 100), Ok(Some(2)));
    }

    /// [MQTT-3.1.2-24] is about our own packets. 4.13.1 lets a receiver name a limit and use 0x95.
    #[test]
    fn a_packet_may_be_as_large_as_allowed_and_no_larger() {
        assert_eq!(frame(&[0x30, 98], 100), Ok(Some(100)));
        let error = DecodeError::PacketTooLarge { size: 101, maximum: 100 };
        assert_eq!(frame(&[0x30, 99], 100), Err(error));
        assert_eq!(error.reason_code(), crate::ReasonCode::PacketTooLarge);
    }

    #[test]
    fn a_remaining_length_has_at_most_four_bytes() {
        let error = Err(DecodeError::VariableByteIntegerTooLong);
        assert_eq!(frame(&[0x10, 0xFF, 0xFF, 0xFF, 0xFF], u32::MAX), error);
        assert_eq!(frame(&[0x10, 0x80, 0x80, 0x80, 0x80, 0x01], u32::MAX), error);
    }

    /// [MQTT-2.1.3-1] [MQTT3-2.2.2-2]: every first byte alone, compared with table 2-2.
    #[test]
    fn every_first_byte_is_checked_by_table_2_2() {
        for first in 0..=u8::MAX {
            let (packet_type, flags) = (first >> 4, first & 0x0F);
            let expected = match packet_type {
                0 => Err(DecodeError::PacketTypeReserved),
                // [MQTT-3.3.1-4] [MQTT3-3.3.1-4]
                3 if flags & 0b0110 == 0b0110 => Err(DecodeError::QoSReserved),
                // [MQTT-3.3.1-2] [MQTT3-3.3.1-2]
                3 if flags & 0b1110 == 0b1000 => Err(DecodeError::DupWithoutQoS),
                3 => Ok(None),
                // [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT3-3.6.1-1] [MQTT3-3.8.1-1] [MQTT3-3.10.1-1]
                6 | 8 | 10 if flags & 0b0111 == 0b0010 => Ok(None),
                6 | 8 | 10 => refused(first),
                _ if flags == 0 => Ok(None),
                _ => refused(first),
            };
            assert_eq!(frame(&[first], 100), expected, "{first:02X}");
        }

        fn refused(first: u8) -> Result<Option<usize>, DecodeError> {
            let packet_type = PacketType::of(first).expect("not 0");
            Err(DecodeError::FlagsReserved { packet_type, flags: first & 0x0F })
        }
    }

    #[test]
    fn pings_have_no_body() {
        assert_eq!(frame(&[0xC0, 0x01], 100), Err(DecodeError::TrailingBytes { count: 1 }));
        assert_eq!(frame(&[0xD0, 0x01], 100), Err(DecodeError::TrailingBytes { count: 1 }));
    }
}
