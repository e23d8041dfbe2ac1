//! Faults of a simulated cluster.

use link::NodeId;

use super::member::{CutOff, Member};
use super::plan::Fault;
use super::step::Step;
use super::unauthenticated::UnauthenticatedPeer;
use super::world::SimCluster;
use crate::net::{Direction, Link};
use crate::node::StartFailure;
use crate::schedule::{Event, MILLI, Micros, SECOND};

impl SimCluster {
    pub(super) fn fault(&mut self, fault: &Fault) {
        if self.is_healing {
            return;
        }
        self.cx.log(|| format!("fault: {fault:?}"));
        let now = self.cx.now();
        match fault {
            Fault::Kill { node } => self.kill(*node, false),
            Fault::Cut { node } => self.kill(*node, true),
            Fault::Blink { node } => {
                if self.members[*node].process.is_some() && self.members[*node].stopped <= now {
                    self.cx.report.cluster_short_power_cuts += 1;
                    self.kill(*node, true);
                    let time = self.cx.between(5 * MILLI, 100 * MILLI);
                    self.cx.after(time, Event::SimCluster(Step::Start { node: *node }));
                }
            }
            Fault::Stop { node, time } => self.stop(*node, *time),
            Fault::LongOutage { node } => self.begin_long_outage(*node),
            Fault::KillMany { nodes } => nodes.iter().for_each(|node| self.kill(*node, false)),
            Fault::Partition { one, time } => {
                self.cx.report.cluster_partitions += 1;
                for from in one {
                    for to in (0..self.members.len()).filter(|to| !one.contains(to)) {
                        self.wan.cut(now, *from, to, *time);
                        self.wan.cut(now, to, *from, *time);
                    }
                }
            }
            Fault::CutOff { node, time } => {
                self.cx.report.cluster_cut_off += 1;
                let count = self.members.len();
                for other in (0..count).filter(|other| other != node) {
                    self.wan.cut(now, *node, other, *time);
                    self.wan.cut(now, other, *node, *time);
                }
                let names: Vec<_> = self.plan.nodes.iter().map(|info| NodeId::of_name(&info.name)).collect();
                if let Some(process) = self.members[*node].process.as_mut() {
                    let linked = (0..count).filter(|other| process.reaches(names[*other])).collect();
                    process.cut_off = Some(CutOff { since: now, linked });
                }
            }
            Fault::OneWay { from, to, time } => {
                self.cx.report.cluster_one_way += 1;
                self.wan.cut(now, *from, *to, *time);
            }
            Fault::Slow { from, to, rate, time } => {
                self.cx.report.cluster_slow += 1;
                self.wan.slow(now, *from, *to, *rate, *time);
            }
            Fault::Lose { one, other } => {
                let wires = self.wan.between(*one, *other);
                if !wires.is_empty() {
                    let wire = *self.cx.random.pick(&wires);
                    self.wan.lose(&mut self.cx, wire);
                }
            }
            Fault::Flap { one, other, time } => {
                self.cx.report.cluster_flaps += 1;
                self.flap(*one, *other, now + time);
            }
            Fault::HalfOpen { one, other } => {
                let wires = self.wan.between(*one, *other);
                if !wires.is_empty() {
                    let wire = *self.cx.random.pick(&wires);
                    self.wan.swallow(&mut self.cx, wire);
                }
            }
            Fault::ClockJump { node } => self.members[*node].machine.jump(&mut self.cx),
            Fault::Full { node, room, time } => {
                let disk = &self.members[*node].machine.disk;
                disk.set_capacity(Some(disk.used() + room));
                self.cx.after(*time, Event::SimCluster(Step::Room { node: *node }));
            }
            Fault::FailSync { node, after } => {
                let machine = &self.members[*node].machine;
                let at = machine.disk.operations() + after;
                machine.disk.change_plan(|plan| plan.sync_fails_at = Some(at));
            }
            Fault::LoseClientConnection { client } => {
                if let Some(link) = self.clients[*client].link() {
                    self.net.lose(&mut self.cx, link);
                    if let Some((.., view)) = self.clients[*client].location() {
                        self.oracle.connection_ends(view);
                    }
                }
            }
            Fault::Intrude { node, kind } => self.connect_unauthenticated(*node, *kind),
            Fault::PauseClient { client, time } => {
                let time = (*time).min(self.plan.length.saturating_sub(now));
                self.pause(*client, time);
            }
            Fault::PartitionClient { client, time } => {
                // All clients are reachable at the end.
                let time = (*time).min(self.plan.length.saturating_sub(now));
                self.net.part(&mut self.cx, *client, time);
            }
        }
    }

    /// Stops a node's process for a while. All processes run at the end.
    fn stop(&mut self, node: usize, time: Micros) {
        let until = (self.cx.now() + time).min(self.plan.length);
        let member = &mut self.members[node];
        if let Some(process) = &mut member.process {
            if member.stopped <= self.cx.now() {
                process.node.interrupt(&mut self.cx, until);
            }
            member.stopped = member.stopped.max(until);
            self.cx.report.cluster_process_pauses += 1;
        }
    }

    /// Time until which the process that an event is for stands still.
    pub(super) fn paused_until(&self, event: &Event) -> Option<Micros> {
        let node = match event {
            Event::Arrive { link, direction: Direction::ToNode }
            | Event::Lost { link, direction: Direction::ToNode } => {
                self.homes.get(link).map(|(node, _)| *node)
            }
            Event::SimCluster(Step::Carry { wire, end } | Step::Broken { wire, end }) => {
                self.wan.nodes_of(*wire).map(|nodes| nodes[*end])
            }
            Event::SimCluster(Step::Intrude { unauthenticated }) => {
                self.unauthenticated_peers.get(*unauthenticated).map(UnauthenticatedPeer::node)
            }
            Event::SimCluster(Step::Dialed { wire, .. }) => self.wan.nodes_of(*wire).map(|nodes| nodes[0]),
            Event::SimCluster(Step::Dial { wire }) => self.wan.nodes_of(*wire).map(|nodes| nodes[1]),
            Event::SimCluster(Step::Turn { incarnation }) => self.node_of(*incarnation),
            _ => event.incarnation().and_then(|incarnation| self.node_of(incarnation)),
        };
        node.map(|node| self.members[node].stopped).filter(|until| *until > self.cx.now())
    }

    /// Node of an incarnation that has not ended.
    pub(super) fn node_of(&self, incarnation: u32) -> Option<usize> {
        let is_it = |member: &Member| {
            member.process.as_ref().is_some_and(|process| process.node.incarnation() == incarnation)
        };
        self.members.iter().position(is_it)
    }

    /// Stops a client's process for a while. It reads nothing meanwhile.
    fn pause(&mut self, client: usize, time: Micros) {
        let Some(link) = self.clients[client].link() else { return };
        let until = self.cx.now() + time;
        self.cx.report.cluster_client_pauses += 1;
        self.clients[client].pauses(until);
        self.take_from(link, false);
        self.cx.at(until, Event::SimCluster(Step::Resume { client, link }));
    }

    pub(super) fn resume(&mut self, client: usize, link: Link) {
        self.cx.report.cluster_check_resumed += u64::from(self.clients[client].link() == Some(link));
        self.take_from(link, true);
    }

    /// Sets whether the client's side of a connection reads.
    fn take_from(&mut self, link: Link, reads: bool) {
        let Some((node, incarnation)) = self.homes.get(&link).copied() else { return };
        let process = self.members[node].process.as_mut();
        if let Some(process) = process.filter(|process| process.node.incarnation() == incarnation) {
            process.node.set_reads(&mut self.cx, &mut self.net, link, reads);
            process.look(&mut self.cx);
        }
    }

    /// Loses all connections between two nodes, repeatedly until a time.
    pub(super) fn flap(&mut self, one: usize, other: usize, until: Micros) {
        if self.is_healing || self.cx.now() > until {
            return;
        }
        for wire in self.wan.between(one, other) {
            self.wan.lose(&mut self.cx, wire);
        }
        let pause = self.cx.between(100 * MILLI, 2 * SECOND);
        self.cx.after(pause, Event::SimCluster(Step::Flap { one, other, until }));
    }

    /// Kills a node's process, alone or with its machine.
    pub(super) fn kill(&mut self, node: usize, with_machine: bool) {
        let member = &mut self.members[node];
        let Some(mut process) = member.process.take() else { return };
        let incarnation = process.node.incarnation();
        member.last_incarnation = process.router.incarnation();
        self.forgets_restarted(node);
        let (plan, member) = (&self.plan, &mut self.members[node]);
        self.cx.log(|| format!("n{node}: incarnation {incarnation} ends"));
        let is_sent = plan.config.forward_ack == cluster::ForwardAck::Sent;
        // A node that leaves disconnects its clients, and stops receiving from the others before they know that it
        // leaves.
        let is_away = is_sent || member.leaves;
        // No other node has what a node got while it was cut off: it had to withhold acknowledgements.
        let cut_off =
            process.cut_off.take().filter(|_| !process.router.may_acknowledge(process.time(&self.cx)));
        let report = &mut self.cx.report;
        report.cluster_retained_requests += process.router.counters().copies_requested;
        self.oracle.node_dies(incarnation, |other, since| {
            if let Some(CutOff { since: cut, linked }) = &cut_off
                && since >= *cut
                && linked.contains(&other)
                && !is_sent
            {
                report.cluster_check_cut_off += 1;
                return false;
            }
            let mut is_interrupted =
                || process.was_interrupted(NodeId::of_name(&plan.nodes[other].name), since);
            other != node && (is_away || is_interrupted())
        });
        let links: Vec<_> = self
            .homes
            .iter()
            .filter(|(_, home)| **home == (node, incarnation))
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            self.net.lose(&mut self.cx, link);
            self.homes.remove(&link);
        }
        if with_machine {
            self.cx.report.power_cuts += 1;
            member.machine.cut(&mut self.cx);
        } else {
            self.cx.report.kills += 1;
            member.machine.kill();
        }
        // A running operating system closes the connections of a process that ended.
        let closes_connections = !with_machine && self.cx.random.percent(80);
        self.wan.dies(&mut self.cx, incarnation, closes_connections);
        drop(process);
        let time = self.cx.between(10 * MILLI, 4 * SECOND);
        self.cx.after(time, Event::SimCluster(Step::Start { node }));
        self.cx.after(time.saturating_sub(10 * MILLI), Event::SimCluster(Step::Impersonate));
    }

    /// Restarts a node whose disk has failed, or its machine.
    pub(super) fn ends(&mut self, incarnation: u32) {
        let Some(node) = self.node_of(incarnation) else { return };
        let with_machine = self.cx.random.percent(60);
        self.cx.report.cluster_disks_failed += 1;
        self.kill(node, with_machine);
    }

    pub(super) fn start(&mut self, node: usize) {
        let member = &mut self.members[node];
        if member.process.is_some() || member.is_switched_off || member.in_long_outage {
            return;
        }
        let incarnation = self.incarnations;
        self.incarnations += 1;
        self.oracle.node_starts(incarnation, self.cx.now());
        member.machine.count(&mut self.cx);
        match member.start(&mut self.cx, &self.plan, incarnation) {
            Ok(()) => self.cx.log(|| format!("n{node}: incarnation {incarnation} begins")),
            Err(StartFailure::Outdated) => {
                self.cx.log(|| format!("n{node}: its version does not understand a committed command"));
                self.cx.report.cluster_outdated += 1;
                self.members[node].machine.kill();
                self.members[node].log = Some(cluster::LOG);
                self.cx.after(SECOND, Event::SimCluster(Step::Start { node }));
            }
            Err(StartFailure::Disk) => self.cx.after(SECOND, Event::SimCluster(Step::Start { node })),
            Err(StartFailure::Broken(why)) => panic!("n{node} does not start: {why}"),
        }
        self.cx.report.cluster_restarts += u64::from(self.members[node].incarnation > 1);
    }
}
