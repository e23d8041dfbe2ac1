use broker::peers::{Members, Wants};
use replog::Value;

/// What a node wants of a Topic Filter, or the members that it has of a shared group, as other nodes hear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Wants(Wants),
    /// The key is `$share/{ShareName}/{filter}`.
    Members(Members),
}

/// The first byte of members; bits of [`Wants`] are below. Whether they are connected is the lowest bit, their number follows as u32.
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

    /// The bytes of version 1, for ever.
    #[test]
    fn interests_have_these_bytes() {
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
