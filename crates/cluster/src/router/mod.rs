//! Cluster router: one node's part in its cluster.

mod attach;
mod clocks;
mod event_log;
mod forwarding;
mod incarnations;
mod leases;
mod membership;
mod owners;
mod questions;
mod routes;
mod shard_routes;
mod shards;
mod unjoined_peers;
mod view;

use std::sync::Arc;

use broker::peers::{NodeIndex, Outbound};
use broker::{Node, ShardId};
use bytes::Bytes;
use configstore::Position as RecordsPosition;
use consensus::LogReadResult;
use link::{Class, Event, Lane, Mesh, MeshEvent, NodeId, Time};
use replog::{Replica, WriterId};
use storage::LogEvent;

use attach::Attachment;
use leases::{LeaseState, Reports};
use membership::Membership;
use routes::RouteReplica;

use crate::clocks::Clocks;
use crate::config::{Config, Role, WithoutQuorum};
use crate::features::{BRIEF, CLOCKS, COPIES, NAMESAKES, PACKS, SHARDS};
use crate::inbound::InboundQueues;
use crate::meta::{Command, DrainedNodes, Meta, ProposalId};
use crate::mutation::{Mutation, mutated};
use crate::packing;
use crate::peers::Peers;
use crate::questions::{Asker, Question, Questions};
use crate::shard_positions::{self, ShardPositions};
use crate::subacks::Subacks;
use crate::wire::{self, PeerMessage};

/// Command from other threads of the node to its cluster router.
#[derive(Debug)]
pub enum RouterCommand {
    /// A worker's messages for other nodes.
    Outbound(Outbound),
    /// The node's own routes have changed.
    RoutesChanged,
    /// Question of the owner for another node's owner: [`ClusterRouter::poll_answered`] returns the outcome.
    Ask(Question),
    /// The owner's answer to a question of [`ClusterRouter::poll_question`]; `None` if there is none.
    Answer(Asker, Option<Bytes>),
    /// Event of the node's log for its replica of the meta group.
    Log(LogEvent),
    /// Result of a read of [`ClusterRouter::poll_log_read`].
    LogRead(LogReadResult),
    /// Operator's proposal: [`ClusterRouter::poll_proposal`] returns the outcome.
    Proposal(ProposalId, Command),
    /// Leave the cluster: [`ClusterRouter::poll_proposal`] reports the end of the membership.
    Leave(ProposalId),
    /// Addresses of other nodes, from an operator.
    JoinAt(Vec<Box<str>>),
    /// Spread the replicants evenly over the cores.
    Balance,
    /// Position of the owner's copy of the records, which waits for the next update: [`ClusterRouter::poll_delivery`].
    RecordsCopied(RecordsPosition),
    /// Report that a shard has the voters that its placement asks for, in this epoch of its replicas.
    ShardChanged(ShardId, u64),
    /// Nodes that are drained. Cores among them lead no shard, if another replica can, and no meta group.
    Drained(DrainedNodes),
    /// Prepare the end of the node.
    Resign,
}

/// Connects a node's workers to the other nodes. It sends them this node's subscriptions and the messages that they
/// want, and passes their messages to the workers.
///
/// Its owner gives it commands, moves the bytes of its [`Mesh`], and calls [`Self::turn`] after any of these and when
/// [`Self::timeout`] is due.
pub struct ClusterRouter {
    config: Config,
    own: NodeId,
    node: Arc<Node>,
    mesh: Mesh,
    peers: Peers,
    routes: RouteReplica,
    attachment: Attachment,
    subacks: Subacks,
    /// True when some peer must be asked for its retained messages.
    retained_missing: bool,
    membership: Membership,
    leases: LeaseState,
    reports: Reports,
    clocks: Clocks,
    now: Time,
    inbound: InboundQueues,
    questions: Questions,
    shards: shards::ShardTraffic,
    owners: owners::OwnerRegions,
    shard_positions: ShardPositions,
    unsettled: incarnations::UnsettledShards,
    counters: Counters,
    unjoined_peers: unjoined_peers::UnjoinedPeers,
    event_log: event_log::EventLog,
}

/// Counters of a cluster router since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Changes of routes received from other nodes.
    pub routes_applied: u64,
    /// Routes of other nodes that the index had no room for, or that were no valid filters.
    pub routes_refused: u64,
    /// Messages of QoS 0 that a link had no room for.
    pub dropped_qos0: u64,
    /// Messages of QoS 1 and 2 for unreachable nodes that found no room.
    pub dropped_suspect: u64,
    /// Messages of QoS 1 and 2 that found no room and were refused to their publishers.
    pub refused: u64,
    /// SUBACKs that were sent, or connections that were closed, because others did not learn of the subscription in
    /// time.
    pub subacks_overdue: u64,
    /// Copies of retained messages that were deferred because too much waited for the other node.
    pub copies_deferred: u64,
    /// Times that peers were asked for their retained messages after this node had had no room for them.
    pub copies_requested: u64,
    /// Messages that this core has relayed between nodes that do not reach each other.
    pub relayed: u64,
    /// Frames between workers and shards of other nodes that were dropped, because the link was down or had no room.
    /// Their senders repeat them.
    pub shard_frames_refused: u64,
    /// Invalid messages of peers.
    pub malformed: u64,
    /// Operators' questions to other nodes, and those without an answer.
    pub requests_sent: u64,
    pub requests_unanswered: u64,
    /// Questions of other nodes, and those refused because there were too many, or without room for their answers.
    pub requests_received: u64,
    pub requests_refused: u64,
    /// Bytes of frames to nodes of other regions before packing, and after; both count frames that were not worth
    /// packing.
    pub packed_before: u64,
    pub packed_after: u64,
}

impl Counters {
    pub(crate) fn count_packed(&mut self, frame: &Bytes, packed: Option<&Bytes>) {
        self.packed_before += frame.len() as u64;
        self.packed_after += packed.unwrap_or(frame).len() as u64;
    }
}

impl ClusterRouter {
    /// Creates a router, which follows the members that the cores agree on. `mesh` has no peers yet; `hash_seed` is the
    /// node's secret.
    pub fn new(now: Time, config: Config, node: Arc<Node>, mesh: Mesh, hash_seed: u64, meta: Meta) -> Self {
        let own = NodeId::of_name(&config.own.name);
        shard_positions::assert_is_node(own);
        let is_core = config.own.role == Role::Core;
        let replica = Replica::new(hash_seed, config.tombstones_max);
        let routes = RouteReplica::new(WriterId(own.0), config.incarnation, replica);
        node.stamp_retained(config.wall_ms, own.0 as u8);
        node.set_cluster_clock(None);
        if config.without_quorum != WithoutQuorum::Serve {
            node.set_fresh_until(broker::Time::default());
        }
        node.freeze_without_lease(config.without_quorum == WithoutQuorum::Freeze);
        let mut router = Self {
            own,
            mesh,
            peers: Peers::default(),
            routes,
            attachment: Attachment::default(),
            retained_missing: false,
            membership: Membership::new(meta),
            subacks: Subacks::default(),
            leases: LeaseState::new(now, config.lease, is_core),
            reports: Reports::new(now),
            clocks: Clocks::new(config.wall_ms),
            now,
            inbound: InboundQueues::new(usize::from(node.workers)),
            questions: Questions::default(),
            shards: shards::ShardTraffic::new(node.workers),
            owners: owners::OwnerRegions::default(),
            shard_positions: ShardPositions::default(),
            unsettled: incarnations::UnsettledShards::default(),
            counters: Counters::default(),
            unjoined_peers: unjoined_peers::UnjoinedPeers::default(),
            event_log: event_log::EventLog::new(now),
            node,
            config,
        };
        router.discover(now);
        router.apply_roster(now);
        router
    }

    pub fn mesh(&mut self) -> &mut Mesh {
        &mut self.mesh
    }

    /// Returns the node with this index.
    pub fn node_at(&self, index: NodeIndex) -> Option<NodeId> {
        self.peers.node_at(index)
    }

    pub fn counters(&self) -> Counters {
        Counters { requests_unanswered: self.questions.unanswered_count, ..self.counters }
    }

    pub fn handle_command(&mut self, now: Time, command: RouterCommand) {
        self.now = now;
        match command {
            RouterCommand::RoutesChanged => self.routes_changed(),
            RouterCommand::Outbound(outbound) => self.outbound(now, outbound),
            RouterCommand::Ask(question) => self.ask(now, question),
            RouterCommand::Answer(to, answer) => self.answer(now, to, answer.as_deref()),
            RouterCommand::Log(news) => self.handle_log_event(news),
            RouterCommand::LogRead(result) => self.handle_read(result),
            RouterCommand::Proposal(id, command) => self.propose(now, id, &command),
            RouterCommand::Leave(id) => self.leave(now, id),
            RouterCommand::JoinAt(addresses) => self.join_at(now, addresses),
            RouterCommand::Balance => self.balance(now),
            RouterCommand::RecordsCopied(at) => self.records_copied(at),
            RouterCommand::ShardChanged(shard, epoch) => self.shard_changed(shard, epoch),
            RouterCommand::Drained(nodes) => self.set_drained(now, nodes),
            RouterCommand::Resign => self.resign(now),
        }
    }

    /// Handles all input, and leaves the output in the mesh.
    pub fn turn(&mut self, now: Time) {
        self.now = now;
        self.mesh.handle_timeout(now);
        while let Some(event) = self.mesh.poll_event() {
            match event {
                MeshEvent::Link { peer, event } => self.link_event(now, peer, event),
                MeshEvent::Refused { address, name, reason, suppressed, is_transient } => {
                    let id = name.as_deref().map(NodeId::of_name);
                    if id.is_some_and(|id| self.forget_removed(now, id)) {
                        continue;
                    }
                    if !is_transient {
                        self.unjoined_peers.note(now, &address, name.as_deref(), &reason);
                    }
                    if let Some(suppressed) = suppressed {
                        unjoined_peers::log(&address, name.as_deref(), &reason, suppressed, is_transient);
                    }
                }
                MeshEvent::UnauthenticatedLimit { address, closed } => {
                    tracing::warn!(
                        %address, closed,
                        "too many connections to the cluster port do not identify themselves, most from this address: connections are \
                         closed to make room. Make sure that only nodes can reach that port"
                    );
                }
                MeshEvent::Introduced { name, descriptor, address } => {
                    self.introduced(now, &name, &descriptor, address.as_deref());
                }
            }
        }
        self.routes.forget_some(&self.node, &self.peers);
        self.update_membership(now);
        self.report_absent(now);
        self.request_refused();
        self.attach(now);
        self.withdraw(now);
        self.feed_peers(now);
        self.update_leases(now);
        self.judge_clocks(now);
        self.send_backlog(now);
        self.ask_for_copies(now);
        self.send_confirmations(now);
        self.release_subacks(now);
        self.questions.expire(now);
        self.write_event_log(now);
        self.open_traffic(now);
        self.settle_members(now);
        self.follow_clients(now);
        self.send_inbound();
    }

    /// Returns the time by which [`Self::turn`] is due.
    pub fn timeout(&self) -> Time {
        let feeds = self.feeds_due();
        let meta = self.membership.meta.timeout();
        self.mesh
            .timeout()
            .min(feeds)
            .min(self.subacks.deadline())
            .min(self.routes.due())
            .min(self.leases_due())
            .min(self.questions.due())
            .min(self.attachment.due())
            .min(self.leave_due())
            .min(self.unsettled.due())
            .min(self.owners_due())
            .min(meta)
    }

    fn link_event(&mut self, now: Time, id: NodeId, event: Event) {
        let Some(peer) = self.peers.get_mut(&id) else { return self.pending_peer_event(now, id, event) };
        match event {
            Event::Up => {
                peer.is_up = true;
                if peer.turned_away > 0 {
                    tracing::info!(
                        node = &*peer.info.name,
                        messages = std::mem::take(&mut peer.turned_away),
                        "the node is reachable again; messages were dropped meanwhile because its buffer was full"
                    );
                }
                self.unjoined_peers.joined(&peer.info.name, &peer.info.address);
                self.event_log.link(now, id, true);
                let features = self.mesh.peer(id).map_or(0, |peer| peer.features);
                let is_far = peer.info.region != self.config.own.region;
                peer.packs = self.config.packs && is_far && features & PACKS != 0;
                // The peer may have missed, or forgotten, the reports.
                self.reports.clear();
                self.subacks.ask_again();
                self.attachment.ask_again();
                // A node without a lease asks at once, not at its next interval.
                self.leases.request_at_once();
                self.clocks.link_up(now, id);
                self.routes.replica.set_suspect(WriterId(id.0), false);
                self.node.routes.set_reachable(peer.index, true);
                self.send_hello(now, id);
                self.shards_link_up(id);
                self.membership.meta.link_changed(id, true);
                self.update_origins();
            }
            Event::Suspect => {
                peer.is_up = false;
                peer.suspected_at = now;
                self.event_log.link(now, id, false);
                self.clocks.link_down(id);
                self.routes.replica.set_suspect(WriterId(id.0), true);
                self.node.routes.set_reachable(peer.index, false);
                self.give_up_copies();
                // Publishers wait until a majority of cores has answered since: this node may be the one that is cut
                // off.
                self.leases.request_at_once();
                self.settle_suspects(now);
                self.questions.lost(id);
                self.shards_link_lost(id);
                self.expect_restart(WriterId(id.0));
                if !self.is_member() {
                    self.expect_other_link(id);
                }
                self.membership.meta.link_changed(id, false);
            }
            Event::Restarted => {
                self.clocks.restarted(now, id);
                self.settle_messages(id, true);
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.restarted();
                }
                if let Some(grants) = &mut self.leases.granted {
                    grants.restarted(id);
                }
                if self.attachment.is_to(id) {
                    self.attachment.core_forgets();
                }
                self.clear_backlog(id);
                self.questions.lost(id);
                self.shards_link_lost(id);
            }
            // The incarnation that others reported is the process that the link belongs to already.
            Event::Continued => {
                peer.goes_on();
                self.confirm_member_incarnation(id);
            }
            Event::Acknowledged { lane, next } if lane == Lane::ROUTES => self.delta_arrived(id, next),
            // Messages are answered by their receiver; other frames need no answer.
            Event::Acknowledged { .. } | Event::Silent { .. } => {}
            Event::Received { lane, number, frame, credit } => {
                // An invalid packed frame is passed on as it is, and is invalid for its reader, too.
                let frame = match frame.first() {
                    Some(0) => packing::unpack(&frame).unwrap_or(frame),
                    _ => frame,
                };
                if matches!(lane.class(), Class::Assured | Class::BestEffort) {
                    return self.message_came(id, lane, number, frame, credit);
                }
                match lane.class() {
                    Class::Requests => return self.request_came(now, id, &frame, credit),
                    Class::Agreement | Class::Control => {
                        return self.agreement_or_control_came(now, id, &frame, credit);
                    }
                    _ => {}
                }
                self.mesh.consume(id, credit);
                match wire::decode(&frame) {
                    Some(message) => self.handle_message(now, id, message),
                    None => self.counters.malformed += 1,
                }
            }
        }
    }

    fn handle_message(&mut self, now: Time, from: NodeId, message: PeerMessage<'_>) {
        match message {
            PeerMessage::Hello(hello) => self.hello(from, hello),
            PeerMessage::Delta { number, delta } => self.delta(now, from, number, delta),
            // A message that needs a missing feature is invalid.
            PeerMessage::Brief(_) if !self.can(from, BRIEF) => self.counters.malformed += 1,
            PeerMessage::Applied(vector) | PeerMessage::Brief(vector) => {
                if let Some(grants) = &mut self.leases.granted {
                    grants.applied(from, vector);
                }
            }
            PeerMessage::Settle { position, in_region } => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    let settle_request =
                        if in_region { &mut peer.settle.in_region } else { &mut peer.settle.in_cluster };
                    settle_request.wanted = Some(position);
                }
            }
            PeerMessage::Settled(incarnation, position) => {
                if incarnation == self.config.incarnation {
                    self.leases.held.settled(from, position);
                }
            }
            PeerMessage::KnownInRegion(incarnation, position) => {
                if incarnation == self.config.incarnation {
                    self.attachment.known_in_region(from, position);
                }
            }
            PeerMessage::Confirm(confirmed) => self.confirmed(from, &confirmed),
            PeerMessage::Renew(stamp) => self.asked_for_lease(now, from, stamp),
            PeerMessage::Grant(stamp) => self.leases.take_grant(now, from, Time(stamp)),
            PeerMessage::Ask { number, question } => self.question_received(now, from, number, question),
            PeerMessage::Answer { number, part, bytes } => {
                self.questions.handle_part(from, number, part, bytes)
            }
            PeerMessage::Meta(message) => self.meta_message(now, from, &message),
            PeerMessage::Balance => self.rebalance(),
            PeerMessage::AskClock(_) | PeerMessage::Clock { .. } if !self.can(from, CLOCKS) => {
                self.counters.malformed += 1
            }
            PeerMessage::AskClock(stamp) => self.clock_asked(now, from, stamp),
            PeerMessage::Clock { stamp, wall_ms } => self.clocks.answered(now, from, stamp, wall_ms),
            PeerMessage::RequestCopies if !self.can(from, COPIES) => self.counters.malformed += 1,
            PeerMessage::RequestCopies if mutated(Mutation::IgnoreCopyRequests) => {}
            PeerMessage::RequestCopies => self.copy_again(from),
            PeerMessage::Namesake(_) if !self.can(from, NAMESAKES) => self.counters.malformed += 1,
            PeerMessage::Namesake(address) => self.namesake(now, address),
            PeerMessage::Shard { .. }
            | PeerMessage::ToShard { .. }
            | PeerMessage::ToWorker { .. }
            | PeerMessage::Leads { .. }
            | PeerMessage::Follows { .. } => match self.can(from, SHARDS) {
                true => self.shard_message(from, &message),
                false => self.counters.malformed += 1,
            },
            PeerMessage::SettleShard { .. }
            | PeerMessage::ShardSettled { .. }
            | PeerMessage::ReachShards(_) => match self.can(from, SHARDS) {
                true => self.shard_route_message(from, &message),
                false => self.counters.malformed += 1,
            },
        }
    }

    /// Returns whether both this node and a peer have a feature.
    fn can(&self, peer: NodeId, feature: u64) -> bool {
        self.mesh.peer(peer).is_some_and(|peer| peer.features & feature != 0)
    }

    /// Sends a message that is not buffered if the link has no room: its content is repeated.
    fn send_message(&mut self, now: Time, to: NodeId, lane: Lane, message: &PeerMessage<'_>) -> bool {
        let frame = self.packed(to, message.encode().into());
        self.mesh.send(now, to, lane, frame.into()).is_ok()
    }

    /// Returns whether large frames are packed for a peer.
    fn packs_for(&self, to: NodeId) -> bool {
        self.peers.get(&to).is_some_and(|peer| peer.packs)
    }

    /// Returns a frame as it is sent to a peer.
    fn packed(&mut self, to: NodeId, frame: Bytes) -> Bytes {
        if !self.packs_for(to) {
            return frame;
        }
        let packed = packing::pack(&frame);
        self.counters.count_packed(&frame, packed.as_ref());
        packed.unwrap_or(frame)
    }

    /// Passes the deliveries to the workers.
    fn send_inbound(&mut self) {
        for (worker, inbound) in self.inbound.drain() {
            self.node.post_inbound(worker, inbound);
        }
    }
}
