//! Requests of one owner that were applied, as far as they may come again.

use std::collections::{BTreeMap, VecDeque};

use crate::error::{Malformed, malformed};
use crate::ids::SessionUid;
use crate::request_number::LANES_MAX;
use crate::wire::{Reader, Writer};

/// Maximum number of Claims of one owner that a shard remembers. An owner has at most as many unanswered ones.
pub const CLAIMS_MAX: usize = 1024;

/// Maximum number of refused commands of one lane that a shard remembers by their numbers.
pub const REFUSALS_MAX: usize = 256;

/// Applied requests of one owner: the results of its last Claims, the last number of each lane, and the commands of
/// each lane that were refused.
///
/// **Invariant:** at most [`CLAIMS_MAX`] Claims and [`LANES_MAX`] lanes. The highest lane has a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    claims: BTreeMap<u64, ClaimResult>,
    /// Numbers of the Claims in the order in which they were applied.
    claims_order: VecDeque<u64>,
    /// Last number by lane; 0 when there was none.
    lanes: Vec<u64>,
    /// Refused commands by lane, of lanes that had any.
    refusals: BTreeMap<u16, Refusals>,
}

/// Commands of one lane that were refused.
///
/// **Invariant:** 1 to [`REFUSALS_MAX`] numbers, which grow and are greater than `forgotten`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refusals {
    /// Commands up to this number may have been refused: there were too many to remember each; 0 when there were not.
    forgotten: u64,
    numbers: VecDeque<u64>,
}

impl Refusals {
    fn note(&mut self, number: u64) {
        self.numbers.push_back(number);
        if self.numbers.len() > REFUSALS_MAX
            && let Some(oldest) = self.numbers.pop_front()
        {
            self.forgotten = oldest;
        }
    }

    fn may_include(&self, number: u64) -> bool {
        number <= self.forgotten || self.numbers.binary_search(&number).is_ok()
    }

    /// Returns whether the invariant holds, for a lane with this last number.
    fn is_plausible(&self, last: u64) -> bool {
        let grow = self.numbers.iter().zip(self.numbers.iter().skip(1)).all(|(one, next)| one < next);
        let is_after = self.numbers.front().is_some_and(|first| *first > self.forgotten);
        grow && is_after && self.numbers.len() <= REFUSALS_MAX && self.numbers.back() <= Some(&last)
    }
}

/// Form in which requests are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestsForm {
    /// Nothing is encoded.
    Absent,
    WithoutRefusals,
    WithRefusals,
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

    /// Notes that a command of a lane, whose number was noted before, was refused.
    pub fn note_refused(&mut self, lane: u16, number: u64) {
        debug_assert_eq!(self.last_of_lane(lane), number);
        self.refusals.entry(lane).or_default().note(number);
    }

    /// Returns whether a command of a lane was refused, or may have been.
    pub fn may_have_refused(&self, lane: u16, number: u64) -> bool {
        self.refusals.get(&lane).is_some_and(|refusals| refusals.may_include(number))
    }

    pub fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    pub fn encode(&self, form: RequestsForm, out: &mut impl Writer) {
        if form == RequestsForm::Absent {
            return;
        }
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
        if form == RequestsForm::WithoutRefusals {
            return;
        }
        out.u16(self.refusals.len() as u16);
        for (lane, Refusals { forgotten, numbers }) in &self.refusals {
            out.u16(*lane);
            out.u64(*forgotten);
            out.u16(numbers.len() as u16);
            numbers.iter().for_each(|number| out.u64(*number));
        }
    }

    pub fn decode(form: RequestsForm, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut requests = Self::default();
        if form == RequestsForm::Absent {
            return Ok(requests);
        }
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
        if form == RequestsForm::WithRefusals {
            requests.decode_refusals(reader)?;
        }
        Ok(requests)
    }

    fn decode_refusals(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        for _ in 0..reader.u16()? {
            let (lane, forgotten) = (reader.u16()?, reader.u64()?);
            let numbers: Result<_, Malformed> = (0..reader.u16()?).map(|_| reader.u64()).collect();
            let refusals = Refusals { forgotten, numbers: numbers? };
            let is_plausible = refusals.is_plausible(self.last_of_lane(lane));
            if !is_plausible || self.refusals.insert(lane, refusals).is_some() {
                return malformed("refused commands of a lane");
            }
        }
        Ok(())
    }

    /// Checks the invariant.
    pub fn check_invariants(&self) {
        assert!(self.lanes.len() <= usize::from(LANES_MAX) && self.lanes.last() != Some(&0));
        assert!(self.claims.len() <= CLAIMS_MAX && self.claims.len() == self.claims_order.len());
        assert!(self.claims_order.iter().all(|number| self.claims.contains_key(number)));
        let mut refusals = self.refusals.iter();
        assert!(refusals.all(|(lane, refusals)| refusals.is_plausible(self.last_of_lane(*lane))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Requests, Malformed> {
        decoded_as(RequestsForm::WithoutRefusals, bytes)
    }

    fn decoded_as(form: RequestsForm, bytes: &[u8]) -> Result<Requests, Malformed> {
        let mut reader = Reader::new(bytes);
        let requests = Requests::decode(form, &mut reader)?;
        reader.finish()?;
        Ok(requests)
    }

    #[test]
    fn numbers_of_a_lane_only_grow() {
        let mut requests = Requests::default();
        assert!(requests.advance(2, 5) && !requests.advance(2, 5) && !requests.advance(2, 4));
        assert!(requests.advance(2, 9) && requests.advance(1, 1), "each lane has numbers of its own");
        let mut bytes = Vec::new();
        requests.encode(RequestsForm::WithoutRefusals, &mut bytes);
        assert_eq!(decoded(&bytes), Ok(requests));
    }

    #[test]
    fn the_last_refused_commands_are_remembered_and_earlier_ones_are_in_doubt() {
        let mut requests = Requests::default();
        let refusals = REFUSALS_MAX as u64;
        // Every other command is refused, and one more than are remembered.
        for number in 1..=2 * refusals + 2 {
            assert!(requests.advance(3, number));
            if number % 2 == 0 {
                requests.note_refused(3, number);
            }
            requests.check_invariants();
        }
        let mut bytes = Vec::new();
        requests.encode(RequestsForm::WithRefusals, &mut bytes);
        assert_eq!(decoded_as(RequestsForm::WithRefusals, &bytes), Ok(requests.clone()));
        let refused = |number| requests.may_have_refused(3, number);
        assert!(refused(1) && refused(2), "there is no room for the first one");
        assert!((3..=2 * refusals + 2).all(|number| refused(number) == (number % 2 == 0)));
        assert!(!requests.may_have_refused(2, 2), "each lane has its own");
    }

    #[test]
    fn refused_commands_that_contradict_the_lanes_are_not_read() {
        let encoded = |lane: u16, forgotten: u64, numbers: &[u64]| {
            let mut requests = Requests::default();
            requests.advance(1, 9);
            let mut bytes = Vec::new();
            requests.encode(RequestsForm::WithoutRefusals, &mut bytes);
            bytes.u16(1);
            bytes.u16(lane);
            bytes.u64(forgotten);
            bytes.u16(numbers.len() as u16);
            numbers.iter().for_each(|number| bytes.u64(*number));
            decoded_as(RequestsForm::WithRefusals, &bytes)
        };
        assert!(encoded(1, 3, &[4, 9]).is_ok());
        for (lane, forgotten, numbers) in [
            (1, 0, &[][..]),
            (1, 4, &[4, 9]),
            (1, 0, &[9, 4]),
            (1, 0, &[4, 4]),
            (1, 0, &[10]),
            (2, 0, &[4]),
            (1, 0, &[1; REFUSALS_MAX + 1]),
        ] {
            assert!(encoded(lane, forgotten, numbers).is_err(), "{lane} {forgotten} {numbers:?}");
        }
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
        requests.encode(RequestsForm::WithoutRefusals, &mut bytes);
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
