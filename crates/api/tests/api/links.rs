//! Links to other clusters.

use api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Server};

const LINKS: &str = "/api/v1/links/external";

#[test]
fn links_are_added_replaced_and_removed() {
    let server = Server::start();
    let settings = json!({"own_name": "berlin", "topics": "a/#", "export": "x\ny", "secret_file": "/s"});
    let put = || server.write("PUT", &format!("{LINKS}/rome"), Some(&settings));
    let added = put().is(201);
    assert_eq!(
        (&added["source"], &added["settings"], &added["topics"], &added["export"], &added["taking"]),
        (&json!("store"), &settings, &json!(["a/#"]), &json!(["x", "y"]), &json!([]))
    );
    put().is(200);
    let listed = server.get(LINKS).is(200);
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|link| &link["name"]).collect();
    assert_eq!(names, ["munich", "rome"]);
    let first = server.get(&format!("{LINKS}?limit=1")).is(200);
    let next = first["next"].as_str().unwrap();
    assert_eq!(server.get(&format!("{LINKS}?cursor={next}")).is(200)["items"][0]["name"], "rome");

    let refused = server.write("PUT", &format!("{LINKS}/munich"), Some(&settings));
    assert!(refused.problem(409, "conflict").contains("configuration file"));
    let refused = server.write("PUT", &format!("{LINKS}/x"), Some(&json!({"topics": "b"})));
    assert!(refused.problem(422, "invalid").starts_with("secret_file: "));

    let remove = |query: &str| server.write("DELETE", &format!("{LINKS}/rome{query}"), None);
    remove("?messages=burn").problem(400, "bad-request");
    remove("").is(204);
    assert!(server.links.ended.lock().unwrap().is_empty());
    remove("").problem(404, "not-found");
    // An earlier request has removed the link, and its sessions are still there.
    remove("?messages=delete").is(204);
    assert_eq!(*server.links.ended.lock().unwrap(), ["rome"]);
    let detail = server.get(&format!("{LINKS}/rome")).problem(404, "not-found");
    assert!(detail.contains("no link `rome`"), "{detail}");
}

#[test]
fn a_link_has_what_this_node_knows_about_both_directions() {
    let server = Server::start();
    let link = server.get(&format!("{LINKS}/munich")).is(200);
    let (taking, giving) = (&link["taking"][0], &link["giving"][0]);
    assert_eq!((&link["source"], &link["changed_at"]), (&json!("file"), &Value::Null));
    assert_eq!((&taking["origin"], &taking["filters_wanted"]), (&json!("munich"), &json!(3)));
    assert_eq!(taking["dropped"]["too_many_hops"], 4);
    assert_eq!((&giving["session"], &giving["queued_messages"]), (&json!("$link/munich"), &json!(9)));
    assert_eq!(link["refusal"]["why"], "the clock differs by 900 s");
    assert_eq!(server.get(LINKS).is(200)["items"][0], link);
}

#[test]
fn only_an_admin_changes_links_and_the_audit_log_has_the_settings() {
    let server = Server::with_keys(|_| ());
    let as_role = |role: Role, method: &str, body: Option<&str>| -> Answer {
        let token = format!("Bearer {}", server.token(role));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        server.request(method, &format!("{LINKS}/rome"), &headers, body)
    };
    let body = json!({"secret_file": "/s", "topics": "a/#"}).to_string();
    for role in [Role::Viewer, Role::Operator] {
        as_role(role, "PUT", Some(&body)).problem(403, "forbidden");
        as_role(role, "DELETE", None).problem(403, "forbidden");
    }
    as_role(Role::Admin, "PUT", Some(&body)).is(201);
    as_role(Role::Viewer, "GET", None).is(200);
    let token = format!("Bearer {}", server.token(Role::Admin));
    let audit = server.request("GET", "/api/v1/audit", &[("Authorization", &token)], None).is(200);
    let detail = audit["items"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("\"topics\":\"a/#\""), "{detail}");
}

#[test]
fn metrics_have_the_links_of_this_node() {
    let server = Server::start();
    let text = server.get("/metrics").text().to_owned();
    for line in [
        "meridian_cluster_link_connected{link=\"munich\",origin=\"munich\",direction=\"in\"} 1",
        "meridian_cluster_link_connected{link=\"munich\",origin=\"berlin\",direction=\"out\"} 0",
        "meridian_cluster_link_filters{link=\"munich\",origin=\"munich\",direction=\"in\"} 2",
        "meridian_cluster_link_dropped_total{link=\"munich\",origin=\"munich\",direction=\"in\",cause=\"too_many_hops\"} 4",
        "meridian_cluster_link_dropped_total{link=\"munich\",origin=\"berlin\",direction=\"out\",cause=\"queue\"} 6",
        "meridian_cluster_link_messages_total{link=\"munich\",origin=\"munich\"} 5",
        "meridian_cluster_link_queued_messages{link=\"munich\",origin=\"berlin\"} 9",
        "meridian_cluster_link_refused_connections_total{link=\"munich\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
}
