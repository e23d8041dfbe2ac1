//! Packets byte by byte, for those that no encoder would make.

/// A packet of these parts under this first byte, with the Remaining Length that they need.
pub fn packet(first: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut packet = vec![first];
    packet.extend(variable_byte_integer(body.len()));
    packet.extend(body);
    packet
}

/// Bytes behind their Two Byte length: a UTF-8 Encoded String, or Binary Data.
pub fn string(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let length = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
    [&length.to_be_bytes(), bytes].concat()
}

/// Properties behind their length.
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
