//! Packets under way: the line that each takes, the hosts that are cut off from each other, and the packets that
//! are due. No sockets and no clock.

use crate::line::{Line, Outcome, Parameters};
use crate::{LabError, Topology};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Maximum number of bytes under way. Further packets are lost and counted.
const HELD_MAX: usize = 256 << 20;

/// Numbers of packets by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub delivered: u64,
    /// Lost on the wire by the line's loss.
    pub lost: u64,
    /// Lost because the queue before a line with a rate was full.
    pub queue_full: u64,
    /// Lost because the line was down, or the two hosts were cut off from each other.
    pub cut: u64,
    /// Refused: not IPv4, from an address that is not the sender's, or to an unknown address.
    pub refused: u64,
    /// Lost because more than 256 MiB were under way.
    pub overflow: u64,
}

pub struct Network {
    topology: Topology,
    /// Lines from each site to each site.
    lines: Vec<Vec<Line>>,
    /// Cuts from each host to each host.
    is_cut: Vec<Vec<bool>>,
    /// Bytes of the packets that each line has carried, from each site to each site.
    carried: Vec<Vec<u64>>,
    under_way: BinaryHeap<Reverse<Packet>>,
    held: usize,
    sequence: u64,
    counters: Counters,
}

/// A packet under way. Packets are ordered by arrival time; those of the same time by sending order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    at: Duration,
    sequence: u64,
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

impl Network {
    pub fn new(topology: Topology) -> Self {
        let sites = topology.sites.len();
        let line = |from: usize, to: usize| {
            let seed = topology.seed.wrapping_mul(1_000_003).wrapping_add((from * sites + to) as u64);
            Line::new(topology.line(from, to).clone(), seed)
        };
        let lines = (0..sites).map(|from| (0..sites).map(|to| line(from, to)).collect()).collect();
        let carried = vec![vec![0; sites]; sites];
        let hosts = topology.hosts.len();
        Self {
            lines,
            is_cut: vec![vec![false; hosts]; hosts],
            carried,
            under_way: BinaryHeap::new(),
            held: 0,
            sequence: 0,
            counters: Counters::default(),
            topology,
        }
    }

    /// Accepts a packet that a host sends.
    pub fn enter(&mut self, now: Duration, from: usize, packet: &[u8]) {
        let Some(to) = self.target(from, packet) else {
            self.counters.refused += 1;
            return;
        };
        let (here, there) = (&self.topology.hosts[from], &self.topology.hosts[to]);
        let access = here.access + there.access;
        let outcome = match self.is_cut[from][to] {
            true => Outcome::Down,
            false => self.lines[here.site][there.site].enter(now, packet.len()),
        };
        if matches!(outcome, Outcome::At(_) | Outcome::Lost) {
            self.carried[here.site][there.site] += packet.len() as u64;
        }
        match outcome {
            Outcome::At(_) if self.held + packet.len() > HELD_MAX => self.counters.overflow += 1,
            Outcome::At(at) => {
                self.held += packet.len();
                self.sequence += 1;
                let (sequence, bytes) = (self.sequence, packet.to_vec());
                self.under_way.push(Reverse(Packet { at: at + access, sequence, from, to, bytes }));
            }
            Outcome::Lost => self.counters.lost += 1,
            Outcome::QueueFull => self.counters.queue_full += 1,
            Outcome::Down => self.counters.cut += 1,
        }
    }

    fn target(&self, from: usize, packet: &[u8]) -> Option<usize> {
        let is_ipv4 = packet.len() >= 20 && packet[0] >> 4 == 4;
        let address = |at: usize| packet[at..at + 4].try_into().unwrap_or_default();
        if !is_ipv4 || self.topology.host_at(address(12)) != Some(from) {
            return None;
        }
        self.topology.host_at(address(16)).filter(|to| *to != from)
    }

    /// Time at which `due` has a packet.
    pub fn next_at(&self) -> Option<Duration> {
        self.under_way.peek().map(|Reverse(packet)| packet.at)
    }

    /// Returns the next packet that has arrived by now, and its host. A packet under way does not arrive when its
    /// line is cut.
    pub fn due(&mut self, now: Duration) -> Option<(usize, Vec<u8>)> {
        while self.next_at().is_some_and(|at| at <= now) {
            let Reverse(Packet { from, to, bytes, .. }) = self.under_way.pop()?;
            self.held -= bytes.len();
            let line = &self.lines[self.topology.hosts[from].site][self.topology.hosts[to].site];
            if self.is_cut[from][to] || !line.is_up(now) {
                self.counters.cut += 1;
                continue;
            }
            self.counters.delivered += 1;
            return Some((to, bytes));
        }
        None
    }

    /// Changes the line between two sites in both directions, as `Parameters::set` does.
    ///
    /// # Errors
    /// An unknown name, or an invalid value. Nothing is changed then.
    pub fn set(
        &mut self,
        now: Duration,
        (a, b): (&str, &str),
        name: &str,
        value: &str,
    ) -> Result<(), LabError> {
        let (a, b) = (self.topology.site(a)?, self.topology.site(b)?);
        for (from, to) in [(a, b), (b, a)] {
            let mut parameters: Parameters = self.lines[from][to].parameters().clone();
            parameters.set(name, value)?;
            self.lines[from][to].change(now, parameters);
        }
        Ok(())
    }

    /// Stops all packets from one host or site to the other. The opposite direction is not affected.
    ///
    /// # Errors
    /// A name that is neither a host nor a site.
    pub fn cut(&mut self, from: &str, to: &str) -> Result<(), LabError> {
        let (from, to) = (self.topology.hosts_of(from)?, self.topology.hosts_of(to)?);
        for &one in &from {
            for &other in &to {
                self.is_cut[one][other] = true;
            }
        }
        Ok(())
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        self.is_cut.iter_mut().for_each(|row| row.fill(false));
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of bytes that the line from one site to another one has carried, with IP headers. Packets
    /// that were lost on the wire count. Those that a full queue or a cut stopped do not.
    ///
    /// # Errors
    /// An unknown site.
    pub fn carried(&self, from: &str, to: &str) -> Result<u64, LabError> {
        Ok(self.carried[self.topology.site(from)?][self.topology.site(to)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPOLOGY: &str = r#"
        name = "three"
        [[site]]
        name = "east"
        rtt = "2ms"
        [[site]]
        name = "west"
        [[host]]
        name = "e1"
        site = "east"
        [[host]]
        name = "e2"
        site = "east"
        access = "3ms"
        [[host]]
        name = "w1"
        site = "west"
        [[line]]
        a = "east"
        b = "west"
        rtt = "100ms"
    "#;
    const E1: [u8; 4] = [10, 77, 1, 1];
    const E2: [u8; 4] = [10, 77, 1, 2];
    const W1: [u8; 4] = [10, 77, 2, 1];

    fn network() -> Network {
        Network::new(Topology::parse(TOPOLOGY).unwrap())
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn packet(from: [u8; 4], to: [u8; 4], mark: u8) -> Vec<u8> {
        let mut packet = vec![0; 21];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&from);
        packet[16..20].copy_from_slice(&to);
        packet[20] = mark;
        packet
    }

    #[test]
    fn packets_arrive_when_they_are_due_and_in_order() {
        let mut network = network();
        network.enter(ms(0), 0, &packet(E1, W1, 1));
        network.enter(ms(0), 0, &packet(E1, E2, 2));
        network.enter(ms(0), 0, &packet(E1, W1, 3));
        assert_eq!(network.next_at(), Some(ms(4)));
        assert_eq!(network.due(ms(3)), None);
        assert_eq!(network.due(ms(4)), Some((1, packet(E1, E2, 2))));
        assert_eq!(network.due(ms(49)), None);
        assert_eq!(network.due(ms(50)), Some((2, packet(E1, W1, 1))));
        assert_eq!(network.due(ms(50)), Some((2, packet(E1, W1, 3))));
        assert_eq!((network.due(ms(999)), network.next_at(), network.held), (None, None, 0));
        assert_eq!(network.counters().delivered, 3);
    }

    #[test]
    fn a_line_counts_the_bytes_that_it_carries() {
        let mut network = network();
        network.enter(ms(0), 0, &packet(E1, W1, 1));
        network.set(ms(0), ("east", "west"), "loss", "100%").unwrap();
        network.enter(ms(0), 0, &packet(E1, W1, 2));
        network.cut("east", "west").unwrap();
        network.enter(ms(0), 0, &packet(E1, W1, 3));
        network.enter(ms(0), 0, &packet(E1, E2, 4));
        let carried = |from: &str, to: &str| network.carried(from, to).unwrap();
        assert_eq!((carried("east", "west"), carried("west", "east"), carried("east", "east")), (42, 0, 21));
        assert!(network.carried("east", "e1").is_err());
    }

    #[test]
    fn packets_with_unknown_addresses_are_refused() {
        let mut network = network();
        let mut of_six = packet(E1, W1, 0);
        of_six[0] = 0x65;
        for bad in [packet(E2, W1, 0), packet(E1, [8, 8, 8, 8], 0), packet(E1, E1, 0), of_six, vec![0x45; 19]]
        {
            network.enter(ms(0), 0, &bad);
        }
        assert_eq!(network.next_at(), None);
        assert_eq!(network.counters(), Counters { refused: 5, ..Counters::default() });
    }

    #[test]
    fn a_cut_is_one_way_and_affects_packets_under_way() {
        let mut network = network();
        network.enter(ms(0), 0, &packet(E1, W1, 1));
        network.cut("e1", "west").unwrap();
        network.enter(ms(1), 0, &packet(E1, W1, 2));
        network.enter(ms(1), 2, &packet(W1, E1, 3));
        assert_eq!(network.due(ms(90)), Some((0, packet(W1, E1, 3))));
        assert_eq!(network.due(ms(90)), None);
        assert_eq!(network.counters(), Counters { delivered: 1, cut: 2, ..Counters::default() });
        network.heal();
        network.enter(ms(100), 0, &packet(E1, W1, 4));
        assert_eq!(network.due(ms(150)), Some((2, packet(E1, W1, 4))));
        assert!(network.cut("e1", "north").is_err());
    }

    #[test]
    fn lines_change_in_both_directions() {
        let mut network = network();
        network.set(ms(0), ("west", "east"), "rtt", "20ms").unwrap();
        assert!(network.set(ms(0), ("west", "east"), "rtt", "20").is_err());
        network.enter(ms(0), 0, &packet(E1, W1, 1));
        network.enter(ms(0), 2, &packet(W1, E1, 2));
        assert_eq!(network.due(ms(10)), Some((2, packet(E1, W1, 1))));
        assert_eq!(network.due(ms(10)), Some((0, packet(W1, E1, 2))));
    }
}
