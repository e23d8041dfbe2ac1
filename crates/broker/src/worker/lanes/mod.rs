//! Requests to shards that any node of a cluster may lead, and the answers.
//!
//! In a cluster each request of a worker takes this way, also to a shard that this node leads: another node may lead it
//! before the request is answered. [`Asking`] keeps what this worker has asked, [`Serving`] knows who asks the shards
//! here. [`Learning`] and [`Sharing`] do the same for routes of shards without a replica. Frames for this node go into
//! the mailbox of the worker, the others to the part that connects the nodes.

mod asking;
mod frame;
mod retained;
mod routes;
mod serving;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use mqtt::ReasonCode;
use shard::{LANES_MAX, Mutation, NodeIncarnation, mutated};

use self::asking::{Asking, ToLeader};
use self::frame::{
    Answers, Ended, Item, NotLeading, Requests, ToShard, ToWorker, decode_answers, decode_to_shard,
};
pub use self::retained::ReadCounters;
pub(super) use self::retained::Reader;
use self::retained::RetainedReads;
use self::routes::{Learning, Sharing};
use self::serving::{Serving, ToProducer};
use super::Worker;
use crate::batch::{Claimed, WorkerCommand};
use crate::connection::AckKind;
use crate::ids::{ConnectionId, ShardId, Time, WorkerId};
use crate::peers::{Leader, MemberIncarnations, Port, ShardFrame};
use crate::store::wire::{RequestOrigin, ShardAnswer, decode_answer, decode_request};
use crate::store::{Completion, Numbered, Producer, Request, SHARDS, ShardHost};

/// Decodes bytes as a frame between a worker and a shard, for the fuzz target.
pub fn decode_frame_form(bytes: &[u8]) {
    frame::decode_any(bytes);
}

/// Checks that bytes are refused, or are a frame that travels, for the fuzz target.
///
/// # Panics
/// If a frame with routes is encoded to other bytes.
pub fn check_frame_form(bytes: &[u8]) {
    frame::check_any(bytes);
}

/// Both sides of the requests of a worker in a cluster.
pub(super) struct Lanes {
    own: NodeIncarnation,
    asking: Asking,
    serving: Serving,
    retained: RetainedReads,
    learning: Learning,
    sharing: Sharing,
    /// Route positions of this node that were reported, of the shards of this worker.
    reached: [u64; SHARDS as usize],
    /// Completions that wait until this node has reached a route position of a shard of this worker.
    parked: Vec<(ShardId, u64, Completion)>,
    /// Completions of Claims that wait until other nodes have reached one.
    announced: BTreeMap<(u32, u32), (ShardId, u64, Completion)>,
    /// Connections whose Claim has such a completion, with the later ones in their order.
    held: BTreeMap<(u32, u32), Vec<Completion>>,
    counters: LaneCounters,
}

/// Counters and gauges of the requests of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Rounds that this worker has begun with leaders of shards.
    pub rounds: u64,
    /// Frames that were no frames, or not from a member, or that found no room.
    pub malformed: u64,
    /// Bytes of requests that are not answered now.
    pub unanswered_bytes: u64,
    /// Completions that wait now until this node knows routes.
    pub parked: u64,
}

impl LaneCounters {
    /// Sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            malformed: self.malformed + other.malformed,
            unanswered_bytes: self.unanswered_bytes + other.unanswered_bytes,
            parked: self.parked + other.parked,
        }
    }
}

impl Lanes {
    pub fn new(own: NodeIncarnation, worker: WorkerId, workers: u16) -> Self {
        Self {
            own,
            asking: Asking::new(own, worker, workers),
            serving: Serving::new(workers),
            retained: RetainedReads::default(),
            learning: Learning::default(),
            sharing: Sharing::default(),
            reached: [0; SHARDS as usize],
            parked: Vec::new(),
            announced: BTreeMap::new(),
            held: BTreeMap::new(),
            counters: LaneCounters::default(),
        }
    }

    /// Returns whether this node leads a shard, as far as this worker knows.
    pub fn is_led_here(&self, shard: ShardId) -> bool {
        self.asking.leader(shard) == Some(self.own.node)
    }
}

impl Worker {
    /// Returns whether the shards belong to a cluster: other nodes may lead them.
    pub(super) fn has_cluster_shards(&self) -> bool {
        self.lanes.is_some()
    }

    /// Counters of the requests to shards that other nodes may lead.
    pub fn lane_counters(&self) -> LaneCounters {
        let counters = |lanes: &Lanes| LaneCounters {
            unanswered_bytes: lanes.asking.bytes() as u64,
            parked: lanes.parked.len() as u64,
            ..lanes.counters
        };
        self.lanes.as_deref().map(counters).unwrap_or_default()
    }

    /// Returns whether frames with requests or answers wait.
    pub(super) fn has_shard_frames(&self) -> bool {
        let has_frames = |lanes: &Lanes| {
            lanes.asking.has_frames() || lanes.serving.has_work() || lanes.retained.has_frames()
        };
        self.lanes.as_deref().is_some_and(has_frames)
    }

    /// Counters of reads of retained messages.
    pub fn read_counters(&self) -> ReadCounters {
        self.lanes.as_deref().map(|lanes| lanes.retained.counters()).unwrap_or_default()
    }

    /// Sends the requests and answers of this turn on their way. The frames for this node are in the batches for its
    /// workers then.
    pub(super) fn pass_requests(&mut self, now: Time) {
        let Some(lanes) = &mut self.lanes else { return };
        let mut unsent = Vec::new();
        let mut busy = Vec::new();
        for (shard, request) in self.outbox.take_requests() {
            match request {
                Request::Claim(claim) if !lanes.asking.has_room_for_claim(shard) => {
                    busy.push(claim.connection)
                }
                request => unsent.extend(lanes.asking.request(now, shard, request)),
            }
        }
        lanes.asking.send_held(now);
        for (lane, command) in self.outbox.take_answers() {
            lanes.serving.answer(now, lane, &command);
        }
        let shards = &self.shards;
        lanes
            .serving
            .settle(now, |shard, proposal| shards.get(shard).is_some_and(|host| host.has_applied(proposal)));
        if lanes.asking.has_frames() || lanes.serving.has_work() {
            for ToLeader { node, shard, bytes } in lanes.asking.take_frames(now) {
                self.send_frame(node, Port::Shard(shard), bytes);
            }
            let Some(lanes) = &mut self.lanes else { return };
            let index = |shard| self.shards.get(shard).map_or(u64::MAX, ShardHost::route_position_answered);
            for frame in lanes.serving.take_frames(index) {
                self.send_answers(frame);
            }
        }
        // Behind the messages that this worker retains.
        self.send_reads();
        for token in unsent {
            self.answer(token, ReasonCode::ImplementationSpecificError);
        }
        // Others of this node wait for the shard already.
        busy.into_iter().for_each(|connection| self.claim_refused(connection, ReasonCode::ServerBusy));
    }

    fn send_answers(&mut self, ToProducer { producer, bytes }: ToProducer) {
        self.send_frame(producer.owner.node, Port::Worker(WorkerId(producer.lane)), bytes);
    }

    /// Sends a frame to a worker of any node.
    fn send_frame(&mut self, node: u64, port: Port, bytes: Vec<u8>) {
        let Some(lanes) = &self.lanes else { return };
        let frame = ShardFrame { node, port, bytes: Bytes::from(bytes) };
        if node != lanes.own.node {
            return self.peers.outbound.shard_frames.push(frame);
        }
        let worker = match port {
            Port::Shard(shard) => WorkerId::host_of(shard, self.node.workers),
            Port::Worker(worker) => worker,
        };
        self.outbox.post(worker, WorkerCommand::ShardFrame(frame));
    }

    /// Handles a frame for a shard of this worker, or for this worker.
    pub(super) fn take_shard_frame(&mut self, ShardFrame { node, port, bytes }: &ShardFrame) {
        let is_frame = match port {
            Port::Shard(shard) if retained::is_for_shard(bytes) => {
                self.take_read(*node, *shard, bytes).is_ok()
            }
            Port::Worker(_) if retained::is_for_reader(bytes) => self.take_read_answer(bytes).is_ok(),
            Port::Shard(shard) => match decode_to_shard(bytes) {
                Ok(ToShard::Requests(requests)) => {
                    self.take_requests(*node, *shard, &requests);
                    true
                }
                Ok(ToShard::RoutesWanted(wanted)) => {
                    self.take_routes_wanted(*node, *shard, wanted);
                    true
                }
                Err(_) => false,
            },
            Port::Worker(_) => match decode_answers(bytes) {
                Ok(ToWorker::Answers(answers)) => self.take_answers(*node, &answers),
                Ok(ToWorker::NotLeading(not)) => {
                    self.not_leading(*node, &not);
                    true
                }
                Ok(ToWorker::Ended(ended)) => {
                    self.own_incarnation_ended(*node, &ended);
                    true
                }
                Ok(ToWorker::Routes(page)) => {
                    self.take_routes(*node, &page);
                    true
                }
                Err(_) => false,
            },
        };
        if !is_frame && let Some(lanes) = &mut self.lanes {
            lanes.counters.malformed += 1;
        }
    }

    /// Handles requests of a worker.
    fn take_requests(&mut self, node: u64, shard: ShardId, requests: &Requests<'_>) {
        let Requests { incarnation, worker, round, flags, ref items } = *requests;
        let owner = NodeIncarnation { node, incarnation };
        let producer = Producer { owner, lane: worker };
        let now = self.clock.now();
        let Some(lanes) = &mut self.lanes else { return };
        let term = self.shards.get(shard).map_or(0, |host| host.term());
        if worker >= LANES_MAX || node == 0 {
            lanes.counters.malformed += 1;
            return;
        }
        if flags.is_first
            && let Some(last) = self.shards.ended_by(shard, owner)
        {
            // The nodes have agreed on the end of this incarnation, and it does not know that yet.
            return self.send_answers(Serving::ended(shard, producer, round, last));
        }
        let lane = match lanes.serving.find(shard, producer, round) {
            Some(lane) => lane,
            None if flags.is_first && term > 0 => {
                let Some((lane, before)) = lanes.serving.begin(shard, producer, round) else {
                    lanes.counters.malformed += 1;
                    return self.send_answers(Serving::not_leading(shard, producer, round, 0));
                };
                if let Some(before) = before {
                    self.shards.forget_worker(now, shard, before);
                }
                lane
            }
            None => return self.send_answers(Serving::not_leading(shard, producer, round, term)),
        };
        for Item { number, epoch, age_ms, bytes } in items {
            let encoded = Time(now.0.saturating_sub(u64::from(*age_ms)));
            let origin = RequestOrigin { lane, shard, number: *number };
            let is_next = self.lanes.as_mut().is_some_and(|lanes| lanes.serving.is_next(lane, *number));
            let decoded =
                decode_request(bytes, origin, encoded, &self.node.load.quotas).ok().filter(|_| is_next);
            let Some(request) = decoded else {
                // Nothing behind it is handled: it would count as handled too.
                if let Some(lanes) = &mut self.lanes {
                    lanes.counters.malformed += 1;
                    lanes.serving.end_lane(lane);
                }
                self.shards.forget_worker(now, shard, lane);
                self.send_answers(Serving::not_leading(shard, producer, round, 0));
                return self.apply_output();
            };
            let request = self.with_payers(request);
            let numbered = Numbered { number: *number, epoch: *epoch, request };
            let proposal = self.shards.apply_of(now, shard, (lane, producer), numbered);
            if let Some(lanes) = &mut self.lanes
                && *number > 0
            {
                lanes.serving.handled(lane, *number, proposal);
            }
        }
        if flags.is_attached {
            self.shards.worker_reported(now, shard, (lane, producer));
        }
        if flags.wants_receipt
            && let Some(lanes) = &mut self.lanes
        {
            lanes.serving.send_receipt(lane);
        }
        self.apply_output();
    }

    /// Finds the accounts that pay for what a client of another node asks.
    fn with_payers(&self, mut request: Request) -> Request {
        match &mut request {
            Request::Claim(claim) => claim.payers = self.node.payers_of(claim.user, &claim.client_id),
            Request::Attach(attach) => attach.payers = self.node.payers_of(attach.user, &attach.client_id),
            _ => {}
        }
        request
    }

    /// Handles answers of a shard. Returns false for what is none.
    fn take_answers(&mut self, node: u64, answers: &Answers<'_>) -> bool {
        let Answers { incarnation, shard, round, index, received, ref items } = *answers;
        let now = self.clock.now();
        let mut are_answers = true;
        if let Some(lanes) = &mut self.lanes
            && incarnation == lanes.own.incarnation
            && lanes.asking.is_present(shard, node, round)
        {
            lanes.asking.received(shard, received);
        }
        for bytes in items {
            let Some(lanes) = &mut self.lanes else { return true };
            // A round may end with the answer before.
            if incarnation != lanes.own.incarnation || !lanes.asking.is_present(shard, node, round) {
                return are_answers;
            }
            match decode_answer(bytes, self.id, now) {
                Ok(answer) => self.shard_answer(shard, index, answer),
                Err(_) => are_answers = false,
            }
        }
        are_answers
    }

    fn shard_answer(&mut self, shard: ShardId, index: u64, answer: ShardAnswer) {
        let Some(lanes) = &mut self.lanes else { return };
        match answer {
            ShardAnswer::Completion(completion) => {
                lanes.asking.completed(shard, &completion);
                self.shard_completion(shard, index, completion);
            }
            ShardAnswer::Acknowledged { number, reason } => {
                if let Some(token) = lanes.asking.answered(shard, number) {
                    self.answer(token, reason);
                }
            }
            ShardAnswer::Will(will) => self.receive_will(*will),
            ShardAnswer::Settled { number } => {
                for token in lanes.asking.settled(shard, number) {
                    self.answer(token, ReasonCode::Success);
                }
            }
        }
    }

    /// Handles a completion of a shard. CONNACK and SUBACK are sent when this node and the others know the
    /// subscriptions. Otherwise a message that the client publishes next would not find them.
    fn shard_completion(&mut self, shard: ShardId, index: u64, completion: Completion) {
        let Some(lanes) = &mut self.lanes else { return };
        let ConnectionId { slot, generation, .. } = completion.connection();
        let closes = matches!(completion, Completion::Revoke { .. } | Completion::QueueFull { .. });
        if let Some(held) = lanes.held.get_mut(&(slot, generation)).filter(|_| !closes) {
            return held.push(completion);
        }
        let is_claimed = matches!(&completion, Completion::Claimed(claimed) if claimed.session.is_some());
        if is_claimed {
            lanes.held.insert((slot, generation), Vec::new());
        }
        let changes = matches!(completion, Completion::Subscribed { .. } | Completion::Unsubscribed { .. });
        if is_claimed || changes {
            let host = WorkerId::host_of(shard, self.node.workers);
            let completion = Box::new(completion);
            return self.outbox.post(host, WorkerCommand::AwaitRoutes { shard, index, completion });
        }
        self.completion(completion);
    }

    /// Handles the completions that came after that of a Claim.
    pub(super) fn release_held(&mut self, ConnectionId { slot, generation, .. }: ConnectionId) {
        let held = self.lanes.as_mut().and_then(|lanes| lanes.held.remove(&(slot, generation)));
        held.into_iter().flatten().for_each(|completion| self.completion(completion));
    }

    /// Handles a completion that waits until this node has reached a route position of a shard of this worker.
    pub(super) fn await_routes(&mut self, shard: ShardId, index: u64, completion: Completion) {
        if let Some(lanes) = &mut self.lanes {
            lanes.parked.push((shard, index, completion));
        }
        self.release_completions();
    }

    /// Releases completions whose routes this node knows.
    fn release_completions(&mut self) {
        let Some(lanes) = self.lanes.as_mut().filter(|lanes| !lanes.parked.is_empty()) else { return };
        let reached = &lanes.reached;
        let is_known = |(shard, index, _): &mut (ShardId, u64, Completion)| reached[shard.index()] >= *index;
        let released: Vec<_> = lanes.parked.extract_if(.., is_known).collect();
        for (shard, index, completion) in released {
            let worker = completion.connection().worker;
            let completion = Box::new(completion);
            self.outbox.post(worker, WorkerCommand::RoutesKnown { shard, index, completion });
        }
    }

    /// Handles a completion whose routes this node knows. The client gets its CONNACK or SUBACK when the other nodes
    /// know them, too.
    pub(super) fn routes_known(&mut self, shard: ShardId, index: u64, completion: Completion) {
        match &completion {
            Completion::Subscribed { connection, ticket, .. } => {
                if let Some(pending) = self.pending_ack(*connection, *ticket, AckKind::Sub) {
                    pending.shard = Some((shard, index));
                }
            }
            Completion::Claimed(Claimed { connection, session_present: true, .. })
                if !self.peers.is_known((shard, index)) =>
            {
                let connection = *connection;
                if let Some(lanes) = &mut self.lanes {
                    let key = (connection.slot, connection.generation);
                    lanes.announced.insert(key, (shard, index, completion));
                    return self.peers.announce_claim(connection, (shard, index));
                }
                return;
            }
            _ => {}
        }
        self.completion(completion);
    }

    /// Handles that the other nodes know the routes of a session that a connection has claimed, or that one has not
    /// confirmed it in time.
    pub(super) fn claim_announced(&mut self, connection: ConnectionId, is_known: bool) {
        let key = (connection.slot, connection.generation);
        let Some(lanes) = &mut self.lanes else { return };
        let Some((shard, index, completion)) = lanes.announced.remove(&key) else { return };
        if is_known {
            self.peers.note_known((shard, index));
            return self.completion(completion);
        }
        lanes.held.remove(&key);
        self.claim_unknown_elsewhere(connection);
    }

    /// Announces that this node leads a shard now, or does not any more.
    pub(super) fn announce_leader(&mut self, shard: ShardId, term: Option<u64>) {
        let Some(lanes) = &mut self.lanes else { return };
        if term.is_none() {
            lanes.serving.end_shard(shard);
            lanes.sharing.end_shard(shard);
            self.end_reads(shard);
        }
        self.peers.outbound.leads.push((shard, term));
    }

    fn not_leading(&mut self, node: u64, not: &NotLeading) {
        let NotLeading { incarnation, shard, round, term } = *not;
        let Some(lanes) = self.lanes.as_mut().filter(|lanes| lanes.own.incarnation == incarnation) else {
            return;
        };
        lanes.asking.not_leading(shard, (node, round), term);
    }

    /// Begins to send requests to the leaders of shards.
    pub(super) fn leaders_known(&mut self, leaders: Vec<(ShardId, Leader)>) {
        for (shard, leader) in leaders {
            let Some(lanes) = &mut self.lanes else { return };
            lanes.counters.rounds += 1;
            lanes.asking.begin(shard, leader);
            lanes.retained.leader_known(shard);
            self.ask_routes(shard);
        }
    }

    /// Stops to send to nodes whose links are down, until their shards are announced again, or they begin another
    /// round.
    pub(super) fn links_lost(&mut self, nodes: &[u64]) {
        let now = self.clock.now();
        for node in nodes {
            let Some(lanes) = &mut self.lanes else { return };
            lanes.asking.link_lost(*node);
            lanes.sharing.end_node(*node);
            for (shard, lane) in lanes.serving.end_node(*node) {
                self.shards.forget_worker(now, shard, lane);
            }
        }
        self.apply_output();
    }

    /// Ends the connections of incarnations that are over by a new roster.
    pub(super) fn members_known(&mut self, members: &Arc<MemberIncarnations>) {
        let now = self.clock.now();
        let Some(lanes) = &mut self.lanes else { return };
        lanes.sharing.end_incarnations(members);
        for (shard, lane) in lanes.serving.end_incarnations(members) {
            self.shards.forget_worker(now, shard, lane);
        }
        self.shards.set_members(now, members);
        self.apply_output();
    }

    /// Notes that shards that this worker leads, in these terms, know each roster that an earlier leader may have
    /// known.
    pub(super) fn members_settled(&mut self, shards: &[(ShardId, u64)]) {
        let now = self.clock.now();
        for (shard, term) in shards {
            self.shards.members_settled(now, *shard, *term);
        }
        if !shards.is_empty() {
            self.apply_output();
        }
    }

    /// Goes on in another incarnation of this node, because the last one is over for the others: their shards have
    /// released the sessions of its connections. So these are closed, and their requests are dropped. All connections
    /// are closed in this turn, because none may ask in the name of the new incarnation.
    pub(super) fn restart_incarnation(&mut self, incarnation: u64) {
        let Some(lanes) = &mut self.lanes else { return };
        if lanes.own.incarnation == incarnation || mutated(Mutation::KeepIncarnation) {
            return;
        }
        lanes.own.incarnation = incarnation;
        lanes.held.clear();
        lanes.announced.clear();
        lanes.learning.restart();
        let claimed: Vec<u32> = self
            .connections
            .iter()
            .filter(|(.., connection)| connection.marks.claimed)
            .map(|(slot, ..)| slot)
            .collect();
        claimed.into_iter().for_each(|slot| self.close(slot, ReasonCode::ServerBusy));
        let Some(lanes) = &mut self.lanes else { return };
        lanes.retained.restart();
        for token in lanes.asking.restart(incarnation) {
            self.answer(token, ReasonCode::UnspecifiedError);
        }
    }

    /// Handles a leader's report that the incarnation of this node is over.
    fn own_incarnation_ended(&mut self, node: u64, ended: &Ended) {
        let Ended { incarnation, shard, round, last } = *ended;
        let Some(lanes) = self.lanes.as_mut().filter(|lanes| lanes.own.incarnation == incarnation) else {
            return;
        };
        lanes.asking.not_leading(shard, (node, round), 0);
        // A later one that this worker does not know yet begins another round.
        if last == incarnation {
            self.peers.outbound.ended = Some(incarnation);
        }
    }
}
