//! All that the cores agree on: who belongs to the cluster, and the records that operators change.

use consensus::{InvalidSnapshot, StateMachine};
use registry::Records;

use super::command::{Answer, Command};
use super::roster::Roster;

/// The first byte of a snapshot; that of a roster alone, of earlier versions, is another.
const VERSION: u8 = 2;

/// The state of the meta group.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    pub roster: Roster,
    pub records: Records,
}

impl StateMachine for Agreed {
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8> {
        let answer = match Command::decode(command) {
            Some(Command::Records(_)) if self.roster.founded == 0 => Answer::Refused,
            Some(Command::Records(batch)) => Answer::Records(self.records.apply(&batch.0)),
            Some(command) => self.roster.change(index, command),
            // What a later version proposes, this one cannot follow; nobody proposes it before all can.
            None => Answer::Refused,
        };
        answer.encode()
    }

    /// `2, length of the roster u32, the roster, the records`.
    fn snapshot(&self) -> Vec<u8> {
        let roster = self.roster.encode();
        let mut out = vec![VERSION];
        out.extend((roster.len() as u32).to_le_bytes());
        out.extend(roster);
        out.extend(self.records.snapshot());
        out
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), InvalidSnapshot> {
        let (roster, records) = match snapshot.split_first() {
            Some((&VERSION, rest)) => {
                let (length, rest) = rest.split_first_chunk().ok_or(InvalidSnapshot)?;
                let length = u32::from_le_bytes(*length) as usize;
                rest.split_at_checked(length).ok_or(InvalidSnapshot)?
            }
            // Before there were records.
            _ => (snapshot, &[][..]),
        };
        let roster = Roster::decode(roster).ok_or(InvalidSnapshot)?;
        if records.is_empty() {
            self.records = Records::new(self.records.limits());
        } else if !self.records.restore(records) {
            return Err(InvalidSnapshot);
        }
        self.roster = roster;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::command::RecordBatch;

    /// One that puts 7 under `a` in table `t`.
    const BATCH: &[u8] = b"\x01\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01t\x01\0a\0\x01\x01\0\0\x007";

    fn agreed() -> Agreed {
        let mut agreed = Agreed::default();
        agreed.apply(1, &Command::Found(3).encode());
        agreed.apply(2, &Command::Records(RecordBatch(BATCH.into())).encode());
        agreed
    }

    #[test]
    fn records_change_nothing_of_the_roster_and_need_a_cluster() {
        let agreed = agreed();
        assert_eq!((agreed.roster.index, agreed.roster.founded), (1, 3));
        assert_eq!((agreed.records.revision(), agreed.records.get("t", "a")), (1, Some("7")));
        let mut before = Agreed::default();
        let answer = before.apply(1, &Command::Records(RecordBatch(BATCH.into())).encode());
        assert_eq!((Answer::decode(&answer), before.records.revision()), (Some(Answer::Refused), 0));
    }

    #[test]
    fn a_snapshot_is_read_and_so_is_that_of_a_roster_alone() {
        let agreed = agreed();
        let bytes = agreed.snapshot();
        let mut again = Agreed::default();
        again.restore(&bytes).expect("it was just made");
        assert_eq!(again.snapshot(), bytes);
        assert_eq!((again.roster.clone(), again.records.get("t", "a")), (agreed.roster.clone(), Some("7")));
        let mut old = Agreed::default();
        old.restore(&agreed.roster.encode()).expect("what version 1 wrote");
        assert_eq!((old.roster, old.records.revision()), (agreed.roster.clone(), 0));
        for length in 0..bytes.len() {
            let mut part = Agreed::default();
            // Without any records it is one of a cluster that has none.
            let is_whole = length == 5 + agreed.roster.encode().len();
            assert_eq!(part.restore(&bytes[..length]).is_ok(), is_whole, "{length}");
        }
    }
}
