//! Routes: the interest of this node's clients is sent to the other nodes, and theirs is received.

use std::sync::Arc;
use std::time::Duration;

use broker::peers::{Announce, Copies, Members, NodeIndex, SubackLevel, Wants};
use broker::{Node, RouteChange};
use bytes::Bytes;
use link::{Lane, NodeId, Time};
use mqtt::TopicFilter;
use replog::{Change, CopyPart, Delta, Feed, Incarnation, NotApplied, Position, Replica, SourceId, WriterId};

use super::ClusterRouter;
use crate::config::{Role, WithoutQuorum};
use crate::features::SHARDS;
use crate::interest::Interest;
use crate::mutation::{Mutation, mutated};
use crate::packing;
use crate::peer::{Fed, Peer};
use crate::peers::Peers;
use crate::shard_positions::shard_of;
use crate::subacks::{KnownBy, Scope};
use crate::wire::{FeedScope, Hello, PeerMessage};
use crate::withdrawals::Withdrawals;

/// Prefix of the key of a shared group; no Topic Filter of a route begins with it.
const GROUP: &str = "$share/";
/// Time after which the last reports of a dead core have reached all cores.
const DEAD_CORE_SETTLE_TIME: Duration = Duration::from_secs(60);
/// Maximum entries of dead incarnations that are forgotten in one turn.
const FORGET_AT_ONCE: usize = 1000;

/// Applies another node's change of a route to the index. Returns false when the index has no room for it, or the key
/// is no valid filter. The number of wildcards is no reason, because the subscription was granted. While there is no
/// room for a route, this node is not fresh, see [`broker::Routes::unrouted`].
pub(super) fn put_route(node: &Arc<Node>, peers: &Peers, change: &Change<'_, Interest>) -> bool {
    // The writer is no peer here.
    let Some(peer) = peers.get(&NodeId(change.writer.0)) else { return true };
    put(node, peer.index, change.key, change.value.copied())
}

/// Sets the present interest of another node in a key.
pub(super) fn put(node: &Arc<Node>, index: NodeIndex, key: &[u8], interest: Option<Interest>) -> bool {
    let Ok(text) = std::str::from_utf8(key) else { return false };
    if text.starts_with(GROUP) {
        let members = match interest {
            Some(Interest::Members(members)) => members,
            Some(Interest::Wants(_)) | None => Members::NONE,
        };
        node.members_of_peer(text, index, members);
        return true;
    }
    let Ok(filter) = TopicFilter::parse(text) else { return false };
    let wants = match interest {
        Some(Interest::Wants(wants)) => wants,
        Some(Interest::Members(_)) | None => Wants::NOTHING,
    };
    if mutated(Mutation::RefuseShapes) && node.routes.shapes_free() == 0 && !wants.is_nothing() {
        return false;
    }
    node.routes.set_peer(filter, index, wants).is_ok()
}

/// Routes of all nodes, as far as this node knows them, and changes of its own routes that wait.
#[derive(Debug)]
pub(super) struct RouteReplica {
    own: WriterId,
    pub replica: Replica<Interest>,
    /// Writers whose changes this node sends to other cores: itself and the nodes that are attached to it.
    branch: Vec<WriterId>,
    withdrawals: Withdrawals,
    /// True while entries of writers are being forgotten.
    is_forgetting: bool,
    /// True once the interest of this node's sessions from earlier incarnations is among its changes: it sends hellos
    /// from then on.
    has_begun: bool,
}

impl RouteReplica {
    /// Creates the routes of a node without any.
    pub fn new(own: WriterId, incarnation: Incarnation, mut replica: Replica<Interest>) -> Self {
        replica.own(own, incarnation);
        Self {
            own,
            replica,
            branch: Vec::new(),
            withdrawals: Withdrawals::default(),
            is_forgetting: false,
            has_begun: false,
        }
    }

    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Notes that the interest of earlier incarnations is among this node's changes.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Returns the position of this node's own last change.
    pub fn own_position(&self) -> Position {
        self.replica.position(self.own).unwrap_or_default()
    }

    /// Applies a change on this node. `is_wanted` tells whether the node wants these messages of a filter now. QoS 0
    /// interest is withdrawn after `linger` if a durable session may return for it.
    fn change(
        &mut self,
        now: Time,
        linger: Duration,
        change: &RouteChange,
        is_wanted: impl Fn(TopicFilter<'_>, Wants) -> bool,
    ) {
        // UNSUBSCRIBE and the end of the session leave no durable session that is subscribed. So a client cannot make
        // other nodes keep more filters than it may have.
        let may_return =
            |filter: &str| TopicFilter::parse(filter).is_ok_and(|filter| is_wanted(filter, Wants::STORED));
        match change {
            RouteChange::Filter { filter, wants: Wants::QOS0, is_added: false }
                if may_return(filter) && self.withdrawals.put_off(now, linger, filter) => {}
            RouteChange::Filter { filter, wants, is_added } => {
                self.filter_changed(filter, *wants, *is_added, &is_wanted);
                // No session is left that could return for the filter.
                if *wants == Wants::STORED && !*is_added && self.withdrawals.contains(filter) {
                    self.filter_changed(filter, Wants::QOS0, false, &is_wanted);
                }
            }
            RouteChange::Group { text, members } => {
                let interest = (members.count > 0).then_some(Interest::Members(*members));
                self.replica.set(self.own, text.as_bytes(), interest);
            }
        }
    }

    fn filter_changed(
        &mut self,
        filter: &str,
        wants: Wants,
        is_added: bool,
        is_wanted: impl Fn(TopicFilter<'_>, Wants) -> bool,
    ) {
        let known = match self.replica.get(self.own, filter.as_bytes()) {
            Some(Interest::Wants(wants)) => *wants,
            Some(Interest::Members(_)) | None => Wants::NOTHING,
        };
        let is_wanted = is_added || TopicFilter::parse(filter).is_ok_and(|filter| is_wanted(filter, wants));
        let wants = if is_wanted { known.with(wants) } else { known.without(wants) };
        let interest = (!wants.is_nothing()).then_some(Interest::Wants(wants));
        self.replica.set(self.own, filter.as_bytes(), interest);
    }

    /// Withdraws QoS 0 interest of durable sessions that did not return in time.
    fn withdraw(&mut self, now: Time, is_wanted: impl Fn(TopicFilter<'_>, Wants) -> bool) {
        while let Some(filter) = self.withdrawals.pop_due(now) {
            self.filter_changed(&filter, Wants::QOS0, false, &is_wanted);
        }
    }

    /// Starts another incarnation of this node, with the same routes.
    pub fn restart_incarnation(&mut self, incarnation: Incarnation) {
        let entries: Vec<(Box<[u8]>, Interest)> =
            self.replica.entries(self.own).map(|(key, value)| (key.into(), *value)).collect();
        self.replica.own(self.own, incarnation);
        for (key, interest) in entries {
            self.replica.set(self.own, &key, Some(interest));
        }
    }

    /// Notes that some incarnation of a writer may be over.
    pub fn forget_soon(&mut self) {
        self.is_forgetting = true;
    }

    /// Forgets some entries of writers that have started a new incarnation.
    pub fn forget_some(&mut self, node: &Arc<Node>, peers: &Peers) {
        // The interest of its durable sessions stays until its new incarnation has reported all of it.
        let is_complete = |writer: WriterId, now: Option<(Incarnation, Position)>| {
            let Some((peer, now)) = peers.get(&NodeId(writer.0)).zip(now) else { return true };
            peer.began_at.is_some_and(|began| began.0 == now.0 && began.1 <= now.1)
                || mutated(Mutation::ForgetEarly)
        };
        self.is_forgetting = self.replica.forget_some(FORGET_AT_ONCE, is_complete, |change| {
            // A withdrawn interest always has room.
            put_route(node, peers, &change);
        });
    }

    /// Returns the time by which a withdrawal, or forgotten entries, need a turn.
    pub fn due(&self) -> Time {
        if self.is_forgetting { Time::default() } else { self.withdrawals.deadline() }
    }

    /// Sets the writers whose changes this node sends to other cores. Returns whether they are others than before.
    fn set_branch(&mut self, branch: impl Iterator<Item = WriterId> + Clone) -> bool {
        let is_changed = !branch.clone().eq(self.branch.iter().copied());
        if is_changed {
            self.branch = branch.collect();
        }
        is_changed
    }
}

impl ClusterRouter {
    /// Applies the changes on this node.
    pub(super) fn routes_changed(&mut self) {
        let Self { routes, node, config, now, .. } = self;
        for change in node.routes.take_changes() {
            let is_wanted = |filter: TopicFilter<'_>, wants| node.routes.is_wanted(filter, wants);
            routes.change(*now, config.qos0_linger, &change, is_wanted);
        }
    }

    /// Withdraws QoS 0 interest of durable sessions that did not return in time.
    pub(super) fn withdraw(&mut self, now: Time) {
        let Self { routes, node, .. } = self;
        routes.withdraw(now, |filter, wants| node.routes.is_wanted(filter, wants));
    }

    /// Handles SUBSCRIBEs whose filters are among the applied changes.
    pub(super) fn announced(&mut self, now: Time, announces: &[Announce]) {
        let position = self.routes.own_position();
        let deadline = now.after(self.config.suback_timeout);
        for Announce { connection, ticket, level, shard } in announces {
            let is_core = self.config.own.role == Role::Core;
            let is_early = mutated(Mutation::SubackEarly);
            let scope = match level {
                // The core has no part in the routes of a shard: this node has them from the shard's leader.
                SubackLevel::Core if !is_core && shard.is_none() => Scope::Core,
                SubackLevel::Region if !is_early => Scope::Region,
                SubackLevel::Cluster | SubackLevel::Links if !is_early => Scope::Cluster,
                SubackLevel::Core
                | SubackLevel::Local
                | SubackLevel::Region
                | SubackLevel::Cluster
                | SubackLevel::Links => {
                    self.inbound.announce(*connection, *ticket, true);
                    continue;
                }
            };
            let suback = (*connection, *ticket);
            match shard {
                Some((shard, position)) => {
                    self.subacks.push_of_shard(scope, (*shard, Position(*position)), suback, deadline);
                }
                None => self.subacks.push(scope, position, suback, deadline),
            }
        }
    }

    /// Sends SUBACKs whose subscriptions are known, or whose time is over.
    pub(super) fn release_subacks(&mut self, now: Time) {
        let (region, cluster) = (self.subacks.wanted_in_region(), self.subacks.wanted_in_cluster());
        let known = KnownBy {
            core: self.attachment.core_knows(),
            region: region.map_or(Position::default(), |_| self.known_in_region()),
            cluster: cluster.map_or(Position::default(), |_| self.settled()),
        };
        while let Some((connection, ticket)) = self.subacks.pop_known(&known) {
            self.inbound.announce(connection, ticket, true);
        }
        self.release_subacks_of_shards();
        while let Some((scope, connection, ticket)) = self.subacks.pop_overdue(now) {
            self.counters.subacks_overdue += 1;
            let is_accepted = match scope {
                // A client that needs only the core learns at the time-out that this node is alone.
                Scope::Core => true,
                // With the setting to serve alone, clients may subscribe.
                Scope::Region => self.config.without_quorum == WithoutQuorum::Serve,
                Scope::Cluster => false,
            };
            self.inbound.announce(connection, ticket, is_accepted);
        }
    }

    /// Returns the scope that this node needs from a peer in the present situation.
    pub(super) fn wants_from(&self, id: NodeId, peer: &Peer) -> FeedScope {
        match (self.config.own.role, peer.info.role) {
            (Role::Core, Role::Core) if self.reads_for_others(id) => FeedScope::All,
            (Role::Core, Role::Core) => FeedScope::Branch,
            // A replicant sends its changes to the core that it is attached to.
            (Role::Core, Role::Replicant) if peer.feed_scope == FeedScope::All => FeedScope::Branch,
            (Role::Replicant, Role::Core) if self.attachment.is_to(id) => FeedScope::All,
            (Role::Core | Role::Replicant, _) => FeedScope::Nothing,
        }
    }

    /// Returns whether this core reads changes of unreachable nodes from a peer. While a core is cut off from this one,
    /// another core may know its changes: it is unknown which. The last changes of a dead one have reached all cores
    /// after a while.
    fn reads_for_others(&self, id: NodeId) -> bool {
        let cores = || self.peers.iter().filter(|(_, peer)| peer.is_core());
        let is_reported = |peer: &Peer| {
            let is_old = peer.dead_since.is_some_and(|since| since.after(DEAD_CORE_SETTLE_TIME) <= self.now);
            is_old && self.leases.is_informed()
        };
        let is_cut_off = cores().any(|(_, peer)| !peer.is_up && !is_reported(peer));
        let is_first = || cores().find(|(_, peer)| peer.is_up).is_some_and(|(first, _)| *first == id);
        is_cut_off && (!mutated(Mutation::AskOneCore) || is_first())
    }

    /// Sends a peer the scope that this node requests, and its positions.
    pub(super) fn send_hello(&mut self, now: Time, id: NodeId) {
        let Some(peer) = self.peers.get(&id) else { return };
        if mutated(Mutation::ForgetHello) && peer.link_epoch > 0 {
            return;
        }
        if !self.routes.has_begun() {
            return;
        }
        let feed_scope = self.wants_from(id, peer);
        let source = source_of(peer);
        let own = WriterId(self.own.0);
        let load =
            self.peers.values().filter(|peer| peer.feed_scope == FeedScope::All && !peer.is_core()).count();
        // Feeds have no routes of shards, but a restarted core has to know how much of them this node knows.
        let of_shards = self.shard_positions.vector().filter(|_| self.can(id, SHARDS));
        let hello = Hello {
            is_core: self.config.own.role == Role::Core,
            feed_scope,
            number: peer.hello.wrapping_add(1),
            load: load as u32,
            incarnation: self.config.incarnation,
            // The positions always include this node's own.
            vector: self
                .routes
                .replica
                .vector()
                .filter(|(writer, ..)| feed_scope != FeedScope::Nothing || *writer == own)
                .chain(of_shards)
                .collect(),
        };
        let is_later = |&(writer, incarnation, _): &(WriterId, Incarnation, Position)| {
            self.peers
                .member_incarnation(writer)
                .is_some_and(|member_incarnation| incarnation > member_incarnation)
                .then_some((writer, incarnation))
        };
        let later = hello.vector.iter().filter_map(is_later).collect();
        let is_said = self.send_message(now, id, Lane::ROUTES, &PeerMessage::Hello(hello));
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !is_said {
            peer.requested_scope = None; // The hello is repeated when there is room.
            return;
        }
        peer.hello = peer.hello.wrapping_add(1);
        peer.requested_scope = Some(feed_scope);
        peer.later = later;
        self.routes.replica.lost(source);
        // A core that learns of this incarnation only now has ignored the request to settle.
        self.subacks.ask_again();
    }

    pub(super) fn hello(&mut self, from: NodeId, hello: Hello) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.last_hello = Some(hello.clone());
        let Hello { feed_scope, number, load, mut vector, incarnation, .. } = hello;
        if !self.leases.is_informed() {
            peer.first_knew_of_shards(&vector);
        }
        vector.retain(|(writer, ..)| shard_of(*writer).is_none());
        let theirs = vector.iter().find(|(writer, ..)| writer.0 == from.0);
        if peer.incarnation.replace(incarnation) != Some(incarnation) {
            peer.settle.forget_reported();
        }
        self.confirm_member_incarnation(from);
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.began_at.is_none_or(|(known, _)| known != incarnation) {
            peer.began_at = Some((incarnation, theirs.map_or(Position::default(), |(.., at)| *at)));
        }
        if !self.leases.is_informed() && self.config.own.role == Role::Core && peer.is_core() {
            let known =
                vector.iter().map(|(writer, incarnation, position)| (*writer, (*incarnation, *position)));
            peer.knew.get_or_insert_with(|| known.collect());
        }
        // Perhaps all initial changes are known already.
        self.routes.forget_soon();
        let own = (WriterId(self.own.0), self.config.incarnation);
        let known = vector.iter().copied().find(|(writer, incarnation, _)| (*writer, *incarnation) == own);
        (peer.feed_scope, peer.scope_from_hello, peer.load) = (feed_scope, number, load);
        let is_relevant = feed_scope != FeedScope::Nothing;
        // These are retained messages of times when the two did not reach each other. A node that gets its routes from
        // another node gets all retained messages there.
        let copies = if is_relevant { Copies::All } else { Copies::Own(from.0 as u8) };
        if peer.copies < Some(copies) && !mutated(Mutation::ForgetCopies) {
            peer.copies = Some(copies);
            self.inbound.copy_to(peer.index, copies);
        }
        peer.fed.clear();
        peer.is_copied = false;
        peer.feed =
            (feed_scope != FeedScope::Nothing).then(|| Feed::new(self.config.batching.clone(), vector));
        // The peer skips changes that this node has, perhaps from another node.
        if let Some((.., position)) = known {
            self.attachment.known_by_core(from, position);
        }
    }

    pub(super) fn delta(&mut self, now: Time, from: NodeId, number: u32, bytes: &[u8]) {
        // SUBACK waits for it, and so does the next delta of a long copy.
        self.mesh.acknowledge(from);
        let Some(peer) = self.peers.get(&from) else { return };
        let (source, is_past) = (source_of(peer), peer.hello != number);
        let Ok(delta) = Delta::decode(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let is_copy = delta.copy != CopyPart::No;
        let (writer, incarnation) = (delta.writer, delta.incarnation);
        // An unknown incarnation may be an old one that a third node had, kept by the link since. The feed that follows
        // shows which one runs.
        let is_old_news =
            is_past && writer.0 != from.0 && self.routes.replica.incarnation(writer) != Some(incarnation);
        // After the end of a feed a copy is sent again. For other deltas the sender takes the link's acknowledgement as
        // an answer.
        if is_past && is_copy || is_old_news || self.peers.is_dead_incarnation(writer, incarnation) {
            return;
        }
        let ends_own_copy = delta.copy == CopyPart::End && writer.0 == from.0;
        let (peers, node, counters) = (&self.peers, &self.node, &mut self.counters);
        let applied = self.routes.replica.apply(source, delta, |change| {
            counters.routes_applied += 1;
            if !put_route(node, peers, &change) {
                counters.routes_refused += 1;
            }
        });
        match applied {
            Ok(_) => {
                self.routes.forget_soon();
                self.expect_restart(writer);
                // Parts may have been refused during another copy: the writer gets this node's position.
                if ends_own_copy {
                    self.send_hello(now, from);
                }
            }
            Err(NotApplied::Gap { .. }) if is_past => {}
            Err(NotApplied::Gap { .. }) => self.send_hello(now, from),
            Err(NotApplied::Copying) => self.give_up_copies(),
            Err(NotApplied::Old { known })
                if !is_past && self.peers.member_incarnation(writer) == Some(incarnation) =>
            {
                self.discard_greater_incarnation(now, from, (writer, known), incarnation);
            }
            Err(NotApplied::Own | NotApplied::Dead | NotApplied::Old { .. }) => {}
        }
    }

    /// Discards a greater incarnation that others reported of a reachable node whose incarnation is that of the roster.
    /// If the greater one were running, the link would be the first to know.
    pub(super) fn confirm_member_incarnation(&mut self, id: NodeId) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (Some(member_incarnation), true) = (peer.member, peer.member == peer.incarnation) else { return };
        let writer = WriterId(id.0);
        let is_known =
            peer.ahead.is_none() && peer.dead.is_none() && !mutated(Mutation::RememberIncarnations);
        if is_known && self.routes.replica.discard_later(writer, member_incarnation) {
            self.forget_incarnations(writer);
            // Changes that others sent of the one that continues were refused.
            self.request_all_again();
        }
    }

    /// Discards a greater incarnation of a node when a peer sends changes of the one in the roster. The greater one
    /// either joins next, or it is over and the node that reported it did not know, such as a core that was cut off or
    /// suspended. A feed sends a smaller number than its reader has named in two cases only: the greater incarnation is
    /// over, as its sender knows, or the feed is about the sender itself.
    fn discard_greater_incarnation(
        &mut self,
        now: Time,
        from: NodeId,
        (writer, known): (WriterId, Incarnation),
        member_incarnation: Incarnation,
    ) {
        if !self.peers.get(&from).is_some_and(|peer| peer.later.contains(&(writer, known))) {
            return self.send_hello(now, from);
        }
        self.routes.replica.discard_later(writer, member_incarnation);
        self.forget_incarnations(writer);
        // Changes that others sent of the one that continues were refused, too.
        self.request_all_again();
    }

    /// Stops copies from unreachable sources from blocking other sources.
    pub(super) fn give_up_copies(&mut self) {
        for peer in self.peers.values().filter(|peer| !peer.is_up) {
            self.routes.replica.source_down(source_of(peer));
        }
    }

    /// Sends a new hello to peers whose deltas were refused during another copy.
    pub(super) fn request_refused(&mut self) {
        while let Some(source) = self.routes.replica.poll_refused_source() {
            if let Some(peer) = self.peers.values_mut().find(|peer| source_of(peer) == source) {
                peer.requested_scope = None;
            }
        }
    }

    /// Sends peers the changes that they have requested and lack.
    pub(super) fn feed_peers(&mut self, now: Time) {
        self.update_branch();
        let own = WriterId(self.own.0);
        for (id, peer) in self.peers.iter_mut() {
            let Some(feed) = &mut peer.feed else { continue };
            let wants = wanted_by(*id, peer.feed_scope, &self.routes.branch);
            while let Some(delta) = feed.poll(now.0, &self.routes.replica, &wants) {
                let mut bytes = Vec::with_capacity(64 + 32 * delta.operations.len());
                delta.encode(&mut bytes);
                let message = PeerMessage::Delta { number: peer.scope_from_hello, delta: &bytes };
                let mut frame = Bytes::from(message.encode());
                if peer.packs {
                    let packed = packing::pack(&frame);
                    self.counters.count_packed(&frame, packed.as_ref());
                    frame = packed.unwrap_or(frame);
                }
                match self.mesh.send(now, *id, Lane::ROUTES, frame.into()) {
                    Ok(number) => {
                        let is_own = delta.writer == own;
                        peer.is_copied |= is_own && delta.copy != CopyPart::No;
                        let own = (is_own && !peer.is_copied).then_some(delta.upto);
                        peer.fed.push_back(Fed { number, cost: Feed::cost(&delta), own });
                    }
                    Err(_) => {
                        feed.unsent(&self.routes.replica, &delta);
                        break;
                    }
                }
            }
        }
    }

    /// Returns the time by which a feed has something to send.
    pub(super) fn feeds_due(&self) -> Time {
        let due = self.peers.iter().filter_map(|(id, peer)| {
            peer.feed
                .as_ref()?
                .next_due(&self.routes.replica, wanted_by(*id, peer.feed_scope, &self.routes.branch))
        });
        due.min().map_or(Time::NEVER, Time)
    }

    /// Handles an acknowledgement: a peer has received and applied the deltas up to a number.
    pub(super) fn delta_arrived(&mut self, id: NodeId, next: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        while let Some(fed) = peer.fed.pop_front_if(|fed| fed.number < next) {
            if let Some(feed) = &mut peer.feed {
                feed.acknowledged(fed.cost);
            }
            if let Some(own) = fed.own {
                self.attachment.known_by_core(id, own);
            }
        }
    }

    /// Updates the writers whose changes this node sends to other cores, after a node was attached or detached. The
    /// changes of an unreachable replicant are sent by all cores that know them: its own core may have forgotten it.
    fn update_branch(&mut self) {
        let forwards_absent = self.config.own.role == Role::Core && !mutated(Mutation::ForgetAway);
        let is_forwarded = |peer: &Peer| peer.feed_scope == FeedScope::All || forwards_absent && !peer.is_up;
        let attached = self.peers.iter().filter(|(_, peer)| !peer.is_core() && is_forwarded(peer));
        let branch = [self.own].into_iter().chain(attached.map(|(id, _)| *id)).map(|id| WriterId(id.0));
        if self.routes.set_branch(branch) {
            self.peers.values_mut().filter_map(|peer| peer.feed.as_mut()).for_each(Feed::wants_changed);
        }
    }
}

/// Returns whether a peer gets a writer's changes from this node.
fn wanted_by(peer: NodeId, feed_scope: FeedScope, branch: &[WriterId]) -> impl Fn(WriterId) -> bool {
    move |writer| match feed_scope {
        FeedScope::Nothing => false,
        FeedScope::Branch => writer.0 != peer.0 && branch.contains(&writer),
        FeedScope::All => writer.0 != peer.0,
    }
}

/// Returns the source of a peer's feed for one hello.
pub(super) fn source_of(peer: &Peer) -> SourceId {
    SourceId(u64::from(peer.index.0) << 32 | u64::from(peer.hello))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: WriterId = WriterId(1);
    const LINGER: Duration = Duration::from_secs(60);

    fn routes() -> RouteReplica {
        RouteReplica::new(OWN, Incarnation(1), Replica::new(0, 10))
    }

    /// Applies a change of a filter at a time in seconds, while the node wants `wanted` of it.
    fn change(routes: &mut RouteReplica, at: u64, wants: Wants, is_added: bool, wanted: Wants) {
        let change = RouteChange::Filter { filter: "a".into(), wants, is_added };
        let is_wanted = |_: TopicFilter<'_>, wants| wanted.includes(wants);
        routes.change(Time(at * 1_000_000), LINGER, &change, is_wanted);
    }

    fn interest(routes: &RouteReplica) -> Option<Interest> {
        routes.replica.get(OWN, b"a").copied()
    }

    #[test]
    fn qos_0_interest_stays_for_a_while_after_a_durable_session_disconnects() {
        let (mut routes, both) = (routes(), Wants::QOS0.with(Wants::STORED));
        change(&mut routes, 0, Wants::STORED, true, both);
        change(&mut routes, 0, Wants::QOS0, true, both);
        change(&mut routes, 1, Wants::QOS0, false, Wants::STORED);
        assert_eq!(interest(&routes), Some(Interest::Wants(both)));
        assert_eq!(routes.due(), Time(61_000_000));
        routes.withdraw(Time(61_000_000), |_, wants| wants == Wants::STORED);
        assert_eq!(interest(&routes), Some(Interest::Wants(Wants::STORED)));
    }

    #[test]
    fn interest_ends_with_the_session_that_could_return() {
        let (mut routes, both) = (routes(), Wants::QOS0.with(Wants::STORED));
        change(&mut routes, 0, Wants::STORED, true, both);
        change(&mut routes, 0, Wants::QOS0, true, both);
        change(&mut routes, 1, Wants::QOS0, false, Wants::STORED);
        change(&mut routes, 2, Wants::STORED, false, Wants::NOTHING);
        assert_eq!(interest(&routes), None);
    }

    #[test]
    fn the_next_incarnation_has_the_same_routes_under_new_positions() {
        let mut routes = routes();
        change(&mut routes, 0, Wants::STORED, true, Wants::STORED);
        change(&mut routes, 0, Wants::QOS0, true, Wants::STORED);
        assert_eq!(routes.own_position(), Position(2));
        routes.restart_incarnation(Incarnation(7));
        assert_eq!(
            (routes.replica.incarnation(OWN), routes.own_position()),
            (Some(Incarnation(7)), Position(1))
        );
        assert_eq!(interest(&routes), Some(Interest::Wants(Wants::QOS0.with(Wants::STORED))));
    }

    #[test]
    fn feeds_learn_of_a_branch_once() {
        let mut routes = routes();
        let branch = |writers: &'static [u64]| writers.iter().map(|writer| WriterId(*writer));
        assert!(routes.set_branch(branch(&[1])) && !routes.set_branch(branch(&[1])));
        assert!(routes.set_branch(branch(&[1, 2])) && routes.set_branch(branch(&[1])));
    }
}
