//! Requests of the nodes of a cluster: they have numbers, by which the state recognises those that come again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqtt::ReasonCode;
use shard::{Acknowledgement, Command, NodeIncarnation, RequestNumber};

use super::propose::Continuation;
use super::{AnswerNumber, ShardHost, ShardOutput};
use crate::ids::{ConnectionId, Time, WorkerId};
use crate::peers::{IncarnationState, MemberIncarnations};
use crate::store::{Claim, Completion, Request, session_uid};

/// A worker of a node, in one run of that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Producer {
    pub owner: NodeIncarnation,
    /// Index of the worker on its node, less than [`LANES_MAX`](shard::LANES_MAX).
    pub lane: u16,
}

/// Nodes whose requests this host has received, and the request that is being handled.
#[derive(Debug, Default)]
pub(super) struct Producers {
    /// Producers by the numbers that stand for them in this process.
    known: BTreeMap<WorkerId, Producer>,
    /// Producers that have reported all their connections, with their numbers in this process.
    reported: BTreeMap<Producer, WorkerId>,
    /// Last incarnation of each node that is over, as far as it is known here.
    ended: BTreeMap<u64, u64>,
    /// Members of the last roster.
    members: Arc<MemberIncarnations>,
    /// The members are those of a roster that no earlier leader of the shard knew a newer one than. Owners of sessions
    /// were members when they claimed them, so those that are absent were removed.
    has_all_members: bool,
    /// Clients with a claim that waits for a report of the producer that owns the session.
    waiting: BTreeMap<Producer, BTreeSet<Arc<str>>>,
    /// Number of the last request of each producer.
    handled: BTreeMap<Producer, u64>,
    current: Option<Current>,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    producer: Producer,
    /// Number of its next command.
    next: u64,
    /// Value of [`Numbered::epoch`].
    epoch: u32,
}

/// A request of a producer.
#[derive(Debug)]
pub(crate) struct Numbered {
    /// Greater than that of every earlier request of the producer to this shard, unless this one comes again.
    pub number: u64,
    /// Epoch of the session in which the connection makes the request; 0 for other requests.
    pub epoch: u32,
    pub request: Request,
}

/// Number of bits for the commands of one request.
const COMMAND_BITS: u32 = 16;
/// Number of bits for the lane in the number of a Claim. Claims of all lanes of a node have different numbers.
const LANE_BITS: u32 = 6;

const _: () = assert!(shard::LANES_MAX <= 1 << LANE_BITS);

impl Producers {
    /// Returns whether a request of a producer is being handled.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.current.is_some()
    }

    /// Number of the request that is being handled; `None` on a node alone.
    pub fn current_answer(&self) -> Option<AnswerNumber> {
        let Current { producer: Producer { owner, lane }, next, .. } = self.current?;
        Some(AnswerNumber { node: owner.node, lane, request: next >> COMMAND_BITS })
    }

    /// Returns whether a claim of the client waits for the owner of its session.
    pub fn has_waiting(&self, client_id: &str) -> bool {
        self.waiting.values().flatten().any(|waiting| **waiting == *client_id)
    }

    /// Returns whether a producer may still report connections that the host does not know.
    fn is_awaited(&self, owner: Producer) -> bool {
        let NodeIncarnation { node, incarnation } = owner.owner;
        let is_over = self.ended.get(&node).is_some_and(|ended| *ended >= incarnation);
        !is_over && !self.reported.contains_key(&owner)
    }

    /// Returns whether the owner of sessions of the state is over, by the last roster.
    fn has_ended(&self, owner: NodeIncarnation) -> bool {
        match self.members.state(owner) {
            IncarnationState::MayRun => false,
            IncarnationState::Ended => true,
            IncarnationState::Absent => self.has_all_members,
        }
    }

    /// Connection of `owner` that has this number in the state, if its producer has reported.
    pub fn connection(&self, owner: NodeIncarnation, number: u64) -> Option<ConnectionId> {
        if self.ended.get(&owner.node).is_some_and(|ended| *ended >= owner.incarnation) {
            return None;
        }
        let worker = self.reported.get(&Producer::of_connection_number(owner, number))?;
        Some(Producer::connection_of(*worker, number))
    }

    /// Returns the producer that a connection belongs to; `None` on a node alone.
    pub fn of(&self, connection: ConnectionId) -> Option<Producer> {
        self.known.get(&connection.worker).copied()
    }

    /// Connection of a node of the cluster as the state names it, the same in each round of its worker.
    pub fn identity(&self, connection: ConnectionId) -> Option<(Producer, u64)> {
        let producer = self.of(connection)?;
        Some((producer, producer.connection_number(connection)))
    }
}

impl Producer {
    /// Number of a connection of this producer in the state. No other connection of its node has it.
    pub fn connection_number(self, connection: ConnectionId) -> u64 {
        connection.as_u64() | u64::from(self.lane) << (64 - LANE_BITS)
    }

    /// Producer of a connection of `owner` that has this number in the state.
    fn of_connection_number(owner: NodeIncarnation, number: u64) -> Self {
        Self { owner, lane: (number >> (64 - LANE_BITS)) as u16 }
    }

    /// Connection with this number in the state, of the producer that has the number `worker` in this process.
    fn connection_of(worker: WorkerId, number: u64) -> ConnectionId {
        let slot = (number << LANE_BITS >> LANE_BITS >> 32) as u32;
        ConnectionId { worker, slot, generation: number as u32 }
    }

    /// Number of a Claim.
    pub fn claim_number(self, request: u64) -> RequestNumber {
        RequestNumber::Claim { number: request << LANE_BITS | u64::from(self.lane) }
    }
}

impl ShardHost {
    /// Handles a request of a node of the cluster, like [`Self::apply`]. Returns the last batch with a command of the
    /// request; `None` if it waits for another command first, see [`ShardOutput::late`].
    pub fn apply_of(
        &mut self,
        now: Time,
        (worker, producer): (WorkerId, Producer),
        Numbered { number, epoch, mut request }: Numbered,
        out: &mut ShardOutput,
    ) -> Option<u64> {
        self.producers.known.insert(worker, producer);
        match &mut request {
            Request::Claim(claim) => claim.number = number,
            Request::Release(release) => release.number = number,
            _ => {}
        }
        let last = self.producers.handled.entry(producer).or_default();
        let is_again = number > 0 && number <= *last;
        *last = number.max(*last);
        // The state recognises commands that come again. These requests have none.
        let is_for_host = matches!(
            request,
            Request::Accepted { .. }
                | Request::AcceptedBy { .. }
                | Request::WillDispatched { .. }
                | Request::OrphansKnown { .. }
        );
        if is_again && is_for_host {
            return Some(self.replica.last_proposal());
        }
        if let Some(session) = request.of_connection() {
            let live = self.live.get(&session_uid(session));
            if live.is_none_or(|live| live.epoch != epoch) {
                self.replica.counters_mut().stale += 1;
                answer_stale(request, out);
                return Some(self.replica.last_proposal());
            }
        }
        // The lowest number of a command is 1.
        self.producers.current = Some(Current { producer, next: number << COMMAND_BITS | 1, epoch });
        let released = match &request {
            Request::Release(release) => Some(release.client_id.clone()),
            _ => None,
        };
        self.apply(now, request, out);
        self.producers.current = None;
        let is_late = released.is_some_and(|client_id| self.has_late_release(&client_id, (worker, number)));
        (!is_late).then(|| self.replica.last_proposal())
    }

    /// Number of the next command of the request that is being handled; `None` for a command of the host itself, and
    /// on a node alone.
    pub(super) fn number_of(&mut self, command: &Command<'_>) -> Option<RequestNumber> {
        let Current { producer: Producer { owner, lane }, next, epoch } = self.producers.current.as_mut()?;
        // The numbers of the next request follow.
        let is_last = *next % (1 << COMMAND_BITS) == (1 << COMMAND_BITS) - 1;
        let is_skip = matches!(command, Command::Acknowledge { kind: Acknowledgement::Skip, .. });
        let number = match command.of_session() {
            Some(_) => RequestNumber::Connection { epoch: *epoch, number: *next },
            None => RequestNumber::Lane { owner: *owner, lane: *lane, number: *next },
        };
        *next += u64::from(!is_last);
        (!is_skip && !is_last && number.fits(command)).then_some(number)
    }

    /// Returns whether the next command of the request that is being handled was applied before.
    pub(super) fn is_repeated(&self) -> bool {
        self.producers.current.as_ref().is_some_and(
            |Current { producer: Producer { owner, lane }, next, .. }| {
                self.replica.state().has_applied(*owner, *lane, *next)
            },
        )
    }

    /// Epoch for a change of subscriptions: that of the connection that asks for it, and 0, which is any, on a node
    /// alone and for operators. They change subscriptions of sessions without a connection, too.
    pub(super) fn epoch_of_request(&self) -> u32 {
        self.producers.current.map_or(0, |current| current.epoch)
    }

    /// Number of the last batch that has a command of this host, the open one included.
    pub fn last_proposal(&self) -> u64 {
        self.replica.last_proposal()
    }

    /// Notes the members of a new roster. Owners of sessions that are over give them up.
    pub fn set_members(&mut self, now: Time, members: Arc<MemberIncarnations>, out: &mut ShardOutput) {
        self.producers.members = members;
        self.end_nodes(now, out);
    }

    /// Notes that the last roster is as new as any that an earlier leader of the shard knew.
    pub fn members_settled(&mut self, now: Time, out: &mut ShardOutput) {
        self.producers.has_all_members = true;
        self.end_nodes(now, out);
    }

    /// Ends the owners of sessions that are over by the last roster.
    fn end_nodes(&mut self, now: Time, out: &mut ShardOutput) {
        let owners = self.replica.state().live_nodes();
        let ended: Vec<NodeIncarnation> = owners.filter(|owner| self.producers.has_ended(*owner)).collect();
        ended.into_iter().for_each(|owner| self.node_ended(now, owner, out));
    }

    /// Returns the last known incarnation of a node if `owner` can own no sessions of this shard: it is over, or a
    /// later one is known.
    pub fn ended_by(&self, owner: NodeIncarnation) -> Option<u64> {
        let ended = self.producers.ended.get(&owner.node).copied();
        ended.filter(|ended| *ended >= owner.incarnation).max(self.replica.state().ended_by(owner))
    }

    /// Proposes the end of an incarnation, unless the state knows it.
    fn node_ended(&mut self, now: Time, owner: NodeIncarnation, out: &mut ShardOutput) {
        let NodeIncarnation { node, incarnation } = owner;
        let ended = self.producers.ended.entry(node).or_default();
        if *ended >= incarnation {
            return;
        }
        *ended = incarnation;
        if self.replica.state().has_node(owner) {
            self.propose(now, &Command::NodeEnded(owner), Continuation::Nobody);
        }
        let is_over =
            |producer: &Producer| producer.owner.node == node && producer.owner.incarnation <= incarnation;
        self.producers.handled.retain(|producer, _| !is_over(producer));
        let over: Vec<_> =
            self.producers.waiting.keys().filter(|producer| is_over(producer)).copied().collect();
        over.into_iter().for_each(|producer| self.claims_go_on(now, producer, out));
    }

    /// Forgets a worker of another node that is gone, or that begins another round: its connections serve nobody any
    /// more, until it reports them.
    pub fn forget_worker(&mut self, now: Time, worker: WorkerId, out: &mut ShardOutput) {
        let producer = self.producers.known.remove(&worker);
        if let Some(producer) = producer
            && self.producers.reported.get(&producer) == Some(&worker)
        {
            self.producers.reported.remove(&producer);
        }
        self.clients_gone(now, (worker, producer), out);
    }

    /// Notes that a worker has reported all its connections. The owners of other sessions of this worker are gone.
    pub fn worker_reported(
        &mut self,
        now: Time,
        (worker, producer): (WorkerId, Producer),
        out: &mut ShardOutput,
    ) {
        self.producers.known.insert(worker, producer);
        self.producers.reported.insert(producer, worker);
        self.claims_go_on(now, producer, out);
        // A node that has started again has no other incarnation any more.
        let NodeIncarnation { node, incarnation } = producer.owner;
        if let Some(before) = incarnation.checked_sub(1) {
            self.node_ended(now, NodeIncarnation { node, incarnation: before }, out);
        }
    }

    /// Makes a claim wait if the session has an owner that has not been reported to this host.
    /// Returns the claim if it need not wait.
    ///
    /// The owner may have sent messages for its client that are not committed yet. It answers for them before it gives
    /// the session up. The agreed end of its node stands for the answer.
    pub(super) fn await_owner(&mut self, claim: Box<Claim>, out: &mut ShardOutput) -> Option<Box<Claim>> {
        let Some(producer) = self.unreported_owner(&claim.client_id) else { return Some(claim) };
        let client_id = claim.client_id.clone();
        let Some(client) = self.clients.get_mut(&client_id) else { return Some(claim) };
        match client.claim_state().pending.replace(claim) {
            None => {}
            Some(overtaken) => self.refuse(&overtaken, ReasonCode::SessionTakenOver, out),
        }
        self.producers.waiting.entry(producer).or_default().insert(client_id);
        None
    }

    /// Producer of the owner that the state has of a client, if it may still report that connection.
    fn unreported_owner(&self, client_id: &str) -> Option<Producer> {
        let state = self.replica.state();
        let durable = || {
            let session = state.session(state.session_of(client_id)?)?;
            Some((session.owner_node()?, session.owner()?))
        };
        let ephemeral = || {
            let session = state.ephemeral_of(client_id)?;
            Some((session.owner_node()?, session.connection()))
        };
        let (owner, connection) = durable().or_else(ephemeral)?;
        let producer = Producer::of_connection_number(owner, connection);
        self.producers.is_awaited(producer).then_some(producer)
    }

    /// Returns whether the session of a client has an owner that has not been reported to this host yet: the client may
    /// be connected.
    pub(crate) fn may_have_unreported_owner(&self, client_id: &str) -> bool {
        self.owner_of(client_id).is_none() && self.unreported_owner(client_id).is_some()
    }

    /// Continues with the claims that waited for a producer.
    fn claims_go_on(&mut self, now: Time, producer: Producer, out: &mut ShardOutput) {
        for client_id in self.producers.waiting.remove(&producer).unwrap_or_default() {
            self.recall_owner(&client_id);
            let Some(client) = self.clients.get_mut(&client_id) else { continue };
            match client.owner() {
                // The owner was reported: it is closed first, as at any takeover.
                Some(owner) if client.has_pending() => {
                    self.counters.takeovers += 1;
                    out.complete(Completion::Revoke { connection: owner });
                }
                Some(_) => {}
                // It goes on when the claim in progress is applied.
                None if client.is_claiming() => {}
                None => {
                    let pending =
                        client.existing_claim_state().and_then(|claim_state| claim_state.pending.take());
                    self.next_claim(now, &client_id, pending, out);
                }
            }
        }
    }
}

/// Answers a request of a connection that serves the session no more, as far as anything waits.
fn answer_stale(request: Request, out: &mut ShardOutput) {
    match request {
        Request::Receive { token, .. } => out.acknowledged.push((token, ReasonCode::Success)),
        Request::Released { connection, packet_id, .. } => {
            out.complete(Completion::Complete { connection, packet_id });
        }
        Request::Subscribe { connection, ticket, filters, .. } => {
            let results = filters.iter().map(|_| (ReasonCode::UnspecifiedError, false)).collect();
            out.complete(Completion::Subscribed { connection, ticket, results });
        }
        Request::Unsubscribe { connection, ticket, filters, .. } => {
            let results = filters.iter().map(|_| ReasonCode::UnspecifiedError).collect();
            out.complete(Completion::Unsubscribed { connection, ticket, results });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
