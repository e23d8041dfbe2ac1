//! What a worker keeps of one Network Connection.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::sync::Arc;

use mqtt::{Packet, PacketId, ReasonCode, Version};
use session::{Deliveries, Inbound, InboundAliases, OutboundAliases};

use crate::access::Mechanism;
use crate::ids::{ConnectionId, GroupId, SessionId, Time};
use crate::mail::{SessionDelivery, SubscriptionIds};
use crate::message::Message;
use crate::route::Options;
use crate::store::Enqueue;

/// One Network Connection and the session it serves.
///
/// An idle one is this struct and little more: everything that only traffic needs is in [`Flow`], which comes and goes.
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub phase: Phase,
    pub version: Version,
    pub marks: Marks,
    /// Seconds; 0 is none.
    pub keep_alive: u16,
    /// When the last complete packet came, or the connection was opened.
    pub last_packet: Time,
    pub client_id: Arc<str>,
    pub client_hash: u32,
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
}

#[derive(Default)]
pub(crate) struct Extra {
    pub username: Option<Box<str>>,
    pub will: Option<(Message, u32)>,
    pub enhanced: Option<Enhanced>,
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
    pub waiting_bytes: usize,
    /// Messages that wait for a place among `deliveries`, most of them with their publishers.
    pub overflow: VecDeque<Overflow>,
    /// A timer runs for the oldest of them.
    pub wait_timed: bool,
    /// When one of them last found a place.
    pub place_freed: Time,
    /// Deliveries of a durable session that wait for room in `out`.
    pub ready: VecDeque<SessionDelivery>,
    /// Retained messages that new subscriptions are to get.
    pub retained: VecDeque<RetainedJob>,
    /// A page of retained messages is on its way.
    pub page_asked: bool,
    pub acknowledging: VecDeque<PendingAck>,
    pub blocked: Option<Blocked>,
    /// When a timer tries `blocked` again, unless that is past.
    pub retry_at: Time,
    pub budget: Budget,
}

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
    pub after: Option<Box<str>>,
}

/// A SUBACK or UNSUBACK that waits for the store.
#[derive(Debug)]
pub(crate) struct PendingAck {
    pub packet_id: PacketId,
    pub kind: AckKind,
    pub outstanding: u32,
    pub reasons: Vec<u8>,
    pub filters: Vec<PendingFilter>,
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

/// Messages and bytes of the present second, for `limits.messages_per_second` and `limits.bytes_per_second`.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    pub until: Time,
    pub messages: u32,
    pub bytes: u64,
}

impl Flow {
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
        self.is_idle() && self.aliases_in.is_empty() && self.aliases_out.is_none()
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
    /// [MQTT-3.1.2-24].
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
        let in_use = |flow: &Flow| flow.acknowledging.iter().any(|pending| pending.packet_id == packet_id);
        if self.flow.as_deref().is_some_and(in_use) { Err(ReasonCode::ProtocolError) } else { Ok(()) }
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

    pub fn identity(&self) -> crate::access::Identity<'_> {
        let peer = self.peer().map(|peer| peer.ip());
        crate::access::Identity { client_id: &self.client_id, username: self.username(), peer }
    }
}

/// Bytes to be written: small packets one after the other in a vector lent from the worker's pool, and between them, by
/// reference, the payloads of large messages that several connections get.
#[derive(Debug, Default)]
pub struct Out {
    bytes: Vec<u8>,
    written: usize,
    /// What stands between `bytes`, in order; `None` while there is nothing.
    shared: Option<Box<SharedPayloads>>,
}

#[derive(Debug, Default)]
struct SharedPayloads {
    payloads: VecDeque<SharedPayload>,
    /// Bytes of all of them that have yet to leave.
    len: usize,
}

#[derive(Debug)]
struct SharedPayload {
    /// Index in `Out::bytes` before which it stands.
    at: usize,
    message: Message,
    /// The part of the message that has yet to leave.
    rest: Range<usize>,
}

impl Out {
    /// The first bytes to be written, up to the end or to where a shared payload begins or ends.
    pub fn pending(&self) -> &[u8] {
        match self.shared.as_ref().and_then(|shared| shared.payloads.front()) {
            None => &self.bytes[self.written..],
            Some(payload) if payload.at > self.written => &self.bytes[self.written..payload.at],
            Some(payload) => &payload.message.as_bytes()[payload.rest.clone()],
        }
    }

    /// Appends to `slices` what [`Self::pending`] begins, as far as there is room. Empty when one slice is all there is.
    pub fn pending_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let Some(shared) = &self.shared else { return 0 };
        let (mut count, mut from) = (0, self.written);
        let mut add = |bytes: &'a [u8]| {
            if !bytes.is_empty()
                && let Some(slice) = slices.get_mut(count)
            {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
        };
        for payload in shared.payloads.iter().take(PAYLOADS_AT_ONCE) {
            add(&self.bytes[from..payload.at]);
            add(&payload.message.as_bytes()[payload.rest.clone()]);
            from = payload.at;
        }
        if shared.payloads.len() <= PAYLOADS_AT_ONCE {
            add(&self.bytes[from..]);
        }
        count
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.written + self.shared.as_ref().map_or(0, |shared| shared.len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` bytes have left.
    pub fn advance(&mut self, mut count: usize) {
        while let Some(shared) = self.shared.as_mut()
            && let Some(payload) = shared.payloads.front_mut()
        {
            let before = count.min(payload.at - self.written);
            self.written += before;
            count -= before;
            let part = count.min(payload.rest.len());
            payload.rest.start += part;
            shared.len -= part;
            count -= part;
            if !payload.rest.is_empty() {
                return;
            }
            shared.payloads.pop_front();
            if shared.payloads.is_empty() {
                self.shared = None;
            }
        }
        self.written += count;
        debug_assert!(self.written <= self.bytes.len());
        if self.is_empty() {
            self.bytes.clear();
            self.written = 0;
        } else if self.written >= COMPACT_AT {
            self.bytes.drain(..self.written);
            for payload in self.shared.iter_mut().flat_map(|shared| &mut shared.payloads) {
                payload.at -= self.written;
            }
            self.written = 0;
        }
    }

    /// Where packets are appended.
    pub(crate) fn buffer(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = pool.lend();
        }
        &mut self.bytes
    }

    /// Appends the last `len` bytes of a message by reference.
    pub(crate) fn append_shared(&mut self, message: Message, len: usize) {
        let shared = self.shared.get_or_insert_default();
        let end = message.size();
        shared.len += len;
        shared.payloads.push_back(SharedPayload { at: self.bytes.len(), message, rest: end - len..end });
    }

    pub(crate) fn give_back(&mut self, pool: &mut Pool) {
        if self.is_empty() && self.bytes.capacity() > 0 {
            let bytes = std::mem::take(&mut self.bytes);
            self.written = 0;
            pool.take_back(bytes);
        }
    }

    pub(crate) fn discard(&mut self) {
        *self = Self::default();
    }
}

/// Shared payloads offered to one gathering write.
const PAYLOADS_AT_ONCE: usize = 16;
/// Slices that [`Out::pending_slices`] may need.
pub const OUT_SLICES_MAX: usize = 2 * PAYLOADS_AT_ONCE + 1;
const COMPACT_AT: usize = 64 * 1024;

/// Empty output buffers of one worker, lent to connections while they have something to send.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Bytes that the buffers of one pool take together.
const POOL_BYTES: usize = 8 * 1024 * 1024;
/// Buffers in one pool.
const POOL_BUFFERS: usize = 4096;
/// Largest buffer that is kept.
const POOLED_BYTES: usize = 256 * 1024;

impl Pool {
    fn lend(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    fn take_back(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes <= POOLED_BYTES && self.bytes + bytes <= POOL_BYTES && self.buffers.len() < POOL_BUFFERS {
            self.bytes += bytes;
            self.buffers.push(buffer);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.buffers.len()
    }
}

/// A client's subscriptions: a list while they are few, a map when they are many.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "most connections have few, and a map inside would make each of them larger"
)]
pub(crate) enum Subscriptions {
    Few(Vec<(Box<str>, Options)>),
    Many(Box<HashMap<Box<str>, Options>>),
}

const FEW: usize = 16;

impl Default for Subscriptions {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Subscriptions {
    pub fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(map) => map.len(),
        }
    }

    pub fn contains(&self, filter: &str) -> bool {
        match self {
            Self::Few(list) => list.iter().any(|(known, _)| **known == *filter),
            Self::Many(map) => map.contains_key(filter),
        }
    }

    /// True when the filter was there already.
    pub fn insert(&mut self, filter: Box<str>, options: Options) -> bool {
        match self {
            Self::Few(list) => {
                if let Some(known) = list.iter_mut().find(|(known, _)| *known == filter) {
                    known.1 = options;
                    return true;
                }
                if list.len() < FEW {
                    list.reserve_exact(1);
                    list.push((filter, options));
                } else {
                    let mut map: HashMap<_, _> = std::mem::take(list).into_iter().collect();
                    map.insert(filter, options);
                    *self = Self::Many(Box::new(map));
                }
                false
            }
            Self::Many(map) => map.insert(filter, options).is_some(),
        }
    }

    pub fn remove(&mut self, filter: &str) -> bool {
        match self {
            Self::Few(list) => {
                let before = list.len();
                list.retain(|(known, _)| **known != *filter);
                list.len() < before
            }
            Self::Many(map) => map.remove(filter).is_some(),
        }
    }

    /// The filters for which `holds` is false.
    pub fn filters_not(&self, holds: impl Fn(&str, Options) -> bool) -> Vec<Box<str>> {
        let not = |filter: &str, options: &Options| (!holds(filter, *options)).then(|| filter.into());
        match self {
            Self::Few(list) => list.iter().filter_map(|(filter, options)| not(filter, options)).collect(),
            Self::Many(map) => map.iter().filter_map(|(filter, options)| not(filter, options)).collect(),
        }
    }

    pub fn into_filters(self) -> Vec<Box<str>> {
        match self {
            Self::Few(list) => list.into_iter().map(|(filter, _)| filter).collect(),
            Self::Many(map) => map.into_keys().collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_found_few_or_many() {
        let mut subscriptions = Subscriptions::default();
        for number in 0..40 {
            assert!(!subscriptions.insert(format!("f/{number}").into(), Options::default()));
            assert!(subscriptions.insert(format!("f/{number}").into(), Options::default()));
        }
        assert_eq!(subscriptions.len(), 40);
        assert!(subscriptions.contains("f/39"));
        assert!(subscriptions.remove("f/39"));
        assert!(!subscriptions.remove("f/39"));
        assert_eq!(subscriptions.into_filters().len(), 39);
    }

    /// Everything that leaves, in pieces of `piece` bytes.
    fn left(out: &mut Out, piece: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); OUT_SLICES_MAX];
            let count = out.pending_slices(&mut slices);
            let gathered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            let first = out.pending();
            assert!(!first.is_empty() && (count == 0 || gathered.starts_with(first)));
            let bytes = if count == 0 { first.to_vec() } else { gathered };
            let piece = piece.min(bytes.len());
            all.extend_from_slice(&bytes[..piece]);
            out.advance(piece);
        }
        all
    }

    #[test]
    fn shared_payloads_leave_in_their_place() {
        let view = crate::message::MessageView {
            topic: "t",
            properties: &[],
            payload: b"PAYLOAD",
            qos: mqtt::QoS::AtMostOnce,
            retain: false,
            expires: Time::NEVER,
            publisher: None,
            publisher_hash: 0,
        };
        let message = view.to_message();
        for piece in [1, 2, 3, 5, 8, 13, 100] {
            let (mut pool, mut out, mut expected) = (Pool::default(), Out::default(), Vec::new());
            for round in 0..40_u8 {
                out.buffer(&mut pool).extend_from_slice(&[round; 3]);
                out.append_shared(message.clone(), 7);
                if round % 3 == 0 {
                    out.append_shared(message.clone(), 2);
                }
                expected.extend_from_slice(&[round; 3]);
                expected.extend_from_slice(b"PAYLOAD");
                if round % 3 == 0 {
                    expected.extend_from_slice(b"AD");
                }
            }
            out.buffer(&mut pool).push(b'.');
            expected.push(b'.');
            assert_eq!(out.len(), expected.len());
            assert_eq!(left(&mut out, piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn written_bytes_leave_and_the_buffer_goes_back() {
        let mut pool = Pool::default();
        let mut out = Out::default();
        out.buffer(&mut pool).extend_from_slice(b"hello");
        out.advance(2);
        assert_eq!(out.pending(), b"llo");
        out.give_back(&mut pool);
        assert_eq!(pool.len(), 0, "not while bytes are pending");
        out.advance(3);
        out.give_back(&mut pool);
        assert_eq!(pool.len(), 1);
        out.buffer(&mut pool).push(1);
        assert_eq!((pool.len(), out.pending()), (0, &[1_u8][..]));
    }
}
