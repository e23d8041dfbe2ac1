//! Stable encoding of commands.
//!
//! A command is a header of 8 bytes (kind, version, 0, length of the body) and a body. Zeros fill the body up to a
//! multiple of 8. A message in it comes before all fields of variable length, at a multiple of 8.

use super::{Acknowledgement, Claim, Command, Enqueue, Rewrite, WalkStep};
use crate::eras::NodeIncarnation;
use crate::ids::{Identity, MESSAGE_ALIGN, SessionUid};
use crate::message::MessageView;
use crate::request_number::RequestNumber;
use crate::shard_set::ShardSet;
use crate::wire::Writer;

/// Kinds of commands. A number is never reused for another kind.
pub(super) mod kind {
    pub const STARTED: u8 = 1;
    pub const CONFIGURE: u8 = 2;
    pub const TICK: u8 = 3;
    pub const SWEEP: u8 = 4;
    pub const CLAIM: u8 = 5;
    pub const RELEASE: u8 = 6;
    pub const END: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const UNSUBSCRIBE: u8 = 9;
    pub const PUBLISH: u8 = 10;
    pub const FORGET: u8 = 11;
    pub const FORGET_ORIGIN: u8 = 12;
    pub const ENQUEUE: u8 = 13;
    pub const ACKNOWLEDGE: u8 = 14;
    pub const RECEIVE: u8 = 15;
    pub const RELEASED: u8 = 16;
    pub const REFUSE: u8 = 17;
    pub const OVERDUE: u8 = 18;
    pub const RETAIN: u8 = 19;
    pub const WILL_DONE: u8 = 20;
    pub const REWRITE: u8 = 21;
    pub const ORPHAN_DONE: u8 = 22;
    pub const WALK: u8 = 23;
    pub const NODE_ENDED: u8 = 24;
    pub const FORGET_BELOW: u8 = 25;
    pub const RETAIN_IF_LATER: u8 = 26;
}

/// Version of every command except the following.
pub(super) const VERSION: u8 = 1;
/// Version of a [`Command::Claim`] for a node of a cluster.
pub(super) const WITH_NODE: u8 = 2;
/// Version of every command with a [`RequestNumber`], which comes first in the body.
pub(super) const WITH_NUMBER: u8 = 3;
pub(crate) const HEADER: usize = 8;

/// Maximum size of a record's payload in bytes: the batch before its last command, and that command with the
/// largest packet.
pub const RECORD_MAX: usize = (1 << 20) + (256 << 20) + (1 << 16);

/// Appends a command to a batch; returns the offset of the command's message in it.
pub(crate) fn encode(
    command: &Command<'_>,
    request: Option<RequestNumber>,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let start = out.len();
    debug_assert!(start.is_multiple_of(MESSAGE_ALIGN));
    // The length is filled in below.
    out.raw(&[kind_of(command), version_of(command, request), 0, 0, 0, 0, 0, 0]);
    encode_origin(command, request, out);
    let message = body(command, out);
    pad(out);
    let len = (out.len() - start - HEADER) as u32;
    out[start + 4..start + HEADER].copy_from_slice(&len.to_le_bytes());
    message
}

fn kind_of(command: &Command<'_>) -> u8 {
    match command {
        Command::Started { .. } => kind::STARTED,
        Command::NodeEnded(_) => kind::NODE_ENDED,
        Command::Configure(_) => kind::CONFIGURE,
        Command::Tick => kind::TICK,
        Command::Sweep { .. } => kind::SWEEP,
        Command::Claim(_) => kind::CLAIM,
        Command::Release { .. } => kind::RELEASE,
        Command::End { .. } => kind::END,
        Command::Subscribe { .. } => kind::SUBSCRIBE,
        Command::Unsubscribe { .. } => kind::UNSUBSCRIBE,
        Command::Publish { .. } => kind::PUBLISH,
        Command::Forget(_) => kind::FORGET,
        Command::ForgetBelow(_) => kind::FORGET_BELOW,
        Command::ForgetOrigin { .. } => kind::FORGET_ORIGIN,
        Command::Enqueue(_) => kind::ENQUEUE,
        Command::Acknowledge { .. } => kind::ACKNOWLEDGE,
        Command::Receive { .. } => kind::RECEIVE,
        Command::Released { .. } => kind::RELEASED,
        Command::Refuse { .. } => kind::REFUSE,
        Command::Overdue { .. } => kind::OVERDUE,
        Command::Retain { .. } => kind::RETAIN,
        Command::RetainIfLater { .. } => kind::RETAIN_IF_LATER,
        Command::WillDone { .. } => kind::WILL_DONE,
        Command::Rewrite(_) => kind::REWRITE,
        Command::OrphanDone { .. } => kind::ORPHAN_DONE,
        Command::Walk { .. } => kind::WALK,
    }
}

fn version_of(command: &Command<'_>, request: Option<RequestNumber>) -> u8 {
    match command {
        _ if request.is_some() => WITH_NUMBER,
        Command::Claim(Claim { owner: Some(_), .. }) => WITH_NODE,
        _ => VERSION,
    }
}

/// Encodes the node that a command comes from, and the number of its request. A command of a node that holds the shard
/// alone has neither.
fn encode_origin(command: &Command<'_>, request: Option<RequestNumber>, out: &mut Vec<u8>) {
    if let Command::Claim(Claim { owner: Some(owner), .. }) = command {
        put_node(*owner, out);
    }
    match request {
        None => {}
        Some(RequestNumber::Claim { number }) => out.u64(number),
        Some(RequestNumber::Lane { owner, lane, number }) => {
            put_node(owner, out);
            out.u64(number);
            out.u16(lane);
        }
        Some(RequestNumber::Connection { epoch, number }) => {
            out.u64(number);
            if matches!(command, Command::Walk { .. }) {
                out.u32(epoch);
            }
        }
    }
}

fn body(command: &Command<'_>, out: &mut Vec<u8>) -> Option<usize> {
    match command {
        Command::Tick => {}
        Command::Started { incarnation: one, elapsed_ms: other } => {
            out.u64(*one);
            out.u64(*other);
        }
        Command::NodeEnded(owner) => put_node(*owner, out),
        Command::Configure(limits) => limits.encode(out),
        Command::Sweep { count } => out.u32(*count),
        Command::Claim(claim) => return encode_claim(claim, out),
        Command::Release { session, epoch, expiry_s, will } => {
            owner(*session, *epoch, out);
            out.u8(*will as u8);
            out.bool(expiry_s.is_some());
            out.u16(0);
            out.u32(expiry_s.unwrap_or_default());
        }
        Command::End { session } | Command::Overdue { session } => out.u64(session.as_u64()),
        Command::Subscribe { session, epoch, filters } => {
            owner(*session, *epoch, out);
            out.u32(filters.len() as u32);
            for filter in filters {
                out.u32(filter.id);
                out.u8(filter.options);
                out.text(filter.text);
            }
        }
        Command::Unsubscribe { session, epoch, filters } => {
            owner(*session, *epoch, out);
            out.u32(filters.len() as u32);
            filters.iter().for_each(|filter| out.text(filter));
        }
        Command::Publish { message, wait, identity } => {
            encode_identity(*identity, out);
            out.bool(*wait);
            return Some(put_message(message, out));
        }
        Command::Forget(Identity { origin, number }) | Command::ForgetBelow(Identity { origin, number }) => {
            out.u64(*origin);
            out.u64(*number);
        }
        Command::ForgetOrigin { origin: id } | Command::WillDone { id } | Command::OrphanDone { id } => {
            out.u64(*id);
        }
        Command::Enqueue(enqueue) => return Some(encode_enqueue(enqueue, out)),
        Command::Acknowledge { session, epoch, packet_id, kind } => {
            debug_assert!(*kind as u8 <= Acknowledgement::Skip as u8);
            let mut fields = [0; 15];
            fields[..8].copy_from_slice(&session.as_u64().to_le_bytes());
            fields[8..12].copy_from_slice(&epoch.to_le_bytes());
            fields[12..14].copy_from_slice(&packet_id.get().to_le_bytes());
            fields[14] = *kind as u8;
            out.raw(&fields);
        }
        Command::Receive { session, epoch, packet_id }
        | Command::Released { session, epoch, packet_id }
        | Command::Refuse { session, epoch, packet_id } => {
            owner(*session, *epoch, out);
            out.u16(packet_id.get());
        }
        Command::Walk { session, filter, step } => {
            let (kind, done, after) = match *step {
                WalkStep::Begin => (0, ShardSet::EMPTY, ""),
                WalkStep::BeginIfNew => (1, ShardSet::EMPTY, ""),
                WalkStep::At { done, after } => (2, done, after),
                WalkStep::End => (3, ShardSet::EMPTY, ""),
            };
            out.u64(session.as_u64());
            out.u8(kind);
            done.encode(out);
            out.text(filter);
            out.text(after);
        }
        Command::Retain { message } | Command::RetainIfLater { message } => {
            return Some(put_message(message, out));
        }
        Command::Rewrite(rewrite) => return Some(encode_rewrite(rewrite, out)),
    }
    None
}

fn encode_claim(claim: &Claim<'_>, out: &mut Vec<u8>) -> Option<usize> {
    out.u64(claim.connection);
    out.u32(claim.user);
    out.u32(claim.expiry_s);
    out.u16(claim.window);
    let flags = [claim.clean_start, claim.keeps_ephemeral, claim.queue_limits.is_some()];
    out.u8(flags.into_iter().enumerate().map(|(bit, is_set)| u8::from(is_set) << bit).sum());
    out.bool(claim.will.is_some());
    out.u32(claim.will.map_or(0, |will| will.delay_s));
    let message = claim.will.map(|will| put_message(&will.message, out));
    out.text(claim.client_id);
    if let Some(limits) = &claim.queue_limits {
        limits.encode(out);
    }
    message
}

fn encode_enqueue(enqueue: &Enqueue<'_>, out: &mut Vec<u8>) -> usize {
    encode_identity(enqueue.identity, out);
    out.u64(enqueue.session.as_u64());
    out.u8(enqueue.qos as u8);
    out.bool(enqueue.retain);
    out.bool(enqueue.group.is_some());
    let message = put_message(&enqueue.message, out);
    out.u32(enqueue.ids.len() as u32);
    enqueue.ids.iter().for_each(|id| out.u32(*id));
    out.text(enqueue.group.unwrap_or_default());
    message
}

fn encode_rewrite(rewrite: &Rewrite<'_>, out: &mut Vec<u8>) -> usize {
    out.u64(rewrite.from.as_u64());
    let message = put_message(&rewrite.message, out);
    out.u32(rewrite.entries.len() as u32);
    for (session, n) in &rewrite.entries {
        out.u64(session.as_u64());
        out.u64(*n);
    }
    out.u32(rewrite.orphans.len() as u32);
    rewrite.orphans.iter().for_each(|id| out.u64(*id));
    message
}

fn encode_identity(identity: Option<Identity>, out: &mut Vec<u8>) {
    let mut fields = [0; 17];
    if let Some(Identity { origin, number }) = identity {
        fields[..8].copy_from_slice(&origin.to_le_bytes());
        fields[8..16].copy_from_slice(&number.to_le_bytes());
        fields[16] = 1;
    }
    out.raw(&fields);
}

fn owner(session: SessionUid, epoch: u32, out: &mut Vec<u8>) {
    out.u64(session.as_u64());
    out.u32(epoch);
}

fn put_node(NodeIncarnation { node, incarnation }: NodeIncarnation, out: &mut Vec<u8>) {
    out.u64(node);
    out.u64(incarnation);
}

/// Appends the message at the next aligned offset.
fn put_message(message: &MessageView<'_>, out: &mut Vec<u8>) -> usize {
    pad(out);
    let at = out.len();
    message.encode(out);
    at
}

fn pad(out: &mut Vec<u8>) {
    let more = out.len().next_multiple_of(MESSAGE_ALIGN) - out.len();
    out.raw(&[0; MESSAGE_ALIGN][..more]);
}
