use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const PART: Part = Part::Https;

/// A directory with a certificate and a key, and the watch over them.
struct World {
    directory: PathBuf,
    paths: Vec<PathBuf>,
    watch: Watch,
    in_use: InUse,
}

impl World {
    /// Begins to watch these files of the directory, after `prepare` has made them.
    fn new(names: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("meridian-watch-{}-{number}", std::process::id()));
        drop(fs::remove_dir_all(&directory));
        fs::create_dir_all(&directory).unwrap();
        prepare(&directory);
        let paths: Vec<_> = names.iter().map(|name| directory.join(name)).collect();
        let in_use = InUse::from([(PART, Fingerprint::read(&paths))]);
        Self { directory, paths, watch: Watch::default(), in_use }
    }

    fn pair() -> Self {
        Self::new(&["tls.crt", "tls.key"], |directory| {
            fs::write(directory.join("tls.crt"), "certificate 1").unwrap();
            fs::write(directory.join("tls.key"), "key 1").unwrap();
        })
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).unwrap();
    }

    /// Polls, and returns whether the files are to be read.
    fn poll(&mut self) -> bool {
        let polled = BTreeMap::from([(PART, Stamps::read(&self.paths))]);
        !self.watch.handle(polled, &self.in_use).is_empty()
    }

    fn take(&mut self) {
        self.in_use.insert(PART, Fingerprint::read(&self.paths));
        self.watch.used(PART);
    }

    fn refuse(&mut self, why: &str) -> bool {
        self.watch.refuse(PART, Stamps::read(&self.paths), why.to_owned())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

#[test]
fn unchanged_files_are_never_read() {
    let mut world = World::pair();
    assert!((0..5).all(|_| !world.poll()));
}

#[test]
fn a_change_is_read_when_two_polls_saw_the_same() {
    let mut world = World::pair();
    assert!(!world.poll());
    world.write("tls.crt", "certificate 22");
    assert!(!world.poll(), "it may still be written");
    world.write("tls.key", "key 22");
    assert!(!world.poll(), "it has changed again");
    assert!(world.poll());
    world.take();
    assert!(!world.poll() && !world.poll());
}

#[test]
fn a_file_that_is_renamed_over_another_is_a_change() {
    let mut world = World::pair();
    // Contents of the same length, so that the size does not show it.
    world.write("new", "certificate 2");
    fs::rename(world.directory.join("new"), world.directory.join("tls.crt")).unwrap();
    assert!(!world.poll());
    assert!(world.poll());
}

/// Kubernetes replaces the link `..data` of a volume, certbot the link of each file.
#[test]
fn a_replaced_symbolic_link_on_the_path_is_a_change() {
    let mut world = World::new(&["tls.crt", "tls.key"], |directory| {
        for version in ["..1", "..2"] {
            fs::create_dir(directory.join(version)).unwrap();
            fs::write(directory.join(version).join("tls.crt"), format!("certificate {version}")).unwrap();
            fs::write(directory.join(version).join("tls.key"), format!("key {version}")).unwrap();
        }
        symlink("..1", directory.join("..data")).unwrap();
        symlink("..data/tls.crt", directory.join("tls.crt")).unwrap();
        symlink("..data/tls.key", directory.join("tls.key")).unwrap();
    });
    assert!(!world.poll() && !world.poll());
    symlink("..2", world.directory.join("..new")).unwrap();
    fs::rename(world.directory.join("..new"), world.directory.join("..data")).unwrap();
    assert!(!world.poll());
    assert!(world.poll());
    world.take();
    assert!(!world.poll());
}

#[test]
fn a_name_that_is_added_to_a_directory_or_removed_is_a_change() {
    let mut world = World::new(&["names"], |directory| {
        fs::create_dir(directory.join("names")).unwrap();
        fs::write(directory.join("names/a.crt"), "a").unwrap();
        fs::write(directory.join("names/README"), "no certificate").unwrap();
    });
    world.write("names/README", "still no certificate");
    assert!(!world.poll() && !world.poll());
    world.write("names/b.crt", "b");
    assert!(!world.poll());
    assert!(world.poll());
    world.take();
    world.write("names/a.crt", "a, again");
    assert!(!world.poll());
    assert!(world.poll());
    world.take();
    fs::remove_file(world.directory.join("names/b.crt")).unwrap();
    assert!(!world.poll());
    assert!(world.poll());
}

#[test]
fn a_missing_file_is_a_change_and_its_return_another() {
    let mut world = World::pair();
    fs::remove_file(world.directory.join("tls.key")).unwrap();
    assert!(!world.poll());
    assert!(world.poll());
    assert!(world.refuse("no such file"));
    world.write("tls.key", "key 2");
    assert!(!world.poll());
    assert!(world.poll());
}

#[test]
fn refused_files_are_tried_again_and_reported_once_for_each_content() {
    let mut world = World::pair();
    world.write("tls.key", "half a k");
    assert!(!world.poll());
    assert!(world.poll());
    assert!(world.refuse("no key"));
    assert!(world.poll(), "another try");
    assert!(!world.refuse("no key"), "it is known");
    assert!(world.refuse("too many open files"), "another reason");
    world.write("tls.key", "half another key");
    assert!(!world.poll());
    assert!(world.poll());
    assert!(world.refuse("too many open files"), "another content");
    assert_eq!(world.watch.refused()[&PART].why, "too many open files");
    world.write("tls.key", "key 3");
    assert!(!world.poll());
    assert!(world.poll());
    world.take();
    assert!(world.watch.refused().is_empty());
}

/// The previous files may return, or a reload may have read the changed ones.
#[test]
fn a_refusal_ends_when_the_files_are_those_in_use() {
    let mut world = World::pair();
    world.write("tls.key", "no key");
    assert!(!world.poll() && world.poll());
    assert!(world.refuse("no key"));
    world.in_use.insert(PART, Fingerprint::read(&world.paths));
    assert!(!world.poll());
    assert!(world.watch.refused().is_empty());
}

#[test]
fn files_without_a_fingerprint_are_read_once() {
    let mut world = World::pair();
    world.in_use.clear();
    assert!(!world.poll());
    assert!(world.poll());
    world.take();
    assert!(!world.poll());
}

#[test]
fn the_same_contents_in_new_files_are_recognised() {
    let world = World::pair();
    let before = Fingerprint::read(&world.paths);
    world.write("new", "key 1");
    fs::rename(world.directory.join("new"), world.directory.join("tls.key")).unwrap();
    let after = Fingerprint::read(&world.paths);
    assert!(before.stamps() != after.stamps() && after.has_contents_of(&before));
    // The end of one file does not count as the beginning of the next.
    world.write("tls.crt", "certificate 1k");
    world.write("tls.key", "ey 1");
    assert!(!Fingerprint::read(&world.paths).has_contents_of(&before));
    fs::remove_file(world.directory.join("tls.key")).unwrap();
    let absent = Fingerprint::read(&world.paths);
    assert!(!absent.has_contents_of(&absent), "what cannot be read is not the same");
}
