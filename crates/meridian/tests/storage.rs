//! `meridian storage` as an operator runs it: output, exit status, and files that must stay unchanged.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use storage::{Commit, GroupId, Options, RealDisk, Record, SegmentId, open};

/// Lock for creating children. A child briefly holds the file locks of this process, until it executes another
/// program. A log that is written meanwhile would be found in use by the next command.
fn forks() -> MutexGuard<'static, ()> {
    static FORKS: Mutex<()> = Mutex::new(());
    sync::lock(&FORKS)
}

/// A data directory with a log in it, removed at the end of the test.
struct Data(PathBuf);

impl Drop for Data {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

impl Data {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-storage-{test}-{}", std::process::id()));
        let data = Self(path);
        let _no_child = forks();
        let disk = Arc::new(RealDisk::open(data.log()).unwrap());
        let options = Options { segment_bytes: 64 << 10, ..Options::default() };
        let mut opened = open(disk, options, Box::new(()), &mut |_| {}).unwrap();
        for index in 1..=100 {
            let payload = vec![index as u8; 2000].into();
            opened.log.append([Record::Entry { group: GroupId(1), term: 1, index, payload }]);
            while opened.writer.commit_once().unwrap() != Commit::Idle {}
        }
        data
    }

    fn log(&self) -> PathBuf {
        self.0.join("storage")
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Changes one byte in the middle of a full segment.
    fn damage(&self) {
        let path = self.log().join(SegmentId(2).file());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20_000] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.arg("storage").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let no_log = forks();
    let child = command.spawn().unwrap();
    drop(no_log);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn check_and_stats_describe_an_intact_log() {
    let data = Data::new("whole");
    let (status, out, _) = run(&["check", &data.path("")]);
    assert_eq!(status, 0, "{out}");
    assert!(out.contains("101 records: everything is as it was written"), "{out}");
    assert_eq!(out.matches(", whole").count(), 4, "{out}");
    let (status, out, _) = run(&["stats", &data.path("storage")]);
    assert_eq!(status, 0, "{out}");
    assert!(out.contains("group 1        100 entries up to 100, no checkpoint"), "{out}");
    assert!(out.contains("segments       4, from 1 to 4, 256.0 KiB on disk"), "{out}");
}

#[test]
fn damage_is_found_and_repaired_and_losses_are_listed() {
    let data = Data::new("damage");
    data.damage();
    let (status, out, _) = run(&["check", "--quiet", &data.path("")]);
    assert_eq!(status, 1, "{out}");
    assert!(out.contains("00000000000000000002.seg is damaged at offset"), "{out}");
    assert!(out.contains("meridian storage repair"), "{out}");
    let (status, out, _) = run(&["repair", &data.path("")]);
    assert_eq!(status, 0, "{out}");
    assert!(out.contains("group 1: saved 99 entries") && out.contains("group 1: LOST entry"), "{out}");
    let (status, out, _) = run(&["check", &data.path("storage.repaired")]);
    assert_eq!(status, 0, "{out}");
    let (status, _, error) = run(&["repair", &data.path("")]);
    assert_eq!(status, 2);
    assert!(error.contains("is there already"), "{error}");
}

#[test]
fn a_backup_is_verified_before_it_is_restored() {
    let data = Data::new("backup");
    let (status, out, _) = run(&["backup", &data.path(""), &data.path("copy")]);
    assert_eq!(status, 0, "{out}");
    let (status, out, _) = run(&["restore", &data.path("copy"), &data.path("new")]);
    assert_eq!(status, 0, "{out}");
    let (status, out, _) = run(&["check", "-q", &data.path("new")]);
    assert_eq!(status, 0, "{out}");
    data.damage();
    let (status, _, error) = run(&["backup", &data.path(""), &data.path("second")]);
    assert_eq!(status, 0, "a damaged record is copied as it is: {error}");
    let (status, _, error) = run(&["restore", &data.path("second"), &data.path("third")]);
    assert_eq!(status, 2);
    assert!(error.contains("the backup is not whole"), "{error}");
}

#[test]
fn a_directory_in_use_without_a_log_or_missing_is_refused() {
    let data = Data::new("refused");
    let held = RealDisk::open(data.log()).unwrap();
    for command in ["check", "stats", "repair"] {
        let (status, _, error) = run(&[command, &data.path("")]);
        assert_eq!(status, 2);
        assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    }
    drop(held);
    std::fs::create_dir(data.path("empty")).unwrap();
    let (status, _, error) = run(&["check", &data.path("empty")]);
    assert_eq!((status, error.contains("has no log")), (2, true), "{error}");
    let (status, _, error) = run(&["stats", &data.path("nothing")]);
    assert_eq!((status, error.contains("is not a directory")), (2, true), "{error}");
}
