//! A tree of files in memory. Archives of equal trees have equal bytes.

use anyhow::{Context, Result, ensure};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tar::{EntryType, Header};

/// Entries sorted by path. Paths are relative, with `/` between; those of directories end in it.
#[derive(Default)]
pub struct Tree(BTreeMap<String, Entry>);

struct Entry {
    mode: u32,
    /// User and group.
    owner: u32,
    bytes: Vec<u8>,
}

impl Tree {
    pub fn file(&mut self, path: &str, bytes: Vec<u8>) {
        self.add(path, 0o644, bytes);
    }

    pub fn program(&mut self, path: &str, bytes: Vec<u8>) {
        self.add(path, 0o755, bytes);
    }

    /// Adds a directory at the top.
    pub fn directory_of(&mut self, owner: u32, path: &str) {
        self.0.insert(format!("{path}/"), Entry { mode: 0o755, owner, bytes: vec![] });
    }

    /// Adds a directory and its parents.
    fn directory(&mut self, path: &str) {
        for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
            self.directory_of(0, &path[..at]);
        }
    }

    fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        let twice = self.0.insert(path.to_owned(), Entry { mode, owner: 0, bytes });
        assert!(twice.is_none(), "{path} is packed twice");
    }

    /// Size of all files in KiB, each rounded up, as for Debian's `Installed-Size`.
    pub fn installed_kib(&self) -> usize {
        self.0.values().map(|entry| entry.bytes.len().div_ceil(1024).max(1)).sum()
    }

    /// Packs the tree. Every path gets `prefix`, which is packed as a directory itself unless it is empty. `time` is in
    /// seconds since 1970.
    ///
    /// # Errors
    /// A path that is too long for the oldest kind of tar header.
    pub fn tar(&self, prefix: &str, time: u64) -> Result<Vec<u8>> {
        self.pack(Vec::new(), prefix, time)
    }

    /// Packs the tree as [`Tree::tar`] does, and compresses it.
    ///
    /// # Errors
    /// Those of [`Tree::tar`].
    pub fn tar_gz(&self, prefix: &str, time: u64) -> Result<Vec<u8>> {
        Ok(self.pack(compressor(), prefix, time)?.finish()?)
    }

    fn pack<W: Write>(&self, sink: W, prefix: &str, time: u64) -> Result<W> {
        let mut archive = tar::Builder::new(sink);
        if !prefix.is_empty() {
            append(&mut archive, prefix, &Entry { mode: 0o755, owner: 0, bytes: vec![] }, time)?;
        }
        for (path, entry) in &self.0 {
            append(&mut archive, &format!("{prefix}{path}"), entry, time)?;
        }
        Ok(archive.into_inner()?)
    }

    /// Writes the tree below `directory`, which must not exist. Everything belongs to the user of this process.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir(directory).with_context(|| directory.display().to_string())?;
        for (path, entry) in &self.0 {
            let to = directory.join(path);
            if path.ends_with('/') {
                fs::create_dir(&to).with_context(|| to.display().to_string())?;
            } else {
                fs::write(&to, &entry.bytes).with_context(|| to.display().to_string())?;
            }
            fs::set_permissions(&to, fs::Permissions::from_mode(entry.mode))?;
        }
        Ok(())
    }
}

/// Compresses bytes.
///
/// # Errors
/// None that memory can have.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut sink = compressor();
    sink.write_all(bytes)?;
    Ok(sink.finish()?)
}

fn compressor() -> GzEncoder<Vec<u8>> {
    // An `mtime` of 0 in gzip's own header means that none is given.
    // The best compression takes twice the time for 0.5 % less.
    GzBuilder::new().mtime(0).write(Vec::new(), Compression::default())
}

fn append<W: Write>(archive: &mut tar::Builder<W>, path: &str, entry: &Entry, time: u64) -> Result<()> {
    let mut header = Header::new_gnu();
    let name = &mut header.as_old_mut().name;
    ensure!(path.len() < name.len(), "{path}: longer than {} bytes", name.len() - 1);
    name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(if path.ends_with('/') { EntryType::Directory } else { EntryType::Regular });
    header.set_mode(entry.mode);
    header.set_uid(entry.owner.into());
    header.set_gid(entry.owner.into());
    // Without a name, programs that unpack use the number.
    if entry.owner == 0 {
        header.set_username("root")?;
        header.set_groupname("root")?;
    }
    header.set_mtime(time);
    header.set_size(entry.bytes.len() as u64);
    header.set_cksum();
    Ok(archive.append(&header, &entry.bytes[..])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn tree(files: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for path in files {
            tree.file(path, path.as_bytes().to_vec());
        }
        tree.program("bin/x", b"#!".to_vec());
        tree
    }

    #[test]
    fn the_same_tree_is_the_same_archive_whatever_the_order() {
        let (one, other) = (tree(&["a/b/c", "a/d", "e"]), tree(&["e", "a/d", "a/b/c"]));
        let archive = one.tar_gz("p/", 1).unwrap();
        assert_eq!(archive, other.tar_gz("p/", 1).unwrap());
        assert_ne!(archive, one.tar_gz("p/", 2).unwrap());
    }

    #[test]
    fn an_archive_has_directories_before_files_with_owner_0_and_one_time() {
        let packed = tree(&["a/b/c"]).tar_gz("./", 7).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
        let mut seen = vec![];
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header().clone();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 7));
            let mut bytes = String::new();
            entry.read_to_string(&mut bytes).unwrap();
            seen.push((
                String::from_utf8(header.path_bytes().to_vec()).unwrap(),
                header.mode().unwrap(),
                bytes,
            ));
        }
        let expected = [
            ("./", 0o755, ""),
            ("./a/", 0o755, ""),
            ("./a/b/", 0o755, ""),
            ("./a/b/c", 0o644, "a/b/c"),
            ("./bin/", 0o755, ""),
            ("./bin/x", 0o755, "#!"),
        ];
        assert_eq!(seen, expected.map(|(path, mode, bytes)| (path.to_owned(), mode, bytes.to_owned())));
    }

    #[test]
    fn compressed_and_plain_archives_have_the_same_content() {
        let mut tree = tree(&["a/b"]);
        tree.directory_of(7, "c");
        let plain = tree.tar("", 3).unwrap();
        assert_eq!(gzip(&plain).unwrap(), tree.tar_gz("", 3).unwrap());
        let mut archive = tar::Archive::new(&plain[..]);
        let owners: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let header = entry.unwrap().header().clone();
                (String::from_utf8(header.path_bytes().to_vec()).unwrap(), header.uid().unwrap())
            })
            .collect();
        let expected = [("a/", 0), ("a/b", 0), ("bin/", 0), ("bin/x", 0), ("c/", 7)];
        assert_eq!(owners, expected.map(|(path, owner)| (path.to_owned(), owner)));
    }

    #[test]
    fn a_path_that_does_not_fit_is_an_error() {
        let error = tree(&[&"x".repeat(100)]).tar_gz("", 0).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("longer than 99"), "{error}");
    }
}
