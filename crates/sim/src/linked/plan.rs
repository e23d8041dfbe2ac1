//! Plan of a seed: the clusters, how they are linked, and the faults.

use std::sync::Arc;
use std::time::Duration;

use broker::settings::Settings;
use random::Random;

use crate::node::Setup;
use crate::schedule::{MILLI, Micros, SECOND};

/// A fault. Nodes and pulls have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kills the process of a node.
    Kill { node: usize, down: Micros },
    /// Cuts the power of a node.
    Cut { node: usize, down: Micros },
    /// Loses the connection to the other cluster.
    LoseConnection { pull: usize },
    /// Lets nothing pass to or from the other cluster for a time.
    Partition { pull: usize, time: Micros },
    /// Ends a relay. Another one begins, which knows nothing of the sessions.
    KillRelay { pull: usize },
}

/// A cluster takes messages of an origin from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub at: usize,
    pub from: usize,
    pub origin: usize,
}

impl Route {
    /// Returns whether the messages are those of the other cluster itself.
    pub fn is_direct(&self) -> bool {
        self.from == self.origin
    }
}

pub struct Plan {
    pub nodes: usize,
    pub routes: Vec<Route>,
    pub setups: Vec<Setup>,
    pub publishers: usize,
    pub subscribers: usize,
    /// Nodes of the members of the group.
    pub members: Vec<usize>,
    pub length: Micros,
    pub faults: Vec<(Micros, Fault)>,
}

impl Plan {
    pub fn of(seed: u64, random: &mut Random) -> Self {
        let direct = |at, from| Route { at, from, origin: from };
        let (nodes, routes) = match seed % 3 {
            0 => (2, vec![direct(0, 1), direct(1, 0)]),
            // Every cluster takes from each other one.
            1 => (
                3,
                (0..3)
                    .flat_map(|at| (0..3).filter(move |from| *from != at).map(move |from| direct(at, from)))
                    .collect(),
            ),
            // The clusters at the ends are linked by the one in the middle.
            _ => {
                let through = |at, origin| Route { at, from: 1, origin };
                (
                    3,
                    vec![
                        direct(0, 1),
                        direct(1, 0),
                        direct(1, 2),
                        direct(2, 1),
                        through(0, 2),
                        through(2, 0),
                    ],
                )
            }
        };
        let setups = (0..nodes).map(|_| setup(random)).collect();
        let length = (20 + random.below(30) as u64) * SECOND;
        let count = 3 + random.below(10);
        let mut faults: Vec<_> =
            (0..count).map(|_| (random.draw() % length, Fault::any(random, nodes, routes.len()))).collect();
        faults.sort_by_key(|(at, _)| *at);
        let (publishers, subscribers) = (nodes + random.below(3), nodes + random.below(4));
        let count = if random.percent(70) { 1 + random.below(4) } else { 0 };
        let members = (0..count).map(|_| random.below(nodes)).collect();
        Self { nodes, routes, setups, publishers, subscribers, members, length, faults }
    }
}

impl Fault {
    fn any(random: &mut Random, nodes: usize, pulls: usize) -> Self {
        let down = 200 * MILLI + random.draw() % (5 * SECOND);
        let (node, pull) = (random.below(nodes), random.below(pulls));
        match random.below(8) {
            0 | 1 => Self::Kill { node, down },
            2 => Self::Cut { node, down },
            3 | 4 => Self::LoseConnection { pull },
            5 | 6 => Self::Partition { pull, time: SECOND + random.draw() % (15 * SECOND) },
            _ => Self::KillRelay { pull },
        }
    }
}

fn setup(random: &mut Random) -> Setup {
    let mut settings = Settings::default();
    settings.sys.interval = Duration::ZERO;
    settings.session.expiry_max = Duration::from_secs(u64::from(crate::client::LONG));
    settings.queue.messages_max = 1_000_000;
    let mut entropy = [0; 48];
    entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
    Setup {
        urgent: &[],
        settings,
        rules: Arc::default(),
        workers: 1 + random.below(3) as u16,
        segment_bytes: *random.pick(&[16 << 10, 64 << 10, 256 << 10]),
        commit_bytes_max: *random.pick(&[30_000, 8 << 20]),
        low_bytes_per_commit: *random.pick(&[8_000, 1 << 20]),
        entropy,
        sync_max: *random.pick(&[300, 5 * MILLI, 30 * MILLI]),
        keeps_ahead: random.percent(70),
        replica: None,
        #[cfg(feature = "trial")]
        mutation: None,
    }
}
