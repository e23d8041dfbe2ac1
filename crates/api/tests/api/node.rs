//! `routes/node.rs` and `routes/health.rs`.

use crate::support::Server;

#[test]
fn a_node_says_what_it_is() {
    let server = Server::start();
    let node = server.get("/api/v1/node").is(200);
    assert_eq!(
        (&node["name"], &node["version"], &node["state"]),
        (&"test".into(), &"1.2.3".into(), &"ready".into())
    );
    assert_eq!(node["workers"], 2);
    assert_eq!(node["listeners"][0]["address"], server.mqtt.to_string());
    assert_eq!(node["http"], server.address.to_string());
    let nodes = server.get("/api/v1/nodes").is(200);
    assert_eq!((&nodes["items"][0]["pid"], &nodes["next"]), (&node["pid"], &serde_json::Value::Null));
}

#[test]
fn readiness_ends_before_the_node_does() {
    let server = Server::start();
    assert_eq!(server.get("/health/ready").is(200)["status"], "ready");
    server.stopping();
    assert_eq!(server.get("/health/ready").is(503)["status"], "stopping");
    assert_eq!(server.get("/health/live").is(200)["status"], "live");
}
