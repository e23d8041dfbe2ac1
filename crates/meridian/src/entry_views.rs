//! Conversions and removals that the views of connectors, actions, bridges and cluster links have in common.

use api::{EntryRefused, EntrySource, WaitingMessages};
use auth::Authorship;
use definitions::{EntryError, Source};

pub fn authorship(by: &Authorship) -> definitions::Authorship {
    definitions::Authorship { author: by.author.clone(), now_ms: by.now_ms }
}

pub fn source(source: Source) -> EntrySource {
    match source {
        Source::File => EntrySource::File,
        Source::Store => EntrySource::Store,
    }
}

/// Reason for the API why an entry is not changed. `list` says how to list the entries.
pub fn entry_refused(error: EntryError, list: &str) -> EntryRefused {
    let detail = error.to_string();
    match error {
        EntryError::Unknown { .. } => EntryRefused::NotFound(format!("{detail}; {list}")),
        EntryError::Setting { setting, why } => EntryRefused::Setting { setting, why },
        EntryError::OfFile { .. } | EntryError::TooMany { .. } => EntryRefused::Conflict(detail),
        EntryError::ConfigStore(error) => EntryRefused::ConfigStore(error),
    }
}

/// Completes the removal of an entry by that of its session, if the messages in it are to be deleted. `end_session`
/// returns false when there is none. `is_name` says whether an entry can have this name.
pub fn remove_messages(
    removed: Result<(), EntryRefused>,
    waiting: WaitingMessages,
    is_name: bool,
    end_session: impl FnOnce() -> Result<bool, String>,
) -> Result<(), EntryRefused> {
    // An earlier attempt may have removed the entry and not its session. A session with a name that no entry can have
    // does not exist, and must not begin.
    let may_have_session = is_name && matches!(removed, Ok(()) | Err(EntryRefused::NotFound(_)));
    if waiting == WaitingMessages::Keep || !may_have_session {
        return removed;
    }
    match end_session().map_err(EntryRefused::Unavailable)? {
        true => Ok(()),
        false => removed,
    }
}
