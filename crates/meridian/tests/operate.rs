//! Operation of a node over HTTP and on its machine: keys, configuration, stopping.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory of one test, removed at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-operate-{test}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A running node with its data in a directory.
struct Node {
    process: Child,
    log: BufReader<ChildStderr>,
    mqtt: String,
    http: String,
    token: Option<String>,
}

impl Node {
    fn start(directory: &Directory, arguments: &[&str]) -> Self {
        let data = directory.path("data");
        let fixed = ["start", "--listen", "127.0.0.1:0", "--workers", "1", "--data-dir", &data];
        let http = ["--http", "127.0.0.1:0"];
        let http = if arguments.contains(&"--http") { &[][..] } else { &http };
        let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
        let mut process =
            command.args(fixed).args(http).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut node = Self { process, log, mqtt: String::new(), http: String::new(), token: None };
        let address =
            |line: String| line.rsplit("address=").next().unwrap().trim().trim_matches('"').to_owned();
        node.mqtt = address(node.wait_for("listening name="));
        node.http = address(node.wait_for("HTTP address="));
        node.wait_for("the node serves");
        node
    }

    /// Reads the log up to a line with this text, and returns it.
    fn wait_for(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "no `{text}` in the log:\n{seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    fn request(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let token =
            self.token.as_ref().map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             {token}Connection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let (status, body) = self.request("GET", path, None);
        assert_eq!(status, 200, "{body}");
        body
    }

    fn change(&self, changes: Value) -> (u16, Value) {
        self.request("PATCH", "/api/v1/config", Some(json!({ "changes": changes, "comment": "a test" })))
    }

    /// A setting of `/api/v1/config`.
    fn setting(&self, name: &str) -> Value {
        let config = self.get("/api/v1/config");
        let settings = config["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("{name}")).clone()
    }

    /// Returns whether a client without a user name can connect.
    fn lets_anybody_in(&self) -> bool {
        let (host, port) = self.mqtt.rsplit_once(':').unwrap();
        run(&["pub", "-h", host, "-p", port, "-t", "a", "-m", "x", "-q", "1"]).status.success()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn stop(mut self) {
        self.signal("-TERM");
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Needed for a test that failed before it stopped the node; otherwise both have no effect.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn keys_are_made_listed_and_removed() {
    let directory = Directory::new("keys");
    let data = directory.path("data");
    let key = |arguments: &[&str]| run(&[&["key"], arguments, &["--data-dir", &data]].concat());
    assert_eq!(stdout(&key(&["list"])), "");
    let made = key(&["add", "ops", "--role", "admin", "--expires", "90d"]);
    let token = stdout(&made);
    assert!(made.status.success() && token.starts_with("mrd_") && token.lines().count() == 1, "{token}");
    let file = Path::new(&data).join("registry.log");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(token.trim()));
    let again = key(&["add", "ops", "--role", "viewer"]);
    assert!(again.status.code() == Some(1) && stderr(&again).contains("`ops`"), "{}", stderr(&again));
    let list = stdout(&key(&["list"]));
    assert!(list.contains("ops") && list.contains("admin") && !list.contains("never"), "{list}");
    for bad in [
        &["add", "x y", "--role", "admin"][..],
        &["add", "x"],
        &["add", "x", "--role", "root"],
        &["remove", "x"],
        &["add", "x", "--role", "admin", "--expires", "0s"],
    ] {
        assert!(!key(bad).status.success(), "{bad:?}");
    }
    assert!(key(&["remove", "ops"]).status.success());
    assert_eq!(stdout(&key(&["list"])), "");
}

#[test]
fn http_off_loopback_requires_a_key() {
    let directory = Directory::new("exposed");
    let data = directory.path("data");
    let refused = run(&["start", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0", "--data-dir", &data]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("meridian key add NAME --role admin --data-dir"),
        "{}",
        stderr(&refused)
    );
    assert!(!Path::new(&data).join("registry.log").exists());

    let made = run(&["key", "add", "ops", "--role", "admin", "--data-dir", &data]);
    // Such as behind a reverse proxy: without TLS an explicit setting is needed.
    let plain = ["--http", "0.0.0.0:0", "--set", "http.plain_text_allowed=true"];
    let mut node = Node::start(&directory, &plain);
    node.http = node.http.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(node.request("GET", "/api/v1/node", None).0, 401);
    assert_eq!(node.get("/health/ready")["status"], "ready");
    node.token = Some(stdout(&made).trim().to_owned());
    assert_eq!(node.get("/api/v1/whoami")["name"], "ops");
    // Without this key no operator would have access any more.
    assert_eq!(node.request("DELETE", "/api/v1/keys/ops", None).0, 409);
    node.stop();
}

#[test]
fn an_address_of_http_in_use_is_named_with_a_remedy() {
    let directory = Directory::new("in-use");
    let node = Node::start(&directory, &[]);
    let data = directory.path("other");
    let output = run(&["start", "--listen", "127.0.0.1:0", "--http", &node.http, "--data-dir", &data]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&node.http) && text.contains("--http off"), "{text}");
    node.stop();
}

#[test]
fn without_http_nothing_of_the_api_exists() {
    let directory = Directory::new("off");
    let data = directory.path("data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(["start", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir", &data]);
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("the node serves") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0);
        assert!(!line.contains("HTTP"), "{line}");
    }
    assert!(Command::new("kill").arg(process.id().to_string()).status().unwrap().success());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert!(!Path::new(&data).join("registry.log").exists());
}

#[test]
fn a_change_applies_at_once_survives_a_restart_and_can_be_reverted() {
    let directory = Directory::new("change");
    let config = directory.write("m.toml", "[queue]\nmessages_max = 700\n");
    let arguments = ["--config", config.as_str()];
    let node = Node::start(&directory, &arguments);
    assert_eq!(node.setting("queue.messages_max")["source"], "file");
    assert!(node.lets_anybody_in());
    let changes =
        json!({ "auth.allow_anonymous": "false", "queue.messages_max": "5", "log.level": "info,edge=debug" });
    let (status, changed) = node.change(changes.clone());
    assert_eq!(
        (status, &changed["version"], changed["changed"].as_array().unwrap().len()),
        (200, &2.into(), 3),
        "{changed}"
    );
    assert!(!node.lets_anybody_in());
    node.stop();

    let shown = stdout(&run(&["config", "show", "--config", &config, "--data-dir", &directory.path("data")]));
    let line =
        shown.lines().find(|line| line.starts_with("messages_max = 5 ")).unwrap_or_else(|| panic!("{shown}"));
    assert!(line.contains("runtime.toml"), "{line}");
    let mut node = Node::start(&directory, &arguments);
    assert!(!node.lets_anybody_in());
    let setting = node.setting("queue.messages_max");
    assert_eq!(
        (&setting["value"], &setting["source"], &setting["default"]),
        (&"5".into(), &"runtime".into(), &"1000".into())
    );

    // One change is reverted, then all of them.
    let (_, changed) = node.change(json!({ "queue.messages_max": null }));
    assert_eq!(changed["changed"], json!([{ "name": "queue.messages_max", "before": "5", "after": "700" }]));
    let (status, changed) = node.request("POST", "/api/v1/config/rollback", Some(json!({ "version": 1 })));
    assert_eq!((status, &changed["version"]), (200, &4.into()), "{changed}");
    assert!(node.lets_anybody_in());
    assert_eq!(node.setting("auth.allow_anonymous")["value"], Value::Null);
    assert_eq!(node.request("POST", "/api/v1/config/rollback", Some(json!({ "version": 99 }))).0, 404);
    let history = node.get("/api/v1/config/history");
    let versions: Vec<_> =
        history["items"].as_array().unwrap().iter().map(|item| item["version"].as_u64().unwrap()).collect();
    assert_eq!(versions, [4, 3, 2, 1]);
    node.signal("-HUP");
    node.wait_for("reloaded");
    assert_eq!(node.get("/api/v1/config")["version"], 4);
    node.stop();
}

#[test]
fn settings_of_the_cluster_lie_between_the_file_and_the_nodes_own_changes() {
    let directory = Directory::new("agreed");
    let config = directory.write("m.toml", "[queue]\nmessages_max = 700\n");
    let arguments = ["--config", config.as_str(), "--set", "mqtt.retain_available=true"];
    let node = Node::start(&directory, &arguments);
    let patch = |node: &Node, scope: &str, changes: Value| {
        let body = json!({"changes": changes, "scope": scope, "comment": "a test"});
        node.request("PATCH", "/api/v1/config", Some(body))
    };
    let (status, changed) =
        patch(&node, "cluster", json!({"queue.messages_max": "800", "log.level": "debug"}));
    assert_eq!((status, changed["changed"].as_array().unwrap().len()), (200, 2), "{changed}");
    let setting = node.setting("queue.messages_max");
    assert_eq!((&setting["value"], &setting["source"]), (&json!("800"), &json!("cluster")));
    assert_eq!(setting["cluster"]["comment"], "a test");
    // The node's own change overrides the cluster's, and stays when that changes.
    assert_eq!(patch(&node, "node", json!({"queue.messages_max": "900"})).0, 200);
    let (status, changed) = patch(&node, "cluster", json!({"queue.messages_max": "850"}));
    assert_eq!((status, &changed["changed"]), (200, &json!([])), "{changed}");
    assert!(changed["overridden"][0]["detail"].as_str().unwrap().contains("runtime.toml"), "{changed}");
    assert_eq!(node.setting("queue.messages_max")["value"], "900");
    assert_eq!(node.setting("queue.messages_max")["cluster"]["value"], "850");
    // Bad values change nothing, even if other nodes would accept them.
    for (name, value) in [
        ("queue.messages_max", "many"),
        ("queue.of_nobody", "1"),
        ("edge.workers", "2"),
        ("listener.0.address", "x"),
    ] {
        let (status, problem) = patch(&node, "cluster", json!({ name: value, "log.level": "warn" }));
        assert_eq!((status, &problem["errors"][0]["name"]), (422, &json!(name)), "{problem}");
    }
    let (status, problem) = patch(&node, "cluster", json!({"auth.password_file": "/nonexistent/file"}));
    assert_eq!(status, 409, "{problem}");
    assert_eq!(node.setting("log.level")["value"], "debug");
    assert_eq!(node.setting("auth.password_file")["cluster"], Value::Null);

    node.stop();
    let node = Node::start(&directory, &arguments);
    assert_eq!(node.setting("log.level")["value"], "debug");
    assert_eq!(patch(&node, "node", json!({"queue.messages_max": null})).0, 200);
    assert_eq!(node.setting("queue.messages_max")["value"], "850");
    assert_eq!(node.request("POST", "/api/v1/config/reload", None).0, 200);
    assert_eq!(node.setting("queue.messages_max")["value"], "850");
    assert_eq!(patch(&node, "cluster", json!({"queue.messages_max": null, "log.level": null})).0, 200);
    assert_eq!(node.setting("queue.messages_max")["value"], "700");
    let history = node.get("/api/v1/config/history");
    assert_eq!(history["items"][0]["comment"], "for the whole cluster: a test");
}

#[test]
fn an_invalid_change_is_refused_with_the_reason_and_nothing_changes() {
    let directory = Directory::new("refuse");
    let node = Node::start(&directory, &["--set", "queue.full_wait=1s"]);
    let (status, problem) = node.change(json!({
        "queue.messages_max": "0",
        "queue.bytes_max": "2MiB",
        "queue.full_wait": "2s",
        "mqtt.qos_max": "1",
        "queue.message_max": "1",
        "listener.0.backlog": "1",
        "auth.password_file": "/nonexistent/users",
    }));
    assert_eq!(status, 422, "{problem}");
    let of = |name: &str| {
        let errors = problem["errors"].as_array().unwrap();
        let error = errors.iter().find(|error| error["name"] == name);
        error.map(|error| error["detail"].as_str().unwrap().to_owned()).unwrap_or_default()
    };
    for (name, text) in [
        ("queue.messages_max", "out of range"),
        ("queue.full_wait", "--set queue.full_wait=1s"),
        ("mqtt.qos_max", "at the start"),
        ("listener.0.backlog", "at the start"),
        ("queue.message_max", "`queue.messages_max`"),
    ] {
        assert!(of(name).contains(text), "{name}: {problem}");
    }
    assert_eq!(
        (of("queue.bytes_max").as_str(), node.setting("queue.bytes_max")["value"].as_str()),
        ("", Some("16MiB"))
    );
    // The values are valid, but the file does not exist.
    let (status, problem) =
        node.change(json!({ "queue.bytes_max": "2MiB", "auth.password_file": "/nonexistent/users" }));
    assert!(status == 409 && problem["detail"].as_str().unwrap().contains("/nonexistent/users"), "{problem}");
    assert!(!Path::new(&directory.path("data/runtime.toml")).exists());
    let valid = node.request(
        "POST",
        "/api/v1/config/validate",
        Some(json!({ "changes": { "queue.bytes_max": "2MiB" } })),
    );
    assert_eq!(valid, (200, json!({ "valid": true, "problems": [] })));
    assert_eq!(node.get("/api/v1/config")["version"], 1);
    node.stop();
}

#[test]
fn a_signal_and_http_reload_the_file_equally() {
    let directory = Directory::new("reload");
    let config = directory.write("m.toml", "");
    let mut node = Node::start(&directory, &["--config", &config]);
    directory.write("m.toml", "[queue]\nmessages_max = 9\n[mqtt]\nqos_max = 1\n[[listener]]\nbacklog = 7\n");
    let (status, reloaded) = node.request("POST", "/api/v1/config/reload", None);
    assert_eq!(status, 200);
    assert_eq!(
        reloaded["changed"],
        json!([{ "name": "queue.messages_max", "before": "1000", "after": "9" }])
    );
    // `--listen` overrides the listeners of the file.
    assert_eq!(reloaded["pending"], json!(["mqtt.qos_max"]));
    assert_eq!(reloaded["files"], json!([config]));
    let setting = node.setting("mqtt.qos_max");
    assert_eq!(
        (&setting["value"], &setting["pending"], &setting["reloadable"]),
        (&"2".into(), &"1".into(), &false.into())
    );

    directory.write("m.toml", "[queue]\nmessages_max = 8\nmessages_max_ = 9\n");
    let (status, problem) = node.request("POST", "/api/v1/config/reload", None);
    assert!(status == 409 && problem["detail"].as_str().unwrap().contains("m.toml:3"), "{problem}");
    node.signal("-HUP");
    assert!(node.wait_for("not reloaded").contains("m.toml:3"));
    assert_eq!(node.setting("queue.messages_max")["value"], "9");

    directory.write("m.toml", "[queue]\nmessages_max = 8\n");
    node.signal("-HUP");
    let line = node.wait_for("reloaded");
    assert!(line.contains(&config), "{line}");
    assert_eq!(node.setting("queue.messages_max")["value"], "8");
    let history = node.get("/api/v1/config/history");
    assert_eq!((&history["items"][0]["by"], &history["items"][1]["by"]), (&"SIGHUP".into(), &Value::Null));
    node.stop();
}

#[test]
fn files_of_a_crash_are_ignored_and_broken_ones_are_named() {
    let directory = Directory::new("crash");
    let node = Node::start(&directory, &[]);
    node.change(json!({ "queue.messages_max": "5" }));
    node.stop();
    directory.write("data/runtime.toml.new", "[queue]\nmess");
    directory.write("data/config-history.json", "[{");
    let node = Node::start(&directory, &[]);
    assert_eq!(node.setting("queue.messages_max")["value"], "5");
    assert_eq!(node.change(json!({ "queue.messages_max": "6" })).0, 200);
    node.stop();
    assert!(directory.read("data/runtime.toml").contains("messages_max = \"6\""));
    assert!(!Path::new(&directory.path("data/runtime.toml.new")).exists());

    let data = directory.path("data");
    for (text, expected) in [("[queue", "runtime.toml:1"), ("[queue]\nmessages_max = \"0\"", "messages_max")]
    {
        directory.write("data/runtime.toml", text);
        let output = run(&["start", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", &data]);
        let text = stderr(&output);
        assert!(
            output.status.code() == Some(1) && text.contains(expected) && text.contains("runtime.toml"),
            "{text}"
        );
    }
    directory.write("data/runtime.toml", "");
    directory.write("data/api-keys.json", "{}");
    let output = run(&["start", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", &data]);
    assert!(
        output.status.code() == Some(1) && stderr(&output).contains("api-keys.json"),
        "{}",
        stderr(&output)
    );
}

/// A backup of a running node under load starts another node with every previously acknowledged message, in order and
/// once.
#[test]
fn a_backup_that_is_made_under_load_is_restored() {
    let (directory, other) = (Directory::new("backup"), Directory::new("restored"));
    let backups = directory.path("backups");
    std::fs::create_dir(&backups).unwrap();
    let small = ["--set", "storage.segment_size=1MiB", "--set", "storage.reserve=2MiB"];
    let room = ["--set", "queue.messages_max=1000000", "--set", "queue.bytes_max=1GiB"];
    let named = format!("storage.backup_dir={backups}");
    let node = Node::start(&directory, &[&small[..], &room, &["--set", &named]].concat());
    let port = |node: &Node| node.mqtt.rsplit(':').next().unwrap().to_owned();
    let url = format!("http://{}", node.http);
    let ctl = |arguments: &[&str]| run(&[&["ctl", "--url", &url], arguments].concat());
    let session = ["-i", "reader", "-c", "-x", "3600", "-q", "1", "-t", "a"];
    let subscribed = run(&[&["sub", "-p", &port(&node)], &session[..], &["-E"]].concat());
    assert!(subscribed.status.success(), "{}", stderr(&subscribed));

    let publish = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
        command.args(["pub", "-p", &port(&node), "-q", "1", "-t", "a", "-l"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let line = |n: u32| format!("{n:01000}\n");
    let mut before = publish();
    let mut input = before.stdin.take().unwrap();
    (0..1500).for_each(|n| input.write_all(line(n).as_bytes()).unwrap());
    drop(input);
    assert!(before.wait().unwrap().success());

    let mut load = publish();
    let mut input = load.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || {
        // Until nothing reads the input any more.
        (1500..).take_while(|n| input.write_all(line(*n).as_bytes()).is_ok()).count()
    });
    let made = ctl(&["storage", "backup", "first"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let again = ctl(&["storage", "backup", "first"]);
    assert!(!again.status.success() && stderr(&again).contains("is there already"), "{}", stderr(&again));
    let outside = ctl(&["storage", "backup", "../first"]);
    assert!(!outside.status.success(), "{}", stdout(&outside));
    let (status, shown) = node.request("GET", "/api/v1/storage", None);
    assert_eq!((status, &shown["log"]["backup"]["state"]), (200, &json!("done")));
    load.kill().unwrap();
    load.wait().unwrap();
    feeding.join().unwrap();
    drop(node);

    let backup = directory.path("backups/first");
    let checked = run(&["storage", "check", &backup]);
    assert!(checked.status.success(), "{}", stdout(&checked));
    let restored = run(&["storage", "restore", &backup, &other.path("data")]);
    assert!(restored.status.success(), "{}", stderr(&restored));
    let node = Node::start(&other, &[&small[..], &room].concat());
    let last = u32::MAX;
    let marked = run(&["pub", "-p", &port(&node), "-q", "1", "-t", "a", "-m", &last.to_string()]);
    assert!(marked.status.success(), "{}", stderr(&marked));
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(["sub", "-p", &port(&node)]).args(session).stdout(Stdio::piped());
    let mut reader = command.spawn().unwrap();
    let lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    let numbers = lines.map(|line| line.unwrap().parse::<u32>().unwrap());
    let found: Vec<u32> = numbers.take_while(|n| *n != last).collect();
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert!(found.len() >= 1500, "{}", found.len());
    assert!(found.iter().copied().eq(0..found.len() as u32), "a gap, a repetition, or another order");
}

/// A core that has the only replicas makes a backup, and a node alone starts with it.
#[test]
fn a_backup_of_the_only_core_starts_a_node_alone() {
    let (directory, other) = (Directory::new("only-copy"), Directory::new("only-copy-restored"));
    let backups = directory.path("backups");
    std::fs::create_dir(&backups).unwrap();
    let secret = directory.write("secret", "0123456789abcdef0123456789abcdef\n");
    let (named, listen) = (
        format!("storage.backup_dir={backups}"),
        format!("127.0.0.1:{}", 19_000 + std::process::id() % 2_000),
    );
    let of_cluster = ["--cluster-listen", &listen, "--cluster-secret-file", &secret];
    let node = Node::start(&directory, &[&of_cluster[..], &["--set", &named]].concat());
    let port = |node: &Node| node.mqtt.rsplit(':').next().unwrap().to_owned();
    let session = ["-i", "reader", "-c", "-q", "1", "-t", "a"];
    let reader = |node: &Node, last: &str| {
        let (port, base) = (port(node), ["sub", "-p"]);
        run(&[&base[..], &[&port], &session[..], &[last]].concat())
    };
    let subscribed = reader(&node, "-E");
    assert!(subscribed.status.success(), "{}", stderr(&subscribed));
    let sent = run(&["pub", "-p", &port(&node), "-q", "1", "-t", "a", "-m", "kept"]);
    assert!(sent.status.success(), "{}", stderr(&sent));
    let url = format!("http://{}", node.http);
    let made = run(&["ctl", "--url", &url, "storage", "backup", "one"]);
    assert!(made.status.success(), "{}", stderr(&made));
    drop(node);

    let restored = run(&["storage", "restore", &directory.path("backups/one"), &other.path("data")]);
    assert!(restored.status.success(), "{}{}", stdout(&restored), stderr(&restored));
    let node = Node::start(&other, &[]);
    let found = reader(&node, "-C1");
    assert_eq!(stdout(&found), "kept\n", "{}", stderr(&found));
}

/// Backups need a configured directory; the error explains how to set one.
#[test]
fn without_a_directory_for_backups_none_are_made() {
    let directory = Directory::new("no-backups");
    let node = Node::start(&directory, &[]);
    let (status, problem) = node.request("POST", "/api/v1/storage/backups", Some(json!({"name": "x"})));
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert_eq!((status, detail.contains("storage.backup_dir")), (409, true), "{problem}");
}
