//! Plan of a seed: nodes, links, clients, and the times of all faults.

use std::time::Duration;

use broker::peers::SubackLevel;
use broker::settings::{Settings, SharedStrategy};
use cluster::{Config, ForwardAck, LeaderPolicy, NodeInfo, Replicas, Role, WithoutQuorum};
use link::{BufferMax, MeshConfig};
use replog::{Batching, Incarnation};

use super::oracle::SKEW_MAX;
use super::unauthenticated::Kind;
use crate::node::Setup;
use crate::schedule::{MILLI, Micros, SECOND};
use random::Random;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kills the process (`kill -9`). Data in the operating system's memory stays.
    Kill {
        node: usize,
    },
    /// Cuts the power.
    Cut {
        node: usize,
    },
    /// Cuts the power for less time than the other nodes need to notice.
    Blink {
        node: usize,
    },
    /// Kills several processes at once.
    KillMany {
        nodes: Vec<usize>,
    },
    /// Stops a node's process for a time, like SIGSTOP.
    Stop {
        node: usize,
        time: Micros,
    },
    /// Cuts the network between two groups of nodes.
    Partition {
        one: Vec<usize>,
        time: Micros,
    },
    /// Cuts the network from one node to another, in one direction.
    OneWay {
        from: usize,
        to: usize,
        time: Micros,
    },
    /// Limits the bytes per second from one node to another.
    Slow {
        from: usize,
        to: usize,
        rate: u64,
        time: Micros,
    },
    /// Loses one connection between two nodes, with the data on it.
    Lose {
        one: usize,
        other: usize,
    },
    /// Loses all connections between two nodes repeatedly.
    Flap {
        one: usize,
        other: usize,
        time: Micros,
    },
    /// Makes a connection carry nothing, without an error.
    HalfOpen {
        one: usize,
        other: usize,
    },
    /// Cuts a node off from all others for a time. Its process ends before that is over.
    CutOff {
        node: usize,
        time: Micros,
    },
    ClockJump {
        node: usize,
    },
    /// Switches a node off until the others have worked without it.
    LongOutage {
        node: usize,
    },
    /// Limits the free space of a node's disk to `room` bytes, for a time.
    Full {
        node: usize,
        room: u64,
        time: Micros,
    },
    /// Fails a sync of a node's disk after `after` operations. The node stores nothing until it is restarted. If the
    /// sync was for an empty segment, the node refuses messages for about a second.
    FailSync {
        node: usize,
        after: u64,
    },
    /// Loses a client's connection.
    LoseClientConnection {
        client: usize,
    },
    /// Connects an unauthenticated peer to a node's cluster port.
    Intrude {
        node: usize,
        kind: Kind,
    },
    /// Stops a client for a time.
    PauseClient {
        client: usize,
        time: Micros,
    },
    /// Makes a client unreachable for a time.
    PartitionClient {
        client: usize,
        time: Micros,
    },
}

pub struct Plan {
    pub nodes: Vec<NodeInfo>,
    pub setups: Vec<Setup>,
    /// Configuration of all nodes, except their identity.
    pub config: Config,
    pub mesh: MeshConfig,
    pub latency: Micros,
    pub jitter: Micros,
    pub clients: usize,
    /// Time in which a client acts twice.
    pub pace: Micros,
    pub length: Micros,
    pub faults: Vec<(Micros, Fault)>,
    /// True if links have small buffers.
    pub is_tight: bool,
    /// True if there is a client that violates the protocol.
    pub has_hostile_client: bool,
    /// Time for which no core reaches a node before it is suspected.
    pub patience: Duration,
    /// Nodes in the join list of each node. All cores if it is empty.
    pub join_lists: Vec<Vec<usize>>,
    /// Nodes of a version that understands only members in the meta group's log.
    pub old: Vec<usize>,
    /// Time by which each node's clock is ahead.
    pub skews: Vec<Micros>,
    /// Gain of each node's clock in 1,000; 1,000 for all if it is empty.
    pub rates: Vec<u64>,
    /// True if the cores place shards: all nodes offer that.
    pub places_shards: bool,
    /// Cores with durable sessions of their own, with which the shards can begin.
    pub own_states: Vec<usize>,
    /// Number of replicas of each shard, and time for which a core is dead before its replicas are replaced.
    pub replicas: Replicas,
    pub replace_after: Duration,
    /// Number of entries of the meta group between two snapshots.
    pub snapshot_after: u64,
}

/// Number of entries between two snapshots of the meta group, as in production.
pub const SNAPSHOT_AFTER: u64 = 5_000;

impl Plan {
    pub fn of(seed: u64, is_full: bool, random: &mut Random) -> Self {
        let is_tight = seed % 8 == 7;
        let (cores, replicants) = match (is_full, random.below(4)) {
            (true, _) | (false, 0) => (3, 2),
            _ => (1 + random.below(5), random.below(4)),
        };
        let (cores, replicants) = if cores + replicants == 1 { (2, 0) } else { (cores, replicants) };
        let count = cores + replicants;
        let regions = 1 + random.below(2);
        let info = |at: usize| NodeInfo {
            name: format!("n{at}").into(),
            role: if at < cores { Role::Core } else { Role::Replicant },
            region: format!("r{}", at % regions).into(),
            address: at.to_string().into(),
        };
        let nodes: Vec<NodeInfo> = (0..count).map(info).collect();
        let length = if is_full { 300 * SECOND } else { (15 + random.below(30) as u64) * SECOND };
        let clients = if is_full { 50 } else { 4 + 2 * count };
        let faults = if is_full { 20 + random.below(20) } else { 2 + random.below(10) };
        let mut faults: Vec<_> =
            (0..faults).map(|_| (random.draw() % length, Fault::any(random, count, clients))).collect();
        // Unauthenticated peers and stopped clients come in addition.
        for _ in 0..random.below(if is_full { 12 } else { 4 }) {
            let (node, kind) = (random.below(count), *random.pick(&Kind::ALL));
            faults.push((random.draw() % length, Fault::Intrude { node, kind }));
            let (client, time) = (random.below(clients), SECOND / 10 + random.draw() % (10 * SECOND));
            faults.push((random.draw() % length, Fault::PauseClient { client, time }));
        }
        for _ in 0..random.below(if is_full { 6 } else { 3 }) {
            let (node, room) = (random.below(count), random.draw() % 30_000);
            let time = 2 * SECOND + random.draw() % (20 * SECOND);
            faults.push((random.draw() % length, Fault::Full { node, room, time }));
        }
        for _ in 0..random.below(if is_full { 6 } else { 3 }) {
            let (node, time) = (random.below(count), SECOND / 10 + random.draw() % (10 * SECOND));
            faults.push((random.draw() % length, Fault::Stop { node, time }));
        }
        for _ in 0..random.below(if is_full { 4 } else { 2 }) {
            let (node, after) = (random.below(count), random.draw() % 50);
            faults.push((random.draw() % length, Fault::FailSync { node, after }));
        }
        // Without that node, the others must be a majority.
        let may_go = if cores > 2 { 0..count } else { cores..count };
        if !may_go.is_empty() && random.percent(40) {
            let node = may_go.start + random.below(may_go.len());
            faults.push((random.draw() % length, Fault::LongOutage { node }));
        }
        // These draws are separate, so that the rest of the plan does not depend on them.
        let mut of_cuts = Random::new(seed ^ 0xC0_70FF);
        for _ in 0..of_cuts.below(if is_full { 4 } else { 2 }) {
            // Longer than the maximum silence of peers, and than a lease.
            let (node, time) = (of_cuts.below(count), 3 * SECOND + of_cuts.draw() % (7 * SECOND));
            let at = of_cuts.draw() % length;
            faults.push((at, Fault::CutOff { node, time }));
            faults.push((at + time - 50 * MILLI, Fault::Kill { node }));
        }
        for _ in 0..of_cuts.below(if is_full { 6 } else { 4 }) {
            faults.push((of_cuts.draw() % length, Fault::Blink { node: of_cuts.below(count) }));
        }
        faults.sort_by_key(|(at, _)| *at);
        let mut setups: Vec<Setup> = (0..count).map(|_| setup(random)).collect();
        setups[..cores].iter_mut().for_each(|setup| setup.urgent = &shardlog::URGENT);
        // These draws are separate, too.
        let mut of_shards = Random::new(seed ^ 0x5A_D5);
        let places_shards = of_shards.percent(30);
        let replicas = Replicas::new(1 + of_shards.below(5) as u8).unwrap_or_default();
        let replace_after = Duration::from_secs(*of_shards.pick(&[2, 100]));
        let snapshots = *of_shards.pick(&[20, SNAPSHOT_AFTER]);
        Self {
            skews: (0..count).map(|_| random.draw() % SKEW_MAX).collect(),
            setups,
            config: config(random, nodes[0].clone()),
            mesh: mesh(random, is_tight),
            latency: *random.pick(&[50, MILLI, 20 * MILLI, 100 * MILLI]),
            jitter: *random.pick(&[100, 2 * MILLI, 30 * MILLI]),
            nodes,
            clients,
            pace: if is_full { 8 * SECOND } else { SECOND },
            length,
            faults,
            is_tight,
            has_hostile_client: random.percent(50),
            patience: Duration::ZERO,
            join_lists: Vec::new(),
            old: Vec::new(),
            rates: Vec::new(),
            places_shards,
            own_states: Vec::new(),
            replicas,
            replace_after,
            snapshot_after: if places_shards { snapshots } else { SNAPSHOT_AFTER },
        }
    }
}

impl Plan {
    /// Returns whether some node's log may be full at some time.
    pub fn may_lack_room(&self) -> bool {
        // After a failed sync of an empty segment, the log has no reserve, and refuses messages until it has one.
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Full { .. } | Fault::FailSync { .. }))
    }
}

fn setup(random: &mut Random) -> Setup {
    let mut settings = Settings::default();
    settings.sys.interval = Duration::ZERO;
    settings.session.expiry_max = Duration::from_secs(u64::from(crate::client::LONG));
    settings.queue.messages_max = 1_000_000;
    settings.routing.suback = *random.pick(&[SubackLevel::Core, SubackLevel::Region, SubackLevel::Cluster]);
    settings.shared.strategy = *random.pick(&SharedStrategy::ALL);
    if random.percent(30) {
        settings.mqtt.inflight_max = 2 + random.below(6) as u16;
    }
    if random.percent(40) {
        settings.routing.shapes_max = 1 + random.below(2) as u32;
    }
    let mut entropy = [0; 48];
    entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
    Setup {
        urgent: &[],
        rules: std::sync::Arc::default(),
        settings,
        workers: 1 + random.below(3) as u16,
        segment_bytes: *random.pick(&[64 << 10, 256 << 10]),
        commit_bytes_max: *random.pick(&[30_000, 8 << 20]),
        low_bytes_per_commit: *random.pick(&[8_000, 1 << 20]),
        entropy,
        sync_max: *random.pick(&[300, 5 * MILLI, 30 * MILLI]),
        keeps_ahead: true,
        replica: None,
        #[cfg(feature = "trial")]
        mutation: None,
    }
}

fn config(random: &mut Random, own: NodeInfo) -> Config {
    let batching = Batching {
        interval: Duration::from_micros(*random.pick(&[0, 2_000, 50_000])),
        bytes_max: *random.pick(&[40, 64 * 1024]),
        in_flight_max: *random.pick(&[200, 4 << 20]),
    };
    Config {
        own,
        incarnation: Incarnation(0),
        wall_ms: 0,
        batching,
        tombstones_max: *random.pick(&[0, 3, 100_000]),
        forward_ack: if random.percent(80) { ForwardAck::Received } else { ForwardAck::Sent },
        qos0_linger: Duration::from_millis(*random.pick(&[0, 2_000])),
        suback_timeout: Duration::from_millis(*random.pick(&[3_000, 10_000])),
        lease: Duration::from_millis(*random.pick(&[500, 2_000])),
        packs: true,
        leaders: LeaderPolicy::Follow,
        without_quorum: match random.below(100) {
            0..70 => WithoutQuorum::Hold,
            70..85 => WithoutQuorum::Freeze,
            _ => WithoutQuorum::Serve,
        },
    }
}

fn mesh(random: &mut Random, is_tight: bool) -> MeshConfig {
    let mut link = link::Config::default();
    let quick = random.percent(50);
    if quick {
        (link.heartbeat, link.silence_max) = (Duration::from_millis(300), Duration::from_millis(1_500));
    }
    if is_tight {
        link.window = 3_000;
        link.buffer_max = BufferMax {
            control: 10_000,
            claims: 10_000,
            agreement: 10_000,
            requests: 10_000,
            routes: 10_000,
            assured: 20_000,
            best_effort: 5_000,
        };
    }
    MeshConfig {
        link,
        connections: 1 + random.below(4) as u8,
        dial_max: Duration::from_millis(*random.pick(&[1_000, 5_000])),
        ..MeshConfig::default()
    }
}

impl Fault {
    fn any(random: &mut Random, nodes: usize, clients: usize) -> Self {
        let node = random.below(nodes);
        let other = (node + 1 + random.below(nodes - 1)) % nodes;
        let time = SECOND / 10 + random.draw() % (10 * SECOND);
        match random.below(100) {
            0..=9 => Self::Kill { node },
            10..=15 => Self::Cut { node },
            16..=19 => {
                Self::KillMany { nodes: (0..nodes).filter(|at| *at == node || random.percent(40)).collect() }
            }
            20..=33 => Self::Partition {
                one: (0..nodes).filter(|at| *at == node || *at != other && random.percent(40)).collect(),
                time,
            },
            34..=43 => Self::OneWay { from: node, to: other, time },
            44..=51 => {
                Self::Slow { from: node, to: other, rate: *random.pick(&[1, 500, 5_000, 100_000]), time }
            }
            52..=63 => Self::Lose { one: node, other },
            64..=71 => Self::Flap { one: node, other, time: time / 2 },
            72..=79 => Self::HalfOpen { one: node, other },
            80..=83 => Self::ClockJump { node },
            84..=92 => Self::LoseClientConnection { client: random.below(clients) },
            _ => Self::PartitionClient { client: random.below(clients), time },
        }
    }
}
