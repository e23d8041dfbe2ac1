//! The host of one shard: state that belongs to connections, and the requests that wait.
//!
//! A [`Request`] becomes a command ([`shard::Command`]) for the [`Replica`], which owns the state and the log. The host
//! keeps the continuation of the request. When the replica reports the command as committed, the host reacts to the
//! effects, and only then is the request answered.
//!
//! **Invariant:** state that has to survive is changed by commands only. State that ends with a connection or with the
//! process is kept here: connected clients, sent deliveries, waiting requests.
//!
//! **Invariant:** the host never touches the log.

mod append;
mod appends;
mod check;
mod claim_rate;
mod clients;
mod deliver;
mod drops;
mod effects;
mod inspect;
mod live;
mod orphans;
mod ownership;
mod payers;
mod producers;
mod propose;
mod queue_page;
mod received;
mod retained;
mod subscriptions;
mod time;
mod unsynced;
mod walks;
mod wills;
pub(crate) use producers::{Numbered, Producer};
pub(crate) use retained::ReadTicket;
pub(crate) use walks::is_kept;

pub(crate) use inspect::SUBSCRIPTIONS_AT_ONCE;

use std::collections::{BTreeSet, HashMap as StdHashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;
use session::Dispatched;
use shard::{Command, SessionUid};

use self::appends::{AnswerNumber, Appends, Waiter};
use self::clients::Clients;
use self::live::{Bodies, Live};
use self::propose::{Continuation, Continuations};
use self::retained::RetainedChanges;
use self::time::Proposed;
use self::wills::Wills;
use super::follower::Follower;
use super::log::{Frame, Incarnation, StoreEvent};
use super::replica::{Replica, ReplicaCounters};
use super::replica_routes::ReplicaRoutes;
use super::{Claim, Completion, DueWill, Identity, Request, SHARDS, session_uid};
use crate::access::Access;
use crate::backlog::Backlog;
use crate::batch::{SessionDelivery, Token, WorkerCommand};
use crate::counters::StoreCounters;
use crate::groups::{GroupRequest, Offer};
use crate::ids::{ConnectionId, ShardId, ShardSet, Time, WorkerId};
use crate::message::Message;
use crate::node::NodeLoad;
use crate::peers::NodeIndex;
use crate::routes::Routes;
use crate::settings::Settings;

/// Hash maps keyed with the node's secret, so that nobody can choose identifiers or filters that collide.
type HashMap<K, V> = StdHashMap<K, V, foldhash::quality::FixedState>;

/// One shard: the clients whose Client Identifier hashes to it, and the retained messages whose topic does.
pub struct ShardHost {
    id: ShardId,
    settings: Arc<Settings>,
    /// The node's index, in which this shard is the destination for all its sessions.
    node_routes: Arc<Routes>,
    routes: ReplicaRoutes,
    load: Arc<NodeLoad>,
    access: Arc<dyn Access>,
    hash_key: [u8; 16],
    replica: Replica,
    /// Term in which the replica leads.
    term: u64,
    /// The replica leads no more.
    has_ended: bool,
    producers: producers::Producers,
    continuations: Continuations,
    /// Sessions to which something may be sent now.
    touched: Vec<SessionUid>,
    /// Sessions whose connections wait for room for a page of retained messages.
    page_waits: BTreeSet<SessionUid>,
    /// Filters of the command that is being answered for which the node's index had no room.
    unrouted: Vec<Box<str>>,
    clients: Clients,
    claim_rate: claim_rate::ClaimRate,
    /// Sessions of this shard in [`NodeLoad::sessions`].
    counted_sessions: u64,
    charged: payers::Charged,
    /// Number of the last request for a sample of owners that was answered.
    owners_sampled: u64,
    live: HashMap<SessionUid, Live>,
    drops: drops::Drops,
    memory: Memory,
    /// Session that the last message of a shared group was queued for, by the text of the subscription.
    group_turns: HashMap<Box<str>, SessionUid>,
    appends: Appends,
    published: Published,
    retained: RetainedChanges,
    /// Orphans of the previous incarnation, while shards are asked whether they have them.
    orphan_search: Option<orphans::OrphanSearch>,
    wills: Wills,
    proposed: Proposed,
    /// Operators that wait for messages from the disk.
    page_reads: slab::Slab<queue_page::QueuePageRead>,
    /// Sessions with a connection for which messages wait.
    backlog: Backlog,
    pub counters: StoreCounters,
}

/// Parts of the node that the host of a shard uses.
#[derive(Clone)]
pub struct HostContext {
    pub settings: Arc<Settings>,
    pub node_routes: Arc<Routes>,
    pub load: Arc<NodeLoad>,
    pub access: Arc<dyn Access>,
    pub hash_key: [u8; 16],
    /// Counters of earlier hosts of the shard.
    pub counters: StoreCounters,
}

/// Results of applying a request.
#[derive(Debug, Default)]
pub struct ShardOutput {
    pub commands: Vec<(WorkerId, WorkerCommand)>,
    pub requests: Vec<(ShardId, Request)>,
    pub acknowledged: Vec<(Token, ReasonCode)>,
    /// Requests whose commands were proposed after those of later requests, by their lanes and numbers: the end of a
    /// connection whose Claim was in progress. The lane counts none of them as committed before.
    pub late: Vec<(WorkerId, u64)>,
    /// Wills that are due.
    pub wills: Vec<DueWill>,
    /// Messages for members of groups on other nodes.
    pub offered: Vec<Offer>,
    /// Topics without a retained message any more, each with the stamp of the deletion, for a node that does not know
    /// it or for all.
    pub deleted: Vec<(Option<NodeIndex>, Box<str>, u64)>,
    /// Copies of retained messages that another node has sent and that were new here, each with its stamp.
    pub propagated: Vec<(NodeIndex, Message, u64)>,
    /// Frames for other replicas of the shard.
    pub frames: Vec<(ShardId, Frame)>,
    /// Requests to the hosts of shared groups on this node, with the numbers of their shards.
    pub group_requests: Vec<(ShardId, GroupRequest)>,
    /// Messages that sessions do not get, with their Client Identifiers and the reason, for events.
    pub dropped: Vec<(Box<str>, Message, &'static str)>,
    /// Bytes of the messages in the last command, if that is a delivery.
    delivery_bytes: usize,
}

/// Bytes of the messages of one delivery from which on the next message gets a delivery of its own. Each one fits a
/// frame to another node, whatever the sizes of the messages.
const DELIVERY_BYTES: usize = 1 << 20;

/// Messages that a shard holds in memory. Those for connected sessions are in [`Live::bodies`].
struct Memory {
    /// Messages for absent clients, without a log.
    absent: HashMap<SessionUid, Bodies>,
    held: Held,
    /// Limit in bytes below which the messages for clients of this shard are little for the node.
    little: u64,
}

/// Bytes of the messages that a shard holds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes for connected sessions: they receive the messages in bounded time, or are closed.
    pub for_connected: u64,
    /// Bytes for absent sessions, perhaps for days.
    pub for_absent: u64,
}

/// QoS 2 messages of the shard's sessions that other shards may know.
struct Published {
    /// Messages that previous connections of a session dispatched in this incarnation.
    dispatched: HashMap<SessionUid, Vec<Dispatched<ShardSet>>>,
    /// Shards that may know messages of a session by their identities.
    known_to: HashMap<SessionUid, ShardSet>,
    /// Shards that have yet to forget identities of settled Wills, and of settled orphans.
    settled: [wills::Settled; 2],
    /// Identities that this shard is about to forget, with the number of commands on their way. A message with such an
    /// identity is a new one.
    forgetting: HashMap<Identity, u32>,
}

impl ShardOutput {
    /// Returns whether there is more than commands, requests and acknowledgements.
    pub fn has_rare_parts(&self) -> bool {
        let Self { late, wills, offered, deleted, propagated, frames, group_requests, dropped, .. } = self;
        let lengths = [
            late.len(),
            wills.len(),
            offered.len(),
            deleted.len(),
            propagated.len(),
            frames.len(),
            group_requests.len(),
            dropped.len(),
        ];
        lengths.into_iter().fold(0, |all, length| all | length) != 0
    }

    pub(crate) fn complete(&mut self, completion: Completion) {
        self.commands.push((completion.connection().worker, WorkerCommand::Completion(completion)));
    }

    fn deliver(&mut self, connection: ConnectionId, delivery: SessionDelivery) {
        let bytes = delivery.bytes();
        if let Some((_, WorkerCommand::Completion(Completion::Deliver { connection: last, more, .. }))) =
            self.commands.last_mut()
            && *last == connection
            && self.delivery_bytes + bytes <= DELIVERY_BYTES
        {
            self.delivery_bytes += bytes;
            more.push(delivery);
            return;
        }
        self.delivery_bytes = bytes;
        self.complete(Completion::Deliver { connection, first: delivery, more: Vec::new() });
    }
}

/// A quarter of the memory for queues of the node, divided among its shards; 0 when nothing is kept ahead.
fn little(settings: &Settings, ahead_bytes: u64) -> u64 {
    if ahead_bytes == 0 { 0 } else { settings.limits.memory_queued_max.bytes() / 4 / u64::from(SHARDS) }
}

impl ShardHost {
    /// Creates the host of a shard, without any connection.
    pub(in crate::store) fn new(replica: Replica, context: HostContext, routes: ReplicaRoutes) -> Self {
        let HostContext { settings, node_routes, load, access, hash_key, counters } = context;
        let hasher = foldhash::quality::FixedState::with_seed(u64::from_le_bytes(
            hash_key[8..].try_into().unwrap_or_default(),
        ));
        let sessions = replica.state().counts().sessions;
        load.sessions.fetch_add(sessions, Relaxed);
        load.sessions_followed[replica.id().index()].store(0, Relaxed);
        load.led[replica.id().index()].store(true, Relaxed);
        Self {
            id: replica.id(),
            routes,
            node_routes,
            load,
            access,
            hash_key,
            term: 0,
            has_ended: false,
            producers: producers::Producers::default(),
            continuations: Continuations::default(),
            touched: Vec::new(),
            page_waits: BTreeSet::new(),
            unrouted: Vec::new(),
            clients: Clients::new(hasher.clone()),
            claim_rate: claim_rate::ClaimRate::default(),
            counted_sessions: sessions,
            charged: payers::Charged::new(hash_key, hasher.clone()),
            owners_sampled: 0,
            live: HashMap::with_hasher(hasher.clone()),
            drops: drops::Drops::new(hasher.clone()),
            memory: Memory {
                absent: HashMap::with_hasher(hasher.clone()),
                held: Held::default(),
                little: little(&settings, replica.ahead_bytes()),
            },
            group_turns: HashMap::with_hasher(hasher.clone()),
            appends: Appends::new(&hasher),
            published: Published {
                dispatched: HashMap::with_hasher(hasher.clone()),
                known_to: HashMap::with_hasher(hasher.clone()),
                settled: Default::default(),
                forgetting: HashMap::with_hasher(hasher),
            },
            retained: RetainedChanges::default(),
            orphan_search: None,
            wills: Wills::default(),
            proposed: Proposed::default(),
            page_reads: slab::Slab::new(),
            backlog: Backlog::default(),
            counters,
            settings,
            replica,
        }
    }

    /// Ends the host: the replica leads no more. Its charges end, and so do the requests that wait.
    pub fn into_follower(mut self) -> Follower {
        self.charged.clear();
        self.load.sessions.fetch_sub(self.counted_sessions, Relaxed);
        self.load.led[self.id.index()].store(false, Relaxed);
        let Self { settings, node_routes, load, access, hash_key, counters, replica, routes, .. } = self;
        let context = HostContext { settings, node_routes, load, access, hash_key, counters };
        Follower::new(replica, context, routes)
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    pub fn state(&self) -> &shard::Shard {
        self.replica.state()
    }

    /// Time by which the shard is ahead of this node, in milliseconds.
    pub fn ahead_ms(&self) -> i64 {
        self.replica.ahead_ms()
    }

    pub fn replica_counters(&self) -> ReplicaCounters {
        self.replica.counters()
    }

    /// Routes of the replica.
    pub fn routes(&self) -> &ReplicaRoutes {
        &self.routes
    }

    /// Routes and state of the replica.
    pub fn routes_mut(&mut self) -> (&mut ReplicaRoutes, &shard::Shard) {
        (&mut self.routes, self.replica.state())
    }

    /// Reaches a route position of another node, if the replica has made all changes up to it.
    pub fn reach_route_position(&mut self, index: u64) {
        self.routes.reach(index, self.replica.passed_on());
    }

    /// Route position of the replica.
    pub fn route_position(&self) -> u64 {
        self.routes.position(self.replica.passed_over())
    }

    /// Route position that a node must reach to know all changes that the host has answered.
    pub fn route_position_answered(&self) -> u64 {
        self.routes.position_begun(self.replica.passed_over())
    }

    /// Term in which the replica leads.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns whether other nodes may have replicas of the shard.
    pub fn is_agreed(&self) -> bool {
        self.replica.is_agreed()
    }

    /// Returns whether effects of earlier events are left.
    pub fn has_event(&self) -> bool {
        self.replica.has_event()
    }

    /// Returns whether the replica leads no more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Passes an event to the agreement. [`Self::run_agreement`] must follow.
    pub fn handle_log_event(&mut self, event: StoreEvent) {
        self.replica.handle_log_event(event);
    }

    /// Runs the agreement, which may have steps then.
    pub fn run_agreement(&mut self, now: Time, out: &mut ShardOutput) {
        self.replica.run_agreement(now);
        self.acknowledge_held(out);
    }

    /// Takes a frame for another replica.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.replica.poll_frame()
    }

    /// Starts the shard: no client of the node's previous incarnation is connected any more. It is called once, after
    /// [`Self::recall`] of all shards and before any other request.
    pub fn start(&mut self, now: Time, incarnation: Incarnation, out: &mut ShardOutput) {
        self.replica.lead(incarnation.number);
        self.next_replica_event(now, 1, out);
        self.apply_at_once(now, out);
    }

    /// Starts to serve clients: the replica leads.
    pub fn serve(&mut self, now: Time, term: u64, out: &mut ShardOutput) {
        self.term = term;
        self.replica.begin_time(now);
        if self.replica.is_agreed() {
            self.appends.set_term(term);
        }
        // In a cluster, nodes that are gone are reported one by one.
        if !self.replica.is_agreed() {
            self.replica.propose_start(now, term);
        }
        self.configure(now);
        let wills: Vec<u64> = self.replica.state().due_wills().map(|(id, _)| id).collect();
        wills.into_iter().for_each(|id| self.will_due(id, out));
        self.search_orphans(out);
    }

    pub fn set_settings(&mut self, now: Time, settings: Arc<Settings>, out: &mut ShardOutput) {
        self.memory.little = little(&settings, self.replica.ahead_bytes());
        self.settings = settings;
        self.configure(now);
        self.apply_at_once(now, out);
    }

    pub fn sessions(&self) -> usize {
        self.replica.state().counts().sessions as usize
    }

    pub fn held(&self) -> Held {
        self.memory.held
    }

    pub fn apply(&mut self, now: Time, request: Request, out: &mut ShardOutput) {
        match request {
            Request::Claim(claim) => self.claim(now, claim, out),
            Request::Attach(attach) => self.attach(now, *attach, out),
            Request::Release(release) => self.release(now, *release, out),
            Request::Subscribe { session, connection, ticket, filters, shapes, retained } => {
                if retained {
                    self.begin_walks(now, session, &filters);
                }
                self.subscribe(now, session, (filters, shapes), (connection, ticket), out);
            }
            Request::Unsubscribe { session, connection, ticket, filters } => {
                self.unsubscribe(now, session, filters, Some((connection, ticket)));
            }
            Request::Withdraw { session, filter } => self.unsubscribe(now, session, vec![filter], None),
            Request::Append { message, identity, refusal, token } => {
                self.append(now, message, identity, (refusal, token), out);
            }
            Request::Enqueue { session, entries, group, token, page } => match (page, group, token) {
                (Some(page), ..) => self.enqueue_page(now, session, entries, *page, out),
                (None, None, None) => self.enqueue_unawaited(now, session, entries),
                (None, group, token) => {
                    self.enqueue(now, session, entries, group.as_deref(), token.map(Waiter::Token), out);
                }
            },
            Request::EnqueueToGroup(enqueue) => self.enqueue_to_group(now, *enqueue, out),
            Request::FindIdentity { identity, token } => self.find_identity(identity, token, out),
            Request::AskRoomForPage { session, connection } => {
                self.room_for_page(session_uid(session), connection, out);
            }
            Request::EndWalk { session, filter } => self.end_walk(now, session, &filter),
            Request::Acknowledge { session, connection, packet_id, kind } => {
                self.acknowledge(now, session, connection, packet_id, kind, out);
            }
            Request::Receive { session, packet_id, durability, token } => {
                self.receive(now, session, packet_id, (durability, token), out);
            }
            Request::Released { session, connection, packet_id } => {
                self.released_by_client(now, session, connection, packet_id, out);
            }
            Request::Forget { session, packet_id, flip, token: _ } => {
                self.forget_received(now, session, packet_id, flip)
            }
            Request::ForgetIdentity { identity } => {
                let command = Command::Forget(identity.into());
                *self.published.forgetting.entry(identity).or_default() += 1;
                // In a cluster PUBCOMP waits for it.
                if self.producers.is_asking() && identity.exchange().is_some() {
                    self.propose(now, &command, Continuation::Forgotten(identity));
                } else {
                    self.propose_later(now, &command, Continuation::Forgotten(identity));
                }
            }
            Request::ForgetBelow { identity } => {
                // All cores understand it: the leader that asks for it has seen that.
                if self.replica.is_agreed() {
                    self.propose_later(now, &Command::ForgetBelow(identity.into()), Continuation::Nobody);
                }
            }
            Request::ForgetOrigin { origin } => {
                self.propose_later(now, &Command::ForgetOrigin { origin }, Continuation::Nobody);
            }
            Request::Retain { message, stamp, copied_by, refusal, token, payers } => {
                self.retain(now, &message, payers, (stamp, copied_by), (refusal, token), out);
            }
            Request::AskRoomToRetain { topic, size, connection, payers } => {
                let is_there = self.has_room_to_retain(&topic, size, &payers);
                out.complete(Completion::RoomToRetain { connection, is_there });
            }
            Request::DeleteRetained { topic, token } => self.delete_retained(now, &topic, token, out),
            Request::FindOrphans { asker, orphans } => self.find_orphans(asker, &orphans, out),
            Request::OrphansKnown { by, orphans } => self.orphans_known(now, by, &orphans, out),
            Request::AcceptedBy { key, by } => self.accepted_by(key, by),
            Request::WillDispatched { key, outstanding, shards } => {
                self.will_dispatched(now, key, outstanding, shards, out);
            }
            Request::Accepted { key, reason } => self.accepted_elsewhere(now, key, reason, out),
        }
        self.apply_at_once(now, out);
    }

    /// Handles an event of the log. Durable batches may cause too much work for one turn. So about `effects_max`
    /// effects are applied to the state; the rest follows in the next turn. Returns the number of effects, and whether
    /// some are left.
    pub fn store_event(
        &mut self,
        now: Time,
        event: StoreEvent,
        effects_max: usize,
        out: &mut ShardOutput,
    ) -> (usize, bool) {
        self.replica.handle_log_event(event);
        let mut effects = 0;
        while effects < effects_max
            && !self.has_ended
            && let Some(had) = self.next_replica_event(now, effects_max - effects, out)
        {
            effects += had;
        }
        (effects, self.replica.has_event())
    }
}
