//! Subscriptions: listed, made and removed on a client's behalf; routes, and the receivers of a message.

use mqtt::QoS;
use serde_json::{Value, json};

use super::client::With;
use super::fixture::Fixture;

fn filters(items: &[Value]) -> Vec<String> {
    let mut filters: Vec<_> = items.iter().map(|item| item["filter"].as_str().unwrap().to_owned()).collect();
    filters.sort();
    filters
}

#[test]
fn a_client_is_subscribed_and_unsubscribed_on_its_behalf() {
    let fixture = Fixture::start();
    let mut client = fixture.client("c");
    let wanted = json!({"filter": "a/+", "qos": 2, "no_local": true, "retain_as_published": true, "retain_handling": 2,
        "subscription_id": 17});
    let done = fixture.post("/api/v1/clients/c/subscriptions", wanted).expect(201);
    assert_eq!(done, json!({"filter": "a/+", "reason_code": 2, "reason": "granted QoS 2"}));
    let items = fixture.all("/api/v1/clients/c/subscriptions", 10);
    let expected = json!([{"filter": "a/+", "qos": 2, "no_local": true, "retain_as_published": true, "retain_handling": 2,
        "subscription_id": 17}]);
    assert_eq!(Value::from(items), expected);
    fixture.post("/api/v1/publish", json!({"topic": "a/b", "payload": "hello"})).expect(200);
    assert_eq!(client.message().payload, b"hello");

    let done = fixture.delete("/api/v1/clients/c/subscriptions?filter=a/%2B").expect(200);
    assert_eq!(done, json!({"filter": "a/+", "reason_code": 0, "reason": "success"}));
    let done = fixture.delete("/api/v1/clients/c/subscriptions?filter=a/%2B").expect(200);
    assert_eq!((&done["reason_code"], &done["reason"]), (&json!(17), &json!("no subscription existed")));
    let nobody = fixture.post("/api/v1/publish", json!({"topic": "a/b"})).expect(200);
    assert_eq!(nobody, json!({"reason_code": 16, "reason": "no matching subscribers"}));
}

#[test]
fn subscription_options_have_defaults() {
    let fixture = Fixture::start();
    let _client = fixture.client("c");
    let done = fixture.post("/api/v1/clients/c/subscriptions", json!({"filter": "a"})).expect(201);
    assert_eq!((&done["reason_code"], &done["reason"]), (&json!(1), &json!("granted QoS 1")));
    let item = fixture.get("/api/v1/clients/c/subscriptions").expect(200)["items"][0].clone();
    let expected = json!({"filter": "a", "qos": 1, "no_local": false, "retain_as_published": false, "retain_handling": 0,
        "subscription_id": null});
    assert_eq!(item, expected);
}

/// The client is not connected, so it cannot be notified.
#[test]
fn subscriptions_of_a_client_that_is_away_stay_as_they_are() {
    let fixture = Fixture::start();
    fixture.absent("away", &["a"]);
    let detail = fixture.post("/api/v1/clients/away/subscriptions", json!({"filter": "b"})).problem(409);
    assert!(detail.contains("not connected"), "{detail}");
    fixture.delete("/api/v1/clients/away/subscriptions?filter=a").problem(409);
    assert_eq!(filters(&fixture.all("/api/v1/clients/away/subscriptions", 10)), ["a"]);
}

#[test]
fn filters_choose_subscriptions() {
    let fixture = Fixture::start();
    let mut here = fixture.client("here");
    here.subscribe("a/b", QoS::AtLeastOnce);
    here.subscribe("a/#", QoS::AtMostOnce);
    here.subscribe("$share/team/a/b", QoS::AtMostOnce);
    fixture.absent("away", &["a/+", "$share/other/c"]);
    #[track_caller]
    fn chosen(fixture: &Fixture, query: &str, expected: &[&str]) {
        for limit in [1, 100] {
            let items = fixture.all(&format!("/api/v1/subscriptions?{query}"), limit);
            assert_eq!(filters(&items), expected, "{query}");
        }
    }
    let chosen = |query: &str, expected: &[&str]| chosen(&fixture, query, expected);
    chosen("filter=a/b", &["$share/team/a/b", "a/b"]);
    chosen("filter=a/%23", &["a/#"]);
    chosen("match=a/b", &["$share/team/a/b", "a/#", "a/+", "a/b"]);
    chosen("share=team", &["$share/team/a/b"]);
    chosen("share=nobody", &[]);
    chosen("client_id=away", &["$share/other/c", "a/+"]);
    chosen("client_id=away&match=c", &["$share/other/c"]);
    chosen("client_id=here&filter=a/b&share=team", &["$share/team/a/b"]);
    chosen("client_id=nobody", &[]);
    let items = fixture.all("/api/v1/subscriptions?filter=a/%2B", 10);
    assert_eq!((&items[0]["client_id"], &items[0]["connected"]), (&json!("away"), &json!(false)));
}

#[test]
fn routes_show_where_messages_go() {
    let fixture = Fixture::start();
    let mut here = fixture.client("here");
    for filter in ["a/1", "a/2", "b", "$share/team/s"] {
        here.subscribe(filter, QoS::AtLeastOnce);
    }
    fixture.absent("away", &["a/1"]);
    let routes = fixture.get("/api/v1/routes").expect(200);
    assert_eq!(filters(routes["items"].as_array().unwrap()), ["a/1", "a/2", "b", "s"]);
    assert_eq!((&routes["truncated"], &routes["next"]), (&json!(false), &Value::Null));

    let one = fixture.get("/api/v1/routes?filter=a/1").expect(200);
    let mut kinds: Vec<_> =
        one["items"][0]["destinations"].as_array().unwrap().iter().map(|to| to["kind"].to_string()).collect();
    kinds.sort();
    assert_eq!(kinds, ["\"client\"", "\"shard\""]);
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    let group = fixture.get("/api/v1/routes?filter=s").expect(200);
    assert_eq!(group["items"][0]["destinations"][0]["kind"], "shard_groups");

    let some = fixture.get("/api/v1/routes?prefix=a/&limit=1").expect(200);
    assert_eq!((some["items"].as_array().unwrap().len(), &some["truncated"]), (1, &json!(true)));
    assert_eq!(
        filters(fixture.get("/api/v1/routes?prefix=a/").expect(200)["items"].as_array().unwrap()),
        ["a/1", "a/2"]
    );
    assert_eq!(fixture.get("/api/v1/routes?filter=none").expect(200)["items"], json!([]));
    assert_eq!(fixture.get("/api/v1/routes?filter=b&prefix=a").expect(200)["items"], json!([]));
}

#[test]
fn receivers_of_a_message_are_listed_before_it_is_sent() {
    let fixture = Fixture::start();
    let mut here = fixture.client_with("here", With { expiry: 60, ..With::default() });
    here.subscribe("a/#", QoS::AtMostOnce);
    here.subscribe("a/b", QoS::AtLeastOnce);
    let mut ephemeral = fixture.client("ephemeral");
    ephemeral.subscribe("+/b", QoS::ExactlyOnce);
    let mut member = fixture.client("member");
    member.subscribe("$share/team/a/b", QoS::AtLeastOnce);
    fixture.absent("away", &["a/b"]);
    fixture.absent("elsewhere", &["c"]);

    let found = fixture.get("/api/v1/routes/match?topic=a/b").expect(200);
    assert_eq!(
        (&found["topic"], &found["total"], &found["truncated"]),
        (&json!("a/b"), &json!(4), &json!(false))
    );
    let find = |name: &str| {
        let receivers = found["receivers"].as_array().unwrap();
        receivers
            .iter()
            .find(|receiver| receiver["client_id"] == name)
            .unwrap_or_else(|| panic!("{name}: {found}"))
            .clone()
    };
    let here = find("here");
    let mut matching: Vec<_> = here["filters"].as_array().unwrap().iter().map(Value::to_string).collect();
    matching.sort();
    assert_eq!(matching, ["\"a/#\"", "\"a/b\""]);
    assert_eq!((&here["connected"], &here["durable"], &here["qos"]), (&json!(true), &json!(true), &json!(1)));
    let ephemeral = find("ephemeral");
    assert_eq!(
        (&ephemeral["durable"], &ephemeral["qos"], &ephemeral["share"]),
        (&json!(false), &json!(2), &Value::Null)
    );
    assert_eq!(find("member")["share"], "team");
    assert_eq!((&find("away")["connected"], &find("away")["qos"]), (&json!(false), &json!(2)));

    let some = fixture.get("/api/v1/routes/match?topic=a/b&limit=1").expect(200);
    assert_eq!((some["receivers"].as_array().unwrap().len(), &some["truncated"]), (1, &json!(true)));
    assert_eq!(fixture.get("/api/v1/routes/match?topic=nobody").expect(200)["total"], 0);
}
