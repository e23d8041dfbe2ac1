//! Nodes with a damaged or foreign data directory, and sessions of maximum size.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Size of the log's files: small, so that a few messages fill some.
const SEGMENT: &str = "1MiB";

struct Data(PathBuf);

impl Data {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-hard-{test}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Files of the log, in their order.
    fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.join("storage")).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "seg"));
        files.sort();
        files
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn start(directory: &Path) -> Command {
    start_with(directory, &[])
}

fn start_with(directory: &Path, settings: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(["start", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir"]).arg(directory);
    command.args(["--set", &format!("storage.segment_size={SEGMENT}"), "--set", "storage.reserve=2MiB"]);
    command.args(["--set", "mqtt.packet_size_max=16MiB"]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Output of a node that refuses to start.
fn refusal(directory: &Path) -> String {
    let output = start(directory).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    // Errors of the settings alone are reported before there is a log.
    let mut lines = said.lines();
    lines.find(|line| line.contains("ERROR") || line.contains("cannot be used")).expect("an error").to_owned()
}

struct Node {
    process: Child,
    port: u16,
}

impl Node {
    fn start(data: &Data) -> Self {
        Self::start_with(data, &[])
    }

    fn start_with(data: &Data, settings: &[&str]) -> Self {
        let mut process = start_with(&data.0, settings).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let line = log.by_ref().map(Result::unwrap).find(|line| line.contains("listening"));
        let line = line.expect("the node listens");
        let port = line.rsplit(':').next().unwrap();
        let port = port.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
        std::thread::spawn(move || log.for_each(drop));
        Self { process, port }
    }
}

/// Kills the process with `kill -9`.
impl Drop for Node {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A client of MQTT 5.0 that sends exactly the packets of a test.
struct Client(TcpStream);

impl Client {
    /// Connects with Clean Start 0. Returns whether a session was present.
    fn connect(node: &Node, id: &str, expiry: u32, will: Option<&[u8]>) -> (Self, bool) {
        let socket = TcpStream::connect(("127.0.0.1", node.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut body =
            vec![0, 4, b'M', b'Q', b'T', b'T', 5, if will.is_some() { 0b0000_1100 } else { 0 }, 0, 0];
        body.extend([5, 17]);
        body.extend(expiry.to_be_bytes());
        put_text(id, &mut body);
        body.extend(will.unwrap_or_default());
        let mut client = Self(socket);
        client.send(0x10, &body);
        let (kind, answer) = client.receive();
        assert_eq!((kind, answer[1]), (0x20, 0), "CONNACK: {answer:?}");
        (client, answer[0] == 1)
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let mut packet = vec![kind];
        let mut length = body.len();
        loop {
            let more = length >= 128;
            packet.push((length % 128) as u8 | if more { 128 } else { 0 });
            length /= 128;
            if !more {
                break;
            }
        }
        packet.extend(body);
        self.0.write_all(&packet).unwrap();
    }

    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut byte = || {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            byte[0]
        };
        let kind = byte();
        let (mut length, mut shift) = (0, 0);
        loop {
            let next = byte();
            length |= usize::from(next & 127) << shift;
            shift += 7;
            if next < 128 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (kind & 0xf0, body)
    }

    fn subscribe(&mut self, filters: impl Iterator<Item = String>) {
        let mut body = vec![0, 1, 0];
        for filter in filters {
            put_text(&filter, &mut body);
            body.push(1);
        }
        self.send(0x82, &body);
        let (kind, answer) = self.receive();
        assert_eq!(kind, 0x90);
        assert!(answer[3..].iter().all(|code| *code == 1), "every filter is granted");
    }

    /// Publishes with QoS 1; returns when the message is acknowledged.
    fn publish(&mut self, topic: &str, payload: &[u8]) {
        let reason = self.try_publish(topic, payload);
        // Success, or no matching subscribers.
        assert!(matches!(reason, 0 | 0x10), "{reason:#x}");
    }

    /// Publishes with QoS 1; returns the Reason Code of the acknowledgement.
    fn try_publish(&mut self, topic: &str, payload: &[u8]) -> u8 {
        let mut body = Vec::new();
        put_text(topic, &mut body);
        body.extend([0, 1, 0]);
        body.extend(payload);
        self.send(0x32, &body);
        let (kind, answer) = self.receive();
        assert_eq!(kind, 0x40);
        answer.get(2).copied().unwrap_or(0)
    }

    /// Topic and payload of the next message of QoS 1.
    fn message(&mut self) -> (String, Vec<u8>) {
        let (kind, body) = self.receive();
        assert_eq!(kind, 0x30);
        let length = usize::from(u16::from_be_bytes([body[0], body[1]]));
        let topic = String::from_utf8(body[2..2 + length].to_vec()).unwrap();
        let (id, rest) = body[2 + length..].split_at(2);
        self.send(0x40, id);
        let properties = usize::from(rest[0]);
        (topic, rest[1 + properties..].to_vec())
    }
}

fn put_text(text: &str, body: &mut Vec<u8>) {
    body.extend((text.len() as u16).to_be_bytes());
    body.extend(text.as_bytes());
}

/// A log of several files, with a session and its messages.
fn filled(test: &str) -> Data {
    let data = Data::new(test);
    let node = Node::start(&data);
    Client::connect(&node, "reader", u32::MAX, None).0.subscribe(["a/#".to_owned()].into_iter());
    let mut publisher = Client::connect(&node, "publisher", 0, None).0;
    for n in 0..40_u8 {
        publisher.publish("a/b", &vec![n; 100_000]);
    }
    drop(node);
    assert!(data.segments().len() > 3);
    data
}

#[test]
fn damage_in_the_middle_of_the_log_keeps_the_node_from_starting_until_it_is_repaired() {
    let data = filled("damage");
    let file = data.segments().remove(1);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[300_000] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let said = refusal(&data.0);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name) && said.contains("meridian storage repair"), "{said}");
    let mut repair = Command::new(env!("CARGO_BIN_EXE_meridian"));
    let repaired = repair.args(["storage", "repair"]).arg(&data.0).output().unwrap();
    assert!(repaired.status.success(), "{repaired:?}");
    std::fs::rename(data.0.join("storage"), data.0.join("damaged")).unwrap();
    std::fs::rename(data.0.join("storage.repaired"), data.0.join("storage")).unwrap();
    let node = Node::start(&data);
    assert!(Client::connect(&node, "somebody", 0, None).0.0.peer_addr().is_ok());
}

#[test]
fn a_foreign_file_is_refused_by_name_and_left_alone() {
    let data = filled("foreign");
    let file = data.segments().remove(0);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, b"not a log at all".repeat(1000)).unwrap();
    let said = refusal(&data.0);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name) && said.contains("not"), "{said}");
    std::fs::write(&file, whole).unwrap();
    assert!(Client::connect(&Node::start(&data), "reader", 60, None).1, "nothing was changed meanwhile");
}

#[test]
fn a_directory_that_another_node_uses_or_that_cannot_be_written_is_refused() {
    let data = Data::new("used");
    let node = Node::start(&data);
    let said = refusal(&data.0);
    assert!(said.contains(&node.process.id().to_string()), "{said}");
    let said = refusal(Path::new("/proc/meridian"));
    assert!(said.contains("/proc/meridian"), "{said}");
}

/// A program older than the log refuses it with advice, and changes nothing.
#[test]
fn a_log_of_a_newer_format_is_refused_with_advice() {
    let data = filled("newer");
    // Offset of the format, and of the checksum over the bytes before it.
    let (identity, segment) = (data.0.join("storage").join("identity"), data.segments().remove(0));
    for (file, checksum, known) in [(identity, 76, 1), (segment, 60, 3)] {
        let whole = std::fs::read(&file).unwrap();
        let mut newer = whole.clone();
        newer[8] = 9;
        let sum = crc32c(&newer[..checksum]).to_le_bytes();
        newer[checksum..checksum + 4].copy_from_slice(&sum);
        std::fs::write(&file, newer).unwrap();
        let said = refusal(&data.0);
        let expected = format!("has format 9, and this program knows formats up to {known}");
        assert!(said.contains(&expected), "{said}");
        assert!(said.contains("written by a newer"), "{said}");
        std::fs::write(&file, whole).unwrap();
    }
    assert!(Client::connect(&Node::start(&data), "reader", 60, None).1, "nothing was changed meanwhile");
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 0 { sum >> 1 } else { sum >> 1 ^ 0x82f6_3b78 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

/// The file system is mounted read-only in a mount namespace, which not every user may create.
#[test]
fn a_disk_that_is_read_only_is_refused() {
    const MOUNTED: &str = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && touch \"$1/x\" 2>/dev/null; \
         test -e \"$1/x\" && exit 99; mount | grep -q \" $1 .*ro\" || exit 99; shift; exec \"$@\"";
    let data = filled("read-only");
    let node = start(&data.0);
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh"]).arg(&data.0);
    command.arg(node.get_program()).args(node.get_args()).stdin(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.code() == Some(1));
    let Some(output) =
        output.filter(|output| String::from_utf8_lossy(&output.stderr).contains("cannot be used"))
    else {
        assert!(std::env::var_os("MERIDIAN_LAB_REQUIRED").is_none(), "nothing can be mounted here");
        return eprintln!("not tried: nothing can be mounted here");
    };
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lies on a file system that is mounted read-only"), "{said}");
    assert!(Client::connect(&Node::start(&data), "reader", 60, None).1, "when it can be written again");
}

/// The clock file of a node may contain any time: no session ends because of it.
#[test]
fn a_clock_that_jumps_by_a_year_ends_no_session() {
    let data = filled("clock");
    let path = data.0.join("storage").join("clock");
    for (boot, jump) in [("another boot", 365 * 86_400_000_i64), ("another boot", -365 * 86_400_000), ("", 0)]
    {
        let node = Node::start(&data);
        let (client, present) = Client::connect(&node, "reader", 2 * 86_400, None);
        assert!(present, "after a jump");
        drop((client, node));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if let Some(wall) = words.get_mut(2).filter(|_| !boot.is_empty()) {
            let moved = wall.parse::<i64>().unwrap() + jump;
            *wall = moved.max(0).to_string();
            std::fs::write(&path, words.join(" ")).unwrap();
        } else if boot.is_empty() {
            std::fs::write(&path, b"\xff\xfe no clock").unwrap();
        }
    }
    assert!(Client::connect(&Node::start(&data), "reader", 60, None).1);
}

#[test]
fn a_session_with_100_000_subscriptions_is_there_after_a_kill() {
    let data = Data::new("subscriptions");
    let node = Node::start(&data);
    let mut reader = Client::connect(&node, "reader", u32::MAX, None).0;
    for part in 0..100 {
        reader.subscribe((0..1_000).map(|n| format!("many/{part}/{n}/+")));
    }
    drop((reader, node));
    let node = Node::start(&data);
    let mut publisher = Client::connect(&node, "publisher", 0, None).0;
    for topic in ["many/0/0/x", "many/99/999/x", "many/100/0/x", "many/50/500/x"] {
        publisher.publish(topic, topic.as_bytes());
    }
    let (mut reader, present) = Client::connect(&node, "reader", u32::MAX, None);
    assert!(present);
    for topic in ["many/0/0/x", "many/99/999/x", "many/50/500/x"] {
        assert_eq!(reader.message(), (topic.to_owned(), topic.as_bytes().to_vec()));
    }
}

/// The message is larger than a file of the log, up to the maximum size of a packet.
#[test]
fn the_largest_message_is_there_after_a_kill() {
    let data = Data::new("largest");
    let node = Node::start(&data);
    Client::connect(&node, "reader", u32::MAX, None).0.subscribe(["a".to_owned()].into_iter());
    let payload: Vec<u8> = (0..16 * 1024 * 1024 - 100_u32).map(|n| ((n * 31) >> 3) as u8).collect();
    let mut publisher = Client::connect(&node, "publisher", 0, None).0;
    publisher.publish("a", &payload);
    publisher.publish("a", b"after it");
    drop(node);
    let node = Node::start(&data);
    let mut reader = Client::connect(&node, "reader", u32::MAX, None).0;
    assert!(reader.message().1 == payload, "byte for byte");
    assert_eq!(reader.message().1, b"after it");
}

/// A Will is due when its session ends, whatever its delay [MQTT-3.1.3-9]. A node that was killed still has to send
/// it.
#[test]
fn a_will_whose_delay_is_longer_than_its_session_comes_when_the_session_ends() {
    let data = Data::new("will");
    let node = Node::start(&data);
    let mut reader = Client::connect(&node, "reader", u32::MAX, None).0;
    reader.subscribe(["will".to_owned()].into_iter());
    // A delay of about 136 years.
    let mut will = vec![5, 24, 0xff, 0xff, 0xff, 0xfe];
    put_text("will", &mut will);
    will.extend([0, 4]);
    will.extend(b"gone");
    let mortal = Client::connect(&node, "mortal", 2, Some(&will)).0;
    drop((node, mortal));
    let node = Node::start(&data);
    let (mut reader, present) = Client::connect(&node, "reader", u32::MAX, None);
    assert!(present);
    let (kind, body) = reader.receive();
    assert_eq!((kind, &body[2..6], &body[body.len() - 4..]), (0x30, &b"will"[..], &b"gone"[..]));
}

/// `storage.disk_max`: the node behaves as on a full disk, and continues when space is free.
#[test]
fn a_log_of_maximum_size_refuses_messages_until_space_is_free() {
    let disk_max = 8 << 20;
    let data = Data::new("disk-max");
    let size = || -> u64 {
        let entries = std::fs::read_dir(data.0.join("storage")).unwrap();
        // A file may be removed meanwhile.
        entries.map(|entry| entry.unwrap().metadata().map_or(0, |metadata| metadata.len())).sum()
    };
    let node = Node::start_with(&data, &["storage.disk_max=8MiB"]);
    Client::connect(&node, "reader", u32::MAX, None).0.subscribe(["a/#".to_owned()].into_iter());
    let mut publisher = Client::connect(&node, "publisher", 0, None).0;
    let mut taken = 0_u8;
    loop {
        match publisher.try_publish("a/b", &vec![taken; 100_000]) {
            0 => taken += 1,
            reason => break assert_eq!(reason, 0x97),
        }
        // A segment is 1 MiB here. The log has to notice that no other one fits before the last one is full.
        std::thread::sleep(Duration::from_millis(20));
        assert!(taken < 200, "20 MB are more than the log may have");
        assert!(size() <= disk_max);
    }
    assert!(taken > 10, "{taken} messages");
    let mut reader = Client::connect(&node, "reader", u32::MAX, None).0;
    for n in 0..taken {
        let payload = reader.message().1;
        let is = (payload.first().copied(), payload.len());
        assert_eq!(is, (Some(n), 100_000), "of {taken} messages");
        assert!(payload.iter().all(|byte| *byte == n), "message {n}");
    }
    // The log notices unused space within a second or two.
    let again = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        publisher.try_publish("a/b", b"again") == 0
    });
    assert!(again, "there is room again");
    assert_eq!(reader.message().1, b"again");
    assert!(size() <= disk_max);
}

#[test]
fn a_maximum_size_that_is_too_small_for_a_log_is_refused_with_advice() {
    let data = Data::new("disk-max-small");
    for command in ["start", "config"] {
        let mut meridian = start_with(&data.0, &["storage.disk_max=5MiB"]);
        if command == "config" {
            meridian = Command::new(env!("CARGO_BIN_EXE_meridian"));
            meridian.args(["config", "check", "--set", "storage.disk_max=5MiB", "--data-dir"]).arg(&data.0);
        }
        let output = meridian.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{command}: {said}");
        assert!(said.contains("storage.disk_max = 5MiB is less than a log needs"), "{command}: {said}");
    }
}
