//! State of the meta group: the members of the cluster, and the records that operators change.

use configstore::Records;
use consensus::{SnapshotError, StateMachine, UnsupportedVersion};

use super::command::{Answer, Command};
use super::reader::Reader;
use super::roster::Roster;
use crate::features::{LOG, RECORDS};

/// First byte of a snapshot.
const ROSTER: u8 = 1;
const WITH_RECORDS: u8 = 2;
const WITH_FEATURES: u8 = 3;

/// State machine of the meta group.
#[derive(Clone, Debug)]
pub struct MetaState {
    pub roster: Roster,
    pub records: Records,
    /// Features that commands in the log may use: all cores understand these.
    pub adopted: u64,
    /// Features that this core understands.
    understood: u64,
}

impl Default for MetaState {
    fn default() -> Self {
        Self::new(Records::default(), LOG)
    }
}

impl MetaState {
    /// Creates the state before any entry.
    pub fn new(records: Records, understood: u64) -> Self {
        Self { roster: Roster::default(), records, adopted: 0, understood: understood & LOG }
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

impl StateMachine for MetaState {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, UnsupportedVersion> {
        let answer = match Command::decode(command) {
            Some(Command::Records(_)) if self.roster.founded == 0 => Answer::Refused,
            Some(Command::Records(batch)) => Answer::Records(self.records.apply(&batch.0)),
            Some(Command::Adopt(features)) => self.adopt(features)?,
            Some(command) => self.roster.change(index, command),
            // Commands of a later version come after a `Command::Adopt`, at which this version stops.
            None => Answer::Refused,
        };
        Ok(answer.encode())
    }

    /// Encodes the state as `2, length of the roster u32, the roster, the records`; with adopted features as
    /// `3, adopted u64` and the same fields.
    fn snapshot(&self) -> Vec<u8> {
        let roster = self.roster.encode();
        let mut out = vec![WITH_RECORDS];
        if self.adopted != 0 {
            out = vec![WITH_FEATURES];
            out.extend(self.adopted.to_le_bytes());
        }
        out.extend((roster.len() as u32).to_le_bytes());
        out.extend(roster);
        out.extend(self.records.snapshot());
        out
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        let mut reader = Reader::new(snapshot);
        let version = reader.u8().ok_or(SnapshotError::Invalid)?;
        let adopted = match version {
            ROSTER | WITH_RECORDS => 0,
            WITH_FEATURES => reader.u64().ok_or(SnapshotError::Invalid)?,
            _ => return Err(SnapshotError::UnsupportedVersion),
        };
        if adopted & !self.understood != 0 {
            return Err(SnapshotError::UnsupportedVersion);
        }
        let roster = match version {
            ROSTER => Some(snapshot),
            _ => reader.u32().and_then(|length| reader.bytes(length as usize)),
        };
        let roster = roster.and_then(Roster::decode).ok_or(SnapshotError::Invalid)?;
        let records = if version == ROSTER { &[][..] } else { reader.rest() };
        if records.is_empty() {
            self.records = Records::new(self.records.limits());
        } else if !self.records.restore(records) {
            return Err(SnapshotError::Invalid);
        }
        (self.roster, self.adopted) = (roster, adopted);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::command::RecordBatch;

    /// Batch that puts 7 under `a` in table `t`.
    const BATCH: &[u8] = b"\x01\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01t\x01\0a\0\x01\x01\0\0\x007";

    fn agreed() -> MetaState {
        let mut agreed = MetaState::default();
        apply(&mut agreed, 1, &Command::Found(3));
        apply(&mut agreed, 2, &Command::Records(RecordBatch(BATCH.into())));
        agreed
    }

    fn apply(agreed: &mut MetaState, index: u64, command: &Command) -> Option<Answer> {
        Answer::decode(&agreed.apply(index, &command.encode()).expect("this version understands it"))
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
        let bytes = agreed.snapshot();
        let mut again = MetaState::default();
        again.restore(&bytes).expect("it was just made");
        assert_eq!(again.snapshot(), bytes);
        assert_eq!((again.roster.clone(), again.records.get("t", "a")), (agreed.roster.clone(), Some("7")));
        let mut old = MetaState::default();
        old.restore(&agreed.roster.encode()).expect("the snapshot of version 1");
        assert_eq!((old.roster, old.records.revision()), (agreed.roster.clone(), 0));
        for length in 0..bytes.len() {
            let mut part = MetaState::default();
            // A snapshot without any records belongs to a cluster without records.
            let is_whole = length == 5 + agreed.roster.encode().len();
            assert_eq!(part.restore(&bytes[..length]).is_ok(), is_whole, "{length}");
        }
    }

    #[test]
    fn a_core_without_an_adopted_feature_stops_there() {
        let mut agreed = agreed();
        assert_eq!(agreed.asked_for(), RECORDS, "earlier versions did not adopt it");
        assert_eq!(agreed.snapshot()[0], WITH_RECORDS, "they read it");
        assert_eq!(apply(&mut agreed, 3, &Command::Adopt(LOG)), Some(Answer::Done));
        assert_eq!((agreed.adopted, agreed.roster.index), (LOG, 1));
        let (bytes, later) = (agreed.snapshot(), Command::Adopt(1 << 40).encode());
        assert!(agreed.apply(4, &later).is_err());
        assert_eq!(agreed.snapshot(), bytes);
        let mut again = MetaState::default();
        again.restore(&bytes).expect("it was just made");
        assert_eq!(again.snapshot(), bytes);
        let mut earlier = MetaState::new(Records::default(), RECORDS);
        assert!(matches!(earlier.restore(&bytes), Err(SnapshotError::UnsupportedVersion)));
        assert!(matches!(again.restore(&[WITH_FEATURES + 1, 0]), Err(SnapshotError::UnsupportedVersion)));
        for length in 0..14 {
            assert!(matches!(again.restore(&bytes[..length]), Err(SnapshotError::Invalid)), "{length}");
        }
        assert_eq!(again.snapshot(), bytes);
    }
}
