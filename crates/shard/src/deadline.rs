//! Deadlines of sessions.

/// Time and slot of a session, in that order. Three words rather than two larger ones, one of them half empty: each
/// session that will end has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    high: u32,
    low: u32,
    pub slot: u32,
}

const _: () = assert!(size_of::<Deadline>() == 12);

impl Deadline {
    /// Creates a deadline. `at` is a time of the state's clock in ms.
    pub fn new(at: u64, slot: u32) -> Self {
        Self { high: (at >> 32) as u32, low: at as u32, slot }
    }

    pub fn at(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_in_the_order_of_their_times() {
        let (early, late) = (u64::from(u32::MAX), u64::from(u32::MAX) + 1);
        assert!(Deadline::new(early, 9) < Deadline::new(late, 1));
        assert!(Deadline::new(late, 1) < Deadline::new(late, 2));
        assert_eq!(Deadline::new(late, 1).at(), late);
    }
}
