//! Forms of requests.

use std::sync::Arc;

use shard::{QueueFull, QueueLimits};

use super::reader::{MESSAGE_MIN, Reader};
use super::writer::Writer;
use super::{Malformed, RequestOrigin, malformed};
use crate::batch::{SubscriptionIds, Token};
use crate::durability::Durability;
use crate::ids::{SessionId, Time};
use crate::message::{Message, MessageView};
use crate::node::OwnerKey;
use crate::quota::{Payers, Quotas};
use crate::store::{
    Acknowledgement, Attach, Claim, Enqueue, EnqueueForGroup, EnqueueForPage, EnqueueToGroup, Release,
    Request, WillDisposition,
};
use crate::will::WillOwner;

pub(super) const CLAIM: u8 = 1;
pub(super) const RELEASE: u8 = 2;
pub(super) const SUBSCRIBE: u8 = 3;
pub(super) const UNSUBSCRIBE: u8 = 4;
pub(super) const WITHDRAW: u8 = 5;
// 6 was APPEND with shared groups, and 19 to 22 were for groups that the shards had.
pub(super) const FORGET_IDENTITY: u8 = 7;
pub(super) const FORGET_ORIGIN: u8 = 8;
// 9 and 10 were RETAIN and ASK_ROOM_TO_RETAIN without payers.
pub(super) const DELETE_RETAINED: u8 = 11;
pub(super) const ENQUEUE: u8 = 12;
pub(super) const ASK_ROOM_FOR_PAGE: u8 = 13;
pub(super) const END_WALK: u8 = 14;
pub(super) const ACKNOWLEDGE: u8 = 15;
pub(super) const RECEIVE: u8 = 16;
pub(super) const RELEASED: u8 = 17;
pub(super) const FORGET: u8 = 18;
pub(super) const FIND_ORPHANS: u8 = 23;
pub(super) const ORPHANS_KNOWN: u8 = 24;
pub(super) const ACCEPTED_BY: u8 = 25;
pub(super) const WILL_DISPATCHED: u8 = 26;
pub(super) const ACCEPTED: u8 = 27;
pub(super) const ATTACH: u8 = 28;
pub(super) const RETAIN: u8 = 29;
pub(super) const ASK_ROOM_TO_RETAIN: u8 = 30;
pub(super) const ENQUEUE_TO_GROUP: u8 = 31;
pub(super) const FIND_IDENTITY: u8 = 32;
pub(super) const APPEND: u8 = 33;
pub(super) const FORGET_BELOW: u8 = 34;
/// A claim with limits for the session's queue. Earlier versions refuse it.
pub(super) const CLAIM_WITH_LIMITS: u8 = 35;

/// Fewest bytes of a message of [`Request::Enqueue`].
const ENTRY_MIN: usize = MESSAGE_MIN + 7;
/// Maximum number of completions of one Will, so that a shard can add a few.
const COMPLETIONS_MAX: u32 = 1 << 30;

/// Appends a request.
pub(crate) fn encode_request(request: &Request, now: Time, out: &mut Vec<u8>) {
    let form = Writer::new(now, out);
    match request {
        Request::Claim(claim) => {
            let kind = if claim.queue_limits.is_some() { CLAIM_WITH_LIMITS } else { CLAIM };
            put_claim(claim, form.begin(kind));
        }
        Request::Release(release) => put_release(release, form.begin(RELEASE)),
        Request::Attach(attach) => put_attach(attach, form.begin(ATTACH)),
        Request::Subscribe { session, connection, ticket, filters, shapes: _, retained } => {
            let mut out = form.begin(SUBSCRIBE);
            out.session(*session);
            out.connection(*connection);
            out.ticket(*ticket);
            out.subscriptions(filters);
            out.bool(*retained);
        }
        Request::Unsubscribe { session, connection, ticket, filters } => {
            let mut out = form.begin(UNSUBSCRIBE);
            out.session(*session);
            out.connection(*connection);
            out.ticket(*ticket);
            out.list(filters, |out, filter| out.text(filter));
        }
        Request::Withdraw { session, filter } => {
            let mut out = form.begin(WITHDRAW);
            out.session(*session);
            out.text(filter);
        }
        Request::Append { message, identity, refusal, token } => {
            let mut out = form.begin(APPEND);
            out.option(*identity, Writer::identity);
            out.option(*refusal, Writer::reason);
            out.token(*token);
            out.message(message);
        }
        Request::ForgetIdentity { identity } => form.begin(FORGET_IDENTITY).identity(*identity),
        Request::ForgetBelow { identity } => form.begin(FORGET_BELOW).identity(*identity),
        Request::ForgetOrigin { origin } => form.begin(FORGET_ORIGIN).u64(*origin),
        Request::Retain { message, stamp, copied_by: _, refusal, token, payers } => {
            debug_assert_eq!(*stamp, 0, "the shard decides which message is the last one");
            let mut out = form.begin(RETAIN);
            out.message(message);
            out.option(*refusal, Writer::reason);
            out.token(*token);
            out.payers(payers);
        }
        Request::AskRoomToRetain { topic, size, connection, payers } => {
            let mut out = form.begin(ASK_ROOM_TO_RETAIN);
            out.text(topic);
            out.u64(*size);
            out.connection(*connection);
            out.payers(payers);
        }
        Request::DeleteRetained { topic, token } => {
            let mut out = form.begin(DELETE_RETAINED);
            out.text(topic);
            out.token(Some(*token));
        }
        Request::Enqueue { session, entries, group, token, page } => {
            let mut out = form.begin(ENQUEUE);
            out.session(*session);
            out.list(entries, put_entry);
            out.option(group.as_deref(), put_enqueue_for_group);
            out.token(*token);
            out.option(page.as_deref(), put_enqueue_for_page);
        }
        Request::AskRoomForPage { session, connection } => {
            let mut out = form.begin(ASK_ROOM_FOR_PAGE);
            out.session(*session);
            out.connection(*connection);
        }
        Request::EndWalk { session, filter } => {
            let mut out = form.begin(END_WALK);
            out.session(*session);
            out.text(filter);
        }
        Request::Acknowledge { session, connection, packet_id, kind } => {
            let mut out = form.begin(ACKNOWLEDGE);
            out.session(*session);
            out.connection(*connection);
            out.packet_id(*packet_id);
            out.u8(match kind {
                Acknowledgement::PubAck => 0,
                Acknowledgement::PubRec { refused: false } => 1,
                Acknowledgement::PubRec { refused: true } => 2,
                Acknowledgement::PubComp => 3,
            });
        }
        Request::Receive { session, packet_id, durability, token } => {
            let mut out = form.begin(RECEIVE);
            out.session(*session);
            out.packet_id(*packet_id);
            out.u8(match durability {
                Durability::LocalDisk => 0,
                Durability::Memory => 1,
            });
            out.token(Some(*token));
        }
        Request::Released { session, connection, packet_id } => {
            let mut out = form.begin(RELEASED);
            out.session(*session);
            out.connection(*connection);
            out.packet_id(*packet_id);
        }
        Request::Forget { session, packet_id, flip, token: _ } => {
            let mut out = form.begin(FORGET);
            out.session(*session);
            out.packet_id(*packet_id);
            out.bool(*flip);
        }
        Request::EnqueueToGroup(enqueue) => {
            let EnqueueToGroup { name, group, message, identity, token } = &**enqueue;
            let mut out = form.begin(ENQUEUE_TO_GROUP);
            out.group_name(name);
            out.group(*group);
            out.message(message);
            out.option(*identity, Writer::identity);
            out.token(Some(*token));
        }
        Request::FindIdentity { identity, token } => {
            let mut out = form.begin(FIND_IDENTITY);
            out.identity(*identity);
            out.token(Some(*token));
        }
        Request::FindOrphans { asker, orphans } => {
            let mut out = form.begin(FIND_ORPHANS);
            out.shard(*asker);
            out.list(orphans, |out, orphan| out.u64(*orphan));
        }
        Request::OrphansKnown { by, orphans } => {
            let mut out = form.begin(ORPHANS_KNOWN);
            out.shard(*by);
            out.list(orphans, |out, orphan| out.u64(*orphan));
        }
        Request::AcceptedBy { key, by } => {
            let mut out = form.begin(ACCEPTED_BY);
            out.u32(*key);
            out.shard(*by);
        }
        Request::WillDispatched { key, outstanding, shards } => {
            let mut out = form.begin(WILL_DISPATCHED);
            out.u32(*key);
            out.u32(*outstanding);
            out.shards(*shards);
        }
        Request::Accepted { key, reason } => {
            let mut out = form.begin(ACCEPTED);
            out.u32(*key);
            out.reason(*reason);
        }
    }
}

fn put_claim(claim: &Claim, mut out: Writer<'_>) {
    let Claim { client_id, connection, user, clean_start, expiry, window, will, queue_limits, .. } = claim;
    out.text(client_id);
    out.connection(*connection);
    out.u32(user.as_u32());
    out.bool(*clean_start);
    out.u32(*expiry);
    out.u16(*window);
    out.option(will.as_ref(), |out, (will, delay)| {
        let view = will.view();
        let (owner, properties) = WillOwner::of_signed(view.properties);
        out.will(owner.as_ref(), &MessageView { properties, ..view }.to_message());
        out.u32(*delay);
    });
    if let Some(QueueLimits { messages_max, bytes_max, age_max_ms, full }) = queue_limits {
        out.u32(*messages_max);
        out.u64(*bytes_max);
        out.u64(*age_max_ms);
        out.u8(*full as u8);
    }
}

fn put_release(release: &Release, mut out: Writer<'_>) {
    let Release { client_id, connection, expiry, will, will_owner: _, dispatched, known_to, number: _ } =
        release;
    out.text(client_id);
    out.connection(*connection);
    out.option(*expiry, Writer::u32);
    out.u8(match will {
        WillDisposition::Discard => 0,
        WillDisposition::Arm => 1,
    });
    out.option(dispatched.as_deref(), Writer::dispatched);
    out.shards(*known_to);
}

fn put_attach(attach: &Attach, mut out: Writer<'_>) {
    let Attach { client_id, session, epoch, connection, user, payers: _, window, last, known_to } = attach;
    out.text(client_id);
    out.session(*session);
    out.u32(*epoch);
    out.connection(*connection);
    out.u32(user.as_u32());
    out.u16(*window);
    out.option(*last, Writer::packet_id);
    out.shards(*known_to);
}

fn put_entry(out: &mut Writer<'_>, entry: &Enqueue) {
    let Enqueue { message, qos, retain, subscription_ids, group } = entry;
    out.message(message);
    out.u8(*qos as u8);
    out.bool(*retain);
    out.list(subscription_ids.as_slice(), |out, id| out.u32(*id));
    out.option(*group, Writer::group);
}

fn put_enqueue_for_group(out: &mut Writer<'_>, group: &EnqueueForGroup) {
    let EnqueueForGroup { name, is_connected, identity } = group;
    out.group_name(name);
    out.bool(*is_connected);
    out.option(*identity, Writer::identity);
}

fn put_enqueue_for_page(out: &mut Writer<'_>, page: &EnqueueForPage) {
    let EnqueueForPage { connection, filter, progress } = page;
    out.connection(*connection);
    out.text(filter);
    out.option(progress.as_ref(), Writer::walk_progress);
}

/// Decodes the output of [`encode_request`] on another node. Connections get the worker `origin.lane`, tokens become
/// [`Token::requested`]. Fields that do not travel are empty. `quotas`: the accounts of this node.
///
/// # Errors
/// If the bytes are anything else. Never panics.
pub(crate) fn decode_request(
    bytes: &[u8],
    origin: RequestOrigin,
    now: Time,
    quotas: &Quotas,
) -> Result<Request, Malformed> {
    let mut decoder = Decoder { from: Reader::new(bytes, origin.lane, now), origin, quotas };
    let request = decoder.request()?;
    decoder.from.finish()?;
    Ok(request)
}

struct Decoder<'a> {
    from: Reader<'a>,
    origin: RequestOrigin,
    quotas: &'a Quotas,
}

impl Decoder<'_> {
    fn request(&mut self) -> Result<Request, Malformed> {
        Ok(match self.from.u8()? {
            CLAIM => Request::Claim(Box::new(self.claim()?)),
            CLAIM_WITH_LIMITS => {
                let mut claim = self.claim()?;
                let from = &mut self.from;
                claim.queue_limits = Some(QueueLimits {
                    messages_max: from.u32()?,
                    bytes_max: from.u64()?,
                    age_max_ms: from.u64()?,
                    full: match from.u8()? {
                        0 => QueueFull::DropOldest,
                        1 => QueueFull::DropNewest,
                        2 => QueueFull::Refuse,
                        _ => return malformed("rule for full queues"),
                    },
                });
                Request::Claim(Box::new(claim))
            }
            RELEASE => Request::Release(Box::new(self.release()?)),
            ATTACH => Request::Attach(Box::new(self.attach()?)),
            SUBSCRIBE => Request::Subscribe {
                session: self.session()?,
                connection: self.from.connection()?,
                ticket: self.from.ticket()?,
                filters: self.from.subscriptions()?,
                shapes: None,
                retained: self.from.bool()?,
            },
            UNSUBSCRIBE => Request::Unsubscribe {
                session: self.session()?,
                connection: self.from.connection()?,
                ticket: self.from.ticket()?,
                filters: self.from.list(4, |from| from.text().map(Into::into))?,
            },
            WITHDRAW => Request::Withdraw { session: self.session()?, filter: self.from.text()?.into() },
            APPEND => self.append()?,
            FORGET_IDENTITY => Request::ForgetIdentity { identity: self.from.identity()? },
            FORGET_BELOW => Request::ForgetBelow { identity: self.from.identity()? },
            FORGET_ORIGIN => Request::ForgetOrigin { origin: self.from.u64()? },
            RETAIN => Request::Retain {
                message: self.from.message()?,
                stamp: 0,
                copied_by: None,
                refusal: self.from.option(Reader::reason)?,
                token: self.token()?,
                payers: self.from.payers(self.quotas)?,
            },
            ASK_ROOM_TO_RETAIN => Request::AskRoomToRetain {
                topic: self.from.topic()?.into(),
                size: self.from.u64()?,
                connection: self.from.connection()?,
                payers: self.from.payers(self.quotas)?,
            },
            // An operator may ask for any text.
            DELETE_RETAINED => {
                Request::DeleteRetained { topic: self.from.text()?.into(), token: self.some_token()? }
            }
            ENQUEUE => Request::Enqueue {
                session: self.session()?,
                entries: self.from.list(ENTRY_MIN, entry)?,
                group: self.from.option(enqueue_for_group)?.map(Box::new),
                token: self.token()?,
                page: self.from.option(enqueue_for_page)?.map(Box::new),
            },
            ASK_ROOM_FOR_PAGE => {
                Request::AskRoomForPage { session: self.session()?, connection: self.from.connection()? }
            }
            END_WALK => Request::EndWalk { session: self.session()?, filter: self.from.text()?.into() },
            ACKNOWLEDGE => Request::Acknowledge {
                session: self.session()?,
                connection: self.from.connection()?,
                packet_id: self.from.packet_id()?,
                kind: match self.from.u8()? {
                    0 => Acknowledgement::PubAck,
                    1 => Acknowledgement::PubRec { refused: false },
                    2 => Acknowledgement::PubRec { refused: true },
                    3 => Acknowledgement::PubComp,
                    _ => return malformed("kind of an acknowledgement"),
                },
            },
            RECEIVE => Request::Receive {
                session: self.session()?,
                packet_id: self.from.packet_id()?,
                durability: match self.from.u8()? {
                    0 => Durability::LocalDisk,
                    1 => Durability::Memory,
                    _ => return malformed("durability"),
                },
                token: self.some_token()?,
            },
            RELEASED => Request::Released {
                session: self.session()?,
                connection: self.from.connection()?,
                packet_id: self.from.packet_id()?,
            },
            FORGET => Request::Forget {
                session: self.session()?,
                packet_id: self.from.packet_id()?,
                flip: self.from.bool()?,
                token: None,
            },
            ENQUEUE_TO_GROUP => Request::EnqueueToGroup(Box::new(EnqueueToGroup {
                name: self.from.group_name()?,
                group: self.from.group()?,
                message: self.from.message()?,
                identity: self.from.option(Reader::identity)?,
                token: self.some_token()?,
            })),
            FIND_IDENTITY => {
                Request::FindIdentity { identity: self.from.identity()?, token: self.some_token()? }
            }
            FIND_ORPHANS => {
                let (asker, orphans) = (self.from.shard()?, self.from.list(8, Reader::u64)?);
                Request::FindOrphans { asker, orphans: orphans.into() }
            }
            ORPHANS_KNOWN => {
                Request::OrphansKnown { by: self.from.shard()?, orphans: self.from.list(8, Reader::u64)? }
            }
            ACCEPTED_BY => Request::AcceptedBy { key: self.from.u32()?, by: self.from.shard()? },
            WILL_DISPATCHED => {
                let (key, outstanding) = (self.from.u32()?, self.from.u32()?);
                if outstanding > COMPLETIONS_MAX {
                    return malformed("completions of a Will");
                }
                Request::WillDispatched { key, outstanding, shards: self.from.shards()? }
            }
            ACCEPTED => Request::Accepted { key: self.from.u32()?, reason: self.from.reason()? },
            _ => return malformed("kind of a request"),
        })
    }

    fn claim(&mut self) -> Result<Claim, Malformed> {
        let from = &mut self.from;
        Ok(Claim {
            client_id: from.text()?.into(),
            connection: from.connection()?,
            user: OwnerKey::from_u32(from.u32()?),
            payers: Payers::default(),
            clean_start: from.bool()?,
            expiry: from.u32()?,
            window: from.u16()?,
            will: from.option(signed_will)?,
            queue_limits: None,
            number: self.origin.number,
        })
    }

    fn release(&mut self) -> Result<Release, Malformed> {
        let from = &mut self.from;
        Ok(Release {
            client_id: from.text()?.into(),
            connection: from.connection()?,
            expiry: from.option(Reader::u32)?,
            will: match from.u8()? {
                0 => WillDisposition::Discard,
                1 => WillDisposition::Arm,
                _ => return malformed("treatment of a Will"),
            },
            will_owner: None,
            dispatched: from.option(Reader::dispatched)?,
            known_to: from.shards()?,
            number: self.origin.number,
        })
    }

    fn attach(&mut self) -> Result<Attach, Malformed> {
        let client_id: Arc<str> = self.from.text()?.into();
        let session = self.session()?;
        let from = &mut self.from;
        Ok(Attach {
            client_id,
            session,
            epoch: from.u32()?,
            connection: from.connection()?,
            user: OwnerKey::from_u32(from.u32()?),
            payers: Payers::default(),
            window: from.u16()?,
            last: from.option(Reader::packet_id)?,
            known_to: from.shards()?,
        })
    }

    fn append(&mut self) -> Result<Request, Malformed> {
        let identity = self.from.option(Reader::identity)?;
        let (refusal, token) = (self.from.option(Reader::reason)?, self.token()?);
        Ok(Request::Append { message: self.from.message()?, identity, refusal, token })
    }

    fn session(&mut self) -> Result<SessionId, Malformed> {
        let session = self.from.session()?;
        if session.shard == self.origin.shard { Ok(session) } else { malformed("shard of a session") }
    }

    fn token(&mut self) -> Result<Option<Token>, Malformed> {
        self.from.token(Token::requested(self.origin.lane, self.origin.number))
    }

    fn some_token(&mut self) -> Result<Token, Malformed> {
        match self.token()? {
            Some(token) => Ok(token),
            None => malformed("missing token"),
        }
    }
}

fn signed_will(from: &mut Reader<'_>) -> Result<(Message, u32), Malformed> {
    let (owner, will) = from.will()?;
    let will = owner.map_or(will.clone(), |owner| owner.sign(&will));
    Ok((will, from.u32()?))
}

fn entry(from: &mut Reader<'_>) -> Result<Enqueue, Malformed> {
    Ok(Enqueue {
        message: from.message()?,
        qos: from.stored_qos()?,
        retain: from.bool()?,
        subscription_ids: SubscriptionIds::of(&from.list(4, Reader::u32)?),
        group: from.option(Reader::group)?,
    })
}

fn enqueue_for_group(from: &mut Reader<'_>) -> Result<EnqueueForGroup, Malformed> {
    Ok(EnqueueForGroup {
        name: from.group_name()?,
        is_connected: from.bool()?,
        identity: from.option(Reader::identity)?,
    })
}

fn enqueue_for_page(from: &mut Reader<'_>) -> Result<EnqueueForPage, Malformed> {
    Ok(EnqueueForPage {
        connection: from.connection()?,
        filter: from.text()?.into(),
        progress: from.option(Reader::walk_progress)?,
    })
}
