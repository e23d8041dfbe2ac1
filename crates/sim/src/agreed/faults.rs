//! Faults of a simulation.

use std::sync::Arc;

use broker::{SHARDS, ShardId, ShardSet};
use consensus::ReplicaId;
use link::NodeId;
use random::Random;

use super::network::{Step, node_id};
use super::world::AgreedShards;
use crate::context::Context;
use crate::disk::Machine;
use crate::net::Link;
use crate::node::PausePoint;
use crate::schedule::{Event, Micros, SECOND};

/// A fault, and what it concerns.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The process ends, and starts again after a time.
    Kill { node: usize, after: Micros },
    /// The power is cut.
    Cut { node: usize, after: Micros },
    /// Nothing passes between two nodes.
    Part { one: usize, other: usize, time: Micros },
    /// A node reaches no other.
    Isolate { node: usize, time: Micros },
    /// A process stands still. The others may declare the node dead meanwhile.
    Pause { node: usize, time: Micros, point: PausePoint, is_declared_dead: bool },
    /// The others declare a node dead whose process runs.
    DeclareDead { node: usize },
    /// A client loses its connection.
    Lose { client: usize },
    /// A node is lost with its disk. It comes back with an empty one, as other replicas.
    Replace { node: usize, after: Micros },
    /// Replicas of this number of shards move to cores that have none of them.
    Move { shards: usize },
    /// A core hands its replicas over, as one that leaves. It takes some again after a time.
    Leave { node: usize, time: Micros },
    /// Other nodes should lead the shards. The nodes may not know the same ones.
    Prefer { is_agreed: bool },
    /// The wall clock of a node is set to a wrong time, and those of all others are right.
    SetClock { node: usize, ahead_ms: i64 },
}

impl Fault {
    pub fn any(random: &mut Random, nodes: usize, clients: usize) -> Self {
        let (node, other) = (random.below(nodes), random.below(nodes));
        let time = *random.pick(&[SECOND / 2, 3 * SECOND, 10 * SECOND, 25 * SECOND]);
        match random.below(100) {
            0..30 => Self::Kill { node, after: time },
            30..50 => Self::Cut { node, after: time },
            50..62 if node != other => Self::Part { one: node, other, time },
            50..74 => Self::Isolate { node, time },
            74..82 => {
                let point = *random.pick(&POINTS);
                Self::Pause { node, time, point, is_declared_dead: random.below(2) == 0 }
            }
            82..90 => Self::DeclareDead { node },
            _ => Self::Lose { client: random.below(clients) },
        }
    }

    /// A process stands still within a turn, for so long that the others declare the node dead.
    pub fn pause_in_turn(random: &mut Random, nodes: usize) -> Self {
        let point = *random.pick(&[PausePoint::BeforeRead, PausePoint::BeforeWrite]);
        let time = *random.pick(&[5 * SECOND, 10 * SECOND]);
        Self::Pause { node: random.below(nodes), time, point, is_declared_dead: true }
    }
}

const POINTS: [PausePoint; 3] = [PausePoint::BetweenTurns, PausePoint::BeforeRead, PausePoint::BeforeWrite];

impl AgreedShards {
    pub(super) fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { node, after } => {
                self.cx.report.kills += 1;
                self.end(node, after, |_, machine| machine.kill());
            }
            Fault::Cut { node, after } => {
                self.cx.report.power_cuts += 1;
                self.end(node, after, |cx, machine| machine.cut(cx));
            }
            Fault::Part { one, other, time } => {
                self.cx.report.partitions += 1;
                self.network.cut(one, other, self.cx.now() + time);
            }
            Fault::Isolate { node, time } => {
                self.cx.report.partitions += 1;
                let until = self.cx.now() + time;
                for other in (0..self.hosts.len()).filter(|other| *other != node) {
                    self.network.cut(node, other, until);
                }
            }
            Fault::Pause { node, time, point, is_declared_dead } => {
                let until = self.cx.now() + time;
                let host = &mut self.hosts[node];
                if let Some(running) = &mut host.node {
                    self.cx.report.process_pauses += 1;
                    running.pause_process(&mut self.cx, until, point);
                    let incarnation = running.incarnation();
                    self.cx.at(until, Event::ReadAll { incarnation });
                    if is_declared_dead {
                        self.declare_dead(node);
                    }
                }
            }
            Fault::DeclareDead { node } => self.declare_dead(node),
            // A shard that has two voters, because a core has left, would have no majority any more.
            Fault::Replace { node, .. } if self.meta.as_ref().is_some_and(|meta| meta.needs_disk(node)) => {
                self.cx.log(|| format!("a shard needs the disk of node {node}, which is not replaced"));
            }
            Fault::Replace { node, after } => {
                self.cx.report.agreed_replaced += 1;
                let seed = self.cx.random.draw();
                self.end(node, after, |_, _| ());
                let host = &mut self.hosts[node];
                host.machine = Machine::new(seed);
                let id = ReplicaId(100 + node as u64);
                if let Some(replica) = &mut host.setup.replica {
                    replica.config.id = id;
                    if let Some(placed) = &mut replica.placed {
                        placed.own.replica = id;
                        placed.stored = Arc::default();
                    }
                }
                if self.meta.is_none() {
                    self.cx.after(SECOND, Event::AgreedShards(Step::Reconcile));
                }
            }
            Fault::Move { shards } => self.move_replicas(shards),
            Fault::Leave { node, time } => {
                if let Some(meta) = &mut self.meta {
                    self.cx.report.agreed_cores_left += 1;
                    meta.set_leaves(node, true);
                    self.cx.after(time, Event::AgreedShards(Step::Stays { node }));
                }
            }
            Fault::Prefer { is_agreed } => {
                let cores = self.cores;
                let any = |random: &mut Random| -> Vec<NodeId> {
                    (0..SHARDS).map(|_| node_id(random.below(cores))).collect()
                };
                let common = any(&mut self.cx.random);
                for at in 0..self.hosts.len() {
                    let leaders = if is_agreed { common.clone() } else { any(&mut self.cx.random) };
                    self.prefer(at, leaders);
                }
            }
            Fault::SetClock { node, ahead_ms } => self.set_clock(node, ahead_ms),
            Fault::Lose { client } => {
                if let Some(connection) = &self.clients[client].connection {
                    self.cx.report.connections_lost += 1;
                    let link = connection.link;
                    self.net.lose(&mut self.cx, link);
                }
            }
        }
    }

    /// Lets the others declare a node dead whose process runs, as soon as its lease is over.
    fn declare_dead(&mut self, node: usize) {
        if self.hosts[node].node.is_some() {
            let incarnation = self.hosts[node].incarnation;
            let at = self.leases.condemn(node).max(self.cx.now());
            self.cx.at(at, Event::AgreedShards(Step::Ended { node, incarnation }));
        }
    }

    /// Ends a node's process. It starts again after a time.
    fn end(&mut self, at: usize, after: Micros, stop: impl FnOnce(&mut Context, &mut Machine)) {
        let host = &mut self.hosts[at];
        let Some(node) = host.node.take() else { return };
        let links: Vec<Link> = node.links().collect();
        let incarnation = host.incarnation;
        let mut replicas = ShardSet::EMPTY;
        let shards = (0..SHARDS).map(ShardId);
        shards.filter(|shard| node.digest(*shard).is_some()).for_each(|shard| replicas.insert(shard));
        let now = self.cx.now();
        self.messages.replicas_ended(replicas, node.paused_since(now).unwrap_or(now), now);
        self.leases.end(at);
        drop(node);
        stop(&mut self.cx, &mut host.machine);
        for link in links {
            self.net.lose(&mut self.cx, link);
        }
        for other in (0..self.hosts.len()).filter(|other| *other != at) {
            self.lose_link(at, other);
        }
        self.end_claims(at);
        let delay = self.cx.between(SECOND, 5 * SECOND);
        self.cx.after(delay, Event::AgreedShards(Step::Ended { node: at, incarnation }));
        self.cx.after(after, Event::AgreedShards(Step::Start { node: at }));
    }
}
