//! Command `routes`.

use super::*;

#[test]
fn nodes_are_listed_with_their_routes() {
    let outcome = ctl(&Mock::serve(|_| Reply::json(&cluster("n1", 4))), "routes --nodes");
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert!(
        lines[0].contains("DIGEST") && lines[3].contains("suspect") && lines[3].contains("cc"),
        "{}",
        outcome.out
    );
}

#[test]
fn two_nodes_that_know_the_same_do_not_differ() {
    let (here, there) =
        (Mock::always(Reply::json(&cluster("n1", 4))), Mock::always(Reply::json(&cluster("n1", 4))));
    let outcome = run(&here.url, &["routes", "--diff", &there.url]);
    assert_eq!(outcome.code(), 0);
    assert_eq!(outcome.out().matches("the same").count(), 3);
    assert_eq!((here.requests().len(), there.requests().len()), (1, 1));
}

#[test]
fn a_node_with_unindexed_routes_is_reported() {
    let mut full = cluster("n1", 4);
    full["routes_unindexed"] = 2.into();
    let (here, there) = (Mock::always(Reply::json(&cluster("n1", 4))), Mock::always(Reply::json(&full)));
    let outcome = run(&here.url, &["routes", "--diff", &there.url]);
    assert_eq!(outcome.code(), 1);
    assert!(outcome.error().contains("has no room in its routing index"), "{}", outcome.error());
}

#[test]
fn a_pending_change_is_waited_for() {
    let asked = std::sync::atomic::AtomicU64::new(3);
    let here = Mock::serve(move |_| {
        Reply::json(&cluster("n1", asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
    });
    let there = Mock::always(Reply::json(&cluster("n1", 4)));
    assert_eq!(run(&here.url, &["routes", "--diff", &there.url]).code(), 0);
    assert_eq!(here.requests().len(), 2);
}

#[test]
fn writers_whose_routes_differ_are_named() {
    let mut other = cluster("n1", 9);
    other["routes"][0]["digest"] = "bb".into();
    other["routes"][2]["incarnation"] = 8.into();
    other["routes"].as_array_mut().unwrap().push(json!({"node": "n4", "digest": "d"}));
    let here = Mock::always(Reply::json(&cluster("n1", 4)));
    let there = Mock::always(Reply::json(&other));
    let outcome = run(&here.url, &["routes", "--diff", &there.url]);
    assert_eq!(outcome.code(), 1);
    for part in [
        "DIFFERENT: aa here, bb there",
        "here: behind by 5",
        "here: of an earlier incarnation",
        "unknown here",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert!(outcome.error().contains("n1, n2, n3, n4"), "{}", outcome.error());
    let document: Value =
        serde_json::from_str(&run(&here.url, &["--json", "routes", "--diff", &there.url]).out).unwrap();
    assert_eq!((&document["differences"], &document["same"]), (&4.into(), &false.into()));
}

#[test]
fn routes_list_the_receivers() {
    let mock = Mock::serve(|request| {
        Reply::json(&match request.path() {
            "/api/v1/routes/match" => json!({"topic": "a/b", "truncated": true, "total": 1234, "receivers": [
                {"client_id": "c", "connected": true, "durable": false, "filters": ["a/#", "a/+"], "qos": 1, "share": null}]}),
            _ => {
                json!({"items": [{"filter": "a/#", "destinations": [{"kind": "client", "client_id": "c"}, {"kind": "shard", "shard": 3}]}], "truncated": false})
            }
        })
    });
    let outcome = ctl(&mock, "routes --match a/b");
    assert!(outcome.out.contains("a/# a/+"), "{}", outcome.out);
    assert!(outcome.notes.contains("of 1,234"), "{}", outcome.notes);
    assert!(ctl(&mock, "routes --prefix a").out().contains("client c, sessions of shard 3"));
    assert_eq!(ctl(&mock, "routes --match a/b --json").json()["receivers"][0]["client_id"], "c");
}
