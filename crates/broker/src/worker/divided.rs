//! SUBSCRIBE and UNSUBSCRIBE packets with many filters. One packet may have 100,000, and other clients of its worker
//! are not to wait for them, so each turn handles a piece. SUBACK or UNSUBACK follows the last one.

use std::collections::VecDeque;

use mqtt::{
    Packet, PacketId, PropertiesBuf, Property, SubAck, Subscribe, SubscribeFiltersBuf, Unsubscribe,
    UnsubscribeFiltersBuf,
};

use super::receive::{FAN_OUT_MAX, UNANSWERED_MAX};
use super::{ExceededLimits, Worker};
use crate::connection::{AckKind, Connection, Flow, PendingAck, Phase};
use crate::ids::Ticket;
use crate::peers::SubackLevel;

/// Maximum number of filters that one client adds or removes in a turn: less than a millisecond.
pub(super) const FILTERS_AT_ONCE: usize = 256;

/// Maximum number of pieces that wait for the store. Packets that do not wait, such as PINGREQ, are still handled.
const PIECES_UNANSWERED_MAX: usize = UNANSWERED_MAX / 2;

/// Cost of a filter, as a number of deliveries ([`FAN_OUT_MAX`]).
pub(super) const FILTER_FAN_OUT: u64 = FAN_OUT_MAX / FILTERS_AT_ONCE as u64;

/// A SUBSCRIBE or UNSUBSCRIBE in pieces. Each piece is handled like a packet of its own, under a ticket of its own, and
/// leaves its Reason Codes here.
#[derive(Debug)]
pub(crate) struct Divided {
    packet_id: PacketId,
    kind: AckKind,
    level: SubackLevel,
    subscription_id: u32,
    /// Pieces that no turn has handled.
    pieces: VecDeque<Piece>,
    /// Number of filters of each piece but the last one.
    piece_len: usize,
    /// Bytes of the filters of `pieces`.
    bytes: usize,
    /// Number of pieces that a turn has handled.
    begun: u32,
    /// Number of pieces that are complete.
    ended: u32,
    /// The next turn handles the next piece.
    is_scheduled: bool,
    reasons: Vec<u8>,
    exceeded: ExceededLimits,
}

#[derive(Debug)]
enum Piece {
    Subscribe(SubscribeFiltersBuf),
    Unsubscribe(UnsubscribeFiltersBuf),
}

impl Piece {
    /// Bytes of its filters.
    fn bytes(&self) -> usize {
        match self {
            Self::Subscribe(piece) => piece.as_filters().iter().map(|(text, _)| text.len()).sum(),
            Self::Unsubscribe(piece) => piece.as_filters().iter().map(str::len).sum(),
        }
    }
}

impl Divided {
    pub fn of_subscribe(subscribe: &Subscribe<'_>, level: SubackLevel, subscription_id: u32) -> Self {
        let mut divided = Self::new(subscribe.packet_id, AckKind::Sub, subscribe.filters.len());
        (divided.level, divided.subscription_id) = (level, subscription_id);
        let mut filters = subscribe.filters.iter().peekable();
        while filters.peek().is_some() {
            let mut piece = SubscribeFiltersBuf::default();
            for (text, options) in filters.by_ref().take(divided.piece_len) {
                divided.bytes += text.len();
                piece.push(text, options);
            }
            divided.pieces.push_back(Piece::Subscribe(piece));
        }
        divided
    }

    pub fn of_unsubscribe(unsubscribe: &Unsubscribe<'_>) -> Self {
        let mut divided = Self::new(unsubscribe.packet_id, AckKind::Unsub, unsubscribe.filters.len());
        let mut filters = unsubscribe.filters.iter().peekable();
        while filters.peek().is_some() {
            let mut piece = UnsubscribeFiltersBuf::default();
            for text in filters.by_ref().take(divided.piece_len) {
                divided.bytes += text.len();
                piece.push(text);
            }
            divided.pieces.push_back(Piece::Unsubscribe(piece));
        }
        divided
    }

    fn new(packet_id: PacketId, kind: AckKind, filters: usize) -> Self {
        // Tickets have numbers for so many pieces.
        let piece_len = filters.div_ceil(Ticket::PIECES_MAX).max(FILTERS_AT_ONCE);
        Self {
            packet_id,
            kind,
            level: SubackLevel::Local,
            subscription_id: 0,
            pieces: VecDeque::with_capacity(filters.div_ceil(piece_len)),
            piece_len,
            bytes: 0,
            begun: 0,
            ended: 0,
            is_scheduled: false,
            reasons: vec![0; filters],
            exceeded: ExceededLimits::default(),
        }
    }

    pub fn packet_id(&self) -> PacketId {
        self.packet_id
    }

    /// Bytes of the filters that no turn has handled. They are less than what the same filters count as subscriptions,
    /// so a packet that fits into the limits at its end fits all the time.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a later turn handles more of the packet.
    fn has_more(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Takes the next piece, with its ticket.
    fn next_piece(&mut self) -> Option<(Ticket, Piece)> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.bytes();
        let ticket = Ticket::of_piece(self.packet_id, self.begun);
        self.begun += 1;
        Some((ticket, piece))
    }

    /// Puts the Reason Codes of a piece in their places. Returns true if it was the last one.
    fn end_piece(&mut self, number: u32, pending: &PendingAck) -> bool {
        let from = number as usize * self.piece_len;
        if let Some(reasons) = self.reasons.get_mut(from..from + pending.reasons.len()) {
            reasons.copy_from_slice(&pending.reasons);
        }
        self.exceeded.add(pending.exceeded);
        self.ended += 1;
        self.pieces.is_empty() && self.ended == self.begun
    }
}

impl Flow {
    /// Returns the packet that has pieces which no turn has handled.
    fn dividing(&mut self) -> Option<&mut Divided> {
        self.divided.last_mut().filter(|divided| divided.has_more())
    }

    /// Returns whether a packet has pieces that no turn has handled.
    #[inline]
    pub fn is_dividing(&self) -> bool {
        self.divided.last().is_some_and(Divided::has_more)
    }
}

impl Worker {
    /// Begins to handle a packet in pieces. Other packets of the client wait until the last one is handled, as behind
    /// one that is blocked.
    pub(super) fn divide(&mut self, slot: u32, divided: Divided) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        connection.flow().divided.push(divided);
        self.counters.packets_divided += 1;
        self.schedule_piece(slot);
    }

    /// Lets the next turn handle the next piece, if there is one and it is not waiting for answers to earlier ones.
    pub(super) fn schedule_piece(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let Some(flow) = connection.flow.as_mut() else { return };
        let has_room = flow.acknowledging.len() < PIECES_UNANSWERED_MAX;
        let Some(divided) = flow.dividing() else { return };
        if has_room && !std::mem::replace(&mut divided.is_scheduled, true) {
            self.ready.continue_later(connection);
        }
    }

    /// Returns whether a connection has pieces that no turn has handled.
    pub(super) fn is_dividing(&self, slot: u32) -> bool {
        let flow = self.connections.occupant_ref(slot).and_then(|connection| connection.flow.as_ref());
        flow.is_some_and(|flow| flow.is_dividing())
    }

    /// Handles the next piece, if there is one. Returns true if other packets of the client have to wait.
    pub(super) fn continue_divided(&mut self, slot: u32) -> bool {
        let rules = self.rules();
        let Some(connection) = self.connections.occupant(slot) else { return false };
        let (version, phase) = (connection.version, connection.phase);
        let Some(divided) = connection.flow.as_mut().and_then(|flow| flow.dividing()) else { return false };
        divided.is_scheduled = false;
        if phase != Phase::Open {
            return true;
        }
        if rules.may_answer_later
            && let Some(Piece::Subscribe(piece)) = divided.pieces.front()
        {
            let piece = piece.clone();
            if self.awaits_permissions(slot, piece.as_filters()) {
                return true;
            }
        }
        let flow = self.connections.occupant(slot).and_then(|connection| connection.flow.as_mut());
        let Some(divided) = flow.and_then(|flow| flow.dividing()) else { return false };
        let (level, subscription_id) = (divided.level, divided.subscription_id);
        let Some((ticket, piece)) = divided.next_piece() else { return false };
        match piece {
            Piece::Subscribe(piece) => {
                let filters = piece.as_filters();
                if let Err(reason) = self.subscribe_in_client(slot, (ticket, level), filters, subscription_id)
                {
                    self.refuse_packet(slot, version, phase, reason);
                }
            }
            Piece::Unsubscribe(piece) => self.unsubscribe_in_client(slot, ticket, piece.as_filters()),
        }
        self.schedule_piece(slot);
        self.is_dividing(slot)
    }

    /// Handles the completion of a piece. SUBACK or UNSUBACK follows the last one. Retained messages of a piece may
    /// come before it (3.8.4).
    pub(super) fn end_piece(
        &mut self,
        slot: u32,
        (packet_id, number): (PacketId, u32),
        pending: &PendingAck,
    ) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let Some(flow) = connection.flow.as_mut() else { return };
        let is_it = |divided: &Divided| divided.packet_id == packet_id && divided.kind == pending.kind;
        let Some(at) = flow.divided.iter().position(is_it) else { return };
        if flow.divided[at].end_piece(number, pending) {
            let Divided { packet_id, kind, reasons, exceeded, .. } = flow.divided.remove(at);
            self.send_reasons(slot, (kind, packet_id), &reasons, exceeded);
        }
    }

    /// Sends SUBACK or UNSUBACK.
    pub(super) fn send_reasons(
        &mut self,
        slot: u32,
        (kind, packet_id): (AckKind, PacketId),
        reasons: &[u8],
        exceeded: ExceededLimits,
    ) {
        let connection = self.connections.occupant_ref(slot);
        let why = connection.and_then(|connection: &Connection| connection.refusal(reasons, exceeded));
        let properties = PropertiesBuf::from_iter(why.as_deref().map(Property::ReasonString));
        // The acknowledgement has the Packet Identifier of the request [MQTT3-2.3.1-7].
        let ack = SubAck { packet_id, properties: properties.as_properties(), reasons };
        match kind {
            AckKind::Sub => self.send(slot, &Packet::SubAck(ack)),
            AckKind::Unsub => self.send(slot, &Packet::UnsubAck(ack)),
        }
    }
}
