//! Files that are replaced as a whole: a crash leaves the old one or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Replaces the file, readable by its owner only. Creates its directory when there is none.
///
/// # Errors
/// Those of the system; the old file is then unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(directory)?;
    let next = temporary_path(path, ".new");
    // A crash may have left this file, possibly with other permissions.
    if let Err(error) = fs::remove_file(&next)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&next, path));
    if let Err(error) = written {
        // The first error is the one to report, whether or not the removal succeeds.
        drop(fs::remove_file(&next));
        return Err(error);
    }
    // The new name is durable when the directory is.
    File::open(directory)?.sync_all()
}

fn temporary_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_is_the_owners() {
        let directory = std::env::temp_dir().join(format!("meridian-durable-{}", std::process::id()));
        let path = directory.join("deeper").join("file");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(temporary_path(&path, ".new"), "what a crash left").unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!temporary_path(&path, ".new").exists());
        fs::remove_dir_all(directory).unwrap();
    }
}
