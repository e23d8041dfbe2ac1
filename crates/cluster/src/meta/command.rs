//! Commands proposed to the meta group, and its answers.

use consensus::ReplicaId;
use link::NodeId;
use replog::Incarnation;

use super::placement::PlacementCommand;
use super::reader::{Reader, put_text};
use crate::config::{NodeInfo, Role};
use crate::features::{INCARNATIONS, RECORDS, SHARDS};

/// Change of the roster, of the records or of the placement. A command that does not fit the state when it is applied
/// changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Found the cluster, with this random number.
    Found(u128),
    /// Start an incarnation of a node, which ends every earlier one, or change the address of the node. For a core it
    /// includes the replica.
    Join { info: NodeInfo, incarnation: Incarnation, replica: Option<ReplicaId> },
    /// Remove a node from the members, if this incarnation is the last that has joined. Earlier versions sent no
    /// incarnation, which means any.
    Remove(NodeId, Option<Incarnation>),
    /// Mark an incarnation of the node that no core reaches as suspect.
    Suspect(NodeId, Incarnation),
    /// Clear the suspicion, because a core reaches the incarnation again.
    ClearSuspicion(NodeId, Incarnation),
    /// Declare a suspect incarnation dead. No core grants it a lease any more, and every lease that was granted has
    /// ended.
    DeclareDead(NodeId, Incarnation),
    /// Let an incarnation leave the cluster. A core keeps its vote until the others have a majority without it.
    Leave(NodeId, Incarnation),
    /// Transfer leadership to this core. The leader does so at once; the command is never in the log.
    Lead(NodeId),
    /// Change records.
    Records(RecordBatch),
    /// Record that all cores understand these features, as must all that join from now on: commands in the log may use
    /// them.
    Adopt(u64),
    /// Change the placement of shards.
    Placement(PlacementCommand),
}

/// Encoded batch of [`configstore`].
#[derive(Clone, PartialEq, Eq)]
pub struct RecordBatch(pub Vec<u8>);

/// Omits the content: it may include the hash of a password.
impl std::fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// A later incarnation has joined, or this one is dead. Only an incarnation of at least this number may join. For
    /// [`Command::Remove`]: this is the last incarnation that has joined.
    Old(Incarnation),
    /// No cluster exists, or it is full, or the name of another node has the same id.
    Refused,
    /// Answer of the configuration store to a batch ([`configstore::Answer`]).
    Records(Vec<u8>),
    /// Not all cores are known to understand the command. The text names them and says what to do, for operators.
    Unread(Box<str>),
}

impl Command {
    /// Returns the features that every core must have before the command is in the log.
    pub fn asks_for(&self) -> u64 {
        match self {
            Self::Records(_) => RECORDS,
            Self::Remove(_, Some(_)) => INCARNATIONS,
            Self::Placement(_) => SHARDS,
            _ => 0,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put_incarnation = |kind: u8, id: &NodeId, incarnation: &Incarnation| {
            out.push(kind);
            out.extend(id.0.to_le_bytes());
            out.extend(incarnation.0.to_le_bytes());
        };
        match self {
            Self::Suspect(id, incarnation) => put_incarnation(4, id, incarnation),
            Self::ClearSuspicion(id, incarnation) => put_incarnation(5, id, incarnation),
            Self::DeclareDead(id, incarnation) => put_incarnation(6, id, incarnation),
            Self::Leave(id, incarnation) => put_incarnation(8, id, incarnation),
            Self::Remove(id, Some(incarnation)) => put_incarnation(10, id, incarnation),
            Self::Found(id) => {
                out.push(1);
                out.extend(id.to_le_bytes());
            }
            Self::Join { info, incarnation, replica } => {
                out.push(2);
                put_member(info, *incarnation, *replica, &mut out);
            }
            Self::Remove(id, None) => {
                out.push(3);
                out.extend(id.0.to_le_bytes());
            }
            Self::Lead(id) => {
                out.push(9);
                out.extend(id.0.to_le_bytes());
            }
            Self::Records(batch) => {
                out.push(7);
                out.extend(&batch.0);
            }
            Self::Adopt(features) => {
                out.push(11);
                out.extend(features.to_le_bytes());
            }
            Self::Placement(command) => {
                out.push(12);
                command.encode(&mut out);
            }
        }
        out
    }

    /// Decodes the result of [`Self::encode`]; returns `None` for anything else. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let command = match kind {
            1 => Self::Found(reader.u128()?),
            2 => {
                let (info, incarnation, replica) = take_member(&mut reader)?;
                Self::Join { info, incarnation, replica }
            }
            3 => Self::Remove(NodeId(reader.u64()?), None),
            9 => Self::Lead(NodeId(reader.u64()?)),
            4..=6 | 8 | 10 => {
                let (id, incarnation) = (NodeId(reader.u64()?), Incarnation(reader.u64()?));
                match kind {
                    4 => Self::Suspect(id, incarnation),
                    5 => Self::ClearSuspicion(id, incarnation),
                    6 => Self::DeclareDead(id, incarnation),
                    8 => Self::Leave(id, incarnation),
                    _ => Self::Remove(id, Some(incarnation)),
                }
            }
            7 => Self::Records(RecordBatch(reader.rest().into())),
            11 => Self::Adopt(reader.u64()?),
            12 => Self::Placement(PlacementCommand::decode(&mut reader)?),
            _ => return None,
        };
        reader.is_empty().then_some(command)
    }
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => vec![0],
            Self::Old(next) => [&[1][..], &next.0.to_le_bytes()].concat(),
            Self::Refused => vec![2],
            Self::Records(answer) => [&[3], &answer[..]].concat(),
            Self::Unread(why) => [&[4], why.as_bytes()].concat(),
        }
    }

    /// Decodes an answer; returns `None` for invalid bytes. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(match reader.u8()? {
            0 => Self::Done,
            1 => Self::Old(Incarnation(reader.u64()?)),
            2 => Self::Refused,
            3 => Self::Records(reader.rest().into()),
            4 => Self::Unread(String::from_utf8_lossy(reader.rest()).into()),
            _ => return None,
        })
    }
}

/// Id that stands for no replica.
const NO_REPLICA: ReplicaId = ReplicaId(0);

pub(super) fn put_member(
    info: &NodeInfo,
    incarnation: Incarnation,
    replica: Option<ReplicaId>,
    out: &mut Vec<u8>,
) {
    out.push(match info.role {
        Role::Core => 0,
        Role::Replicant => 1,
    });
    out.extend(incarnation.0.to_le_bytes());
    out.extend(replica.unwrap_or(NO_REPLICA).0.to_le_bytes());
    put_text(&info.name, out);
    put_text(&info.region, out);
    put_text(&info.address, out);
}

pub(super) fn take_member(reader: &mut Reader<'_>) -> Option<(NodeInfo, Incarnation, Option<ReplicaId>)> {
    let role = match reader.u8()? {
        0 => Role::Core,
        1 => Role::Replicant,
        _ => return None,
    };
    let incarnation = Incarnation(reader.u64()?);
    let replica = Some(ReplicaId(reader.u64()?)).filter(|replica| *replica != NO_REPLICA);
    let mut text = || reader.text().map(Box::<str>::from);
    let info = NodeInfo { name: text()?, region: text()?, address: text()?, role };
    Some((info, incarnation, replica))
}

#[cfg(test)]
mod tests {
    use broker::ShardId;

    use super::*;
    use crate::config::Replicas;
    use crate::meta::placement::planner::{Core, Standing, found};
    use crate::meta::placement::{CoreLog, ShardMove, ShardReplica};

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn commands_and_answers_keep_their_byte_format() {
        let info =
            NodeInfo { name: "a".into(), role: Role::Core, region: "eu".into(), address: "h:1".into() };
        let (id, incarnation) = (NodeId(2), Incarnation(3));
        let join = Command::Join { info, incarnation, replica: Some(ReplicaId(4)) };
        let both = "02000000000000000300000000000000";
        let two = "02000000000000000400000000000000";
        let log = CoreLog { node: id, replica: ReplicaId(4) };
        let step = ShardMove { version: 5, shard: ShardId(6), add: Some(log), remove: None };
        let removed = ShardReplica { node: id, replica: ReplicaId(4), since: 7 };
        let undo = ShardMove { add: None, remove: Some(removed), ..step };
        let core = Core { log, region: "eu".into(), standing: Standing::Serves };
        let first = found(&[core], 1, Replicas::default(), [7; 16]).expect("a core");
        let cases = [
            (Command::Found(5), "0105000000000000000000000000000000".to_owned()),
            (join, "020003000000000000000400000000000000016102657503683a31".to_owned()),
            (Command::Remove(id, None), "030200000000000000".to_owned()),
            (Command::Remove(id, Some(incarnation)), format!("0a{both}")),
            (Command::Suspect(id, incarnation), format!("04{both}")),
            (Command::ClearSuspicion(id, incarnation), format!("05{both}")),
            (Command::DeclareDead(id, incarnation), format!("06{both}")),
            (Command::Leave(id, incarnation), format!("08{both}")),
            (Command::Lead(id), "090200000000000000".to_owned()),
            (Command::Records(RecordBatch(b"ab".into())), "076162".to_owned()),
            (Command::Adopt(24), "0b1800000000000000".to_owned()),
            (
                Command::Placement(PlacementCommand::Move(step)),
                format!("0c0205000000000000000600{two}{}", "00".repeat(24)),
            ),
            (
                Command::Placement(PlacementCommand::Move(undo)),
                format!("0c0205000000000000000600{}{two}0700000000000000", "00".repeat(16)),
            ),
            (
                Command::Placement(PlacementCommand::Done { shard: ShardId(6), epoch: 5 }),
                "0c0306000500000000000000".to_owned(),
            ),
            (
                Command::Placement(PlacementCommand::Found(first.into())),
                format!(
                    "0c010100000000000000000307070707070707070707070707070707010000000000000000000 1{two}{}",
                    "00".repeat(56)
                )
                .replace(' ', ""),
            ),
        ];
        for (command, golden) in cases {
            let bytes = command.encode();
            let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, golden);
            assert_eq!(Command::decode(&bytes), Some(command));
            for length in 0..bytes.len() {
                let part = Command::decode(&bytes[..length]);
                // The content of a batch is checked by the records.
                assert!(part.is_none_or(|part| matches!(part, Command::Records(_))), "{length}");
            }
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut bad = bytes.clone();
                    bad[at] = value;
                    let _ = Command::decode(&bad);
                }
            }
        }
        let records = Answer::Records(b"ab".into());
        let unread = Answer::Unread("ab".into());
        assert_eq!((records.encode(), unread.encode()), (b"\x03ab".to_vec(), b"\x04ab".to_vec()));
        for answer in [Answer::Done, Answer::Old(Incarnation(7)), Answer::Refused, records, unread] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(Answer::Old(Incarnation(7)).encode(), [1, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Answer::decode(&[]), None);
        assert_eq!(Answer::decode(&[5]), None);
    }
}
