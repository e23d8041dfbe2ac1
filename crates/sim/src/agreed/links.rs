//! Links between the nodes, and what passes over them.

use broker::peers::{Inbound, Leader, Port, ShardFrame};
use broker::{PeerFrame, SHARDS, ShardId, StoreEvent, WorkerId};

use super::leases::{LEASE, Released};
use super::network::{Content, Step, Taken, Travelling, node_id};
use super::world::{AgreedShards, Host};
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// The link between two nodes.
#[derive(Default)]
pub struct NodeLink {
    pub is_up: bool,
    /// Number of times that it was lost.
    losses: u64,
}

impl AgreedShards {
    /// Takes down the links that do not work, and takes up those that work again.
    pub(super) fn look_at_links(&mut self) {
        for one in 0..self.hosts.len() {
            for other in one + 1..self.hosts.len() {
                let works = self.hosts[one].node.is_some()
                    && self.hosts[other].node.is_some()
                    && !self.network.is_cut(self.cx.now(), (one, other));
                let link = self.links.entry((one, other)).or_default();
                match (link.is_up, works) {
                    (true, false) => self.lose_link(one, other),
                    (false, true) => self.take_up(one, other),
                    _ => {}
                }
            }
        }
    }

    /// Ends a link: what is on the way over it is lost.
    pub(super) fn lose_link(&mut self, one: usize, other: usize) {
        let link = self.links.entry((one.min(other), one.max(other))).or_default();
        if !std::mem::replace(&mut link.is_up, false) {
            return;
        }
        link.losses += 1;
        for (at, lost) in [(one, other), (other, one)] {
            let lost = node_id(lost).0;
            self.hosts[at].leaders.retain(|_, leader| leader.node != lost);
            self.inform(at, || Inbound { links_lost: vec![lost], ..Inbound::default() });
            let Some(node) = &mut self.hosts[at].node else { continue };
            for shard in (0..SHARDS).map(ShardId) {
                node.broker().store_event(shard, StoreEvent::LinkLost(lost));
            }
            node.send_posted(&mut self.cx);
        }
    }

    /// Begins a link. Each node announces the shards that it leads.
    fn take_up(&mut self, one: usize, other: usize) {
        let link = self.links.entry((one, other)).or_default();
        link.is_up = true;
        for (from, to) in [(one, other), (other, one)] {
            let leads: Vec<_> =
                self.hosts[from].leads.iter().map(|(shard, term)| (*shard, Some(*term))).collect();
            leads.into_iter().for_each(|(shard, term)| self.announce(from, to, shard, term));
        }
    }

    /// Passes something to all workers of a node.
    pub(super) fn inform(&mut self, at: usize, inbound: impl Fn() -> Inbound) {
        let host = &mut self.hosts[at];
        let Some(node) = &mut host.node else { return };
        for worker in 0..host.setup.workers {
            node.broker().post_inbound(WorkerId(worker), inbound());
        }
        node.send_posted(&mut self.cx);
    }

    /// Reports to another node that a node leads a shard, or does not any more.
    fn announce(&mut self, from: usize, to: usize, shard: ShardId, term: Option<u64>) {
        let Some(losses) = self.losses(from, to) else { return };
        self.send(from, to, Content::Leads(losses, shard, term));
    }

    /// Number of times that a link was lost; `None` while it is down.
    pub(super) fn losses(&self, one: usize, other: usize) -> Option<u64> {
        let link = self.links.get(&(one.min(other), one.max(other)))?;
        link.is_up.then_some(link.losses)
    }

    fn send(&mut self, from: usize, to: usize, content: Content) {
        let Some(node) = &self.hosts[from].node else { return };
        let frame = Travelling { from, to, incarnation: node.incarnation(), content };
        self.network.send(&mut self.cx, frame);
    }

    /// Grants leases to the nodes that reach a majority and know the routes of all SUBACKs.
    pub(super) fn grant_leases(&mut self) {
        let now = self.cx.now();
        for at in 0..self.hosts.len() {
            let linked = (0..self.hosts.len()).filter(|other| self.losses(at, *other).is_some()).count();
            let Some(node) = &self.hosts[at].node else { continue };
            let has_majority = (linked + 1) * 2 > self.hosts.len();
            if !has_majority || node.is_paused(now) {
                continue;
            }
            if self.leases.may_grant(at) {
                node.broker().set_fresh_until(node.time(&self.cx).after(LEASE));
                self.leases.grant(at, now + LEASE.as_micros() as Micros + MILLI);
            }
            self.name_positions(at);
        }
        self.release_announces();
    }

    /// Tells a node the positions of shards that it needs for a lease, as the cores do.
    fn name_positions(&mut self, at: usize) {
        let Host { node: Some(node), setup, .. } = &mut self.hosts[at] else { return };
        for (shard, position) in self.leases.lacking(at) {
            let route_positions = vec![(shard, position)];
            let worker = WorkerId::host_of(shard, setup.workers);
            node.broker().post_inbound(worker, Inbound { route_positions, ..Inbound::default() });
        }
        node.send_posted(&mut self.cx);
    }

    /// Lets SUBACKs and CONNACKs go whose routes are known wherever a lease runs.
    fn release_announces(&mut self) {
        for Released { node, worker, connection, ticket, is_known } in self.leases.release(self.cx.now()) {
            self.cx.report.agreed_announced += 1;
            let Some(node) = &mut self.hosts[node].node else { continue };
            let announced = vec![(connection, ticket, is_known)];
            node.broker().post_inbound(worker, Inbound { announced, ..Inbound::default() });
            node.send_posted(&mut self.cx);
        }
    }

    /// Notes a leader of a shard on a node, and tells its workers.
    fn leader_known(&mut self, at: usize, shard: ShardId, leader: Leader) {
        let known = self.hosts[at].leaders.get(&shard);
        if known.is_some_and(|known| known.term > leader.term) {
            return;
        }
        self.hosts[at].leaders.insert(shard, leader);
        self.inform(at, || Inbound { leaders: vec![(shard, leader)], ..Inbound::default() });
    }

    /// Sends the frames of a node, and schedules the work of its log.
    pub(super) fn after_turn(&mut self, at: usize) {
        let Host { node: Some(node), mailbox, .. } = &mut self.hosts[at] else { return };
        node.check_log_queue(&mut self.cx);
        if node.take_writes() > 0 && self.freezes {
            self.cx.report.agreed_check_frozen += 1;
            assert!(self.leases.is_held(self.cx.now(), at), "node {at} writes to a client without a lease");
        }
        let Taken { agreement_frames, shard_frames, leads, ended, route_positions, announces } =
            mailbox.take();
        let has_moved = !route_positions.is_empty() || !announces.is_empty();
        self.leases.reached(at, &route_positions);
        let now = self.cx.now();
        announces.into_iter().for_each(|(worker, announce)| self.leases.announce(now, at, worker, announce));
        if has_moved {
            self.release_announces();
        }
        for (shard, frame) in agreement_frames {
            self.send(at, frame.to as usize - 1, Content::Agreement(shard, frame.bytes));
        }
        for (shard, term) in leads {
            let own = node_id(at).0;
            match term {
                Some(term) => {
                    self.hosts[at].leads.insert(shard, term);
                    self.leader_known(at, shard, Leader { node: own, term });
                    let settled = Step::MembersSettled { node: at, shard: shard.0, term };
                    self.cx.after(SECOND, Event::AgreedShards(settled));
                }
                None => {
                    self.hosts[at].leads.remove(&shard);
                    self.hosts[at].leaders.retain(|of, leader| *of != shard || leader.node != own);
                }
            }
            for other in (0..self.hosts.len()).filter(|other| *other != at) {
                self.announce(at, other, shard, term);
            }
        }
        for (worker, frame) in shard_frames {
            let to = frame.node as usize - 1;
            match self.losses(at, to) {
                Some(losses) => self.send(at, to, Content::Shard(losses, frame)),
                // The worker does not know yet that the link is down.
                None => self.cx.log(|| format!("{worker:?} of node {at} sends over a link that is down")),
            }
        }
        if let Some(incarnation) = ended {
            self.restart_incarnation(at, incarnation);
        }
        self.note_connections(at);
    }

    pub(super) fn frame(&mut self, number: u64) {
        let Some(Travelling { from, to, incarnation, content }) = self.network.take(self.cx.now(), number)
        else {
            return;
        };
        let is_current = self.hosts[from].node.as_ref().is_some_and(|node| node.incarnation() == incarnation);
        let losses = self.losses(from, to);
        let sender = node_id(from).0;
        let host = &mut self.hosts[to];
        let Some(node) = host.node.as_mut().filter(|_| is_current) else { return };
        match content {
            Content::Agreement(shard, bytes) => {
                let received = PeerFrame { from: sender, bytes: bytes.into() };
                node.broker().store_event(shard, received.into());
                node.send_posted(&mut self.cx);
            }
            Content::Shard(of, frame) if Some(of) == losses => {
                let worker = match frame.port {
                    Port::Shard(shard) => WorkerId::host_of(shard, host.setup.workers),
                    Port::Worker(worker) => worker,
                };
                let shard_frames = vec![ShardFrame { node: sender, ..frame }];
                node.broker().post_inbound(worker, Inbound { shard_frames, ..Inbound::default() });
                node.send_posted(&mut self.cx);
            }
            Content::Leads(of, shard, term) if Some(of) == losses => match term {
                Some(term) => self.leader_known(to, shard, Leader { node: sender, term }),
                None => host.leaders.retain(|of, leader| *of != shard || leader.node != sender),
            },
            Content::Shard(..) | Content::Leads(..) => {}
        }
    }
}
