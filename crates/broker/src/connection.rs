//! State of one Network Connection in its worker.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use mqtt::{Packet, PacketId, ReasonCode, Version};
use session::{Deliveries, Inbound, InboundAliases, OutboundAliases};
use shard::QueueLimits;

use crate::access::{ClientCertificate, Credentials, Identity, Mechanism, Principal, Validity};
use crate::backlog::Waiting;
use crate::batch::{SessionDelivery, SubscriptionIds};
use crate::budget::Budget;
use crate::full_queues::{FullTime, Source};
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, Time};
use crate::message::{Message, MessageView};
use crate::message_queue::MessageQueue;
use crate::node::{Node, OwnerKey};
use crate::out::{Out, Pool};
use crate::peers::SubackLevel;
use crate::permissions::Permissions;
use crate::quota::{Payers, Resource};
use crate::retained_jobs::RetainedJobs;
use crate::route::Options;
use crate::settings::{Mqtt, Queue};
use crate::store::Enqueue;
use crate::subscriptions::Subscriptions;
use crate::worker::{Divided, ExceededLimits};

/// One Network Connection and the session that it serves.
///
/// An idle connection is this struct and little more: everything that only traffic needs is in [`Flow`], which is
/// allocated and freed with the traffic.
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub phase: Phase,
    pub version: Version,
    /// Index among the node's listeners.
    pub listener: u16,
    pub marks: Marks,
    /// Keep Alive in seconds; 0 is none.
    pub keep_alive: u16,
    /// Time of the last complete packet, or of the opening of the connection.
    pub last_packet: Time,
    /// Second of the node's time at which the client was admitted.
    pub connected_at: u32,
    /// PUBLISH packets from and to the client; they wrap.
    pub messages_received: u32,
    pub messages_sent: u32,
    pub client_id: Arc<str>,
    /// [`client_key`](crate::ids::client_key) of the Client Identifier.
    pub client_key: u64,
    /// Maximum Packet Size of the client.
    pub packet_size_max: u32,
    /// Receive Maximum of the client: QoS 1 and 2 deliveries without acknowledgement.
    pub window: u16,
    /// Topic Alias Maximum of the client.
    pub alias_max: u16,
    /// Session Expiry Interval in seconds, as granted.
    pub session_expiry: u32,
    /// Id of the session in the store; `None` for a session that ends with the connection.
    pub session: Option<SessionId>,
    pub out: Out,
    pub subscriptions: Subscriptions,
    pub flow: Option<Box<Flow>>,
    pub peer: Peer,
    /// Present until CONNACK is sent.
    pub connecting: Option<Box<Connecting>>,
    /// State that few clients have.
    pub extra: Option<Box<Extra>>,
}

const _: () = assert!(size_of::<Connection>() <= 176, "a byte here is a megabyte per million connections");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    AwaitConnect,
    /// An enhanced authentication is in progress: only AUTH and DISCONNECT may arrive [MQTT-3.1.2-30].
    Exchanging,
    /// Access control is deciding.
    Authenticating,
    /// The store is deciding which connection serves the Client Identifier.
    Claiming,
    Open,
    /// Bytes may still be sent; nothing is read any more.
    Closing,
}

/// Party that has opened a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    #[default]
    Client,
    /// A client that is a bridge of another broker, which MQTT 3.1.1 says by a bit of the protocol level.
    Bridge,
    /// The process has made the connection to itself.
    Process,
    /// The same, for an action. It gets the origin of each message.
    Action,
    /// The same, and messages of QoS 0 are stored for the durable session, which gets them with QoS 1.
    ActionStoringQos0,
    /// A linked cluster, which access control has admitted with [`LinkTerms`](crate::access::LinkTerms).
    Link,
}

impl Role {
    pub fn is_process(self) -> bool {
        matches!(self, Self::Process | Self::Action | Self::ActionStoringQos0)
    }

    pub fn gets_origins(self) -> bool {
        matches!(self, Self::Action | Self::ActionStoringQos0)
    }
}

/// State of reading from a connection, as the edge knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reading {
    #[default]
    Continues,
    /// The edge keeps the bytes until the connection is woken.
    Held,
    /// The edge keeps the bytes until the next turn, even if the connection is woken before.
    Paused,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// The connection is in the worker's list of connections with something to write.
    pub dirty: bool,
    pub reading: Reading,
    /// Reason Strings and User Properties may be sent [MQTT-3.1.2-29].
    pub problem_information: bool,
    /// A Claim was sent for the connection, so a Release has to follow.
    pub claimed: bool,
    /// CONNACK was sent before the Claim was answered. Until the answer the client gets nothing else.
    pub early: bool,
    /// The shard keeps the connection's ephemeral session and its Will.
    pub kept: bool,
    /// The connection was to be closed, and the time for that has passed.
    pub overdue: bool,
    /// The connection is in the worker's list of connections with waiting messages.
    pub backlogged: bool,
    /// The client has a mountpoint.
    pub mounted: bool,
    pub role: Role,
    /// The client has rates of its own.
    pub paced: bool,
    /// The subscriptions have to be checked again because another server had to be asked.
    pub recheck: bool,
    /// True when the queue was full for too long recently: no publisher waits for it.
    pub drops: bool,
    /// The timer for CONNECT does no more for Keep Alive: another one runs, or none is needed.
    pub keep_alive_timed: bool,
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
    /// End of the admission.
    pub expires: Option<Time>,
    pub enhanced: Option<Enhanced>,
    /// Accounts that pay for the connection's resources, from its admission until it ends.
    pub payers: Payers,
    /// Bytes for the session that are charged to the payers.
    pub charged_bytes: u64,
}

/// Enhanced authentication of a connection.
pub(crate) struct Enhanced {
    pub method: Box<str>,
    /// The run in progress, if there is one.
    pub run: Option<Box<dyn Mechanism>>,
}

/// Address of a client, in as few bytes as an idle connection may take.
#[derive(Clone, Debug, Default)]
pub(crate) enum Peer {
    /// A Unix socket, or no address.
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

/// Data of CONNECT that is needed for CONNACK.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub clean_start: bool,
    pub asked_expiry: u32,
    pub assigned: bool,
    pub response_information: bool,
    pub server_keep_alive: bool,
    /// Number of questions about the Will.
    pub attempts: u8,
    /// The last Authentication Data, for CONNACK.
    pub authentication_data: Option<Vec<u8>>,
    /// Limits of the session's queue, of a connection that the process makes to itself.
    pub queue_limits: Option<QueueLimits>,
    /// Properties of CONNECT, if an event has them.
    pub properties: Option<Box<[u8]>>,
}

/// State of messages in both directions.
#[derive(Default)]
pub(crate) struct Flow {
    pub inbound: Inbound<ShardSet>,
    pub aliases_in: InboundAliases,
    pub aliases_out: Option<OutboundAliases>,
    /// Deliveries in flight of an ephemeral session. One keeps its message only when the message may have to go to
    /// another member.
    pub deliveries: Deliveries<Enqueue>,
    /// Messages that wait for the window of an ephemeral session, and those that wait for a slot in its queue.
    pub queue: MessageQueue,
    /// [`Access::generation`](crate::access::Access::generation) of the rules that allowed the first of the waiting
    /// messages, or [`UNCHECKED`].
    pub waiting_rules: u64,
    /// Bytes of the messages that wait, and of those in flight that are kept for another member of their group.
    pub held_bytes: usize,
    /// True while a timer runs for the oldest message that waits for a slot.
    pub wait_timed: bool,
    /// Time at which a message last left the queue, or at which the first one was queued.
    pub place_freed: Time,
    /// Time from which the client is measured: when the queue was last empty, became full for the first time after
    /// that, or had sent all messages that waited before.
    pub waiting_since: Time,
    /// Messages that were in the queue at `waiting_since` and still are.
    pub waiting_left: usize,
    /// The queue was full once since `waiting_since`.
    pub was_full: bool,
    /// Time for which publishers have waited since `waiting_since`.
    pub full: FullTime,
    /// The client was remembered for its full queue during this connection.
    pub noted_full: bool,
    /// Deliveries of a durable session that wait for room in `out`.
    pub ready: VecDeque<SessionDelivery>,
    /// Retained messages for new subscriptions, still to be delivered.
    pub retained: RetainedJobs,
    /// A page of retained messages was requested and has not arrived.
    pub page_asked: bool,
    /// The queue of the durable session has room for a page.
    pub room_for_page: bool,
    /// Pace at which retained messages are looked at for this client.
    pub pace: Pace,
    /// Topics of retained messages that arrived as live messages while `retained` was not empty, each with the value of
    /// `steps` at that time. A message of a page for such a topic is older.
    pub overtaken: HashMap<Box<str>, u32>,
    /// Number of new subscriptions and overtaken messages.
    pub steps: u32,
    pub acknowledging: VecDeque<PendingAck>,
    /// SUBSCRIBE and UNSUBSCRIBE packets that are handled in pieces. Only the last one may have more pieces to handle.
    pub divided: Vec<Divided>,
    pub blocked: Option<Blocked>,
    /// A packet that has begun to arrive. It is kept until its timer finds that nothing is missing any more.
    pub unfinished: Option<Unfinished>,
    /// Time at which a timer tries `blocked` again, unless that is past.
    pub retry_at: Time,
    pub budget: Budget,
    pub permissions: Permissions,
    /// Number of the question about the packet that waits for its permission, and how often it was asked.
    pub questions: u32,
    pub attempts: u8,
    /// Answer about room for the retained message that waits for it.
    pub room: RetainRoom,
    pub probe: Probe,
}

/// Pace at which retained messages are looked at for one client: those of one second at once, then a steady rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Microsecond of the node's time up to which past work has been spread.
    spread_us: u64,
    /// True while a timer runs.
    pub timed: bool,
}

impl Pace {
    /// Cost of a page, as a number of messages that are looked at.
    const PAGE: u64 = 16;
    const BURST_MS: u64 = 1000;

    /// Records a page for which `examined` messages were looked at.
    pub fn spend(&mut self, now: Time, examined: usize, per_second: u32) {
        let examined = examined as u64 + Self::PAGE;
        self.spread_us =
            self.spread_us.max(now.0 * 1000) + examined * 1_000_000 / u64::from(per_second.max(1));
    }

    /// Time from which the next page may be requested.
    pub fn next(&self) -> Time {
        Time((self.spread_us / 1000).saturating_sub(Self::BURST_MS))
    }
}

/// An incomplete packet and the time at which its timer started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    /// Bytes of the packet that have arrived; 0 when it is complete.
    pub len: u32,
    /// `len` at the time when the timer started.
    pub len_before: u32,
    pub since: Time,
}

impl Unfinished {
    /// Number of arriving bytes that restart the timer.
    const PROGRESS: u32 = 1024;

    /// Records that part of the packet has arrived: `len` bytes in total, of a new packet or of the same one.
    pub fn arrived(&mut self, now: Time, len: u32, is_new: bool) {
        if is_new || self.len == 0 {
            (self.since, self.len_before) = (now, 0);
        } else if len - self.len_before.min(len) >= Self::PROGRESS {
            (self.since, self.len_before) = (now, len);
        }
        self.len = len;
    }
}

/// Answer to whether a retained message can be stored while little room is left. The question is asked before the
/// message is dispatched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainRoom {
    #[default]
    NotRequested,
    Requested,
    Known(bool),
}

/// One delivery that is observed until its acknowledgement; one at a time.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    pub packet_id: Option<PacketId>,
    /// Time at which the message arrived, or the client if that was later.
    pub since: Time,
    /// First bytes of the Topic Name.
    pub topic: String,
    /// Time before which the delivery is not reported again.
    pub report_after: Time,
}

impl Probe {
    /// Starts to observe a delivery to a client that connected in second `connected_at`.
    pub fn begin(&mut self, packet_id: PacketId, view: &MessageView<'_>, connected_at: u32) {
        self.packet_id = Some(packet_id);
        self.since = view.received.max(Time(u64::from(connected_at) * 1000));
        self.topic.clear();
        self.topic.push_str(&view.topic[..view.topic.floor_char_boundary(PROBE_TOPIC)]);
    }
}

/// Generation of no rules: each message is checked when it is sent.
pub(crate) const UNCHECKED: u64 = u64::MAX;

/// Bytes in queues that a user or a mountpoint may have, as a multiple of those of one client.
const SHARES_OF_PAYER: u64 = 3;

/// Bytes of a Topic Name that a probe keeps.
const PROBE_TOPIC: usize = 256;

/// Maximum number of remembered topics while a connection receives retained messages.
const OVERTAKEN_MAX: usize = 4096;

/// A SUBACK or UNSUBACK that waits for the store.
#[derive(Debug)]
pub(crate) struct PendingAck {
    pub ticket: Ticket,
    pub kind: AckKind,
    /// [`Access::generation`](crate::access::Access::generation) of the rules that allowed the subscriptions.
    pub rules: u64,
    /// Nodes that have to know the subscriptions once this node does; `Local` when no other node has to any more.
    pub level: SubackLevel,
    /// Linked clusters that have to know the subscriptions once all nodes do.
    pub links: LinksStage,
    /// Route position of the session's shard that other nodes have to reach, if the shard belongs to a cluster.
    pub shard: Option<(ShardId, u64)>,
    pub outstanding: u32,
    /// The session's shard has answered. Its answer may come again.
    pub is_answered: bool,
    pub reasons: Vec<u8>,
    pub filters: Vec<PendingFilter>,
    /// Limits that the refused subscriptions exceeded.
    pub exceeded: ExceededLimits,
    /// Bytes of the filters of a durable session, as limits count them.
    pub bytes: usize,
    /// Number of shared subscriptions of the durable session.
    pub shared: u32,
}

/// Progress of a SUBACK that waits for links to other clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinksStage {
    /// Nothing is to be waited for, or not any more.
    Done,
    /// The wait begins when all nodes of this cluster know the subscriptions.
    Due,
    /// One completion comes from the links.
    Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    Sub,
    Unsub,
}

/// One filter of a pending SUBSCRIBE or UNSUBSCRIBE.
#[derive(Debug)]
pub(crate) struct PendingFilter {
    /// Filter as the client wrote it.
    pub text: Box<str>,
    pub options: Options,
    pub subscription_id: u32,
    /// Index of its Reason Code.
    pub index: u32,
    pub shared: bool,
    pub existed: bool,
}

impl PendingFilter {
    /// Makes a filter to be removed, whose Reason Code is at `index`.
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

/// A packet that has to wait, and the packets after it.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    /// Complete packets, from `from` on.
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

    /// Removes the first packet, which has `length` bytes.
    pub fn pop(&mut self, length: usize) {
        self.from += length;
        // A client may make the broker look at these many times: no byte is moved more than twice.
        if self.from * 2 >= self.parked.len() {
            self.parked.drain(..self.from);
            self.from = 0;
        }
    }
}

impl Flow {
    /// Records that a message has left the queue.
    pub fn note_left(&mut self, now: Time) {
        self.place_freed = now;
        if self.waiting_left > 1 {
            self.waiting_left -= 1;
        } else {
            // All messages that waited then have been sent: the client is slow, but it works.
            self.restart_wait(now);
            self.was_full = self.queue.overflowing() > 0;
        }
    }

    /// Records that a message finds no slot and is the first that waits for one. If the queue was full before and
    /// earlier messages still wait, the client gets no additional time. Otherwise one publisher with one message at a
    /// time would wait without end.
    pub fn becomes_full(&mut self, now: Time) {
        if !std::mem::replace(&mut self.was_full, true) {
            self.restart_wait(now);
        }
        self.full.begins(now);
    }

    /// Restarts the time in which the messages that wait now have to be sent.
    pub fn restart_wait(&mut self, now: Time) {
        self.waiting_since = now;
        self.waiting_left = self.queue.queued();
        self.full.restarts(now);
    }

    /// Records that a retained message has arrived as a live message.
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

    /// Ends the first job: its subscription has all its retained messages.
    pub fn end_retained(&mut self) {
        self.retained.end_first();
        self.forget_overtaken();
    }

    /// Ends what is left of the retained messages for a subscription that is being replaced.
    pub fn replace_retained(&mut self, filter: &str) {
        self.retained.replace(filter, self.page_asked);
        self.forget_overtaken();
    }

    /// Ends the first job if its subscription was replaced while its page was on the way. Returns whether it was.
    pub fn end_replaced(&mut self) -> bool {
        let was_replaced = self.retained.take_replaced();
        self.forget_overtaken();
        was_replaced
    }

    fn forget_overtaken(&mut self) {
        if self.retained.is_empty() {
            self.overtaken = HashMap::new();
            self.steps = 0;
        }
    }

    /// Returns whether no message waits for the window, for room in the output or in the retained messages.
    #[inline]
    pub fn has_nothing_to_send(&self) -> bool {
        self.queue.is_empty() && self.ready.is_empty() && self.retained.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.inbound.is_empty()
            && self.deliveries.is_empty()
            && self.queue.is_empty()
            && self.ready.is_empty()
            && self.retained.is_empty()
            && !self.page_asked
            && self.acknowledging.is_empty()
            && self.divided.is_empty()
            && self.blocked.is_none()
    }

    /// Returns whether it holds nothing that a later packet of this connection refers to.
    pub fn is_forgettable(&self) -> bool {
        // Packet Identifiers start again with a new flow, which is correct while none is in use. Aliases exist as long
        // as the connection [MQTT-3.3.2-7].
        self.is_idle()
            && self.unfinished.is_none()
            && self.inbound.is_forgettable()
            && self.aliases_in.is_empty()
            && self.aliases_out.is_none()
    }
}

impl Connection {
    /// Longest silence of the client before it is disconnected: 1.5 times Keep Alive [MQTT-3.1.2-22].
    pub fn silence_max(&self) -> Duration {
        Duration::from_millis(u64::from(self.keep_alive) * 1500)
    }

    #[inline]
    pub fn flow(&mut self) -> &mut Flow {
        #[cold]
        fn begin() -> Box<Flow> {
            Box::default()
        }
        self.flow.get_or_insert_with(begin)
    }

    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_with(Box::default)
    }

    /// Appends a packet to the output. Returns false and appends nothing when the packet is larger than the client
    /// accepts [MQTT-3.1.2-24]. The broker sends no User Properties of its own, which would have to be left out first
    /// [MQTT-3.2.2-20] [MQTT-3.14.2-4] [MQTT-3.15.2-2] [MQTT-3.15.2-3].
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

    /// Checks that no SUBSCRIBE or UNSUBSCRIBE uses the Packet Identifier [MQTT-2.2.1-3]: the completions of two could
    /// not be distinguished.
    pub fn check_unused(&self, packet_id: PacketId) -> Result<(), ReasonCode> {
        let in_use = |flow: &Flow| {
            flow.acknowledging.iter().any(|pending| pending.ticket == Ticket::of(packet_id))
                || flow.divided.iter().any(|divided| divided.packet_id() == packet_id)
        };
        if self.flow.as_deref().is_some_and(in_use) { Err(ReasonCode::ProtocolError) } else { Ok(()) }
    }

    /// Returns whether the queue has room for one more message. The client must be within its own limits. The client,
    /// its user and its mountpoint must be within their shares of the node's free memory.
    pub fn has_queue_room(&self, share: u64, queue: &Queue) -> bool {
        let Some(flow) = self.flow.as_deref() else { return true };
        // One message may always wait, whatever others hold: it is the next for the client.
        if flow.held_bytes == 0 {
            return true;
        }
        let bytes_max = queue.bytes_max.bytes().min(share);
        flow.queue.queued() < queue.messages_max as usize
            && (flow.held_bytes as u64) < bytes_max
            && self.extra.as_deref().is_none_or(|extra| {
                extra.payers.most_used(Resource::QueuedBytes) < share.saturating_mul(SHARES_OF_PAYER)
            })
    }

    /// Adds bytes that wait for the client.
    pub fn hold(&mut self, bytes: usize) {
        self.flow().held_bytes += bytes;
        if let Some(extra) = self.extra.as_deref() {
            extra.payers.charge(Resource::QueuedBytes, bytes as u64);
        }
    }

    /// Subtracts bytes that no longer wait for the client.
    pub fn release(&mut self, bytes: usize) {
        if let Some(flow) = self.flow.as_deref_mut() {
            flow.held_bytes -= bytes;
        }
        if let Some(extra) = self.extra.as_deref() {
            extra.payers.release(Resource::QueuedBytes, bytes as u64);
        }
    }

    /// Source of the client, for the record of full queues.
    pub fn source(&self, node: &Node) -> Option<Source> {
        let address = self.peer()?.ip();
        let user = self.username().map(|user| node.owner_key(self.mountpoint(), Some(user)));
        Some(Source::new(user.unwrap_or(OwnerKey::NOBODY), address))
    }

    /// Bytes that the node holds for the client's session.
    pub fn session_bytes(&self) -> usize {
        let will = self.extra.as_ref().and_then(|extra| extra.will.as_ref());
        let waiting = self.flow.as_ref().map_or(0, |flow| {
            let divided: usize = flow.divided.iter().map(Divided::bytes).sum();
            flow.acknowledging.iter().map(|it| it.bytes).sum::<usize>() + divided
        });
        self.subscriptions.bytes() + waiting + self.client_id.len() + will.map_or(0, |(will, _)| will.size())
    }

    /// Number of shared subscriptions that the client has and requests, including those of `pending`.
    pub fn shared_subscriptions(&self, pending: &PendingAck) -> usize {
        let acknowledging = self.flow.iter().flat_map(|flow| &flow.acknowledging);
        let requested: u32 = acknowledging.chain([pending]).map(|it| it.shared).sum();
        self.subscriptions.shared() + requested as usize
    }

    /// Starts to observe this delivery, unless another one is being observed.
    pub fn watch_delivery(&mut self, packet_id: PacketId, view: &MessageView<'_>) {
        let connected_at = self.connected_at;
        if let Some(flow) = self.flow.as_deref_mut().filter(|flow| flow.probe.packet_id.is_none()) {
            flow.probe.begin(packet_id, view, connected_at);
        }
    }

    /// Maximum number of unacknowledged messages of QoS 1 and 2 from the client. The process keeps its own limits: a
    /// link over a long distance has thousands in flight.
    #[inline]
    pub fn receive_max(&self, mqtt: &Mqtt) -> u16 {
        if self.marks.role.is_process() { u16::MAX } else { mqtt.receive_max }
    }

    /// Returns whether the client gets every plain message of QoS 1 and 2 as the same packet, except for the Packet
    /// Identifier.
    #[inline]
    pub fn is_plain_receiver(&self) -> bool {
        self.phase == Phase::Open
            && !self.marks.mounted
            && !self.marks.role.gets_origins()
            && self.marks.role != Role::Link
            && self.alias_max == 0
            && self.packet_size_max == u32::MAX
    }

    /// Returns whether the client has CONNACK, and its Claim is not answered.
    pub fn is_claiming_early(&self) -> bool {
        self.phase == Phase::Claiming && self.marks.early
    }

    /// Returns whether the client was accepted and is connected, as far as it knows.
    pub fn has_connack(&self) -> bool {
        self.phase == Phase::Open || self.is_claiming_early()
    }

    /// Messages that wait in the queue of the client.
    pub fn waiting(&self, now: Time) -> Option<Waiting> {
        let flow = self.flow.as_deref()?;
        let oldest = now.since(flow.queue.oldest()?);
        Some(Waiting { messages: flow.queue.len() as u64, oldest })
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

    /// Mountpoint of the client; empty when it has none.
    pub fn mountpoint(&self) -> &str {
        if !self.marks.mounted {
            return "";
        }
        let principal = self.extra.as_ref().and_then(|extra| extra.principal.as_ref());
        principal.and_then(|principal| principal.mountpoint.as_deref()).unwrap_or_default()
    }

    /// Converts a topic of the node to the client's topic; `None` outside of its mountpoint.
    pub fn unmounted<'t>(&self, topic: &'t str) -> Option<&'t str> {
        if self.marks.mounted { topic.strip_prefix(self.mountpoint()) } else { Some(topic) }
    }

    /// Client Identifier as the client knows it.
    pub fn own_client_id(&self) -> &str {
        self.unmounted(&self.client_id).unwrap_or(&self.client_id)
    }

    /// Credentials for access control, at CONNECT or when the client authenticates again.
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

/// Makes an entry for the queue of an ephemeral session.
pub(crate) fn queued(
    message: Message,
    qos: mqtt::QoS,
    retain: bool,
    ids: &[u32],
    group: Option<GroupId>,
) -> Enqueue {
    Enqueue { message, qos, retain, subscription_ids: SubscriptionIds::of(ids), group }
}
