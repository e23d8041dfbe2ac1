//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

/// Waits until one of the two descriptors is readable, the time is over, or a signal arrives. Returns which are
/// readable.
///
/// # Errors
/// Errors of `poll(2)`.
pub fn readable(
    first: BorrowedFd<'_>,
    second: Option<BorrowedFd<'_>>,
    time: Duration,
) -> io::Result<(bool, bool)> {
    let entry = |fd: Option<BorrowedFd<'_>>| libc::pollfd {
        // `poll` skips a negative descriptor.
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries = [entry(Some(first)), entry(second)];
    // Rounded up: waking a moment early would turn the last millisecond into a busy loop.
    let millis = i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: the pointer refers to two entries that outlive the call, and both descriptors are open meanwhile.
    let result = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, millis) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok((false, false)) } else { Err(error) };
    }
    // The next read reports an end or an error of the descriptor.
    Ok((entries[0].revents != 0, entries[1].revents != 0))
}
