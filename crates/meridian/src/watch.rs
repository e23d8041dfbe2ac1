//! Watch over the files of TLS, of tokens and of HTTP services: which of them changed, and when they may be read again.
//!
//! [`Watch`] decides, from the stamps of two polls. It reads no file and starts no thread; `running::watched` does. A
//! change is read when two polls in a row saw the same, so a file that is still being written is left alone. Polls work
//! where notifications of the system do not: on NFS, and when a symbolic link on the path is replaced.
//!
//! The files of passwords and access rules are not watched. Half of such a file is a valid file with other rules.

mod files;
mod fingerprint;

use std::collections::BTreeMap;

pub use files::{Part, files};
pub use fingerprint::{Fingerprint, Stamps};

/// Fingerprints of the files in use, for each part that has files.
pub type InUse = BTreeMap<Part, Fingerprint>;

/// Changed files, as the last polls saw them.
#[derive(Debug, Default)]
pub struct Watch {
    seen: BTreeMap<Part, Stamps>,
    refused: BTreeMap<Part, Refusal>,
}

/// Changed files of a part that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    stamps: Stamps,
    pub why: String,
}

impl Watch {
    /// Handles one poll: returns the parts whose files differ from those in use, and are the same as in the poll
    /// before. A refused part is among them at each poll, because the cause may lie elsewhere: a full table of
    /// descriptors, or a file system that was away.
    pub fn handle(&mut self, polled: BTreeMap<Part, Stamps>, in_use: &InUse) -> Vec<Part> {
        let differs =
            |part: &Part, stamps: &Stamps| in_use.get(part).is_none_or(|used| used.stamps() != stamps);
        let due = polled
            .iter()
            .filter(|(part, stamps)| differs(part, stamps) && self.seen.get(part) == Some(stamps))
            .map(|(part, _)| *part)
            .collect();
        // Also without a new read: the files in use may be back.
        self.refused.retain(|part, _| polled.get(part).is_some_and(|stamps| differs(part, stamps)));
        self.seen = polled;
        due
    }

    /// Notes that the files of this part are in use.
    pub fn used(&mut self, part: Part) {
        self.refused.remove(&part);
    }

    /// Notes that the files of this part cannot be used. Returns whether this was not known yet.
    pub fn refuse(&mut self, part: Part, stamps: Stamps, why: String) -> bool {
        let refusal = Refusal { stamps, why };
        let known = self.refused.get(&part) == Some(&refusal);
        self.refused.insert(part, refusal);
        !known
    }

    /// Returns the parts whose changed files cannot be used.
    pub fn refused(&self) -> &BTreeMap<Part, Refusal> {
        &self.refused
    }
}

#[cfg(test)]
mod tests;
