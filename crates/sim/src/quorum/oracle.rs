//! Committed log of the group, and the checks that follow from it.

use std::collections::{BTreeMap, BTreeSet};

use consensus::{ReplicaId, Undecided};

use crate::report::Report;

/// Request to a replica, and the state that was known then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingRequest {
    Proposal {
        number: u64,
        /// Last index that was confirmed to any proposer.
        confirmed: u64,
    },
    Barrier {
        confirmed: u64,
    },
    Change,
    Transfer,
}

#[derive(Default)]
pub struct Oracle {
    /// Proposal at each index.
    log: BTreeMap<u64, u64>,
    /// Proposals that were reported as applied, with their indexes.
    confirmed: BTreeMap<u64, u64>,
    last_confirmed: u64,
    /// Proposals that were reported as refused.
    refused: BTreeSet<u64>,
    leaders: BTreeMap<u64, ReplicaId>,
}

impl Oracle {
    pub fn last_confirmed(&self) -> u64 {
        self.last_confirmed
    }

    /// Checks an entry that a replica has applied.
    pub fn applied(&mut self, report: &mut Report, id: ReplicaId, index: u64, number: u64) {
        let known = *self.log.entry(index).or_insert(number);
        assert_eq!(known, number, "entry {index} is another one on {id}");
        assert!(!self.refused.contains(&number), "{number} was refused and is applied on {id}");
        report.quorum_check_applied += 1;
    }

    /// Checks a proposal that was reported as applied.
    pub fn decided(&mut self, report: &mut Report, number: u64, confirmed: u64, index: u64) {
        assert!(
            index > confirmed,
            "{number} is at {index}, and {confirmed} was confirmed before it was proposed"
        );
        assert_eq!(self.log.get(&index), Some(&number), "{number} was confirmed at {index}");
        let before = self.confirmed.insert(number, index);
        assert_eq!(before, None, "{number} was confirmed twice");
        self.last_confirmed = self.last_confirmed.max(index);
        report.quorum_decided += 1;
    }

    pub fn undecided(&mut self, report: &mut Report, number: u64, why: &Undecided) {
        match why {
            Undecided::Unknown => report.quorum_unknown += 1,
            Undecided::NotLeader(_) | Undecided::Refused(_) => {
                report.quorum_refused += 1;
                assert!(
                    !self.log.values().any(|known| *known == number),
                    "{number} was refused and is applied: {why}"
                );
                self.refused.insert(number);
            }
        }
    }

    pub fn readable(&mut self, report: &mut Report, confirmed: u64, last: Option<u64>) {
        assert!(
            last.unwrap_or(0) >= confirmed,
            "read up to {last:?} when {confirmed} had been confirmed before"
        );
        report.quorum_check_read += 1;
    }

    pub fn leads(&mut self, report: &mut Report, term: u64, id: ReplicaId) {
        match self.leaders.insert(term, id) {
            Some(other) => assert_eq!(other, id, "two leaders of term {term}"),
            None => report.quorum_leaders += 1,
        }
    }

    /// Asserts at the end that a member has every confirmed proposal.
    pub fn settled(&self, report: &mut Report, id: ReplicaId, entries: &[(u64, u64)]) {
        let entries: BTreeMap<u64, u64> = entries.iter().copied().collect();
        for (number, index) in &self.confirmed {
            assert_eq!(entries.get(index), Some(number), "{number} was confirmed at {index}: lost on {id}");
            report.quorum_check_kept += 1;
        }
    }
}
