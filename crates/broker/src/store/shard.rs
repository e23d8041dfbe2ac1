//! The store of a node without a disk: everything is committed as soon as it is applied.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap as StdHashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::{PacketId, QoS, ReasonCode, Subscription, TopicFilter, TopicName};
use routing::{Index, Inserted, Reader, Removed};
use session::{Deliveries, PubRecOutcome, Resend, Settled};

use super::group::{Choice, Group, GroupMember};
use super::{
    Acknowledgement, Claim, Completion, Enqueue, GroupName, Join, Member, Release, Request, expires_at,
};
use crate::counters::StoreCounters;
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, Time, WorkerId};
use crate::mail::{Claimed, Letter, MemberDelivery, Resume, SessionDelivery, SubscriptionIds, Token};
use crate::message::Message;
use crate::node::NodeLoad;
use crate::route::{Options, Route, RouteKind};
use crate::settings::{QueueFull, Settings};
use crate::slots::Slots;

/// Keyed with the node's secret, so that nobody chooses identifiers or filters that collide.
type HashMap<K, V> = StdHashMap<K, V, foldhash::quality::FixedState>;

/// One shard: the clients whose Client Identifier hashes to it, and the shared groups whose name does.
pub struct MemoryShard {
    id: ShardId,
    settings: Arc<Settings>,
    /// The node's index, where this shard stands for all its sessions and groups.
    node_routes: Arc<Index<Route>>,
    /// Filters of this shard's sessions and groups.
    routes: Arc<Index<Route>>,
    reader: Reader<Route>,
    /// How many sessions and groups of this shard want a filter: the first and the last change the node's index.
    uses: HashMap<Box<str>, Uses>,
    clients: HashMap<Arc<str>, Client>,
    sessions: Slots<Session>,
    groups: Slots<Group>,
    group_names: HashMap<GroupName, (u32, u32)>,
    hasher: foldhash::quality::FixedState,
    /// Appends that wait for members of groups or for full queues.
    appends: slab::Slab<Append>,
    /// Sessions to look at, by time: their end, their Will, their overdue publishers. An entry counts while its session's
    /// `armed` says so.
    deadlines: BinaryHeap<Reverse<(Time, u32, u32)>>,
    load: Arc<NodeLoad>,
    held: Held,
    matches: Vec<Route>,
    random: u64,
    pub counters: StoreCounters,
}

/// What applying a request leads to.
#[derive(Debug, Default)]
pub struct ShardOutput {
    pub letters: Vec<(WorkerId, Letter)>,
    pub requests: Vec<(ShardId, Request)>,
    pub acknowledged: Vec<(Token, ReasonCode)>,
    /// Wills that are due.
    pub wills: Vec<Message>,
}

#[derive(Debug, Default)]
struct Uses {
    sessions: u32,
    groups: u32,
}

#[derive(Debug, Default)]
struct Client {
    owner: Option<ConnectionId>,
    session: Option<(u32, u32)>,
    /// A claim that waits until the owner has let go.
    pending: Option<Box<Claim>>,
}

#[derive(Debug)]
struct Session {
    client_id: Arc<str>,
    owner: Option<ConnectionId>,
    /// The last connection: a Will of its may be published when it is gone, and No Local still holds for it.
    last_owner: Option<ConnectionId>,
    window: u16,
    /// Session Expiry Interval, seconds.
    expiry: u32,
    /// When it ends; only without an owner.
    ends: Time,
    will: Option<(Message, Time)>,
    subscriptions: HashMap<Box<str>, (Options, u32)>,
    deliveries: Deliveries<Enqueue>,
    waiting_bytes: usize,
    /// Bytes of the messages in flight and of those in `overflow`.
    inflight_bytes: usize,
    overflow_bytes: usize,
    /// Messages that wait for a place in the queue, most of them with their publishers.
    overflow: VecDeque<Overflow>,
    /// When one of them last found a place.
    place_freed: Time,
    /// Its earliest entry in `deadlines`.
    armed: Time,
    received: Vec<u16>,
}

#[derive(Debug)]
struct Overflow {
    entry: Enqueue,
    append: Option<u32>,
    /// When it is let in by the rule for full queues, unless places become free meanwhile; never when no publisher waits.
    deadline: Time,
}

/// Bytes of the messages that a shard holds: in flight, waiting, and beyond full queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// For sessions that are connected: they take them, or are given up, in bounded time.
    pub for_connected: u64,
    /// For those that are away, perhaps for days.
    pub for_absent: u64,
}

impl Held {
    fn of(&mut self, session: &Session) -> &mut u64 {
        if session.owner.is_some() { &mut self.for_connected } else { &mut self.for_absent }
    }
}

#[derive(Debug)]
struct Append {
    waiter: Waiter,
    remaining: u32,
    reason: ReasonCode,
}

/// Who is told when a message has its places.
#[derive(Debug)]
enum Waiter {
    Token(Token),
    /// A connection that has more retained messages to come.
    Page(ConnectionId),
}

impl ShardOutput {
    fn complete(&mut self, completion: Completion) {
        self.letters.push((completion.connection().worker, Letter::Completion(completion)));
    }

    fn deliver(&mut self, connection: ConnectionId, delivery: SessionDelivery) {
        if let Some((_, Letter::Completion(Completion::Deliver { connection: last, deliveries }))) =
            self.letters.last_mut()
            && *last == connection
        {
            deliveries.push(delivery);
            return;
        }
        self.complete(Completion::Deliver { connection, deliveries: vec![delivery] });
    }
}

impl MemoryShard {
    /// `random` seeds the choice among members of shared groups.
    pub fn new(
        id: ShardId,
        settings: Arc<Settings>,
        node_routes: Arc<Index<Route>>,
        load: Arc<NodeLoad>,
        hash_key: [u8; 16],
        random: u64,
    ) -> Self {
        let limits = routing::IndexLimits {
            levels_max: usize::from(settings.mqtt.topic_levels_max),
            ..Default::default()
        };
        let routes = Arc::new(Index::new(hash_key, limits));
        let hasher = foldhash::quality::FixedState::with_seed(u64::from_le_bytes(
            hash_key[8..].try_into().unwrap_or_default(),
        ));
        let reader = routes.reader();
        Self {
            id,
            settings,
            node_routes,
            routes,
            reader,
            uses: HashMap::with_hasher(hasher.clone()),
            clients: HashMap::with_hasher(hasher.clone()),
            sessions: Slots::default(),
            groups: Slots::default(),
            group_names: HashMap::with_hasher(hasher.clone()),
            hasher,
            appends: slab::Slab::new(),
            deadlines: BinaryHeap::new(),
            load,
            held: Held::default(),
            matches: Vec::new(),
            random: random | 1,
            counters: StoreCounters::default(),
        }
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub fn held(&self) -> Held {
        self.held
    }

    pub fn apply(&mut self, now: Time, request: Request, out: &mut ShardOutput) {
        match request {
            Request::Claim(claim) => self.claim(now, claim, out),
            Request::Release(release) => self.release(now, *release, out),
            Request::Subscribe { session, connection, packet_id, filters } => {
                let results = self.subscribe(session, filters, (connection, packet_id), out);
                out.complete(Completion::Subscribed { connection, packet_id, results });
            }
            Request::Unsubscribe { session, connection, packet_id, filters } => {
                let reply = (connection, packet_id);
                let results =
                    filters.iter().map(|filter| self.unsubscribe(session, filter, Some(reply), out));
                let results = results.collect();
                out.complete(Completion::Unsubscribed { connection, packet_id, results });
            }
            Request::Withdraw { session, filter } => {
                self.unsubscribe(session, &filter, None, out);
            }
            Request::Append { message, sessions, groups, token } => {
                self.append(now, &message, sessions, groups, token, out);
            }
            Request::Enqueue { session, entries, token, page } => {
                let waiter = token.map(Waiter::Token).or(page.map(Waiter::Page));
                self.enqueue_request(now, session, entries, waiter, out);
            }
            Request::Acknowledge { session, connection, packet_id, kind } => {
                self.acknowledge(now, session, connection, packet_id, kind, out);
            }
            Request::Receive { session, packet_id, token } => {
                if let Some(session) = self.sessions.get_mut(session.slot, session.generation) {
                    session.received.push(packet_id.get());
                }
                out.acknowledged.push((token, ReasonCode::Success));
            }
            Request::Released { session, connection, packet_id } => {
                self.forget(session, packet_id);
                out.complete(Completion::Complete { connection, packet_id });
            }
            Request::Forget { session, packet_id } => self.forget(session, packet_id),
            Request::Join(join) => self.join(*join, out),
            Request::Leave { group, member, reply } => self.leave(*group, member, reply, out),
            Request::Bounce { group, message, token } => self.give(now, group, &message, token, out),
            Request::Taken { key, reason } => self.taken(key, reason, out),
        }
    }

    /// The earliest deadline, [`Time::NEVER`] without one.
    pub fn next_deadline(&self) -> Time {
        self.deadlines.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at)
    }

    /// Ends sessions, publishes Wills and lets overdue messages in, as far as their time has come.
    pub fn tick(&mut self, now: Time, out: &mut ShardOutput) {
        while let Some(Reverse((at, slot, generation))) = self.deadlines.peek().copied()
            && at <= now
        {
            self.deadlines.pop();
            let Some(session) = self.sessions.get_mut(slot, generation) else { continue };
            if session.armed != at {
                continue;
            }
            session.armed = Time::NEVER;
            if session.owner.is_none() && session.ends <= now {
                self.counters.sessions_expired += 1;
                self.end_session(slot, generation, out);
                continue;
            }
            if let Some((will, _)) = session.will.take_if(|(_, due)| *due <= now) {
                out.wills.push(will);
            }
            self.let_overdue_in(now, slot, generation, out);
            self.arm(slot, generation);
        }
    }

    /// Sees to it that the session is looked at when it is due.
    fn arm(&mut self, slot: u32, generation: u32) {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        let due = session.due(&self.settings);
        if due >= session.armed {
            return;
        }
        session.armed = due;
        self.deadlines.push(Reverse((due, slot, generation)));
        if self.deadlines.len() > deadlines_max(self.sessions.len()) {
            let sessions = &self.sessions;
            let counts = |Reverse((at, slot, generation)): &Reverse<(Time, u32, u32)>| {
                sessions.get(*slot, *generation).is_some_and(|session| session.armed == *at)
            };
            self.deadlines.retain(counts);
        }
    }

    fn claim(&mut self, now: Time, claim: Box<Claim>, out: &mut ShardOutput) {
        let client = self.clients.entry(claim.client_id.clone()).or_default();
        let Some(owner) = client.owner else {
            return self.grant(now, *claim, out);
        };
        // [MQTT-3.1.4-3]: the old connection goes first, and has gone before the new one hears anything.
        self.counters.takeovers += 1;
        match client.pending.replace(claim) {
            None => out.complete(Completion::Revoke { connection: owner }),
            Some(overtaken) => {
                let reason = ReasonCode::SessionTakenOver;
                out.complete(Completion::ClaimRefused { connection: overtaken.connection, reason });
            }
        }
    }

    fn grant(&mut self, now: Time, claim: Claim, out: &mut ShardOutput) {
        let existing = self.clients.get(&claim.client_id).and_then(|client| client.session);
        if claim.clean_start
            && let Some((slot, generation)) = existing
        {
            self.end_session(slot, generation, out); // [MQTT-3.1.2-4]
        }
        let existing = existing.filter(|_| !claim.clean_start);
        if existing.is_none()
            && claim.expiry > 0
            && self.load.sessions.load(Relaxed) >= u64::from(self.settings.session.sessions_max)
        {
            self.counters.sessions_refused += 1;
            self.forget_client_if_idle(&claim.client_id);
            let reason = ReasonCode::QuotaExceeded;
            return out.complete(Completion::ClaimRefused { connection: claim.connection, reason });
        }
        let session_present = existing.is_some();
        let place = existing.or_else(|| (claim.expiry > 0).then(|| self.new_session(&claim)));
        let client = self.clients.entry(claim.client_id.clone()).or_default();
        client.owner = Some(claim.connection);
        client.session = place;
        let Some((slot, generation)) = place else {
            let connection = claim.connection;
            let claimed = Claimed { connection, session_present, session: None, resume: None };
            return out.complete(Completion::Claimed(claimed));
        };
        let id = SessionId { shard: self.id, slot, generation };
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        *self.held.of(session) -= session.held_bytes();
        session.owner = Some(claim.connection);
        *self.held.of(session) += session.held_bytes();
        session.last_owner = session.owner;
        session.window = claim.window;
        session.expiry = claim.expiry;
        session.ends = Time::NEVER;
        session.will = None; // [MQTT-3.1.3-9]: the session is resumed before its Will was due.
        session.deliveries.reconnect();
        let resume = session_present.then(|| {
            let subscriptions = session.subscriptions.iter();
            let subscriptions = subscriptions.map(|(filter, (options, id))| (filter.clone(), *options, *id));
            Box::new(Resume { subscriptions: subscriptions.collect(), received: session.received.clone() })
        });
        let connection = claim.connection;
        out.complete(Completion::Claimed(Claimed { connection, session_present, session: Some(id), resume }));
        self.tell_groups(id, out);
        self.pump(now, slot, generation, out);
    }

    fn new_session(&mut self, claim: &Claim) -> (u32, u32) {
        self.load.sessions.fetch_add(1, Relaxed);
        self.sessions.insert(Session {
            client_id: claim.client_id.clone(),
            owner: None,
            last_owner: None,
            window: claim.window,
            expiry: claim.expiry,
            ends: Time::NEVER,
            will: None,
            subscriptions: HashMap::with_hasher(self.hasher.clone()),
            deliveries: Deliveries::default(),
            waiting_bytes: 0,
            inflight_bytes: 0,
            overflow_bytes: 0,
            overflow: VecDeque::new(),
            place_freed: Time::default(),
            armed: Time::NEVER,
            received: Vec::new(),
        })
    }

    fn release(&mut self, now: Time, mut release: Release, out: &mut ShardOutput) {
        let Some(client) = self.clients.get_mut(&release.client_id) else { return };
        if client.owner != Some(release.connection) {
            client.pending.take_if(|pending| pending.connection == release.connection);
            return;
        }
        client.owner = None;
        let pending = client.pending.take();
        match client.session {
            Some((slot, generation)) => {
                let (expiry, will) = (release.expiry, release.will.take());
                self.release_session(now, slot, generation, expiry, will, out);
            }
            None => {
                assert!(release.will.is_none(), "a session that ended with its connection has sent its Will")
            }
        }
        match pending {
            Some(claim) => self.grant(now, *claim, out),
            None => self.forget_client_if_idle(&release.client_id),
        }
    }

    fn release_session(
        &mut self,
        now: Time,
        slot: u32,
        generation: u32,
        expiry: Option<u32>,
        will: Option<(Message, u32)>,
        out: &mut ShardOutput,
    ) {
        let id = SessionId { shard: self.id, slot, generation };
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        *self.held.of(session) -= session.held_bytes();
        session.owner = None;
        *self.held.of(session) += session.held_bytes();
        session.expiry = expiry.unwrap_or(session.expiry);
        session.ends = expires_at(now, session.expiry);
        let ends = session.ends;
        match will {
            Some((will, 0)) => out.wills.push(will),
            // Due after its delay or when the session ends, whichever comes first [MQTT-3.1.3-9].
            Some((will, delay)) => {
                let due = expires_at(now, delay).min(ends);
                session.will = Some((will, due));
            }
            None => {}
        }
        // Nobody reads any more: publishers stop waiting, the rule for full queues decides.
        self.let_in(now, slot, generation, usize::MAX, out);
        self.trim(slot, generation);
        self.tell_groups(id, out);
        if ends <= now {
            self.end_session(slot, generation, out);
        }
        self.arm(slot, generation);
    }

    /// Ends a session: its subscriptions, what waits for it, and a Will that was still to come [MQTT-3.1.2-8].
    fn end_session(&mut self, slot: u32, generation: u32, out: &mut ShardOutput) {
        let Some(session) = self.sessions.remove(slot, generation) else { return };
        self.load.sessions.fetch_sub(1, Relaxed);
        *self.held.of(&session) -= session.held_bytes();
        let id = SessionId { shard: self.id, slot, generation };
        for filter in session.subscriptions.keys() {
            self.drop_subscription(id, filter, None, out);
        }
        if let Some((will, _)) = session.will {
            out.wills.push(will);
        }
        for Overflow { entry, append, .. } in session.overflow {
            self.bounce_or_drop(entry, out);
            self.one_taken(append, out);
        }
        self.counters.queued_messages -= session.deliveries.waiting() as u64;
        self.counters.queued_bytes -= session.waiting_bytes as u64;
        for entry in session.deliveries.into_unfinished() {
            self.bounce_or_drop(entry, out);
        }
        if let Some(client) = self.clients.get_mut(&session.client_id) {
            client.session = None;
        }
        self.forget_client_if_idle(&session.client_id);
    }

    fn bounce_or_drop(&mut self, entry: Enqueue, out: &mut ShardOutput) {
        match entry.group {
            // [MQTT-4.8.2-4]: what a member has not acknowledged when its session ends goes to another.
            Some(group) => {
                let bounce = Request::Bounce { group, message: entry.message, token: None };
                out.requests.push((group.shard, bounce));
            }
            None => self.counters.dropped_session_ended += 1,
        }
    }

    fn forget_client_if_idle(&mut self, client_id: &Arc<str>) {
        let idle =
            |client: &Client| client.owner.is_none() && client.session.is_none() && client.pending.is_none();
        if self.clients.get(client_id).is_some_and(idle) {
            self.clients.remove(client_id);
        }
    }

    fn subscribe(
        &mut self,
        id: SessionId,
        filters: Vec<(Box<str>, Options, u32)>,
        (connection, packet_id): (ConnectionId, PacketId),
        out: &mut ShardOutput,
    ) -> Vec<(ReasonCode, bool)> {
        let maximum = self.settings.session.subscriptions_max as usize;
        let one = |(place, (text, options, subscription_id)): (u32, (Box<str>, Options, u32))| {
            let Some(session) = self.sessions.get_mut(id.slot, id.generation) else {
                return (ReasonCode::UnspecifiedError, false);
            };
            let existed = session.subscriptions.contains_key(&text);
            if !existed && session.subscriptions.len() >= maximum {
                return (ReasonCode::QuotaExceeded, false);
            }
            let Ok(subscription) = Subscription::parse(&text) else {
                return (ReasonCode::TopicFilterInvalid, false);
            };
            if subscription.share.is_none() {
                let route = Route {
                    slot: id.slot,
                    generation: id.generation,
                    subscription_id,
                    place: self.id.0,
                    options,
                    kind: RouteKind::Session,
                };
                match self.routes.insert(subscription.filter, route) {
                    Err(_) => return (ReasonCode::QuotaExceeded, false),
                    Ok(Inserted::Replaced) => {}
                    Ok(Inserted::New | Inserted::Added) => {
                        let uses = self.uses.entry(subscription.filter.as_str().into()).or_default();
                        uses.sessions += 1;
                        if uses.sessions == 1
                            && self
                                .node_routes
                                .insert(subscription.filter, self.node_route(RouteKind::Shard))
                                .is_err()
                        {
                            self.drop_route(id, subscription.filter);
                            return (ReasonCode::QuotaExceeded, false);
                        }
                    }
                }
            }
            if let Some(share) = subscription.share {
                let group = GroupName { share: share.into(), filter: subscription.filter.as_str().into() };
                let reply = Some((connection, packet_id, place));
                self.tell_group(id, group, options, subscription_id, reply, out);
            }
            let granted = options.qos();
            if let Some(session) = self.sessions.get_mut(id.slot, id.generation) {
                session.subscriptions.insert(text, (options, subscription_id));
            }
            (granted_reason(granted), existed)
        };
        (0..).zip(filters).map(one).collect()
    }

    fn node_route(&self, kind: RouteKind) -> Route {
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        Route { slot: 0, generation: 0, subscription_id: 0, place: self.id.0, options, kind }
    }

    fn unsubscribe(
        &mut self,
        id: SessionId,
        text: &str,
        reply: Option<(ConnectionId, PacketId)>,
        out: &mut ShardOutput,
    ) -> ReasonCode {
        let Some(session) = self.sessions.get_mut(id.slot, id.generation) else {
            return ReasonCode::UnspecifiedError;
        };
        if session.subscriptions.remove(text).is_none() {
            return ReasonCode::NoSubscriptionExisted;
        }
        self.drop_subscription(id, text, reply, out);
        ReasonCode::Success
    }

    fn drop_subscription(
        &mut self,
        id: SessionId,
        text: &str,
        reply: Option<(ConnectionId, PacketId)>,
        out: &mut ShardOutput,
    ) {
        match Subscription::parse(text) {
            Ok(Subscription { share: None, filter }) => self.drop_route(id, filter),
            Ok(Subscription { share: Some(share), filter }) => {
                let group = GroupName { share: share.into(), filter: filter.as_str().into() };
                let shard = group.shard();
                let leave = Request::Leave { group: Box::new(group), member: Member::Session(id), reply };
                out.requests.push((shard, leave));
            }
            Err(_) => {}
        }
    }

    fn drop_route(&mut self, id: SessionId, filter: TopicFilter<'_>) {
        let key = (RouteKind::Session, self.id.0, id.slot, id.generation);
        if matches!(self.routes.remove(filter, key), Removed::NotFound) {
            return;
        }
        if let Some(uses) = self.uses.get_mut(filter.as_str()) {
            uses.sessions -= 1;
            if uses.sessions == 0 {
                self.node_routes.remove(filter, (RouteKind::Shard, self.id.0, 0, 0));
            }
            self.forget_uses(filter);
        }
    }

    fn forget_uses(&mut self, filter: TopicFilter<'_>) {
        if self.uses.get(filter.as_str()).is_some_and(|uses| uses.sessions == 0 && uses.groups == 0) {
            self.uses.remove(filter.as_str());
        }
    }

    /// Tells the shared groups of a session where to find it now.
    fn tell_groups(&mut self, id: SessionId, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get(id.slot, id.generation) else { return };
        for (text, (options, subscription_id)) in &session.subscriptions {
            let Ok(Subscription { share: Some(share), filter }) = Subscription::parse(text) else { continue };
            let group = GroupName { share: share.into(), filter: filter.as_str().into() };
            self.tell_group(id, group, *options, *subscription_id, None, out);
        }
    }

    fn tell_group(
        &self,
        id: SessionId,
        group: GroupName,
        options: Options,
        subscription_id: u32,
        reply: Option<(ConnectionId, PacketId, u32)>,
        out: &mut ShardOutput,
    ) {
        let Some(session) = self.sessions.get(id.slot, id.generation) else { return };
        let shard = group.shard();
        let join = Join {
            group,
            member: Member::Session(id),
            connection: session.owner,
            client_hash: crate::ids::client_hash(&session.client_id),
            options,
            subscription_id,
            reply,
        };
        out.requests.push((shard, Request::Join(Box::new(join))));
    }

    fn append(
        &mut self,
        now: Time,
        message: &Message,
        sessions: bool,
        groups: bool,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        let Ok(topic) = TopicName::parse(view.topic) else {
            out.acknowledged.extend(token.map(|token| (token, ReasonCode::TopicNameInvalid)));
            return;
        };
        let mut matches = std::mem::take(&mut self.matches);
        matches.clear();
        if self.reader.matches(topic, &mut matches) > 1 {
            matches.sort_unstable_by_key(|route| (route.kind, route.slot));
        }
        let append = token.map(|token| self.new_append(Waiter::Token(token)));
        let mut ids = Vec::new();
        let mut rest = matches.as_slice();
        while let Some(first) = rest.first() {
            let same =
                rest.iter().take_while(|route| (route.kind, route.slot) == (first.kind, first.slot)).count();
            let (routes, after) = rest.split_at(same);
            rest = after;
            match first.kind {
                RouteKind::Session if sessions => {
                    self.append_to_session(now, message, routes, append, &mut ids, out)
                }
                RouteKind::Group if groups => {
                    let group = GroupId { shard: self.id, slot: first.slot, generation: first.generation };
                    let token = append.map(|key| {
                        self.appends[key as usize].remaining += 1;
                        Token::Append { shard: self.id, key }
                    });
                    self.give(now, group, message, token, out);
                }
                _ => {}
            }
        }
        self.matches = matches;
        self.reader.quiescent();
        self.one_taken(append, out);
    }

    fn append_to_session(
        &mut self,
        now: Time,
        message: &Message,
        routes: &[Route],
        append: Option<u32>,
        ids: &mut Vec<u32>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        let (slot, generation) = (routes[0].slot, routes[0].generation);
        let Some(session) = self.sessions.get(slot, generation) else { return };
        let own = session.last_owner.is_some() && session.last_owner == view.publisher;
        ids.clear();
        let mut merged: Option<Options> = None;
        // [MQTT-3.8.3-3] for each subscription, then one copy for all of them [MQTT-3.3.4-2] [MQTT-3.3.4-4].
        for route in routes.iter().filter(|route| !(own && route.options.no_local())) {
            merged = Some(merged.map_or(route.options, |options| options.merge(route.options)));
            if route.subscription_id != 0 {
                ids.push(route.subscription_id);
            }
        }
        let Some(options) = merged else { return };
        let qos = view.qos.min(options.qos());
        if qos == QoS::AtMostOnce {
            return;
        }
        let entry = Enqueue {
            message: message.clone(),
            qos,
            retain: view.retain && options.retain_as_published(),
            subscription_ids: SubscriptionIds::of(ids),
            group: None,
        };
        // What nobody waits for is the node's own, such as a Will: it never waits beyond the queue.
        let deadline = append.map(|_| now.after(self.settings.queue.wait));
        self.enqueue(now, slot, generation, entry, append, deadline, out);
    }

    fn new_append(&mut self, waiter: Waiter) -> u32 {
        self.appends.insert(Append { waiter, remaining: 1, reason: ReasonCode::Success }) as u32
    }

    fn enqueue_request(
        &mut self,
        now: Time,
        id: SessionId,
        entries: Vec<Enqueue>,
        waiter: Option<Waiter>,
        out: &mut ShardOutput,
    ) {
        // What no publisher waits for has been acknowledged to it: it waits until there is a place.
        let deadline = match waiter {
            Some(Waiter::Token(_)) => now.after(self.settings.queue.wait),
            Some(Waiter::Page(_)) | None => Time::NEVER,
        };
        let append = waiter.map(|waiter| self.new_append(waiter));
        for entry in entries {
            if self.sessions.get(id.slot, id.generation).is_some() {
                self.enqueue(now, id.slot, id.generation, entry, append, Some(deadline), out);
            } else {
                self.bounce_or_drop(entry, out);
            }
        }
        self.one_taken(append, out);
    }

    /// Gives a message its place in a session's queue; when that is full it waits until `deadline`, while somebody reads, and
    /// so does its publisher. Without a deadline it is dropped.
    #[expect(clippy::too_many_arguments, reason = "a message, its session, and who waits for it")]
    fn enqueue(
        &mut self,
        now: Time,
        slot: u32,
        generation: u32,
        entry: Enqueue,
        append: Option<u32>,
        deadline: Option<Time>,
        out: &mut ShardOutput,
    ) {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        let full = session.is_full(&self.settings) || !session.overflow.is_empty();
        if full && session.owner.is_some() {
            let Some(deadline) = deadline else {
                self.counters.dropped_queue_full += 1;
                return;
            };
            if let Some(key) = append {
                self.appends[key as usize].remaining += 1;
            }
            session.overflow_bytes += entry.message.size();
            *self.held.of(session) += entry.message.size() as u64;
            session.overflow.push_back(Overflow { entry, append, deadline });
            if deadline < session.armed {
                self.arm(slot, generation);
            }
            return;
        }
        self.admit(slot, generation, entry);
        self.pump(now, slot, generation, out);
    }

    /// Puts a message into the queue, by the rule for full queues when it is.
    fn admit(&mut self, slot: u32, generation: u32, entry: Enqueue) {
        let absent_max = self.absent_bytes_max();
        let size = entry.message.size();
        let is_full = |session: &Session, settings: &Settings| {
            session.is_full(settings) || session.owner.is_none() && session.waiting_bytes + size > absent_max
        };
        while self.sessions.get(slot, generation).is_some_and(|session| is_full(session, &self.settings)) {
            self.counters.dropped_queue_full += 1;
            let makes_room = self.settings.queue.full == QueueFull::DropOldest;
            if !(makes_room && self.skip_waiting(slot, generation)) {
                return;
            }
        }
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        session.waiting_bytes += size;
        *self.held.of(session) += size as u64;
        self.counters.queued_messages += 1;
        self.counters.queued_bytes += size as u64;
        session.deliveries.wait(entry.qos, entry);
    }

    /// Drops the oldest message that waits; false when there is none.
    fn skip_waiting(&mut self, slot: u32, generation: u32) -> bool {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return false };
        let Some(dropped) = session.deliveries.skip_waiting() else { return false };
        let size = dropped.message.size();
        session.waiting_bytes -= size;
        *self.held.of(session) -= size as u64;
        self.counters.queued_messages -= 1;
        self.counters.queued_bytes -= size as u64;
        true
    }

    /// Bytes that may wait for a session that is away. When the node has held more than `limits.memory_queued_max` for long,
    /// this is each session's equal share of that.
    fn absent_bytes_max(&self) -> usize {
        if !self.load.absent_give_way.load(Relaxed) {
            return usize::MAX;
        }
        let sessions = self.load.sessions.load(Relaxed).max(1);
        (self.settings.limits.memory_queued_max.bytes() / sessions) as usize
    }

    /// A session that goes away keeps what it may then have.
    fn trim(&mut self, slot: u32, generation: u32) {
        let absent_max = self.absent_bytes_max();
        while self.sessions.get(slot, generation).is_some_and(|session| session.waiting_bytes > absent_max)
            && self.skip_waiting(slot, generation)
        {
            self.counters.dropped_queue_full += 1;
        }
    }

    fn let_overdue_in(&mut self, now: Time, slot: u32, generation: u32, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get(slot, generation) else { return };
        if session.place_freed.after(self.settings.queue.wait) > now {
            return;
        }
        // With the last of them those before it.
        let overdue = session.overflow.iter().rposition(|overflow| overflow.deadline <= now);
        if let Some(last) = overdue {
            self.let_in(now, slot, generation, last + 1, out);
        }
    }

    /// Admits the first `count` of the overflow, full or not.
    fn let_in(&mut self, now: Time, slot: u32, generation: u32, count: usize, out: &mut ShardOutput) {
        for _ in 0..count {
            let Some(session) = self.sessions.get_mut(slot, generation) else { return };
            let Some(Overflow { entry, append, .. }) = session.overflow.pop_front() else { break };
            session.overflow_bytes -= entry.message.size();
            *self.held.of(session) -= entry.message.size() as u64;
            self.admit(slot, generation, entry);
            self.one_taken(append, out);
        }
        self.pump(now, slot, generation, out);
    }

    /// Sends what the connection's window allows: first again what is unfinished, then what waits, in order.
    fn pump(&mut self, now: Time, slot: u32, generation: u32, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        let Some(connection) = session.owner else { return };
        let window = session.window;
        while let Some(resend) = session.deliveries.resend_next(window) {
            let delivery = match resend {
                Resend::PubRel { packet_id } => SessionDelivery::PubRel { packet_id },
                Resend::Publish { packet_id, qos, payload } => publish(packet_id, qos, true, payload),
            };
            out.deliver(connection, delivery);
        }
        let mut freed = Vec::new();
        loop {
            while let Some(next) = session.deliveries.next_waiting()
                && next.message.view().remaining_expiry(now).is_err()
            {
                let size = next.message.size();
                session.deliveries.skip_waiting();
                session.waiting_bytes -= size;
                *self.held.of(session) -= size as u64;
                self.counters.queued_messages -= 1;
                self.counters.queued_bytes -= size as u64;
                self.counters.dropped_expired += 1;
            }
            // What is in flight is kept whatever happens, so it is bounded in bytes too.
            let room = (session.inflight_bytes as u64) < self.settings.queue.bytes_max.bytes();
            let window = if room || session.deliveries.inflight() == 0 { window } else { 0 };
            let opened = session.deliveries.open_waiting(window, |entry| Some(entry.clone()));
            if let Some((packet_id, qos, entry)) = &opened {
                let size = entry.message.size();
                session.waiting_bytes -= size;
                session.inflight_bytes += size;
                self.counters.queued_messages -= 1;
                self.counters.queued_bytes -= size as u64;
                out.deliver(connection, publish(*packet_id, *qos, false, entry));
            }
            // Places are free again for those that waited for one.
            let before = freed.len();
            while !session.is_full(&self.settings)
                && let Some(Overflow { entry, append, .. }) = session.overflow.pop_front()
            {
                let size = entry.message.size();
                session.overflow_bytes -= size;
                session.waiting_bytes += size;
                session.place_freed = now;
                self.counters.queued_messages += 1;
                self.counters.queued_bytes += size as u64;
                session.deliveries.wait(entry.qos, entry);
                freed.push(append);
            }
            if opened.is_none() && freed.len() == before {
                break;
            }
        }
        for append in freed {
            self.one_taken(append, out);
        }
    }

    fn acknowledge(
        &mut self,
        now: Time,
        id: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
        out: &mut ShardOutput,
    ) {
        let Some(session) = self.sessions.get_mut(id.slot, id.generation) else { return };
        if session.owner != Some(connection) {
            return;
        }
        let mut release = |reason| out.complete(Completion::Release { connection, packet_id, reason });
        let done = match kind {
            Acknowledgement::PubAck => match session.deliveries.pub_ack(packet_id) {
                Settled::Finished(entry) => entry,
                Settled::Unknown => None,
            },
            Acknowledgement::PubComp => match session.deliveries.pub_comp(packet_id) {
                Settled::Finished(entry) => entry,
                Settled::Unknown => None,
            },
            Acknowledgement::PubRec { refused } => match session.deliveries.pub_rec(packet_id, refused) {
                PubRecOutcome::Release(entry) => {
                    release(ReasonCode::Success);
                    entry
                }
                PubRecOutcome::ReleaseAgain => {
                    release(ReasonCode::Success);
                    None
                }
                PubRecOutcome::Unknown => {
                    if !refused {
                        release(ReasonCode::PacketIdentifierNotFound);
                    }
                    None
                }
                PubRecOutcome::Refused(entry) => entry,
            },
        };
        let size = done.map_or(0, |entry| entry.message.size());
        session.inflight_bytes -= size;
        *self.held.of(session) -= size as u64;
        self.pump(now, id.slot, id.generation, out);
    }

    fn forget(&mut self, id: SessionId, packet_id: PacketId) {
        if let Some(session) = self.sessions.get_mut(id.slot, id.generation) {
            session.received.retain(|&id| id != packet_id.get());
        }
    }

    fn join(&mut self, join: Join, out: &mut ShardOutput) {
        let place = self.group_names.get(&join.group).copied().or_else(|| self.new_group(&join.group));
        let group = place.and_then(|(slot, generation)| self.groups.get_mut(slot, generation));
        let reason = if group.is_some() { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
        if let Some(group) = group {
            group.join(GroupMember {
                member: join.member,
                connection: join.connection,
                client_hash: join.client_hash,
                options: join.options,
                subscription_id: join.subscription_id,
            });
        }
        if let Some((connection, packet_id, place)) = join.reply {
            out.complete(Completion::Joined { connection, packet_id, place, reason });
        }
    }

    fn new_group(&mut self, name: &GroupName) -> Option<(u32, u32)> {
        let filter = TopicFilter::parse(&name.filter).ok()?;
        let (slot, generation) = self.groups.insert(Group::new(name.clone()));
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        let route =
            Route { slot, generation, subscription_id: 0, place: self.id.0, options, kind: RouteKind::Group };
        let uses = self.uses.entry(name.filter.clone()).or_default();
        uses.groups += 1;
        let first = uses.groups == 1;
        let mut inserted = self.routes.insert(filter, route).is_ok();
        if inserted && first {
            inserted = self.node_routes.insert(filter, self.node_route(RouteKind::ShardGroups)).is_ok();
        }
        if !inserted {
            self.drop_group(slot, generation);
            return None;
        }
        self.group_names.insert(name.clone(), (slot, generation));
        Some((slot, generation))
    }

    fn drop_group(&mut self, slot: u32, generation: u32) {
        let Some(group) = self.groups.remove(slot, generation) else { return };
        self.group_names.remove(group.name());
        let Ok(filter) = TopicFilter::parse(&group.name().filter) else { return };
        self.routes.remove(filter, (RouteKind::Group, self.id.0, slot, generation));
        if let Some(uses) = self.uses.get_mut(filter.as_str()) {
            uses.groups -= 1;
            if uses.groups == 0 {
                self.node_routes.remove(filter, (RouteKind::ShardGroups, self.id.0, 0, 0));
            }
            self.forget_uses(filter);
        }
    }

    fn leave(
        &mut self,
        name: GroupName,
        member: Member,
        reply: Option<(ConnectionId, PacketId)>,
        out: &mut ShardOutput,
    ) {
        if let Some((slot, generation)) = self.group_names.get(&name).copied()
            && let Some(group) = self.groups.get_mut(slot, generation)
        {
            group.leave(member);
            if group.is_empty() {
                self.drop_group(slot, generation);
            }
        }
        if let Some((connection, packet_id)) = reply {
            out.complete(Completion::Left { connection, packet_id });
        }
    }

    /// Gives a group's message to one member, which then answers `token`.
    fn give(
        &mut self,
        now: Time,
        id: GroupId,
        message: &Message,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        let choice = match self.groups.get_mut(id.slot, id.generation) {
            Some(group) if view.remaining_expiry(now).is_ok() => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                group.choose(self.settings.shared.strategy, &view, self.random)
            }
            _ => None,
        };
        let Some(Choice { member, connection, options, subscription_id }) = choice else {
            self.counters.dropped_no_member += 1;
            self.answer(token, out);
            return;
        };
        let qos = view.qos.min(options.qos());
        match (member, connection) {
            (Member::Session(session), _) if qos > QoS::AtMostOnce => {
                let ids: &[u32] = if subscription_id == 0 { &[] } else { &[subscription_id] };
                let entry = Enqueue {
                    message: message.clone(),
                    qos,
                    retain: view.retain && options.retain_as_published(),
                    subscription_ids: SubscriptionIds::of(ids),
                    group: Some(id),
                };
                let request = Request::Enqueue { session, entries: vec![entry], token, page: None };
                out.requests.push((session.shard, request));
            }
            (_, Some(connection)) => {
                let message = message.clone();
                let delivery =
                    MemberDelivery { group: id, connection, message, options, subscription_id, token };
                out.letters.push((connection.worker, Letter::Member(Box::new(delivery))));
            }
            (_, None) => {
                self.counters.dropped_no_member += 1;
                self.answer(token, out);
            }
        }
    }

    /// Answers on behalf of members that are not to be had.
    fn answer(&mut self, token: Option<Token>, out: &mut ShardOutput) {
        match token {
            Some(Token::Append { shard, key }) if shard == self.id => self.one_taken(Some(key), out),
            Some(token) => out.acknowledged.push((token, ReasonCode::Success)),
            None => {}
        }
    }

    fn one_taken(&mut self, append: Option<u32>, out: &mut ShardOutput) {
        if let Some(key) = append {
            self.taken(key, ReasonCode::Success, out);
        }
    }

    fn taken(&mut self, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(append) = self.appends.get_mut(key as usize) else { return };
        if reason.is_error() {
            append.reason = reason;
        }
        append.remaining -= 1;
        if append.remaining == 0 {
            let Append { waiter, reason, .. } = self.appends.remove(key as usize);
            match waiter {
                Waiter::Token(token) => out.acknowledged.push((token, reason)),
                Waiter::Page(connection) => out.complete(Completion::PageTaken { connection }),
            }
        }
    }

    pub fn check_invariants(&self) {
        let mut held = Held::default();
        for (slot, generation, session) in self.sessions.iter() {
            session.deliveries.check_invariants();
            let sizes = session.deliveries.waiting_payloads().map(|entry| entry.message.size());
            assert_eq!(session.waiting_bytes, sizes.sum::<usize>());
            let sizes = session.deliveries.inflight_payloads().map(|entry| entry.message.size());
            assert_eq!(session.inflight_bytes, sizes.sum::<usize>());
            let sizes = session.overflow.iter().map(|overflow| overflow.entry.message.size());
            assert_eq!(session.overflow_bytes, sizes.sum::<usize>());
            *held.of(session) += session.held_bytes();
            let client = self.clients.get(&session.client_id).expect("a session has a client");
            assert_eq!(client.session, Some((slot, generation)));
            assert!(client.pending.is_none() || client.owner.is_some(), "a claim waits for an owner only");
            assert_eq!(client.owner, session.owner);
            assert!(
                session.owner.is_some() || session.overflow.is_empty(),
                "nobody waits for a session that is away"
            );
            assert!(session.armed <= session.due(&self.settings), "looked at when it is due");
        }
        assert_eq!(held, self.held);
        assert!(self.deadlines.len() <= deadlines_max(self.sessions.len()));
        let waiting = self.sessions.iter().map(|(_, _, session)| session.deliveries.waiting() as u64);
        assert_eq!(self.counters.queued_messages, waiting.sum::<u64>());
        let bytes = self.sessions.iter().map(|(_, _, session)| session.waiting_bytes as u64);
        assert_eq!(self.counters.queued_bytes, bytes.sum::<u64>());
        let owned =
            self.clients.values().filter(|client| client.owner.is_some() || client.session.is_some()).count();
        assert_eq!(owned, self.clients.len(), "no client without owner and session");
    }

    /// What is true besides when nothing is under way and no session is left.
    pub fn check_quiet(&self) {
        assert_eq!((self.sessions.len(), self.clients.len()), (0, 0));
        assert_eq!((self.groups.len(), self.group_names.len()), (0, 0), "groups without members");
        assert_eq!((self.uses.len(), self.routes.len()), (0, 0), "filters nobody uses");
        assert_eq!(self.appends.len(), 0, "publishers that are never answered");
    }
}

/// Entries in the list of deadlines, at most: those that no longer count make way.
fn deadlines_max(sessions: usize) -> usize {
    2 * sessions + 64
}

impl Session {
    /// When something becomes due: its end, its Will, a publisher's patience.
    fn due(&self, settings: &Settings) -> Time {
        let ends = if self.owner.is_none() { self.ends } else { Time::NEVER };
        let will = self.will.as_ref().map_or(Time::NEVER, |(_, due)| *due);
        let waits = self.overflow.iter().map(|overflow| overflow.deadline).min().unwrap_or(Time::NEVER);
        let waits = waits.max(self.place_freed.after(settings.queue.wait));
        let waits = if self.overflow.is_empty() { Time::NEVER } else { waits };
        ends.min(will).min(waits)
    }

    fn held_bytes(&self) -> u64 {
        (self.waiting_bytes + self.inflight_bytes + self.overflow_bytes) as u64
    }

    fn is_full(&self, settings: &Settings) -> bool {
        self.deliveries.waiting() >= settings.queue.messages_max as usize
            || self.waiting_bytes as u64 >= settings.queue.bytes_max.bytes()
    }
}

fn publish(packet_id: PacketId, qos: QoS, dup: bool, entry: &Enqueue) -> SessionDelivery {
    SessionDelivery::Publish {
        packet_id,
        qos,
        dup,
        retain: entry.retain,
        message: entry.message.clone(),
        subscription_ids: entry.subscription_ids.clone(),
    }
}

fn granted_reason(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}
