//! Fingerprints of files: a cheap one from the directory entry, and one of the contents.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

/// Stamps of some files, as a poll sees them. It follows symbolic links, and opens nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps(Vec<(PathBuf, Stamp)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stamp {
    /// Device, inode, size, and the times of the last change of contents and of the inode.
    File { device: u64, inode: u64, size: u64, modified: (i64, i64), changed: (i64, i64) },
    /// A directory; its certificates and keys have stamps of their own.
    Directory,
    /// A pipe or a device, which can be read once only.
    Special,
    /// Missing file, or one that cannot be seen.
    Failed(io::ErrorKind),
}

impl Stamps {
    /// Reads the stamps of these files, and of certificates and keys in those that are directories.
    pub fn read(paths: &[PathBuf]) -> Self {
        let mut stamps = Vec::with_capacity(paths.len());
        for path in paths {
            match Stamp::read(path) {
                Stamp::Directory => match certificates_and_keys(path) {
                    Ok(files) => {
                        stamps.push((path.clone(), Stamp::Directory));
                        stamps.extend(files.into_iter().map(|file| {
                            let stamp = Stamp::read(&file);
                            (file, stamp)
                        }));
                    }
                    Err(error) => stamps.push((path.clone(), Stamp::Failed(error.kind()))),
                },
                stamp => stamps.push((path.clone(), stamp)),
            }
        }
        Self(stamps)
    }
}

impl Stamp {
    fn read(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Self::Directory,
            Ok(metadata) if !metadata.is_file() => Self::Special,
            Ok(metadata) => Self::File {
                device: metadata.dev(),
                inode: metadata.ino(),
                size: metadata.size(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            },
            Err(error) => Self::Failed(error.kind()),
        }
    }
}

/// Files of a directory that `tls_names` would read, in the order of their names.
fn certificates_and_keys(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().and_then(OsStr::to_str).is_some_and(|name| name == "crt" || name == "key") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Stamps and contents of some files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    stamps: Stamps,
    /// `None` when a file could not be read.
    digest: Option<[u8; SHA256_OUTPUT_LEN]>,
}

impl Fingerprint {
    /// Reads the files.
    pub fn read(paths: &[PathBuf]) -> Self {
        let stamps = Stamps::read(paths);
        let digest = digest(&stamps).ok();
        Self { stamps, digest }
    }

    pub fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// Returns whether names and contents are the same, though the stamps may differ.
    pub fn has_contents_of(&self, other: &Self) -> bool {
        self.digest.is_some() && self.digest == other.digest
    }
}

fn digest(stamps: &Stamps) -> io::Result<[u8; SHA256_OUTPUT_LEN]> {
    let mut context = Context::new(&SHA256);
    let mut buffer = [0; 8 * 1024];
    for (path, stamp) in &stamps.0 {
        // Lengths separate one text from the next.
        let name = path.as_os_str().as_encoded_bytes();
        context.update(&(name.len() as u64).to_le_bytes());
        context.update(name);
        match stamp {
            Stamp::Directory => continue,
            Stamp::File { .. } => {}
            Stamp::Special => return Err(io::ErrorKind::Unsupported.into()),
            Stamp::Failed(kind) => return Err((*kind).into()),
        }
        let mut file = File::open(path)?;
        let mut length: u64 = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => {
                    context.update(&buffer[..read]);
                    length += read as u64;
                }
            }
        }
        context.update(&length.to_le_bytes());
    }
    let mut digest = [0; SHA256_OUTPUT_LEN];
    digest.copy_from_slice(context.finish().as_ref());
    Ok(digest)
}
