//! Origin of a message in front of its properties. The broker defines what an origin contains.

/// First byte of properties that have an origin in front. No property has this identifier.
pub const ORIGIN_MARK: u8 = 0xfd;
/// The mark, and the length of the origin.
const HEADER: usize = 5;

/// Appends an origin to `out`, as it stands in front of properties.
pub fn put_origin(value: &[u8], out: &mut Vec<u8>) {
    out.push(ORIGIN_MARK);
    out.extend((value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// Splits properties into the value of the origin, if there is one, and the properties of the publisher.
pub fn split(properties: &[u8]) -> (Option<&[u8]>, &[u8]) {
    if properties.first() != Some(&ORIGIN_MARK) {
        return (None, properties);
    }
    let length = properties.get(1..HEADER).and_then(|length| length.try_into().ok());
    let length = length.map_or(0, |length| u32::from_le_bytes(length) as usize);
    let rest = properties.get(HEADER..).unwrap_or_default();
    let (value, rest) = rest.split_at_checked(length).unwrap_or((&[], &[]));
    (Some(value), rest)
}
