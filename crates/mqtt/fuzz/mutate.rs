//! A seeded mutator that knows the position of a packet's length.

use random::Random;

/// Changes a packet, or a stream that begins with one, in one to four places. Sometimes corrects the Remaining
/// Length, so that the codec reads the contents. Copies parts of `other`.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(4) {
        step(random, bytes, other);
    }
    bytes.truncate(LEN_MAX);
    if random.below(4) != 0 {
        fix_remaining_length(bytes);
    }
}

fn step(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        bytes.extend_from_slice(other);
    }
    if bytes.is_empty() {
        bytes.push(random.byte());
    }
    let at = random.below(bytes.len());
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.byte(),
        2 => bytes[at] = SIGNIFICANT_BYTES[random.below(SIGNIFICANT_BYTES.len())],
        3 => bytes[at] = bytes[at].wrapping_add(if random.below(2) == 0 { 1 } else { u8::MAX }),
        4 => bytes.insert(at, SIGNIFICANT_BYTES[random.below(SIGNIFICANT_BYTES.len())]),
        5 => {
            bytes.remove(at);
        }
        6 => bytes.truncate(at),
        7 => {
            let end = at + random.below(bytes.len() - at) + 1;
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        _ if other.is_empty() => bytes.push(random.byte()),
        _ => {
            let from = random.below(other.len());
            let to = from + random.below(other.len() - from) + 1;
            bytes.splice(at..at, other[from..to].iter().copied());
        }
    }
}

/// Writes a Remaining Length of one or two bytes that makes `bytes` a single packet.
pub fn fix_remaining_length(bytes: &mut Vec<u8>) {
    let Some(end) = bytes.iter().skip(1).position(|byte| byte & 0x80 == 0) else { return };
    let header = end + 2;
    let len = bytes.len() - header;
    let encoded: &[u8] = if len < 0x80 { &[len as u8] } else { &[len as u8 | 0x80, (len >> 7) as u8] };
    bytes.splice(1..header, encoded.iter().copied());
}

/// Maximum size in bytes; two bytes of Remaining Length are enough.
const LEN_MAX: usize = 4096;

/// Bytes with a meaning: property identifiers, wildcards, ends of UTF-8 sequences, limits of lengths, Reason Codes.
const SIGNIFICANT_BYTES: [u8; 48] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0B, 0x10, 0x11, 0x12, 0x13, 0x15, 0x16, 0x17,
    0x18, 0x19, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x2B, 0x2F,
    0x7E, 0x7F, 0x80, 0x81, 0x87, 0x8F, 0x92, 0x9F, 0xA2, 0xC0, 0xED, 0xF4, 0xFE, 0xFF,
];
