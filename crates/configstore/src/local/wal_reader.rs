//! Reads a log line by line, and tells a torn last line from damage.

use std::io::{self, BufRead, Read as _};

use crate::change::Revision;
use crate::error::OpenFault;
use crate::line::{Group, Header, SnapshotRecord, VERSION, VERSION_OF_COPY, Versioned, document};
use crate::state::State;

/// Position in a log up to which it was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalReader {
    /// Bytes of complete lines.
    pub len: u64,
    lines: u64,
    header: bool,
    /// Records that are still to come before the changes.
    kept: u64,
    base: u64,
    snapshot_len: u64,
}

/// Callback for each change after those of the snapshot.
pub type OnChange<'a> = &'a mut dyn FnMut(&str, &str, Option<&str>, Revision);

impl WalReader {
    /// Makes the position after a log that was just written from this state.
    pub fn written(len: u64, state: &State) -> Self {
        Self {
            len,
            lines: 1 + state.len() as u64,
            header: true,
            kept: 0,
            base: state.revision,
            snapshot_len: len,
        }
    }

    /// Returns whether the header was read.
    pub fn has_header(&self) -> bool {
        self.header
    }

    pub fn snapshot_len(&self) -> u64 {
        self.snapshot_len
    }

    /// Accounts for an appended line.
    pub fn appended(&mut self, bytes: u64) {
        self.len += bytes;
        self.lines += 1;
    }

    /// Reads to the end. Returns the bytes of an unfinished last line.
    ///
    /// # Errors
    /// A line is damaged. The lines before it are in the state.
    pub fn read(
        &mut self,
        from: &mut impl BufRead,
        state: &mut State,
        on_change: OnChange<'_>,
    ) -> Result<u64, OpenFault> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read =
                from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(OpenFault::Io)? as u64;
            if read == 0 {
                // A snapshot gets its name only when it is complete.
                return match self.kept {
                    0 => Ok(0),
                    _ => Err(OpenFault::Damaged { line: self.lines + 1, why: "the line is missing" }),
                };
            }
            let number = self.lines + 1;
            let Some(whole) = line.strip_suffix(b"\n") else {
                if read == LINE_MAX {
                    return Err(OpenFault::Long { line: number });
                }
                return self.torn(read);
            };
            let Some(text) = document(whole) else {
                // Pages of one write reach the disk in any order, and missing ones read as zeros: such a line was not
                // finished. Any other bad line was complete once, and may have taken effect.
                if line.contains(&0) && at_end(from).map_err(OpenFault::Io)? {
                    return self.torn(read);
                }
                return Err(match self.header {
                    true => OpenFault::Damaged { line: number, why: "the checksum differs" },
                    false => OpenFault::BadHeader,
                });
            };
            let in_snapshot = !self.header || self.kept > 0;
            self.take(text, state, on_change).map_err(|fault| fault.at(number))?;
            self.len += read;
            if in_snapshot {
                self.snapshot_len = self.len;
            }
            self.lines += 1;
        }
    }

    fn torn(&self, bytes: u64) -> Result<u64, OpenFault> {
        // Header and snapshot are written to another file, which is renamed when it is complete.
        if !self.header || self.kept > 0 {
            let line = self.lines + 1;
            return Err(if self.header {
                OpenFault::Damaged { line, why: "the line is cut off" }
            } else {
                OpenFault::BadHeader
            });
        }
        Ok(bytes)
    }

    fn take(&mut self, text: &str, state: &mut State, on_change: OnChange<'_>) -> Result<(), LineError> {
        if !self.header {
            let Versioned { registry } = serde_json::from_str(text).map_err(|_| LineError::BadHeader)?;
            if ![VERSION, VERSION_OF_COPY].contains(&registry) {
                return Err(LineError::Version(registry));
            }
            let header: Header = serde_json::from_str(text).map_err(|_| LineError::BadHeader)?;
            state.founded = header.founded().ok_or(LineError::BadHeader)?;
            (self.header, self.kept, self.base) = (true, header.records, header.base);
            state.revision = header.base;
            return Ok(());
        }
        if self.kept > 0 {
            let kept: SnapshotRecord<'_> =
                serde_json::from_str(text).map_err(|_| LineError::Line("it is not a record"))?;
            if kept.revision > self.base || state.get(&kept.table, &kept.key).is_some() {
                return Err(LineError::Line("it is out of order"));
            }
            state.set(&kept.table, &kept.key, Some(kept.value.get()), Revision(kept.revision));
            self.kept -= 1;
            return Ok(());
        }
        let group: Group<'_> =
            serde_json::from_str(text).map_err(|_| LineError::Line("it is not a change"))?;
        if group.revision != state.revision + 1 || group.batches.is_empty() {
            return Err(LineError::Line("lines before it are missing"));
        }
        for batch in &group.batches {
            state.revision += 1;
            for entry in batch {
                let value = entry.value.map(|value| value.get());
                state.set(&entry.table, &entry.key, value, Revision(state.revision));
                on_change(&entry.table, &entry.key, value, Revision(state.revision));
            }
        }
        Ok(())
    }
}

enum LineError {
    BadHeader,
    Version(u64),
    Line(&'static str),
}

impl LineError {
    fn at(self, line: u64) -> OpenFault {
        match self {
            Self::BadHeader => OpenFault::BadHeader,
            Self::Version(version) => OpenFault::Version(version),
            Self::Line(why) => OpenFault::Damaged { line, why },
        }
    }
}

fn at_end(from: &mut impl BufRead) -> io::Result<bool> {
    Ok(from.fill_buf()?.is_empty())
}

/// Maximum number of bytes of a line. Lines that this program writes have at most half as many.
const LINE_MAX: u64 = 64 << 20;
