//! Dispatch of a message to all its receivers.

use std::sync::atomic::{Ordering, fence};

use mqtt::{PlainPublish, QoS, ReasonCode, TopicName};
use routing::Reader;

use super::Worker;
use super::deliver::EncodeOnce;
use super::queues::Waits;
use super::spans::OpenSpan;
use crate::batch::{BatchDelivery, Body, Target, Token};
use crate::groups::{GroupAppend, GroupRequest};
use crate::ids::{ConnectionId, ShardId, ShardSet, WorkerId};
use crate::match_cache::MatchCache;
use crate::message::{MessageView, Shared};
use crate::origin::Origins;
use crate::peers::{NodeIndex, Wants};
use crate::quota::Payers;
use crate::retained;
use crate::route::{Route, RouteKind};
use crate::store::{GroupName, Identity, Request, reason_for_publisher};
use crate::will::WillOwner;

/// Maximum size of a message that is copied for each worker. Larger messages are shared.
const INLINE_MAX: usize = 8 * 1024;

/// Cost of a delivery to a shared group, in deliveries to a connection. Such a delivery needs a command of its own.
const GROUP_FAN_OUT: u64 = 8;

/// Properties of a publish: its origin, its completions and earlier attempts.
#[derive(Clone, Copy, Default)]
pub(super) struct Publishing<'a> {
    /// Token for the completions. `None` means that nothing waits for them.
    pub token: Option<Token>,
    /// Identity of a message that may be sent again.
    pub identity: Option<Identity>,
    /// Loss counter of other nodes when an earlier connection dispatched the message; `None` if none did. Connected
    /// clients have such a message. The store may lack it, and so may a node with a loss since then.
    pub previous_losses: Option<u32>,
    pub origin: Origin,
    /// Payers of a Will, in case it is retained.
    pub will_payers: Option<&'a Payers>,
    /// Client of a Will whose connection is gone.
    pub will_owner: Option<&'a WillOwner>,
    /// The only group that gets the message: another cluster has chosen this one for it.
    pub group: Option<&'a GroupName>,
}

/// Origin of a publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// This node or one of its clients.
    #[default]
    Here,
    /// A client of this node, which may have sent the message before.
    HereAgain,
    /// Another node. The message is only for clients of this node. `stamp` is that of a message which that node
    /// retained, and 0 for others.
    Peer { stamp: u64 },
}

impl Origin {
    /// Returns the origin of a message from a client of this node.
    pub fn of_client(is_repeated: bool) -> Self {
        if is_repeated { Self::HereAgain } else { Self::Here }
    }

    fn is_peer(self) -> bool {
        matches!(self, Self::Peer { .. })
    }

    fn stamp(self) -> u64 {
        match self {
            Self::Here | Self::HereAgain => 0,
            Self::Peer { stamp } => stamp,
        }
    }
}

impl Publishing<'_> {
    /// Returns whether the publisher can be notified that no receiver has the message. A Will is not refused, because
    /// its shard keeps it for later.
    fn is_refusable(&self) -> bool {
        matches!(self.token, Some(Token::Publish { .. } | Token::Operator { .. } | Token::Forwarded { .. }))
    }
}

/// Result of a dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dispatched {
    /// Number of completions that will come for the token.
    pub outstanding: u32,
    pub matched: bool,
    /// Shards that got the identity of the message.
    pub shards: ShardSet,
    /// True if the store gives some of the completions, on this node or another.
    pub stored: bool,
    /// Reason Code if no receiver has the message, because the log accepts none.
    pub refused: Option<ReasonCode>,
    /// True if the message went to other receivers and to a shared group whose member may not get it.
    pub may_be_partial: bool,
}

/// Index of the routes as this worker reads it, and what its dispatches add up to.
pub(super) struct Dispatcher {
    pub reader: Reader<Route>,
    pub cache: MatchCache,
    /// Number of the last dispatched message.
    serial: u64,
    /// Approximate number of deliveries that messages dispatched on this worker have caused.
    pub fan_out: u64,
    /// Messages that no receiver got because the log accepts none. They are counted with the refusals of the shards.
    pub refused_by_log: u64,
}

impl Dispatcher {
    /// Makes a dispatcher. `secret` is unknown to clients.
    pub fn new(reader: Reader<Route>, secret: u64) -> Self {
        Self { reader, cache: MatchCache::new(secret), serial: 0, fan_out: 0, refused_by_log: 0 }
    }

    /// Begins the next message, with about this number of deliveries.
    pub fn begin(&mut self, deliveries: usize) {
        self.serial += 1;
        self.fan_out += deliveries as u64;
    }
}

impl Worker {
    /// Sends a message to all matching subscriptions [MQTT3-3.3.2-3]. Completions carry `token`. Without a token there
    /// are no completions.
    pub(super) fn dispatch(
        &mut self,
        name: TopicName<'_>,
        view: MessageView<'_>,
        token: Option<Token>,
    ) -> Dispatched {
        self.dispatch_as(name, view, Publishing { token, ..Publishing::default() })
    }

    pub(super) fn dispatch_as(
        &mut self,
        name: TopicName<'_>,
        view: MessageView<'_>,
        publishing: Publishing<'_>,
    ) -> Dispatched {
        if let Some(group) = publishing.group {
            return self.dispatch_to_group(&view, &publishing, group);
        }
        // In a cluster whose shards have replicas, the publisher's node has sent the message to the topic's shard.
        let retains = view.retain && !(publishing.origin.is_peer() && self.has_cluster_shards());
        if retains {
            self.announce_retained(view.topic);
        }
        let mut routes = std::mem::take(&mut self.scratch.routes);
        routes.clear();
        let Dispatcher { reader, cache, .. } = &mut self.dispatcher;
        let mut rest = cache.routes(reader, name, &mut routes);
        let mut with_origin = Vec::new();
        let mut view = view;
        if let Some((Route { kind: RouteKind::Origin, .. }, others)) = rest.split_first() {
            rest = others;
            if !publishing.origin.is_peer() && self.node.origins() == Origins::Kept {
                self.put_origin(&view, publishing.will_owner, &mut with_origin);
                view.properties = &with_origin;
            }
        }
        let mut shared = Shared::of(view);
        self.dispatcher.fan_out += rest.len() as u64;
        let needs_log = retains || view.qos > QoS::AtMostOnce && !rest.is_empty();
        let refusal = if needs_log { self.node.refusal() } else { None };
        if refusal.is_some() && retains {
            // Other nodes keep the message, even at QoS 0 and from a client of this node.
            self.node.note_retained_missing();
        }
        if refusal.is_some() && publishing.is_refusable() && needs_places(rest, &view, retains, &publishing) {
            self.dispatcher.refused_by_log += 1;
            if self.monitor.events.observes_fates() && !publishing.origin.is_peer() {
                self.note_dispatched(&view, Some("not_stored"));
            }
            self.scratch.routes = routes;
            return Dispatched { refused: refusal, matched: true, ..Dispatched::default() };
        }
        if self.monitor.events.observes_fates() && !publishing.origin.is_peer() {
            let is_unwanted = rest.is_empty() && !retains;
            self.note_dispatched(&view, is_unwanted.then_some("no_subscribers"));
        }
        let mut span = OpenSpan::default();
        if view.span != 0 {
            span = self.monitor.begin_route(&view, rest);
        }
        self.dispatcher.serial += 1;
        let mut result = Dispatched { matched: !rest.is_empty(), ..Dispatched::default() };
        let mut local = std::mem::take(&mut self.scratch.targets);
        local.clear();
        let token = publishing.token.filter(|_| view.qos > QoS::AtMostOnce);
        let (mut for_sessions, mut for_groups) = (ShardSet::EMPTY, ShardSet::EMPTY);
        let mut forwarded = 0;
        let is_kept = retains && retained::shard_of(view.topic) != retained::OWN_TOPICS;
        let stamp = match publishing.origin.stamp() {
            0 if is_kept => self.node.stamp(self.clock.now()),
            stamp => stamp,
        };
        let is_forwarded = publishing.origin.is_peer();
        let mut frame = None;
        if stamp != 0 && !is_forwarded {
            result.outstanding += self.forward_retained(&view, (stamp, false), token);
        }
        while let Some(first) = rest.first() {
            match first.kind {
                RouteKind::Connection | RouteKind::ConnectionQos0 | RouteKind::ConnectionLink => {
                    let same = same_receiver(rest);
                    let (routes, after) = rest.split_at(same);
                    rest = after;
                    if publishing.previous_losses.is_some() {
                        continue;
                    }
                    if first.index == self.id.0 {
                        merge(routes, &view, &mut local);
                    } else {
                        result.outstanding += self.batch_targets(first.index, routes, &mut shared, token);
                    }
                }
                RouteKind::Shard => {
                    rest = &rest[1..];
                    // In a cluster whose nodes know all shards, the node of the publisher has asked them.
                    let is_asked = is_forwarded && self.lanes.is_some();
                    if view.qos > QoS::AtMostOnce && !is_asked {
                        for_sessions.insert(ShardId(first.index));
                    }
                }
                RouteKind::ShardGroups => {
                    rest = &rest[1..];
                    self.dispatcher.fan_out += GROUP_FAN_OUT * u64::from(first.subscription_id);
                    // The node that forwarded the message has chosen the members.
                    if !is_forwarded {
                        for_groups.insert(ShardId(first.index));
                    }
                }
                RouteKind::Node => {
                    let same = same_receiver(rest);
                    let (routes, after) = rest.split_at(same);
                    rest = after;
                    // A message that an earlier connection sent to the node arrives, unless it was lost on the way.
                    let node = NodeIndex(first.index);
                    let is_sent = publishing
                        .previous_losses
                        .is_some_and(|losses| !self.node.routes.may_have_lost(node, losses));
                    let is_stored = routes.iter().any(|route| route.wants().includes(Wants::STORED));
                    if !is_forwarded && !is_sent && stamp == 0 {
                        let completions = self.forward(routes, &view, &mut frame, token);
                        forwarded += completions;
                        result.stored |= completions > 0 && is_stored;
                    } else if !is_forwarded && stamp != 0 && is_stored {
                        self.peers.retained_is_for_durable(node, self.node.others());
                    }
                }
                // The origin comes first. The others are in the index of a shard, not in the index of the node.
                RouteKind::Origin | RouteKind::Session | RouteKind::Group => rest = &rest[1..],
            }
        }
        self.scratch.routes = routes;
        let shards = for_sessions | for_groups;
        if !for_groups.is_empty() {
            let stored = for_groups.len() + for_sessions.len();
            let others = !local.is_empty() || is_kept;
            result.may_be_partial = stored + result.outstanding + forwarded + u32::from(others) > 1;
        }
        let is_alone = forwarded == 1 && result.outstanding == 0 && shards.is_empty() && local.is_empty();
        if is_alone && !view.retain && publishing.origin != Origin::HereAgain {
            self.peers.forwarded_alone();
        }
        result.outstanding += forwarded;
        let (identity, is_again) = (publishing.identity, publishing.origin == Origin::HereAgain);
        for shard in for_groups.iter() {
            // A message with an identity goes to the groups first, and then to the sessions of that shard.
            let sessions = identity.is_some() && for_sessions.contains(shard);
            let message = shared.message();
            let append = GroupAppend { message, sessions, identity, is_again, refusal, token, only: None };
            self.outbox.group_request(shard, GroupRequest::Append(append));
            result.outstanding += u32::from(token.is_some());
            if sessions {
                for_sessions.remove(shard);
            }
        }
        for shard in for_sessions.iter() {
            let append = Request::Append { message: shared.message(), identity, refusal, token };
            self.outbox.request(shard, append);
            result.outstanding += u32::from(token.is_some());
        }
        result.shards = if publishing.identity.is_some() { shards } else { ShardSet::EMPTY };
        if !local.is_empty() && self.deliver_all(&local, &mut shared, token) {
            result.outstanding += 1;
        }
        self.scratch.targets = local;
        if retains {
            let payers = match publishing.will_payers {
                Some(payers) => payers.clone(),
                None => self.payers_of(view.publisher),
            };
            // An operator is also notified at QoS 0, and reads what was retained afterwards.
            let of_operator = |token: &Token| matches!(token, Token::Operator { .. });
            let token = token.or(publishing.token.filter(of_operator));
            let outstanding = self.retain(&mut shared, stamp, refusal, token, payers);
            result.outstanding += outstanding;
            result.stored |= outstanding > 0;
        }
        result.stored |= !shards.is_empty();
        if view.span != 0 {
            self.monitor.end_span(span);
        }
        result
    }

    /// Gives a message to one member of a shared group, and to nobody else.
    #[cold]
    fn dispatch_to_group(
        &mut self,
        view: &MessageView<'_>,
        publishing: &Publishing<'_>,
        group: &GroupName,
    ) -> Dispatched {
        let token = publishing.token.filter(|_| view.qos > QoS::AtMostOnce);
        let (identity, is_again) = (publishing.identity, publishing.origin == Origin::HereAgain);
        let refusal = if view.qos > QoS::AtMostOnce { self.node.refusal() } else { None };
        // A member may have a repeated QoS 2 message. Otherwise the group decides when it chooses a member.
        if refusal.is_some() && publishing.is_refusable() && is_again && identity.is_some() {
            self.dispatcher.refused_by_log += 1;
            return Dispatched { refused: refusal, matched: true, ..Dispatched::default() };
        }
        if self.monitor.events.observes_fates() {
            self.note_dispatched(view, None);
        }
        self.dispatcher.begin(GROUP_FAN_OUT as usize);
        let shard = group.shard();
        let (message, only) = (view.to_message(), Some(Box::new(group.clone())));
        let append = GroupAppend { message, sessions: false, identity, is_again, refusal, token, only };
        self.outbox.group_request(shard, GroupRequest::Append(append));
        let mut shards = ShardSet::EMPTY;
        if identity.is_some() {
            shards.insert(shard);
        }
        Dispatched {
            outstanding: u32::from(token.is_some()),
            matched: true,
            shards,
            stored: true,
            ..Dispatched::default()
        }
    }

    /// Appends the properties of a message with its origin in front.
    #[cold]
    fn put_origin(&self, view: &MessageView<'_>, will_owner: Option<&WillOwner>, out: &mut Vec<u8>) {
        let connection = view.publisher.filter(|id| id.worker == self.id);
        let connection = connection.and_then(|id| self.connections.get(id.slot, id.generation));
        let publisher = match (connection, will_owner) {
            (Some(connection), _) => (Some(connection.identity(&self.node)), connection.mountpoint()),
            (None, Some(owner)) => (Some(owner.identity()), owner.mountpoint()),
            (None, None) => (None, ""),
        };
        // The serial number of this message is the next one.
        let number = u64::from(self.id.0) << 48 | (self.dispatcher.serial + 1);
        let wall_ms = self.node.origin_wall_ms();
        self.node.origin_facts().origin(publisher, view, number, wall_ms).put(out);
        out.extend_from_slice(view.properties);
    }

    /// Records a message that was published on this worker for events. `drop_reason`: why nobody gets it.
    fn note_dispatched(&mut self, view: &MessageView<'_>, drop_reason: Option<&str>) {
        let publisher = view.publisher.filter(|id| id.worker == self.id);
        let publisher = publisher.and_then(|id| self.connections.get(id.slot, id.generation));
        self.monitor.events.dispatched(self.clock.now(), publisher, view, drop_reason);
    }

    /// Delivers a message to connections of this worker. Returns true if a receiver has no free queue slot; `token`
    /// then completes later.
    pub(super) fn deliver_all(
        &mut self,
        targets: &[Target],
        shared: &mut Shared<'_>,
        token: Option<Token>,
    ) -> bool {
        let mut once = EncodeOnce::for_receivers(targets.len());
        let waits = self.deliver_each(targets, shared, &mut once, token);
        self.scratch.encoded = once.into_buffer();
        waits
    }

    /// Delivers a message like [`Self::deliver_all`]. `once` encodes it.
    pub(super) fn deliver_each(
        &mut self,
        targets: &[Target],
        shared: &mut Shared<'_>,
        once: &mut EncodeOnce<'_>,
        token: Option<Token>,
    ) -> bool {
        let mut waits = Waits::No;
        let mut ids = std::mem::take(&mut self.scratch.ids);
        let mut rest = targets;
        while let Some((first, after)) = rest.split_first() {
            if first.subscription_id == 0 && after.first().is_none_or(|next| !next.continues) {
                rest = after;
                self.deliver(first, &[], shared, once, token, &mut waits);
                continue;
            }
            let more = after.iter().take_while(|target| target.continues).count();
            ids.clear();
            ids.extend(
                [first]
                    .into_iter()
                    .chain(&after[..more])
                    .map(|target| target.subscription_id)
                    .filter(|id| *id != 0),
            );
            rest = &after[more..];
            self.deliver(first, &ids, shared, once, token, &mut waits);
        }
        self.scratch.ids = ids;
        waits != Waits::No
    }

    pub(super) fn batch_targets(
        &mut self,
        worker: u16,
        routes: &[Route],
        shared: &mut Shared<'_>,
        token: Option<Token>,
    ) -> u32 {
        let view = shared.view;
        let batch = self.outbox.batch(WorkerId(worker));
        let before = batch.targets.len();
        merge(routes, &view, &mut batch.targets);
        if batch.targets.len() == before {
            return 0;
        }
        match batch.deliveries.last_mut() {
            Some(last) if last.serial == self.dispatcher.serial => {
                last.targets.end = batch.targets.len();
                return 0;
            }
            _ => {}
        }
        let body = if view.encoded_len() <= INLINE_MAX {
            let start = batch.records.len();
            view.encode(&mut batch.records);
            Body::Inline(start..batch.records.len())
        } else {
            Body::Shared(shared.message())
        };
        let targets = before..batch.targets.len();
        batch.deliveries.push(BatchDelivery { body, targets, token, serial: self.dispatcher.serial });
        u32::from(token.is_some())
    }

    /// Gives a plain message to the shard whose shared groups match. Returns the number of completions that will come.
    pub(super) fn append_for_groups(
        &mut self,
        route: &Route,
        shared: &mut Shared<'_>,
        token: Option<Token>,
    ) -> u32 {
        self.dispatcher.fan_out += GROUP_FAN_OUT * u64::from(route.subscription_id);
        let refusal = if shared.view.qos > QoS::AtMostOnce { self.node.refusal() } else { None };
        let message = shared.message();
        let (sessions, identity, is_again) = (false, None, false);
        let append = GroupAppend { message, sessions, identity, is_again, refusal, token, only: None };
        self.outbox.group_request(ShardId(route.index), GroupRequest::Append(append));
        u32::from(token.is_some())
    }

    /// Adds a plain message for a connection of another worker to the batch for that worker. Returns the number of
    /// completions that will come.
    #[inline]
    pub(super) fn batch_plain(
        &mut self,
        route: &Route,
        plain: &PlainPublish<'_>,
        shared: &mut Shared<'_>,
        token: Option<Token>,
    ) -> u32 {
        if shared.view.encoded_len() > INLINE_MAX {
            return self.batch_targets(route.index, std::slice::from_ref(route), shared, token);
        }
        let serial = self.dispatcher.serial;
        let batch = self.outbox.batch(WorkerId(route.index));
        batch.targets.push(Target::of(route));
        let end = batch.targets.len();
        if let Some(last) = batch.deliveries.last_mut().filter(|last| last.serial == serial) {
            last.targets.end = end;
            return 0;
        }
        let start = batch.records.len();
        batch.records.extend_from_slice(plain.packet());
        let packet = start..batch.records.len();
        let body = Body::Plain { packet, shape: plain.shape(), received: shared.view.received };
        batch.deliveries.push(BatchDelivery { body, targets: end - 1..end, token, serial });
        u32::from(token.is_some())
    }

    /// Marks the topic's host as one that has retained messages, before the worker matches the topic. A subscriber that
    /// does not see the mark is already in the index when the topic is matched.
    pub(super) fn announce_retained(&self, topic: &str) {
        let shard = retained::shard_of(topic);
        let used = &self.node.published[self.node.retained_host(shard).index()].retained_used;
        if shard != retained::OWN_TOPICS && !used.load(Ordering::Acquire) {
            used.store(true, Ordering::Release);
            fence(Ordering::SeqCst); // Paired with the fence in `first_used`.
        }
    }

    fn retain(
        &mut self,
        shared: &mut Shared<'_>,
        stamp: u64,
        refusal: Option<ReasonCode>,
        token: Option<Token>,
        payers: Payers,
    ) -> u32 {
        let shard = retained::shard_of(shared.view.topic);
        let message = shared.message();
        if shard == retained::OWN_TOPICS {
            self.retain_own(message);
            return 0;
        }
        self.outbox
            .request(shard, Request::Retain { message, stamp, copied_by: None, refusal, token, payers });
        u32::from(token.is_some())
    }

    /// Returns the payers of a retained message of a client.
    fn payers_of(&self, publisher: Option<ConnectionId>) -> Payers {
        let connection = publisher.filter(|id| id.worker == self.id);
        let connection = connection.and_then(|id| self.connections.get(id.slot, id.generation));
        let extra = connection.and_then(|connection| connection.extra.as_ref());
        extra.map(|extra| extra.payers.clone()).unwrap_or_default()
    }

    /// Sends a completion to the party that waits for it.
    pub(super) fn answer(&mut self, token: Token, reason: ReasonCode) {
        match token {
            Token::Publish { connection: ConnectionId { worker, slot, generation }, sequence }
                if worker == self.id =>
            {
                self.publish_completed(slot, generation, sequence, reason);
            }
            Token::Publish { connection, .. } => {
                self.outbox.complete(connection.worker, token, reason);
            }
            Token::Operator { worker, key } if worker == self.id => {
                self.completed_for_operator(key, reason_for_publisher(reason));
            }
            Token::Operator { worker, .. } => self.outbox.complete(worker, token, reason),
            Token::Append { shard, key } => self.outbox.request(shard, Request::Accepted { key, reason }),
            Token::Offered { shard, key } => {
                self.outbox.group_request(shard, GroupRequest::Offered { key, reason });
            }
            Token::Groups { shard, key } => {
                self.outbox.group_request(shard, GroupRequest::Accepted { key, reason });
            }
            Token::Copy { worker, key } if worker == self.id => self.continue_copy(key),
            Token::Copy { worker, .. } => self.outbox.complete(worker, token, reason),
            Token::Forwarded { worker, key } if worker == self.id => self.peers.has_arrived(key, reason),
            Token::Forwarded { worker, .. } | Token::Requested { lane: worker, .. } => {
                self.outbox.complete(worker, token, reason)
            }
        }
    }
}

/// Returns whether the log has to store a message. A shared group decides that itself when it chooses a member. The
/// exception is a repeated QoS 2 message, which a member may already have.
fn needs_places(
    routes: &[Route],
    view: &MessageView<'_>,
    retains: bool,
    publishing: &Publishing<'_>,
) -> bool {
    let needs = |route: &Route| match route.kind {
        RouteKind::Shard => true,
        RouteKind::ShardGroups => publishing.origin == Origin::HereAgain && publishing.identity.is_some(),
        _ => false,
    };
    let retained = retains && retained::shard_of(view.topic) != retained::OWN_TOPICS;
    view.qos > QoS::AtMostOnce && (retained || routes.iter().any(needs))
}

fn same_receiver(routes: &[Route]) -> usize {
    let key = |route: &Route| (route.kind, route.index, route.slot, route.generation);
    routes.iter().take_while(|route| key(route) == key(&routes[0])).count()
}

/// Merges the routes of one receiver into one delivery with the highest QoS and all Subscription Identifiers
/// [MQTT-3.3.4-2] [MQTT-3.3.4-4]. A receiver never gets several copies with one identifier each [MQTT-3.3.4-5].
fn merge(routes: &[Route], view: &MessageView<'_>, targets: &mut Vec<Target>) {
    let first_target = targets.len();
    for route in routes {
        // [MQTT-3.8.3-3]
        let own = || {
            view.publisher.is_some_and(|id| {
                (id.worker.0, id.slot, id.generation) == (route.index, route.slot, route.generation)
            })
        };
        if route.options.no_local() && own() {
            continue;
        }
        let continues = targets.len() > first_target;
        if continues {
            let first = &mut targets[first_target];
            first.options = first.options.merge(route.options);
        }
        targets.push(Target { continues, ..Target::of(route) });
    }
    // A durable session gets QoS 1 and 2 messages from its shard.
    let by_store = |targets: &[Target]| {
        matches!(routes[0].kind, RouteKind::ConnectionQos0 | RouteKind::ConnectionLink)
            && targets
                .get(first_target)
                .is_some_and(|first| view.qos.min(first.options.qos()) > QoS::AtMostOnce)
    };
    if by_store(targets) {
        targets.truncate(first_target);
    }
}

#[cfg(test)]
mod tests {
    use mqtt::SubscriptionOptions;

    use super::*;
    use crate::route::Options;

    /// [MQTT-3.8.3-3] applies to one connection. Another connection may have had its slot, on the same worker or not.
    #[test]
    fn no_local_withholds_messages_only_from_their_publisher() {
        let publisher = ConnectionId { worker: WorkerId(1), slot: 7, generation: 4 };
        let view = MessageView { publisher: Some(publisher), ..MessageView::plain("t") };
        let merged = |index, slot, generation, no_local| {
            let options = Options::from(SubscriptionOptions { no_local, ..SubscriptionOptions::default() });
            let kind = RouteKind::Connection;
            let route = Route { slot, generation, subscription_id: 0, index, options, kind };
            let mut targets = Vec::new();
            merge(&[route], &view, &mut targets);
            targets.len()
        };
        assert_eq!(merged(1, 7, 4, true), 0);
        assert_eq!(merged(1, 7, 4, false), 1, "without No Local a client gets its own messages");
        for (worker, slot, generation) in [(1, 7, 5), (1, 7, 3), (1, 8, 4), (2, 7, 4)] {
            assert_eq!(merged(worker, slot, generation, true), 1, "{worker}, {slot}, {generation}");
        }
    }
}
