//! Assignment of publishers to subscribers.

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
pub enum Topology {
    /// Publisher i sends to subscriber i.
    OneToOne,
    /// Publishers are distributed among the subscribers (wildcard filters).
    FanIn,
    /// Subscribers are distributed among the publishers' topics.
    FanOut,
    /// Every subscriber receives every publisher (wildcard).
    All,
    /// All publishers send to shared subscription groups.
    Shared,
}

impl Topology {
    /// Publishers of subscriber `j`: first, step, count.
    pub fn publishers_of(self, j: usize, p: usize, s: usize) -> (usize, usize, usize) {
        match self {
            Topology::OneToOne => (j, 1, (j < p) as usize),
            Topology::FanIn => (j, s, if j < p { (p - 1 - j) / s + 1 } else { 0 }),
            Topology::FanOut => (j % p.max(1), 1, (p > 0) as usize),
            Topology::All | Topology::Shared => (0, 1, p),
        }
    }
    /// Number of deliveries that one message of publisher `i` must cause.
    pub fn fan(self, i: usize, p: usize, s: usize, groups: usize) -> usize {
        match self {
            Topology::OneToOne => (i < s) as usize,
            Topology::FanIn => (s > 0) as usize,
            Topology::FanOut => {
                if i < s {
                    (s - 1 - i) / p + 1
                } else {
                    0
                }
            }
            Topology::All => s,
            Topology::Shared => groups.min(s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_agree() {
        for topo in [Topology::OneToOne, Topology::FanIn, Topology::FanOut, Topology::All] {
            for (p, s) in [(1, 1), (5, 5), (7, 3), (3, 7), (1, 9), (9, 1), (100, 13)] {
                if topo == Topology::OneToOne && p != s {
                    continue;
                }
                let mut publishers_of = vec![0usize; p];
                for j in 0..s {
                    let (b, st, n) = topo.publishers_of(j, p, s);
                    for k in 0..n {
                        publishers_of[b + k * st] += 1;
                    }
                }
                for (i, n) in publishers_of.iter().enumerate() {
                    assert_eq!(*n, topo.fan(i, p, s, 1), "{topo:?} p {p} s {s} i {i}");
                }
            }
        }
    }
}
