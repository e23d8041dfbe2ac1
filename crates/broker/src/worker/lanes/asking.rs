//! Requests of this worker to the shards of the cluster, until they are answered.
//!
//! A request stays here until the shard has committed it, or has answered it. When the shard gets another leader, or
//! the link to it was down, a new round begins: the worker reports its connections to the leader and sends everything
//! again that is not answered, in order. The shard recognises what it has applied already, by the numbers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mqtt::{PacketId, QoS};
use shard::{Mutation, NodeIncarnation, mutated};

use super::frame::{self, Flags, Item, Received, RequestItems};
use crate::batch::{Claimed, SessionDelivery, Token};
use crate::ids::{ConnectionId, SessionId, ShardId, ShardSet, Ticket, Time, WorkerId};
use crate::message::Message;
use crate::node::OwnerKey;
use crate::peers::Leader;
use crate::quota::Payers;
use crate::store::wire::encode_request;
use crate::store::{Attach, Claim, Completion, Release, Request, SHARDS, WillDisposition};

/// Requests of one worker to all shards.
pub(super) struct Asking {
    own: NodeIncarnation,
    worker: WorkerId,
    lanes: Vec<Lane>,
    /// Maximum number of unanswered Claims to one shard. It remembers the results of the last ones of all workers of
    /// this node.
    claims_max: usize,
    /// Shards with frames to send.
    changed: ShardSet,
    /// Shards that have got messages of a connection, while it is open.
    published: BTreeMap<(u32, u32), ShardSet>,
    /// Ends of connections that wait until their messages have arrived at the shards, or never will.
    closing: Vec<Closing>,
    /// QoS 2 exchanges whose message shards were asked to forget, with the number of those that may not have done so.
    forgetting: BTreeMap<Exchange, u32>,
    /// Requests that end such exchanges, and later ones for the same Packet Identifier. They wait for the shards.
    held: BTreeMap<Exchange, Vec<(ShardId, Request)>>,
    /// Requests that have waited long enough, for this turn.
    ready: Vec<(ShardId, Request)>,
    /// Maximum length of a request.
    request_max: usize,
    scratch: Vec<u8>,
}

/// A QoS 2 exchange of a session: the session as the origin of messages, and the Packet Identifier.
type Exchange = (u64, u16);

/// The end of a connection.
struct Closing {
    shard: ShardId,
    release: Request,
    /// Shards that may get messages of the connection, with the round and the number of the last message.
    on_the_way: Vec<(ShardId, u32, u64)>,
}

/// Requests to one shard.
#[derive(Default)]
struct Lane {
    /// Leader to which this round's requests go; `None` while it is unknown, or may have lost some.
    leader: Option<Leader>,
    /// Greatest term of a leader that is known. One of an earlier term has an old state, even if this worker can reach
    /// no later one.
    term: u64,
    round: u32,
    /// Number of the last request.
    last: u64,
    /// Requests that are not answered, in the order of their numbers.
    unanswered: VecDeque<Unanswered>,
    /// Bytes of these requests.
    bytes: usize,
    /// Requests up to this number are committed.
    settled: u64,
    /// Requests up to this number have arrived at a leader of this round or an earlier one, or will never arrive.
    arrived: u64,
    /// The next frame asks what has arrived.
    wants_receipt: bool,
    /// Number of the last request that was sent in any round, and in this one.
    sent: u64,
    sent_in_round: u64,
    /// Bytes that were sent in this round and may not have arrived.
    flying: usize,
    /// Parts of them, with the last item of each and their bytes. A receipt is wanted for each.
    portions: VecDeque<(Received, usize)>,
    /// Bytes that were sent after the last portion.
    portion: usize,
    /// Last round in which the leader has sent something. Whatever was sent in earlier rounds has arrived before it,
    /// or never will.
    answered_round: u32,
    /// Claims of connections that are closed. They may be sent again until their Releases are committed.
    released: Vec<Released>,
    /// Number of unanswered Claims of connections that are open.
    claims: usize,
    /// Length of `unanswered` after those that are answered were last removed.
    compacted: usize,
    /// Numbers of requests to forget messages of clients that may not be committed, in their order.
    forgets: VecDeque<(u64, Exchange)>,
    /// Numbers of requests that a completion answers, by the slot and the generation of their connections.
    awaited: BTreeSet<((u32, u32), Awaited, u64)>,
    /// Connections that the shard serves.
    attached: BTreeMap<(u32, u32), Attached>,
    /// Epochs of their sessions, by slot and generation.
    epochs: BTreeMap<(u32, u32), u32>,
    /// Items of this turn's frames.
    out: Vec<RequestItems>,
    /// First connection that is not reported in this round; `None` when all are. Requests wait for that.
    unreported: Option<(u32, u32)>,
    /// Number of connections that were reported in this round.
    reported: u64,
    /// Number of the frame of this turn that reports the last connection; 0 if none does.
    attaching: usize,
    /// No frame of the round was sent.
    is_first: bool,
}

struct Unanswered {
    number: u64,
    epoch: u32,
    encoded: Time,
    /// Empty when nothing has to be sent again.
    bytes: Box<[u8]>,
    token: Option<Token>,
    if_restarted: IfRestarted,
    /// Connection that claims.
    claim: Option<Box<Claiming>>,
    /// Exchange whose message is to be forgotten.
    forgets: Option<Exchange>,
    /// The request has an answer of its own, which may come long after it is committed.
    has_answer: bool,
    /// True when it is answered, or its connection is closed. It is not sent again.
    is_done: bool,
}

/// Fate of a request when this node goes on in another incarnation. A shard does not recognise what it has applied for
/// the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfRestarted {
    /// The request belongs to a connection, which is closed.
    Drop,
    /// The request is sent again: nothing differs, or a message of QoS 1 comes twice.
    Repeat,
    /// The request is dropped if it was sent: a message of QoS 0 or 2 must not come twice.
    Once,
}

impl IfRestarted {
    fn of(request: &Request) -> Self {
        let of_connection = request.of_connection().is_some();
        let of_publisher = matches!(request.token(), Some(Token::Publish { .. }));
        if of_connection || of_publisher {
            return Self::Drop;
        }
        let once = |is_repeatable: bool| if is_repeatable { Self::Repeat } else { Self::Once };
        match request {
            Request::Claim(_)
            | Request::Release(_)
            | Request::AskRoomForPage { .. }
            | Request::AskRoomToRetain { .. } => Self::Drop,
            // The client may use the identity for another message, on its next connection.
            Request::ForgetIdentity { identity } if identity.exchange().is_some() => Self::Drop,
            // Shards recognise a message with an identity in any incarnation.
            Request::Append { message, identity, .. } => {
                once(identity.is_some() || message.view().qos == QoS::AtLeastOnce)
            }
            Request::EnqueueToGroup(enqueue) => {
                once(enqueue.identity.is_some() || enqueue.message.view().qos == QoS::AtLeastOnce)
            }
            Request::Enqueue { entries, group, .. } => {
                let has_identity = group.as_ref().is_some_and(|group| group.identity.is_some());
                once(has_identity || entries.iter().all(|entry| entry.qos == QoS::AtLeastOnce))
            }
            _ => Self::Repeat,
        }
    }
}

/// Completion that answers a request.
///
/// It ends the request. The report that the request is committed may come later, or never, if the leader changes. A
/// second answer would be taken for that of a later request with the same Packet Identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Awaited {
    Claim,
    RoomForPage,
    RoomToRetain,
    Subscribed(Ticket),
    Unsubscribed(Ticket),
    Complete(PacketId),
}

impl Awaited {
    /// Returns the answer that a request waits for, and its connection.
    fn of(request: &Request) -> Option<(ConnectionId, Self)> {
        Some(match request {
            Request::Claim(claim) => (claim.connection, Self::Claim),
            Request::Enqueue { page: Some(page), .. } => (page.connection, Self::RoomForPage),
            Request::AskRoomForPage { connection, .. } => (*connection, Self::RoomForPage),
            Request::AskRoomToRetain { connection, .. } => (*connection, Self::RoomToRetain),
            Request::Subscribe { connection, ticket, .. } => (*connection, Self::Subscribed(*ticket)),
            Request::Unsubscribe { connection, ticket, .. } => (*connection, Self::Unsubscribed(*ticket)),
            Request::Released { connection, packet_id, .. } => (*connection, Self::Complete(*packet_id)),
            _ => return None,
        })
    }

    /// Returns the answer that a completion is.
    fn by(completion: &Completion) -> Option<Self> {
        Some(match completion {
            Completion::Claimed(_) | Completion::ClaimRefused { .. } => Self::Claim,
            Completion::RoomForPage { .. } => Self::RoomForPage,
            Completion::RoomToRetain { .. } => Self::RoomToRetain,
            Completion::Subscribed { ticket, .. } => Self::Subscribed(*ticket),
            Completion::Unsubscribed { ticket, .. } => Self::Unsubscribed(*ticket),
            Completion::Complete { packet_id, .. } => Self::Complete(*packet_id),
            Completion::Revoke { .. }
            | Completion::QueueFull { .. }
            | Completion::Deliver { .. }
            | Completion::Release { .. }
            | Completion::WrongAcknowledgement { .. } => return None,
        })
    }
}

/// The Claim of a connection that was closed before the answer.
struct Released {
    /// Number of the Claim.
    claim: u64,
    /// Number of the Release.
    release: u64,
    connection: ConnectionId,
    /// Will that this worker publishes if the Claim is refused. Otherwise the shard has it.
    will: Option<ClosedWill>,
}

impl Released {
    /// Bytes of the Will, which count as those of a request: a client can leave one with each connection.
    fn will_bytes(&self) -> usize {
        self.will.as_ref().map_or(0, |(will, _)| will.size())
    }
}

/// The Will of a closed connection, and who pays for it.
pub(super) type ClosedWill = (Message, Payers);

struct Claiming {
    client_id: Arc<str>,
    user: OwnerKey,
    window: u16,
}

/// A connection with a session of the shard.
struct Attached {
    claiming: Claiming,
    session: SessionId,
    epoch: u32,
    /// Last delivery that came over it.
    last: Option<PacketId>,
}

/// Frames of one turn to a shard.
pub(super) struct ToLeader {
    pub node: u64,
    pub shard: ShardId,
    pub bytes: Vec<u8>,
}

/// Bytes for one shard that may be on the way at once, unless one request is larger. A link has room for those of many
/// shards, so that a new round with many connections and requests gets on.
const FLYING_MAX: usize = 1024 * 1024;
/// Memory of a request in addition to its bytes.
const REQUEST: usize = 96;

impl Asking {
    pub fn new(own: NodeIncarnation, worker: WorkerId, workers: u16) -> Self {
        let lanes = (0..SHARDS).map(|_| Lane::default()).collect();
        Self {
            own,
            worker,
            lanes,
            claims_max: (shard::CLAIMS_MAX / usize::from(workers.max(1))).max(1),
            changed: ShardSet::EMPTY,
            published: BTreeMap::new(),
            closing: Vec::new(),
            forgetting: BTreeMap::new(),
            held: BTreeMap::new(),
            ready: Vec::new(),
            request_max: frame::REQUEST_MAX,
            scratch: Vec::new(),
        }
    }

    /// Bytes of the requests that are not answered.
    pub fn bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }

    /// Bytes of unanswered requests to one shard.
    #[cfg(test)]
    pub fn bytes_for(&self, shard: ShardId) -> usize {
        self.lanes[shard.index()].bytes
    }

    /// Shards with more bytes of requests that are not answered than are left of `max`, which is for all shards. So one
    /// shard takes half of it at most, several ones leave something to others, and one that answers has its requests.
    pub fn full(&self, max: u64) -> ShardSet {
        let left = max.saturating_sub(self.bytes() as u64);
        let lanes = self.lanes.iter().zip(0..);
        lanes.filter(|(lane, _)| lane.bytes as u64 > left).map(|(_, shard)| ShardId(shard)).collect()
    }

    /// Shards without a leader that this worker can ask.
    pub fn without_leader(&self) -> ShardSet {
        let lanes = self.lanes.iter().zip(0..);
        lanes.filter(|(lane, _)| lane.leader.is_none()).map(|(_, shard)| ShardId(shard)).collect()
    }

    /// Node that this worker asks: the leader of the shard, unless it is unknown or its link is down.
    pub fn leader(&self, shard: ShardId) -> Option<u64> {
        self.lanes.get(shard.index())?.leader.map(|leader| leader.node)
    }

    /// Returns the session that a connection owns, and the epoch, if its shard serves it.
    pub fn owned_session(&self, connection: ConnectionId, session: SessionId) -> Option<(SessionId, u32)> {
        let lane = self.lanes.get(session.shard.index())?;
        let attached = lane.attached.get(&(connection.slot, connection.generation))?;
        Some((attached.session, attached.epoch))
    }

    /// Queues a request. Returns its token if it cannot be sent to another node.
    pub fn request(&mut self, now: Time, shard: ShardId, mut request: Request) -> Option<Token> {
        self.send_ready(now);
        if let Request::Release(release) = &mut request {
            if release.will == WillDisposition::Discard
                && self.lanes[shard.index()].withdraw(release.connection)
            {
                return None;
            }
            let on_the_way = self.give_up(shard, release);
            if !on_the_way.is_empty() {
                self.closing.push(Closing { shard, release: request, on_the_way });
                return None;
            }
        }
        if let Some(exchange) = self.exchange_to_end(&request) {
            self.held.entry(exchange).or_default().push((shard, request));
            return None;
        }
        self.send(now, shard, &request)
    }

    /// Returns the exchange that a request ends, if it has to wait: a shard may still know the message.
    ///
    /// The session has one bit for each Packet Identifier, so every second message has the same identity. A shard
    /// that knows the identity would take the message after the next for this one. The end of the exchange lets the
    /// client use the Packet Identifier again. So it comes when all shards have forgotten. It cannot happen that the
    /// request to forget is lost with this node and the end is not.
    fn exchange_to_end(&self, request: &Request) -> Option<Exchange> {
        let (Request::Released { session, packet_id, .. }
        | Request::Forget { session, packet_id, .. }
        | Request::Receive { session, packet_id, .. }) = request
        else {
            return None;
        };
        let exchange = (session.origin(), packet_id.get());
        let is_end = !matches!(request, Request::Receive { .. });
        let waits = is_end && self.forgetting.contains_key(&exchange) && !mutated(Mutation::ReleaseKnown);
        // The requests for one Packet Identifier keep their order, whatever the client sends.
        (waits || self.held.contains_key(&exchange)).then_some(exchange)
    }

    /// Gives up the messages of a connection that is closed: its client sends them again if it wants to. The same holds
    /// for requests to forget such messages. Returns those that may be on the way. The session is released when they
    /// have arrived, or never will. Then they are in the log of their shard before anything that another connection of
    /// the client sends. `home` is the shard of the session.
    fn give_up(&mut self, home: ShardId, release: &mut Release) -> Vec<(ShardId, u32, u64)> {
        let connection = release.connection;
        let key = (connection.slot, connection.generation);
        let mut shards = self.published.remove(&key).unwrap_or_default();
        let attached = self.lanes[home.index()].attached.get(&key);
        let origin = attached.map(|attached| attached.session.origin());
        if let Some(origin) = origin {
            let have_not_forgotten = self.give_up_exchanges(origin);
            release.known_to |= have_not_forgotten;
            shards |= have_not_forgotten;
        }
        let is_of = |token, forgets: Option<Exchange>| {
            matches!(token, Some(Token::Publish { connection: of, .. }) if of == connection)
                || forgets.is_some_and(|(of, _)| Some(of) == origin)
        };
        let mut on_the_way = Vec::new();
        for shard in shards.iter() {
            let lane = &mut self.lanes[shard.index()];
            let mut last = None;
            for unanswered in lane.unanswered.iter_mut().filter(|unanswered| !unanswered.is_done) {
                if is_of(unanswered.token, unanswered.forgets) {
                    last = Some(unanswered.number).filter(|number| *number <= lane.sent).or(last);
                    lane.bytes -= unanswered.done();
                }
            }
            lane.drop_done();
            let Some(number) = last else { continue };
            // What was sent in an earlier round may still be in the link.
            let is_of_round = number <= lane.sent_in_round;
            let round = if is_of_round { lane.round } else { lane.round.wrapping_sub(1) };
            if !lane.has_arrived(round, number) {
                on_the_way.push((shard, round, number));
                lane.wants_receipt = true;
                self.changed.insert(shard);
            }
        }
        on_the_way
    }

    /// Drops the ends of exchanges of a session that wait. Its client asks for them again. Returns the shards that may
    /// not have forgotten messages of the session.
    fn give_up_exchanges(&mut self, origin: u64) -> ShardSet {
        let all = (origin, 0)..=(origin, u16::MAX);
        self.held.extract_if(all.clone(), |_, _| true).for_each(drop);
        self.ready.retain(|(_, request)| match request {
            Request::Released { session, .. } | Request::Forget { session, .. } => session.origin() != origin,
            _ => true,
        });
        if self.forgetting.extract_if(all, |_, _| true).count() == 0 {
            return ShardSet::EMPTY;
        }
        let mut shards = ShardSet::EMPTY;
        for (lane, index) in self.lanes.iter_mut().zip(0..) {
            let before = lane.forgets.len();
            lane.forgets.retain(|(_, (of, _))| *of != origin);
            if lane.forgets.len() < before {
                shards.insert(ShardId(index));
            }
        }
        shards
    }

    /// Sends what has waited: ends of exchanges that all shards have forgotten, and Releases of closed connections
    /// whose messages have arrived, or never will.
    pub fn send_held(&mut self, now: Time) {
        self.send_ready(now);
        if self.closing.is_empty() {
            return;
        }
        let Self { lanes, closing, .. } = self;
        for Closing { on_the_way, .. } in closing.iter_mut() {
            on_the_way.retain(|(shard, round, number)| !lanes[shard.index()].has_arrived(*round, *number));
        }
        let ready: Vec<_> = closing.extract_if(.., |closing| closing.on_the_way.is_empty()).collect();
        for Closing { shard, release, .. } in ready {
            self.send(now, shard, &release);
        }
    }

    fn send_ready(&mut self, now: Time) {
        for (shard, request) in std::mem::take(&mut self.ready) {
            // It is a few bytes long, so a link takes it.
            self.send(now, shard, &request);
        }
    }

    fn send(&mut self, now: Time, shard: ShardId, request: &Request) -> Option<Token> {
        let token = request.token();
        // A shared group also sends messages of connections of other workers.
        if let Some(Token::Publish { connection, .. }) = token
            && connection.worker == self.worker
        {
            self.published.entry((connection.slot, connection.generation)).or_default().insert(shard);
        }
        let lane = &mut self.lanes[shard.index()];
        self.scratch.clear();
        encode_request(request, now, &mut self.scratch);
        if self.scratch.len() > self.request_max {
            // No link takes it, so it would be repeated for ever.
            tracing::error!(
                bytes = self.scratch.len(),
                "request to a shard refused: it is too large for a link"
            );
            return token;
        }
        lane.last += 1;
        let number = lane.last;
        let session = request.of_connection().map(|session| (session.slot, session.generation));
        let epoch = session.and_then(|session| lane.epochs.get(&session).copied()).unwrap_or(0);
        let mut claim = None;
        let awaited = Awaited::of(request);
        if let Some((connection, awaited)) = awaited {
            lane.awaited.insert(((connection.slot, connection.generation), awaited, number));
        }
        let mut has_answer = token.is_some() || awaited.is_some();
        let mut forgets = None;
        match request {
            // The token is completed when the request is committed.
            Request::Forget { .. } => has_answer = false,
            Request::ForgetIdentity { identity } => forgets = identity.exchange(),
            Request::Claim(of) => {
                let Claim { client_id, user, window, .. } = &**of;
                let (client_id, user, window) = (client_id.clone(), *user, *window);
                claim = Some(Box::new(Claiming { client_id, user, window }));
                lane.claims += 1;
            }
            Request::Release(release) => lane.detach(release.connection, number),
            _ => {}
        }
        if let Some(exchange) = forgets {
            lane.forgets.push_back((number, exchange));
            *self.forgetting.entry(exchange).or_default() += 1;
        }
        let bytes: Box<[u8]> = self.scratch.as_slice().into();
        lane.bytes += bytes.len() + REQUEST;
        let unanswered = Unanswered {
            number,
            epoch,
            encoded: now,
            bytes,
            token,
            if_restarted: IfRestarted::of(request),
            claim,
            forgets,
            has_answer,
            is_done: false,
        };
        lane.unanswered.push_back(unanswered);
        if lane.leader.is_some() {
            self.changed.insert(shard);
        }
        None
    }

    /// Begins a round with a leader, which may be the one of the last round: it is announced again when what it had
    /// sent may be lost. Does nothing if a later one is known.
    pub fn begin(&mut self, shard: ShardId, leader: Leader) {
        let Some(lane) = self.lanes.get_mut(shard.index()) else { return };
        if leader.term < lane.term {
            return;
        }
        (lane.leader, lane.term) = (Some(leader), leader.term);
        lane.round = lane.round.wrapping_add(1);
        (lane.sent_in_round, lane.flying, lane.portion) = (0, 0, 0);
        lane.portions.clear();
        lane.out.clear();
        lane.is_first = true;
        // What the last round has asked for may be lost.
        let waits = |closing: &Closing| closing.on_the_way.iter().any(|(of, ..)| *of == shard);
        lane.wants_receipt |= self.closing.iter().any(waits);
        // The first frame is sent even if it is empty.
        lane.out.push(RequestItems::new());
        (lane.unreported, lane.reported, lane.attaching) = (Some((0, 0)), 0, 0);
        if mutated(Mutation::ForgetUnanswered) {
            lane.sent_in_round = lane.last;
        }
        self.changed.insert(shard);
    }

    /// Goes on in another incarnation of this node, whose connections are closed. Rounds begin again when the leaders
    /// are announced again. Returns the tokens of requests whose result stays unknown.
    pub fn restart(&mut self, incarnation: u64) -> Vec<Token> {
        let Self { own, lanes, published, closing, forgetting, held, ready, .. } = self;
        own.incarnation = incarnation;
        published.clear();
        closing.clear();
        forgetting.clear();
        held.clear();
        ready.clear();
        let mut unknown = Vec::new();
        for lane in lanes {
            lane.stop();
            for unanswered in lane.unanswered.iter_mut().filter(|unanswered| !unanswered.is_done) {
                let is_kept = match unanswered.if_restarted {
                    IfRestarted::Drop => false,
                    IfRestarted::Repeat => true,
                    IfRestarted::Once => unanswered.number > lane.sent,
                };
                if is_kept {
                    continue;
                }
                if unanswered.if_restarted == IfRestarted::Once {
                    unknown.extend(unanswered.token.take());
                }
                lane.bytes -= unanswered.done();
            }
            lane.drop_done();
            lane.claims = 0;
            lane.bytes -= lane.released.drain(..).map(|released| released.will_bytes()).sum::<usize>();
            lane.forgets.clear();
            lane.awaited.clear();
            lane.attached.clear();
            lane.epochs.clear();
        }
        unknown
    }

    /// Handles that the link to a node is down: what was sent to it may be lost.
    pub fn link_lost(&mut self, node: u64) {
        let lost = |lane: &Lane| lane.leader.is_some_and(|leader| leader.node == node);
        self.lanes.iter_mut().filter(|lane| lost(lane)).for_each(Lane::stop);
    }

    /// Handles that a node does not lead the shard, or does not know the round. `term` is the one in which it leads.
    pub fn not_leading(&mut self, shard: ShardId, (node, round): (u64, u32), term: u64) {
        let Some(lane) = self.lanes.get_mut(shard.index()) else { return };
        if !lane.is_from_leader(node, round) {
            return;
        }
        lane.stop();
        if term > 0 {
            self.begin(shard, Leader { node, term });
        }
    }

    /// Returns whether answers belong to the present round.
    pub fn is_present(&self, shard: ShardId, node: u64, round: u32) -> bool {
        self.lanes.get(shard.index()).is_some_and(|lane| lane.is_from_leader(node, round))
    }

    /// Notes that everything up to an item has arrived in the present round.
    pub fn received(&mut self, shard: ShardId, received: Received) {
        let lane = &mut self.lanes[shard.index()];
        if let Received::Request(number) = received {
            lane.arrived = number.max(lane.arrived);
        }
        lane.answered_round = lane.round;
        while let Some((_, bytes)) = lane.portions.pop_front_if(|(last, _)| *last <= received) {
            lane.flying -= bytes;
        }
        if lane.unreported.is_some() || lane.sent_in_round < lane.last {
            self.changed.insert(shard);
        }
    }

    /// Number of Claims that a shard may get in addition to those that may be sent again.
    pub fn room_for_claims(&self, shard: ShardId) -> usize {
        let lane = &self.lanes[shard.index()];
        self.claims_max.saturating_sub(lane.claims + lane.released.len())
    }

    /// Takes the token of a request that is answered.
    pub fn answered(&mut self, shard: ShardId, number: u64) -> Option<Token> {
        let lane = &mut self.lanes[shard.index()];
        let unanswered = find(&mut lane.unanswered, number)?;
        let token = unanswered.token.take();
        lane.bytes -= unanswered.done();
        lane.drop_done();
        token
    }

    /// Handles that requests up to a number are committed. Returns the tokens of those that have no other answer.
    pub fn settled(&mut self, shard: ShardId, number: u64) -> Vec<Token> {
        let mut tokens = Vec::new();
        let lane = &mut self.lanes[shard.index()];
        let from = lane.unanswered.partition_point(|unanswered| unanswered.number <= lane.settled);
        for unanswered in lane.unanswered.range_mut(from..) {
            if unanswered.number > number {
                break;
            }
            if !unanswered.has_answer && !unanswered.is_done {
                tokens.extend(unanswered.token.take());
                lane.bytes -= unanswered.done();
            }
        }
        while let Some((_, exchange)) = lane.forgets.pop_front_if(|(forget, _)| *forget <= number) {
            let Some(left) = self.forgetting.get_mut(&exchange) else { continue };
            *left -= 1;
            if *left == 0 {
                self.forgetting.remove(&exchange);
                self.ready.extend(self.held.remove(&exchange).into_iter().flatten());
            }
        }
        lane.settled = lane.settled.max(number.min(lane.last));
        // A Claim is sent again with its Release, so that no session is left with a connection that is closed.
        for released in lane.released.extract_if(.., |released| released.release <= number) {
            lane.bytes -= released.will_bytes();
            if let Some(unanswered) = find(&mut lane.unanswered, released.claim) {
                lane.bytes -= unanswered.done();
            }
        }
        lane.drop_done();
        tokens
    }

    /// Notes a completion, which the worker handles next.
    pub fn completed(&mut self, shard: ShardId, completion: &Completion) {
        let ConnectionId { slot, generation, .. } = completion.connection();
        match completion {
            Completion::Claimed(claimed) => self.claimed(shard, claimed),
            Completion::Deliver { first, more, .. } => {
                let attached = self.lanes[shard.index()].attached.get_mut(&(slot, generation));
                let last = more.iter().rev().chain([first]).find_map(publish_id);
                if let (Some(attached), Some(last)) = (attached, last) {
                    attached.last = Some(last);
                }
            }
            _ => {}
        }
        let Some(awaited) = Awaited::by(completion) else { return };
        let lane = &mut self.lanes[shard.index()];
        if let Some(number) = lane.take_awaited((slot, generation), awaited) {
            lane.claims -= usize::from(awaited == Awaited::Claim);
            self.answered(shard, number);
        }
    }

    /// Keeps the Will of a closed connection whose Claim is not answered. The Release of the connection was queued
    /// before.
    pub fn keep_will(&mut self, shard: ShardId, connection: ConnectionId, will: ClosedWill) {
        let lane = &mut self.lanes[shard.index()];
        let mut released = lane.released.iter_mut();
        if let Some(released) = released.find(|released| released.connection == connection) {
            lane.bytes -= released.will_bytes();
            released.will = Some(will);
            lane.bytes += released.will_bytes();
        }
    }

    /// Handles that the Claim of a closed connection was refused. It is not sent again, because another leader might
    /// accept it. Returns the Will of the connection.
    pub fn refused(&mut self, shard: ShardId, connection: ConnectionId) -> Option<ClosedWill> {
        let lane = &mut self.lanes[shard.index()];
        let at = lane.released.iter().position(|released| released.connection == connection)?;
        let released = lane.released.swap_remove(at);
        lane.bytes -= released.will_bytes();
        let Released { claim, will, .. } = released;
        if let Some(unanswered) = lane.find(claim) {
            let bytes = unanswered.done();
            lane.bytes -= bytes;
        }
        lane.drop_done();
        will
    }

    fn claimed(&mut self, shard: ShardId, claimed: &Claimed) {
        let lane = &mut self.lanes[shard.index()];
        let key = (claimed.connection.slot, claimed.connection.generation);
        let number = lane.awaited(key, Awaited::Claim);
        let claiming = number.and_then(|number| lane.find(number)?.claim.take());
        // Without a `claiming` the connection is closed: its Release is on its way.
        let Some((claiming, session)) = claiming.zip(claimed.session) else { return };
        lane.epochs.insert((session.slot, session.generation), claimed.epoch);
        let attached = Attached { claiming: *claiming, session, epoch: claimed.epoch, last: None };
        lane.attached.insert(key, attached);
    }

    /// Takes the frames of this turn.
    pub fn take_frames(&mut self, now: Time) -> Vec<ToLeader> {
        let mut frames = Vec::new();
        for shard in std::mem::take(&mut self.changed).iter() {
            let lane = &mut self.lanes[shard.index()];
            let Some(leader) = lane.leader else {
                lane.out.clear();
                continue;
            };
            lane.report(now, self.worker, &mut self.scratch);
            lane.fill(now);
            if lane.wants_receipt && lane.out.is_empty() {
                lane.out.push(RequestItems::new());
            }
            let (count, attaching) = (lane.out.len(), std::mem::take(&mut lane.attaching));
            for (at, items) in (1..).zip(lane.out.drain(..)) {
                let flags = Flags {
                    is_first: std::mem::take(&mut lane.is_first),
                    is_attached: at == attaching,
                    wants_receipt: at == count && std::mem::take(&mut lane.wants_receipt),
                };
                let (incarnation, worker) = (self.own.incarnation, self.worker.0);
                let bytes = items.into_frame(incarnation, worker, lane.round, flags);
                frames.push(ToLeader { node: leader.node, shard, bytes });
            }
        }
        frames
    }

    pub fn has_frames(&self) -> bool {
        !self.changed.is_empty()
    }
}

impl Lane {
    fn is_from_leader(&self, node: u64, round: u32) -> bool {
        self.round == round && self.leader.is_some_and(|leader| leader.node == node)
    }

    /// Returns whether what was sent up to a number, in this round or an earlier one, has arrived or never will. What
    /// is known of that stays true without a leader.
    fn has_arrived(&self, round: u32, number: u64) -> bool {
        let is_later = self.answered_round.wrapping_sub(round).cast_signed() > 0;
        is_later || self.arrived >= number
    }

    fn stop(&mut self) {
        self.leader = None;
        self.out.clear();
    }

    /// Adds connections to the frames of this turn, as many as may be on the way at once.
    fn report(&mut self, now: Time, worker: WorkerId, scratch: &mut Vec<u8>) {
        let Some(mut from) = self.unreported else { return };
        if mutated(Mutation::ForgetConnections) {
            from = (u32::MAX, u32::MAX);
        }
        let mut next = None;
        for ((slot, generation), attached) in self.attached.range(from..) {
            if self.flying >= FLYING_MAX {
                next = Some((*slot, *generation));
                break;
            }
            let Claiming { client_id, user, window } = &attached.claiming;
            let attach = Request::Attach(Box::new(Attach {
                client_id: client_id.clone(),
                session: attached.session,
                epoch: attached.epoch,
                connection: ConnectionId { worker, slot: *slot, generation: *generation },
                user: *user,
                payers: Payers::default(),
                window: *window,
                last: attached.last,
                known_to: ShardSet::EMPTY,
            }));
            scratch.clear();
            encode_request(&attach, now, scratch);
            let item = Item { number: 0, epoch: attached.epoch, age_ms: 0, bytes: scratch };
            push(&mut self.out, item);
            self.reported += 1;
            let bytes = scratch.len() + REQUEST;
            self.flying += bytes;
            self.portion += bytes;
            if self.portion >= FLYING_MAX / 2 {
                let last = Received::Connections(self.reported);
                self.portions.push_back((last, std::mem::take(&mut self.portion)));
                self.wants_receipt = true;
            }
        }
        self.unreported = next;
        if next.is_none() {
            // A frame says so even if it is empty.
            if self.out.is_empty() {
                self.out.push(RequestItems::new());
            }
            self.attaching = self.out.len();
        }
    }

    /// Adds requests to the frames of this turn, as many as may be on the way at once.
    fn fill(&mut self, now: Time) {
        if self.unreported.is_some() {
            return;
        }
        let from = self.unanswered.partition_point(|unanswered| unanswered.number <= self.sent_in_round);
        for unanswered in self.unanswered.range(from..) {
            if self.flying >= FLYING_MAX {
                break;
            }
            self.sent_in_round = unanswered.number;
            if unanswered.is_done {
                continue;
            }
            push(&mut self.out, unanswered.item(now));
            let bytes = unanswered.bytes.len() + REQUEST;
            self.flying += bytes;
            self.portion += bytes;
            if self.portion >= FLYING_MAX / 2 {
                let last = Received::Request(unanswered.number);
                self.portions.push_back((last, std::mem::take(&mut self.portion)));
                self.wants_receipt = true;
            }
        }
        self.sent = self.sent.max(self.sent_in_round);
    }

    fn find(&mut self, number: u64) -> Option<&mut Unanswered> {
        find(&mut self.unanswered, number)
    }

    fn drop_done(&mut self) {
        while self.unanswered.pop_front_if(|first| first.is_done).is_some() {}
        // A request may wait long for its answer, and others behind it are answered.
        let len = self.unanswered.len();
        if len > self.compacted * 2 + 64 {
            self.unanswered.retain(|unanswered| !unanswered.is_done);
            self.compacted = self.unanswered.len();
        }
        self.compacted = self.compacted.min(len);
    }

    /// Withdraws the Claim of a connection that is closed, if no leader can have it. Returns whether it has. The shard
    /// does not know the connection then.
    fn withdraw(&mut self, ConnectionId { slot, generation, .. }: ConnectionId) -> bool {
        let key = (slot, generation);
        if self.awaited(key, Awaited::Claim).is_none_or(|claim| claim <= self.sent) {
            return false;
        }
        let claim = self.take_awaited(key, Awaited::Claim);
        self.claims -= 1;
        if let Some(unanswered) = claim.and_then(|claim| find(&mut self.unanswered, claim)) {
            self.bytes -= unanswered.done();
        }
        self.drop_done();
        true
    }

    /// Forgets a connection that is closed. Nobody waits for the answers to its requests.
    fn detach(&mut self, connection: ConnectionId, release: u64) {
        let ConnectionId { slot, generation, .. } = connection;
        if let Some(Attached { session, epoch, .. }) = self.attached.remove(&(slot, generation)) {
            let session = (session.slot, session.generation);
            if self.epochs.get(&session) == Some(&epoch) {
                self.epochs.remove(&session);
            }
        }
        let key = (slot, generation);
        if let Some(claim) = self.take_awaited(key, Awaited::Claim) {
            self.claims -= 1;
            if let Some(unanswered) = self.find(claim) {
                unanswered.claim = None;
                self.released.push(Released { claim, release, connection, will: None });
            }
        }
        while let Some((_, awaited, number)) = self.next_awaited(key, Awaited::Claim) {
            self.awaited.remove(&(key, awaited, number));
            let Some(unanswered) = find(&mut self.unanswered, number) else { continue };
            unanswered.has_answer = false;
            if number <= self.settled {
                self.bytes -= unanswered.done();
            }
        }
        self.drop_done();
    }

    /// First request of a connection that waits for this answer, or for one after it in the order of [`Awaited`].
    fn next_awaited(&self, key: (u32, u32), awaited: Awaited) -> Option<((u32, u32), Awaited, u64)> {
        self.awaited.range((key, awaited, 0)..).next().copied().filter(|(of, ..)| *of == key)
    }

    /// Number of the first request of a connection that waits for this answer.
    fn awaited(&self, key: (u32, u32), awaited: Awaited) -> Option<u64> {
        let next = self.next_awaited(key, awaited).filter(|(_, of, _)| *of == awaited);
        next.map(|(.., number)| number)
    }

    fn take_awaited(&mut self, key: (u32, u32), awaited: Awaited) -> Option<u64> {
        let number = self.awaited(key, awaited)?;
        self.awaited.remove(&(key, awaited, number));
        Some(number)
    }
}

impl Unanswered {
    fn item(&self, now: Time) -> Item<'_> {
        let age_ms = u32::try_from(now.0.saturating_sub(self.encoded.0)).unwrap_or(u32::MAX);
        Item { number: self.number, epoch: self.epoch, age_ms, bytes: &self.bytes }
    }

    /// Marks it as answered. Returns the number of bytes of memory that it needs no more.
    fn done(&mut self) -> usize {
        self.is_done = true;
        std::mem::take(&mut self.bytes).len() + REQUEST
    }
}

/// Appends an item to the last frame with room, or to a new one.
fn push(frames: &mut Vec<RequestItems>, item: Item<'_>) {
    match frames.last_mut().filter(|frame| frame.is_empty() || frame.len() + item.bytes.len() <= frame::FULL)
    {
        Some(frame) => frame.push(item),
        None => {
            let mut frame = RequestItems::new();
            frame.push(item);
            frames.push(frame);
        }
    }
}

fn find(unanswered: &mut VecDeque<Unanswered>, number: u64) -> Option<&mut Unanswered> {
    let at = unanswered.binary_search_by_key(&number, |unanswered| unanswered.number).ok()?;
    unanswered.get_mut(at).filter(|unanswered| !unanswered.is_done)
}

fn publish_id(delivery: &SessionDelivery) -> Option<PacketId> {
    match delivery {
        SessionDelivery::Publish { packet_id, .. } => Some(*packet_id),
        SessionDelivery::PubRel { .. } => None,
    }
}

#[cfg(test)]
mod tests;
