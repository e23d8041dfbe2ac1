//! Forms of what a shard sends to a worker of another node.

use std::sync::Arc;

use session::Toggles;

use super::reader::Reader;
use super::writer::Writer;
use super::{Malformed, ShardAnswer, malformed};
use crate::batch::{Claimed, Resume, SessionDelivery, SubscriptionIds};
use crate::ids::{Time, WorkerId};
use crate::origin::Origins;
use crate::store::{Completion, DueWill};

pub(super) const CLAIMED: u8 = 1;
pub(super) const CLAIM_REFUSED: u8 = 2;
pub(super) const REVOKE: u8 = 3;
pub(super) const QUEUE_FULL: u8 = 4;
pub(super) const SUBSCRIBED: u8 = 5;
pub(super) const UNSUBSCRIBED: u8 = 6;
pub(super) const DELIVER: u8 = 7;
pub(super) const RELEASE: u8 = 8;
pub(super) const WRONG_ACKNOWLEDGEMENT: u8 = 9;
pub(super) const COMPLETE: u8 = 10;
pub(super) const ROOM_FOR_PAGE: u8 = 11;
pub(super) const ROOM_TO_RETAIN: u8 = 12;
// 13, 14, 16 and 17 were for shared groups that the shards had.
pub(super) const ACKNOWLEDGED: u8 = 15;
pub(super) const WILL: u8 = 18;
pub(super) const SETTLED: u8 = 19;

/// Fewest bytes of a delivery: a PUBREL.
const DELIVERY_MIN: usize = 3;
/// Fewest bytes of a page of toggles, and of a walk.
const TOGGLES_MIN: usize = 10;
const WALK_MIN: usize = 6;
const PUBLISH: u8 = 0;
const PUB_REL: u8 = 1;

/// Appends an answer.
pub(crate) fn encode_answer(answer: &ShardAnswer, now: Time, origins: Origins, out: &mut Vec<u8>) {
    let form = Writer::with_origins(now, origins, out);
    match answer {
        ShardAnswer::Completion(completion) => put_completion(completion, form),
        ShardAnswer::Acknowledged { number, reason } => {
            let mut out = form.begin(ACKNOWLEDGED);
            out.u64(*number);
            out.reason(*reason);
        }
        ShardAnswer::Will(will) => {
            let DueWill { shard, key, id, message, owner } = &**will;
            let mut out = form.begin(WILL);
            out.shard(*shard);
            out.u32(*key);
            out.u64(*id);
            out.will(owner.as_deref(), message);
        }
        ShardAnswer::Settled { number } => form.begin(SETTLED).u64(*number),
    }
}

fn put_completion(completion: &Completion, form: Writer<'_>) {
    let begin = |kind| {
        let mut out = form.begin(kind);
        out.connection(completion.connection());
        out
    };
    match completion {
        Completion::Claimed(Claimed { connection: _, session_present, session, epoch, resume }) => {
            let mut out = begin(CLAIMED);
            out.bool(*session_present);
            out.option(*session, Writer::session);
            out.u32(*epoch);
            out.option(resume.as_deref(), put_resume);
        }
        Completion::ClaimRefused { connection: _, reason } => begin(CLAIM_REFUSED).reason(*reason),
        Completion::Revoke { connection: _ } => {
            begin(REVOKE);
        }
        Completion::QueueFull { connection: _ } => {
            begin(QUEUE_FULL);
        }
        Completion::Subscribed { connection: _, ticket, results } => {
            let mut out = begin(SUBSCRIBED);
            out.ticket(*ticket);
            out.list(results, |out, (reason, existed)| {
                out.reason(*reason);
                out.bool(*existed);
            });
        }
        Completion::Unsubscribed { connection: _, ticket, results } => {
            let mut out = begin(UNSUBSCRIBED);
            out.ticket(*ticket);
            out.list(results, |out, reason| out.reason(*reason));
        }
        Completion::Deliver { connection: _, first, more } => {
            let mut out = begin(DELIVER);
            put_delivery(&mut out, first);
            out.list(more, put_delivery);
        }
        Completion::Release { connection: _, packet_id, reason } => {
            let mut out = begin(RELEASE);
            out.packet_id(*packet_id);
            out.reason(*reason);
        }
        Completion::WrongAcknowledgement { connection: _ } => {
            begin(WRONG_ACKNOWLEDGEMENT);
        }
        Completion::Complete { connection: _, packet_id } => begin(COMPLETE).packet_id(*packet_id),
        Completion::RoomForPage { connection: _ } => {
            begin(ROOM_FOR_PAGE);
        }
        Completion::RoomToRetain { connection: _, is_there } => begin(ROOM_TO_RETAIN).bool(*is_there),
    }
}

fn put_resume(out: &mut Writer<'_>, resume: &Resume) {
    let Resume { subscriptions, received, toggles, dispatched, walks } = resume;
    out.subscriptions(subscriptions);
    out.list(received, |out, id| out.u16(*id));
    out.list(&toggles.pages().collect::<Vec<_>>(), |out, (page, bits)| {
        out.u16(*page);
        out.u64(*bits);
    });
    out.dispatched(dispatched);
    out.list(walks, |out, (filter, progress)| {
        out.text(filter);
        out.walk_progress(progress);
    });
}

fn put_delivery(out: &mut Writer<'_>, delivery: &SessionDelivery) {
    match delivery {
        SessionDelivery::Publish { packet_id, qos, dup, retain, message, subscription_ids } => {
            out.u8(PUBLISH);
            out.packet_id(*packet_id);
            out.u8(*qos as u8);
            out.bool(*dup);
            out.bool(*retain);
            out.list(subscription_ids.as_slice(), |out, id| out.u32(*id));
            out.message(message);
        }
        SessionDelivery::PubRel { packet_id } => {
            out.u8(PUB_REL);
            out.packet_id(*packet_id);
        }
    }
}

/// Decodes the output of [`encode_answer`] on the node of worker `to`, to which all connections belong.
///
/// # Errors
/// If the bytes are anything else. Never panics.
pub(crate) fn decode_answer(bytes: &[u8], to: WorkerId, now: Time) -> Result<ShardAnswer, Malformed> {
    let mut from = Reader::new(bytes, to, now);
    let answer = answer(&mut from)?;
    from.finish()?;
    Ok(answer)
}

fn answer(from: &mut Reader<'_>) -> Result<ShardAnswer, Malformed> {
    Ok(match from.u8()? {
        ACKNOWLEDGED => ShardAnswer::Acknowledged { number: from.u64()?, reason: from.reason()? },
        WILL => {
            let (shard, key, id) = (from.shard()?, from.u32()?, from.u64()?);
            let (owner, message) = from.will()?;
            ShardAnswer::Will(Box::new(DueWill { shard, key, id, message, owner: owner.map(Arc::new) }))
        }
        SETTLED => ShardAnswer::Settled { number: from.u64()? },
        kind @ CLAIMED..=ROOM_TO_RETAIN => ShardAnswer::Completion(completion(kind, from)?),
        _ => return malformed("kind of an answer"),
    })
}

fn completion(kind: u8, from: &mut Reader<'_>) -> Result<Completion, Malformed> {
    let connection = from.connection()?;
    Ok(match kind {
        CLAIMED => Completion::Claimed(Claimed {
            connection,
            session_present: from.bool()?,
            session: from.option(Reader::session)?,
            epoch: from.u32()?,
            resume: from.option(resume)?.map(Box::new),
        }),
        CLAIM_REFUSED => Completion::ClaimRefused { connection, reason: from.reason()? },
        REVOKE => Completion::Revoke { connection },
        QUEUE_FULL => Completion::QueueFull { connection },
        SUBSCRIBED => {
            let ticket = from.ticket()?;
            let results = from.list(2, |from| Ok((from.reason()?, from.bool()?)))?;
            Completion::Subscribed { connection, ticket, results }
        }
        UNSUBSCRIBED => {
            let ticket = from.ticket()?;
            Completion::Unsubscribed { connection, ticket, results: from.list(1, Reader::reason)? }
        }
        DELIVER => {
            let first = delivery(from)?;
            Completion::Deliver { connection, first, more: from.list(DELIVERY_MIN, delivery)? }
        }
        RELEASE => {
            let packet_id = from.packet_id()?;
            Completion::Release { connection, packet_id, reason: from.reason()? }
        }
        WRONG_ACKNOWLEDGEMENT => Completion::WrongAcknowledgement { connection },
        COMPLETE => Completion::Complete { connection, packet_id: from.packet_id()? },
        ROOM_FOR_PAGE => Completion::RoomForPage { connection },
        ROOM_TO_RETAIN => Completion::RoomToRetain { connection, is_there: from.bool()? },
        _ => return malformed("kind of a completion"),
    })
}

fn resume(from: &mut Reader<'_>) -> Result<Resume, Malformed> {
    Ok(Resume {
        subscriptions: from.subscriptions()?,
        received: from.list(2, |from| from.packet_id().map(|id| id.get()))?,
        toggles: Toggles::of_pages(from.list(TOGGLES_MIN, |from| Ok((from.u16()?, from.u64()?)))?),
        dispatched: from.dispatched()?,
        walks: from.list(WALK_MIN, |from| Ok((from.text()?.into(), from.walk_progress()?)))?,
    })
}

fn delivery(from: &mut Reader<'_>) -> Result<SessionDelivery, Malformed> {
    match from.u8()? {
        PUBLISH => Ok(SessionDelivery::Publish {
            packet_id: from.packet_id()?,
            qos: from.stored_qos()?,
            dup: from.bool()?,
            retain: from.bool()?,
            subscription_ids: SubscriptionIds::of(&from.list(4, Reader::u32)?),
            message: from.message()?,
        }),
        PUB_REL => Ok(SessionDelivery::PubRel { packet_id: from.packet_id()? }),
        _ => malformed("kind of a delivery"),
    }
}
