//! Incoming connections whose handshake is not done: their bounds, and which one makes room for another.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{ConnectionId, Mesh, MeshEvent};
use crate::time::Time;

/// Origin of a connection, for counting slots: an IPv4 address, or the IPv6 network of 64 bits that its owner usually
/// has whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network(IpAddr);

impl Network {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => Self(address),
        }
    }

    /// Returns the network of an address with a port, unless the host is a name.
    pub fn of_text(address: &str) -> Option<Self> {
        address.parse().ok().map(|address: SocketAddr| Self::of(address.ip()))
    }
}

/// One connection whose handshake is not done.
struct HalfOpen {
    id: ConnectionId,
    network: Network,
    /// True when the connection has announced the name of a node and the number of the cluster. Nothing is proved yet.
    has_claimed_name: bool,
    /// True when a peer is in the same network.
    is_known: bool,
}

/// Counts of half-open connections.
struct HalfOpenConnections {
    all: Vec<HalfOpen>,
    by_network: BTreeMap<Network, usize>,
    known: BTreeSet<Network>,
}

/// Counts of connections closed for lack of slots that were not reported.
#[derive(Debug, Default)]
pub struct UnauthenticatedLimit {
    /// Time before which there is no further report.
    quiet_until: Time,
    closed: u64,
}

impl Mesh {
    /// Makes room for one more connection from `network`. Returns false when there is none.
    ///
    /// When all slots are taken, a connection that has sent nothing valid is closed: the oldest one of the network with
    /// the most of them. So many connections from a few addresses, however fast, displace each other, and a node that
    /// connects meanwhile has the time that it needs. If simply the oldest connection of all were closed, it would soon
    /// be the node's. A network has at most
    /// [`MeshConfig::handshakes_per_address`](super::MeshConfig::handshakes_per_address) slots: beyond that, it
    /// displaces its own connections. A connection from the network of a peer is never closed for an unknown one. An
    /// unknown one is closed for it even after it has sent something valid.
    pub(super) fn make_room(&mut self, now: Time, network: Network) -> bool {
        let its = self.connections.values().filter(|it| it.is_half_open() && it.network == Some(network));
        let is_network_full = its.count() >= self.config.handshakes_per_address;
        if !is_network_full && self.half_open < self.config.handshakes_max {
            return true;
        }
        let half_open_connections = self.half_open_connections();
        let victim = half_open_connections.select_victim(network, is_network_full);
        self.counters.unauthenticated_closed += 1;
        self.report_limit(now, &half_open_connections);
        if let Some(id) = victim {
            self.close(now, id, "too many handshakes are open, and it has not announced its name");
        }
        victim.is_some()
    }

    fn half_open_connections(&self) -> HalfOpenConnections {
        let known: BTreeSet<Network> = self.peers.values().flat_map(|peer| peer.networks()).collect();
        let half_open = self.connections.iter().filter(|(_, connection)| connection.is_half_open());
        let all: Vec<HalfOpen> = half_open
            .filter_map(|(id, connection)| {
                let (network, has_claimed_name) = (connection.network?, connection.claimed_name.is_some());
                Some(HalfOpen { id: *id, network, has_claimed_name, is_known: known.contains(&network) })
            })
            .collect();
        let mut by_network = BTreeMap::new();
        all.iter().for_each(|it| *by_network.entry(it.network).or_default() += 1);
        HalfOpenConnections { all, by_network, known }
    }

    /// Reports that slots are taken, and by which network most of them, at intervals.
    fn report_limit(&mut self, now: Time, half_open_connections: &HalfOpenConnections) {
        self.unauthenticated_limit.closed += 1;
        if now < self.unauthenticated_limit.quiet_until {
            return;
        }
        let most = half_open_connections.by_network.iter().max_by_key(|(_, count)| **count);
        let Some((Network(address), _)) = most else { return };
        self.unauthenticated_limit.quiet_until = now.after(self.config.warning_interval);
        let closed = std::mem::take(&mut self.unauthenticated_limit.closed);
        self.events.push_back(MeshEvent::UnauthenticatedLimit { address: *address, closed });
    }
}

impl HalfOpenConnections {
    /// Returns the connection to close for a new one from `network`, if any.
    fn select_victim(&self, network: Network, is_network_full: bool) -> Option<ConnectionId> {
        let is_known = self.known.contains(&network);
        // The new connection counts too: if all networks have the same number, it displaces its own.
        let connections_of =
            |it: &HalfOpen| self.by_network[&it.network] + usize::from(it.network == network);
        let may_go = |it: &&HalfOpen| match (it.has_claimed_name, it.is_known) {
            _ if is_network_full => it.network == network && !it.has_claimed_name,
            (true, true) => false,
            (true, false) | (false, true) => is_known,
            (false, false) => true,
        };
        let first = |it: &&HalfOpen| (!it.is_known, !it.has_claimed_name, connections_of(it), Reverse(it.id));
        self.all.iter().filter(may_go).max_by_key(first).map(|it| it.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_ipv4_address_or_the_first_64_bits_of_an_ipv6_address() {
        let of = |address: &str| Network::of(address.parse().expect("an address"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(Network::of_text("192.0.2.1:7"), Some(of("192.0.2.1")));
        assert_eq!(Network::of_text("a.example:7"), None);
    }
}
