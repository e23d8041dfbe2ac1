//! Requests of one owner that were applied, as far as they may come again.

use std::collections::{BTreeMap, VecDeque};

use crate::error::{Malformed, malformed};
use crate::ids::SessionUid;
use crate::request_number::LANES_MAX;
use crate::wire::{Reader, Writer};

/// Maximum number of Claims of one owner that a shard remembers. An owner has at most as many unanswered ones.
pub const CLAIMS_MAX: usize = 1024;

/// Applied requests of one owner: the results of its last Claims, and the last number of each lane.
///
/// **Invariant:** at most [`CLAIMS_MAX`] Claims and [`LANES_MAX`] lanes. The highest lane has a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    claims: BTreeMap<u64, ClaimResult>,
    /// Numbers of the Claims in the order in which they were applied.
    claims_order: VecDeque<u64>,
    /// Last number by lane; 0 when there was none.
    lanes: Vec<u64>,
}

/// Session that a Claim got, with the epoch, and whether it existed before. `None` when there was to be none.
pub(crate) type ClaimResult = Option<(SessionUid, u32, bool)>;

impl Requests {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.lanes.is_empty()
    }

    /// Returns the result of a Claim; `None` when the number is unknown.
    pub fn claim(&self, number: u64) -> Option<ClaimResult> {
        self.claims.get(&number).copied()
    }

    /// Remembers a Claim, and forgets the oldest one when there are too many. Returns false when the number is known.
    pub fn note_claim(&mut self, number: u64, result: ClaimResult) -> bool {
        if self.claims.insert(number, result).is_some() {
            return false;
        }
        self.claims_order.push_back(number);
        if self.claims_order.len() > CLAIMS_MAX
            && let Some(oldest) = self.claims_order.pop_front()
        {
            self.claims.remove(&oldest);
        }
        true
    }

    /// Notes a number of a lane. Returns false when it is not greater than the last one.
    pub fn advance(&mut self, lane: u16, number: u64) -> bool {
        debug_assert!(number > 0 && lane < LANES_MAX);
        let at = usize::from(lane);
        if self.lanes.get(at).is_some_and(|last| number <= *last) {
            return false;
        }
        if self.lanes.len() <= at {
            self.lanes.reserve_exact(at + 1 - self.lanes.len());
            self.lanes.resize(at + 1, 0);
        }
        self.lanes[at] = number;
        true
    }

    /// Returns the last number of a lane; 0 when there was none.
    pub fn last_of_lane(&self, lane: u16) -> u64 {
        self.lanes.get(usize::from(lane)).copied().unwrap_or(0)
    }

    pub fn encode(&self, out: &mut impl Writer) {
        out.u16(self.lanes.len() as u16);
        self.lanes.iter().for_each(|last| out.u64(*last));
        out.u16(self.claims_order.len() as u16);
        for number in &self.claims_order {
            out.u64(*number);
            let result = self.claims.get(number).copied().flatten();
            out.bool(result.is_some());
            if let Some((session, epoch, present)) = result {
                out.u64(session.as_u64());
                out.u32(epoch);
                out.bool(present);
            }
        }
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut requests = Self::default();
        let lanes = reader.u16()?;
        if lanes > LANES_MAX {
            return malformed("number of lanes");
        }
        for _ in 0..lanes {
            requests.lanes.push(reader.u64()?);
        }
        let claims = reader.u16()?;
        for _ in 0..claims {
            let number = reader.u64()?;
            let result = match reader.bool()? {
                true => Some((SessionUid::from_u64(reader.u64()?), reader.u32()?, reader.bool()?)),
                false => None,
            };
            if !requests.note_claim(number, result) {
                return malformed("duplicate Claim");
            }
        }
        if usize::from(claims) > CLAIMS_MAX || requests.lanes.last() == Some(&0) {
            return malformed("requests of an incarnation");
        }
        Ok(requests)
    }

    /// Checks the invariant.
    pub fn check_invariants(&self) {
        assert!(self.lanes.len() <= usize::from(LANES_MAX) && self.lanes.last() != Some(&0));
        assert!(self.claims.len() <= CLAIMS_MAX && self.claims.len() == self.claims_order.len());
        assert!(self.claims_order.iter().all(|number| self.claims.contains_key(number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Requests, Malformed> {
        let mut reader = Reader::new(bytes);
        let requests = Requests::decode(&mut reader)?;
        reader.finish()?;
        Ok(requests)
    }

    #[test]
    fn numbers_of_a_lane_only_grow() {
        let mut requests = Requests::default();
        assert!(requests.advance(2, 5) && !requests.advance(2, 5) && !requests.advance(2, 4));
        assert!(requests.advance(2, 9) && requests.advance(1, 1), "each lane has numbers of its own");
        let mut bytes = Vec::new();
        requests.encode(&mut bytes);
        assert_eq!(decoded(&bytes), Ok(requests));
    }

    #[test]
    fn the_last_claims_are_remembered_in_the_order_of_their_application() {
        let mut requests = Requests::default();
        let result = |number| Some((SessionUid::from_u64(number), 3, number % 2 == 0));
        // Numbers fall, so the order is not that of the numbers.
        for number in (0..=CLAIMS_MAX as u64).rev() {
            assert!(requests.note_claim(number, result(number)));
            requests.check_invariants();
        }
        assert_eq!(requests.claim(CLAIMS_MAX as u64), None, "the oldest");
        assert_eq!(requests.claim(0), Some(result(0)));
        assert!(!requests.note_claim(7, None));
        let mut bytes = Vec::new();
        requests.encode(&mut bytes);
        let mut again = decoded(&bytes).expect("as encoded");
        assert!(again.note_claim(9_999, None));
        assert_eq!(again.claim(CLAIMS_MAX as u64 - 1), None, "the order is stored too");
    }

    #[test]
    fn more_than_the_maximum_is_refused() {
        let encoded = |lanes: u16, last: u64, claims: u16| {
            let mut bytes = Vec::new();
            bytes.u16(lanes);
            (0..lanes).for_each(|_| bytes.u64(last));
            bytes.u16(claims);
            for number in 0..claims {
                bytes.u64(u64::from(number));
                bytes.bool(false);
            }
            bytes
        };
        assert!(decoded(&encoded(LANES_MAX, 1, CLAIMS_MAX as u16)).is_ok());
        assert!(decoded(&encoded(LANES_MAX + 1, 1, 0)).is_err());
        assert!(decoded(&encoded(3, 0, 0)).is_err(), "the highest lane has a number");
        assert!(decoded(&encoded(0, 0, CLAIMS_MAX as u16 + 1)).is_err());
    }
}
