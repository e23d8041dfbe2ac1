//! Entries that replicas have in memory before they are on disk.

use std::collections::VecDeque;

use crate::raft_types::{Entry, LogId, Payload};
use crate::wire::term_of;

/// Entries of this replica: those that it reports to its leader, and its own commands while it leads.
#[derive(Default)]
pub(crate) struct HeldWrites {
    reports: bool,
    /// Last entry that was appended and is not reported.
    unreported: Option<LogId>,
    /// Term in which this replica leads.
    term: Option<u64>,
    /// Indexes of the commands of the term that a majority is not known to have, in their order. None is committed.
    commands: VecDeque<u64>,
    /// Number of commands of the term before those.
    held: u64,
}

impl HeldWrites {
    pub fn set_reports(&mut self, reports: bool) {
        self.reports = reports;
    }

    /// Sets the term in which this replica leads, before it appends commands in it.
    pub fn set_term(&mut self, term: Option<u64>) {
        let Self { reports, unreported, .. } = *self;
        *self = Self { reports, unreported, term, ..Self::default() };
    }

    #[inline]
    pub fn appended(&mut self, entry: &Entry) {
        if self.term == Some(term_of(&entry.log_id)) {
            if matches!(entry.payload, Payload::Normal(_)) {
                self.commands.push_back(entry.log_id.index);
            }
        } else if self.reports {
            self.unreported = Some(entry.log_id);
        }
    }

    /// Takes the last entry for a report.
    pub fn take_unreported(&mut self) -> Option<LogId> {
        self.unreported.take()
    }

    /// Notes that a majority has the entries up to this index, in memory or on disk. Returns the number of commands of
    /// the term that a majority is known to have.
    pub fn advance(&mut self, index: Option<u64>) -> u64 {
        while self.commands.pop_front_if(|command| Some(*command) <= index).is_some() {
            self.held += 1;
        }
        self.held
    }

    /// Number of commands of the term that a majority is not known to have.
    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.commands.len()
    }
}
