//! One node's part in its cluster.

mod apart;
mod asks;
mod attach;
mod clocks;
mod forwarding;
mod journal;
mod leases;
mod membership;
mod routes;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use broker::Node;
use broker::WorkerId;
use broker::peers::{Inbound, NodePlace, Outbound};
use bytes::Bytes;
use link::{Class, Credit, Event, Lane, Mesh, MeshEvent, NodeId, Time};
use registry::Position as RecordsPosition;
use replog::{Incarnation, Position, Replica, WriterId};

use crate::asks::{Asked, Asker, Question, Unanswered, Waiting};
use crate::clocks::Clocks;
use crate::config::{Config, Role, WithoutQuorum};
use crate::features::{BRIEF, CLOCKS, COPIES, NAMESAKES, PACKS};
use crate::freshness::{Grants, Leases};
use crate::interest::Interest;
use crate::meta::{Command, LogNews, Meta, WishId};
use crate::mutation::{Mutation, mutated};
use crate::packing;
use crate::peer::Peer;
use crate::subacks::Subacks;
use crate::wire::{self, Word};
use crate::withdrawals::Withdrawals;

/// What reaches a fabric from other threads of its node.
#[derive(Debug)]
pub enum Letter {
    /// A worker has something for other nodes.
    Outbound(Outbound),
    /// The node's own routes have changed.
    RoutesChanged,
    /// The owner asks another node's: [`Fabric::poll_answered`] tells what came of it.
    Ask(Question),
    /// The owner's answer to what [`Fabric::poll_asked`] told; `None`: there is none.
    Answer(Asker, Option<Bytes>),
    /// The log of the node has something to say to its replica of the meta group.
    Log(LogNews),
    /// An operator wants something to be agreed upon: [`Fabric::poll_wish`] tells what came of it.
    Wish(WishId, Command),
    /// The node is to be a member of its cluster no more: [`Fabric::poll_wish`] tells when it is none.
    Leave(WishId),
    /// An operator knows where other nodes are.
    JoinAt(Vec<Box<str>>),
    /// Replicants are to be spread evenly over the cores.
    Balance,
    /// The owner's copy of the records is so far, and waits for what comes next: [`Fabric::poll_delivery`].
    Copied(RecordsPosition),
    /// The node is about to stop.
    Resign,
}

/// Joins a node's workers to the other nodes: tells these what its clients want, sends them the messages that they want, and hands what comes
/// from them to the workers.
///
/// Its owner gives it letters, moves the bytes of its [`Mesh`], and calls [`Self::turn`] after any of it and when [`Self::timeout`] is due.
pub struct Fabric {
    config: Config,
    own: NodeId,
    node: Arc<Node>,
    mesh: Mesh,
    peers: BTreeMap<NodeId, Peer>,
    /// By their places.
    places: Vec<NodeId>,
    replica: Replica<Interest>,
    /// Writers whose changes this node tells other cores: itself and those that are attached to it.
    branch: Vec<WriterId>,
    /// The core that this replicant hears from.
    attached: Option<NodeId>,
    /// A replicant that has just become a member hears from whichever core it met first; then it takes its share.
    share_at: Option<Time>,
    /// This node's changes up to here are known to that core.
    core_knows: Position,
    /// And up to here, as that core says, to all nodes of this replicant's region.
    region_knows: Position,
    withdrawals: Withdrawals,
    for_core: Subacks,
    for_region: Subacks,
    for_cluster: Subacks,
    /// Nodes that are linked and no members.
    guests: BTreeMap<NodeId, membership::Guest>,
    /// Some peer is to be asked for what it has retained.
    lacks_retained: bool,
    /// Places that nobody has any more.
    retired: VecDeque<(Time, NodePlace)>,
    /// Where the members are agreed upon.
    meta: Option<Meta>,
    /// The roster that the peers are of.
    followed: u64,
    wishes_refused: VecDeque<WishId>,
    grants: Option<Grants>,
    leases: Leases,
    clocks: Clocks,
    /// How far this node is, as it last told the cores, and when.
    told: leases::Told,
    told_at: Time,
    /// When it last began to tell everything again.
    told_again_at: Time,
    asked_at: Time,
    tended_at: Time,
    began: Time,
    /// This core knows what others may have been told that it knows.
    is_informed: bool,
    /// This life of the node is a member, as the roster that was followed last says.
    was_member: bool,
    /// Cores were asked to settle this node's changes up to here.
    asked_settle: Position,
    /// The core that this replicant hears from was asked up to where its region knows them.
    asked_region: Position,
    now: Time,
    /// What the workers are to get at the end of the turn.
    inbound: Vec<Inbound>,
    /// Credit of the messages that workers have, by the key of their batch; that of this turn's by worker.
    credits: slab::Slab<Vec<(NodeId, Credit)>>,
    open_credits: Vec<Vec<(NodeId, Credit)>>,
    /// Writers are still being forgotten.
    is_forgetting: bool,
    /// What this node's sessions from earlier lives want is among its changes: it says hello from then on.
    has_begun: bool,
    /// This node's questions that wait, and what came of others; questions of peers that the owner has not seen.
    waiting: Waiting,
    answered: VecDeque<(u64, Result<Bytes, Unanswered>)>,
    asked: VecDeque<Asked>,
    counters: Counters,
    apart: apart::Apart,
    journal: journal::Journal,
}

/// What a fabric has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Changes of routes taken in from other nodes.
    pub routes_applied: u64,
    /// Routes of other nodes that found no place in the index, or were no filters.
    pub routes_refused: u64,
    /// Messages of QoS 0 that found no place on the way to another node.
    pub dropped_qos0: u64,
    /// Messages of QoS 1 and 2 for nodes that are cut off that found no place.
    pub dropped_suspect: u64,
    /// Messages of QoS 1 and 2 that found no place and were refused to their publishers.
    pub refused: u64,
    /// SUBACKs that left, or connections that were closed, because others did not hear of the subscription in time.
    pub subacks_overdue: u64,
    /// Copies of retained messages that found too much on the way to another node: they are sent later.
    pub untold: u64,
    /// Times that peers were asked for what they have retained, as there had been no room for it here.
    pub lacked: u64,
    /// Words that this core has handed on between nodes that do not reach each other.
    pub relayed: u64,
    /// Bytes of peers that were no words.
    pub malformed: u64,
    /// Questions to other nodes, for operators, and those that got no answer.
    pub asks: u64,
    pub asks_unanswered: u64,
    /// Questions of other nodes, and those that found too many before them, or no place for their answers.
    pub asked: u64,
    pub asked_refused: u64,
    /// Bytes of frames to nodes of other regions before they were packed, and after; both count those that were not worth it.
    pub packed_before: u64,
    pub packed_after: u64,
}

impl Counters {
    pub(crate) fn count_packed(&mut self, frame: &Bytes, packed: Option<&Bytes>) {
        self.packed_before += frame.len() as u64;
        self.packed_after += packed.unwrap_or(frame).len() as u64;
    }
}

/// Entries of the dead that are forgotten in one turn.
const FORGET_AT_ONCE: usize = 1000;

impl Fabric {
    /// `mesh` has no peers yet; `hash_seed` is the node's secret.
    pub fn new(now: Time, config: Config, node: Arc<Node>, mut mesh: Mesh, hash_seed: u64) -> Self {
        let own = NodeId::of_name(&config.own.name);
        let mut peers = BTreeMap::new();
        let mut places = Vec::new();
        for info in &config.others {
            let id = NodeId::of_name(&info.name);
            mesh.add_peer(now, &info.name, &info.address);
            // It has not been heard of yet.
            node.routes.set_up(NodePlace(places.len() as u16), false);
            peers.insert(id, Peer::new(info.clone(), NodePlace(places.len() as u16)));
            places.push(id);
        }
        let is_core = config.own.role == Role::Core;
        let cores = peers.values().filter(|peer| peer.is_core()).count() + usize::from(is_core);
        let mut replica = Replica::new(hash_seed, config.tombstones_max);
        replica.own(WriterId(own.0), config.incarnation);
        let workers = usize::from(node.workers);
        node.stamp_retained(places.len() as u16, config.world, own.0 as u8);
        if config.without_quorum == WithoutQuorum::Hold {
            node.set_fresh_until(broker::Time::default());
        }
        Self {
            own,
            mesh,
            peers,
            places,
            replica,
            branch: Vec::new(),
            attached: None,
            share_at: None,
            guests: BTreeMap::new(),
            lacks_retained: false,
            retired: VecDeque::new(),
            meta: None,
            followed: 0,
            wishes_refused: VecDeque::new(),
            core_knows: Position::default(),
            region_knows: Position::default(),
            withdrawals: Withdrawals::default(),
            for_core: Subacks::default(),
            for_region: Subacks::default(),
            for_cluster: Subacks::default(),
            grants: is_core.then(|| Grants::new(now, config.lease)),
            leases: Leases::new(config.lease, cores, is_core),
            clocks: Clocks::new(config.world),
            told: leases::Told::default(),
            told_at: Time::default(),
            told_again_at: now,
            asked_at: Time::default(),
            tended_at: now,
            began: now,
            is_informed: false,
            was_member: false,
            asked_settle: Position::default(),
            asked_region: Position::default(),
            now,
            inbound: (0..workers).map(|_| Inbound::default()).collect(),
            credits: slab::Slab::new(),
            open_credits: (0..workers).map(|_| Vec::new()).collect(),
            is_forgetting: false,
            has_begun: false,
            waiting: Waiting::default(),
            answered: VecDeque::new(),
            asked: VecDeque::new(),
            counters: Counters::default(),
            apart: apart::Apart::default(),
            journal: journal::Journal::new(now),
            node,
            config,
        }
    }

    pub fn mesh(&mut self) -> &mut Mesh {
        &mut self.mesh
    }

    /// Whose place that is.
    pub fn node_at(&self, place: NodePlace) -> Option<NodeId> {
        self.places.get(usize::from(place.0)).copied()
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn letter(&mut self, now: Time, letter: Letter) {
        self.now = now;
        match letter {
            Letter::RoutesChanged => self.routes_changed(),
            Letter::Outbound(outbound) => self.outbound(now, outbound),
            Letter::Ask(question) => self.ask(now, question),
            Letter::Answer(to, answer) => self.answer(now, to, answer.as_deref()),
            Letter::Log(news) => self.log_news(news),
            Letter::Wish(id, command) => self.wish(now, id, &command),
            Letter::Leave(id) => self.leave(now, id),
            Letter::JoinAt(addresses) => self.join_at(now, addresses),
            Letter::Balance => self.balance(now),
            Letter::Copied(at) => self.copied(at),
            Letter::Resign => self.resign(now),
        }
    }

    /// Deals with what has come, and leaves behind what the mesh has to write.
    pub fn turn(&mut self, now: Time) {
        self.now = now;
        self.mesh.handle_timeout(now);
        while let Some(event) = self.mesh.poll_event() {
            match event {
                MeshEvent::Link { peer, event } => self.link_event(now, peer, event),
                MeshEvent::Refused { address, name, reason, said, passes } => {
                    let id = name.as_deref().map(NodeId::of_name);
                    if id.is_some_and(|id| self.forget_removed(now, id)) {
                        continue;
                    }
                    if !passes {
                        self.apart.note(now, &address, name.as_deref(), &reason);
                    }
                    if let Some(unsaid) = said {
                        apart::log(&address, name.as_deref(), &reason, unsaid, passes);
                    }
                }
                MeshEvent::Crowded { address, closed } => {
                    tracing::warn!(
                        %address, closed,
                        "too many connect to the port for other nodes and do not say who they are, most from this address: connections are \
                         closed to make room. See to it that only nodes reach that port"
                    );
                }
                MeshEvent::Introduced { name, card, address } => {
                    self.introduced(now, &name, &card, address.as_deref());
                }
            }
        }
        self.forget_the_dead();
        self.tend_membership(now);
        self.look_for_absent(now);
        self.ask_unheard();
        self.attach(now);
        self.withdraw(now);
        self.feed_peers(now);
        self.tend_leases(now);
        self.judge_clocks(now);
        self.send_behind(now);
        self.ask_for_copies(now);
        self.tell_confirmed(now);
        self.release_subacks(now);
        self.tend_asks(now);
        self.tend_journal(now);
        self.send_inbound();
    }

    /// When [`Self::turn`] is due at the latest.
    pub fn timeout(&self) -> Time {
        let feeds = self.feeds_due();
        let subacks = [&self.for_core, &self.for_region, &self.for_cluster];
        let subacks = subacks.into_iter().map(Subacks::deadline).min().unwrap_or(Time::NEVER);
        let meta = self.meta.as_ref().map_or(Time::NEVER, Meta::timeout);
        let soon = if self.is_forgetting { Time::default() } else { Time::NEVER };
        self.mesh
            .timeout()
            .min(feeds)
            .min(subacks)
            .min(self.withdrawals.deadline())
            .min(self.leases_due())
            .min(self.waiting.due())
            .min(soon)
            .min(self.share_at.unwrap_or(Time::NEVER))
            .min(meta)
    }

    fn link_event(&mut self, now: Time, id: NodeId, event: Event) {
        let Some(peer) = self.peers.get_mut(&id) else { return self.guest_event(now, id, event) };
        match event {
            Event::Up => {
                peer.is_up = true;
                if peer.turned_away > 0 {
                    tracing::info!(
                        node = &*peer.info.name,
                        messages = std::mem::take(&mut peer.turned_away),
                        "the node is reachable again; messages were turned away meanwhile because its buffer was full"
                    );
                }
                self.apart.joined(&peer.info.name, &peer.info.address);
                self.journal.link(now, id, true);
                let features = self.mesh.peer(id).map_or(0, |peer| peer.features);
                let is_far = peer.info.region != self.config.own.region;
                peer.packs = self.config.packs && is_far && features & PACKS != 0;
                // It may have missed, or forgotten, what it was told.
                self.told.clear();
                self.asked_settle = Position::default();
                self.asked_region = Position::default();
                // A node without a lease asks at once, not when it would have asked again.
                self.asked_at = Time::default();
                self.clocks.link_up(now, id);
                self.replica.set_suspect(WriterId(id.0), false);
                self.node.routes.set_up(peer.place, true);
                self.say_hello(now, id);
                if let Some(meta) = &mut self.meta {
                    meta.link_changed(id, true);
                }
            }
            Event::Suspect => {
                peer.is_up = false;
                peer.suspected_at = now;
                self.journal.link(now, id, false);
                self.clocks.link_down(id);
                self.replica.set_suspect(WriterId(id.0), true);
                self.node.routes.set_up(peer.place, false);
                self.give_up_copies();
                // Publishers wait until a majority of cores has answered since: this node may be the one that is cut off.
                self.asked_at = Time::default();
                self.settle_suspects(now);
                self.lose_asks(id);
                self.expect_restart(WriterId(id.0));
                if !self.is_member() {
                    self.expect_other_link(id);
                }
                if let Some(meta) = &mut self.meta {
                    meta.link_changed(id, false);
                }
            }
            Event::Restarted => {
                self.clocks.restarted(now, id);
                self.settle_messages(id, true);
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.restarted();
                }
                if let Some(grants) = &mut self.grants {
                    grants.restarted(id);
                }
                if self.attached == Some(id) {
                    self.attached_core_forgets();
                }
                self.forget_behind(id);
                self.lose_asks(id);
            }
            // The life that others have told of is one of the process that the link is about already.
            Event::GoesOn => {
                peer.goes_on();
                self.believe(id);
            }
            Event::Acknowledged { lane, next } if lane == Lane::ROUTES => self.delta_arrived(id, next),
            // Messages are answered by their receiver; what else there is needs no answer.
            Event::Acknowledged { .. } | Event::Silent { .. } => {}
            Event::Received { lane, number, frame, credit } => {
                // What cannot be unpacked is no frame to whoever reads it, either.
                let frame = match frame.first() {
                    Some(0) => packing::unpack(&frame).unwrap_or(frame),
                    _ => frame,
                };
                if matches!(lane.class(), Class::Assured | Class::BestEffort) {
                    return self.message_came(id, lane, number, frame, credit);
                }
                self.mesh.consume(id, credit);
                match wire::decode(&frame) {
                    Some(word) => self.heard(now, id, word),
                    None => self.counters.malformed += 1,
                }
            }
        }
    }

    fn heard(&mut self, now: Time, from: NodeId, word: Word<'_>) {
        match word {
            Word::Hello(hello) => self.hello(from, hello),
            Word::Delta { number, delta } => self.delta(now, from, number, delta),
            // What was not agreed upon is no word.
            Word::Brief(_) if !self.can(from, BRIEF) => self.counters.malformed += 1,
            Word::Applied(vector) | Word::Brief(vector) => {
                if let Some(grants) = &mut self.grants {
                    grants.applied(from, vector);
                }
            }
            Word::Settle { position, in_region } => {
                if let Some(peer) = self.peers.get_mut(&from) {
                    let awaited = if in_region { &mut peer.settle_in_region } else { &mut peer.settle };
                    awaited.wanted = Some(position);
                }
            }
            Word::Settled(incarnation, position) => {
                if incarnation == self.config.incarnation {
                    self.leases.settled(from, position);
                }
            }
            Word::KnownInRegion(incarnation, position) => {
                if incarnation == self.config.incarnation && self.attached == Some(from) {
                    self.region_knows = position.max(self.region_knows);
                }
            }
            Word::Confirm(confirmed) => self.confirmed(from, &confirmed),
            Word::Renew(stamp) => self.asked_for_lease(now, from, stamp),
            Word::Grant(stamp) => self.leases.granted(from, Time(stamp).min(now)),
            Word::Ask { number, question } => self.asked(now, from, number, question),
            Word::Answer { number, part, bytes } => self.answer_came(from, number, part, bytes),
            Word::Meta(word) => self.meta_word(now, from, &word),
            Word::Balance => self.take_share(),
            Word::AskClock(_) | Word::Clock { .. } if !self.can(from, CLOCKS) => self.counters.malformed += 1,
            Word::AskClock(stamp) => self.clock_asked(now, from, stamp),
            Word::Clock { stamp, world } => self.clocks.answered(now, from, stamp, world),
            Word::Lacks if !self.can(from, COPIES) => self.counters.malformed += 1,
            Word::Lacks if mutated(Mutation::IgnoreLacks) => {}
            Word::Lacks => self.copy_again(from),
            Word::Namesake(_) if !self.can(from, NAMESAKES) => self.counters.malformed += 1,
            Word::Namesake(address) => self.namesake(now, address),
        }
    }

    /// Whether both this node and a peer can do something.
    fn can(&self, peer: NodeId, feature: u64) -> bool {
        self.mesh.peer(peer).is_some_and(|peer| peer.features & feature != 0)
    }

    /// A word that is not worth a buffer: what it says is said again.
    fn say(&mut self, now: Time, to: NodeId, lane: Lane, word: &Word<'_>) -> bool {
        let frame = self.packed(to, word.encode().into());
        self.mesh.send(now, to, lane, frame).is_ok()
    }

    /// A frame as it goes to a peer.
    fn packed(&mut self, to: NodeId, frame: Bytes) -> Bytes {
        if self.peers.get(&to).is_none_or(|peer| !peer.packs) {
            return frame;
        }
        let packed = packing::pack(&frame);
        self.counters.count_packed(&frame, packed.as_ref());
        packed.unwrap_or(frame)
    }

    /// Entries of writers that began a new life.
    fn forget_the_dead(&mut self) {
        let (peers, node) = (&self.peers, &self.node);
        // What its durable sessions want holds until they are known to want it still.
        let is_complete = |writer: WriterId, now: Option<(Incarnation, Position)>| {
            let Some((peer, now)) = peers.get(&NodeId(writer.0)).zip(now) else { return true };
            peer.began_at.is_some_and(|began| began.0 == now.0 && began.1 <= now.1)
                || mutated(Mutation::ForgetEarly)
        };
        self.is_forgetting = self.replica.forget_some(FORGET_AT_ONCE, is_complete, |change| {
            // It is wanted no more, for which there is always room.
            routes::put_route(node, peers, &change);
        });
    }

    /// Workers get what there is for them.
    fn send_inbound(&mut self) {
        for (worker, inbound) in self.inbound.iter_mut().enumerate() {
            if inbound.is_empty() {
                continue;
            }
            let mut inbound = std::mem::take(inbound);
            if !inbound.messages.is_empty() {
                inbound.key = self.credits.insert(std::mem::take(&mut self.open_credits[worker])) as u32;
            }
            self.node.post_inbound(WorkerId(worker as u16), inbound);
        }
    }
}
