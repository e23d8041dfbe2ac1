//! Shards that several nodes share: frames between workers and the nodes that lead shards, and who leads them.

use std::collections::{BTreeMap, BTreeSet};

use broker::peers::{Leader, Port, ShardFrame};
use broker::{Node, PeerFrame, SHARDS, ShardId, StoreEvent, WorkerId};
use bytes::Bytes;
use link::{Class, Credit, Frame, Lane, NodeId, Refused, Time};

use super::ClusterRouter;
use crate::features;
use crate::wire::{self, PeerMessage};

// A frame between a worker and a shard fits a link, with its header (see `PeerMessage`).
const _: () = assert!(ShardFrame::BYTES_MAX + wire::HEAD <= link::FRAME_MAX as usize);

/// Leaders of shards, and the traffic of each worker with each peer.
///
/// **Invariant:** frames of a worker reach a peer in order, and none after a lost one before the worker has taken the
/// notice ([`Inbound::links_lost`](broker::peers::Inbound::links_lost)): it sends all of them again.
#[derive(Debug)]
pub(super) struct ShardTraffic {
    leaders: [KnownLeader; SHARDS as usize],
    /// Number of times that another node was known to lead a shard than before.
    leaders_version: u64,
    /// Terms in which this node has led last.
    own: [Option<OwnTerm>; SHARDS as usize],
    peers: BTreeMap<NodeId, PeerTraffic>,
    /// Workers whose traffic with a peer is closed, and that have taken all notices of it.
    openable: BTreeSet<(NodeId, WorkerId)>,
    workers: u16,
}

/// The greatest term of a shard in which a leader is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KnownLeader {
    term: u64,
    /// `None` before the first one.
    node: Option<NodeId>,
    /// False when the link to the node was lost, or the node has said that it leads no more. It may say again that it
    /// leads in this term.
    is_confirmed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnTerm {
    term: u64,
    leads: bool,
}

#[derive(Debug)]
struct PeerTraffic {
    /// True while frames reach the peer: its link is up and it has the feature.
    is_up: bool,
    /// True if the peer is no member any more.
    is_gone: bool,
    /// States of the workers of this node.
    workers: Vec<WorkerTraffic>,
}

/// State of the frames of one worker to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerTraffic {
    Open,
    /// Frames are dropped, because earlier ones may be lost. The worker has been notified in `untaken` batches that it
    /// has not taken yet.
    Closed {
        untaken: u32,
    },
}

impl ShardTraffic {
    pub fn new(workers: u16) -> Self {
        Self {
            leaders: Default::default(),
            leaders_version: 0,
            own: Default::default(),
            peers: BTreeMap::new(),
            openable: BTreeSet::new(),
            workers,
        }
    }

    /// Notes that a node leads a shard, as it says. Returns the leader if workers must be notified.
    fn leads(&mut self, node: NodeId, shard: ShardId, term: u64) -> Option<Leader> {
        let known = &mut self.leaders[usize::from(shard.0)];
        // A term has one leader.
        let is_news = term > known.term || (term, Some(node)) == (known.term, known.node);
        if !is_news {
            return None;
        }
        self.leaders_version += u64::from(known.node != Some(node));
        *known = KnownLeader { term, node: Some(node), is_confirmed: true };
        Some(Leader { node: node.0, term })
    }

    /// Notes that a node leads a shard no more.
    fn follows(&mut self, node: NodeId, shard: ShardId, term: u64) {
        let known = &mut self.leaders[usize::from(shard.0)];
        if (known.term, known.node) == (term, Some(node)) {
            known.is_confirmed = false;
        }
    }

    /// Forgets that a node leads shards: it may have said something else that was lost.
    pub fn forget_leaders(&mut self, node: NodeId) {
        for known in self.leaders.iter_mut().filter(|known| known.node == Some(node)) {
            known.is_confirmed = false;
        }
    }

    /// Returns whether a node is known to lead a shard now.
    pub fn is_led(&self, shard: ShardId) -> bool {
        self.leaders.get(usize::from(shard.0)).is_some_and(|known| known.is_confirmed)
    }

    /// Returns whether this node leads a shard.
    pub fn is_led_here(&self, shard: ShardId) -> bool {
        self.own.get(shard.index()).is_some_and(|own| own.is_some_and(|own| own.leads))
    }

    /// Iterates over the shards that a node has said to lead, since its link was last lost.
    fn led_by(&self, node: NodeId) -> impl Iterator<Item = (ShardId, Leader)> {
        let is_led = move |known: &KnownLeader| known.node == Some(node) && known.is_confirmed;
        let all = (0..).map(ShardId).zip(self.leaders);
        all.filter(move |(_, known)| is_led(known))
            .map(move |(shard, known)| (shard, Leader { node: node.0, term: known.term }))
    }

    /// Returns the node that leads a shard, if that is known and this node reaches it.
    pub fn leader(&self, shard: ShardId) -> Option<NodeId> {
        let known = self.leaders.get(usize::from(shard.0)).filter(|known| known.is_confirmed)?;
        known.node
    }

    /// Returns the last known leader of each shard. It may not lead any more, or not be reached.
    pub fn last_leaders(&self) -> Vec<Option<NodeId>> {
        self.leaders.iter().map(|known| known.node).collect()
    }

    /// Returns a number that grows when [`Self::last_leaders`] changes.
    pub fn leaders_version(&self) -> u64 {
        self.leaders_version
    }

    /// Returns the leaders that a worker may ask: shards here, and those of nodes that its frames reach.
    pub fn known_to(&self, own: NodeId, worker: WorkerId) -> Vec<(ShardId, Leader)> {
        let peers = self.peers.keys().copied();
        let open = peers.filter(|id| self.traffic(*id, worker) == Some(WorkerTraffic::Open));
        std::iter::once(own).chain(open).flat_map(|id| self.led_by(id)).collect()
    }

    /// Returns the workers whose frames reach a node.
    fn open_workers(&self, node: NodeId) -> impl Iterator<Item = WorkerId> {
        let workers = self.peers.get(&node).map_or(&[][..], |peer| &peer.workers);
        let all = (0..).map(WorkerId).zip(workers);
        all.filter(|(_, traffic)| **traffic == WorkerTraffic::Open).map(|(worker, _)| worker)
    }

    /// Returns what a peer must know of a shard that this node leads, or has led.
    fn own_role(&self, shard: ShardId) -> Option<PeerMessage<'static>> {
        let OwnTerm { term, leads } = self.own[usize::from(shard.0)]?;
        let shard = shard.0;
        Some(if leads { PeerMessage::Leads { shard, term } } else { PeerMessage::Follows { shard, term } })
    }

    /// Notes that frames reach a peer, or reach it again.
    fn up(&mut self, node: NodeId) {
        let workers = vec![WorkerTraffic::Closed { untaken: 0 }; usize::from(self.workers)];
        let new = || PeerTraffic { is_up: true, is_gone: false, workers };
        let peer = self.peers.entry(node).or_insert_with(new);
        (peer.is_up, peer.is_gone) = (true, false);
        for worker in (0..self.workers).map(WorkerId) {
            self.close(node, worker, false);
        }
    }

    /// Closes the traffic of a worker with a peer. `has_batch`: one more batch with a notice goes to the worker.
    fn close(&mut self, node: NodeId, worker: WorkerId, has_batch: bool) {
        let peer = self.peers.get_mut(&node);
        let Some(traffic) = peer.and_then(|peer| peer.workers.get_mut(worker.index())) else { return };
        let untaken = match *traffic {
            WorkerTraffic::Open => 0,
            WorkerTraffic::Closed { untaken } => untaken,
        };
        *traffic = WorkerTraffic::Closed { untaken: untaken + u32::from(has_batch) };
        self.note_openable(node, worker);
    }

    fn note_openable(&mut self, node: NodeId, worker: WorkerId) {
        if self.traffic(node, worker) == Some(WorkerTraffic::Closed { untaken: 0 }) {
            self.openable.insert((node, worker));
        } else {
            self.openable.remove(&(node, worker));
        }
    }

    fn traffic(&self, node: NodeId, worker: WorkerId) -> Option<WorkerTraffic> {
        self.peers.get(&node)?.workers.get(worker.index()).copied()
    }

    /// Returns the workers whose traffic with a peer may be opened.
    fn openable(&mut self) -> Vec<(NodeId, WorkerId)> {
        // Those of a peer that is not up are found again when it is.
        self.openable.retain(|(node, _)| self.peers.get(node).is_some_and(|peer| peer.is_up));
        self.openable.iter().copied().collect()
    }

    /// Notes that a worker has taken a notice of a lost link.
    fn notice_taken(&mut self, worker: WorkerId, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let Some(WorkerTraffic::Closed { untaken }) = peer.workers.get_mut(worker.index()) {
            *untaken = untaken.saturating_sub(1);
        }
        if peer.is_gone && !peer.workers.iter().any(|it| it.has_untaken()) {
            self.peers.remove(&node);
        }
        self.note_openable(node, worker);
    }
}

impl WorkerTraffic {
    fn has_untaken(self) -> bool {
        matches!(self, Self::Closed { untaken: 1.. })
    }
}

impl ClusterRouter {
    /// Returns whether this node takes part in the shards of a cluster.
    pub(super) fn has_shards(&self) -> bool {
        self.mesh.identity().features & features::SHARDS != 0
    }

    /// Handles a worker's reports of the shards that it leads.
    pub(super) fn shards_led(&mut self, now: Time, worker: WorkerId, leads: Vec<(ShardId, Option<u64>)>) {
        for (shard, term) in leads {
            let Some(own) = self.shards.own.get_mut(usize::from(shard.0)) else {
                debug_assert!(false, "there is no {shard:?}");
                continue;
            };
            self.unsettled.led(now, shard, term);
            match (term, &mut *own) {
                (Some(term), _) => *own = Some(OwnTerm { term, leads: true }),
                (None, Some(own)) => own.leads = false,
                (None, None) => continue,
            }
            match *own {
                Some(OwnTerm { term, leads: true }) => self.tell_leader(self.own, shard, term),
                Some(OwnTerm { term, leads: false }) => self.shards.follows(self.own, shard, term),
                None => {}
            }
            let Some(message) = self.shards.own_role(shard) else { continue };
            // Peers that the worker's frames do not reach now get this with the next ones.
            let peers: Vec<NodeId> = self.shards.peers.keys().copied().collect();
            for id in peers {
                if self.is_open(id, worker) && !self.send_message(now, id, Lane::requests(worker.0), &message)
                {
                    self.close_traffic(id, worker);
                }
            }
        }
    }

    /// Passes the leader of a shard to the workers that may send frames to it.
    fn tell_leader(&mut self, node: NodeId, shard: ShardId, term: u64) {
        let Some(leader) = self.shards.leads(node, shard, term) else { return };
        if node == self.own {
            (0..self.node.workers).for_each(|worker| self.inbound.lead(WorkerId(worker), shard, leader));
            return;
        }
        // The others learn it when they may send.
        for worker in self.shards.open_workers(node) {
            self.inbound.lead(worker, shard, leader);
        }
    }

    /// Sends a worker's frame to another node, or notifies the worker that it is lost.
    pub(super) fn send_shard_frame(&mut self, now: Time, worker: WorkerId, frame: &ShardFrame) {
        let ShardFrame { node, port, bytes } = frame;
        let id = NodeId(*node);
        if id == self.own {
            debug_assert!(false, "a frame for a shard of this node");
            return;
        }
        if !self.is_open(id, worker) {
            self.counters.shard_frames_refused += 1;
            // The worker may have sent it before it takes the notice that it has got.
            if !self.shards.traffic(id, worker).is_some_and(WorkerTraffic::has_untaken) {
                self.close_traffic(id, worker);
            }
            return;
        }
        let head = match port {
            Port::Shard(shard) => wire::to_shard_head(shard.0),
            Port::Worker(worker) => wire::to_worker_head(worker.0),
        };
        match self.send_with_head(now, id, Lane::requests(worker.0), head, bytes.clone()) {
            Ok(_) => {}
            // The same would happen to it again.
            Err(Refused::TooLarge { length }) => {
                self.counters.shard_frames_refused += 1;
                tracing::error!(length, "frame for a shard dropped: it is too large for a link");
            }
            Err(Refused::Full { .. } | Refused::Down | Refused::Unsupported) => {
                self.counters.shard_frames_refused += 1;
                self.close_traffic(id, worker);
            }
        }
    }

    /// Sends a frame of a replica to another one. A frame without room is dropped: its sender repeats it.
    pub(super) fn send_agreement_frame(&mut self, now: Time, shard: ShardId, frame: broker::Frame) {
        let (id, head) = (NodeId(frame.to), wire::shard_head(shard.0));
        if self.can(id, features::SHARDS) {
            // Heartbeats of all shards go together, and no message of a client holds them up.
            let is_control = frame.is_heartbeat && self.can(id, features::HEARTBEATS);
            let lane = if is_control { Lane::CONTROL } else { Lane::agreement(shard.0) };
            // The sender repeats it.
            let _ = self.send_with_head(now, id, lane, head, frame.bytes.into());
        }
    }

    /// Sends a frame after its head. The frame is not copied, unless it is packed.
    fn send_with_head(
        &mut self,
        now: Time,
        to: NodeId,
        lane: Lane,
        head: [u8; wire::HEAD],
        frame: Bytes,
    ) -> Result<u64, Refused> {
        let frame = match self.packs_for(to) {
            true => self.packed(to, [&head[..], &frame].concat().into()).into(),
            false => Frame::new(&head, frame),
        };
        self.mesh.send(now, to, lane, frame)
    }

    /// Returns whether frames of a worker reach a peer.
    fn is_open(&self, id: NodeId, worker: WorkerId) -> bool {
        self.shards.traffic(id, worker) == Some(WorkerTraffic::Open)
    }

    /// Drops the frames of a worker to a node from now on, and notifies the worker.
    fn close_traffic(&mut self, id: NodeId, worker: WorkerId) {
        let has_batch = self.inbound.lose_link(worker, id);
        self.shards.close(id, worker, has_batch);
    }

    /// Notes that a worker has taken notices of lost links.
    pub(super) fn links_lost_taken(&mut self, worker: WorkerId, nodes: &[u64]) {
        nodes.iter().for_each(|node| self.shards.notice_taken(worker, NodeId(*node)));
    }

    /// Notes that the link to a peer is up.
    pub(super) fn shards_link_up(&mut self, id: NodeId) {
        if self.can(id, features::SHARDS) {
            self.shards.up(id);
        }
    }

    /// Notes that the link to a peer is down, or that the peer has forgotten it.
    pub(super) fn shards_link_lost(&mut self, id: NodeId) {
        let Some(peer) = self.shards.peers.get_mut(&id) else { return };
        peer.is_up = false;
        (0..self.node.workers).for_each(|worker| self.close_traffic(id, WorkerId(worker)));
        self.shards.forget_leaders(id);
        self.inbound.lose_agreements(id);
        lose_agreements(&self.node, id);
    }

    /// Ends the traffic with a node that is no member any more. `is_linked`: its link goes on. If it joins again before
    /// that is lost, it leads the same shards and does not say so again, and what it has said since waits.
    pub(super) fn shards_peer_gone(&mut self, id: NodeId, is_linked: bool) {
        let leaders = self.shards.leaders;
        self.shards_link_lost(id);
        if is_linked {
            self.shards.leaders = leaders;
        }
        if let Some(peer) = self.shards.peers.get_mut(&id) {
            // It is forgotten when all workers know.
            peer.is_gone = true;
        }
    }

    /// Opens the traffic of workers that know what was lost, while the links have room.
    pub(super) fn open_traffic(&mut self, now: Time) {
        for (id, worker) in self.shards.openable() {
            if self.has_room_for_requests(now, id) && self.send_own_roles(now, id, worker) {
                self.open_worker(id, worker);
            }
        }
    }

    fn open_worker(&mut self, id: NodeId, worker: WorkerId) {
        let peer = self.shards.peers.get_mut(&id);
        if let Some(traffic) = peer.and_then(|peer| peer.workers.get_mut(worker.index())) {
            *traffic = WorkerTraffic::Open;
            self.shards.openable.remove(&(id, worker));
        }
        self.inbound.open_link(worker, id);
        for (shard, leader) in self.shards.led_by(id) {
            self.inbound.lead(worker, shard, leader);
        }
    }

    /// Returns whether frames may be sent after some were refused: half of the buffer is free, so that the next ones
    /// are not refused at once.
    fn has_room_for_requests(&self, now: Time, id: NodeId) -> bool {
        self.mesh.peer(id).is_some_and(|status| {
            status.link.waiting(now, Class::Requests).0 <= status.link.config().buffer_max.requests / 2
        })
    }

    /// Notifies a peer which shards a worker leads, or has led: the peer's workers repeat their requests to them.
    /// Returns false when the link has no room.
    fn send_own_roles(&mut self, now: Time, id: NodeId, worker: WorkerId) -> bool {
        let hosted = (0..SHARDS).map(ShardId).filter(|shard| self.node.shard_host(*shard) == worker);
        let roles: Vec<PeerMessage<'static>> =
            hosted.filter_map(|shard| self.shards.own_role(shard)).collect();
        roles.iter().all(|message| self.send_message(now, id, Lane::requests(worker.0), message))
    }

    /// Handles a frame in a lane for requests. Credit of a frame for a worker is returned when the worker has it.
    pub(super) fn request_came(&mut self, now: Time, from: NodeId, frame: &Bytes, credit: Credit) {
        let workers = self.node.workers;
        let is_known = self.can(from, features::SHARDS);
        let message = wire::decode(frame);
        let (worker, port, bytes) = match message {
            Some(PeerMessage::ToShard { shard, frame }) if is_known && shard < SHARDS => {
                let shard = ShardId(shard);
                (self.node.shard_host(shard), Port::Shard(shard), frame)
            }
            Some(PeerMessage::ToWorker { worker, frame }) if is_known && worker < workers => {
                (WorkerId(worker), Port::Worker(WorkerId(worker)), frame)
            }
            other => {
                self.mesh.consume(from, credit);
                return match other {
                    Some(message) => self.handle_message(now, from, message),
                    None => self.counters.malformed += 1,
                };
            }
        };
        let bytes = frame.slice_ref(bytes);
        self.inbound.push_frame(worker, ShardFrame { node: from.0, port, bytes }, credit);
    }

    /// Handles a frame in a lane for replicas of shards, or in the control lane. The credit of a frame for a replica is
    /// returned when the worker of the shard has it, so that a worker that does not get on holds no more than the
    /// lanes' windows.
    pub(super) fn agreement_or_control_came(
        &mut self,
        now: Time,
        from: NodeId,
        frame: &Bytes,
        credit: Credit,
    ) {
        match wire::decode(frame) {
            Some(PeerMessage::Shard { shard, frame: part })
                if shard < SHARDS && self.can(from, features::SHARDS) =>
            {
                let bytes = frame.slice_ref(part);
                let (shard, received) = (ShardId(shard), PeerFrame { from: from.0, bytes });
                self.inbound.push_agreement(self.node.shard_host(shard), shard, received, credit);
            }
            message => {
                self.mesh.consume(from, credit);
                match message {
                    Some(message) => self.handle_message(now, from, message),
                    None => self.counters.malformed += 1,
                }
            }
        }
    }

    /// Handles a peer's message about a shard that is not for one worker.
    pub(super) fn shard_message(&mut self, from: NodeId, message: &PeerMessage<'_>) {
        match *message {
            PeerMessage::Leads { shard, term } if shard < SHARDS => {
                self.tell_leader(from, ShardId(shard), term);
            }
            PeerMessage::Follows { shard, term } if shard < SHARDS => {
                self.shards.follows(from, ShardId(shard), term);
            }
            // Frames for workers and replicas come in their own lanes.
            _ => self.counters.malformed += 1,
        }
    }
}

/// Notifies all shards of this node that frames of replicas to and from another node may be lost.
fn lose_agreements(node: &Node, other: NodeId) {
    let event = |shard| (ShardId(shard), StoreEvent::LinkLost(other.0));
    node.store_events((0..SHARDS).map(event));
}

#[cfg(test)]
mod tests;
