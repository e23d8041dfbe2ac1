//! Requests to shards that any node of a cluster may lead, and the answers.
//!
//! In a cluster each request of a worker takes this way, also to a shard that this node leads: another node may lead it
//! before the request is answered. [`Asking`] keeps what this worker has asked, [`Serving`] knows who asks the shards
//! here. [`Learning`] and [`Sharing`] do the same for routes of shards without a replica. Frames for this node go into
//! the mailbox of the worker, the others to the part that connects the nodes.

mod asking;
mod frame;
mod retained;
mod route_waits;
mod routes;
mod serving;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use mqtt::ReasonCode;
use shard::{LANES_MAX, Mutation, NodeIncarnation, mutated};

use self::asking::{Asking, ClosedWill, ToLeader};
use self::frame::{
    Answers, Ended, Item, NotLeading, Requests, ToShard, ToWorker, decode_answers, decode_to_shard,
};
pub use self::retained::ReadCounters;
pub(super) use self::retained::Reader;
use self::retained::RetainedReads;
use self::route_waits::{Added, Askers, RouteWaits};
use self::routes::{Learning, Sharing};
use self::serving::{Serving, ToProducer};
use super::Worker;
use crate::batch::{Claimed, Token, WorkerCommand};
use crate::connection::{AckKind, Phase};
use crate::groups::WaitingShards;
use crate::ids::{ConnectionId, SessionId, ShardId, ShardSet, Time, WorkerId};
use crate::message::Message;
use crate::peers::{Leader, MemberIncarnations, Port, ShardFrame};
use crate::quota::Payers;
use crate::store::wire::{RequestOrigin, ShardAnswer, decode_answer, decode_request};
use crate::store::{Completion, Numbered, Producer, Request, SHARDS, ShardHost};

/// Reason String for a connection whose SUBACK would have to wait for longer than `cluster.suback_timeout`.
const UNKNOWN_HERE: &str =
    "Server busy: this node has not learned of the subscription in time; subscribe again";

/// Part of `limits.memory_queued_max` that unanswered requests to all shards may take: one of so many.
const REQUESTS_SHARE: u64 = 2;

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
    /// Claims of this turn, which have no numbers yet.
    queued_claims: BTreeMap<ShardId, usize>,
    /// Wills of connections whose Releases have no numbers yet, and whose Claims are not answered.
    closed_wills: BTreeMap<ConnectionId, ClosedWill>,
    serving: Serving,
    retained: RetainedReads,
    learning: Learning,
    sharing: Sharing,
    /// Route positions of this node that were reported, of the shards of this worker.
    reached: [u64; SHARDS as usize],
    /// Workers that wait until this node has reached a route position of a shard of this worker.
    askers: Askers,
    /// Completions for connections of this worker that wait until nodes have reached route positions.
    waits: RouteWaits,
    /// Shards that do not answer, as of the last turn. Publishers of messages for the full ones wait.
    waiting: WaitingShards,
    counters: LaneCounters,
}

/// Requests of one turn that no shard gets.
#[derive(Default)]
struct Refused {
    /// Tokens of requests that are too large for a link.
    too_large: Vec<Token>,
    /// Connections whose Claims have no room.
    claims: Vec<ConnectionId>,
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
    /// Completions that wait now until nodes know routes.
    pub waiting: u64,
    /// Completions that wait now behind that of a Claim.
    pub held: u64,
    /// Connections that were closed because this node did not know routes in time.
    pub overdue: u64,
    /// Times that this worker began to learn the routes of a shard because the replica on this node lacked some.
    pub learned_for_replicas: u64,
}

impl LaneCounters {
    /// Sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            malformed: self.malformed + other.malformed,
            unanswered_bytes: self.unanswered_bytes + other.unanswered_bytes,
            waiting: self.waiting + other.waiting,
            held: self.held + other.held,
            overdue: self.overdue + other.overdue,
            learned_for_replicas: self.learned_for_replicas + other.learned_for_replicas,
        }
    }
}

impl Lanes {
    pub fn new(own: NodeIncarnation, worker: WorkerId, workers: u16) -> Self {
        Self {
            own,
            asking: Asking::new(own, worker, workers),
            queued_claims: BTreeMap::new(),
            closed_wills: BTreeMap::new(),
            serving: Serving::new(workers),
            retained: RetainedReads::default(),
            learning: Learning::default(),
            sharing: Sharing::default(),
            reached: [0; SHARDS as usize],
            askers: Askers::default(),
            waits: RouteWaits::default(),
            waiting: WaitingShards::default(),
            counters: LaneCounters::default(),
        }
    }

    pub fn own(&self) -> NodeIncarnation {
        self.own
    }

    /// Returns whether a leader of the shard is known and may get one more Claim.
    pub fn takes_claims(&self, shard: ShardId) -> bool {
        let queued = self.queued_claims.get(&shard).copied().unwrap_or(0);
        self.asking.leader(shard).is_some() && self.asking.room_for_claims(shard) > queued
    }

    /// Notes that a Claim of this turn waits for its number.
    pub fn note_claim(&mut self, shard: ShardId) {
        *self.queued_claims.entry(shard).or_default() += 1;
    }

    /// Keeps the Will of a connection that is closed before its Claim is answered. Its Release is queued in this turn.
    pub fn keep_will(&mut self, connection: ConnectionId, will: Message, payers: Payers) {
        self.closed_wills.insert(connection, (will, payers));
    }

    /// Returns the worker of some node that asks through a lane.
    pub fn producer(&self, lane: WorkerId) -> Option<Producer> {
        self.serving.producer(lane)
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

    /// Returns the durable session of a connection, and the epoch in which the connection owns it. `None` on a node
    /// alone.
    pub fn owned_session(&self, slot: u32) -> Option<(SessionId, u32)> {
        let connection = self.connections.occupant_ref(slot)?;
        self.lanes.as_ref()?.asking.owned_session(connection.id, connection.session?)
    }

    /// Counters of the requests to shards that other nodes may lead.
    pub fn lane_counters(&self) -> LaneCounters {
        let counters = |lanes: &Lanes| LaneCounters {
            unanswered_bytes: lanes.asking.bytes() as u64,
            waiting: lanes.waits.len() as u64,
            held: lanes.waits.held() as u64,
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

    /// Notes that the commands of a request that waited are proposed.
    pub(super) fn proposed_late(&mut self, lane: WorkerId, number: u64) {
        let Some(lanes) = &mut self.lanes else { return };
        let host = lanes.serving.shard(lane).and_then(|shard| self.shards.get(shard));
        if let Some(host) = host {
            lanes.serving.proposed_late(lane, number, host.last_proposal());
        }
    }

    /// Sends the requests and answers of this turn on their way. The frames for this node are in the batches for its
    /// workers then.
    pub(super) fn pass_requests(&mut self, now: Time) {
        if self.lanes.is_none() {
            return;
        }
        let refused = self.number_requests(now);
        let Some(lanes) = &mut self.lanes else { return };
        lanes.asking.send_held(now);
        for (lane, command) in self.outbox.take_answers() {
            lanes.serving.answer(now, lane, self.node.origins(), &command);
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
        self.note_full_shards();
        self.answer_refused(refused);
    }

    /// Notes the shards with more than their share of the memory for messages: those without a leader must not stop the
    /// publishers of the others. Groups prefer members in other shards.
    fn note_full_shards(&mut self) {
        let max =
            self.settings.limits.memory_queued_max.bytes() / REQUESTS_SHARE / u64::from(self.node.workers);
        let Some(lanes) = &mut self.lanes else { return };
        let full = lanes.asking.full(max);
        let waiting = WaitingShards { full, without_leader: lanes.asking.without_leader() };
        if std::mem::replace(&mut lanes.waiting, waiting) != waiting {
            self.shards.groups_mut().iter_mut().for_each(|groups| groups.set_waiting(waiting));
        }
    }

    /// Shards for which publishers wait.
    pub(super) fn full_shards(&self) -> ShardSet {
        self.lanes.as_deref().map_or(ShardSet::EMPTY, |lanes| lanes.waiting.full)
    }

    /// Bytes of requests to shards that are not answered.
    pub(super) fn request_bytes(&self) -> u64 {
        self.lanes.as_deref().map_or(0, |lanes| lanes.asking.bytes() as u64)
    }

    /// Gives the requests of this turn the next numbers of their lanes.
    fn number_requests(&mut self, now: Time) -> Refused {
        let mut refused = Refused::default();
        let Some(lanes) = &mut self.lanes else { return refused };
        lanes.queued_claims.clear();
        let mut wills = std::mem::take(&mut lanes.closed_wills);
        for (shard, request) in self.outbox.take_requests() {
            match request {
                Request::Claim(claim) if lanes.asking.room_for_claims(shard) == 0 => {
                    refused.claims.push(claim.connection);
                }
                request => {
                    let released = match &request {
                        Request::Release(release) => Some(release.connection),
                        _ => None,
                    };
                    refused.too_large.extend(lanes.asking.request(now, shard, request));
                    let will = released.and_then(|connection| Some((connection, wills.remove(&connection)?)));
                    if let Some((connection, will)) = will {
                        lanes.asking.keep_will(shard, connection, will);
                    }
                }
            }
        }
        refused
    }

    fn answer_refused(&mut self, Refused { too_large, claims }: Refused) {
        for token in too_large {
            self.answer(token, ReasonCode::ImplementationSpecificError);
        }
        // Others of this node wait for the shard already.
        claims.into_iter().for_each(|connection| self.claim_refused(connection, ReasonCode::ServerBusy));
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
        let now = self.clock.now();
        let Some(lanes) = &mut self.lanes else { return };
        let connection = completion.connection();
        let occupant = self.connections.get(connection.slot, connection.generation);
        if occupant.is_none_or(|occupant| occupant.phase == Phase::Closing) {
            if matches!(completion, Completion::ClaimRefused { .. })
                && let Some((will, payers)) = lanes.asking.refused(shard, connection)
            {
                // The shard has not stored it [MQTT-3.1.2-8].
                self.publish_will(&will, &payers);
            }
            // Nothing may wait for a connection that is gone: nobody would forget it.
            return self.completion(completion);
        }
        let closes = matches!(completion, Completion::Revoke { .. } | Completion::QueueFull { .. });
        let completion = match closes {
            true => Some(completion),
            false => lanes.waits.add_held(completion),
        };
        let Some(completion) = completion else { return };
        // A new session has no subscriptions.
        let is_claimed = matches!(&completion, Completion::Claimed(claimed) if claimed.session_present);
        if is_claimed {
            lanes.waits.hold(connection);
        }
        let changes = matches!(completion, Completion::Subscribed { .. } | Completion::Unsubscribed { .. });
        if !is_claimed && !changes {
            return self.completion(completion);
        }
        match lanes.waits.add(now, (shard, index), completion) {
            Added::Known(completion) => self.routes_known(shard, index, *completion),
            Added::Waits { asks: true } => {
                let host = WorkerId::host_of(shard, self.node.workers);
                self.outbox.post(host, WorkerCommand::AwaitRoutes { shard, index, worker: self.id });
            }
            Added::Waits { asks: false } => {}
        }
    }

    /// Handles the completions that came after that of a Claim.
    pub(super) fn release_held(&mut self, connection: ConnectionId) {
        let held = self.lanes.as_mut().map(|lanes| lanes.waits.take_held(connection));
        held.into_iter().flatten().for_each(|completion| self.completion(completion));
    }

    /// Notes that a worker waits until this node has reached a route position of a shard of this worker.
    pub(super) fn await_routes(&mut self, shard: ShardId, index: u64, worker: WorkerId) {
        let Some(lanes) = &mut self.lanes else { return };
        let position = lanes.reached[shard.index()];
        if position < index {
            return lanes.askers.add(shard, worker, index);
        }
        self.outbox.post(worker, WorkerCommand::RoutesReached { shard, position });
    }

    /// Tells the workers that wait for it which route position this node has reached.
    fn tell_reached(&mut self, shard: ShardId, position: u64) {
        let Some(lanes) = &mut self.lanes else { return };
        for worker in lanes.askers.reach(shard, position) {
            self.outbox.post(worker, WorkerCommand::RoutesReached { shard, position });
        }
    }

    /// Handles the completions that have waited until this node has reached a route position.
    pub(super) fn routes_reached(&mut self, shard: ShardId, position: u64) {
        let Some(lanes) = &mut self.lanes else { return };
        for (shard, index, completion) in lanes.waits.reach(shard, position) {
            self.routes_known(shard, index, completion);
        }
    }

    /// Handles a completion whose routes this node knows. The client gets its CONNACK or SUBACK when the other nodes
    /// know them, too.
    fn routes_known(&mut self, shard: ShardId, index: u64, completion: Completion) {
        match &completion {
            Completion::Subscribed { connection, ticket, .. } => {
                // An answer that comes again has a later index, which was not announced.
                let pending = self.pending_ack(*connection, *ticket, AckKind::Sub);
                if let Some(pending) = pending.filter(|pending| !pending.is_answered) {
                    pending.shard = Some((shard, index));
                }
            }
            Completion::Claimed(Claimed { connection, session_present: true, .. })
                if !self.peers.is_known((shard, index)) =>
            {
                let connection = *connection;
                if let Some(lanes) = &mut self.lanes {
                    lanes.waits.announce((shard, index), completion);
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
        let Some(lanes) = &mut self.lanes else { return };
        let Some((shard, index, completion)) = lanes.waits.take_announced(connection) else { return };
        if is_known {
            self.peers.note_known((shard, index));
            return self.completion(completion);
        }
        self.claim_unknown_elsewhere(connection);
    }

    /// Answers the completions that have waited too long for this node: the shard's replica here has failed, or nothing
    /// of the leader arrives. The client learns the same as when another node does not know the routes in time.
    pub(super) fn end_overdue_waits(&mut self) {
        let now = self.clock.now();
        let Some(timeout) = self.node.routes.peers().map(|peers| peers.suback_timeout()) else { return };
        let Some(since) = now.0.checked_sub(timeout.as_millis() as u64) else { return };
        while let Some(lanes) = &mut self.lanes
            && let Some((shard, index, completion)) = lanes.waits.take_overdue(Time(since))
        {
            let connection = completion.connection();
            match completion {
                Completion::Claimed(_) => self.claim_unknown_elsewhere(connection),
                Completion::Subscribed { .. } => {
                    self.close_because(connection.slot, ReasonCode::ServerBusy, UNKNOWN_HERE);
                }
                // The shard delivers nothing for the filters any more, whatever this node knows.
                completion => {
                    self.routes_known(shard, index, completion);
                    continue;
                }
            }
            if let Some(lanes) = &mut self.lanes {
                lanes.counters.overdue += 1;
            }
            self.counters.routes_overdue += 1;
            tracing::debug!(
                shard = shard.0,
                index,
                "connection closed: this node does not know the routes of its session in time"
            );
        }
    }

    /// Forgets what waits for a connection that is closed.
    pub(super) fn end_waits(&mut self, connection: ConnectionId) {
        if let Some(lanes) = &mut self.lanes {
            lanes.waits.end(connection);
        }
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
        lanes.learning.restart();
        let claimed: Vec<u32> = self
            .connections
            .iter()
            .filter(|(.., connection)| connection.marks.claimed)
            .map(|(slot, ..)| slot)
            .collect();
        claimed.into_iter().for_each(|slot| self.close(slot, ReasonCode::ServerBusy));
        // What was asked before in this turn belongs to the connections that are closed now.
        let refused = self.number_requests(self.clock.now());
        let Some(lanes) = &mut self.lanes else { return };
        lanes.retained.restart();
        for token in lanes.asking.restart(incarnation) {
            self.answer(token, ReasonCode::UnspecifiedError);
        }
        self.answer_refused(refused);
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

#[cfg(test)]
mod tests;
