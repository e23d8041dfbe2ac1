//! Routes of shards on simulated nodes. No groups of shards run here: the route position of a shard grows with time,
//! each process learns it with some delay, and SUBACKs of durable sessions wait until the others know it.

use std::collections::{BTreeMap, BTreeSet};

use broker::peers::{Announce, Outbound, SubackLevel};
use broker::{ConnectionId, ShardId, Ticket, WorkerId};
use cluster::RouterCommand;
use link::NodeId;

use super::member::Process;
use super::wan::Wan;
use super::world::SimCluster;
use crate::context::Context;
use crate::schedule::{MILLI, Micros, SECOND};

/// Route positions that one process knows, and its SUBACKs that wait for others.
#[derive(Debug, Default)]
pub struct ShardRoutes {
    known: BTreeMap<ShardId, u64>,
    /// Answer of the leaders of all shards: the time when it was sent, and when it arrives.
    answer: Option<(Micros, Micros)>,
    /// Number of entries after the last change that the process has restored, until it has reported them.
    restored: u64,
    /// The process learns no changes that were made later.
    pub until: Option<Micros>,
    /// Shard and position of each announced SUBACK, by its number.
    announced: Vec<(ShardId, u64)>,
    /// Outcomes of SUBACKs by number: whether the others know the position.
    outcomes: BTreeMap<usize, bool>,
    /// Numbers of SUBACKs that were sent since the last check.
    sent: Vec<usize>,
    /// Nodes from which the process could learn routes of shards that nobody leads.
    pub sources: BTreeSet<(ShardId, u64)>,
}

/// Time between two changes of the routes of a shard.
const CHANGE_INTERVAL: Micros = 300 * MILLI;
/// Least slot of connections that do not exist: the node does not know their SUBACKs.
const SLOT_MIN: u32 = 1 << 31;

/// Number of entries of a shard from one change of its routes to the next.
const ENTRIES: u64 = 100;

/// Returns the route position of a shard at its leader.
fn position_at(shard: ShardId, now: Micros) -> u64 {
    now / CHANGE_INTERVAL * ENTRIES + u64::from(shard.0)
}

impl ShardRoutes {
    /// Creates the positions of a process that has just started. `until` and `restored` as in the fields.
    pub fn new(until: Option<Micros>, restored: u64) -> Self {
        Self { until, restored, ..Self::default() }
    }

    /// Returns the position that the process knows; 0 if it knows none.
    pub fn known(&self, shard: ShardId) -> u64 {
        self.known.get(&shard).copied().unwrap_or(0)
    }

    #[cfg(any(test, feature = "trial"))]
    pub fn outcome(&self, number: usize) -> Option<bool> {
        self.outcomes.get(&number).copied()
    }
}

impl Process {
    /// Learns the routes of the shards that are placed, and announces some SUBACKs.
    pub(super) fn learn_shards(&mut self, cx: &mut Context, wan: &Wan) {
        let Some(placement) = self.router.placement() else { return };
        let shards: Vec<ShardId> = placement.shards().map(|(shard, _)| shard).collect();
        let reaches_leaders = self.reaches_most_cores();
        let now = cx.now();
        match self.shard_routes.answer {
            Some((_, at)) if now < at => return,
            Some((sent, _)) if reaches_leaders => {
                let sent = self.shard_routes.until.map_or(sent, |until| until.min(sent));
                let known = &mut self.shard_routes.known;
                let mut route_positions = Vec::new();
                for shard in &shards {
                    let position = position_at(*shard, sent) + self.shard_routes.restored;
                    if known.get(shard).is_none_or(|before| *before < position) {
                        known.insert(*shard, position);
                        route_positions.push((*shard, position));
                    }
                }
                self.shard_routes.restored = 0;
                self.submit_shards(cx, Outbound { route_positions, ..Outbound::new(WorkerId(0)) });
                if !wan.is_calm && cx.random.percent(20) {
                    let shard = *cx.random.pick(&shards);
                    self.announce_shard(cx, shard);
                }
            }
            Some(_) | None => {}
        }
        let is_slow = !wan.is_calm && cx.random.percent(5);
        let delay = if is_slow { cx.between(0, 6 * SECOND) } else { cx.between(50 * MILLI, 600 * MILLI) };
        self.shard_routes.answer = Some((now, now + delay));
        self.wake(cx, delay);
    }

    /// Returns whether the node reaches a majority of the cores. The leaders of all shards are there.
    fn reaches_most_cores(&mut self) -> bool {
        let own = NodeId::of_name(&format!("n{}", self.number));
        let cores: Vec<NodeId> = self.router.meta().roster().cores().map(|(id, _)| id).collect();
        let mesh = self.router.mesh();
        let is_up = |id: NodeId| id == own || mesh.peer(id).is_some_and(|peer| peer.is_up);
        let reached = cores.iter().filter(|core| is_up(**core)).count();
        reached > cores.len() / 2
    }

    /// Announces a SUBACK at the position of a shard that the process knows. Returns its number.
    pub(super) fn announce_shard(&mut self, cx: &Context, shard: ShardId) -> usize {
        let position = self.shard_routes.known(shard);
        let number = self.shard_routes.announced.len();
        self.shard_routes.announced.push((shard, position));
        let slot = SLOT_MIN + number as u32;
        let announce = Announce {
            connection: ConnectionId { worker: WorkerId(0), slot, generation: 0 },
            ticket: Ticket::of_operator(number),
            level: SubackLevel::Cluster,
            shard: Some((shard, position)),
        };
        self.submit_shards(cx, Outbound { announces: vec![announce], ..Outbound::new(WorkerId(0)) });
        number
    }

    fn submit_shards(&mut self, cx: &Context, outbound: Outbound) {
        let now = self.time(cx);
        self.router.handle_command(now, RouterCommand::Outbound(outbound));
    }

    /// Reaches positions of cores that come before the next change.
    fn reach_shards(&mut self, cx: &Context, mut positions: Vec<(ShardId, u64)>) {
        let known = &mut self.shard_routes.known;
        positions.retain(|(shard, position)| {
            known.get_mut(shard).is_some_and(|known| {
                let changed = *known - (*known - u64::from(shard.0)) % ENTRIES;
                let is_reached = *known < *position && *position < changed + ENTRIES;
                *known = if is_reached { *position } else { *known };
                is_reached
            })
        });
        self.submit_shards(cx, Outbound { route_positions: positions, ..Outbound::new(WorkerId(0)) });
    }

    /// Takes the SUBACKs of shards, and positions of shards on cores, from what the cluster router has posted.
    pub(super) fn take_shard_subacks(&mut self, cx: &Context) {
        self.shard_routes.sources.extend(self.node.take_route_sources());
        let positions = self.node.take_route_positions();
        if !positions.is_empty() {
            self.reach_shards(cx, positions);
        }
        for (connection, is_known) in self.node.take_announced(|connection| connection.slot >= SLOT_MIN) {
            let number = (connection.slot - SLOT_MIN) as usize;
            let before = self.shard_routes.outcomes.insert(number, is_known);
            assert_eq!(before, None, "n{} sends SUBACK {number} of a shard twice", self.number);
            self.shard_routes.sent.extend(is_known.then_some(number));
        }
    }
}

impl SimCluster {
    /// Notes the SUBACKs of shards that a node has sent, and asserts that all nodes that may acknowledge know them.
    pub(super) fn check_shard_subacks(&mut self, node: usize) {
        let Some(process) = &mut self.members[node].process else { return };
        let sent = std::mem::take(&mut process.shard_routes.sent);
        for number in &sent {
            let (shard, position) = process.shard_routes.announced[*number];
            let promised = self.shards_promised.entry(shard).or_default();
            *promised = position.max(*promised);
        }
        if !sent.is_empty() {
            self.cx.report.cluster_shard_subacks += sent.len() as u64;
            self.check_shard_routes();
        }
    }

    /// Asserts that each node that may acknowledge knows the routes of shards for which SUBACKs were sent.
    pub(super) fn check_shard_routes(&mut self) {
        if self.oracle.serves_alone {
            return;
        }
        for (node, member) in self.members.iter().enumerate() {
            let Some(process) = &member.process else { continue };
            if !process.router.may_acknowledge(process.time(&self.cx)) {
                continue;
            }
            for (shard, promised) in &self.shards_promised {
                let known = process.shard_routes.known(*shard);
                assert!(
                    known >= *promised,
                    "n{node} may acknowledge and knows {shard:?} up to {known}, and a SUBACK was sent for {promised}"
                );
                self.cx.report.cluster_check_shard_routes += 1;
            }
        }
    }
}
