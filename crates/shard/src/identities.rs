//! Identities of accepted messages.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Malformed, malformed};
use crate::ids::Identity;
use crate::wire::{Reader, Writer};

/// Identities by which messages are accepted once.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    known: BTreeSet<Identity>,
    /// Number of each origin below which all identities are forgotten. Their messages are not accepted any more: one
    /// that a former leader has sent may arrive after the message was settled without it.
    floors: BTreeMap<u64, u64>,
}

/// Maximum number of origins with a floor. Shards are such origins, and a cluster has far fewer.
const FLOORS_MAX: usize = 4096;

impl Identities {
    /// Records an identity. Returns false when its message was accepted before.
    pub fn insert(&mut self, identity: Identity) -> bool {
        !self.is_below_floor(identity) && self.known.insert(identity)
    }

    pub fn remove(&mut self, identity: Identity) {
        self.known.remove(&identity);
    }

    /// Returns whether a message with the identity was accepted, or will never be.
    pub fn contains(&self, identity: Identity) -> bool {
        self.is_below_floor(identity) || self.known.contains(&identity)
    }

    fn is_below_floor(&self, Identity { origin, number }: Identity) -> bool {
        !self.floors.is_empty() && self.floors.get(&origin).is_some_and(|floor| number < *floor)
    }

    pub fn forget_origin(&mut self, origin: u64) {
        self.forget_range(origin, u64::MAX);
    }

    /// Forgets the identities of an origin below a number, for good.
    pub fn forget_below(&mut self, Identity { origin, number }: Identity) {
        let Some(last) = number.checked_sub(1) else { return };
        self.forget_range(origin, last);
        if self.floors.len() < FLOORS_MAX || self.floors.contains_key(&origin) {
            let floor = self.floors.entry(origin).or_default();
            *floor = number.max(*floor);
        }
    }

    fn forget_range(&mut self, origin: u64, last: u64) {
        let of = |number| Identity { origin, number };
        self.known.extract_if(of(0)..=of(last), |_| true).for_each(drop);
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Identity> {
        self.known.iter().copied()
    }

    pub fn has_floors(&self) -> bool {
        !self.floors.is_empty()
    }

    pub fn encode(&self, out: &mut impl Writer) {
        out.u32(self.known.len() as u32);
        for identity in &self.known {
            out.u64(identity.origin);
            out.u64(identity.number);
        }
    }

    pub fn encode_floors(&self, out: &mut impl Writer) {
        out.u32(self.floors.len() as u32);
        for (origin, floor) in &self.floors {
            out.u64(*origin);
            out.u64(*floor);
        }
    }

    pub fn decode(reader: &mut Reader<'_>, with_floors: bool) -> Result<Self, Malformed> {
        let mut identities = Self::default();
        for _ in 0..reader.u32()? {
            identities.known.insert(Identity { origin: reader.u64()?, number: reader.u64()? });
        }
        let floors = if with_floors { reader.count(16)? } else { 0 };
        for _ in 0..floors {
            let floor = Identity { origin: reader.u64()?, number: reader.u64()? };
            let known = identities.known.len();
            identities.forget_below(floor);
            let is_new = identities.floors.len() <= FLOORS_MAX && floor.number > 0;
            if !is_new || identities.known.len() != known {
                return malformed("number below which identities are forgotten");
            }
        }
        if identities.floors.len() != floors {
            return malformed("number below which identities are forgotten");
        }
        Ok(identities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(origin: u64, number: u64) -> Identity {
        Identity { origin, number }
    }

    #[test]
    fn what_is_forgotten_below_a_number_is_not_accepted_again() {
        let mut identities = Identities::default();
        for number in [2, 4, 6] {
            assert!(identities.insert(identity(9, number)) && identities.insert(identity(8, number)));
        }
        identities.forget_below(identity(9, 6));
        let left: Vec<_> = identities.iter().map(|identity| (identity.origin, identity.number)).collect();
        assert_eq!(left, [(8, 2), (8, 4), (8, 6), (9, 6)]);
        assert!(!identities.insert(identity(9, 4)) && identities.contains(identity(9, 0)));
        assert!(identities.insert(identity(9, 8)));
        identities.forget_below(identity(9, 3));
        assert!(identities.contains(identity(9, 5)), "a floor never falls");
        let mut bytes = Vec::new();
        identities.encode(&mut bytes);
        identities.encode_floors(&mut bytes);
        let restored = Identities::decode(&mut Reader::new(&bytes), true).expect("as encoded");
        assert_eq!((restored.known, restored.floors), (identities.known, identities.floors));
    }
}
