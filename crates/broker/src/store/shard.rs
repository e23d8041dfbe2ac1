//! The store of a node without a disk: everything is committed as soon as it is applied.

mod groups;
mod inspect;
mod ownership;
mod queue;
mod retained;
mod subscriptions;
mod wills;

pub(crate) use inspect::SUBSCRIPTIONS_AT_ONCE;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap as StdHashMap, VecDeque};
use std::sync::Arc;

use mqtt::ReasonCode;
use routing::{Index, Reader};
use session::{Deliveries, Dispatched, Toggles};

use super::group::Group;
use super::{Claim, Completion, DueWill, Enqueue, GroupName, Identity, Request};
use crate::backlog::Backlog;
use crate::counters::StoreCounters;
use crate::ids::{ConnectionId, ShardId, Time, WorkerId};
use crate::mail::{Letter, SessionDelivery, Token};
use crate::message::Message;
use crate::node::{NodeLoad, OwnerKey};
use crate::retained::RetainedShard;
use crate::route::{Options, Route};
use crate::settings::Settings;
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
    /// Sessions with a connection for which something waits.
    backlog: Backlog,
    retained: RetainedShard,
    /// Messages that their publishers may send again, and the append of those that wait for places.
    identities: BTreeMap<Identity, Option<u32>>,
    /// Wills that were due so far.
    wills: u64,
    /// Subscriptions of all sessions.
    subscriptions: usize,
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
    pub wills: Vec<DueWill>,
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
    /// Whose it is.
    user: OwnerKey,
    /// A claim that waits until the owner has let go.
    pending: Option<Box<Claim>>,
}

#[derive(Debug)]
struct Session {
    client_id: Arc<str>,
    owner: Option<ConnectionId>,
    /// The last connection: a Will of its may be published when it is gone, and No Local still holds for it.
    last_owner: Option<ConnectionId>,
    /// The one before: its Will may still be on its way when the session has been resumed.
    past_owner: Option<ConnectionId>,
    window: u16,
    /// Session Expiry Interval, seconds.
    expiry: u32,
    /// When it ends; only without an owner.
    ends: Time,
    /// Of the last connection, and its delay in seconds.
    will: Option<(Message, u32)>,
    /// When it is due; only without an owner.
    will_due: Time,
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
    toggles: Toggles,
    dispatched: Vec<Dispatched>,
    /// As in [`Release`](super::Release), of all its connections.
    known_to: u16,
    /// In the shard's `backlog`.
    backlogged: bool,
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
    /// Of the same message sent again.
    again: Vec<Token>,
    identity: Option<Identity>,
    remaining: u32,
    reason: ReasonCode,
}

/// Who is told when a message has its places.
#[derive(Debug)]
enum Waiter {
    Token(Token),
    /// A connection that has more retained messages to come.
    Page(ConnectionId),
    /// Nobody: a Will of this shard. These shards were told its identity.
    Will {
        id: u64,
        shards: u16,
    },
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
            backlog: Backlog::default(),
            retained: RetainedShard::default(),
            identities: BTreeMap::new(),
            wills: 0,
            subscriptions: 0,
            matches: Vec::new(),
            random: random | 1,
            counters: StoreCounters::default(),
        }
    }

    pub fn set_settings(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub fn held(&self) -> Held {
        self.held
    }

    /// Messages that their publishers may send again.
    pub fn identities(&self) -> usize {
        self.identities.len()
    }

    pub fn apply(&mut self, now: Time, request: Request, out: &mut ShardOutput) {
        match request {
            Request::Claim(claim) => self.claim(now, claim, out),
            Request::Release(release) => self.release(now, *release, out),
            Request::Subscribe { session, connection, ticket, filters } => {
                let results = self.subscribe(session, filters, (connection, ticket), out);
                out.complete(Completion::Subscribed { connection, ticket, results });
            }
            Request::Unsubscribe { session, connection, ticket, filters } => {
                let reply = (connection, ticket);
                let results =
                    filters.iter().map(|filter| self.unsubscribe(session, filter, Some(reply), out));
                let results = results.collect();
                out.complete(Completion::Unsubscribed { connection, ticket, results });
            }
            Request::Withdraw { session, filter } => {
                self.unsubscribe(session, &filter, None, out);
            }
            Request::Append { message, sessions, groups, identity, token } => {
                let Err(new) = self.append_again(identity, token, out) else { return };
                self.append(now, &message, (sessions, groups), new, token, out);
            }
            Request::ForgetIdentity { identity } => drop(self.identities.remove(&identity)),
            Request::ForgetOrigin { origin } => self.forget_origin(origin),
            Request::Retain { message, token } => {
                let reason = self.retain(message);
                out.acknowledged.extend(token.map(|token| (token, reason)));
            }
            Request::DeleteRetained { topic, token } => {
                let known = self.retained.delete(&topic);
                let reason = if known { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
                out.acknowledged.push((token, reason));
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
                self.forget(session, packet_id, true);
                out.complete(Completion::Complete { connection, packet_id });
            }
            Request::Forget { session, packet_id, flip } => self.forget(session, packet_id, flip),
            Request::Join(join) => self.join(*join, out),
            Request::Leave { group, member, reply } => self.leave(*group, member, reply, out),
            Request::Bounce { group, message, token } => self.give(now, group, &message, token, out),
            Request::Taken { key, reason } => self.taken(key, reason, out),
            Request::WillDispatched { key, outstanding, shards } => {
                self.will_dispatched(key, outstanding, shards, out)
            }
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
            if session.will_due <= now {
                self.publish_will(slot, generation, out);
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
            assert!(
                session.will_due == Time::NEVER || session.owner.is_none() && session.will.is_some(),
                "a Will is due when its connection is gone"
            );
            assert!(session.armed <= session.due(&self.settings), "looked at when it is due");
        }
        assert_eq!(held, self.held);
        assert!(self.deadlines.len() <= deadlines_max(self.sessions.len()));
        let waiting = self.sessions.iter().map(|(_, _, session)| session.deliveries.waiting() as u64);
        assert_eq!(self.counters.queued_messages, waiting.sum::<u64>());
        let bytes = self.sessions.iter().map(|(_, _, session)| session.waiting_bytes as u64);
        assert_eq!(self.counters.queued_bytes, bytes.sum::<u64>());
        let subscriptions = self.sessions.iter().map(|(_, _, session)| session.subscriptions.len());
        assert_eq!(self.subscriptions, subscriptions.sum::<usize>());
        assert!(self.identities.len() <= IDENTITIES_MAX);
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

/// Messages that their publishers may send again, at most. They are forgotten one by one and with their session; one that comes
/// later than the end of its session would be left.
const IDENTITIES_MAX: usize = 1 << 20;

/// Entries in the list of deadlines, at most: those that no longer count make way.
fn deadlines_max(sessions: usize) -> usize {
    2 * sessions + 64
}

impl Session {
    /// When something becomes due: its end, its Will, a publisher's patience.
    fn due(&self, settings: &Settings) -> Time {
        let ends = if self.owner.is_none() { self.ends } else { Time::NEVER };
        let will = self.will_due;
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
