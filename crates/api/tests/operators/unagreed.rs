//! Changes that the cores of a cluster do not agree to.

use std::sync::Arc;

use registry::{Agree, Known, Told, Unagreed};
use serde_json::{Value, json};

use crate::world::World;

/// Cores without a majority.
struct Without(Unagreed);

impl Agree for Without {
    fn propose(&self, _: Vec<u8>, told: Told) {
        told(Err(self.0.clone()));
    }

    fn known(&self) -> Known {
        Known { founded: 1, revision: Some(1), leads: false }
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

fn check(may_hold: bool, slug: &str, words: &str) {
    let world = World::in_cluster(Arc::new(Without(Unagreed { why: WHY.into(), may_hold })));
    for (method, path, body) in changes() {
        let answer = world.http().request(method, path, Some(body).filter(|body| !body.is_null()));
        assert!(answer.head.contains("retry-after: 1"), "{path}: {} {}", answer.head, answer.body);
        assert!(answer.body.contains(&format!("urn:meridian:problem:{slug}")), "{path}: {}", answer.body);
        let detail = answer.problem(503);
        assert!(detail.contains(words) && detail.contains(WHY), "{path}: {detail}");
    }
}

#[test]
fn a_change_that_the_cores_refuse_is_unavailable_and_says_that_nothing_has_changed() {
    check(false, "not-agreed", "nothing has changed");
}

#[test]
fn a_change_that_nobody_knows_of_is_unavailable_and_says_to_look_first() {
    check(true, "undecided", "look before you try again");
}
