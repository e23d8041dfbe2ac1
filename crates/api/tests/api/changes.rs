//! Changes whose clients do not wait for them.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use api::{
    Author, Change, Changed, Changes, ConfigView, Configuration, LogLevelView, Refused, Reloaded, Scope,
    SettingProblem, Version,
};
use serde_json::{Value, json};

use crate::support::{Client, Server};

/// A configuration where every change waits until it is released.
#[derive(Default)]
struct Held {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    begun: Vec<String>,
    is_let_go: bool,
}

impl Held {
    fn release(&self) {
        sync::lock(&self.now).is_let_go = true;
        self.changed.notify_all();
    }

    /// Waits until this number of changes has begun, and returns their comments.
    fn begun(&self, number: usize) -> Vec<String> {
        let now = self.now.lock().unwrap();
        let until = |now: &mut Now| now.begun.len() < number;
        let (now, late) = self.changed.wait_timeout_while(now, PATIENCE, until).unwrap();
        assert!(!late.timed_out(), "{:?}", now.begun);
        now.begun.clone()
    }
}

/// Releases the held changes when a test ends, also by a panic: a server waits for its threads.
struct ReleaseOnDrop(Arc<Held>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

impl Configuration for Held {
    fn view(&self) -> ConfigView {
        ConfigView { version: 1, settings: Vec::new(), file: None, refused: Vec::new() }
    }

    fn validate(&self, _: Scope, _: &Changes) -> Vec<SettingProblem> {
        Vec::new()
    }

    fn change(&self, _: Scope, _: &Changes, author: &Author) -> Result<Changed, Refused> {
        let mut now = self.now.lock().unwrap();
        now.begun.push(author.comment.clone());
        self.changed.notify_all();
        drop(self.changed.wait_while(now, |now| !now.is_let_go).unwrap());
        let change = Change { name: author.comment.clone(), before: None, after: Some("7".to_owned()) };
        Ok(Changed { version: 2, changed: vec![change], overridden: Vec::new() })
    }

    fn rollback(&self, version: u64, _: &Author) -> Result<Changed, Refused> {
        Err(Refused::NoVersion(version))
    }

    fn reload(&self, _: &str) -> Result<Reloaded, Refused> {
        Ok(Reloaded { changed: Vec::new(), pending: Vec::new(), files: vec!["m.toml".to_owned()] })
    }

    fn history(&self) -> Vec<Version> {
        Vec::new()
    }

    fn refused(&self) -> usize {
        0
    }

    fn log_level(&self) -> LogLevelView {
        LogLevelView { level: "info".to_owned(), until: None }
    }

    fn set_log_level(&self, level: &str, _: Option<Duration>) -> Result<u64, String> {
        panic!("nobody knows the level {level}")
    }

    fn revert_log_level(&self, _: u64) {}
}

fn held(change: impl FnOnce(&mut api::settings::HttpSettings)) -> (Server, ReleaseOnDrop) {
    let held = Arc::<Held>::default();
    (Server::configured(held.clone(), change), ReleaseOnDrop(held))
}

/// Requests a change of the node and does not wait for the answer.
fn ask(server: &Server, comment: &str) -> Client {
    ask_for(server, "node", comment)
}

fn ask_for(server: &Server, scope: &str, comment: &str) -> Client {
    let body = json!({ "changes": { "a": "7" }, "comment": comment, "scope": scope }).to_string();
    server.ask("PATCH", "/api/v1/config", &[("Content-Type", "application/json")], Some(&body))
}

/// Waits until the server counts this number of clients, including the one that asks.
fn until_connected(server: &Server, number: usize) {
    let line = format!("\nmeridian_http_connections {number}\n");
    until(|| server.get("/metrics").text().contains(&line));
}

fn until(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "it does not come true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the audit log has this number of entries, and returns it, oldest first.
fn audit(server: &Server, number: usize) -> Vec<(u64, String)> {
    let entries = || -> Vec<(u64, String)> {
        let answer = server.get("/api/v1/audit").json();
        let entry = |entry: &Value| {
            (entry["status"].as_u64().unwrap(), entry["detail"].as_str().unwrap_or_default().to_owned())
        };
        answer["items"].as_array().unwrap().iter().rev().map(entry).collect()
    };
    until(|| entries().len() >= number);
    entries()
}

#[test]
fn a_change_whose_client_is_gone_is_in_the_audit_log() {
    let (server, held) = held(|_| ());
    let client = ask(&server, "one");
    held.0.begun(1);
    drop(client);
    until_connected(&server, 1);
    held.0.release();
    assert_eq!(audit(&server, 1), [(200, "one unset -> 7".to_owned())]);
}

#[test]
fn a_change_that_outlasts_its_request_is_in_the_audit_log() {
    let (server, held) = held(|settings| settings.request_timeout = Duration::from_millis(100));
    let detail = ask(&server, "one").answer("PATCH").problem(503, "unavailable");
    assert!(detail.contains("the audit log will show"), "{detail}");
    held.0.release();
    assert_eq!(audit(&server, 1), [(200, "one unset -> 7".to_owned())]);
}

#[test]
fn the_audit_log_marks_changes_that_a_stop_cancelled_as_unknown() {
    let (mut server, held) = held(|_| ());
    let _client = ask(&server, "one");
    held.0.begun(1);
    server.stop_http();
    let text = std::fs::read_to_string(server.directory.join("audit.log")).unwrap();
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!(line["status"], 503);
    assert!(line["detail"].as_str().unwrap().contains("before it was known"), "{line}");
}

#[test]
fn a_handler_that_fails_is_in_the_audit_log() {
    let (server, _held) = held(|_| ());
    let level = json!({ "level": "debug" });
    server.write("PUT", "/api/v1/log/level", Some(&level)).problem(500, "internal");
    let entries = audit(&server, 1);
    assert_eq!(entries[0].0, 500, "{entries:?}");
}

#[test]
fn the_body_of_a_request_without_a_handler_is_not_read() {
    let server = Server::start();
    let mut client = server.connect();
    let head =
        format!("POST /nowhere HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n", server.address);
    client.send(format!("{head}Content-Length: 100000\r\n\r\n").as_bytes());
    client.answer("POST").problem(404, "not-found");
    assert_eq!(audit(&server, 1)[0].0, 404);
}

#[test]
fn running_changes_are_limited_like_connections() {
    let (server, held) = held(|settings| settings.connections_max = 2);
    for (scope, number) in [("node", 1), ("cluster", 2)] {
        let client = ask_for(&server, scope, "left behind");
        held.0.begun(number);
        drop(client);
        until_connected(&server, 1);
    }
    let answer = ask(&server, "one more").answer("PATCH");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.problem(503, "unavailable").contains("http.connections_max"));
    held.0.release();
    let statuses: Vec<_> = audit(&server, 3).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [503, 200, 200]);
}

#[test]
fn changes_that_wait_for_the_cluster_delay_nothing_else() {
    let (server, held) = held(|_| ());
    let clients: Vec<_> = (0..8).map(|number| ask_for(&server, "cluster", &number.to_string())).collect();
    held.0.begun(1);
    for path in ["/metrics", "/api/v1/config", "/api/v1/users", "/health/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let node = ask(&server, "of the node");
    assert!(held.0.begun(2).contains(&"of the node".to_owned()));
    held.0.release();
    for mut client in clients.into_iter().chain([node]) {
        client.answer("PATCH").is(200);
    }
}

#[test]
fn a_waiting_change_is_refused_when_its_client_is_gone() {
    let (server, held) = held(|_| ());
    let mut first = ask_for(&server, "cluster", "first");
    held.0.begun(1);
    let given_up: Vec<_> = (0..8).map(|number| ask_for(&server, "cluster", &format!("{number}"))).collect();
    until_connected(&server, 10);
    drop(given_up);
    until_connected(&server, 2);
    let mut last = ask_for(&server, "cluster", "last");
    held.0.release();
    first.answer("PATCH").is(200);
    last.answer("PATCH").is(200);
    assert_eq!(held.0.begun(2), ["first", "last"]);
    let entries = audit(&server, 2);
    let not_begun = |(status, why): &&(u64, String)| *status == 503 && why.contains("was not begun");
    assert_eq!(entries.iter().filter(not_begun).count(), entries.len() - 2, "{entries:?}");
}
