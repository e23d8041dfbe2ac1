//! Selection of the next address to try among those of a host name.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DialPurpose {
    /// A peer is one node: any of its addresses will do as long as it answers there.
    Peer,
    /// Each address may have a node, and all of them are to be found.
    Discovery,
}

/// Last attempts for each host name that has several addresses.
#[derive(Default)]
pub struct AddressRotation {
    last: BTreeMap<(DialPurpose, Box<str>), LastAddress>,
}

#[derive(Clone, Copy)]
struct LastAddress {
    address: SocketAddr,
    /// True when the peer was found there last time.
    is_good: bool,
}

/// One connection to make, over the first of several addresses that accepts it.
pub struct Attempt {
    pub name: Box<str>,
    purpose: DialPurpose,
    /// Address that is being tried; the others follow in order.
    address: Option<SocketAddr>,
    others: std::vec::IntoIter<SocketAddr>,
    has_alternatives: bool,
}

/// Maximum number of host names with a remembered attempt. Beyond it all start again, which costs an attempt or two.
const NAMES_MAX: usize = 1024;

impl AddressRotation {
    /// Starts an attempt at the addresses `found` for a name, beginning with the one whose turn it is.
    pub fn begin(&self, purpose: DialPurpose, name: &str, mut found: Vec<SocketAddr>) -> Attempt {
        if purpose == DialPurpose::Discovery {
            // Name servers change the order from one answer to the next.
            found.sort_unstable();
            found.dedup();
        }
        let turn = self.last.get(&(purpose, name.into()));
        let after = |turn: &LastAddress| match purpose {
            DialPurpose::Discovery => found.partition_point(|address| *address <= turn.address),
            // The order of the resolver is the order of preference.
            DialPurpose::Peer => {
                let at = found.iter().position(|address| *address == turn.address);
                at.map_or(0, |at| at + usize::from(!turn.is_good))
            }
        };
        let first = turn.map_or(0, after) % found.len().max(1);
        found.rotate_left(first);
        let has_alternatives = found.len() > 1;
        Attempt { name: name.into(), purpose, address: None, others: found.into_iter(), has_alternatives }
    }

    /// Returns the address to try now.
    pub fn next(&mut self, attempt: &mut Attempt) -> Option<SocketAddr> {
        attempt.address = attempt.others.next();
        let address = attempt.address?;
        if attempt.has_alternatives {
            if self.last.len() >= NAMES_MAX {
                self.last.clear();
            }
            let turn = self.last.entry((attempt.purpose, attempt.name.clone()));
            let turn = turn.or_insert(LastAddress { address, is_good: false });
            *turn = LastAddress { address, is_good: turn.is_good && turn.address == address };
        }
        Some(address)
    }

    /// Notes that the peer was found.
    pub fn joined(&mut self, attempt: &Attempt) {
        if let Some(turn) = self.entry_of(attempt) {
            turn.is_good = true;
        }
    }

    /// Notes that no node, or not the peer, was found.
    pub fn failed(&mut self, attempt: &Attempt) {
        if let Some(turn) = self.entry_of(attempt) {
            turn.is_good = false;
        }
    }

    /// Returns the entry of the attempt's name, unless a later attempt has continued from this attempt's address.
    fn entry_of(&mut self, attempt: &Attempt) -> Option<&mut LastAddress> {
        let turn = self.last.get_mut(&(attempt.purpose, attempt.name.clone()))?;
        attempt.address.is_some_and(|address| address == turn.address).then_some(turn)
    }
}

impl Attempt {
    pub fn is_last(&self) -> bool {
        self.others.len() == 0
    }

    /// Returns a text with the error, and with the address unless it equals the name.
    pub fn explain(&self, error: &std::io::Error) -> String {
        match self.address {
            Some(address) if self.has_alternatives => format!("{address}: {error}"),
            _ => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| ([127, 0, 0, 1], *port).into()).collect()
    }

    /// Runs an attempt at several ports, where only `works` accepts, and returns the ports in the order of the tries.
    fn attempt(
        address_rotation: &mut AddressRotation,
        purpose: DialPurpose,
        ports: &[u16],
        works: impl Fn(u16) -> bool,
    ) -> Vec<u16> {
        let mut attempt = address_rotation.begin(purpose, "name", addresses(ports));
        let mut tried = Vec::new();
        while let Some(address) = address_rotation.next(&mut attempt) {
            tried.push(address.port());
            if works(address.port()) {
                address_rotation.joined(&attempt);
                break;
            }
            address_rotation.failed(&attempt);
        }
        tried
    }

    #[test]
    fn every_discovery_address_has_its_turn_in_any_order_of_the_answers() {
        let mut address_rotation = AddressRotation::default();
        let mut seek =
            |ports: &[u16]| attempt(&mut address_rotation, DialPurpose::Discovery, ports, |port| port != 2);
        assert_eq!(seek(&[3, 1, 2, 3]), [1]);
        assert_eq!(seek(&[1, 2, 3]), [2, 3], "a dead one delays no other");
        assert_eq!(seek(&[2, 1, 3]), [1]);
        assert_eq!(seek(&[4, 3, 1]), [3], "2 is gone, 4 has come");
        assert_eq!(seek(&[4, 3, 1]), [4]);
        assert_eq!(seek(&[]), [0; 0]);
        assert_eq!(seek(&[7]), [7]);
    }

    #[test]
    fn a_peer_is_dialed_at_its_last_address_first_and_then_elsewhere() {
        let mut address_rotation = AddressRotation::default();
        let mut dial =
            |works| attempt(&mut address_rotation, DialPurpose::Peer, &[9, 1, 5], |port| port == works);
        assert_eq!(dial(1), [9, 1]);
        assert_eq!(dial(1), [1]);
        assert_eq!(dial(9), [1, 5, 9]);
        assert_eq!(dial(9), [9]);
        assert_eq!(dial(0), [9, 1, 5]);
        assert_eq!(dial(0), [9, 1, 5]);
    }

    /// The first address accepts connections but is not the peer's, which shows only later.
    #[test]
    fn an_address_without_the_peer_passes_the_turn_to_the_next() {
        let mut address_rotation = AddressRotation::default();
        let mut first = || {
            let mut attempt = address_rotation.begin(DialPurpose::Peer, "name", addresses(&[9, 1]));
            let first = address_rotation.next(&mut attempt).map(|address| address.port());
            address_rotation.failed(&attempt);
            first
        };
        assert_eq!([first(), first(), first()], [Some(9), Some(1), Some(9)]);
    }

    #[test]
    fn remembered_names_have_a_bound() {
        let mut address_rotation = AddressRotation::default();
        for name in 0..5_000 {
            let mut attempt =
                address_rotation.begin(DialPurpose::Peer, &name.to_string(), addresses(&[1, 2]));
            address_rotation.next(&mut attempt);
        }
        assert!(address_rotation.last.len() <= NAMES_MAX);
    }
}
