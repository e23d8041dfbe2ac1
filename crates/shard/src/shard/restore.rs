//! Decodes parts that `encode` wrote into an empty shard, and refuses contradictions.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::{QoS, Subscription};
use routing::Inserted;

use crate::bodies::{EntryDetails, Ids};
use crate::deadline::Deadline;
use crate::entry::{Entry, Phase};
use crate::ephemeral::{Ephemeral, EphemeralWill};
use crate::eras::Eras;
use crate::error::{Malformed, RestoreError, malformed};
use crate::identities::Identities;
use crate::ids::{MessageKey, PartId, REST, RETAINED_FIRST, SESSIONS_MAX, SessionUid};
use crate::ids::{client_bucket, retained_bucket};
use crate::inbound::Inbound;
use crate::limits::{Limits, QueueLimits};
use crate::links::LINK;
use crate::message::{MessageView, NEVER};
use crate::mutation::{Mutation, mutated};
use crate::parts::PAGE_HEADER;
use crate::queue::Queue;
use crate::route::{Options, Route};
use crate::session::{ArmedWill, Extra, Session, Walk};
use crate::shard::Shard;
use crate::shard::encode::{
    VERSION, WITH_EPHEMERALS, WITH_FLOORS, WITH_LIMITS, WITH_NUMBERS, WITH_REFUSALS, requests_form,
};
use crate::shard_set::ShardSet;
use crate::subscriptions::Subscriptions;
use crate::wire::Reader;

/// Upper bound of the numbers of sessions, Wills and orphans that a shard ever creates.
const COUNT_MAX: u64 = 1 << 39;

/// Pages of a part that were read so far.
#[derive(Debug)]
pub(super) struct Pages {
    checkpoint: u64,
    bytes: Vec<Option<Box<[u8]>>>,
}

impl Shard {
    /// Reads a live part of the checkpoint into a new shard. Parts may come in any order.
    ///
    /// # Errors
    /// The part is damaged, or of a newer version. The shard cannot be used then.
    pub fn restore_part(&mut self, part: PartId, bytes: &[u8]) -> Result<(), RestoreError> {
        let result = self.take_page(part, bytes);
        result.map_err(|Malformed { what }| RestoreError::Malformed { part: part.as_u32(), what })
    }

    fn take_page(&mut self, part: PartId, bytes: &[u8]) -> Result<(), Malformed> {
        let bucket = part.bucket();
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION || reader.bytes(3)? != [0; 3] {
            return malformed("version of a part");
        }
        let (page, count, checkpoint) = (reader.u16()?, reader.u16()?, reader.u64()?);
        if page != part.page() || page >= count || bucket > REST {
            return malformed("number of a page");
        }
        let chunk = reader.bytes(reader.left())?;
        if count == 1 {
            self.note_stored(bucket, 1, bytes.len())?;
            return self.decode_part(bucket, chunk);
        }
        let empty = || Pages { checkpoint, bytes: vec![None; usize::from(count)] };
        let pages = self.pages.entry(bucket).or_insert_with(empty);
        if pages.checkpoint != checkpoint || pages.bytes.len() != usize::from(count) {
            return malformed("pages of different checkpoints");
        }
        if pages.bytes[usize::from(page)].replace(chunk.into()).is_some() {
            return malformed("duplicate page");
        }
        if pages.bytes.iter().all(Option::is_some)
            && let Some(pages) = self.pages.remove(&bucket)
        {
            let whole: Vec<u8> = pages.bytes.into_iter().flatten().flatten().collect();
            self.note_stored(bucket, count, whole.len() + usize::from(count) * PAGE_HEADER)?;
            return self.decode_part(bucket, &whole);
        }
        Ok(())
    }

    fn note_stored(&mut self, bucket: u16, pages: u16, bytes: usize) -> Result<(), Malformed> {
        match self.parts.store(bucket, pages, bytes as u64) {
            0 => Ok(()),
            _ => malformed("duplicate part"),
        }
    }

    pub(super) fn decode_part(&mut self, bucket: u16, bytes: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        let is_known = match bucket {
            ..RETAINED_FIRST => (VERSION..=WITH_LIMITS).contains(&version),
            RETAINED_FIRST..REST => version == VERSION,
            REST.. => (VERSION..=WITH_REFUSALS).contains(&version),
        };
        if !is_known {
            return malformed("version of a part");
        }
        match bucket {
            ..RETAINED_FIRST => {
                for _ in 0..reader.u32()? {
                    self.decode_session(bucket, version, &mut reader)?;
                }
                let ephemerals = if version >= WITH_EPHEMERALS { reader.u32()? } else { 0 };
                for _ in 0..ephemerals {
                    self.decode_ephemeral(bucket, &mut reader)?;
                }
            }
            RETAINED_FIRST..REST => {
                for _ in 0..reader.u32()? {
                    let message = decode_message(&mut reader)?;
                    let fits = retained_bucket(message.topic) == bucket && !message.payload.is_empty();
                    if !fits || self.retained.set(&message) {
                        return malformed("retained message");
                    }
                }
            }
            REST.. => self.decode_rest(version, &mut reader)?,
        }
        reader.finish()
    }

    fn decode_session(&mut self, bucket: u16, version: u8, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let uid = SessionUid::from_u64(reader.u64()?);
        let client_id = reader.text()?;
        let taken = self.sessions.at(uid.slot()).is_some() || self.sessions.slot_of(client_id).is_some();
        // A damaged number must not make us reserve all possible slots.
        let plausible = uid.slot() < SESSIONS_MAX && uid.count() > u64::from(uid.slot());
        if taken || !plausible || client_bucket(client_id) != bucket {
            return malformed("impossible session id");
        }
        let mut session = Session {
            client_id: client_id.into(),
            uid,
            bucket,
            connection: reader.u64()?,
            user: reader.u32()?,
            epoch: reader.u32()?,
            expiry_s: reader.u32()?,
            era: reader.u32()?,
            receive_maximum: reader.u16()?,
            has_owner: reader.bool()?,
            ends: reader.u64()?,
            stuck: reader.bool()?,
            is_link: client_id.starts_with(LINK),
            next: 0,
            subscriptions: self.decode_subscriptions(uid.slot(), reader)?,
            queue: None,
            extra: decode_extra(reader)?,
        };
        self.decode_queue(&mut session, reader)?;
        if version != VERSION {
            for _ in 0..reader.u32()? {
                let done = ShardSet::decode(reader)?;
                let (filter, after) = (reader.text()?, reader.text()?.into());
                session.set_walk(filter, Walk { done, after }, usize::MAX);
            }
        }
        let number = if version >= WITH_NUMBERS { reader.u64()? } else { 0 };
        if version == WITH_LIMITS && reader.bool()? {
            session.set_queue_limits(Some(QueueLimits::decode(reader)?));
        }
        if session.refuses_messages() {
            self.refusing.insert(uid.slot());
        }
        self.sessions.insert(session);
        if !mutated(Mutation::ForgetNumbers) {
            self.sessions.set_last_number(uid.slot(), number);
        }
        Ok(())
    }

    fn decode_ephemeral(&mut self, bucket: u16, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let uid = SessionUid::from_u64(reader.u64()?);
        let client_id = reader.text()?;
        let is_taken = self.ephemerals.at(uid.slot()).is_some()
            || self.ephemerals.slot_of(client_id).is_some()
            || self.sessions.slot_of(client_id).is_some();
        let is_plausible = uid.slot() < SESSIONS_MAX && uid.count() > u64::from(uid.slot());
        if is_taken || !is_plausible || client_bucket(client_id) != bucket {
            return malformed("impossible session id");
        }
        let (connection, user, era) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let will = match reader.bool()? {
            true => Some(Box::new(EphemeralWill(decode_message(reader)?.to_bytes().into()))),
            false => None,
        };
        self.ephemerals.insert(Ephemeral { client_id: client_id.into(), uid, connection, will, user, era });
        Ok(())
    }

    fn decode_subscriptions(
        &mut self,
        slot: u32,
        reader: &mut Reader<'_>,
    ) -> Result<Subscriptions, Malformed> {
        let mut subscriptions = Subscriptions::default();
        for _ in 0..reader.u32()? {
            let (id, options) = (reader.u32()?, reader.u8()?);
            let text = reader.text()?;
            let Ok(subscription) = Subscription::parse(text) else { return malformed("Topic Filter") };
            if subscriptions.insert(text, options, id) {
                return malformed("duplicate subscription");
            }
            if subscription.share.is_none() {
                let route = Route { slot, id, options: Options(options) };
                match self.routes.insert(subscription.filter, route) {
                    Ok(Inserted::New | Inserted::Added) => {}
                    Ok(Inserted::Replaced) | Err(_) => return malformed("invalid or duplicate Topic Filter"),
                }
            } else if Options(options).qos() > QoS::AtMostOnce {
                self.groups.insert(text, slot);
            }
        }
        Ok(subscriptions)
    }

    fn decode_queue(&mut self, session: &mut Session, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let next = reader.u64()?;
        session.next = next;
        if !reader.bool()? {
            return Ok(());
        }
        let (first, within, dup_below) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (open, waiting) = (reader.u32()?, reader.u32()?);
        let mut entries = |count: u32| {
            // An entry has 13 bytes at least. So a false count reserves no more than the size of the part.
            let mut entries = VecDeque::with_capacity((count as usize).min(reader.left() / 13));
            for _ in 0..count {
                entries.push_back(self.decode_entry(reader)?);
            }
            Ok(entries)
        };
        let (open, waiting) = (entries(open)?, entries(waiting)?);
        match Queue::restore(open, waiting, (first, next, within, dup_below)) {
            Some(queue) if !queue.is_empty() => session.queue = Some(Box::new(queue)),
            _ => return malformed("queue"),
        }
        Ok(())
    }

    fn decode_entry(&mut self, reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
        let key = MessageKey::from_u64(reader.u64()?);
        let Some(mut entry) = Entry::unpack(key, reader.u32()?) else { return malformed("entry") };
        let has_side = reader.bool()?;
        if !entry.needs_body() {
            return if has_side { malformed("entry") } else { Ok(entry) };
        }
        let mut details = EntryDetails { expires: NEVER, ids: Ids::None, group: None };
        if has_side {
            details.expires = reader.u64()?;
            let count = reader.count(4)?;
            let ids: Result<Vec<u32>, Malformed> = (0..count).map(|_| reader.u32()).collect();
            details.ids = Ids::of(&ids?);
            details.group = if reader.bool()? { Some(reader.text()?.into()) } else { None };
        }
        self.bodies.add(&mut entry, details);
        Ok(entry)
    }

    fn decode_rest(&mut self, version: u8, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        if reader.u16()? != self.id {
            return malformed("part of another shard");
        }
        self.now = reader.u64()?;
        self.limits = Limits::decode(reader)?;
        (self.eras, self.sweep) = match requests_form(version) {
            None => Eras::decode_alone(reader)?,
            Some(form) => Eras::decode_nodes(reader, form)?,
        };
        self.sessions_created = reader.u64()?;
        self.wills_created = reader.u64()?;
        for _ in 0..reader.u32()? {
            let id = reader.u64()?;
            let message: Arc<[u8]> = decode_message(reader)?.to_bytes().into();
            self.wills.insert(id, message);
        }
        self.orphans_created = reader.u64()?;
        for _ in 0..reader.u32()? {
            let id = reader.u64()?;
            let entry = self.decode_entry(reader)?;
            let in_group = self.bodies.details(&entry).is_some_and(|details| details.group.is_some());
            if entry.phase() != Phase::Waiting || !in_group || self.orphans.insert(id, entry).is_some() {
                return malformed("orphan");
            }
        }
        self.identities = Identities::decode(reader, version >= WITH_FLOORS)?;
        Ok(())
    }

    /// Completes the shard after all parts were read. It continues at the index of the checkpoint, 0 when there was
    /// none.
    ///
    /// # Errors
    /// Parts are missing or contradict each other.
    pub fn restored(&mut self, index: u64) -> Result<(), RestoreError> {
        if let Some(bucket) = self.pages.keys().next() {
            return Err(RestoreError::Incomplete { part: u32::from(*bucket) });
        }
        if index > 0 && !self.parts.is_stored(REST) {
            return Err(RestoreError::Incomplete { part: u32::from(REST) });
        }
        self.complete(index)
    }

    /// Computes what follows from the parts, and checks it.
    pub(super) fn complete(&mut self, index: u64) -> Result<(), RestoreError> {
        self.applied = index;
        self.sessions.find_free();
        self.ephemerals.find_free();
        if [self.sessions_created, self.wills_created, self.orphans_created]
            .iter()
            .any(|count| *count >= COUNT_MAX)
        {
            return Err(RestoreError::Inconsistent { what: "an impossibly high count" });
        }
        let mut counts = self.counts;
        for session in self.sessions.from(0) {
            let owned = session.has_owner;
            if session.uid.count() > self.sessions_created || !self.eras.is_plausible(session.era, owned) {
                return Err(RestoreError::Inconsistent { what: "a session newer than the state" });
            }
            counts.sessions += 1;
            counts.owned += u64::from(owned);
            counts.subscriptions += session.subscriptions.len() as u64;
            if session.deadline() != NEVER {
                self.deadlines.insert(Deadline::new(session.deadline(), session.uid.slot()));
            }
            let Some(queue) = &session.queue else { continue };
            counts.queued_messages += queue.end() - queue.waiting_range().start;
            counts.queued_bytes += queue.waiting_bytes();
            counts.held_bytes += queue.bytes();
            counts.held_absent_bytes += if owned { 0 } else { queue.bytes() };
        }
        for session in self.ephemerals.from(0) {
            if session.uid.count() > self.sessions_created || !self.eras.is_plausible(session.era, true) {
                return Err(RestoreError::Inconsistent { what: "a session newer than the state" });
            }
            counts.ephemeral += 1;
        }
        self.counts = counts;
        Ok(())
    }
}

fn decode_extra(reader: &mut Reader<'_>) -> Result<Option<Box<Extra>>, Malformed> {
    let mut extra = Extra::default();
    if reader.bool()? {
        let (delay_s, due) = (reader.u32()?, reader.u64()?);
        let message = decode_message(reader)?.to_bytes().into();
        extra.will = Some(ArmedWill { message, delay_s, due });
    }
    let count = reader.count(2)?;
    let received: Result<Vec<u16>, Malformed> = (0..count).map(|_| reader.u16()).collect();
    let count = reader.count(10)?;
    let toggles: Result<Vec<_>, Malformed> = (0..count).map(|_| Ok((reader.u16()?, reader.u64()?))).collect();
    match Inbound::restore(received?, toggles?) {
        Some(inbound) => extra.inbound = inbound,
        None => return malformed("Packet Identifiers"),
    }
    Ok((!extra.is_empty()).then(|| Box::new(extra)))
}

fn decode_message<'a>(reader: &mut Reader<'a>) -> Result<MessageView<'a>, Malformed> {
    let bytes = reader.blob()?;
    let message = MessageView::decode(bytes)?;
    if message.encoded_len() == bytes.len() { Ok(message) } else { malformed("length of a message") }
}
