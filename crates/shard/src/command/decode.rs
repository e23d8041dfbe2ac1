//! Decodes commands that `encode` wrote, and refuses everything else.

use mqtt::{PacketId, QoS};

use super::encode::{HEADER, VERSION, WITH_NODE, WITH_NUMBER, kind};
use super::{Acknowledgement, Claim, Command, Enqueue, Filter, Rewrite, WalkStep, Will, WillFate};
use crate::eras::NodeIncarnation;
use crate::error::{Malformed, malformed};
use crate::ids::{Identity, MESSAGE_ALIGN, MESSAGE_OFFSET_MAX, MessageKey, SessionUid};
use crate::limits::{Limits, QueueLimits};
use crate::message::MessageView;
use crate::request_number::RequestNumber;
use crate::shard_set::ShardSet;
use crate::wire::Reader;

/// A command of a batch.
#[derive(Debug)]
pub(crate) struct Decoded<'a> {
    pub command: Command<'a>,
    /// Offset of its message in the batch.
    pub message: usize,
    pub request: Option<RequestNumber>,
}

/// Decodes the command at `at`; returns the offset of the next one.
pub(crate) fn decode(batch: &[u8], at: usize) -> Result<(Decoded<'_>, usize), Malformed> {
    let mut header = Reader::new(batch.get(at..).unwrap_or_default());
    let (kind, version, zero) = (header.u8()?, header.u8()?, header.u16()?);
    let len = header.u32()? as usize;
    let is_known = match version {
        VERSION | WITH_NUMBER => true,
        WITH_NODE => kind == kind::CLAIM,
        _ => false,
    };
    if !is_known || zero != 0 {
        return malformed("version of a command");
    }
    if !len.is_multiple_of(MESSAGE_ALIGN) {
        return malformed("length of a command");
    }
    header.bytes(len)?;
    let end = at + HEADER + len;
    let mut body = Body { reader: Reader::new(&batch[at + HEADER..end]), end, message: 0 };
    let with_node = kind == kind::CLAIM && version != VERSION;
    let owner = if with_node { Some(node_incarnation(&mut body.reader)?) } else { None };
    let mut request = if version == WITH_NUMBER { Some(body.request(kind)?) } else { None };
    let command = body.command(kind, owner)?;
    body.pad()?;
    body.reader.finish()?;
    if let Some(request) = &mut request {
        complete(request, &command)?;
    }
    Ok((Decoded { command, message: body.message, request }, end))
}

/// Adds the epoch of its command to a number, and checks that the command may have such a number.
fn complete(request: &mut RequestNumber, command: &Command<'_>) -> Result<(), Malformed> {
    if let (RequestNumber::Connection { epoch, .. }, Some((_, Some(own)))) =
        (&mut *request, command.of_session())
    {
        *epoch = own;
    }
    if request.fits(command) { Ok(()) } else { malformed("number of a request") }
}

fn node_incarnation(reader: &mut Reader<'_>) -> Result<NodeIncarnation, Malformed> {
    Ok(NodeIncarnation { node: reader.u64()?, incarnation: reader.u64()? })
}

struct Body<'a> {
    reader: Reader<'a>,
    /// Offset of the end of the body in its batch.
    end: usize,
    message: usize,
}

impl<'a> Body<'a> {
    /// Decodes a number. That of a connection lacks the epoch, except for a Walk.
    fn request(&mut self, kind: u8) -> Result<RequestNumber, Malformed> {
        let reader = &mut self.reader;
        match kind {
            kind::CLAIM => Ok(RequestNumber::Claim { number: reader.u64()? }),
            kind::PUBLISH
            | kind::RETAIN
            | kind::ENQUEUE
            | kind::FORGET
            | kind::FORGET_BELOW
            | kind::FORGET_ORIGIN => {
                let owner = node_incarnation(reader)?;
                let number = reader.u64()?;
                Ok(RequestNumber::Lane { owner, lane: reader.u16()?, number })
            }
            kind::WALK => {
                let number = reader.u64()?;
                Ok(RequestNumber::Connection { epoch: reader.u32()?, number })
            }
            _ => Ok(RequestNumber::Connection { epoch: 0, number: reader.u64()? }),
        }
    }

    /// Decodes the rest of a command. `owner` is that of a Claim.
    fn command(&mut self, kind: u8, owner: Option<NodeIncarnation>) -> Result<Command<'a>, Malformed> {
        let reader = &mut self.reader;
        Ok(match kind {
            kind::STARTED => Command::Started { incarnation: reader.u64()?, elapsed_ms: reader.u64()? },
            kind::CONFIGURE => Command::Configure(Limits::decode(reader)?),
            kind::TICK => Command::Tick,
            kind::SWEEP => Command::Sweep { count: reader.u32()? },
            kind::NODE_ENDED => Command::NodeEnded(node_incarnation(reader)?),
            kind::CLAIM => return self.claim(owner),
            kind::RELEASE => return self.release(),
            kind::END => Command::End { session: self.session()? },
            kind::SUBSCRIBE => return self.subscribe(),
            kind::UNSUBSCRIBE => return self.unsubscribe(),
            kind::PUBLISH => {
                let identity = self.identity()?;
                let wait = self.reader.bool()?;
                Command::Publish { message: self.message()?, wait, identity }
            }
            kind::FORGET => Command::Forget(Identity { origin: reader.u64()?, number: reader.u64()? }),
            kind::FORGET_BELOW => {
                Command::ForgetBelow(Identity { origin: reader.u64()?, number: reader.u64()? })
            }
            kind::FORGET_ORIGIN => Command::ForgetOrigin { origin: reader.u64()? },
            kind::ENQUEUE => return self.enqueue(),
            kind::ACKNOWLEDGE => {
                let (session, epoch) = self.owner()?;
                let packet_id = self.packet_id()?;
                Command::Acknowledge { session, epoch, packet_id, kind: self.acknowledgement()? }
            }
            kind::RECEIVE => {
                let (session, epoch) = self.owner()?;
                Command::Receive { session, epoch, packet_id: self.packet_id()? }
            }
            kind::RELEASED => {
                let (session, epoch) = self.owner()?;
                Command::Released { session, epoch, packet_id: self.packet_id()? }
            }
            kind::REFUSE => {
                let (session, epoch) = self.owner()?;
                Command::Refuse { session, epoch, packet_id: self.packet_id()? }
            }
            kind::OVERDUE => Command::Overdue { session: self.session()? },
            kind::RETAIN => Command::Retain { message: self.message()? },
            kind::RETAIN_IF_LATER => Command::RetainIfLater { message: self.message()? },
            kind::WILL_DONE => Command::WillDone { id: reader.u64()? },
            kind::REWRITE => return self.rewrite(),
            kind::ORPHAN_DONE => Command::OrphanDone { id: reader.u64()? },
            kind::WALK => return self.walk(),
            _ => return malformed("kind of a command"),
        })
    }

    fn claim(&mut self, owner: Option<NodeIncarnation>) -> Result<Command<'a>, Malformed> {
        let reader = &mut self.reader;
        let (connection, user, expiry_s) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let (window, flags, has_will) = (reader.u16()?, reader.u8()?, reader.bool()?);
        if flags > 7 {
            return malformed("flags of a Claim");
        }
        let (clean_start, keeps_ephemeral) = (flags & 1 != 0, flags & 2 != 0);
        let delay_s = reader.u32()?;
        if !has_will && delay_s != 0 {
            return malformed("delay without a Will");
        }
        let will = if has_will { Some(Will { message: self.message()?, delay_s }) } else { None };
        let client_id = self.reader.text()?;
        let has_limits = flags & 4 != 0;
        let queue_limits = if has_limits { Some(QueueLimits::decode(&mut self.reader)?) } else { None };
        Ok(Command::Claim(Claim {
            client_id,
            user,
            owner,
            connection,
            clean_start,
            expiry_s,
            window,
            will,
            keeps_ephemeral,
            queue_limits,
        }))
    }

    fn release(&mut self) -> Result<Command<'a>, Malformed> {
        let (session, epoch) = self.owner()?;
        let will = match self.reader.u8()? {
            0 => WillFate::Discard,
            1 => WillFate::Arm,
            _ => return malformed("fate of a Will"),
        };
        let (has_expiry, zero, expiry) = (self.reader.bool()?, self.reader.u16()?, self.reader.u32()?);
        if zero != 0 || (!has_expiry && expiry != 0) {
            return malformed("expiry of a session");
        }
        Ok(Command::Release { session, epoch, expiry_s: has_expiry.then_some(expiry), will })
    }

    fn subscribe(&mut self) -> Result<Command<'a>, Malformed> {
        let (session, epoch) = self.owner()?;
        let count = self.reader.count(9)?;
        let mut filters = Vec::with_capacity(count);
        for _ in 0..count {
            let (id, options) = (self.reader.u32()?, self.reader.u8()?);
            filters.push(Filter { text: self.reader.text()?, options, id });
        }
        Ok(Command::Subscribe { session, epoch, filters })
    }

    fn unsubscribe(&mut self) -> Result<Command<'a>, Malformed> {
        let (session, epoch) = self.owner()?;
        let count = self.reader.count(4)?;
        let mut filters = Vec::with_capacity(count);
        for _ in 0..count {
            filters.push(self.reader.text()?);
        }
        Ok(Command::Unsubscribe { session, epoch, filters })
    }

    fn enqueue(&mut self) -> Result<Command<'a>, Malformed> {
        let identity = self.identity()?;
        let session = self.session()?;
        let qos = match self.reader.u8()? {
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            _ => return malformed("QoS of a delivery"),
        };
        let (retain, has_group) = (self.reader.bool()?, self.reader.bool()?);
        let message = self.message()?;
        let count = self.reader.count(4)?;
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            ids.push(self.reader.u32()?);
        }
        let group = self.reader.text()?;
        if !has_group && !group.is_empty() {
            return malformed("name of an absent group");
        }
        let group = has_group.then_some(group);
        Ok(Command::Enqueue(Enqueue { session, message, qos, retain, ids, identity, group }))
    }

    fn walk(&mut self) -> Result<Command<'a>, Malformed> {
        let session = self.session()?;
        let (kind, done) = (self.reader.u8()?, ShardSet::decode(&mut self.reader)?);
        let (filter, after) = (self.reader.text()?, self.reader.text()?);
        let step = match kind {
            2 => WalkStep::At { done, after },
            _ if (done, after) != (ShardSet::EMPTY, "") => return malformed("step of a walk"),
            0 => WalkStep::Begin,
            1 => WalkStep::BeginIfNew,
            3 => WalkStep::End,
            _ => return malformed("step of a walk"),
        };
        Ok(Command::Walk { session, filter, step })
    }

    fn rewrite(&mut self) -> Result<Command<'a>, Malformed> {
        let from = MessageKey::from_u64(self.reader.u64()?);
        let message = self.message()?;
        let count = self.reader.count(16)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            entries.push((self.session()?, self.reader.u64()?));
        }
        let count = self.reader.count(8)?;
        let mut orphans = Vec::with_capacity(count);
        for _ in 0..count {
            orphans.push(self.reader.u64()?);
        }
        Ok(Command::Rewrite(Rewrite { from, message, entries, orphans }))
    }

    fn acknowledgement(&mut self) -> Result<Acknowledgement, Malformed> {
        Ok(match self.reader.u8()? {
            0 => Acknowledgement::PubAck,
            1 => Acknowledgement::PubRec,
            2 => Acknowledgement::PubRecRefused,
            3 => Acknowledgement::PubComp,
            4 => Acknowledgement::Skip,
            _ => return malformed("kind of an acknowledgement"),
        })
    }

    fn identity(&mut self) -> Result<Option<Identity>, Malformed> {
        let identity = Identity { origin: self.reader.u64()?, number: self.reader.u64()? };
        let is_some = self.reader.bool()?;
        if !is_some && (identity.origin, identity.number) != (0, 0) {
            return malformed("fields of an absent identity");
        }
        Ok(is_some.then_some(identity))
    }

    fn session(&mut self) -> Result<SessionUid, Malformed> {
        self.reader.u64().map(SessionUid::from_u64)
    }

    fn owner(&mut self) -> Result<(SessionUid, u32), Malformed> {
        Ok((self.session()?, self.reader.u32()?))
    }

    fn packet_id(&mut self) -> Result<PacketId, Malformed> {
        match PacketId::new(self.reader.u16()?) {
            Some(id) => Ok(id),
            None => malformed("Packet Identifier"),
        }
    }

    fn message(&mut self) -> Result<MessageView<'a>, Malformed> {
        self.pad()?;
        self.message = self.end - self.reader.left();
        if self.message >= MESSAGE_OFFSET_MAX {
            return malformed("offset of a message");
        }
        MessageView::read(&mut self.reader)
    }

    /// Skips padding. Bodies begin and end at multiples of the alignment, so the remaining length gives the length
    /// of the padding.
    fn pad(&mut self) -> Result<(), Malformed> {
        let padding = self.reader.bytes(self.reader.left() % MESSAGE_ALIGN)?;
        if padding.iter().all(|byte| *byte == 0) { Ok(()) } else { malformed("padding") }
    }
}
