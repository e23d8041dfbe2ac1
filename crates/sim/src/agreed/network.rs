//! Frames between the replicas of shards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::peers::{Announce, Outbound, Peers, ShardFrame};
use broker::{Frame, Node, ShardId, WorkerId};
use link::NodeId;

use crate::context::Context;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Event of these simulations only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Delivers a frame.
    Frame { number: u64 },
    /// Starts the process of a node.
    Start { node: usize },
    /// Lets a client act.
    Act { client: usize },
    /// Lets a client that writes or reads retained messages act.
    ActRetained { client: usize },
    /// Lets a device with an ephemeral session act.
    ActDevice { device: usize },
    /// Lets a client act that shares its Client Identifier.
    ActContender { contender: usize },
    /// Causes a fault of the plan.
    Fault { number: usize },
    /// Compares the states of the replicas.
    Compare,
    /// Changes the members after a disk was replaced.
    Reconcile,
    /// Lets the meta group decide about the placement of the shards.
    Decide,
    /// Lets a core look for a new placement.
    Learn { node: usize },
    /// Lets a core take replicas again that it has handed over.
    Stays { node: usize },
    /// Looks which links are up, and grants leases.
    Links,
    /// The nodes agree that an incarnation of a node is over.
    Ended { node: usize, incarnation: u64 },
    /// A node whose incarnation is over notices that, and goes on in another one.
    Restarted { node: usize, incarnation: u64 },
    /// A node knows each roster that an earlier leader of a shard may have known.
    MembersSettled { node: usize, shard: u16, term: u64 },
}

/// Maximum time for which a SUBACK or CONNACK waits until its own node knows the routes.
const SUBACK_TIMEOUT: Duration = Duration::from_secs(4);

/// Output of the workers of a node in one turn.
#[derive(Default)]
pub struct Taken {
    pub agreement_frames: Vec<(ShardId, Frame)>,
    pub shard_frames: Vec<(WorkerId, ShardFrame)>,
    /// Shards that the node leads now, with the term, or not any more.
    pub leads: Vec<(ShardId, Option<u64>)>,
    /// An incarnation of the node that is over, as the leader of a shard has said.
    pub ended: Option<u64>,
    /// Route positions that the node has reached.
    pub route_positions: Vec<(ShardId, u64)>,
    /// SUBACKs and CONNACKs that wait for other nodes, with their workers.
    pub announces: Vec<(WorkerId, Announce)>,
}

/// Output of the workers of a node for other nodes.
#[derive(Default)]
pub struct Mailbox(Mutex<Vec<Outbound>>);

impl Mailbox {
    pub fn take(&self) -> Taken {
        let mut taken = Taken::default();
        for outbound in std::mem::take(&mut *sync::lock(&self.0)) {
            let worker = outbound.worker;
            taken.agreement_frames.extend(outbound.agreement_frames);
            taken.shard_frames.extend(outbound.shard_frames.into_iter().map(|frame| (worker, frame)));
            taken.leads.extend(outbound.leads);
            taken.route_positions.extend(outbound.route_positions);
            taken.ended = outbound.ended.max(taken.ended);
            taken.announces.extend(outbound.announces.into_iter().map(|announce| (worker, announce)));
        }
        taken
    }
}

impl Peers for Mailbox {
    fn connect(&self, _: &Arc<Node>, _: broker::Instant) -> Result<(), String> {
        Ok(())
    }

    fn submit(&self, outbound: Outbound) {
        sync::lock(&self.0).push(outbound);
    }

    fn backlog(&self) -> usize {
        0
    }

    fn routes_changed(&self) {}

    fn suback_timeout(&self) -> Duration {
        SUBACK_TIMEOUT
    }
}

/// A frame on its way.
pub struct Travelling {
    pub from: usize,
    pub to: usize,
    /// Incarnation that sent it. A frame of an earlier one does not arrive.
    pub incarnation: u32,
    pub content: Content,
}

/// Content of a frame between nodes.
pub enum Content {
    Agreement(ShardId, Vec<u8>),
    /// A frame between a worker and a shard, and the number of times that the link was lost before it was sent.
    Shard(u64, ShardFrame),
    /// The sender leads a shard now, or not any more. The number is that of [`Self::Shard`].
    Leads(u64, ShardId, Option<u64>),
}

/// Paths between the nodes.
#[derive(Default)]
pub struct Network {
    travelling: BTreeMap<u64, Travelling>,
    sent: u64,
    /// Times until which nothing passes between two nodes.
    cut: BTreeMap<(usize, usize), Micros>,
    /// Arrival time of the last frame on each path: the order is kept.
    last: BTreeMap<(usize, usize), Micros>,
    latency: Micros,
}

pub fn node_id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

impl Network {
    pub fn new(latency: Micros) -> Self {
        Self { latency, ..Self::default() }
    }

    pub fn send(&mut self, cx: &mut Context, frame: Travelling) {
        let path = (frame.from, frame.to);
        if self.is_cut(cx.now(), path) {
            return;
        }
        // A slow frame holds up all behind it.
        let is_slow = cx.random.below(1000) == 0;
        let jitter = if is_slow { cx.between(0, SECOND / 2) } else { cx.between(10, 2 * MILLI) };
        let last = self.last.entry(path).or_default();
        *last = (*last + 1).max(cx.now() + self.latency + jitter);
        self.sent += 1;
        cx.at(*last, Event::AgreedShards(Step::Frame { number: self.sent }));
        self.travelling.insert(self.sent, frame);
    }

    /// Takes a frame that arrives, unless it is lost.
    pub fn take(&mut self, now: Micros, number: u64) -> Option<Travelling> {
        let frame = self.travelling.remove(&number)?;
        (!self.is_cut(now, (frame.from, frame.to))).then_some(frame)
    }

    /// Lets nothing pass between two nodes, in both directions.
    pub fn cut(&mut self, one: usize, other: usize, until: Micros) {
        self.cut.insert((one, other), until);
        self.cut.insert((other, one), until);
    }

    pub fn is_cut(&self, now: Micros, path: (usize, usize)) -> bool {
        self.cut.get(&path).is_some_and(|until| *until > now)
    }
}
