//! Limits on the number of connections, in total and of one address.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Number of connections of this machine beyond the maximum, so that a local operator can connect.
const LOOPBACK_RESERVE: usize = 16;
/// Maximum number of connections beyond the limit that may still request `/health`. A further one replaces the oldest.
const SNIFF_MAX: usize = 32;

/// Slots of all connections of a server.
#[derive(Debug)]
pub struct Slots {
    all: Arc<Semaphore>,
    for_loopback: Arc<Semaphore>,
    per_address: u32,
    addresses: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// A connection's slot, released when it is dropped.
#[derive(Debug)]
pub struct Slot {
    _permit: OwnedSemaphorePermit,
    _of_address: Option<OfAddress>,
}

/// Reason why a connection gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The server has the maximum number of connections.
    All,
    /// This address has the maximum number of connections.
    Address,
}

impl Slots {
    pub fn new(max: u32, per_address: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(max as usize)),
            for_loopback: Arc::new(Semaphore::new(LOOPBACK_RESERVE)),
            per_address,
            addresses: Arc::default(),
        }
    }

    /// Slots that are not reserved.
    pub fn all(&self) -> &Arc<Semaphore> {
        &self.all
    }

    /// # Errors
    /// [`NoSlot`].
    pub fn take(&self, peer: IpAddr) -> Result<Slot, NoSlot> {
        let take = |slots: &Arc<Semaphore>| slots.clone().try_acquire_owned().map_err(|_| NoSlot::All);
        if peer.to_canonical().is_loopback() {
            let permit = take(&self.all).or_else(|_| take(&self.for_loopback))?;
            return Ok(Slot { _permit: permit, _of_address: None });
        }
        let of_address = OfAddress::take(&self.addresses, network(peer), self.per_address)?;
        Ok(Slot { _permit: take(&self.all)?, _of_address: Some(of_address) })
    }
}

/// One connection of an address.
#[derive(Debug)]
struct OfAddress {
    addresses: Arc<Mutex<HashMap<IpAddr, u32>>>,
    address: IpAddr,
}

impl OfAddress {
    fn take(addresses: &Arc<Mutex<HashMap<IpAddr, u32>>>, address: IpAddr, max: u32) -> Result<Self, NoSlot> {
        let mut counts = sync::lock(addresses);
        let count = counts.entry(address).or_default();
        if *count >= max {
            return Err(NoSlot::Address);
        }
        *count += 1;
        Ok(Self { addresses: addresses.clone(), address })
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        let mut counts = sync::lock(&self.addresses);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Connections without a slot that may request `/health`, the oldest first.
#[derive(Debug, Default)]
pub struct RequestSniffer(VecDeque<AbortHandle>);

impl RequestSniffer {
    /// Adds a connection, and ends the oldest when there are too many. A probe sends its request at once, and an idle
    /// connection does not, so idle ones cannot displace probes.
    pub fn push(&mut self, connection: AbortHandle) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= SNIFF_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

/// Returns the network that counts as one address: an address of IPv4, a /64 of IPv6.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_takes_its_share_and_no_more() {
        let slots = Slots::new(5, 2);
        let take = |text: &str| slots.take(address(text));
        let held = [take("192.0.2.1"), take("::ffff:192.0.2.1"), take("2001:db8::1"), take("2001:db8::2")];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(take("192.0.2.1").unwrap_err(), NoSlot::Address);
        assert_eq!(take("2001:db8::3").unwrap_err(), NoSlot::Address, "one household");
        let last = take("192.0.2.2").unwrap();
        assert_eq!(take("192.0.2.3").unwrap_err(), NoSlot::All);
        drop(last);
        assert!(take("192.0.2.3").is_ok(), "a refused connection holds nothing");
        drop(held);
        assert!(take("192.0.2.1").is_ok());
        assert!(slots.addresses.lock().unwrap().is_empty());
    }

    #[test]
    fn this_machine_has_no_share_and_slots_of_its_own() {
        let slots = Slots::new(3, 1);
        let _others = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| slots.take(address(text)).unwrap());
        let kept: Vec<_> = (0..LOOPBACK_RESERVE).map(|_| slots.take(address("127.0.0.1")).unwrap()).collect();
        assert_eq!(slots.take(address("::1")).unwrap_err(), NoSlot::All);
        drop(kept);
        assert!(slots.take(address("::1")).is_ok());
    }
}
