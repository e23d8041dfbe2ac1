//! Announcement: what a core sends to the nodes that it is linked to. It is a roster, and for nodes with
//! [`SHARDS`](crate::features::SHARDS) the placement of shards, too:
//!
//! ```text
//! 1 u8, the rest of a roster
//! 2 u8, length u32 of the roster, roster, placement
//! ```

use std::sync::Arc;

use super::placement::Placement;
use super::reader::Reader;
use super::roster::Roster;
use crate::features::SHARDS;

/// First byte of an announcement with a placement.
const WITH_PLACEMENT: u8 = 2;

/// Encoded announcement of a core, in both forms.
#[derive(Debug)]
pub struct Announcement {
    /// Index of the roster, and version of the placement.
    versions: (u64, u64),
    roster: Arc<[u8]>,
    /// `None` while there is no placement.
    with_placement: Option<Arc<[u8]>>,
}

/// Decoded announcement of another core.
#[derive(Debug, PartialEq, Eq)]
pub struct Announced {
    pub roster: Roster,
    pub placement: Option<Placement>,
}

impl Announcement {
    pub fn new(roster: &Roster, placement: Option<&Placement>) -> Self {
        let versions = (roster.index, placement.map_or(0, |placement| placement.version));
        let roster: Arc<[u8]> = roster.encode().into();
        let with_placement = placement.map(|placement| {
            let mut out = vec![WITH_PLACEMENT];
            out.extend((roster.len() as u32).to_le_bytes());
            out.extend(&*roster);
            out.extend(placement.encode());
            out.into()
        });
        Self { versions, roster, with_placement }
    }

    /// Returns the form for a node with these features, and the versions of the roster and of the placement in it.
    pub fn for_node(&self, features: Option<u64>) -> ((u64, u64), &Arc<[u8]>) {
        let has_it = features.is_some_and(|features| features & SHARDS != 0);
        match self.with_placement.as_ref().filter(|_| has_it) {
            Some(bytes) => (self.versions, bytes),
            None => ((self.versions.0, 0), &self.roster),
        }
    }
}

impl Announced {
    /// Decodes an announcement in any form; returns `None` for anything else. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.first() != Some(&WITH_PLACEMENT) {
            return Some(Self { roster: Roster::decode(bytes)?, placement: None });
        }
        let mut reader = Reader::new(&bytes[1..]);
        let length = reader.u32()? as usize;
        let roster = Roster::decode(reader.bytes(length)?)?;
        Some(Self { roster, placement: Some(Placement::decode(reader.rest())?) })
    }
}

#[cfg(test)]
mod tests {
    use consensus::ReplicaId;
    use link::NodeId;

    use super::*;
    use crate::config::Replicas;
    use crate::meta::CoreLog;
    use crate::meta::placement::planner::{Core, Standing, found};

    #[test]
    fn only_nodes_with_the_feature_get_the_placement_and_others_get_the_same_bytes_as_before() {
        let roster = Roster { index: 9, founded: 3, ..Roster::default() };
        let log = CoreLog { node: NodeId(1), replica: ReplicaId(2) };
        let core = Core { log, region: "".into(), standing: Standing::Serves };
        let mut placement = found(&[core], 2, Replicas::default(), [7; 16]).expect("a core");
        placement.version = 7;
        let announcement = Announcement::new(&roster, Some(&placement));
        for features in [None, Some(!SHARDS)] {
            let (versions, bytes) = announcement.for_node(features);
            assert_eq!((versions, &**bytes), ((9, 0), &*roster.encode()));
            let announced = Announced { roster: roster.clone(), placement: None };
            assert_eq!(Announced::decode(bytes), Some(announced));
        }
        let (versions, bytes) = announcement.for_node(Some(SHARDS));
        assert_eq!((versions, &bytes[..5]), ((9, 7), &[2, 25, 0, 0, 0][..]));
        assert_eq!(&bytes[5..], [roster.encode(), placement.encode()].concat());
        let announced = Announced { roster: roster.clone(), placement: Some(placement) };
        assert_eq!(Announced::decode(bytes), Some(announced));
        for length in 0..bytes.len() {
            assert_eq!(Announced::decode(&bytes[..length]), None, "{length}");
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.to_vec();
                bad[at] = value;
                let _ = Announced::decode(&bad);
            }
        }
        let (versions, bytes) = (Announcement::new(&roster, None), roster.encode());
        assert_eq!(versions.for_node(Some(SHARDS)), ((9, 0), &bytes.into()));
    }
}
