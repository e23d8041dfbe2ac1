//! Requests of the nodes of a cluster: they have numbers, by which the state recognises those that come again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqtt::ReasonCode;
use shard::{Acknowledgement, Command, NodeIncarnation, RequestNumber};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
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
    /// Handles a request of a node of the cluster, like [`Self::apply`].
    pub fn apply_of(
        &mut self,
        now: Time,
        (worker, producer): (WorkerId, Producer),
        Numbered { number, epoch, mut request }: Numbered,
        out: &mut ShardOutput,
    ) {
        self.producers.known.insert(worker, producer);
        if let Request::Claim(claim) = &mut request {
            claim.number = number;
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
            return;
        }
        if let Some(session) = request.of_connection() {
            let live = self.live.get(&session_uid(session));
            if live.is_none_or(|live| live.epoch != epoch) {
                self.replica.counters_mut().stale += 1;
                return answer_stale(request, out);
            }
        }
        // The lowest number of a command is 1.
        self.producers.current = Some(Current { producer, next: number << COMMAND_BITS | 1, epoch });
        self.apply(now, request, out);
        self.producers.current = None;
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
mod tests {
    use shard::Shard;

    use super::*;
    use crate::batch::{SessionDelivery, WorkerCommand};
    use crate::durability::Durability;
    use crate::ids::ShardSet;
    use crate::message::MessageView;
    use crate::node::OwnerKey;
    use crate::peers::LastIncarnation;
    use crate::store::{Attach, Claimed, Follower, HostContext, Release, WillDisposition};
    use mqtt::{PacketId, QoS};

    const NOW: Time = Time(1_000);
    /// Lanes of a worker of node 1 and one of node 2.
    const FIRST: (WorkerId, Producer) = (WorkerId(10), producer(1));
    const SECOND: (WorkerId, Producer) = (WorkerId(11), producer(2));

    const fn producer(node: u64) -> Producer {
        Producer { owner: NodeIncarnation { node, incarnation: 7 }, lane: 3 }
    }

    fn host_of(state: Shard) -> ShardHost {
        let key = [7; 16];
        let index = routing::Index::new(key, routing::IndexLimits::default());
        let node_routes = Arc::new(crate::Routes::new(index, [7; 16], true));
        let (settings, load, counters) = Default::default();
        let context = HostContext { settings, node_routes, load, hash_key: key, counters };
        Follower::open(state, None, None, context).into_host()
    }

    /// A host in a cluster that keeps ephemeral sessions.
    fn keeping(state: Shard) -> ShardHost {
        let host = host_of(state);
        host.load.keeps_ephemeral.store(true, std::sync::atomic::Ordering::Relaxed);
        host
    }

    fn ephemeral_claim(of: (WorkerId, Producer)) -> Request {
        let Request::Claim(claim) = claim(of) else { unreachable!("a Claim") };
        Request::Claim(Box::new(Claim { expiry: 0, clean_start: true, ..*claim }))
    }

    fn is_kept(completions: &[Completion]) -> bool {
        matches!(completions, [Completion::Claimed(claimed)] if claimed.is_kept())
    }

    fn is_revoked(completions: &[Completion], of: (WorkerId, Producer)) -> bool {
        matches!(completions, [Completion::Revoke { connection: revoked }] if *revoked == connection(of))
    }

    fn connection((worker, _): (WorkerId, Producer)) -> ConnectionId {
        ConnectionId { worker, slot: 5, generation: 1 }
    }

    fn claim(of: (WorkerId, Producer)) -> Request {
        Request::Claim(Box::new(Claim {
            client_id: "c".into(),
            connection: connection(of),
            user: OwnerKey::NOBODY,
            payers: Default::default(),
            clean_start: false,
            expiry: 60,
            window: 10,
            will: None,
            number: 0,
        }))
    }

    fn release(of: (WorkerId, Producer)) -> Request {
        Request::Release(Box::new(Release {
            client_id: "c".into(),
            connection: connection(of),
            expiry: None,
            will: WillDisposition::Discard,
            will_owner: None,
            dispatched: None,
            known_to: ShardSet::EMPTY,
        }))
    }

    /// Completions after a request.
    fn apply(
        host: &mut ShardHost,
        of: (WorkerId, Producer),
        number: u64,
        request: Request,
    ) -> Vec<Completion> {
        let mut out = ShardOutput::default();
        host.apply_of(NOW, of, Numbered { number, epoch: 0, request }, &mut out);
        completions(out)
    }

    fn completions(out: ShardOutput) -> Vec<Completion> {
        let commands = out.commands.into_iter();
        let of = |(_, command)| match command {
            WorkerCommand::Completion(completion) => Some(completion),
            _ => None,
        };
        commands.filter_map(of).collect()
    }

    fn report(host: &mut ShardHost, of: (WorkerId, Producer)) -> Vec<Completion> {
        let mut out = ShardOutput::default();
        host.worker_reported(NOW, of, &mut out);
        host.apply_at_once(NOW, &mut out);
        completions(out)
    }

    /// A host whose shard has a session of the first node's connection, which an earlier leader has served.
    fn next_leader() -> (ShardHost, Claimed) {
        let mut host = host_of(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        let completions = apply(&mut host, FIRST, 1, claim(FIRST));
        let [Completion::Claimed(claimed)] = &completions[..] else { panic!("{completions:?}") };
        let claimed = Claimed { resume: None, ..*claimed };
        (host_of(host.replica.into_state()), claimed)
    }

    fn attach(claimed: &Claimed) -> Request {
        Request::Attach(Box::new(Attach {
            client_id: "c".into(),
            session: claimed.session.expect("a durable session"),
            epoch: claimed.epoch,
            connection: connection(FIRST),
            user: OwnerKey::NOBODY,
            payers: Default::default(),
            window: 10,
            last: None,
            known_to: ShardSet::EMPTY,
        }))
    }

    #[test]
    fn a_claim_waits_for_an_owner_that_the_new_leader_does_not_know() {
        let (mut host, claimed) = next_leader();
        report(&mut host, SECOND);
        assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty(), "the owner may be alive");
        assert!(apply(&mut host, FIRST, 0, attach(&claimed)).is_empty());
        let revoked = report(&mut host, FIRST);
        assert!(
            matches!(revoked[..], [Completion::Revoke { connection: of }] if of == connection(FIRST)),
            "[MQTT-3.1.4-3]: {revoked:?}"
        );
        let completions = apply(&mut host, FIRST, 2, release(FIRST));
        assert!(matches!(&completions[..], [Completion::Claimed(claimed)] if claimed.session_present));
        host.check_invariants();
    }

    /// Otherwise an operator would read that the client is offline.
    #[test]
    fn a_session_may_have_an_owner_until_its_node_has_reported_or_ended() {
        let (mut host, claimed) = next_leader();
        assert!(host.may_have_unreported_owner("c") && !host.may_have_unreported_owner("other"));
        apply(&mut host, FIRST, 0, attach(&claimed));
        assert!(!host.may_have_unreported_owner("c"), "it is known");
        let (mut host, _) = next_leader();
        report(&mut host, SECOND);
        assert!(host.may_have_unreported_owner("c"));
        report(&mut host, FIRST);
        assert!(!host.may_have_unreported_owner("c"));
        let (mut host, _) = next_leader();
        set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
        assert!(!host.may_have_unreported_owner("c"));
    }

    #[test]
    fn a_claim_goes_on_when_the_owner_is_not_reported_or_its_node_has_ended() {
        let (mut host, _) = next_leader();
        report(&mut host, SECOND);
        assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty());
        let claimed = report(&mut host, FIRST);
        assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session_present));

        let (mut host, _) = next_leader();
        report(&mut host, SECOND);
        assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty());
        let claimed = set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
        assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session_present));
        host.check_invariants();
    }

    /// [MQTT-3.1.4-3]. The host does not remember the owner, so it does not matter which leader has accepted its Claim.
    #[test]
    fn the_owner_of_an_ephemeral_session_is_closed_by_any_leader() {
        for is_next_leader in [false, true] {
            let mut host = keeping(Shard::new(0, [7; 16]));
            report(&mut host, FIRST);
            assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))));
            assert_eq!(host.clients.len(), 0, "only the state remembers it");
            assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(FIRST)));
            if is_next_leader {
                host = keeping(host.replica.into_state());
                report(&mut host, SECOND);
                assert!(
                    apply(&mut host, SECOND, 1, ephemeral_claim(SECOND)).is_empty(),
                    "the owner may be alive"
                );
                assert!(is_revoked(&report(&mut host, FIRST), FIRST));
            } else {
                report(&mut host, SECOND);
                assert!(is_revoked(&apply(&mut host, SECOND, 1, ephemeral_claim(SECOND)), FIRST));
            }
            host.check_invariants();
            assert!(is_kept(&apply(&mut host, FIRST, 2, release(FIRST))));
            assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty(), "it comes again");
            assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(SECOND)));
            apply(&mut host, SECOND, 2, release(SECOND));
            host.check_invariants();
            host.check_quiet();
            assert!(host.replica.state().ephemeral_of("c").is_none());
        }
    }

    /// The worker sends both Claims in one frame, before it has reported to the new leader.
    #[test]
    fn a_claim_that_comes_again_waits_for_nobody_and_holds_nobody_up() {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
        let mut host = keeping(host.replica.into_state());
        assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))), "the answer was lost");
        let other = ConnectionId { slot: 6, ..connection(FIRST) };
        let Request::Claim(claim) = ephemeral_claim(FIRST) else { unreachable!("a Claim") };
        let again = Request::Claim(Box::new(Claim { connection: other, ..*claim }));
        assert!(apply(&mut host, FIRST, 2, again).is_empty());
        assert!(is_revoked(&report(&mut host, FIRST), FIRST));
        let claimed = apply(&mut host, FIRST, 3, release(FIRST));
        assert!(matches!(&claimed[..], [Completion::Claimed(of)] if of.is_kept() && of.connection == other));
        host.check_invariants();
    }

    /// The connection of the first Claim has ended, and its worker does not know yet that its Release is committed.
    #[test]
    fn a_claim_that_comes_again_closes_no_later_connection() {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        report(&mut host, SECOND);
        apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
        apply(&mut host, FIRST, 2, release(FIRST));
        assert!(is_kept(&apply(&mut host, SECOND, 1, ephemeral_claim(SECOND))));
        let mut host = keeping(host.replica.into_state());
        report(&mut host, SECOND);
        let revoked = apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
        assert!(is_revoked(&revoked, FIRST), "the shard has had its Will: {revoked:?}");
        assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty());
        assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(SECOND)));
        host.check_invariants();
    }

    #[test]
    fn an_ephemeral_claim_that_comes_again_does_not_close_its_own_connection() {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))));
        let mut host = keeping(host.replica.into_state());
        report(&mut host, FIRST);
        assert!(is_kept(&apply(&mut host, FIRST, 1, ephemeral_claim(FIRST))), "the answer was lost");
        // The connection was closed before the answer came.
        apply(&mut host, FIRST, 2, release(FIRST));
        assert!(host.replica.state().ephemeral_of("c").is_none());
        host.check_quiet();
    }

    #[test]
    fn a_client_of_a_node_that_is_gone_is_claimed_by_another_one() {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        apply(&mut host, FIRST, 1, ephemeral_claim(FIRST));
        host.forget_worker(NOW, FIRST.0, &mut ShardOutput::default());
        report(&mut host, SECOND);
        assert!(apply(&mut host, SECOND, 1, ephemeral_claim(SECOND)).is_empty(), "it may come back");
        let claimed = set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
        assert!(is_kept(&claimed), "{claimed:?}");
        host.check_invariants();
        // A durable session takes the place of the ephemeral one.
        let third = (WorkerId(12), Producer { lane: 4, ..SECOND.1 });
        report(&mut host, third);
        assert!(is_revoked(&apply(&mut host, third, 1, claim(third)), SECOND));
        let claimed = apply(&mut host, SECOND, 2, release(SECOND));
        assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session.is_some()));
        host.check_invariants();
    }

    /// Proposes a claim that is not applied yet. Its worker is gone then.
    fn lose_a_claim(host: &mut ShardHost, request: Request) {
        let Request::Claim(mut claim) = request else { unreachable!("a Claim") };
        claim.number = 1;
        let mut out = ShardOutput::default();
        host.claim(NOW, claim, &mut out);
        host.forget_worker(NOW, FIRST.0, &mut out);
        assert!(completions(out).is_empty());
    }

    /// Completions of a request while the commands in progress are not applied.
    fn ask(host: &mut ShardHost, of: (WorkerId, Producer), request: Request) -> Vec<Completion> {
        let Request::Claim(mut claim) = request else { unreachable!("a Claim") };
        claim.number = 1;
        host.producers.known.insert(of.0, of.1);
        let mut out = ShardOutput::default();
        host.claim(NOW, claim, &mut out);
        completions(out)
    }

    fn commit(host: &mut ShardHost) -> Vec<Completion> {
        let mut out = ShardOutput::default();
        host.apply_at_once(NOW, &mut out);
        completions(out)
    }

    /// [MQTT-3.1.4-3]. The state does not name the connection of the first claim while the second one comes.
    #[test]
    fn a_claim_waits_for_one_in_progress_whose_worker_is_gone() {
        for request in [claim, ephemeral_claim] {
            let mut host = keeping(Shard::new(0, [7; 16]));
            report(&mut host, FIRST);
            report(&mut host, SECOND);
            lose_a_claim(&mut host, request(FIRST));
            assert!(ask(&mut host, SECOND, request(SECOND)).is_empty());
            host.check_invariants();
            assert!(commit(&mut host).is_empty(), "the first one is an owner that may report");
            host.check_invariants();
            let claimed = set_members(&mut host, &[(1, 7, true), (2, 7, false)]);
            let [Completion::Claimed(claimed)] = &claimed[..] else { panic!("{claimed:?}") };
            assert_eq!(claimed.connection, connection(SECOND));
            host.check_invariants();
        }
    }

    /// The command in progress answers the claim that comes again.
    #[test]
    fn a_claim_in_progress_that_comes_again_in_the_next_round_is_answered_once() {
        let again = (WorkerId(12), FIRST.1);
        for request in [claim, ephemeral_claim] {
            let mut host = keeping(Shard::new(0, [7; 16]));
            report(&mut host, FIRST);
            lose_a_claim(&mut host, request(FIRST));
            assert!(ask(&mut host, again, request(again)).is_empty());
            let claimed = commit(&mut host);
            let [Completion::Claimed(claimed)] = &claimed[..] else { panic!("{claimed:?}") };
            assert_eq!(claimed.connection, connection(again));
            report(&mut host, again);
            assert_eq!(host.locate("c").and_then(|located| located.owner), Some(connection(again)));
            host.check_invariants();
        }
    }

    #[test]
    fn a_claim_in_progress_that_comes_again_is_closed_for_the_one_that_waits() {
        let again = (WorkerId(12), FIRST.1);
        for request in [claim, ephemeral_claim] {
            let mut host = keeping(Shard::new(0, [7; 16]));
            report(&mut host, FIRST);
            report(&mut host, SECOND);
            lose_a_claim(&mut host, request(FIRST));
            assert!(ask(&mut host, SECOND, request(SECOND)).is_empty());
            assert!(is_revoked(&ask(&mut host, again, request(again)), again));
            host.check_invariants();
            // Its worker closes it before the claim is applied.
            let Request::Release(release) = release(again) else { unreachable!("a Release") };
            host.release(NOW, *release, &mut ShardOutput::default());
            let completions = commit(&mut host);
            let claimed: Vec<_> = completions
                .iter()
                .filter_map(|completion| match completion {
                    Completion::Claimed(claimed) => Some(claimed.connection),
                    _ => None,
                })
                .collect();
            assert_eq!(claimed, [connection(again), connection(SECOND)]);
            host.check_invariants();
        }
    }

    /// A claim of another user waits for no adopted claim: it is refused at once.
    #[test]
    fn a_claim_in_progress_whose_worker_is_gone_belongs_to_its_user() {
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        report(&mut host, SECOND);
        lose_a_claim(&mut host, of_user(ephemeral_claim(FIRST), "alice"));
        let refused = ask(&mut host, SECOND, of_user(ephemeral_claim(SECOND), "bob"));
        let reason = ReasonCode::ClientIdentifierNotValid;
        assert!(matches!(refused[..], [Completion::ClaimRefused { reason: of, .. }] if of == reason));
        host.check_invariants();
    }

    fn of_user(request: Request, user: &str) -> Request {
        let Request::Claim(mut claim) = request else { unreachable!("a Claim") };
        claim.user = OwnerKey::of(&[3; 16], "", Some(user));
        Request::Claim(claim)
    }

    /// The session of the claim that was applied has its Will, so that its worker must not publish it.
    #[test]
    fn a_claim_that_was_applied_is_revoked_and_not_refused() {
        let third = (WorkerId(12), producer(3));
        let (mut host, _) = next_leader();
        report(&mut host, SECOND);
        report(&mut host, third);
        assert!(apply(&mut host, FIRST, 1, claim(FIRST)).is_empty(), "it waits for its own report");
        assert!(is_revoked(&apply(&mut host, SECOND, 1, claim(SECOND)), FIRST), "the last one counts");
        let overtaken = apply(&mut host, third, 1, claim(third));
        assert!(
            matches!(overtaken[..], [Completion::ClaimRefused { connection: of, .. }] if of == connection(SECOND))
        );
        let claimed = report(&mut host, FIRST);
        assert!(
            matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.connection == connection(third))
        );
        assert!(
            is_revoked(&apply(&mut host, FIRST, 1, claim(FIRST)), FIRST),
            "another one serves the client"
        );
        host.check_invariants();
    }

    /// Two rounds end one after the other while the claim is in progress.
    #[test]
    fn a_claim_in_progress_is_lost_twice() {
        let again = (WorkerId(12), FIRST.1);
        let mut host = keeping(Shard::new(0, [7; 16]));
        report(&mut host, FIRST);
        lose_a_claim(&mut host, ephemeral_claim(FIRST));
        assert!(ask(&mut host, again, ephemeral_claim(again)).is_empty());
        host.forget_worker(NOW, again.0, &mut ShardOutput::default());
        let third = (WorkerId(13), FIRST.1);
        assert!(ask(&mut host, third, ephemeral_claim(third)).is_empty());
        assert!(is_kept(&commit(&mut host)));
        host.check_invariants();
    }

    /// Completions after a roster with these nodes, their incarnations, and whether they are dead.
    fn set_members(host: &mut ShardHost, members: &[(u64, u64, bool)]) -> Vec<Completion> {
        let members = members.iter().map(|(node, incarnation, is_dead)| {
            (*node, LastIncarnation { incarnation: *incarnation, is_dead: *is_dead })
        });
        let mut out = ShardOutput::default();
        host.set_members(NOW, Arc::new(members.collect()), &mut out);
        host.apply_at_once(NOW, &mut out);
        completions(out)
    }

    /// The node was removed before this host began, so that no roster that it gets names the node.
    #[test]
    fn a_claim_goes_on_when_the_owner_is_absent_in_a_roster_that_is_certainly_new() {
        let (mut host, _) = next_leader();
        set_members(&mut host, &[(2, 7, false)]);
        report(&mut host, SECOND);
        assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty(), "the owner may have joined after it");
        let mut out = ShardOutput::default();
        host.members_settled(NOW, &mut out);
        host.apply_at_once(NOW, &mut out);
        let claimed = completions(out);
        assert!(matches!(&claimed[..], [Completion::Claimed(claimed)] if claimed.session_present));
        host.check_invariants();
    }

    #[test]
    fn an_owner_of_a_later_incarnation_than_the_roster_knows_has_not_ended() {
        let (mut host, _) = next_leader();
        set_members(&mut host, &[(1, 6, true), (2, 7, false)]);
        report(&mut host, SECOND);
        assert!(apply(&mut host, SECOND, 1, claim(SECOND)).is_empty());
        let mut out = ShardOutput::default();
        host.members_settled(NOW, &mut out);
        host.apply_at_once(NOW, &mut out);
        assert!(completions(out).is_empty() && host.ended_by(FIRST.1.owner).is_none());
        assert!(set_members(&mut host, &[(1, 7, false), (2, 7, false)]).is_empty());
        let claimed = set_members(&mut host, &[(1, 8, false), (2, 7, false)]);
        assert!(matches!(&claimed[..], [Completion::Claimed(_)]), "it has started again");
        assert_eq!(host.ended_by(FIRST.1.owner), Some(7), "it can own nothing any more");
        host.check_invariants();
    }

    /// A new host finds in the state which owners are over, without a claim.
    #[test]
    fn a_session_is_released_when_its_owner_is_over_by_the_roster_that_a_new_host_begins_with() {
        let (mut host, claimed) = next_leader();
        let uid = session_uid(claimed.session.expect("a durable session"));
        set_members(&mut host, &[(1, 8, false)]);
        host.tick(NOW, NOW, &mut ShardOutput::default());
        host.apply_at_once(NOW, &mut ShardOutput::default());
        assert!(host.replica.state().session(uid).is_some_and(|session| session.owner_node().is_none()));
    }

    #[test]
    fn a_claim_of_a_worker_that_is_gone_is_not_accepted_later() {
        let (mut host, claimed) = next_leader();
        apply(&mut host, FIRST, 0, attach(&claimed));
        report(&mut host, FIRST);
        report(&mut host, SECOND);
        let revoked = apply(&mut host, SECOND, 1, claim(SECOND));
        assert!(matches!(revoked[..], [Completion::Revoke { .. }]), "{revoked:?}");
        host.forget_worker(NOW, SECOND.0, &mut ShardOutput::default());
        assert!(apply(&mut host, FIRST, 2, release(FIRST)).is_empty(), "nobody waits");
        // It has begun another round and sends the Claim again.
        let again = (WorkerId(12), SECOND.1);
        report(&mut host, again);
        let completions = apply(&mut host, again, 1, claim(again));
        assert!(matches!(&completions[..], [Completion::Claimed(claimed)] if claimed.session_present));
        host.check_invariants();
    }

    /// The shard of the group forgets the identity there when the message is queued.
    /// Deliveries of large messages would not fit a frame together.
    #[test]
    fn large_messages_are_delivered_one_by_one() {
        let view = MessageView {
            topic: "t",
            properties: &[],
            payload: &[0; 600_000],
            qos: QoS::AtLeastOnce,
            retain: false,
            expires: Time::NEVER,
            received: NOW,
            publisher: None,
            publisher_key: 0,
            durability: Durability::LocalDisk,
        };
        let deliveries = |payload: &[u8]| {
            let message = MessageView { payload, ..view }.to_message();
            let delivery = |id| SessionDelivery::Publish {
                packet_id: PacketId::new(id).expect("not 0"),
                qos: QoS::AtLeastOnce,
                dup: false,
                retain: false,
                message: message.clone(),
                subscription_ids: Default::default(),
            };
            let mut out = ShardOutput::default();
            (1..4).for_each(|id| out.deliver(connection(FIRST), delivery(id)));
            completions(out).len()
        };
        assert_eq!([deliveries(view.payload), deliveries(b"small")], [3, 1]);
    }

    /// The number of a request of the host's own memory says nothing to the state.
    #[test]
    fn an_answer_to_an_earlier_host_does_not_reach_another_append() {
        let mut appends = super::super::appends::Appends::new(&foldhash::quality::FixedState::default());
        appends.set_term(7);
        let key = appends.insert(super::super::Waiter::Unsynced(1));
        let mut next = super::super::appends::Appends::new(&foldhash::quality::FixedState::default());
        next.set_term(8);
        next.insert(super::super::Waiter::Unsynced(1));
        assert!(next.one_accepted(key, ReasonCode::Success).is_none() && next.get(key).is_none());
        assert!(appends.one_accepted(key, ReasonCode::Success).is_some());
    }
}
