//! Reads a log that no node uses, without changing it.

use std::sync::Arc;

use crate::disk::Disk;
use crate::error::Error;
use crate::identity::IDENTITY_FILE;
use crate::log::Log;
use crate::open::{DirectoryContents, inspect};
use crate::options::Options;
use crate::recovery::Recovery;
use crate::state::Shared;

/// Opens a log to read it. Nothing on the disk is changed, not even a torn tail, which is left out as at a start. There
/// is no writer: nothing that is appended to this log is ever written.
///
/// # Errors
/// The errors of [`open`](crate::open), and [`Error::Missing`] where there is no log.
pub fn read(disk: Arc<dyn Disk>) -> Result<(Log, Recovery), Error> {
    let options = Options::default();
    let DirectoryContents { identity, state, report, .. } = inspect(&*disk, &options, &mut |_| {})?;
    let Some(identity) = identity else {
        return Err(Error::Missing {
            file: disk.path(IDENTITY_FILE),
            detail: "there is no log here".to_owned(),
        });
    };
    let shared = Arc::new(Shared::new(disk, options, identity, state));
    let recovery = Recovery::new(&shared, report);
    Ok((Log { shared }, recovery))
}
