//! Stable encoding of parts. Each begins with its version; an empty part has no bytes.

use crate::bodies::Bodies;
use crate::entry::Entry;
use crate::ephemeral::Ephemeral;
use crate::ids::{REST, RETAINED_FIRST};
use crate::requests::RequestsForm;
use crate::session::Session;
use crate::shard::Shard;
use crate::wire::Writer;

/// Version of all parts except the following.
pub(super) const VERSION: u8 = 1;
/// Version of a bucket of sessions where some wait for retained messages: each has the progress of its walks.
pub(super) const WITH_WALKS: u8 = 2;
/// Version of a bucket of sessions where some had numbered requests: each has its walks, and its last number.
pub(super) const WITH_NUMBERS: u8 = 3;
/// Version of a bucket with ephemeral sessions, which follow the others. Those are as [`WITH_NUMBERS`].
pub(super) const WITH_EPHEMERALS: u8 = 4;
/// Version of a bucket where some sessions have limits for their queues. It is as [`WITH_EPHEMERALS`], and each session
/// has its limits, or has none.
pub(super) const WITH_LIMITS: u8 = 5;
/// Version of the part [`REST`] of a shard whose sessions belong to nodes of a cluster.
pub(super) const WITH_NODES: u8 = 2;
/// Version of the part [`REST`] of such a shard when requests of nodes may come again.
pub(super) const WITH_REQUESTS: u8 = 3;
/// Version of that part when identities below some numbers are forgotten for good. Requests are in it, too.
pub(super) const WITH_FLOORS: u8 = 4;
/// Version of that part when commands of nodes were refused. It is as [`WITH_FLOORS`], and the requests of each node
/// have their refusals. Commands are refused only when all nodes know this version: see
/// [`QueueFull::Refuse`](crate::QueueFull::Refuse).
pub(super) const WITH_REFUSALS: u8 = 5;

impl Shard {
    pub(super) fn encode_part(&self, bucket: u16) -> Vec<u8> {
        match bucket {
            ..RETAINED_FIRST => self.encode_clients(bucket),
            RETAINED_FIRST..REST => self.encode_retained(bucket),
            REST.. => self.encode_rest(),
        }
    }

    fn encode_clients(&self, bucket: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let (slots, ephemerals) = (self.sessions.of_bucket(bucket), self.ephemerals.of_bucket(bucket));
        if slots.is_empty() && ephemerals.is_empty() {
            return out;
        }
        let sessions = || slots.iter().filter_map(|slot| self.sessions.at(*slot));
        let with_limits = sessions().any(|session| session.queue_limits().is_some());
        let has_ephemerals = with_limits || !ephemerals.is_empty();
        let with_numbers = has_ephemerals || slots.iter().any(|slot| self.sessions.last_number(*slot) > 0);
        let with_walks = with_numbers || sessions().any(|session| session.walks().next().is_some());
        out.u8(match (with_walks, with_numbers) {
            _ if with_limits => WITH_LIMITS,
            _ if has_ephemerals => WITH_EPHEMERALS,
            (_, true) => WITH_NUMBERS,
            (true, false) => WITH_WALKS,
            (false, false) => VERSION,
        });
        out.u32(slots.len() as u32);
        for session in sessions() {
            encode_session(session, &self.bodies, &mut out);
            if with_walks {
                encode_walks(session, &mut out);
            }
            if with_numbers {
                out.u64(self.sessions.last_number(session.uid.slot()));
            }
            if with_limits {
                let limits = session.queue_limits();
                out.bool(limits.is_some());
                limits.into_iter().for_each(|limits| limits.encode(&mut out));
            }
        }
        if has_ephemerals {
            out.u32(ephemerals.len() as u32);
            let ephemerals = ephemerals.iter().filter_map(|slot| self.ephemerals.at(*slot));
            ephemerals.for_each(|session| encode_ephemeral(session, &mut out));
        }
        out
    }

    fn encode_retained(&self, bucket: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let count = self.retained.count_of_bucket(bucket);
        if count == 0 {
            return out;
        }
        out.u8(VERSION);
        out.u32(count as u32);
        self.retained.of_bucket(bucket).for_each(|message| out.blob(message));
        out
    }

    fn encode_rest(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let version = self.version_of_rest();
        out.u8(version);
        out.u16(self.id);
        out.u64(self.now);
        self.limits.encode(&mut out);
        match requests_form(version) {
            None => self.eras.encode_alone(self.sweep, &mut out),
            Some(form) => self.eras.encode_nodes(self.sweep, form, &mut out),
        }
        out.u64(self.sessions_created);
        out.u64(self.wills_created);
        out.u32(self.wills.len() as u32);
        for (id, message) in &self.wills {
            out.u64(*id);
            out.blob(message);
        }
        out.u64(self.orphans_created);
        out.u32(self.orphans.len() as u32);
        for (id, entry) in &self.orphans {
            out.u64(*id);
            encode_entry(entry, &self.bodies, &mut out);
        }
        self.identities.encode(&mut out);
        if version >= WITH_FLOORS {
            self.identities.encode_floors(&mut out);
        }
        out
    }

    /// Lowest version of the part [`REST`] that has everything.
    fn version_of_rest(&self) -> u8 {
        let has_floors = self.identities.has_floors();
        match self.eras.requests_form() {
            RequestsForm::WithRefusals => WITH_REFUSALS,
            _ if has_floors => WITH_FLOORS,
            RequestsForm::WithoutRefusals => WITH_REQUESTS,
            RequestsForm::Absent if self.eras.is_alone() => VERSION,
            RequestsForm::Absent => WITH_NODES,
        }
    }
}

/// Form of the requests in a version of the part [`REST`]; `None` for a node that holds the shard alone.
pub(super) fn requests_form(version: u8) -> Option<RequestsForm> {
    match version {
        VERSION => None,
        WITH_NODES => Some(RequestsForm::Absent),
        WITH_REQUESTS | WITH_FLOORS => Some(RequestsForm::WithoutRefusals),
        _ => Some(RequestsForm::WithRefusals),
    }
}

fn encode_session(session: &Session, bodies: &Bodies, out: &mut Vec<u8>) {
    out.u64(session.uid.as_u64());
    out.text(&session.client_id);
    out.u64(session.connection);
    out.u32(session.user);
    out.u32(session.epoch);
    out.u32(session.expiry_s);
    out.u32(session.era);
    out.u16(session.receive_maximum);
    out.bool(session.has_owner);
    out.u64(session.ends);
    out.bool(session.stuck);
    out.u32(session.subscriptions.len() as u32);
    for (text, options, id) in session.subscriptions.iter() {
        out.u32(id);
        out.u8(options);
        out.text(text);
    }
    out.bool(session.will().is_some());
    if let Some(will) = session.will() {
        out.u32(will.delay_s);
        out.u64(will.due);
        out.blob(&will.message);
    }
    let inbound = session.inbound();
    out.u32(inbound.map_or(0, |inbound| inbound.received().count()) as u32);
    inbound.into_iter().flat_map(|inbound| inbound.received()).for_each(|id| out.u16(id.get()));
    let toggles = inbound.map_or(&[][..], |inbound| inbound.toggles());
    out.u32(toggles.len() as u32);
    for (page, bits) in toggles {
        out.u16(*page);
        out.u64(*bits);
    }
    encode_queue(session, bodies, out);
}

fn encode_ephemeral(session: &Ephemeral, out: &mut Vec<u8>) {
    out.u64(session.uid.as_u64());
    out.text(&session.client_id);
    out.u64(session.connection);
    out.u32(session.user);
    out.u32(session.era);
    out.bool(session.will.is_some());
    if let Some(will) = &session.will {
        out.blob(&will.0);
    }
}

fn encode_walks(session: &Session, out: &mut Vec<u8>) {
    out.u32(session.walks().count() as u32);
    for (filter, walk) in session.walks() {
        walk.done.encode(out);
        out.text(filter);
        out.text(&walk.after);
    }
}

/// Encodes a queue. An empty queue and no queue have the same encoding.
fn encode_queue(session: &Session, bodies: &Bodies, out: &mut Vec<u8>) {
    let Some(queue) = session.queue.as_ref().filter(|queue| !queue.is_empty()) else {
        let next = session.queue.as_ref().map_or(session.next, |queue| queue.end());
        out.u64(next);
        return out.bool(false);
    };
    let (open, waiting) = (queue.open_range(), queue.waiting_range());
    out.u64(waiting.start);
    out.bool(true);
    out.u64(open.start);
    out.u64(queue.within());
    // Below the open deliveries the number has no meaning, and an empty queue may or may not keep it.
    out.u64(if queue.dup_below > open.start { queue.dup_below } else { 0 });
    out.u32((open.end - open.start) as u32);
    out.u32((waiting.end - waiting.start) as u32);
    queue.from(0).for_each(|(_, entry)| encode_entry(entry, bodies, out));
}

fn encode_entry(entry: &Entry, bodies: &Bodies, out: &mut Vec<u8>) {
    out.u64(entry.key.as_u64());
    out.u32(entry.packed());
    let details = bodies.details(entry);
    out.bool(details.is_some());
    let Some(details) = details else { return };
    out.u64(details.expires);
    let ids = details.ids.as_slice();
    out.u32(ids.len() as u32);
    ids.iter().for_each(|id| out.u32(*id));
    out.bool(details.group.is_some());
    if let Some(group) = &details.group {
        out.text(group);
    }
}
