//! Appends the fields of requests and answers.

use mqtt::{PacketId, ReasonCode};
use session::Dispatched;

use crate::batch::{Token, TokenKind};
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, Time};
use crate::message::{Message, MessageView};
use crate::origin::Origins;
use crate::peers::{self, FrameExtras};
use crate::quota::Payers;
use crate::route::Options;
use crate::store::{GroupName, Identity, WalkProgress};
use crate::will::WillOwner;

/// Appends fields to a buffer. Its methods are those of [`Reader`](super::reader::Reader).
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    now: Time,
    origins: Origins,
}

impl<'a> Writer<'a> {
    pub fn new(now: Time, out: &'a mut Vec<u8>) -> Self {
        Self::with_origins(now, Origins::Kept, out)
    }

    /// Makes a writer for a node that may not know origins.
    pub fn with_origins(now: Time, origins: Origins, out: &'a mut Vec<u8>) -> Self {
        Self { out, now, origins }
    }

    /// Begins a form of this kind.
    pub fn begin(mut self, kind: u8) -> Self {
        self.u8(kind);
        self
    }

    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub fn u16(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    pub fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.out.extend_from_slice(text.as_bytes());
    }

    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub fn list<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.u32(values.len() as u32);
        for value in values {
            write(self, value);
        }
    }

    pub fn reason(&mut self, reason: ReasonCode) {
        self.u8(reason as u8);
    }

    pub fn packet_id(&mut self, packet_id: PacketId) {
        self.u16(packet_id.get());
    }

    pub fn ticket(&mut self, ticket: Ticket) {
        self.u32(ticket.as_u32());
    }

    pub fn connection(&mut self, connection: ConnectionId) {
        self.u32(connection.slot);
        self.u32(connection.generation);
    }

    pub fn shard(&mut self, shard: ShardId) {
        self.u16(shard.0);
    }

    pub fn shards(&mut self, shards: ShardSet) {
        let len = shards.iter().last().map_or(0, |last| last.0 / 8 + 1);
        self.u8(len as u8);
        for byte in 0..len {
            let bits = (0..8).filter(|bit| shards.contains(ShardId(byte * 8 + bit)));
            self.u8(bits.fold(0, |bits, bit| bits | 1 << bit));
        }
    }

    pub fn session(&mut self, SessionId { shard, slot, generation }: SessionId) {
        self.shard(shard);
        self.u32(slot);
        self.u32(generation);
    }

    pub fn group(&mut self, GroupId { shard, slot, generation }: GroupId) {
        self.shard(shard);
        self.u32(slot);
        self.u32(generation);
    }

    pub fn group_name(&mut self, name: &GroupName) {
        self.text(&name.share);
        self.text(&name.filter);
    }

    pub fn identity(&mut self, Identity { origin, number }: Identity) {
        self.u64(origin);
        self.u64(number);
    }

    pub fn options(&mut self, options: Options) {
        self.u8(options.byte());
    }

    pub fn subscriptions(&mut self, subscriptions: &[(Box<str>, Options, u32)]) {
        self.list(subscriptions, |out, (text, options, id)| {
            out.text(text);
            out.options(*options);
            out.u32(*id);
        });
    }

    pub fn dispatched(&mut self, dispatched: &[Dispatched<ShardSet>]) {
        self.list(dispatched, |out, Dispatched { packet_id, shards, losses }| {
            out.packet_id(*packet_id);
            out.shards(*shards);
            out.u32(*losses);
        });
    }

    pub fn walk_progress(&mut self, WalkProgress { done, after }: &WalkProgress) {
        self.shards(*done);
        self.option(after.as_deref(), Self::text);
    }

    pub fn payers(&mut self, payers: &Payers) {
        let (user, mountpoint) = payers.owners();
        self.u32(user.as_u32());
        self.u32(mountpoint.as_u32());
    }

    pub fn token(&mut self, token: Option<Token>) {
        self.u8(match token.map(Token::kind) {
            None => 0,
            Some(TokenKind::Publisher) => 1,
            Some(TokenKind::Append) => 2,
            Some(TokenKind::Other) => 3,
        });
    }

    pub fn message(&mut self, message: &Message) {
        self.view(&message.view(), self.now);
    }

    /// Appends a Will. `expires` of `will` is an interval, and its owner is not in front of its properties.
    pub fn will(&mut self, owner: Option<&WillOwner>, will: &Message) {
        let signed = owner.map(|owner| owner.sign_for_node(self.now, will));
        self.view(&signed.as_ref().unwrap_or(will).view(), Time(0));
    }

    fn view(&mut self, view: &MessageView<'_>, now: Time) {
        let at = self.out.len();
        self.u32(0);
        let extras = FrameExtras { origins: self.origins, ..FrameExtras::default() };
        peers::encode(view, extras, now, self.out);
        let len = (self.out.len() - at - 4) as u32;
        self.out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
}
