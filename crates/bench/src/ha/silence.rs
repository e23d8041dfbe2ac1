//! The longest time without a delivery.

/// Longest silence. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    last: u64,
    longest: u64,
    began: u64,
}

impl Silence {
    pub fn from(now: u64) -> Silence {
        Silence { last: now, longest: 0, began: now }
    }

    /// Records a delivery.
    pub fn record_delivery(&mut self, now: u64) {
        let silence = now.saturating_sub(self.last);
        if silence > self.longest {
            self.longest = silence;
            self.began = self.last;
        }
        self.last = now;
    }

    /// The longest silence and its start, if the time ends at `end`.
    pub fn longest(mut self, end: u64) -> (u64, u64) {
        if end > self.last {
            self.record_delivery(end);
        }
        (self.longest, self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_silence_lasts_until_the_end() {
        let mut silence = Silence::from(100);
        silence.record_delivery(110);
        silence.record_delivery(150);
        silence.record_delivery(155);
        assert_eq!(silence.longest(160), (40, 110));
        assert_eq!(silence.longest(300), (145, 155));
        assert_eq!(silence.longest(0), (40, 110), "a delivery after the end counts with its time");
    }
}
