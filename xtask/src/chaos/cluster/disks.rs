//! Small file systems for single nodes, which end with this process.

use anyhow::{Context, Result, bail};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Name of a file that fills the disk of a node.
const BALLAST: &str = "ballast";

/// Makes mounts from now on visible to this thread and the processes that it starts only; they end with them.
///
/// # Errors
/// The user is not root.
pub fn enter_mount_namespace() -> Result<()> {
    // SAFETY: it takes a number and changes only this thread's view of file systems.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // Without it the mounts here would be visible outside.
    // SAFETY: the strings end with a zero and outlive the call; the others may be null for this kind of call.
    checked(unsafe {
        libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    })
}

/// Mounts a file system in memory of this many MiB at a directory, which is created.
///
/// # Errors
/// The mount fails.
pub fn mount(directory: &Path, mib: u32) -> Result<()> {
    fs::create_dir_all(directory)?;
    let target = CString::new(directory.as_os_str().as_bytes())?;
    let size = CString::new(format!("size={mib}m,mode=0700"))?;
    // SAFETY: all strings end with a zero and outlive the call.
    checked(unsafe {
        libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, size.as_ptr().cast())
    })
    .with_context(|| directory.display().to_string())
}

/// Writes until the disk is full.
///
/// # Errors
/// Errors of the system other than a full disk.
pub fn fill(directory: &Path) -> Result<()> {
    let mut ballast = File::create(directory.join(BALLAST))?;
    let zeros = vec![0; 1 << 12];
    loop {
        match ballast.write_all(&zeros) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => bail!("{}: {error}", directory.display()),
        }
    }
}

/// Frees the space again.
///
/// # Errors
/// Errors of the system.
pub fn free(directory: &Path) -> Result<()> {
    Ok(fs::remove_file(directory.join(BALLAST))?)
}

fn checked(result: libc::c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}
