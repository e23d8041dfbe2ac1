use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("meridian-sink-file-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }

    fn file(&self) -> PathBuf {
        self.out().join("a.ndjson")
    }

    fn read(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn connector(directory: &Path) -> ConnectorSettings {
    ConnectorSettings { directory: Some(directory.to_owned()), ..Default::default() }
}

fn target(directory: &Path) -> FileTarget {
    let action = ActionSettings { name: "a".to_owned(), ..Default::default() };
    FileTarget::new(&connector(directory), &action).unwrap()
}

fn record(content: &str) -> Record {
    Record { fields: vec![Some(content.as_bytes().into())], id: 0 }
}

fn write(sink: &mut dyn Sink, contents: &[&str]) -> Result<(), WriteError> {
    sink.write(&contents.iter().map(|content| record(content)).collect::<Vec<_>>())
}

fn unavailable(result: Result<(), WriteError>) -> String {
    match result {
        Err(WriteError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

#[test]
fn outputs_become_lines_of_json_in_a_private_file() {
    let scratch = Scratch::new();
    let target = target(&scratch.out());
    let output = text("two\nlines");
    let rendered = target.render(&output).unwrap();
    target.open().write(&[rendered]).unwrap();
    assert_eq!(scratch.read(), "\"two\\nlines\"\n");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&scratch.out()) & !0o750, 0);
    assert_eq!(mode(&scratch.file()) & !0o640, 0);
}

#[test]
fn a_content_with_a_line_feed_is_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let mut sink = target(&scratch.out()).open();
    let refused = write(&mut *sink, &["good", "b\nad"]);
    assert!(matches!(refused, Err(WriteError::Refused(_))), "{refused:?}");
    assert!(!scratch.file().exists());
    write(&mut *sink, &["good"]).unwrap();
    assert_eq!(scratch.read(), "good\n");
}

#[test]
fn settings_are_checked() {
    let valid = |name: &str, directory: &str| {
        let connector = connector(Path::new(directory));
        let action = ActionSettings { name: name.to_owned(), ..Default::default() };
        FileTarget::new(&connector, &action).map(|_| ()).map_err(|problem| problem.setting)
    };
    let long = "a".repeat(NAME_MAX + 1);
    for (name, directory, expected) in [
        ("a", "/x", Ok(())),
        ("A-b_c.9", "/x", Ok(())),
        ("", "/x", Err("name")),
        (".", "/x", Err("name")),
        ("..", "/x", Err("name")),
        (".hidden", "/x", Err("name")),
        ("a/b", "/x", Err("name")),
        ("../a", "/x", Err("name")),
        ("a\0", "/x", Err("name")),
        ("ä", "/x", Err("name")),
        (&long, "/x", Err("name")),
        ("a.20231114T221320Z-1", "/x", Err("name")),
        ("a", "", Err("directory")),
        ("a", "relative", Err("directory")),
    ] {
        assert_eq!(valid(name, directory), expected, "{name:?} {directory:?}");
    }
    let action = ActionSettings { name: "a".to_owned(), content: "${".to_owned(), ..Default::default() };
    assert_eq!(FileTarget::new(&connector(Path::new("/x")), &action).err().unwrap().setting, "content");
}

#[test]
fn a_half_written_last_line_is_cut_off_when_the_file_is_opened() {
    let long = "x".repeat(200_000);
    for (found, kept) in [
        ("one\ntwo\nthr".to_owned(), "one\ntwo\n"),
        ("one\ntwo\n".to_owned(), "one\ntwo\n"),
        ("on".to_owned(), ""),
        (String::new(), ""),
        (format!("one\n{long}"), "one\n"),
        (long.clone(), ""),
        ("one\n\0\0\0\0".to_owned(), "one\n"),
    ] {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.out()).unwrap();
        fs::write(scratch.file(), &found).unwrap();
        write(&mut *target(&scratch.out()).open(), &["new"]).unwrap();
        assert_eq!(scratch.read(), format!("{kept}new\n"));
    }
}

#[test]
fn what_others_do_to_the_file_is_noticed_before_the_next_batch() {
    let scratch = Scratch::new();
    let mut sink = target(&scratch.out()).open();
    write(&mut *sink, &["one"]).unwrap();
    fs::remove_file(scratch.file()).unwrap();
    write(&mut *sink, &["two"]).unwrap();
    assert_eq!(scratch.read(), "two\n");

    fs::rename(scratch.file(), scratch.out().join("moved")).unwrap();
    write(&mut *sink, &["three"]).unwrap();
    assert_eq!(scratch.read(), "three\n");

    fs::write(scratch.file(), "").unwrap();
    write(&mut *sink, &["four"]).unwrap();
    assert_eq!(scratch.read(), "four\n");

    fs::write(scratch.file(), "four\npart").unwrap();
    write(&mut *sink, &["five"]).unwrap();
    assert_eq!(scratch.read(), "four\nfive\n");

    fs::remove_dir_all(scratch.out()).unwrap();
    write(&mut *sink, &["six"]).unwrap();
    assert_eq!(scratch.read(), "six\n");
}

#[test]
fn only_one_target_writes_to_a_file_at_a_time() {
    let scratch = Scratch::new();
    let first = target(&scratch.out());
    let second = target(&scratch.out());
    let mut sink = second.open();
    write(&mut *first.open(), &["one"]).unwrap();
    // Sinks of one target share the file.
    write(&mut *first.open(), &["two"]).unwrap();
    let why = unavailable(write(&mut *sink, &["other"]));
    assert!(why.contains("locked"), "{why}");
    drop(first);
    write(&mut *sink, &["three"]).unwrap();
    assert_eq!(scratch.read(), "one\ntwo\nthree\n");
}

#[test]
fn obstacles_are_named() {
    let scratch = Scratch::new();
    fs::write(scratch.out(), "a file").unwrap();
    let target_of_file = target(&scratch.out());
    let why = unavailable(write(&mut *target_of_file.open(), &["one"]));
    assert!(why.contains("not a directory"), "{why}");
    assert!(target_of_file.open().test().is_err());

    fs::remove_file(scratch.out()).unwrap();
    assert!(target_of_file.open().test().unwrap().contains("does not exist yet"));
    assert!(!scratch.out().exists());
    fs::create_dir_all(scratch.file()).unwrap();
    unavailable(write(&mut *target_of_file.open(), &["one"]));
    fs::remove_dir(scratch.file()).unwrap();
    assert!(target_of_file.open().test().unwrap().contains("can be written"));
    assert_eq!(fs::read_dir(scratch.out()).unwrap().count(), 0, "a test leaves nothing");
    write(&mut *target_of_file.open(), &["one"]).unwrap();
}

/// The lines of all files of the action, in the order in which they were written.
fn all_lines(directory: &Path) -> Vec<String> {
    let mut stamps = vec![];
    for entry in fs::read_dir(directory).unwrap() {
        stamps.extend(finished::Stamp::parse(&entry.unwrap().file_name(), "a"));
    }
    stamps.sort();
    let mut names: Vec<_> = stamps.iter().map(|stamp| stamp.file_name("a")).collect();
    names.push("a.ndjson".to_owned());
    let read = |name: &String| fs::read_to_string(directory.join(name)).unwrap();
    names.iter().flat_map(|name| read(name).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn the_oldest_files_are_removed() {
    let scratch = Scratch::new();
    let rotation = Rotation { size_max: 4, age_max: Duration::ZERO, files_max: 3 };
    let mut lines = Lines::new(scratch.out(), "a", rotation);
    fs::create_dir_all(scratch.out()).unwrap();
    let others = ["a.txt", "b.20231114T221320Z-1.ndjson", "a.b.20231114T221320Z-1.ndjson"];
    others.iter().for_each(|name| fs::write(scratch.out().join(name), "").unwrap());
    for number in 0..20 {
        lines.append(format!("{number:03}\n").as_bytes()).unwrap();
    }
    assert_eq!(all_lines(&scratch.out()), ["016", "017", "018", "019"]);
    assert!(others.iter().all(|name| scratch.out().join(name).exists()), "files of others stay");
}

#[test]
fn an_old_file_is_finished_when_the_next_batch_comes() {
    let scratch = Scratch::new();
    let rotation = Rotation { size_max: 1 << 20, age_max: Duration::from_secs(60), files_max: 3 };
    let mut lines = Lines::new(scratch.out(), "a", rotation);
    let start = SystemTime::now();
    for (after, content, current) in [
        (0, "one\n", "one\n"),
        (59, "two\n", "one\ntwo\n"),
        (60, "three\n", "three\n"),
        (119, "four\n", "three\nfour\n"),
    ] {
        lines.append_at(content.as_bytes(), start + Duration::from_secs(after)).unwrap();
        assert_eq!(scratch.read(), current, "after {after} s");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// Whatever the sizes, restarts, cut lines and clock are, each line that was reported is in the files once.
    #[test]
    fn all_files_together_have_each_line_once_and_in_order(
        steps in prop::collection::vec((1_usize..6, 0_usize..40, 0_u8..8, 0_u64..100), 1..24),
        size_max in 8_u64..200,
    ) {
        let scratch = Scratch::new();
        let rotation = Rotation { size_max, age_max: Duration::from_secs(50), files_max: 1000 };
        let mut lines = Lines::new(scratch.out(), "a", rotation);
        let mut expected = vec![];
        for (count, width, event, second) in steps {
            if event == 0 && scratch.file().exists() {
                drop(lines);
                let mut found = fs::read(scratch.file()).unwrap();
                found.extend_from_slice(b"half a li");
                fs::write(scratch.file(), found).unwrap();
                lines = Lines::new(scratch.out(), "a", rotation);
            }
            let mut batch = String::new();
            for _ in 0..count {
                let line = format!("{}{}", expected.len(), "x".repeat(width));
                batch.push_str(&line);
                batch.push('\n');
                expected.push(line);
            }
            let now = SystemTime::now() + Duration::from_secs(second);
            lines.append_at(batch.as_bytes(), now).unwrap();
        }
        prop_assert_eq!(all_lines(&scratch.out()), expected);
    }
}

/// Mounts a small file system, which needs root.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(path).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Self(path.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_complete_lines_and_takes_the_batch_later() {
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::mount(&scratch.out()) else {
        eprintln!("skipped: a file system of 64 KiB cannot be mounted; run the test as root");
        return;
    };
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![0; 40 << 10]).unwrap();
    let mut sink = target(&disk.0).open();
    write(&mut *sink, &["one"]).unwrap();
    let large = "x".repeat(30 << 10);
    for _ in 0..2 {
        let why = unavailable(write(&mut *sink, &[&large]));
        assert!(why.contains("disk is full"), "{why}");
        assert_eq!(scratch.read(), "one\n");
    }
    fs::remove_file(ballast).unwrap();
    write(&mut *sink, &[&large]).unwrap();
    assert_eq!(scratch.read(), format!("one\n{large}\n"));
}
