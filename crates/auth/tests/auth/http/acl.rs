//! Source of authorisation: decides what clients may do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use access::{Action, Identity, RetryAuthorize};
use auth::settings::HttpAclSettings;
use auth::{Circuit, HttpAcl, Opinion};
use mqtt::QoS;
use serde_json::json;

use crate::support::server::{Play, Server};
use crate::support::until;

const PUBLISH: Action = Action::Publish { qos: QoS::AtLeastOnce, retain: true };
const SUBSCRIBE: Action = Action::Subscribe { qos: QoS::ExactlyOnce };
const WHO: Identity<'static> = Identity {
    client_id: "c1",
    username: Some("alice"),
    peer: None,
    listener: "main",
    certificate: None,
    principal: None,
};

fn acl(settings: &HttpAclSettings) -> HttpAcl {
    HttpAcl::open(settings).unwrap().expect("there is a URL")
}

fn settings(url: String) -> HttpAclSettings {
    HttpAclSettings { url: Some(url), ..HttpAclSettings::default() }
}

/// Client that asks, and counts how often it is woken to ask again.
#[derive(Clone, Default)]
struct Asker {
    taken: Arc<AtomicUsize>,
    woken: Arc<AtomicUsize>,
}

impl Asker {
    fn ask(&self, acl: &HttpAcl, action: Action, topic: &str) -> Opinion {
        acl.decide(WHO, action, topic, &mut || {
            self.taken.fetch_add(1, Ordering::Relaxed);
            let woken = self.woken.clone();
            RetryAuthorize::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        })
    }

    /// Asks, like the broker, again each time that it is woken.
    fn learn(&self, acl: &HttpAcl, action: Action, topic: &str) -> Opinion {
        let woken = self.woken.load(Ordering::Relaxed);
        assert_eq!(self.ask(acl, action, topic), Opinion::Later, "{topic}");
        until("the answer arrives", || self.woken.load(Ordering::Relaxed) > woken);
        self.ask(acl, action, topic)
    }
}

fn says(request: &crate::support::server::Request, topic: &str) -> bool {
    let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
    body["topic"] == topic
}

#[test]
fn the_service_decides_by_body_or_by_status() {
    let server = Server::start(|request| match request {
        request if says(request, "allow") => Play::Answer(200, r#"{"result":"allow"}"#),
        request if says(request, "deny") => Play::Answer(200, r#"{"result":"deny"}"#),
        request if says(request, "ignore") => Play::Answer(200, r#"{"result":"ignore"}"#),
        request if says(request, "204") => Play::Answer(204, ""),
        request if says(request, "403") => Play::Answer(403, ""),
        request if says(request, "404") => Play::Answer(404, ""),
        request if says(request, "401") => Play::Answer(401, ""),
        request if says(request, "500") => Play::Answer(500, ""),
        _ => Play::Answer(200, "allow"),
    });
    let (acl, asker) = (acl(&settings(server.url("/acl"))), Asker::default());
    for (topic, opinion) in [
        ("allow", Opinion::Allow),
        ("204", Opinion::Allow),
        ("deny", Opinion::Deny),
        ("403", Opinion::Deny),
        ("ignore", Opinion::None),
        ("404", Opinion::None),
        ("401", Opinion::Failed),
        ("500", Opinion::Failed),
        ("words", Opinion::Failed),
    ] {
        assert_eq!(asker.learn(&acl, PUBLISH, topic), opinion, "{topic}");
    }
    let figures = acl.figures();
    assert_eq!(
        (figures.requests, figures.allowed, figures.denied, figures.ignored, figures.cached),
        (9, 2, 2, 2, 9)
    );
    assert_eq!((figures.failed.status, figures.failed.body, figures.in_flight), (2, 1, 0));
}

#[test]
fn a_question_names_the_client_and_the_requested_access() {
    let server = Server::start(|_| Play::Answer(204, ""));
    let (acl, asker) = (acl(&settings(server.url("/"))), Asker::default());
    let topic = "a/\",\"x\":\"${username}/#";
    assert_eq!(asker.learn(&acl, PUBLISH, topic), Opinion::Allow);
    let mut expected = json!({
        "clientid": "c1", "username": "alice", "peer": null, "listener": "main", "cert_cn": null, "cert_subject": null,
        "action": "publish", "topic": topic, "qos": 1, "retain": true,
    });
    assert_eq!(server.last(), expected);
    assert_eq!(asker.learn(&acl, SUBSCRIBE, topic), Opinion::Allow, "another action is another question");
    (expected["action"], expected["qos"], expected["retain"]) = (json!("subscribe"), json!(2), json!(false));
    assert_eq!(server.last(), expected);
}

/// Messages of a granted subscription are delivered.
#[test]
fn deliveries_are_not_asked_about() {
    let server = Server::start(|_| Play::Answer(403, ""));
    let (acl, asker) = (acl(&settings(server.url("/"))), Asker::default());
    assert_eq!(asker.ask(&acl, Action::Receive, "a"), Opinion::None);
    assert_eq!((asker.taken.load(Ordering::Relaxed), server.connections()), (0, 0));
}

#[test]
fn equal_questions_are_asked_once_and_all_clients_are_woken() {
    let server = Server::start(|_| Play::Hang);
    let acl = acl(&HttpAclSettings { timeout: Duration::from_secs(20), ..settings(server.url("/")) });
    let asker = Asker::default();
    for _ in 0..100 {
        assert_eq!(asker.ask(&acl, PUBLISH, "a"), Opinion::Later);
    }
    assert_eq!((acl.figures().joined, asker.woken.load(Ordering::Relaxed)), (99, 0));
    server.release();
    until("all are woken", || asker.woken.load(Ordering::Relaxed) == 100);
    assert_eq!(asker.ask(&acl, PUBLISH, "a"), Opinion::Allow);
    assert_eq!((server.requests().len(), asker.taken.load(Ordering::Relaxed)), (1, 100));
}

/// A woken client finds the answer, even with a cache time of 0. A failure is kept too, or the client would ask
/// forever.
#[test]
fn waiting_clients_find_the_answer() {
    let server =
        Server::start(
            |request| if says(request, "a") { Play::Answer(204, "") } else { Play::Answer(500, "") },
        );
    let none = Duration::ZERO;
    let settings = HttpAclSettings {
        cache_ttl_allow: none,
        cache_ttl_deny: none,
        cache_max: 0,
        ..settings(server.url("/"))
    };
    let (acl, asker) = (acl(&settings), Asker::default());
    assert_eq!(asker.learn(&acl, PUBLISH, "a"), Opinion::Allow);
    assert_eq!(asker.learn(&acl, PUBLISH, "b"), Opinion::Failed);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn questions_beyond_the_waiting_limit_fail() {
    let server = Server::start(|_| Play::Hang);
    let settings = HttpAclSettings {
        waiting_max: 3,
        connections_max: 1,
        timeout: Duration::from_secs(20),
        ..settings(server.url("/"))
    };
    let (acl, asker) = (acl(&settings), Asker::default());
    for topic in ["a", "b", "a"] {
        assert_eq!(asker.ask(&acl, PUBLISH, topic), Opinion::Later);
    }
    for topic in ["a", "c"] {
        assert_eq!(asker.ask(&acl, PUBLISH, topic), Opinion::Failed);
    }
    assert_eq!((acl.figures().failed.busy, asker.taken.load(Ordering::Relaxed)), (2, 3));
    server.release();
    until("they are woken", || asker.woken.load(Ordering::Relaxed) == 3);
    assert_eq!(asker.learn(&acl, PUBLISH, "c"), Opinion::Allow);
}

#[test]
fn a_service_that_hangs_fails_its_questions_and_then_is_not_asked() {
    let server = Server::start(|_| Play::Hang);
    let settings = HttpAclSettings {
        timeout: Duration::from_millis(50),
        failures_max: 1,
        open_for: Duration::from_secs(3600),
        ..settings(server.url("/"))
    };
    let (acl, asker) = (acl(&settings), Asker::default());
    assert_eq!(asker.learn(&acl, PUBLISH, "a"), Opinion::Failed);
    assert_eq!(asker.ask(&acl, PUBLISH, "b"), Opinion::Failed, "at once");
    let figures = acl.figures();
    assert_eq!((figures.circuit, figures.failed.timeout, figures.failed.circuit_open), (Circuit::Open, 1, 1));
    assert_eq!(server.requests().len(), 1);
}

/// Clients that wait when the settings change get the answer of the service that was asked.
#[test]
fn a_reload_clears_the_cache_and_wakes_waiting_clients() {
    let server = Server::start(|_| Play::Hang);
    let settings = HttpAclSettings { timeout: Duration::from_secs(20), ..settings(server.url("/")) };
    let (acl, asker) = (acl(&settings), Asker::default());
    assert_eq!(asker.ask(&acl, PUBLISH, "a"), Opinion::Later);
    acl.read(&settings).unwrap().unwrap().apply();
    server.release();
    until("it is woken", || asker.woken.load(Ordering::Relaxed) == 1);
    assert_eq!(asker.learn(&acl, PUBLISH, "a"), Opinion::Allow);
    assert!(acl.read(&HttpAclSettings::default()).unwrap().is_none());
}

/// Neither a client that disconnects nor a source that is dropped leaves a client waiting.
#[test]
fn waiting_clients_are_woken_when_the_source_is_dropped() {
    let server = Server::start(|_| Play::Hang);
    let acl = acl(&HttpAclSettings {
        connections_max: 1,
        timeout: Duration::from_secs(20),
        ..settings(server.url("/"))
    });
    let asker = Asker::default();
    for topic in ["a", "b", "c"] {
        assert_eq!(asker.ask(&acl, PUBLISH, topic), Opinion::Later);
    }
    drop(acl);
    server.release();
    until("all are woken", || asker.woken.load(Ordering::Relaxed) == 3);
}

/// The service is asked about a subscription and not about each delivery, so messages of a granted subscription are
/// delivered.
#[test]
fn messages_of_a_granted_subscription_are_delivered() {
    use access::{Access, Permission};
    use auth::settings::Auth;
    use auth::{Guard, HttpServices};

    let server =
        Server::start(
            |request| if says(request, "a") { Play::Answer(204, "") } else { Play::Answer(403, "") },
        );
    let services = HttpServices::open(&Default::default(), &settings(server.url("/"))).unwrap();
    let guard = Guard::open(&Auth::default()).unwrap();
    assert!(!guard.guards_topics());
    guard.set_http_services(services);
    assert!(guard.guards_topics() && guard.may_answer_later());
    let asker = Asker::default();
    let ask = |action, topic| {
        guard.authorize(WHO, action, topic, &mut || {
            let woken = asker.woken.clone();
            RetryAuthorize::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        })
    };
    for (topic, allowed) in [("a", true), ("b", false)] {
        let woken = asker.woken.load(Ordering::Relaxed);
        assert_eq!(ask(SUBSCRIBE, topic), None);
        until("the answer arrives", || asker.woken.load(Ordering::Relaxed) > woken);
        assert_eq!(ask(SUBSCRIBE, topic), Some(Permission { allowed, lasting: false }));
    }
    assert!(ask(Action::Receive, "a").is_some_and(|permission| permission.allowed));
    assert_eq!(
        guard.http_services().figures().map(|(name, figures)| (name, figures.requests)),
        [("http_auth", 0), ("http_acl", 2)]
    );
}
