//! Files of backups below `storage.backup_dir`: listed, read and removed for operators on another machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use api::{BackupFile, BackupPart, BackupRefused};
use storage::IDENTITY_FILE;

/// Maximum number of files of a backup that are listed. A backup of 4 TiB in segments of 64 MiB has as many.
const FILES_MAX: usize = 65_536;

/// Lists the files of a backup, sorted by name.
///
/// # Errors
/// There is no backup of this name, or it cannot be read.
pub fn list(backup: &Path) -> Result<Vec<BackupFile>, BackupRefused> {
    let mut files = Vec::new();
    for entry in fs::read_dir(backup).map_err(|error| refused(backup, &error))? {
        let entry = entry.map_err(|error| refused(backup, &error))?;
        // A link is not followed.
        let about = entry.metadata().map_err(|error| refused(backup, &error))?;
        if let (true, Ok(name)) = (about.is_file(), entry.file_name().into_string()) {
            files.push(BackupFile { name, bytes: about.len() });
        }
    }
    // Written last, when the backup is complete.
    if !files.iter().any(|file| file.name == IDENTITY_FILE) {
        return Err(BackupRefused::Unknown(format!("{} is no complete backup", backup.display())));
    }
    if files.len() > FILES_MAX {
        return Err(BackupRefused::Failed(format!(
            "{} has more than {FILES_MAX} files: copy it with another tool",
            backup.display()
        )));
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// Maximum number of zeros that are found at once: the end of a segment that was not full.
const ZEROS_MAX: u64 = 64 << 20;

/// Reads a part of a file, of up to `bytes_max`. If that is only zeros, the part has the zeros that follow, too.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub fn read(backup: &Path, name: &str, offset: u64, bytes_max: usize) -> Result<BackupPart, BackupRefused> {
    let unknown = || BackupRefused::Unknown(format!("the backup has no file {name}"));
    // The name leads nowhere else, and neither does a link. A pipe does not block.
    let is_name = Path::new(name).file_name().is_some_and(|file| file == name);
    let is_complete = backup.join(IDENTITY_FILE).is_file();
    if !is_name || !is_complete {
        return Err(unknown());
    }
    let path = backup.join(name);
    let read = || -> io::Result<BackupPart> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file: File = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(ErrorKind::NotFound.into());
        }
        let file_bytes = about.len();
        file.seek(SeekFrom::Start(offset.min(file_bytes)))?;
        let (mut bytes, mut zeros) = (Vec::new(), 0);
        loop {
            bytes.clear();
            (&file).take(bytes_max as u64).read_to_end(&mut bytes)?;
            let is_zero = !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0);
            match (is_zero, zeros) {
                (true, _) => zeros += bytes.len() as u64,
                // The next part begins with these bytes.
                (false, 1..) => bytes.clear(),
                (false, 0) => {}
            }
            if !is_zero || zeros >= ZEROS_MAX {
                break;
            }
        }
        if zeros > 0 {
            bytes.clear();
        }
        Ok(BackupPart { bytes, zeros, file_bytes })
    };
    read().map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => unknown(),
        _ => refused(&path, &error),
    })
}

/// Removes a backup.
///
/// # Errors
/// There is none of this name, or it cannot be removed.
pub fn remove(backup: &Path) -> Result<(), BackupRefused> {
    list(backup)?;
    fs::remove_dir_all(backup).map_err(|error| refused(backup, &error))
}

fn refused(path: &Path, error: &io::Error) -> BackupRefused {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            BackupRefused::Unknown(format!("{}: there is no such backup", path.display()))
        }
        _ => BackupRefused::Failed(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_complete_backup_are_read() {
        let directory = std::env::temp_dir().join(format!("meridian-backup-files-{}", std::process::id()));
        let backup = directory.join("one");
        fs::create_dir_all(&backup).expect("a directory");
        fs::write(directory.join("secret"), "not of a backup").expect("written");
        fs::write(backup.join("1.seg"), "0123456789").expect("written");
        std::os::unix::fs::symlink("../secret", backup.join("link")).expect("a link");
        assert!(matches!(list(&backup), Err(BackupRefused::Unknown(_))), "it is not complete");
        assert!(matches!(remove(&backup), Err(BackupRefused::Unknown(_))));
        fs::write(backup.join(IDENTITY_FILE), "id").expect("written");
        let names: Vec<_> =
            list(&backup).expect("a backup").into_iter().map(|file| (file.name, file.bytes)).collect();
        assert_eq!(names, [("1.seg".to_owned(), 10), (IDENTITY_FILE.to_owned(), 2)]);
        let part = |offset, max| {
            let part = read(&backup, "1.seg", offset, max)?;
            assert_eq!(part.file_bytes, fs::metadata(backup.join("1.seg")).expect("a file").len());
            Ok::<_, BackupRefused>((part.bytes, part.zeros))
        };
        assert_eq!(part(0, 4), Ok((b"0123".to_vec(), 0)));
        assert_eq!(part(8, 4), Ok((b"89".to_vec(), 0)));
        assert_eq!(part(u64::MAX, 4), Ok((Vec::new(), 0)), "the end of the file");
        fs::write(backup.join("1.seg"), b"01\0\0\0\0\0\0\x008\0\0").expect("written");
        assert_eq!(part(0, 3), Ok((b"01\0".to_vec(), 0)));
        assert_eq!(part(3, 3), Ok((Vec::new(), 6)), "the zeros before the next byte");
        assert_eq!(part(9, 3), Ok((b"8\0\0".to_vec(), 0)));
        assert_eq!(part(10, 4), Ok((Vec::new(), 2)));
        assert_eq!(part(12, 4), Ok((Vec::new(), 0)));
        fs::create_dir(backup.join("inside")).expect("a directory");
        for name in ["link", "../secret", "", ".", "..", "./1.seg", "1.seg/", "inside", "2.seg"] {
            assert!(matches!(read(&backup, name, 0, 4), Err(BackupRefused::Unknown(_))), "{name}");
        }
        assert!(matches!(list(&directory.join("two")), Err(BackupRefused::Unknown(_))));
        assert_eq!(remove(&backup), Ok(()));
        assert!(!backup.exists() && directory.join("secret").exists());
        fs::remove_dir_all(directory).expect("removed");
    }
}
