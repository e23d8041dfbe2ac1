//! Resources of the operating system: descriptors, memory, and the machine's name.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Limits of the number of descriptors that this process may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    pub before: u64,
    pub now: u64,
}

/// Raises the soft limit of descriptors to the hard one.
///
/// # Errors
/// Errors of the system. The limit is then unchanged.
pub fn raise_descriptor_limit() -> io::Result<Descriptors> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer refers to a complete `rlimit` that outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer refers to a complete `rlimit` that outlives the call.
    if before < limit.rlim_max && unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Descriptors { before, now: limit.rlim_max })
}

/// Creates the data directory when it is missing, and checks that it is usable, before anything is written.
///
/// # Errors
/// The problem, with advice.
pub fn prepare_data_dir(directory: &Path) -> Result<(), String> {
    let trouble = |error| data_dir_trouble(directory, directory, &error);
    match std::fs::metadata(directory) {
        Ok(found) if !found.is_dir() => return Err(trouble(io::Error::from(io::ErrorKind::NotADirectory))),
        Ok(_) => {}
        Err(_) => std::fs::create_dir_all(directory).map_err(trouble)?,
    }
    let path = CString::new(directory.as_os_str().as_bytes()).map_err(|error| trouble(error.into()))?;
    // SAFETY: the path ends with a NUL and outlives the call.
    match unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK | libc::X_OK) } {
        0 => Ok(()),
        _ => Err(trouble(io::Error::last_os_error())),
    }
}

/// Number of bytes that this user can still write to the file system of a directory.
///
/// # Errors
/// Errors of the system.
pub fn free_bytes(directory: &Path) -> io::Result<u64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a NUL, and both pointers outlive the call.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has filled the structure.
    let found = unsafe { found.assume_init() };
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Describes why the data directory cannot be used, with advice. `path` is the path that failed.
pub fn data_dir_trouble(directory: &Path, path: &Path, error: &io::Error) -> String {
    let (directory, path) = (directory.display(), path.display());
    let (why, what) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            format!("this user may not read and write {path}"),
            "Change its permissions (chown, chmod), start as its owner, or choose another directory",
        ),
        io::ErrorKind::NotADirectory => {
            (format!("{path} is not a directory, or lies below a file"), "Choose another directory")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (format!("{path} lies on a file system that is mounted read-only"), "Choose another directory")
        }
        io::ErrorKind::InvalidData => {
            (format!("{path} is not UTF-8 text"), "Restore the file, or choose another directory")
        }
        io::ErrorKind::NotFound => (format!("{path} cannot be made here"), "Choose another directory"),
        _ => (format!("{path}: {error}"), "Choose another directory"),
    };
    format!(
        "the data directory {directory} cannot be used: {why}. {what}: --data-dir DIRECTORY (node.data_dir)"
    )
}

/// Keeps the system from backing this process with huge pages. The allocator requests them, and a few touched bytes
/// then take 2 MiB. Measured with `cargo xtask idle --connections 15000`: 1,538 bytes for an idle connection with
/// them and 767 without (646 and 599 at a million), at no more CPU time.
///
/// # Errors
/// Errors of the system, which then continues as before.
pub fn refuse_huge_pages() -> io::Result<()> {
    // SAFETY: this option takes one number and touches no memory of this process.
    match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The machine's name, without its domain.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim().split('.').next().unwrap_or_default();
    if name.is_empty() { "meridian".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let first = raise_descriptor_limit().unwrap();
        let second = raise_descriptor_limit().unwrap();
        assert_eq!((second.before, second.now), (first.now, first.now));
        assert!(first.before <= first.now);
    }

    #[test]
    fn a_directory_has_a_number_of_free_bytes() {
        assert!(free_bytes(&std::env::temp_dir()).unwrap() > 0);
        assert!(free_bytes(Path::new("/there/is/none")).is_err());
    }

    #[test]
    fn the_machine_has_a_name() {
        assert!(!host_name().is_empty() && !host_name().contains('.'));
    }

    #[test]
    fn a_data_directory_that_cannot_be_used_is_named_with_its_setting() {
        let base = std::env::temp_dir().join(format!("meridian-data-dir-{}", std::process::id()));
        prepare_data_dir(&base.join("a/b")).unwrap();
        assert!(base.join("a/b").is_dir());
        std::fs::write(base.join("file"), "").unwrap();
        for path in ["file", "file/below"] {
            let error = prepare_data_dir(&base.join(path)).unwrap_err();
            assert!(error.contains("is not a directory, or lies below a file"), "{error}");
            assert!(error.ends_with("--data-dir DIRECTORY (node.data_dir)"), "{error}");
        }
        let error = data_dir_trouble(&base, &base, &io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(error.contains("this user may not read and write") && error.contains("chown"), "{error}");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
