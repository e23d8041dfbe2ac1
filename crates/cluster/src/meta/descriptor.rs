//! Node descriptor: what a node announces to nodes that do not know it yet.

use std::hash::Hasher as _;

use fnv::FnvHasher;
use link::{DESCRIPTOR_MAX, NodeId};
use replog::Incarnation;

use super::reader::{Reader, put_text};
use crate::config::{NodeInfo, Role};

const VERSION: u8 = 1;

/// Descriptor that is sent with the name in the handshake of an introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDescriptor {
    pub role: Role,
    pub region: Box<str>,
    /// Address at which it can be reached, by its own account.
    pub address: Box<str>,
    pub incarnation: Incarnation,
    /// Cluster that it belongs to ([`Roster::founded`](super::Roster)); 0 while there is none.
    pub founded: u128,
    /// Hash, on a core, of the names of all cores that it has met. 0: it founds a cluster alone.
    pub known: u64,
    /// Addresses of other cores without a cluster, as many as fit, on a core that belongs to no cluster yet.
    pub others: Vec<Box<str>>,
}

impl NodeDescriptor {
    /// Encodes the descriptor in at most [`DESCRIPTOR_MAX`] bytes, if region and address have the lengths that the
    /// configuration allows.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.push(match self.role {
            Role::Core => 0,
            Role::Replicant => 1,
        });
        out.extend(self.incarnation.0.to_le_bytes());
        out.extend(self.founded.to_le_bytes());
        out.extend(self.known.to_le_bytes());
        put_text(&self.region, &mut out);
        put_text(&self.address, &mut out);
        for other in &self.others {
            if out.len() + 1 + other.len() > DESCRIPTOR_MAX {
                break;
            }
            put_text(other, &mut out);
        }
        out
    }

    /// Decodes a descriptor; returns `None` for invalid bytes or an unknown version. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return None;
        }
        let role = match reader.u8()? {
            0 => Role::Core,
            1 => Role::Replicant,
            _ => return None,
        };
        Some(Self {
            role,
            incarnation: Incarnation(reader.u64()?),
            founded: reader.u128()?,
            known: reader.u64()?,
            region: reader.text()?.into(),
            address: reader.text()?.into(),
            others: std::iter::from_fn(|| reader.text().map(Into::into)).collect(),
        })
    }

    pub fn info(&self, name: &str) -> NodeInfo {
        NodeInfo {
            name: name.into(),
            role: self.role,
            region: self.region.clone(),
            address: self.address.clone(),
        }
    }
}

/// Returns a hash of a set of nodes: equal for equal sets, and not 0.
pub fn hash_of(nodes: impl Iterator<Item = NodeId>) -> u64 {
    let mut hasher = FnvHasher::default();
    nodes.for_each(|node| hasher.write(&node.0.to_le_bytes()));
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn a_descriptor_keeps_its_byte_format() {
        let descriptor = NodeDescriptor {
            role: Role::Replicant,
            region: "eu".into(),
            address: "h:1".into(),
            incarnation: Incarnation(2),
            founded: 3,
            known: 4,
            others: vec!["a:1".into(), "b:1".into()],
        };
        let golden = concat!(
            "0101",
            "0200000000000000",
            "03000000000000000000000000000000",
            "0400000000000000",
            "026575",
            "03683a31",
            "03613a31",
            "03623a31"
        );
        let bytes = descriptor.encode();
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, golden);
        assert_eq!(NodeDescriptor::decode(&bytes), Some(descriptor));
        // Older descriptors have no other addresses and end after the address.
        let before = bytes.len() - 8;
        assert_eq!(
            NodeDescriptor::decode(&bytes[..before]).map(|descriptor| descriptor.others.len()),
            Some(0)
        );
        for length in 0..before {
            assert_eq!(NodeDescriptor::decode(&bytes[..length]), None);
        }
        let full = NodeDescriptor {
            others: vec!["h".repeat(100).into(); 9],
            ..NodeDescriptor::decode(&bytes).unwrap()
        };
        assert!(full.encode().len() <= DESCRIPTOR_MAX);
        assert_eq!(NodeDescriptor::decode(&full.encode()).unwrap().others.len(), 4);
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = NodeDescriptor::decode(&bad);
            }
        }
        assert_eq!(hash_of(std::iter::empty()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash_of([NodeId(1)].into_iter()), 0x89cd_3129_1d2a_efa4);
    }
}
