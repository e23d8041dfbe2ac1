//! What a worker keeps of one Network Connection.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

use mqtt::{Packet, PacketId, ReasonCode, Version};
use session::{Deliveries, Inbound, InboundAliases, OutboundAliases};

use crate::access::{ClientCertificate, Credentials, Identity, Mechanism, Principal, Validity};
use crate::backlog::Waiting;
use crate::batch::{SessionDelivery, SubscriptionIds};
use crate::budget::Budget;
use crate::full_queues::{FullTime, Source};
use crate::ids::{ConnectionId, GroupId, SessionId, Ticket, Time};
use crate::message::{Message, MessageView};
use crate::node::{Node, OwnerKey};
use crate::out::{Out, Pool};
use crate::peers::SubackLevel;
use crate::permissions::Permissions;
use crate::quota::{Payers, Resource};
use crate::retained::ScanPosition;
use crate::route::Options;
use crate::settings::Queue;
use crate::store::Enqueue;
use crate::subscriptions::Subscriptions;
use crate::worker::ExceededLimits;

/// One Network Connection and the session it serves.
///
/// An idle one is this struct and little more: everything that only traffic needs is in [`Flow`], which comes and goes.
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub phase: Phase,
    pub version: Version,
    /// Its place among the node's listeners.
    pub listener: u16,
    pub marks: Marks,
    /// Seconds; 0 is none.
    pub keep_alive: u16,
    /// When the last complete packet came, or the connection was opened.
    pub last_packet: Time,
    /// Seconds of the node's time at which it was accepted as a client.
    pub connected_at: u32,
    /// PUBLISH packets from and to the client; they wrap.
    pub messages_received: u32,
    pub messages_sent: u32,
    pub client_id: Arc<str>,
    /// [`client_key`](crate::ids::client_key) of it.
    pub client_key: u64,
    /// Largest packet the client takes.
    pub packet_size_max: u32,
    /// QoS 1 and 2 deliveries it takes without acknowledgement.
    pub window: u16,
    /// Topic Aliases it takes.
    pub alias_max: u16,
    /// Session Expiry Interval, seconds, as granted.
    pub session_expiry: u32,
    /// Its place in the store; `None` for a session that ends with the connection.
    pub session: Option<SessionId>,
    pub out: Out,
    pub subscriptions: Subscriptions,
    pub flow: Option<Box<Flow>>,
    pub peer: Peer,
    /// Only until CONNACK.
    pub connecting: Option<Box<Connecting>>,
    /// What few clients have.
    pub extra: Option<Box<Extra>>,
}

const _: () = assert!(size_of::<Connection>() <= 216, "a byte here is a megabyte per million connections");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    AwaitConnect,
    /// An enhanced authentication goes on: only AUTH and DISCONNECT may come [MQTT-3.1.2-30].
    Exchanging,
    /// Access control decides.
    Authenticating,
    /// The store decides who serves the Client Identifier.
    Claiming,
    Open,
    /// Bytes may still leave; nothing is read any more.
    Closing,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// In the worker's list of connections with something to write.
    pub dirty: bool,
    /// The edge keeps bytes of it until it is woken.
    pub held: bool,
    /// Reason Strings and User Properties may be sent [MQTT-3.1.2-29].
    pub problem_information: bool,
    /// A Claim was sent for it, so a Release has to follow.
    pub claimed: bool,
    /// It was to be closed and has had time enough for that.
    pub overdue: bool,
    /// In the worker's list of those for whom something waits.
    pub backlogged: bool,
    /// There is a mountpoint.
    pub mounted: bool,
    /// It is a bridge to another broker.
    pub bridge: bool,
    /// There are rates of its own.
    pub paced: bool,
    /// Its subscriptions have to be checked again, because others had to be asked.
    pub recheck: bool,
    /// Its queue was full for too long not long ago: no publisher waits for it.
    pub drops: bool,
}

#[derive(Default)]
pub(crate) struct Extra {
    pub username: Option<Box<str>>,
    pub certificate: Option<Arc<ClientCertificate>>,
    pub principal: Option<Arc<Principal>>,
    pub validity: Option<Arc<Validity>>,
    pub will: Option<(Message, u32)>,
    /// [`Access::generation`](crate::access::Access::generation) of the rules that allowed the Will.
    pub will_rules: u64,
    /// When its admission ends.
    pub expires: Option<Time>,
    pub enhanced: Option<Enhanced>,
    /// Who pays for what it takes, from its admission until it ends.
    pub payers: Payers,
    /// Bytes for its session that are charged to them.
    pub charged_bytes: u64,
}

/// Enhanced authentication of a connection.
pub(crate) struct Enhanced {
    pub method: Box<str>,
    /// The run that goes on, if one does.
    pub run: Option<Box<dyn Mechanism>>,
}

/// Where a client connects from, in the little room an idle connection may take.
#[derive(Clone, Debug, Default)]
pub(crate) enum Peer {
    /// A Unix socket, or none at all.
    #[default]
    Local,
    V4(SocketAddrV4),
    V6(Box<SocketAddrV6>),
}

impl From<Option<SocketAddr>> for Peer {
    fn from(address: Option<SocketAddr>) -> Self {
        match address {
            None => Peer::Local,
            Some(SocketAddr::V4(address)) => Peer::V4(address),
            Some(SocketAddr::V6(address)) => Peer::V6(Box::new(address)),
        }
    }
}

/// What CONNACK will need of CONNECT.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub clean_start: bool,
    pub asked_expiry: u32,
    pub assigned: bool,
    pub response_information: bool,
    pub server_keep_alive: bool,
    /// Questions about its Will.
    pub attempts: u8,
    /// The last Authentication Data, for CONNACK.
    pub authentication_data: Option<Vec<u8>>,
}

/// Messages in both directions.
#[derive(Default)]
pub(crate) struct Flow {
    pub inbound: Inbound,
    pub aliases_in: InboundAliases,
    pub aliases_out: Option<OutboundAliases>,
    /// Deliveries of an ephemeral session. What is in flight keeps its message only when that may have to go to another.
    pub deliveries: Deliveries<Enqueue>,
    /// [`Access::generation`](crate::access::Access::generation) of the rules that allowed the first of the waiting messages.
    pub waiting_rules: u64,
    /// Bytes of the messages that wait, and of those in flight that are kept for another member of their group.
    pub held_bytes: usize,
    /// Messages that wait for a place among `deliveries`, most of them with their publishers.
    pub overflow: VecDeque<Overflow>,
    /// A timer runs for the oldest of them.
    pub wait_timed: bool,
    /// When a message last left the queue, or the first came in.
    pub place_freed: Time,
    /// Since when messages wait that waited then: since the queue was last empty, became full for the first time after that, or everything
    /// was sent that waited before.
    pub waiting_since: Time,
    /// Messages that waited in the queue at `waiting_since` and are still there.
    pub waiting_left: usize,
    /// The queue was full once since `waiting_since`.
    pub was_full: bool,
    /// How long publishers have waited since `waiting_since`.
    pub full: FullTime,
    /// The client was remembered for its full queue on this connection.
    pub noted_full: bool,
    /// Deliveries of a durable session that wait for room in `out`.
    pub ready: VecDeque<SessionDelivery>,
    /// Retained messages that new subscriptions are to get.
    pub retained: VecDeque<RetainedJob>,
    /// A page of retained messages is on its way.
    pub page_asked: bool,
    /// The queue of the durable session has room for one.
    pub room_for_page: bool,
    /// How fast retained messages are looked at for it.
    pub pace: Pace,
    /// Topics of retained messages that came as live ones while there was something in `retained`, and how many steps had been
    /// counted then: what a page has for them is older.
    pub overtaken: HashMap<Box<str>, u32>,
    /// New subscriptions and overtaken messages, counted.
    pub steps: u32,
    pub acknowledging: VecDeque<PendingAck>,
    pub blocked: Option<Blocked>,
    /// A packet has begun to arrive. Kept until its timer finds that nothing is missing any more.
    pub unfinished: Option<Unfinished>,
    /// When a timer tries `blocked` again, unless that is past.
    pub retry_at: Time,
    pub budget: Budget,
    pub permissions: Permissions,
    /// Questions about the packet that waits for its permission, and how often they were asked.
    pub questions: u32,
    pub attempts: u8,
    /// Of the retained message that waits to be told.
    pub room: RetainRoom,
    pub probe: Probe,
}

/// How fast retained messages are looked at for one client: a second's worth at once, then at a steady rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Microseconds of the node's time up to which what was looked at is spread.
    spread_us: u64,
    /// A timer runs.
    pub timed: bool,
}

impl Pace {
    /// Each page costs as much as so many messages that are looked at.
    const PAGE: u64 = 16;
    const BURST_MS: u64 = 1000;

    /// A page was made, for which so many messages were looked at.
    pub fn spend(&mut self, now: Time, examined: usize, per_second: u32) {
        let examined = examined as u64 + Self::PAGE;
        self.spread_us =
            self.spread_us.max(now.0 * 1000) + examined * 1_000_000 / u64::from(per_second.max(1));
    }

    /// When the next page may be asked for.
    pub fn next(&self) -> Time {
        Time((self.spread_us / 1000).saturating_sub(Self::BURST_MS))
    }
}

/// An incomplete packet and when its timer started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    /// Bytes of it that have arrived; 0 when it is complete.
    pub len: u32,
    /// `len` when the time that it may take began.
    pub len_before: u32,
    pub since: Time,
}

impl Unfinished {
    /// Number of bytes that restart the time when they arrive.
    const PROGRESS: u32 = 1024;

    /// Part of the packet has arrived: `len` bytes in all, of a new packet or more of the same.
    pub fn arrived(&mut self, now: Time, len: u32, is_new: bool) {
        if is_new || self.len == 0 {
            (self.since, self.len_before) = (now, 0);
        } else if len - self.len_before.min(len) >= Self::PROGRESS {
            (self.since, self.len_before) = (now, len);
        }
        self.len = len;
    }
}

/// Whether there is a place for a retained message, where most are taken: it is asked for before anybody has the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainRoom {
    #[default]
    NotRequested,
    Requested,
    Known(bool),
}

/// One delivery at a time that is watched on its way to its acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    pub packet_id: Option<PacketId>,
    /// When its message came, or the client if that was later.
    pub since: Time,
    /// The beginning of its Topic Name.
    pub topic: String,
    /// Not told of again before.
    pub report_after: Time,
}

/// How many times as much as one client a user or a mountpoint may have in queues.
const SHARES_OF_PAYER: u64 = 3;

/// Bytes of a Topic Name that a probe keeps.
const PROBE_TOPIC: usize = 256;

#[derive(Debug)]
pub(crate) struct Overflow {
    pub entry: Enqueue,
    /// The record in the worker's `pending` that waits for it, if a publisher does.
    pub pending: Option<u32>,
    pub deadline: Time,
}

#[derive(Debug)]
pub(crate) struct RetainedJob {
    pub filter: Box<str>,
    pub options: Options,
    pub subscription_id: u32,
    /// Workers still to ask, first the one that is being asked.
    pub worker: u16,
    pub last_worker: u16,
    /// Shards that have no more, as bits.
    pub done: u16,
    /// Where to go on in another one.
    pub from: Option<ScanPosition>,
    /// Workers that have yet to say that what they published before the subscription is on its way.
    pub pending_flushes: u16,
    /// How many steps had been counted at the subscription.
    pub since: u32,
}

/// Topics remembered while a connection is handed retained messages.
const OVERTAKEN_MAX: usize = 4096;

/// A SUBACK or UNSUBACK that waits for the store.
#[derive(Debug)]
pub(crate) struct PendingAck {
    pub ticket: Ticket,
    pub kind: AckKind,
    /// [`Access::generation`](crate::access::Access::generation) of the rules that allowed the subscriptions.
    pub rules: u64,
    /// Who else has to know of the subscriptions when this node does; `Local` when nobody has to any more.
    pub level: SubackLevel,
    pub outstanding: u32,
    pub reasons: Vec<u8>,
    pub filters: Vec<PendingFilter>,
    /// What the refused ones were beyond.
    pub exceeded: ExceededLimits,
    /// Bytes of the filters of a durable session, as they count.
    pub bytes: usize,
    /// Number of its shared subscriptions.
    pub shared: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    Sub,
    Unsub,
}

/// One filter of a pending SUBSCRIBE or UNSUBSCRIBE.
#[derive(Debug)]
pub(crate) struct PendingFilter {
    /// As the client wrote it.
    pub text: Box<str>,
    pub options: Options,
    pub subscription_id: u32,
    /// Its place among the reasons.
    pub index: u32,
    pub shared: bool,
    pub existed: bool,
}

impl PendingFilter {
    /// One that goes, at `index` among the reasons.
    pub fn to_remove(text: &str, index: u32, shared: bool) -> Self {
        Self {
            text: text.into(),
            options: Options::default(),
            subscription_id: 0,
            index,
            shared,
            existed: true,
        }
    }
}

/// A PUBLISH that has to wait, and what came after it.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    /// Whole packets, from `from` on.
    parked: Vec<u8>,
    from: usize,
}

impl Blocked {
    /// Bytes of the packets that wait.
    pub fn len(&self) -> usize {
        self.parked.len() - self.from
    }

    pub fn push(&mut self, packet: &[u8]) {
        self.parked.extend_from_slice(packet);
    }

    pub fn first(&self) -> Option<&[u8]> {
        let rest = &self.parked[self.from..];
        let length = mqtt::frame(rest, u32::MAX).ok()??;
        rest.get(..length)
    }

    /// Takes the first packet out, which has `length` bytes.
    pub fn pop(&mut self, length: usize) {
        self.from += length;
        // A client may make us look at these again and again: no byte is moved more than twice.
        if self.from * 2 >= self.parked.len() {
            self.parked.drain(..self.from);
            self.from = 0;
        }
    }
}

impl Flow {
    /// A message has left the queue.
    pub fn note_left(&mut self, now: Time) {
        self.place_freed = now;
        if self.waiting_left > 1 {
            self.waiting_left -= 1;
        } else {
            // Everything that waited then has left: the client is slow, and works.
            self.restart_wait(now);
            self.was_full = !self.overflow.is_empty();
        }
    }

    /// A message finds no place, and is the first that waits for one. When the queue was full before, and what waited then has not left
    /// yet, the client has no more time than it had: otherwise one publisher with one message at a time would wait without end.
    pub fn becomes_full(&mut self, now: Time) {
        if !std::mem::replace(&mut self.was_full, true) {
            self.restart_wait(now);
        }
        self.full.begins(now);
    }

    /// What waits now has to leave in time.
    pub fn restart_wait(&mut self, now: Time) {
        self.waiting_since = now;
        self.waiting_left = self.deliveries.waiting();
        self.full.restarts(now);
    }

    /// A retained message has come as a live one.
    pub fn overtake(&mut self, topic: &str) {
        if self.retained.is_empty() || self.overtaken.len() >= OVERTAKEN_MAX {
            return;
        }
        self.steps += 1;
        match self.overtaken.get_mut(topic) {
            Some(step) => *step = self.steps,
            None => drop(self.overtaken.insert(topic.into(), self.steps)),
        }
    }

    /// The first of the subscriptions has its retained messages.
    pub fn end_retained(&mut self) {
        self.retained.pop_front();
        if self.retained.is_empty() {
            self.overtaken = HashMap::new();
            self.steps = 0;
        }
    }

    pub fn is_idle(&self) -> bool {
        self.inbound.is_empty()
            && self.deliveries.is_empty()
            && self.overflow.is_empty()
            && self.ready.is_empty()
            && self.retained.is_empty()
            && self.acknowledging.is_empty()
            && self.blocked.is_none()
    }

    /// Whether it holds nothing that a later packet of this connection refers to.
    pub fn is_forgettable(&self) -> bool {
        // Packet Identifiers start anew with a new flow, which is fine while none is in use; aliases live as long as the
        // connection [MQTT-3.3.2-7].
        self.is_idle()
            && self.unfinished.is_none()
            && self.inbound.is_forgettable()
            && self.aliases_in.is_empty()
            && self.aliases_out.is_none()
    }
}

impl Connection {
    pub fn flow(&mut self) -> &mut Flow {
        self.flow.get_or_insert_with(Box::default)
    }

    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_with(Box::default)
    }

    /// Appends a packet to what is to be written. False, and nothing, when it is larger than the client takes
    /// [MQTT-3.1.2-24]; we never send User Properties of our own, which would have to be left out first [MQTT-3.2.2-20]
    /// [MQTT-3.14.2-4] [MQTT-3.15.2-2] [MQTT-3.15.2-3].
    pub fn put(&mut self, packet: &Packet<'_>, pool: &mut Pool) -> bool {
        let out = self.out.buffer(pool);
        let before = out.len();
        packet.encode(self.version, out);
        let fits = out.len() - before <= self.packet_size_max as usize;
        if !fits {
            out.truncate(before);
        }
        fits
    }

    /// [MQTT-2.2.1-3]: the completions of two SUBSCRIBEs under one Packet Identifier could not be told apart.
    pub fn check_unused(&self, packet_id: PacketId) -> Result<(), ReasonCode> {
        let in_use =
            |flow: &Flow| flow.acknowledging.iter().any(|pending| pending.ticket == Ticket::of(packet_id));
        if self.flow.as_deref().is_some_and(in_use) { Err(ReasonCode::ProtocolError) } else { Ok(()) }
    }

    /// Whether the queue takes one message more: the client is within its own limits, and the client, its user and its mountpoint are
    /// within their shares of the node's free memory.
    pub fn has_queue_room(&self, share: u64, queue: &Queue) -> bool {
        let Some(flow) = self.flow.as_deref() else { return true };
        // Whatever others hold, one message may wait: what the client takes next.
        if flow.held_bytes == 0 {
            return true;
        }
        let bytes_max = queue.bytes_max.bytes().min(share);
        flow.deliveries.waiting() < queue.messages_max as usize
            && (flow.held_bytes as u64) < bytes_max
            && self.extra.as_deref().is_none_or(|extra| {
                extra.payers.most_used(Resource::QueuedBytes) < share.saturating_mul(SHARES_OF_PAYER)
            })
    }

    /// Bytes wait for the client.
    pub fn hold(&mut self, bytes: usize) {
        self.flow().held_bytes += bytes;
        if let Some(extra) = self.extra.as_deref() {
            extra.payers.charge(Resource::QueuedBytes, bytes as u64);
        }
    }

    /// Bytes wait for the client no more.
    pub fn release(&mut self, bytes: usize) {
        if let Some(flow) = self.flow.as_deref_mut() {
            flow.held_bytes -= bytes;
        }
        if let Some(extra) = self.extra.as_deref() {
            extra.payers.release(Resource::QueuedBytes, bytes as u64);
        }
    }

    /// Where the client comes from, among those whose queue was full for too long.
    pub fn source(&self, node: &Node) -> Option<Source> {
        let address = self.peer()?.ip();
        let user = self.username().map(|user| node.owner_key(self.mountpoint(), Some(user)));
        Some(Source::new(user.unwrap_or(OwnerKey::NOBODY), address))
    }

    /// Bytes that the client makes the node hold for its session.
    pub fn session_bytes(&self) -> usize {
        let will = self.extra.as_ref().and_then(|extra| extra.will.as_ref());
        let waiting = self.flow.as_ref().map_or(0, |flow| flow.acknowledging.iter().map(|it| it.bytes).sum());
        self.subscriptions.bytes() + waiting + self.client_id.len() + will.map_or(0, |(will, _)| will.size())
    }

    /// Number of shared subscriptions that the client has and asks for, those of `pending` among them.
    pub fn shared_subscriptions(&self, pending: &PendingAck) -> usize {
        let acknowledging = self.flow.iter().flat_map(|flow| &flow.acknowledging);
        let requested: u32 = acknowledging.chain([pending]).map(|it| it.shared).sum();
        self.subscriptions.shared() + requested as usize
    }

    /// Watches this delivery on its way, unless another is being watched.
    pub fn watch_delivery(&mut self, packet_id: PacketId, view: &MessageView<'_>) {
        let connected_at = Time(u64::from(self.connected_at) * 1000);
        let Some(flow) = self.flow.as_deref_mut() else { return };
        if flow.probe.packet_id.is_none() {
            flow.probe.packet_id = Some(packet_id);
            flow.probe.since = view.received.max(connected_at);
            flow.probe.topic.clear();
            flow.probe.topic.push_str(&view.topic[..view.topic.floor_char_boundary(PROBE_TOPIC)]);
        }
    }

    /// What waits in its queue.
    pub fn waiting(&self, now: Time) -> Option<Waiting> {
        let flow = self.flow.as_deref()?;
        let messages = flow.deliveries.waiting() + flow.overflow.len();
        let first =
            flow.deliveries.next_waiting().or(flow.overflow.front().map(|overflow| &overflow.entry))?;
        let oldest = now.since(first.message.view().received);
        Some(Waiting { messages: messages as u64, oldest })
    }

    pub fn username(&self) -> Option<&str> {
        self.extra.as_ref()?.username.as_deref()
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.peer {
            Peer::Local => None,
            Peer::V4(address) => Some(SocketAddr::V4(*address)),
            Peer::V6(address) => Some(SocketAddr::V6(**address)),
        }
    }

    /// Empty without one.
    pub fn mountpoint(&self) -> &str {
        if !self.marks.mounted {
            return "";
        }
        let principal = self.extra.as_ref().and_then(|extra| extra.principal.as_ref());
        principal.and_then(|principal| principal.mountpoint.as_deref()).unwrap_or_default()
    }

    /// A topic of the node's as the client sees it; `None` outside of its mountpoint.
    pub fn unmounted<'t>(&self, topic: &'t str) -> Option<&'t str> {
        if self.marks.mounted { topic.strip_prefix(self.mountpoint()) } else { Some(topic) }
    }

    /// The Client Identifier as the client knows it.
    pub fn own_client_id(&self) -> &str {
        self.unmounted(&self.client_id).unwrap_or(&self.client_id)
    }

    /// What access control is asked about at CONNECT, or when the client authenticates again.
    pub fn credentials<'a>(&'a self, password: Option<&'a [u8]>, node: &'a Node) -> Credentials<'a> {
        let Identity { client_id, username, peer, listener, .. } = self.identity(node);
        let certificate = self.extra.as_ref().and_then(|extra| extra.certificate.as_ref());
        Credentials { client_id, username, password, peer, listener, certificate }
    }

    pub fn identity<'a>(&'a self, node: &'a Node) -> Identity<'a> {
        let extra = self.extra.as_deref();
        Identity {
            client_id: self.own_client_id(),
            username: self.username(),
            peer: self.peer().map(|peer| peer.ip()),
            listener: node.listener_name(self.listener),
            certificate: extra.and_then(|extra| extra.certificate.as_deref()),
            principal: extra.and_then(|extra| extra.principal.as_deref()),
        }
    }
}

/// An entry for an ephemeral session's queue.
pub(crate) fn queued(
    message: Message,
    qos: mqtt::QoS,
    retain: bool,
    ids: &[u32],
    group: Option<GroupId>,
) -> Enqueue {
    Enqueue { message, qos, retain, subscription_ids: SubscriptionIds::of(ids), group }
}
