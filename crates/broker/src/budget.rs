//! Publish rate of a client: a token bucket of messages and one of bytes.

use std::time::Duration;

use crate::access::Rates;
use crate::ids::Time;
use crate::settings::Limits;

/// Remaining messages and bytes of a client, in thousandths, so that slow rates add up.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Time up to which the buckets are filled; `NEVER` at first.
    filled: Option<Time>,
    messages: i64,
    /// Negative after a message that was larger than the rest.
    bytes: i64,
}

impl From<&Limits> for Rates {
    fn from(limits: &Limits) -> Self {
        Self {
            messages_per_second: limits.messages_per_second,
            bytes_per_second: limits.bytes_per_second.bytes(),
            ..Self::default()
        }
    }
}

impl Budget {
    /// Takes a message of `size` bytes from the buckets.
    ///
    /// # Errors
    /// The time until which the message has to wait. Nothing was taken.
    pub fn take(&mut self, now: Time, rates: Rates, size: usize) -> Result<(), Time> {
        let Rates { messages_per_second, messages_burst, bytes_per_second, bytes_burst } = rates;
        let messages_rate = i64::from(messages_per_second);
        let bytes_rate = i64::try_from(bytes_per_second).unwrap_or(i64::MAX).min(RATE_MAX);
        let messages_max = messages_rate.max(i64::from(messages_burst)) * 1000;
        let bytes_max =
            bytes_rate.max(i64::try_from(bytes_burst).unwrap_or(i64::MAX).min(RATE_MAX)).saturating_mul(1000);
        let elapsed = self.filled.map_or(i64::MAX, |filled| now.since(filled).as_millis() as i64);
        let fill =
            |level: i64, rate: i64, max: i64| level.saturating_add(rate.saturating_mul(elapsed)).min(max);
        self.messages = fill(self.messages, messages_rate, messages_max);
        self.bytes = fill(self.bytes, bytes_rate, bytes_max);
        self.filled = Some(now);
        let wait = |missing: i64, rate: i64| (missing as u64).div_ceil(rate.max(1) as u64).max(1);
        let mut millis = 0;
        if messages_rate > 0 && self.messages < 1000 {
            millis = wait(1000 - self.messages, messages_rate);
        }
        if bytes_rate > 0 && self.bytes <= 0 {
            millis = millis.max(wait(1 - self.bytes, bytes_rate));
        }
        if millis > 0 {
            return Err(now.after(Duration::from_millis(millis)));
        }
        self.messages -= if messages_rate > 0 { 1000 } else { 0 };
        self.bytes -= if bytes_rate > 0 { (size as i64).saturating_mul(1000) } else { 0 };
        Ok(())
    }
}

/// Maximum rate in bytes per second; a greater one means no limit.
const RATE_MAX: i64 = 1 << 50;

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(
        messages_per_second: u32,
        messages_burst: u32,
        bytes_per_second: u64,
        bytes_burst: u64,
    ) -> Rates {
        Rates { messages_per_second, messages_burst, bytes_per_second, bytes_burst }
    }

    /// Number of messages of `size` bytes that a client publishes in `seconds` if it sends as soon as it may.
    fn sent(rates: Rates, size: usize, seconds: u64) -> u64 {
        let (mut budget, mut now, mut sent) = (Budget::default(), Time(0), 0);
        while now.0 < seconds * 1000 {
            match budget.take(now, rates, size) {
                Ok(()) => sent += 1,
                Err(later) => {
                    assert!(later > now);
                    now = later;
                }
            }
            assert!(sent < 1_000_000);
        }
        sent
    }

    #[test]
    fn a_second_adds_the_rate_and_a_pause_the_burst() {
        assert_eq!(sent(rates(10, 0, 0, 0), 1, 5), 10 + 5 * 10 - 1);
        assert_eq!(sent(rates(10, 100, 0, 0), 1, 5), 100 + 5 * 10 - 1);
        assert_eq!(sent(rates(1, 0, 0, 0), 1, 60), 60);
        let mut budget = Budget::default();
        let five = rates(5, 5, 0, 0);
        assert_eq!((0..9).filter(|_| budget.take(Time(0), five, 1).is_ok()).count(), 5);
        assert_eq!((0..9).filter(|_| budget.take(Time(1_000_000), five, 1).is_ok()).count(), 5);
    }

    #[test]
    fn a_message_larger_than_the_rest_is_accepted_and_delays_the_next() {
        let kib = rates(0, 0, 1000, 0);
        let mut budget = Budget::default();
        assert_eq!(budget.take(Time(0), kib, 5000), Ok(()));
        let later = budget.take(Time(0), kib, 1).expect_err("4,000 bytes of debt");
        assert_eq!(later, Time(4001));
        assert_eq!(budget.take(later, kib, 1), Ok(()));
        assert_eq!(sent(kib, 100, 10), 11 * 10);
    }

    #[test]
    fn a_rate_of_0_is_no_limit_and_no_number_overflows() {
        let (mut none, mut most) = (Budget::default(), Budget::default());
        for millis in [0, 1, u64::MAX / 4] {
            assert_eq!(none.take(Time(millis), rates(0, 9, 0, 9), usize::MAX), Ok(()));
            assert_eq!(most.take(Time(millis), rates(u32::MAX, u32::MAX, u64::MAX, u64::MAX), 9), Ok(()));
        }
    }
}
