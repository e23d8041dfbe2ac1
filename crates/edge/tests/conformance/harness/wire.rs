//! Packets built byte by byte, for forms that no encoder produces.

/// Returns a packet with this first byte, these parts, and their Remaining Length.
pub fn packet(first: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut packet = vec![first];
    packet.extend(variable_byte_integer(body.len()));
    packet.extend(body);
    packet
}

/// Prefixes bytes with their two-byte length: a UTF-8 Encoded String or Binary Data.
pub fn string(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let length = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
    [&length.to_be_bytes(), bytes].concat()
}

/// Prefixes properties with their length.
pub fn properties(parts: &[&[u8]]) -> Vec<u8> {
    let block = parts.concat();
    [variable_byte_integer(block.len()), block].concat()
}

pub fn variable_byte_integer(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (value % 128) as u8;
        value /= 128;
        if value == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}
