//! Changes that the cores of a cluster do not agree to.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use api::{KeyError, KeyFile, NewKey, Outcome, Role};
use configstore::{
    ClusterState, ProposalCallback, ProposalFailed, Proposer, RecordUpdate, Records, ReplicatedStore,
};
use serde_json::{Value, json};

use super::eventually;
use super::fixture::Fixture;

/// Cores without a majority.
struct Without(ProposalFailed);

impl Proposer for Without {
    fn propose(&self, _: Vec<u8>, callback: ProposalCallback) {
        callback(Err(self.0.clone()));
    }

    fn cluster_state(&self) -> ClusterState {
        ClusterState { founded: 1, revision: Some(1), leads: false }
    }
}

const WHY: &str = "no majority of the cores has answered (meridian ctl cluster status)";

fn changes() -> [(&'static str, &'static str, Value); 8] {
    [
        ("POST", "/api/v1/users", json!({"name": "ann", "password_hash": HASH})),
        ("POST", "/api/v1/users/import", json!({"users": [{"name": "ann", "password_hash": HASH}]})),
        ("POST", "/api/v1/rules", json!({"rule": "allow everyone publish a"})),
        ("PUT", "/api/v1/rules", json!({"rules": [{"rule": "allow everyone publish a"}]})),
        ("POST", "/api/v1/bans", json!({"kind": "client_id", "value": "c"})),
        ("POST", "/api/v1/keys", json!({"name": "ops", "role": "admin"})),
        ("DELETE", "/api/v1/keys/ops", Value::Null),
        ("DELETE", "/api/v1/users/ann", Value::Null),
    ]
}

const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0$ZmlmdGVlbmZpZnRlZW5maWZ0ZWVuZmlmdGVlbg";

fn check(outcome_unknown: bool, slug: &str, words: &str) {
    let fixture = Fixture::in_cluster(Arc::new(Without(ProposalFailed { why: WHY.into(), outcome_unknown })));
    for (method, path, body) in changes() {
        let answer = fixture.http().request(method, path, Some(body).filter(|body| !body.is_null()));
        assert!(answer.head.contains("retry-after: 1"), "{path}: {} {}", answer.head, answer.body);
        assert!(answer.body.contains(&format!("urn:meridian:problem:{slug}")), "{path}: {}", answer.body);
        let detail = answer.problem(503);
        assert!(detail.contains(words) && detail.contains(WHY), "{path}: {detail}");
    }
}

#[test]
fn a_change_that_the_cores_refuse_is_unavailable_and_says_that_nothing_has_changed() {
    check(false, "not-committed", "nothing has changed");
}

#[test]
fn a_change_with_an_unknown_result_is_unavailable_and_says_to_look_first() {
    check(true, "undecided", "look before you try again");
}

/// Cores that agree while they are up.
#[derive(Default)]
struct Cores {
    are_there: AtomicBool,
    refused: AtomicUsize,
    records: Arc<Mutex<Records>>,
    copy: OnceLock<Weak<ReplicatedStore>>,
}

impl Proposer for Cores {
    fn propose(&self, batch: Vec<u8>, callback: ProposalCallback) {
        if !self.are_there.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return callback(Err(ProposalFailed { why: WHY.into(), outcome_unknown: false }));
        }
        callback(Ok(self.records.lock().unwrap().apply(&batch)));
        let (records, copy) = (self.records.clone(), self.copy.get().and_then(Weak::upgrade).unwrap());
        // The change waits for the copy in the store. A later update is never an older one.
        std::thread::spawn(move || {
            let records = records.lock().unwrap();
            copy.take(&RecordUpdate::Whole { founded: 1, bytes: records.whole().into() });
        });
    }

    fn cluster_state(&self) -> ClusterState {
        ClusterState { founded: 1, revision: Some(self.records.lock().unwrap().revision()), leads: true }
    }
}

/// `meridian key` needs no key, and no more than one node.
#[test]
fn a_key_request_on_a_node_of_a_cluster_waits_for_the_cores_and_for_the_node() {
    let cores = Arc::new(Cores::default());
    let mut fixture = Fixture::attached(&|config_store| {
        cores.copy.set(Arc::downgrade(config_store)).unwrap();
        config_store.attach(cores.clone());
    });
    let set = |are_there| cores.are_there.store(are_there, Ordering::Relaxed);
    set(true);
    fixture.post("/api/v1/keys", json!({"name": "lost", "role": "admin"})).expect(201);
    fixture.get("/api/v1/node").problem(401);

    set(false);
    let file = KeyFile::in_directory(fixture.data_dir());
    let new = |name: &str| NewKey { name: name.into(), role: Role::Admin, expires_in: None };
    let adding = {
        let (file, new) = (file.clone(), new("rescue"));
        std::thread::spawn(move || file.add(&new))
    };
    eventually("it is tried again", || (cores.refused.load(Ordering::Relaxed) > 1).then_some(()));
    assert!(file.has_pending_key());
    set(true);
    let (_, token, outcome) = adding.join().unwrap().unwrap();
    assert_eq!(outcome, Outcome::Done);
    assert!(cores.records.lock().unwrap().get("keys", "rescue").is_some());
    let audit = fixture.as_key(&token).request("GET", "/api/v1/audit", None).expect(200);
    assert_eq!(audit["items"][0]["by"], "meridian key");

    // The node is stopped, and no other process may change its copy.
    fixture.stop_http();
    let outcome = file.remove("lost").unwrap();
    assert!(matches!(outcome, Outcome::Pending { runs: false, .. }), "{outcome:?}");
    assert!(!file.has_pending_key());
    assert!(matches!(file.add(&new("more")), Err(KeyError::Pending(_))));
}
