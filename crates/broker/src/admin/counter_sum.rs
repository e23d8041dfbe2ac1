//! Counters that begin again when another node leads a shard.

/// Sum of a counter that begins again with each leader of its shard. So a metric of this node never goes back.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterSum {
    total: u64,
    /// Value of the counter, as it was seen last.
    seen: u64,
}

impl CounterSum {
    /// Adds what was counted since the last call, and returns the sum.
    pub fn add(&mut self, counted: u64) -> u64 {
        self.total += if counted < self.seen { counted } else { counted - self.seen };
        self.seen = counted;
        self.total
    }

    /// Notes that the counter begins again: another node leads the shard.
    pub fn begin_again(&mut self) {
        self.seen = 0;
    }

    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_adds_up_over_the_times_as_leader() {
        let mut sum = CounterSum::default();
        assert_eq!([sum.add(2), sum.add(2), sum.add(5)], [2, 2, 5]);
        assert_eq!(sum.add(1), 6, "the node has led the shard again between two looks");
        sum.begin_again();
        assert_eq!([sum.add(3), sum.add(4)], [9, 10], "another node led it meanwhile");
        assert_eq!(sum.total(), 10);
    }
}
