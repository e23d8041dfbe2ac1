//! Peers of this node: the members on which the cores agree, and nodes that may become members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use broker::ShardId;
use broker::peers::{Copies, Wants};
use bytes::Bytes;
use configstore::{Position, RecordUpdate};
use consensus::{LogRead, LogReadResult};
use link::{Class, Event, Lane, NodeId, Time};
use mqtt::ReasonCode;
use replog::{Incarnation, WriterId};
use storage::LogEvent;

use super::ClusterRouter;
use super::routes::{put, source_of};
use crate::config::{LeaderPolicy, NodeInfo};
use crate::features::{
    EPHEMERAL_SESSIONS, LINKED_GROUPS, LINKS, NAMESAKES, ORIGINS, QUEUE_LIMITS, QUEUE_REFUSALS,
};
use crate::interest::Interest;
use crate::meta::{
    Answer, Command, CoreLog, DrainedNodes, LeaderPreference, LinkStatus, Member, Meta, MetaMessage,
    NodeDescriptor, Placement, ProposalId, ShardLeaders, State,
};
use crate::mutation::{Mutation, mutated};
use crate::peer::Peer;
use crate::wire::{Hello, PeerMessage};

/// Members on which the cores agree, and nodes that may become members.
pub(super) struct Membership {
    pub meta: Meta,
    pending_peers: PendingPeers,
    /// Index of the roster that the peers match.
    applied_roster: u64,
    /// True when this incarnation is a member in that roster.
    was_member: bool,
    /// The request to leave that waits until other nodes have their answers, and its time.
    leave: Option<(ProposalId, Time)>,
}

/// Differences that a roster makes for the whole node.
struct AppliedRoster {
    /// True for the first roster: its members are no news.
    is_first: bool,
    /// True when this incarnation has become a member.
    has_joined: bool,
}

impl Membership {
    pub fn new(meta: Meta) -> Self {
        Self {
            meta,
            pending_peers: PendingPeers::default(),
            applied_roster: 0,
            was_member: false,
            leave: None,
        }
    }

    /// Notes that the peers match the present roster from now on; `None` if they do already.
    fn apply_roster(&mut self) -> Option<AppliedRoster> {
        let index = self.meta.roster().index;
        if index == self.applied_roster {
            return None;
        }
        let is_first = std::mem::replace(&mut self.applied_roster, index) == 0;
        let is_member = self.meta.is_member();
        let was_member = std::mem::replace(&mut self.was_member, is_member);
        Some(AppliedRoster { is_first, has_joined: is_member && !was_member })
    }
}

/// Nodes that are linked and no members.
#[derive(Debug, Default)]
struct PendingPeers {
    by_id: BTreeMap<NodeId, PendingPeer>,
}

impl PendingPeers {
    fn has_room(&self) -> bool {
        self.by_id.len() < PENDING_PEERS_MAX
    }

    /// Removes a node that was a member, and has been removed or has left. Returns false for other nodes.
    fn forget_removed(&mut self, id: NodeId) -> bool {
        let is_removed = self.by_id.get(&id).is_some_and(|peer| peer.state == PendingState::Removed);
        is_removed && self.by_id.remove(&id).is_some()
    }

    /// Takes the nodes that became no members in time.
    fn take_expired(&mut self, now: Time) -> Vec<NodeId> {
        let is_old = |peer: &PendingPeer| now.since(peer.since) > PENDING_PEER_TIMEOUT;
        self.by_id.extract_if(.., |_, peer| is_old(peer)).map(|(id, _)| id).collect()
    }
}

/// A node that is linked and belongs to no cluster yet, or to one that this node wants to join.
#[derive(Debug)]
struct PendingPeer {
    since: Time,
    state: PendingState,
    /// Hello that it sent as a member and does not repeat, and the number of the last hello to it.
    last: Option<(Hello, u32)>,
    /// Events that it sent as a member's peer: it learned earlier than this node that both are members. The link's
    /// credit is the bound.
    early: Vec<Event>,
}

/// State of a pending peer and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingState {
    Down,
    Up,
    /// The link is up. The node was a member and was removed, or has left: it stays linked until it has read that, and
    /// nothing waits for it.
    Removed,
}

impl PendingPeer {
    fn new(now: Time, state: PendingState) -> Self {
        Self { since: now, state, last: None, early: Vec::new() }
    }

    fn is_up(&self) -> bool {
        self.state != PendingState::Down
    }

    /// Notes that a removed node wants to join again.
    fn returns(&mut self) {
        if self.state == PendingState::Removed {
            self.state = PendingState::Up;
        }
    }
}

/// Time in microseconds after which a pending peer is dropped if it becomes no member.
const PENDING_PEER_TIMEOUT: u64 = 60_000_000;
const PENDING_PEERS_MAX: usize = 256;
/// Time after which a new member knows the others.
const SETTLED: Duration = Duration::from_secs(5);

impl ClusterRouter {
    /// Passes an event of the node's log to this node's replica.
    pub fn handle_log_event(&mut self, event: LogEvent) {
        self.membership.meta.handle_log_event(event);
    }

    /// Returns a request of this node's replica to read from the node's log. The owner runs it where a disk may
    /// be waited for, and passes the result on by [`RouterCommand::LogRead`](super::RouterCommand::LogRead).
    pub fn poll_log_read(&mut self) -> Option<LogRead> {
        self.membership.meta.poll_read()
    }

    pub(super) fn handle_read(&mut self, result: LogReadResult) {
        self.membership.meta.handle_read(result);
    }

    /// Proposes an operator's command: [`Self::poll_proposal`] returns the outcome.
    pub fn propose(&mut self, now: Time, id: ProposalId, command: &Command) {
        self.membership.meta.propose(now, id, command);
    }

    pub fn poll_proposal(&mut self) -> Option<(ProposalId, Result<Answer, String>)> {
        self.membership.meta.poll_answered()
    }

    /// Lets this node leave the cluster when it has answered the questions of other nodes: [`Self::poll_proposal`]
    /// reports the end of its membership. Its clients are disconnected before.
    pub fn leave(&mut self, now: Time, id: ProposalId) {
        if let Some((earlier, _)) = self.membership.leave.replace((id, now)) {
            self.membership.meta.leave(now, earlier);
        }
    }

    /// Returns the time at which the membership ends, if that was requested.
    pub(super) fn leave_due(&self) -> Time {
        self.membership.leave.map_or(Time::NEVER, |(_, since)| self.answers_arrive(since))
    }

    fn leave_if_answered(&mut self, now: Time) {
        if self.leave_due() <= now
            && let Some((id, _)) = self.membership.leave.take()
        {
            self.membership.meta.leave(now, id);
        }
    }

    /// Adds addresses of other nodes, on an operator's request.
    pub fn join_at(&mut self, now: Time, addresses: Vec<Box<str>>) {
        self.membership.meta.join_at(addresses);
        self.discover(now);
    }

    /// Sets the position of the owner's copy of the records.
    pub fn records_copied(&mut self, at: Position) {
        self.membership.meta.set_position(at);
    }

    /// Returns an update for the owner's copy of the records. The next one follows when the owner reports that this one
    /// is stored.
    pub fn poll_delivery(&mut self) -> Option<RecordUpdate> {
        self.membership.meta.poll_delivery()
    }

    /// Prepares a stop of this node: another core leads if this one did.
    pub fn resign(&mut self, now: Time) {
        self.membership.meta.resign(now);
    }

    /// Sets the nodes that are drained.
    pub(super) fn set_drained(&mut self, now: Time, nodes: DrainedNodes) {
        if nodes.contains_key(&self.own) {
            self.membership.meta.resign(now);
        }
        self.membership.meta.set_drained(nodes);
    }

    /// Returns the placement of shards that the cores have agreed on, as far as this node knows it. Its version grows
    /// with each change: the owner compares it after each turn.
    pub fn placement(&self) -> Option<&Arc<Placement>> {
        self.membership.meta.placement()
    }

    /// Returns whether this node has durable sessions of its own, and the shards of the cluster have other ones.
    pub fn has_other_state(&self) -> bool {
        self.membership.meta.has_other_state()
    }

    /// Returns whether this core votes in the meta group.
    pub fn has_vote(&self, now: Time) -> bool {
        self.membership.meta.has_vote(now)
    }

    /// Returns the versions of the placement, the roster, and the known leaders of shards with their regions, the nodes
    /// that do not reach each other, and those that are drained. [`Self::preferred_leaders`] changes with them only.
    pub fn placement_versions(&self) -> (u64, u64, u64) {
        let meta = &self.membership.meta;
        let placement = meta.placement().map_or(0, |placement| placement.version);
        let leaders = self.shards.leaders_version() + self.owners.version();
        let leaders = leaders + meta.cut_pairs_version() + meta.drained_version();
        (placement, meta.roster().index, leaders)
    }

    /// Returns whether all cores read Claims that keep ephemeral sessions, as far as this node knows.
    pub fn keeps_ephemeral_sessions(&self) -> bool {
        self.membership.meta.is_read_by_cores(EPHEMERAL_SESSIONS)
    }

    /// Returns whether all cores read Claims with limits for a queue, as far as this node knows.
    pub fn reads_queue_limits(&self) -> bool {
        self.membership.meta.is_read_by_cores(QUEUE_LIMITS)
    }

    /// Returns whether all nodes understand origins of messages, as far as this node knows.
    pub fn reads_origins(&self) -> bool {
        self.is_understood_by_all(ORIGINS)
    }

    /// Returns whether all nodes know the routes of linked clusters, as far as this node knows.
    pub fn reads_links(&self) -> bool {
        self.is_understood_by_all(LINKS)
    }

    /// Returns whether all nodes know that linked clusters join shared groups, as far as this node knows.
    pub fn reads_linked_groups(&self) -> bool {
        self.is_understood_by_all(LINKED_GROUPS)
    }

    /// Returns whether all nodes understand queues that refuse messages, as far as this node knows.
    pub fn reads_queue_refusals(&self) -> bool {
        self.is_understood_by_all(QUEUE_REFUSALS)
    }

    /// Returns whether all nodes have a feature, as far as this node knows: the cores, and nodes that are linked or may
    /// get what waits for them.
    fn is_understood_by_all(&self, feature: u64) -> bool {
        let members = &self.membership.meta.roster().members;
        let is_alive = |id: &NodeId| members.get(id).is_some_and(|member| member.state != State::Dead);
        let was_linked = |id: &NodeId| self.mesh.peer(*id).is_some_and(|peer| peer.features != 0);
        let mut receivers =
            self.peers.iter().filter(|(id, peer)| peer.is_up || is_alive(id) && was_linked(id));
        self.membership.meta.is_read_by_cores(feature) && receivers.all(|(id, _)| self.can(*id, feature))
    }

    /// Tells the workers whether messages may have origins.
    pub(super) fn update_origins(&self) {
        self.node.read_origins(self.reads_origins());
        self.node.read_links(self.reads_links());
        self.node.read_linked_groups(self.reads_linked_groups());
    }

    /// Returns the preferred leaders of all shards, as far as this node knows. `None` before there is a placement.
    pub fn preferred_leaders(&self) -> Option<ShardLeaders> {
        let preference = |shard| match &self.config.leaders {
            LeaderPolicy::Spread => LeaderPreference::Any,
            LeaderPolicy::Region(region) => LeaderPreference::In(region),
            LeaderPolicy::Follow => self.owners.preference(shard),
        };
        self.membership.meta.preferred_leaders(preference, &self.shards.last_leaders())
    }

    /// Returns the log of this core, by which it finds its replicas in a placement. `None` on a replicant.
    pub fn core_log(&self) -> Option<CoreLog> {
        self.membership.meta.core_log()
    }

    /// Notes that a shard that this node leads has the voters that its placement asks for in this epoch.
    pub fn shard_changed(&mut self, shard: ShardId, epoch: u64) {
        self.membership.meta.shard_changed(shard, epoch);
    }

    pub fn meta(&self) -> &Meta {
        &self.membership.meta
    }

    /// Returns whether this node takes part in the cluster.
    pub(super) fn is_member(&self) -> bool {
        self.membership.meta.is_member()
    }

    pub(super) fn update_membership(&mut self, now: Time) {
        self.leave_if_answered(now);
        let Membership { meta, pending_peers, .. } = &mut self.membership;
        // Turns for messages do not wait for a meta group that has nothing to do.
        if meta.timeout() > now {
            return;
        }
        let (own, mesh) = (self.leases.granted.as_ref(), &self.mesh);
        let link_status = |id: NodeId, is_up: bool| LinkStatus {
            id,
            is_up,
            holds_grant: own.is_some_and(|grants| grants.holds(now, id)),
            features: mesh.peer(id).filter(|_| is_up).map(|peer| peer.features),
        };
        let peers = self.peers.iter().map(|(id, peer)| link_status(*id, peer.is_up));
        let pending_peers =
            pending_peers.by_id.iter().map(|(id, pending_peer)| link_status(*id, pending_peer.is_up()));
        let all: Vec<LinkStatus> = peers.chain(pending_peers).collect();
        meta.turn(now, &all);
        self.counters.relayed = meta.relayed_count();
        if let Some(leader) = meta.leader() {
            self.event_log.leader(now, leader);
        }
        while let Some(frame) = meta.poll_frame() {
            let message = PeerMessage::Meta(frame.message.message()).encode();
            // A frame without room is dropped, because everything here is repeated.
            if self.mesh.send(now, frame.to, Lane::CONTROL, message.into()).is_err() {
                meta.unsent(&frame);
            }
        }
        self.log_turned_away(now);
        self.apply_roster(now);
        self.update_origins();
        self.discover(now);
        self.expire_pending_peers(now);
    }

    fn log_turned_away(&mut self, now: Time) {
        let reason = "its version is too old for the cluster, whose cores do not admit it: update it";
        while let Some(id) = self.membership.meta.poll_turned_away() {
            // The node may have asked by a relay that this node reaches.
            let linked = self.mesh.peer(id).map(|peer| (peer.name.to_owned(), peer.address.to_owned()));
            let known = || self.info(id).map(|info| (info.name.to_string(), info.address.to_string()));
            if let Some((name, address)) = linked.or_else(known) {
                self.mesh.report_problem(now, &name, &address, reason);
            }
        }
    }

    /// Looks for other nodes while this one is no member, or reaches no core.
    pub(super) fn discover(&mut self, now: Time) {
        let meta = &self.membership.meta;
        // The only core of a cluster has no other core to reach.
        let hears_core = self.is_core() && !self.peers.values().any(Peer::is_core)
            || self.peers.values().any(|peer| peer.is_core() && peer.is_up);
        let wants = !meta.is_leaving() && (!meta.is_member() || !hears_core);
        let wanted: BTreeSet<&str> = if wants { meta.join_addresses().collect() } else { BTreeSet::new() };
        let others = self.mesh.discovery().filter(|address| !wanted.contains(address));
        let others: Vec<Box<str>> = others.map(Into::into).collect();
        others.iter().for_each(|address| self.mesh.stop_discovery(address));
        wanted.iter().for_each(|address| self.mesh.discover(now, address));
        self.mesh.set_descriptor(now, meta.descriptor().encode().into());
    }

    /// Handles an introduction of a node that knows the secret.
    pub(super) fn introduced(&mut self, now: Time, name: &str, descriptor: &[u8], address: Option<&str>) {
        let said = descriptor;
        let Some(descriptor) = NodeDescriptor::decode(said) else {
            self.counters.malformed += 1;
            return;
        };
        let id = NodeId::of_name(name);
        if id == self.own && descriptor.address != self.config.own.address {
            return self.namesake(now, &descriptor.address);
        }
        if self.is_namesake(now, id, &descriptor) {
            self.mesh.refuse_namesake(now, id, Bytes::copy_from_slice(said), &descriptor.address);
            if self.can(id, NAMESAKES) {
                // A notice without room is repeated at the next introduction.
                self.send_message(now, id, Lane::CONTROL, &PeerMessage::Namesake(&descriptor.address));
            }
            return;
        }
        let Membership { meta, pending_peers, .. } = &mut self.membership;
        let (is_wanted, ours) = (meta.introduced(id, &descriptor, address), meta.roster().founded);
        if is_wanted {
            if let Some(pending_peer) = pending_peers.by_id.get_mut(&id) {
                pending_peer.returns();
                if !pending_peer.is_up() {
                    // Its address may have changed.
                    self.mesh.add_peer(now, name, &descriptor.address);
                }
            } else if pending_peers.has_room() {
                self.mesh.add_peer(now, name, &descriptor.address);
                pending_peers.by_id.insert(id, PendingPeer::new(now, PendingState::Down));
            }
            self.unjoined_peers.found(address.unwrap_or_default());
            return;
        }
        if descriptor.founded == 0 || ours == 0 || descriptor.founded == ours {
            self.unjoined_peers.found(address.unwrap_or_default());
        } else {
            // This is the start of `founded` in the API.
            let short = |founded: u128| format!("{:08x}", founded >> 96);
            let reason = format!(
                "it belongs to the cluster {}, and this node to the cluster {}: they have the same cluster.id and secret, and two clusters cannot be merged. \
                 Stop one of the two nodes, remove its data directory and start it again with cluster.join",
                short(descriptor.founded),
                short(ours)
            );
            self.mesh.report_problem(now, name, &descriptor.address, &reason);
        }
        // The node has moved. A reachable peer's address is not replaced on an introduction alone.
        if self.peers.get(&id).is_some_and(|peer| !peer.is_up && peer.info.address != descriptor.address) {
            self.mesh.add_peer(now, name, &descriptor.address);
        }
    }

    /// Returns whether a node is another process than the linked one of the same name: the linked one is alive and has
    /// another address.
    fn is_namesake(&self, now: Time, id: NodeId, descriptor: &NodeDescriptor) -> bool {
        let linked = self.mesh.peer(id).filter(|peer| peer.is_up && peer.is_alive(now));
        let linked = linked.and_then(|peer| NodeDescriptor::decode(peer.descriptor));
        linked.is_some_and(|linked| linked.address != descriptor.address)
    }

    /// Handles the notice that another process has this node's name.
    pub(super) fn namesake(&mut self, now: Time, address: &str) {
        let own = &self.config.own;
        let reason = format!(
            "another process at this address has the name of this node, which is at {}: give each node a name of its own (node.name), or stop one of the two",
            own.address
        );
        self.mesh.report_problem(now, &own.name, address, &reason);
    }

    fn expire_pending_peers(&mut self, now: Time) {
        // Nodes that found a cluster wait for each other without a limit.
        if self.membership.meta.roster().founded == 0 {
            return;
        }
        for id in self.membership.pending_peers.take_expired(now) {
            self.shards.forget_leaders(id);
            self.mesh.remove_peer(now, id);
        }
    }

    /// Removes the link of a node that has left and stopped. It is not dialed again, and not reported as missing.
    pub(super) fn forget_removed(&mut self, now: Time, id: NodeId) -> bool {
        if !self.membership.pending_peers.forget_removed(id) {
            return false;
        }
        self.shards.forget_leaders(id);
        self.mesh.remove_peer(now, id);
        self.membership.meta.link_changed(id, false);
        true
    }

    /// Handles an event of the link to a node that is no member.
    pub(super) fn pending_peer_event(&mut self, now: Time, id: NodeId, event: Event) {
        if matches!(event, Event::Suspect) && self.forget_removed(now, id) {
            return;
        }
        if matches!(event, Event::Suspect | Event::Restarted) {
            self.shards.forget_leaders(id);
        }
        let Membership { meta, pending_peers, .. } = &mut self.membership;
        let Some(pending_peer) = pending_peers.by_id.get_mut(&id) else { return };
        match event {
            Event::Up => {
                if pending_peer.state == PendingState::Down {
                    pending_peer.state = PendingState::Up;
                }
                if let Some(peer) = self.mesh.peer(id) {
                    self.unjoined_peers.joined(peer.name, peer.address);
                }
                meta.link_changed(id, true);
            }
            Event::Suspect => {
                pending_peer.state = PendingState::Down;
                meta.link_changed(id, false);
            }
            Event::Received { lane: Lane::CONTROL, frame, credit, .. } => {
                self.mesh.consume(id, credit);
                match crate::wire::decode(&frame) {
                    Some(PeerMessage::Meta(message)) => self.meta_message(now, id, &message),
                    // It asks for a lease, and will ask again.
                    Some(_) => {}
                    None => self.counters.malformed += 1,
                }
            }
            // A replica repeats its messages.
            Event::Received { lane, credit, .. } if lane.class() == Class::Agreement => {
                self.mesh.consume(id, credit);
            }
            Event::Received { .. } => pending_peer.early.push(event),
            Event::Restarted => {
                pending_peer.early.clear();
                pending_peer.last = None;
                pending_peer.returns();
            }
            Event::Acknowledged { .. } | Event::Continued | Event::Silent { .. } => {}
        }
    }

    pub(super) fn meta_message(&mut self, now: Time, from: NodeId, message: &MetaMessage<'_>) {
        let is_message = self.membership.meta.handle_message(now, from, message);
        self.counters.malformed += u64::from(!is_message);
    }

    /// Updates the peers to match the roster.
    pub(super) fn apply_roster(&mut self, now: Time) {
        let meta = &self.membership.meta;
        let roster = meta.roster().clone();
        if meta.is_over() && !mutated(Mutation::StayDead) {
            self.restart_incarnation();
        }
        let Some(AppliedRoster { is_first, has_joined }) = self.membership.apply_roster() else { return };
        if has_joined {
            // Nodes that had removed an earlier incarnation of this node meanwhile have forgotten its requests.
            self.request_all_again();
            self.attachment.rebalance_at(now.after(SETTLED));
        }
        self.tell_members(&roster);
        for (id, member) in &roster.members {
            if *id != self.own {
                self.event_log.member(now, *id, member, !is_first);
                self.apply_member(now, *id, member);
            }
        }
        let gone: Vec<NodeId> = self.peers.ids().filter(|id| !roster.members.contains_key(id)).collect();
        for id in gone {
            self.remove_peer(now, id);
        }
        let cores = roster.cores().map(|(id, _)| id).collect();
        self.leases.held.set_cores(&cores);
        if let Some(grants) = &mut self.leases.granted {
            grants.keep(now, |id| roster.members.contains_key(&id));
        }
        self.node.set_other_nodes(self.peers.index_count());
    }

    fn apply_member(&mut self, now: Time, id: NodeId, member: &Member) {
        let (writer, incarnation) = (WriterId(id.0), member.incarnation);
        // The node was removed meanwhile, and has lost its number with its disk.
        let is_smaller = |peer: &Peer| peer.member.is_some_and(|known| known > incarnation);
        if self.peers.get(&id).is_some_and(is_smaller) {
            self.remove_peer(now, id);
        }
        // Changes of a later incarnation belonged to one that never joined before the node was removed: it may have
        // lost that number, too.
        let is_gone_back = !self.peers.contains(id)
            && member.state != State::Dead
            && !mutated(Mutation::RememberIncarnations)
            && self.routes.replica.discard_later(writer, incarnation);
        match self.peers.get_mut(&id) {
            None => self.add_peer(now, id, &member.info),
            Some(peer) if peer.info != member.info => {
                peer.info = member.info.clone();
                self.mesh.add_peer(now, &member.info.name, &member.info.address);
            }
            Some(_) => {}
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let is_other = peer.member.replace(incarnation) != Some(incarnation);
        // It may have been removed before, in this incarnation, without noticing; or in one with a greater number.
        let is_revived = member.state != State::Dead && self.routes.replica.revive(writer, incarnation);
        let is_purged = matches!(member.state, State::Suspect(_)) && mutated(Mutation::PurgeSuspects);
        let dead = (member.state == State::Dead || is_purged).then_some(incarnation);
        if peer.dead != dead {
            peer.dead = dead;
            peer.dead_since = dead.map(|_| now);
            if let Some(incarnation) = dead {
                self.apply_death(id, incarnation);
            }
        }
        if is_revived || is_gone_back {
            self.forget_incarnations(writer);
            // Changes that others sent of it were refused, and they count as sent.
            self.request_all_again();
        } else if is_other {
            // The node may have announced which incarnation runs before this node knew that it is a member.
            self.confirm_member_incarnation(id);
            if self.routes.replica.incarnation(writer) > Some(incarnation) {
                // Changes that others sent of it were refused if they had announced the one that is over: see
                // `discard_greater_incarnation`.
                self.request_all_again();
            }
        }
    }

    /// Forgets the positions of other nodes in ended incarnations of a node.
    pub(super) fn forget_incarnations(&mut self, writer: WriterId) {
        self.routes.forget_soon();
        let replica = &self.routes.replica;
        let grants = self.leases.granted.as_mut();
        if let Some(grants) = grants.filter(|_| !mutated(Mutation::RememberIncarnations)) {
            grants.forget_incarnations(writer, |incarnation| replica.is_dead(writer, incarnation));
        }
    }

    pub(super) fn add_peer(&mut self, now: Time, id: NodeId, info: &NodeInfo) {
        let pending_peer = self.membership.pending_peers.by_id.remove(&id);
        self.mesh.add_peer(now, &info.name, &info.address);
        let peer = self.peers.add(now, id, info.clone());
        let index = peer.index;
        self.node.routes.set_reachable(index, false);
        // Hello numbers of a link continue: the first answer belongs to the hello from when the other was last a
        // member.
        if let Some((_, said)) = pending_peer.as_ref().and_then(|pending_peer| pending_peer.last.as_ref()) {
            peer.hello = *said;
        }
        // It may have been a member before, and have lost its state of that time.
        if let Some(grants) = &mut self.leases.granted {
            grants.restarted(id);
        }
        // Its routes may have arrived from others before this node knew that it is a member.
        for (key, interest) in self.routes.replica.entries(WriterId(id.0)) {
            put(&self.node, index, key, Some(*interest));
        }
        let Some(pending_peer) = pending_peer else { return };
        if pending_peer.is_up() {
            self.link_event(now, id, Event::Up);
        }
        if let Some((hello, _)) = pending_peer.last {
            self.hello(id, hello);
        }
        for event in pending_peer.early {
            self.link_event(now, id, event);
        }
        self.expect_restart(WriterId(id.0));
    }

    /// Removes a peer that is no longer a member, with all its interest.
    pub(super) fn remove_peer(&mut self, now: Time, id: NodeId) {
        self.settle_messages(id, true);
        self.clear_backlog(id);
        self.questions.lost(id);
        let Some(peer) = self.peers.remove(now, id) else { return };
        let is_linked = peer.is_up && self.membership.pending_peers.has_room();
        self.shards_peer_gone(id, is_linked);
        self.routes.replica.lost(source_of(&peer));
        self.clocks.forget(id);
        self.event_log.forget(id);
        // The report that it could not be reached concerned a member. No node looks for it now.
        self.unjoined_peers.joined(&peer.info.name, &peer.info.address);
        tracing::info!(node = &*peer.info.name, "node removed from the cluster");
        self.membership.meta.link_changed(id, false);
        self.node.routes.set_reachable(peer.index, false);
        let writer = WriterId(id.0);
        // This includes earlier incarnations: when they are forgotten, the node may have another index.
        let of_last = self.routes.replica.entries(writer);
        for (key, _) in of_last.chain(self.routes.replica.remains(writer)) {
            put(&self.node, peer.index, key, None);
        }
        // It may have started another incarnation, which is no member yet.
        if let Some(incarnation) = peer.member {
            self.routes.replica.declare_dead(writer, incarnation);
            self.forget_incarnations(writer);
        }
        self.hand_over_retained(id);
        let pending_peers = &mut self.membership.pending_peers;
        if is_linked {
            // This link tells the node that it is no member.
            let last = peer.last_hello.map(|hello| (hello, peer.hello));
            let removed = PendingPeer { last, ..PendingPeer::new(now, PendingState::Removed) };
            pending_peers.by_id.insert(id, removed);
        } else {
            self.mesh.remove_peer(now, id);
        }
        self.attachment.detach(id);
        // Other nodes may be attached elsewhere now, so all positions are reported again.
        self.reports.clear();
    }

    /// Handles the death of an incarnation. The interest of its clients, which are gone with it, is dropped. That of
    /// its durable sessions is kept, and messages wait for it.
    fn apply_death(&mut self, id: NodeId, incarnation: Incarnation) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (index, writer) = (peer.index, WriterId(id.0));
        if self.routes.replica.incarnation(writer).is_none_or(|known| known <= incarnation) {
            // If it has not reported everything, its earlier interest stands for the rest.
            for (key, interest) in
                self.routes.replica.remains(writer).chain(self.routes.replica.entries(writer))
            {
                put(&self.node, index, key, durable_interest(*interest));
            }
        }
        if peer.is_up {
            self.settle_messages(id, false);
        }
        self.settle_suspects(self.now);
        self.hand_over_retained(id);
    }

    /// Passes on the retained messages of a dead node that only some nodes have received. No one else does; the other
    /// nodes get them from the peer that sends them everything.
    fn hand_over_retained(&mut self, gone: NodeId) {
        if mutated(Mutation::ForgetLegacy) {
            return;
        }
        let copies = Copies::Of(gone.0 as u8);
        let receivers =
            self.peers.iter().filter(|(id, peer)| **id != gone && peer.copies == Some(Copies::All));
        for index in receivers.map(|(_, peer)| peer.index) {
            self.inbound.copy_to(index, copies);
        }
    }

    /// Restarts this node's incarnation, because the others have declared it dead or it may not start. Its clients are
    /// disconnected.
    pub(super) fn restart_incarnation(&mut self) {
        let meta = &mut self.membership.meta;
        let known = meta.roster().members.get(&self.own);
        let is_known = known.is_some_and(|member| member.incarnation == self.config.incarnation);
        let was_member = meta.was_member() || is_known;
        let incarnation = meta.restart_incarnation();
        self.give_up_unconfirmed();
        if was_member {
            tracing::warn!(
                "node declared dead or removed by the cores, because none of them reached it; disconnecting its clients and joining again"
            );
            if !mutated(Mutation::KeepClients) {
                self.node.close_clients(ReasonCode::ServerBusy);
            }
        }
        self.config.incarnation = incarnation;
        self.restart_workers();
        self.routes.restart_incarnation(incarnation);
        // The other nodes knew changes of the earlier incarnation.
        self.attachment.core_forgets();
        self.leases.held.forget();
        self.subacks.rebase(self.routes.own_position());
        for peer in self.peers.values_mut() {
            peer.fed.iter_mut().for_each(|fed| fed.own = None);
            peer.is_copied = false;
        }
        // Where this node was removed, others have forgotten their links to it.
        let away: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| !peer.is_up).map(|(id, _)| *id).collect();
        away.into_iter().for_each(|id| self.expect_other_link(id));
        // The others learn of the new incarnation, and receive its changes.
        self.membership.was_member = false;
        self.request_all_again();
    }

    /// Sends all peers a hello with this node's requests, as for the first time.
    pub(super) fn request_all_again(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.requested_scope = None);
        self.reports.clear();
    }

    pub(super) fn is_core(&self) -> bool {
        self.config.own.role == crate::config::Role::Core
    }

    /// Returns whether this core may grant a lease to a node.
    pub(super) fn may_be_granted(&self, id: NodeId) -> bool {
        let incarnation = self.peers.get(&id).and_then(|peer| peer.incarnation);
        let meta = &self.membership.meta;
        meta.may_grant() && meta.may_be_granted(id, incarnation)
    }
}

/// Returns the interest of a dead node that remains: that of the sessions on its disk.
fn durable_interest(interest: Interest) -> Option<Interest> {
    match interest {
        Interest::Wants(wants) if wants.includes(Wants::STORED) => Some(Interest::Wants(Wants::STORED)),
        Interest::Wants(_) | Interest::Members(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn a_pending_peer_expires_and_a_removed_one_ends_with_its_link() {
        let mut peers = PendingPeers::default();
        let ids = [1, 2, 3].map(NodeId);
        let states = [PendingState::Down, PendingState::Up, PendingState::Removed];
        for (id, state) in ids.into_iter().zip(states) {
            peers.by_id.insert(id, PendingPeer::new(at(id.0), state));
        }
        assert_eq!(ids.map(|id| peers.by_id[&id].is_up()), [false, true, true]);
        assert_eq!(ids.map(|id| peers.forget_removed(id)), [false, false, true]);
        assert!(peers.take_expired(at(61)).is_empty());
        assert_eq!(peers.take_expired(at(62)), [ids[0]]);
    }

    #[test]
    fn a_removed_node_may_join_again() {
        let mut peers = PendingPeers::default();
        peers.by_id.insert(NodeId(1), PendingPeer::new(at(0), PendingState::Removed));
        peers.by_id.values_mut().for_each(PendingPeer::returns);
        assert!(!peers.forget_removed(NodeId(1)));
        assert!(peers.by_id[&NodeId(1)].is_up());
    }
}
