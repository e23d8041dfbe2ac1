use broker::peers::{Members, Wants};
use replog::Value;

/// Interest of a node in a Topic Filter, or its members of a shared group, as sent to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Wants(Wants),
    /// Members of a shared group. The key is `$share/{ShareName}/{filter}`.
    Members(Members),
}

/// First byte of members; the bits of [`Wants`] are below. The lowest bit is set when members are connected; their
/// number follows as u32.
const MEMBERS: u8 = 0x80;

impl Value for Interest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Wants(wants) => out.push(wants.bits()),
            Self::Members(members) => {
                out.push(MEMBERS | u8::from(members.are_connected));
                out.extend(members.count.to_le_bytes());
            }
        }
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first()?;
        if first & MEMBERS == 0 {
            *bytes = rest;
            return Some(Self::Wants(Wants::from_bits(*first)));
        }
        let (count, rest) = rest.split_first_chunk()?;
        *bytes = rest;
        let are_connected = first & 1 != 0;
        Some(Self::Members(Members { count: u32::from_le_bytes(*count), are_connected }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn interests_keep_their_byte_format() {
        let members = Members { count: 0x0102_0304, are_connected: true };
        for (interest, golden) in [
            (Interest::Wants(Wants::ALL.with(Wants::STORED)), &[5][..]),
            (Interest::Members(members), &[0x81, 4, 3, 2, 1]),
            (Interest::Members(Members { are_connected: false, ..members }), &[0x80, 4, 3, 2, 1]),
        ] {
            let mut bytes = Vec::new();
            interest.encode(&mut bytes);
            assert_eq!(bytes, golden);
            assert_eq!(Interest::decode(&mut &*golden), Some(interest));
            for length in 0..golden.len() {
                assert_eq!(Interest::decode(&mut &golden[..length]), None);
            }
        }
    }
}
