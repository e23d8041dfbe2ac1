//! State of the meta group: the members of the cluster, the records that operators change, and the placement of shards.

use configstore::{Records, SnapshotReader};
use consensus::{Committed, STREAM_PART_BYTES, SnapshotError, StateMachine, UnsupportedVersion};

use super::command::{Answer, Command};
use super::placement::Placement;
use super::reader::Reader;
use super::roster::Roster;
use crate::features::{FEATURES, LOG_READABLE, RECORDS};
use crate::mutation::{Mutation, mutated};

/// First byte of a snapshot.
const ROSTER: u8 = 1;
const WITH_RECORDS: u8 = 2;
const WITH_FEATURES: u8 = 3;
const WITH_PLACEMENT: u8 = 4;
/// Maximum number of bytes of a snapshot before its records.
const HEAD_MAX: usize = 64 << 20;

/// State machine of the meta group.
#[derive(Clone, Debug)]
pub struct MetaState {
    pub roster: Roster,
    pub records: Records,
    /// Placement of shards, once the cores have adopted [`SHARDS`](crate::features::SHARDS).
    pub placement: Option<Placement>,
    /// Features that commands in the log may use: all cores understand these.
    pub adopted: u64,
    /// Features that this core understands.
    understood: u64,
    /// Number of parts of the last snapshot.
    parts: u32,
    checkpoint: Option<Checkpoint>,
    restoring: Option<Box<Restoring>>,
}

impl Default for MetaState {
    fn default() -> Self {
        Self::new(Records::default(), FEATURES)
    }
}

impl MetaState {
    /// Creates the state before any entry.
    pub fn new(records: Records, understood: u64) -> Self {
        Self {
            roster: Roster::default(),
            records,
            placement: None,
            adopted: 0,
            understood: understood & LOG_READABLE,
            parts: 0,
            checkpoint: None,
            restoring: None,
        }
    }

    /// Returns the features that commands in the log may use. Earlier versions used the feature of records without
    /// adopting it.
    pub fn asked_for(&self) -> u64 {
        self.adopted | if self.records.revision() > 0 { RECORDS } else { 0 }
    }

    fn adopt(&mut self, features: u64) -> Result<Answer, UnsupportedVersion> {
        if features & !self.understood != 0 {
            return Err(UnsupportedVersion);
        }
        self.adopted |= features;
        Ok(Answer::Done)
    }
}

impl MetaState {
    /// First bytes of a snapshot: `2, length of the roster u32, the roster`; with adopted features `3, adopted u64`
    /// and the same fields; with a placement `4, adopted u64`, the same fields, `length of the placement u32, the
    /// placement`. The records follow.
    fn encode_head(&self) -> Vec<u8> {
        let placement = self.placement.as_ref().filter(|_| !mutated(Mutation::ForgetPlacement));
        let mut out = match placement {
            Some(_) => vec![WITH_PLACEMENT],
            None if self.adopted != 0 => vec![WITH_FEATURES],
            None => vec![WITH_RECORDS],
        };
        if out[0] != WITH_RECORDS {
            out.extend(self.adopted.to_le_bytes());
        }
        for part in [Some(self.roster.encode()), placement.map(Placement::encode)].into_iter().flatten() {
            out.extend((part.len() as u32).to_le_bytes());
            out.extend(part);
        }
        out
    }
}

impl StateMachine for MetaState {
    /// Index of a command, and its answer.
    type Effect = (u64, Answer);

    const IS_STREAM: bool = true;

    fn apply(
        &mut self,
        committed: &Committed,
        effects: &mut Vec<(u64, Answer)>,
    ) -> Result<(), UnsupportedVersion> {
        let answer = match Command::decode(&committed.command) {
            Some(Command::Records(_)) if self.roster.founded == 0 => Answer::Refused,
            Some(Command::Records(batch)) => Answer::Records(self.records.apply(&batch.0)),
            Some(Command::Adopt(features)) => self.adopt(features)?,
            Some(Command::Placement(command)) => {
                Placement::apply(&mut self.placement, committed.index, command, &self.roster)
            }
            Some(command) => self.roster.change(committed.index, command),
            // Commands of a later version come after a `Command::Adopt`, at which this version stops.
            None => Answer::Refused,
        };
        effects.push((committed.index, answer));
        Ok(())
    }

    fn begin_checkpoint(&mut self) {
        let mut bytes = self.encode_head();
        self.records.begin_snapshot(&mut bytes);
        self.checkpoint = Some(Checkpoint { bytes, parts: 0 });
    }

    fn write_parts(&mut self, budget: usize, out: &mut dyn FnMut(u32, &[u8])) -> bool {
        let Some(checkpoint) = &mut self.checkpoint else { return true };
        let mut written = 0;
        while written <= budget {
            let is_whole = self.records.write_snapshot(STREAM_PART_BYTES, &mut checkpoint.bytes);
            let is_last = is_whole && checkpoint.bytes.len() <= STREAM_PART_BYTES;
            let rest = checkpoint.bytes.split_off(checkpoint.bytes.len().min(STREAM_PART_BYTES));
            out(checkpoint.parts, &checkpoint.bytes);
            written += checkpoint.bytes.len();
            (checkpoint.bytes, checkpoint.parts) = (rest, checkpoint.parts + 1);
            if is_last {
                (checkpoint.parts..self.parts).for_each(|gone| out(gone, &[]));
                self.parts = checkpoint.parts;
                self.checkpoint = None;
                return true;
            }
        }
        false
    }

    fn begin_restore(&mut self) {
        self.restoring = Some(Box::default());
    }

    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        let restoring = self.restoring.as_mut().ok_or(SnapshotError::Invalid)?;
        if part != restoring.parts {
            return Err(SnapshotError::Invalid);
        }
        restoring.feed(bytes, self.understood)
    }

    fn restored(&mut self, _: u64) -> Result<(), SnapshotError> {
        let restoring = *self.restoring.take().ok_or(SnapshotError::Invalid)?;
        let limits = self.records.limits();
        let (head, records) = match restoring.head {
            Some(head) if !restoring.has_records => (head, Records::new(limits)),
            Some(head) => (head, restoring.records.finish(limits).ok_or(SnapshotError::Invalid)?),
            None if restoring.bytes.first() == Some(&ROSTER) => {
                let roster = Roster::decode(&restoring.bytes).ok_or(SnapshotError::Invalid)?;
                (Head { roster, adopted: 0, placement: None }, Records::new(limits))
            }
            None => return Err(SnapshotError::Invalid),
        };
        (self.roster, self.adopted, self.placement) = (head.roster, head.adopted, head.placement);
        self.records = records;
        (self.parts, self.checkpoint) = (restoring.parts, None);
        Ok(())
    }
}

/// Snapshot that is being written.
#[derive(Clone, Debug)]
struct Checkpoint {
    /// Bytes that are not in a part yet.
    bytes: Vec<u8>,
    parts: u32,
}

/// Snapshot that is being read.
#[derive(Clone, Default)]
struct Restoring {
    /// Number of parts that were read.
    parts: u32,
    /// Bytes before the records that are not read yet.
    bytes: Vec<u8>,
    head: Option<Head>,
    has_records: bool,
    records: SnapshotReader,
}

/// Part of a snapshot before the records.
#[derive(Clone)]
struct Head {
    roster: Roster,
    adopted: u64,
    placement: Option<Placement>,
}

impl std::fmt::Debug for Restoring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restoring").field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl Restoring {
    fn feed(&mut self, bytes: &[u8], understood: u64) -> Result<(), SnapshotError> {
        self.parts += 1;
        if self.head.is_some() {
            return self.feed_records(bytes);
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > HEAD_MAX {
            return Err(SnapshotError::Invalid);
        }
        let head = std::mem::take(&mut self.bytes);
        let mut reader = Reader::new(&head);
        let form = reader.u8();
        let adopted = match form {
            Some(WITH_RECORDS) => Some(0),
            Some(WITH_FEATURES | WITH_PLACEMENT) => reader.u64(),
            None | Some(ROSTER) => None,
            Some(_) => return Err(SnapshotError::UnsupportedVersion),
        };
        if adopted.is_some_and(|adopted| adopted & !understood != 0) {
            return Err(SnapshotError::UnsupportedVersion);
        }
        let mut field = || reader.u32().and_then(|length| reader.bytes(length as usize));
        let roster = adopted.and_then(|_| field());
        let placement = match form {
            Some(WITH_PLACEMENT) => roster.and_then(|_| field()).map(Some),
            _ => Some(None),
        };
        if let (Some(adopted), Some(roster), Some(placement)) = (adopted, roster, placement) {
            let roster = Roster::decode(roster).ok_or(SnapshotError::Invalid)?;
            let placement = placement.map(|it| Placement::decode(it).ok_or(SnapshotError::Invalid));
            self.head = Some(Head { roster, adopted, placement: placement.transpose()? });
            return self.feed_records(reader.rest());
        }
        // The rest of these bytes is missing.
        self.bytes = head;
        Ok(())
    }

    fn feed_records(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.has_records |= !bytes.is_empty();
        if self.records.feed(bytes) { Ok(()) } else { Err(SnapshotError::Invalid) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use consensus::ReplicaId;
    use link::NodeId;

    use super::*;
    use crate::config::Replicas;
    use crate::features::LOG;
    use crate::meta::CoreLog;
    use crate::meta::command::RecordBatch;
    use crate::meta::placement::PlacementCommand;
    use crate::meta::placement::planner::{Core, Standing, found};

    /// Batch that puts 7 under `a` in table `t`.
    const BATCH: &[u8] = b"\x01\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01t\x01\0a\0\x01\x01\0\0\x007";

    fn agreed() -> MetaState {
        let mut agreed = MetaState::default();
        apply(&mut agreed, 1, &Command::Found(3));
        apply(&mut agreed, 2, &Command::Records(RecordBatch(BATCH.into())));
        agreed
    }

    fn committed(index: u64, command: &Command) -> Committed {
        Committed { index, term: 1, command: Arc::new(command.encode()) }
    }

    fn apply(agreed: &mut MetaState, index: u64, command: &Command) -> Option<Answer> {
        let mut effects = Vec::new();
        agreed.apply(&committed(index, command), &mut effects).expect("this version understands it");
        match effects.pop() {
            Some((at, answer)) if at == index && effects.is_empty() => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    /// All parts of a snapshot, as versions before parts stored them.
    fn snapshot(agreed: &MetaState) -> Vec<u8> {
        let mut bytes = agreed.encode_head();
        bytes.extend(agreed.records.snapshot());
        bytes
    }

    /// Restores parts of this size.
    fn restore(agreed: &mut MetaState, bytes: &[u8], size: usize) -> Result<(), SnapshotError> {
        agreed.begin_restore();
        for (number, part) in (0..).zip(bytes.chunks(size)) {
            agreed.restore_part(number, part)?;
        }
        agreed.restored(9)
    }

    /// The leader proposes to adopt what all cores offer. A core that does not understand that stops.
    #[test]
    fn a_state_understands_what_its_node_offers() {
        assert_eq!(MetaState::default().understood, FEATURES & LOG_READABLE);
    }

    #[test]
    fn records_do_not_change_the_roster_and_need_a_cluster() {
        let agreed = agreed();
        assert_eq!((agreed.roster.index, agreed.roster.founded), (1, 3));
        assert_eq!((agreed.records.revision(), agreed.records.get("t", "a")), (1, Some("7")));
        let mut before = MetaState::default();
        let answer = apply(&mut before, 1, &Command::Records(RecordBatch(BATCH.into())));
        assert_eq!((answer, before.records.revision()), (Some(Answer::Refused), 0));
    }

    #[test]
    fn snapshots_with_and_without_records_are_read() {
        let agreed = agreed();
        let bytes = snapshot(&agreed);
        let mut again = MetaState::default();
        restore(&mut again, &bytes, STREAM_PART_BYTES).expect("it was just made");
        assert_eq!(snapshot(&again), bytes);
        for size in 1..bytes.len() {
            let mut again = MetaState::default();
            restore(&mut again, &bytes, size).expect("parts of any size");
            assert_eq!((snapshot(&again), again.parts), (bytes.clone(), bytes.len().div_ceil(size) as u32));
        }
        again.begin_restore();
        assert!(matches!(again.restore_part(1, &bytes), Err(SnapshotError::Invalid)), "part 0 is missing");
        assert_eq!((again.roster.clone(), again.records.get("t", "a")), (agreed.roster.clone(), Some("7")));
        let mut old = MetaState::default();
        restore(&mut old, &agreed.roster.encode(), 7).expect("the snapshot of version 1");
        assert_eq!((old.roster, old.records.revision()), (agreed.roster.clone(), 0));
        for length in 0..bytes.len() {
            let mut part = MetaState::default();
            // A snapshot without any records belongs to a cluster without records.
            let is_whole = length == 5 + agreed.roster.encode().len();
            assert_eq!(restore(&mut part, &bytes[..length], 9).is_ok(), is_whole, "{length}");
        }
    }

    #[test]
    fn a_core_without_an_adopted_feature_stops_there() {
        let mut agreed = agreed();
        assert_eq!(agreed.asked_for(), RECORDS, "earlier versions did not adopt it");
        assert_eq!(snapshot(&agreed)[0], WITH_RECORDS, "they read it");
        assert_eq!(apply(&mut agreed, 3, &Command::Adopt(LOG)), Some(Answer::Done));
        assert_eq!((agreed.adopted, agreed.roster.index), (LOG, 1));
        let (bytes, later) = (snapshot(&agreed), committed(4, &Command::Adopt(1 << 40)));
        assert!(agreed.apply(&later, &mut Vec::new()).is_err());
        assert_eq!(snapshot(&agreed), bytes);
        let mut again = MetaState::default();
        restore(&mut again, &bytes, 10).expect("it was just made");
        assert_eq!(snapshot(&again), bytes);
        let mut earlier = MetaState::new(Records::default(), RECORDS);
        assert!(matches!(restore(&mut earlier, &bytes, 10), Err(SnapshotError::UnsupportedVersion)));
        assert!(matches!(
            restore(&mut again, &[WITH_PLACEMENT + 1, 0], 10),
            Err(SnapshotError::UnsupportedVersion)
        ));
        for length in 0..14 {
            assert!(
                matches!(restore(&mut again, &bytes[..length], 3), Err(SnapshotError::Invalid)),
                "{length}"
            );
        }
        assert_eq!(snapshot(&again), bytes);
    }

    /// A state without a placement has the same bytes as before there were any.
    #[test]
    fn a_snapshot_has_the_placement() {
        let mut agreed = MetaState { placement: None, ..MetaState::new(Records::default(), u64::MAX) };
        apply(&mut agreed, 1, &Command::Found(3));
        apply(&mut agreed, 2, &Command::Records(RecordBatch(BATCH.into())));
        apply(&mut agreed, 3, &Command::Adopt(LOG_READABLE));
        let before = snapshot(&agreed);
        assert_eq!(before[0], WITH_FEATURES);
        let log = CoreLog { node: NodeId(2), replica: ReplicaId(4) };
        let core = Core { log, region: "".into(), standing: Standing::Serves };
        let first = found(&[core], 3, Replicas::default(), [7; 16]).expect("a core");
        apply(&mut agreed, 4, &Command::Placement(PlacementCommand::Found(first.into())));
        assert_eq!(agreed.placement.as_ref().map(|placement| placement.version), Some(4));
        assert_eq!(agreed.roster.index, 1, "the roster has not changed");
        let bytes = snapshot(&agreed);
        let placement = agreed.placement.as_ref().expect("shards are placed").encode();
        let head = before.len() - agreed.records.snapshot().len();
        let length = (placement.len() as u32).to_le_bytes();
        let expected = [&[WITH_PLACEMENT], &before[1..head], &length, &placement, &before[head..]].concat();
        assert_eq!(bytes, expected);
        for size in 1..bytes.len() {
            let mut again = MetaState::new(Records::default(), u64::MAX);
            restore(&mut again, &bytes, size).expect("parts of any size");
            assert_eq!((&again.placement, snapshot(&again)), (&agreed.placement, bytes.clone()));
        }
        for length in 0..head + 4 + placement.len() {
            let mut part = MetaState::new(Records::default(), u64::MAX);
            assert!(restore(&mut part, &bytes[..length], 9).is_err(), "{length}");
        }
        let mut replaced = agreed;
        restore(&mut replaced, &before, 9).expect("an older snapshot");
        assert_eq!(replaced.placement, None);
        let mut earlier = MetaState::default();
        assert!(matches!(restore(&mut earlier, &bytes, 10), Err(SnapshotError::UnsupportedVersion)));
    }

    fn put(key: u64, value: usize) -> Command {
        let mut batch = vec![1];
        batch.extend(u128::from(key).wrapping_mul(1 << 70).wrapping_add(value as u128).to_le_bytes());
        batch.extend([0, 1, 0, 0, 0, 1, b't']);
        let key = format!("{key:05}");
        batch.extend((key.len() as u16).to_le_bytes());
        batch.extend(key.as_bytes());
        batch.extend([0, 1]);
        let value = "7".repeat(value);
        batch.extend((value.len() as u32).to_le_bytes());
        batch.extend(value.as_bytes());
        Command::Records(RecordBatch(batch))
    }

    /// Commands that are applied while a snapshot is written are not in it. Parts that only the snapshot before has are
    /// removed.
    #[test]
    fn a_snapshot_in_several_parts_is_the_state_when_it_began() {
        let mut agreed = agreed();
        for key in 0..60 {
            apply(&mut agreed, 10 + key, &put(key, 50_000));
        }
        let mut parts = BTreeMap::new();
        for round in 0..3 {
            let bytes = snapshot(&agreed);
            assert!(bytes.len() > 2 * STREAM_PART_BYTES || round == 2);
            agreed.begin_checkpoint();
            let mut index = 1_000 * (round + 1);
            while !agreed.write_parts(0, &mut |part, bytes: &[u8]| {
                assert!(bytes.len() <= STREAM_PART_BYTES);
                parts.insert(part, bytes.to_vec());
            }) {
                for key in [0, 30 + round, 59, 100 + index] {
                    index += 1;
                    apply(&mut agreed, index, &put(key, 10 + index as usize));
                }
            }
            parts.retain(|_, bytes| !bytes.is_empty());
            let written: Vec<u8> = parts.values().flatten().copied().collect();
            assert!(written == bytes, "round {round}");
            if round == 1 {
                for key in 0..60 {
                    apply(&mut agreed, 5_000 + key, &put(key, 3));
                }
            }
        }
        assert_eq!(parts.len(), 1);
        // A snapshot that was given up is written again as a whole.
        agreed.begin_checkpoint();
        apply(&mut agreed, 9_000, &put(1, 4));
        let bytes = snapshot(&agreed);
        agreed.begin_checkpoint();
        let mut again = Vec::new();
        while !agreed.write_parts(0, &mut |_, bytes: &[u8]| again.extend_from_slice(bytes)) {}
        assert!(again == bytes);
    }
}
