//! Connection counts that all reactors share: all connections, and half-open ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::listener::Pace;

/// Connection counts of a node.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    pub connections: AtomicUsize,
    /// Number of reactors of a stopping node that have no connections left.
    pub emptied: AtomicUsize,
    pub pace: Pace,
    half_open: AtomicUsize,
    /// Half-open connections by address. Only those that are counted by address; no entry has a count of 0.
    by_source: Mutex<HashMap<IpAddr, u32>>,
}

/// Permit of one half-open connection. Dropping it frees the permit.
pub(crate) struct HalfOpen {
    connection_counts: Arc<ConnectionCounts>,
    source: Option<IpAddr>,
}

impl ConnectionCounts {
    /// Returns the number of connections whose CONNECT has not succeeded yet.
    pub fn half_open(&self) -> usize {
        self.half_open.load(Ordering::Relaxed)
    }

    /// Counts a new connection.
    pub fn enter(self: &Arc<Self>) -> HalfOpen {
        self.half_open.fetch_add(1, Ordering::Relaxed);
        HalfOpen { connection_counts: self.clone(), source: None }
    }
}

impl HalfOpen {
    /// Counts the connection by `address` too, with a limit of `max`; 0 is no limit. Returns false at the limit.
    pub fn count_from(&mut self, address: IpAddr, max: u32) -> bool {
        if max == 0 || self.source.is_some() {
            return true;
        }
        let source = network_of(address);
        let mut by_source = sync::lock(&self.connection_counts.by_source);
        let count = by_source.entry(source).or_default();
        if *count >= max {
            return false;
        }
        *count += 1;
        self.source = Some(source);
        true
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.connection_counts.half_open.fetch_sub(1, Ordering::Relaxed);
        let Some(source) = self.source else { return };
        let mut by_source = sync::lock(&self.connection_counts.by_source);
        if let Some(count) = by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                by_source.remove(&source);
            }
        }
    }
}

/// Returns an IPv4 address as it is, and the /64 of an IPv6 address: one client usually has a whole /64.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            [a, b, c, d, 0, 0, 0, 0].into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_address_has_a_limit_and_frees_its_permits() {
        let connection_counts = Arc::new(ConnectionCounts::default());
        let enter = |from: &str| {
            let mut half_open = connection_counts.enter();
            half_open.count_from(address(from), 2).then_some(half_open)
        };
        let first = enter("192.0.2.1");
        let _second = enter("::ffff:192.0.2.1").expect("the second");
        assert!(first.is_some() && enter("192.0.2.1").is_none());
        let _other = enter("192.0.2.2").expect("another's first");
        assert_eq!(connection_counts.half_open(), 3);
        drop(first);
        let _again = enter("192.0.2.1").expect("there is room");
        let _network = [enter("2001:db8::1"), enter("2001:db8::ffff:1")];
        assert!(enter("2001:db8:0:0:7::").is_none(), "the same /64");
        assert!(enter("2001:db8:0:1::1").is_some());
    }

    #[test]
    fn no_counts_remain_of_closed_connections() {
        let connection_counts = Arc::new(ConnectionCounts::default());
        for last in 0..100 {
            let mut half_open = connection_counts.enter();
            assert!(half_open.count_from([192, 0, 2, last].into(), 1));
            assert!(half_open.count_from([192, 0, 2, 1].into(), 1), "counted already");
        }
        assert_eq!(connection_counts.half_open(), 0);
        assert!(connection_counts.by_source.lock().expect("whole").is_empty());
        let mut unlimited: Vec<_> = (0..5).map(|_| connection_counts.enter()).collect();
        assert!(unlimited.iter_mut().all(|half_open| half_open.count_from([192, 0, 2, 1].into(), 0)));
        assert!(connection_counts.by_source.lock().expect("whole").is_empty());
    }
}
