//! Reads the fields of requests and answers, and checks them.

use mqtt::{PacketId, QoS, ReasonCode, Subscription, TopicName};
use session::Dispatched;

use super::{Malformed, malformed};
use crate::batch::{Token, TokenKind};
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, Time, WorkerId};
use crate::message::{Message, MessageView};
use crate::node::OwnerKey;
use crate::peers;
use crate::quota::{Payers, Quotas};
use crate::route::Options;
use crate::store::{GroupName, Identity, SHARDS, WalkProgress};
use crate::will::WillOwner;

/// Bytes of another node that are still to be read.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Worker of all connections.
    worker: WorkerId,
    now: Time,
}

/// Fewest bytes of a subscription, of a message, and of a dispatched message, for [`Reader::list`].
const SUBSCRIPTION_MIN: usize = 9;
pub(super) const MESSAGE_MIN: usize = 24;
const DISPATCHED_MIN: usize = 7;

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], worker: WorkerId, now: Time) -> Self {
        Self { bytes, worker, now }
    }

    /// Checks that nothing is left.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.bytes.is_empty() { Ok(()) } else { malformed("bytes after the last field") }
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => malformed("Boolean"),
        }
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((taken, rest)) = self.bytes.split_first_chunk() else { return malformed("length") };
        self.bytes = rest;
        Ok(*taken)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len) else { return malformed("length") };
        self.bytes = rest;
        Ok(taken)
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let len = self.u32()? as usize;
        match std::str::from_utf8(self.bytes(len)?) {
            Ok(text) => Ok(text),
            Err(_) => malformed("text that is not UTF-8"),
        }
    }

    pub fn topic(&mut self) -> Result<&'a str, Malformed> {
        let topic = self.text()?;
        if TopicName::parse(topic).is_ok() { Ok(topic) } else { malformed("Topic Name") }
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a list of values of at least `least` bytes each. No memory is reserved for a count beyond the remaining
    /// bytes.
    pub fn list<T>(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() / least {
            return malformed("count");
        }
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    pub fn reason(&mut self) -> Result<ReasonCode, Malformed> {
        match ReasonCode::try_from(self.u8()?) {
            Ok(reason) => Ok(reason),
            Err(_) => malformed("Reason Code"),
        }
    }

    pub fn packet_id(&mut self) -> Result<PacketId, Malformed> {
        match PacketId::new(self.u16()?) {
            Some(packet_id) => Ok(packet_id),
            None => malformed("Packet Identifier"),
        }
    }

    pub fn ticket(&mut self) -> Result<Ticket, Malformed> {
        self.u32().map(Ticket::from_u32)
    }

    pub fn connection(&mut self) -> Result<ConnectionId, Malformed> {
        Ok(ConnectionId { worker: self.worker, slot: self.u32()?, generation: self.u32()? })
    }

    pub fn shard(&mut self) -> Result<ShardId, Malformed> {
        match self.u16()? {
            id if id < SHARDS => Ok(ShardId(id)),
            _ => malformed("shard"),
        }
    }

    pub fn shards(&mut self) -> Result<ShardSet, Malformed> {
        let len = usize::from(self.u8()?);
        let bytes = self.bytes(len)?;
        if bytes.last() == Some(&0) {
            return malformed("length of a set of shards");
        }
        let mut shards = ShardSet::EMPTY;
        for (at, byte) in bytes.iter().enumerate() {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                match at as u16 * 8 + bit {
                    id if id < SHARDS => shards.insert(ShardId(id)),
                    _ => return malformed("shard"),
                }
            }
        }
        Ok(shards)
    }

    pub fn session(&mut self) -> Result<SessionId, Malformed> {
        Ok(SessionId { shard: self.shard()?, slot: self.u32()?, generation: self.u32()? })
    }

    pub fn group(&mut self) -> Result<GroupId, Malformed> {
        Ok(GroupId { shard: self.shard()?, slot: self.u32()?, generation: self.u32()? })
    }

    pub fn group_name(&mut self) -> Result<GroupName, Malformed> {
        let name = GroupName { share: self.text()?.into(), filter: self.text()?.into() };
        if GroupName::parse(&name.text()).as_ref() == Some(&name) { Ok(name) } else { malformed("group") }
    }

    pub fn identity(&mut self) -> Result<Identity, Malformed> {
        Ok(Identity { origin: self.u64()?, number: self.u64()? })
    }

    /// Reads the QoS of a delivery of a session, which is 1 or 2.
    pub fn stored_qos(&mut self) -> Result<QoS, Malformed> {
        match QoS::from_bits(self.u8()?) {
            Some(qos) if qos > QoS::AtMostOnce => Ok(qos),
            _ => malformed("QoS"),
        }
    }

    pub fn options(&mut self) -> Result<Options, Malformed> {
        let byte = self.u8()?;
        let has_qos = QoS::from_bits(byte & 3).is_some();
        if has_qos { Ok(Options::from_byte(byte)) } else { malformed("QoS of a subscription") }
    }

    pub fn subscriptions(&mut self) -> Result<Vec<(Box<str>, Options, u32)>, Malformed> {
        self.list(SUBSCRIPTION_MIN, |from| {
            let text = from.text()?;
            if Subscription::parse(text).is_err() {
                return malformed("subscription");
            }
            Ok((text.into(), from.options()?, from.u32()?))
        })
    }

    pub fn dispatched(&mut self) -> Result<Vec<Dispatched<ShardSet>>, Malformed> {
        self.list(DISPATCHED_MIN, |from| {
            Ok(Dispatched { packet_id: from.packet_id()?, shards: from.shards()?, losses: from.u32()? })
        })
    }

    pub fn walk_progress(&mut self) -> Result<WalkProgress, Malformed> {
        Ok(WalkProgress { done: self.shards()?, after: self.option(Self::text)?.map(Into::into) })
    }

    /// Reads who pays, and finds the accounts on this node.
    pub fn payers(&mut self, quotas: &Quotas) -> Result<Payers, Malformed> {
        let (user, mountpoint) = (OwnerKey::from_u32(self.u32()?), OwnerKey::from_u32(self.u32()?));
        // The account of a mountpoint that is the same as that of the user is not written.
        if user == mountpoint && user != OwnerKey::NOBODY {
            return malformed("payers");
        }
        Ok(quotas.payers(user, mountpoint))
    }

    /// Reads a token as that of this request.
    pub fn token(&mut self, of_request: Token) -> Result<Option<Token>, Malformed> {
        let kind = match self.u8()? {
            0 => return Ok(None),
            1 => TokenKind::Publisher,
            2 => TokenKind::Append,
            3 => TokenKind::Other,
            _ => return malformed("token"),
        };
        Ok(Some(of_request.for_kind(kind)))
    }

    pub fn message(&mut self) -> Result<Message, Malformed> {
        Ok(self.view(self.now)?.to_message())
    }

    /// Reads a Will: its owner, and the message without it.
    pub fn will(&mut self) -> Result<(Option<WillOwner>, Message), Malformed> {
        let view = self.view(Time(0))?;
        let (owner, properties) = WillOwner::of_signed(view.properties);
        let is_damaged = owner.is_none() && WillOwner::is_signed(view.properties);
        if is_damaged || WillOwner::is_signed(properties) {
            return malformed("owner of a Will");
        }
        let owner = owner.map(|owner| owner.arrived(self.now));
        Ok((owner, MessageView { properties, ..view }.to_message()))
    }

    fn view(&mut self, now: Time) -> Result<MessageView<'a>, Malformed> {
        let len = self.u32()? as usize;
        match peers::decode(self.bytes(len)?, now) {
            Ok(framed) if framed.group.is_none() && framed.stamp == 0 && !framed.is_copy => Ok(framed.view),
            _ => malformed("message"),
        }
    }
}
