//! When a session is to be looked at.

/// Ordered by time, then by slot. In three words rather than two, one of which would be half empty: there is one for each
/// session that will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    high: u32,
    low: u32,
    pub slot: u32,
}

const _: () = assert!(size_of::<Deadline>() == 12);

impl Deadline {
    /// `at` by the state's clock, ms.
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
