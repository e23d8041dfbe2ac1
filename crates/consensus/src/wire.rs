//! Messages between the replicas of a group, and encodings of entries, votes and snapshots in the log. Little endian:
//!
//! ```text
//! message     group u16, to u64, from u64, call u32, kind u8, then
//!  1 append      vote, log id?, log id? (committed), count u32, entry*
//!  2 appended    0 | 1, log id? | 2 | 3, vote
//!  3 vote        vote, log id?, flags u8 (1 = pre-vote, 2 = transfer of leadership)
//!  4 voted       vote, log id?, granted u8
//!  5 snapshot    vote, meta, size u64, offset u64, bytes
//!  6 received    vote, offset u64
//!  7 transfer    vote, to u64, log id?
//!  8 transferred done u8
//!  9 refused     nothing: the replica that was asked has stopped
//! 10 parts       vote, meta, size u64, offset u64, bytes
//! 11 installing  vote
//! 12 held        vote, log id
//! vote        term u64, replica u64, is committed u8
//! log id      term u64, index u64
//! log id?     0 | 1, log id
//! entry       log id, length u32, payload
//! payload     0 | 1, bytes | 2, membership
//! membership  count u8, (count u16, replica u64*)*, count u16, (replica u64, node u64)*
//! meta        log id?, log id? (of the membership), length u32, membership
//! ```
//!
//! A snapshot is sent in pieces: bytes of its parts, one after the other. In a message of kind 10 the manifest of the
//! parts precedes them. Kind 5 is for replicas of earlier versions, and from them. A piece without bytes at the end of
//! the snapshot asks whether it is installed.
//!
//! A message of another kind is of a later version: it is not answered. Nor is a message of kind 12.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use link::NodeId;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;
use openraft::vote::leader_id_std::CommittedLeaderId;

use crate::raft_types::{
    Command, Entry, LogGroup, LogId, Member, Membership, Payload, ReplicaId, SnapshotMeta, StoredMembership,
    Types, Vote,
};

/// First byte of a payload that is a command.
const COMMAND: u8 = 1;
/// Number of bytes of an entry with a command, without the command.
const ENTRY_HEAD: usize = 16 + 4 + 1;

/// A message, with its sender and receiver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub group: LogGroup,
    pub to: ReplicaId,
    pub from: ReplicaId,
    /// Number of the request. An answer has the number of its request.
    pub call: u32,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    Append(Append),
    Appended(Appended),
    Vote {
        vote: Vote,
        last: Option<LogId>,
        is_pre_vote: bool,
        is_transfer: bool,
    },
    Voted {
        vote: Vote,
        last: Option<LogId>,
        granted: bool,
    },
    Snapshot(SnapshotPiece),
    Received {
        vote: Vote,
        offset: u64,
    },
    Transfer {
        vote: Vote,
        to: ReplicaId,
        last: Option<LogId>,
    },
    Transferred {
        done: bool,
    },
    Refused,
    /// The snapshot is here, and is not installed yet.
    Installing {
        vote: Vote,
    },
    /// The log has the entries up to this one. The disk may lack them.
    Held {
        vote: Vote,
        last: LogId,
    },
}

/// Piece of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SnapshotPiece {
    pub form: SnapshotForm,
    pub vote: Vote,
    pub meta: SnapshotMeta,
    /// Number of bytes of all pieces.
    pub size: u64,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// Bytes that are sent of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotForm {
    /// All parts of a [stream](crate::StateMachine::IS_STREAM).
    Whole,
    /// The manifest, and the parts.
    Parts,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Append {
    pub vote: Vote,
    pub previous: Option<LogId>,
    pub committed: Option<LogId>,
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Appended {
    All,
    Some(Option<LogId>),
    Conflict,
    HigherVote(Vote),
}

impl Body {
    /// Returns whether this is a request without entries.
    pub fn is_empty_append(&self) -> bool {
        matches!(self, Self::Append(append) if append.entries.is_empty())
    }

    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Appended(_)
                | Self::Voted { .. }
                | Self::Received { .. }
                | Self::Transferred { .. }
                | Self::Refused
                | Self::Installing { .. }
        )
    }
}

/// Encodes a message after a prefix.
pub(crate) fn encode(prefix: &[u8], message: &Message) -> Vec<u8> {
    // With the right capacity, a long message is not copied while it grows.
    let long: usize = match &message.body {
        Body::Append(append) => {
            append.entries.iter().map(|entry| ENTRY_HEAD + command_bytes(&entry.payload)).sum()
        }
        Body::Snapshot(piece) => 256 + piece.bytes.len(),
        _ => 0,
    };
    let mut out = Vec::with_capacity(prefix.len() + 96 + long);
    out.extend(prefix);
    out.extend(message.group.0.to_le_bytes());
    out.extend(message.to.0.to_le_bytes());
    out.extend(message.from.0.to_le_bytes());
    out.extend(message.call.to_le_bytes());
    match &message.body {
        Body::Append(Append { vote, previous, committed, entries }) => {
            out.push(1);
            put_vote(vote, &mut out);
            put_log_id_or_none(previous.as_ref(), &mut out);
            put_log_id_or_none(committed.as_ref(), &mut out);
            out.extend((entries.len() as u32).to_le_bytes());
            for entry in entries {
                put_log_id(&entry.log_id, &mut out);
                put_sized(&mut out, |out| put_payload(&entry.payload, out));
            }
        }
        Body::Appended(appended) => {
            out.push(2);
            match appended {
                Appended::All => out.push(0),
                Appended::Some(last) => {
                    out.push(1);
                    put_log_id_or_none(last.as_ref(), &mut out);
                }
                Appended::Conflict => out.push(2),
                Appended::HigherVote(vote) => {
                    out.push(3);
                    put_vote(vote, &mut out);
                }
            }
        }
        Body::Vote { vote, last, is_pre_vote, is_transfer } => {
            out.push(3);
            put_vote(vote, &mut out);
            put_log_id_or_none(last.as_ref(), &mut out);
            out.push(u8::from(*is_pre_vote) | u8::from(*is_transfer) << 1);
        }
        Body::Voted { vote, last, granted } => {
            out.push(4);
            put_vote(vote, &mut out);
            put_log_id_or_none(last.as_ref(), &mut out);
            out.push(u8::from(*granted));
        }
        Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset, bytes }) => {
            out.push(match form {
                SnapshotForm::Whole => 5,
                SnapshotForm::Parts => 10,
            });
            put_vote(vote, &mut out);
            put_meta(meta, &mut out);
            out.extend(size.to_le_bytes());
            out.extend(offset.to_le_bytes());
            out.extend(bytes);
        }
        Body::Received { vote, offset } => {
            out.push(6);
            put_vote(vote, &mut out);
            out.extend(offset.to_le_bytes());
        }
        Body::Transfer { vote, to, last } => {
            out.push(7);
            put_vote(vote, &mut out);
            out.extend(to.0.to_le_bytes());
            put_log_id_or_none(last.as_ref(), &mut out);
        }
        Body::Transferred { done } => out.extend([8, u8::from(*done)]),
        Body::Refused => out.push(9),
        Body::Installing { vote } => {
            out.push(11);
            put_vote(vote, &mut out);
        }
        Body::Held { vote, last } => {
            out.push(12);
            put_vote(vote, &mut out);
            put_log_id(last, &mut out);
        }
    }
    out
}

/// Decodes a message. Returns `None` for other bytes, and for a message of a later version.
pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
    let mut input = Input(bytes);
    let (group, to) = (LogGroup(input.u16()?), ReplicaId(input.u64()?));
    let (from, call) = (ReplicaId(input.u64()?), input.u32()?);
    let kind = input.u8()?;
    let body = match kind {
        1 => {
            let vote = input.vote()?;
            let (previous, committed) = (input.log_id_or_none()?, input.log_id_or_none()?);
            let count = input.u32()?;
            // No capacity is reserved: the count is not trusted.
            let mut entries = Vec::new();
            for _ in 0..count {
                entries.push(input.entry()?);
            }
            Body::Append(Append { vote, previous, committed, entries })
        }
        2 => Body::Appended(match input.u8()? {
            0 => Appended::All,
            1 => Appended::Some(input.log_id_or_none()?),
            2 => Appended::Conflict,
            3 => Appended::HigherVote(input.vote()?),
            _ => return None,
        }),
        3 => {
            let (vote, last, flags) = (input.vote()?, input.log_id_or_none()?, input.u8()?);
            Body::Vote { vote, last, is_pre_vote: flags & 1 != 0, is_transfer: flags & 2 != 0 }
        }
        4 => Body::Voted { vote: input.vote()?, last: input.log_id_or_none()?, granted: input.flag()? },
        5 | 10 => {
            let form = if kind == 5 { SnapshotForm::Whole } else { SnapshotForm::Parts };
            let (vote, meta) = (input.vote()?, input.meta()?);
            let (size, offset) = (input.u64()?, input.u64()?);
            let bytes = std::mem::take(&mut input.0).to_vec();
            Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset, bytes })
        }
        6 => Body::Received { vote: input.vote()?, offset: input.u64()? },
        7 => {
            Body::Transfer { vote: input.vote()?, to: ReplicaId(input.u64()?), last: input.log_id_or_none()? }
        }
        8 => Body::Transferred { done: input.flag()? },
        9 => Body::Refused,
        11 => Body::Installing { vote: input.vote()? },
        12 => Body::Held { vote: input.vote()?, last: input.log_id()? },
        _ => return None,
    };
    Some(Message { group, to, from, call, body })
}

/// Encodes an entry for the log, which stores its term and index itself. The encoding includes the id of the previous
/// entry. So an entry that is older than a snapshot is not mistaken for its successor.
pub(crate) fn encode_entry(previous: Option<&LogId>, entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + command_bytes(&entry.payload));
    put_log_id_or_none(previous, &mut out);
    put_payload(&entry.payload, &mut out);
    out
}

pub(crate) fn decode_entry(log_id: LogId, bytes: &[u8]) -> Option<(Option<LogId>, Entry)> {
    let mut input = Input(bytes);
    let previous = input.log_id_or_none()?;
    let payload = payload_of(input.0)?;
    Some((previous, Entry::new(log_id, payload)))
}

/// Number of bytes of the command of an entry.
pub(crate) fn command_bytes(payload: &Payload) -> usize {
    match payload {
        Payload::Normal(command) => command.0.len(),
        Payload::Blank | Payload::Membership(_) => 0,
    }
}

/// Returns the command of an entry, without a copy. `payload` is what the log of `storage` has of the entry. Returns
/// `None` for an entry without a command, and for bytes that are no entry.
pub fn entry_command(payload: &[u8]) -> Option<&[u8]> {
    let mut input = Input(payload);
    input.log_id_or_none()?;
    input.u8().filter(|kind| *kind == COMMAND)?;
    Some(input.0)
}

/// Vote of a replica, and the last entry that it knows to be committed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HardState {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
}

impl HardState {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        match &self.vote {
            Some(vote) => {
                out.push(1);
                put_vote(vote, &mut out);
            }
            None => out.push(0),
        }
        put_log_id_or_none(self.committed.as_ref(), &mut out);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let vote = if input.flag()? { Some(input.vote()?) } else { None };
        Some(Self { vote, committed: input.log_id_or_none()? })
    }
}

pub(crate) fn encode_meta(meta: &SnapshotMeta) -> Vec<u8> {
    let mut out = Vec::new();
    put_meta(meta, &mut out);
    out
}

pub(crate) fn decode_meta(bytes: &[u8]) -> Option<SnapshotMeta> {
    Input(bytes).meta()
}

pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderId::new(term), index }
}

/// Term of an entry in the log's numbering.
pub(crate) fn term_of(log_id: &LogId) -> u64 {
    *log_id.leader_id
}

fn put_sized(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend([0; 4]);
    put(out);
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

fn put_vote(vote: &Vote, out: &mut Vec<u8>) {
    out.extend(vote.leader_id.term.to_le_bytes());
    out.extend(vote.leader_id.voted_for.0.to_le_bytes());
    out.push(u8::from(vote.committed));
}

fn put_log_id(log_id: &LogId, out: &mut Vec<u8>) {
    out.extend(term_of(log_id).to_le_bytes());
    out.extend(log_id.index.to_le_bytes());
}

fn put_log_id_or_none(log_id: Option<&LogId>, out: &mut Vec<u8>) {
    out.push(u8::from(log_id.is_some()));
    if let Some(log_id) = log_id {
        put_log_id(log_id, out);
    }
}

fn put_payload(payload: &Payload, out: &mut Vec<u8>) {
    match payload {
        Payload::Blank => out.push(0),
        Payload::Normal(Command(bytes)) => {
            out.push(COMMAND);
            out.extend_from_slice(bytes);
        }
        Payload::Membership(membership) => {
            out.push(2);
            put_membership(membership, out);
        }
    }
}

fn put_membership(membership: &Membership, out: &mut Vec<u8>) {
    let configs = membership.get_joint_config();
    out.push(configs.len() as u8);
    for voters in configs {
        out.extend((voters.len() as u16).to_le_bytes());
        voters.iter().for_each(|voter| out.extend(voter.0.to_le_bytes()));
    }
    let nodes: Vec<_> = membership.nodes().collect();
    out.extend((nodes.len() as u16).to_le_bytes());
    for (replica, member) in nodes {
        out.extend(replica.0.to_le_bytes());
        out.extend(member.node.0.to_le_bytes());
    }
}

fn put_meta(meta: &SnapshotMeta, out: &mut Vec<u8>) {
    put_log_id_or_none(meta.last_log_id.as_ref(), out);
    put_log_id_or_none(meta.last_membership.log_id().as_ref(), out);
    put_sized(out, |out| put_membership(meta.last_membership.membership(), out));
}

fn payload_of(bytes: &[u8]) -> Option<Payload> {
    let mut input = Input(bytes);
    match input.u8()? {
        0 => Some(Payload::Blank),
        COMMAND => Some(Payload::Normal(Command(Arc::new(input.0.to_vec())))),
        2 => Some(Payload::Membership(input.membership()?)),
        _ => None,
    }
}

/// Bytes that are not read yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (sized, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(sized)
    }

    fn vote(&mut self) -> Option<Vote> {
        let (term, replica) = (self.u64()?, ReplicaId(self.u64()?));
        let committed = self.flag()?;
        Some(Vote { leader_id: RaftLeaderId::new(term, replica), committed })
    }

    fn log_id(&mut self) -> Option<LogId> {
        Some(log_id(self.u64()?, self.u64()?))
    }

    #[expect(clippy::option_option)]
    fn log_id_or_none(&mut self) -> Option<Option<LogId>> {
        if self.flag()? { self.log_id().map(Some) } else { Some(None) }
    }

    fn entry(&mut self) -> Option<Entry> {
        let log_id = self.log_id()?;
        Some(Entry::new(log_id, payload_of(self.sized()?)?))
    }

    fn membership(&mut self) -> Option<Membership> {
        let mut configs = Vec::new();
        for _ in 0..self.u8()? {
            let mut voters = BTreeSet::new();
            for _ in 0..self.u16()? {
                voters.insert(ReplicaId(self.u64()?));
            }
            configs.push(voters);
        }
        let mut nodes = BTreeMap::new();
        for _ in 0..self.u16()? {
            nodes.insert(ReplicaId(self.u64()?), Member { node: NodeId(self.u64()?) });
        }
        if configs.is_empty() && nodes.is_empty() {
            return Some(Membership::default());
        }
        Membership::new(configs, nodes).ok()
    }

    fn meta(&mut self) -> Option<SnapshotMeta> {
        let (last_log_id, membership_at) = (self.log_id_or_none()?, self.log_id_or_none()?);
        let membership = Input(self.sized()?).membership()?;
        let last_membership: StoredMembership = StoredMembership::new(membership_at, membership);
        Some(SnapshotMeta { last_log_id, last_membership })
    }
}

/// Conversions between the requests of `openraft` and those of this module.
mod convert {
    use super::{Append, Appended, Types};

    impl From<openraft::raft::AppendEntriesRequest<Types>> for Append {
        fn from(request: openraft::raft::AppendEntriesRequest<Types>) -> Self {
            let openraft::raft::AppendEntriesRequest { vote, prev_log_id, entries, leader_commit } = request;
            Self { vote, previous: prev_log_id, committed: leader_commit, entries }
        }
    }

    impl From<Append> for openraft::raft::AppendEntriesRequest<Types> {
        fn from(append: Append) -> Self {
            let Append { vote, previous, committed, entries } = append;
            Self { vote, prev_log_id: previous, entries, leader_commit: committed }
        }
    }

    impl From<openraft::raft::AppendEntriesResponse<Types>> for Appended {
        fn from(response: openraft::raft::AppendEntriesResponse<Types>) -> Self {
            use openraft::raft::AppendEntriesResponse as Response;
            match response {
                Response::Success => Self::All,
                Response::PartialSuccess(last) => Self::Some(last),
                Response::Conflict => Self::Conflict,
                Response::HigherVote(vote) => Self::HigherVote(vote),
            }
        }
    }

    impl From<Appended> for openraft::raft::AppendEntriesResponse<Types> {
        fn from(appended: Appended) -> Self {
            match appended {
                Appended::All => Self::Success,
                Appended::Some(last) => Self::PartialSuccess(last),
                Appended::Conflict => Self::Conflict,
                Appended::HigherVote(vote) => Self::HigherVote(vote),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn vote() -> Vote {
        Vote { leader_id: RaftLeaderId::new(3, ReplicaId(9)), committed: true }
    }

    fn membership() -> Membership {
        let members =
            [(ReplicaId(1), Member { node: NodeId(17) }), (ReplicaId(2), Member { node: NodeId(18) })];
        let voters = BTreeSet::from([ReplicaId(1)]);
        Membership::new(vec![voters], BTreeMap::from(members)).expect("voters are members")
    }

    fn piece(form: SnapshotForm, meta: SnapshotMeta) -> SnapshotPiece {
        SnapshotPiece { form, vote: vote(), meta, size: 9, offset: 7, bytes: b"xy".to_vec() }
    }

    fn messages() -> Vec<(Body, &'static str)> {
        let last = Some(log_id(2, 5));
        let entries = vec![
            Entry::new(log_id(3, 6), Payload::Blank),
            Entry::new(log_id(3, 7), Payload::Normal(Command(Arc::new(b"ab".to_vec())))),
            Entry::new(log_id(3, 8), Payload::Membership(membership())),
        ];
        let meta = SnapshotMeta {
            last_log_id: last,
            last_membership: StoredMembership::new(Some(log_id(1, 0)), membership()),
        };
        vec![
            (Body::Append(Append { vote: vote(), previous: last, committed: None, entries }), APPEND),
            (Body::Appended(Appended::All), "0200"),
            (Body::Appended(Appended::Some(last)), "02010102000000000000000500000000000000"),
            (Body::Appended(Appended::Conflict), "0202"),
            (Body::Appended(Appended::HigherVote(vote())), "02030300000000000000090000000000000001"),
            (
                Body::Vote { vote: vote(), last, is_pre_vote: true, is_transfer: false },
                "0303000000000000000900000000000000010102000000000000000500000000000000\
                 01",
            ),
            (
                Body::Voted { vote: vote(), last: None, granted: true },
                "0403000000000000000900000000000000010001",
            ),
            (Body::Snapshot(piece(SnapshotForm::Whole, meta.clone())), SNAPSHOT),
            (Body::Snapshot(piece(SnapshotForm::Parts, meta)), PARTS),
            (
                Body::Received { vote: vote(), offset: 9 },
                "06030000000000000009000000000000000109000000\
                 00000000",
            ),
            (
                Body::Transfer { vote: vote(), to: ReplicaId(2), last: None },
                "07030000000000000009000000000000000102000000000000\
                 0000",
            ),
            (Body::Transferred { done: true }, "0801"),
            (Body::Refused, "09"),
            (Body::Installing { vote: vote() }, "0b0300000000000000090000000000000001"),
            (
                Body::Held { vote: vote(), last: log_id(2, 5) },
                "0c030000000000000009000000000000000102000000000000000500000000000000",
            ),
        ]
    }

    const APPEND: &str = "
         010300000000000000090000000000000001010200000000000000050000000000000000030000000300000000
         000000060000000000000001000000000300000000000000070000000000000003000000016162030000000000
         000008000000000000002e00000002010100010000000000000002000100000000000000110000000000000002
         000000000000001200000000000000";
    const SNAPSHOT: &str = "
         050300000000000000090000000000000001010200000000000000050000000000000001010000000000000000
         000000000000002d00000001010001000000000000000200010000000000000011000000000000000200000000
         0000001200000000000000090000000000000007000000000000007879";

    const PARTS: &str = "
         0a0300000000000000090000000000000001010200000000000000050000000000000001010000000000000000
         000000000000002d00000001010001000000000000000200010000000000000011000000000000000200000000
         0000001200000000000000090000000000000007000000000000007879";

    fn message(body: Body) -> Message {
        Message { group: LogGroup(1), to: ReplicaId(2), from: ReplicaId(3), call: 4, body }
    }

    /// Version 1 keeps these bytes for ever.
    #[test]
    fn messages_have_these_bytes() {
        for (body, golden) in messages() {
            let message = message(body);
            let bytes = encode(b"", &message);
            assert_eq!(encode(b"ab", &message), [b"ab", &bytes[..]].concat());
            assert_eq!(hex(&bytes[..22]), "01000200000000000000030000000000000004000000");
            assert_eq!(hex(&bytes[22..]), golden.replace(char::is_whitespace, ""), "{message:?}");
            assert_eq!(decode(&bytes), Some(message));
        }
    }

    /// Existing logs hold these bytes, which never change.
    #[test]
    fn records_have_these_bytes() {
        let hard = HardState { vote: Some(vote()), committed: Some(log_id(2, 5)) };
        assert_eq!(
            hex(&hard.encode()),
            "010300000000000000090000000000000001\
             0102000000000000000500000000000000"
                .replace(char::is_whitespace, "")
        );
        assert_eq!(HardState::decode(&hard.encode()), Some(hard));
        let entry = Entry::new(log_id(3, 7), Payload::Normal(Command(Arc::new(b"ab".to_vec()))));
        let bytes = encode_entry(Some(&log_id(3, 6)), &entry);
        assert_eq!(hex(&bytes), "0103000000000000000600000000000000016162");
        assert_eq!(decode_entry(log_id(3, 7), &bytes), Some((Some(log_id(3, 6)), entry)));
    }

    #[test]
    fn the_command_of_a_stored_entry_is_found_in_it() {
        let command = Payload::Normal(Command(Arc::new(b"ab".to_vec())));
        for (payload, found) in [
            (command.clone(), Some(b"ab".as_slice())),
            (Payload::Normal(Command(Arc::default())), Some(b"".as_slice())),
            (Payload::Blank, None),
            (Payload::Membership(membership()), None),
        ] {
            for previous in [None, Some(log_id(3, 6))] {
                let bytes = encode_entry(previous.as_ref(), &Entry::new(log_id(3, 7), payload.clone()));
                assert_eq!(entry_command(&bytes), found);
            }
        }
        assert_eq!((entry_command(&[]), entry_command(&[1, 0, 0]), entry_command(&[0])), (None, None, None));
    }

    #[test]
    fn decoding_never_panics() {
        for (body, _) in messages() {
            let bytes = encode(b"", &message(body));
            for length in 0..bytes.len() {
                let _ = decode(&bytes[..length]);
            }
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut bad = bytes.clone();
                    bad[at] = value;
                    let _ = decode(&bad);
                    let _ = (decode_meta(&bad), HardState::decode(&bad), decode_entry(log_id(1, 1), &bad));
                }
            }
        }
        assert_eq!(decode(&[]), None);
    }
}
