//! Lists on several pages.

use super::*;

/// Serves ten clients on pages of four, whose cursors are numbers; some pages are empty.
fn pages(request: &Request) -> Reply {
    let ask = |name: &str| {
        let query = request.target.split_once('?').map_or("", |(_, query)| query);
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    let from: usize = ask("cursor").map_or(0, |cursor| cursor.parse().unwrap());
    let limit: usize = ask("limit").unwrap().parse().unwrap();
    // An empty page: the search took too long.
    if from == 4 && limit > 0 {
        return Reply::json(&json!({"items": [], "next": "5"}));
    }
    let items: Vec<Value> = (from..10)
        .take(limit.min(4))
        .map(|i| json!({"client_id": format!("c{i}"), "connected": i % 2 == 0, "durable": i % 3 == 0, "version": "5.0", "queued_messages": i * 1000}))
        .collect();
    let end = from + items.len();
    let next = (end < 10).then(|| end.to_string());
    Reply::json(&json!({"items": items, "next": next}))
}

#[test]
fn a_list_goes_on_until_the_limit() {
    let mock = Mock::serve(pages);
    let outcome = ctl(&mock, "clients --limit 6");
    let text = outcome.out;
    assert_eq!(text.lines().count(), 7, "{text}");
    assert!(text.starts_with("CLIENT"), "{text}");
    assert!(text.contains("c6") && text.contains("6,000") && !text.contains("c7"), "{text}");
    assert!(outcome.notes.contains("the first 6 clients"), "{}", outcome.notes);
    let asked: Vec<String> = mock.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(
        asked,
        ["/api/v1/clients?limit=6", "/api/v1/clients?limit=2&cursor=4", "/api/v1/clients?limit=2&cursor=5"]
    );
}

#[test]
fn a_script_gets_one_document_and_can_go_on() {
    let mock = Mock::serve(pages);
    let document = ctl(&mock, "--json clients --limit 2").json();
    assert_eq!(document["items"].as_array().unwrap().len(), 2);
    assert_eq!(document["next"], "2");
    let document = ctl(&mock, "clients --json --limit 100 --cursor 5").json();
    assert_eq!(document["items"][0]["client_id"], "c5");
    assert_eq!(document["next"], Value::Null);
}

#[test]
fn all_items_are_printed_one_per_line() {
    let mock = Mock::serve(pages);
    let lines = ctl(&mock, "clients --all --json").lines();
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[8]["client_id"], "c9");
    let table = ctl(&mock, "clients --all").out();
    assert_eq!(table.lines().count(), 10, "{table}");
    assert_eq!(table.matches("CLIENT").count(), 1);
}

#[test]
fn nodes_that_did_not_answer_are_named_once() {
    let mock = Mock::serve(|request| match request.target.contains("cursor") {
        false => {
            Reply::json(&json!({"items": [{"client_id": "a", "node": "n1"}], "next": "1", "missing": ["n3"]}))
        }
        true => Reply::json(
            &json!({"items": [{"client_id": "b", "node": "n2"}], "next": null, "missing": ["n3", "n4"]}),
        ),
    });
    let outcome = ctl(&mock, "clients");
    assert!(outcome.out.contains("n1") && outcome.out.contains("n2"), "{}", outcome.out);
    assert_eq!(outcome.notes.matches("no answer of n3, n4").count(), 1, "{}", outcome.notes);
    let document = ctl(&mock, "clients --json").json();
    assert_eq!(document["missing"], json!(["n3", "n4"]));
}

#[test]
fn one_node_is_asked_by_way_of_another() {
    let mock = Mock::serve(pages);
    ctl(&mock, "clients --limit 2 --node n2");
    assert_eq!(mock.request().target, "/api/v1/clients?limit=2&node=n2");
    let mock = Mock::always(Reply::json(&json!({"connection_closed": true, "nodes": ["n2"]})));
    let outcome = ctl(&mock, "kick c --node n2");
    assert_eq!(mock.request().target, "/api/v1/clients/c?node=n2");
    assert_eq!(outcome.out, "c: connection closed (node n2)\n");
}

#[test]
fn filters_reach_the_node() {
    let mock = Mock::always(Reply::json(&json!({"items": [], "next": null})));
    let arguments = "clients --search a/b --username u --address 10.0.0.0/8 --offline --version 3.1.1 --min-queued 5 --min-inflight 2";
    let outcome = ctl(&mock, arguments);
    assert_eq!(outcome.notes, "no clients\n");
    assert_eq!(
        mock.request().target,
        "/api/v1/clients?search=a%2Fb&username=u&address=10.0.0.0%2F8&connected=false&version=3.1.1&min_queued=5&min_inflight=2&limit=100"
    );
}

#[test]
fn a_list_without_end_is_an_error() {
    let mock = Mock::always(Reply::json(&json!({"items": [{"client_id": "c"}], "next": "again"})));
    let outcome = ctl(&mock, "clients --all --json");
    assert_eq!(outcome.code(), 3);
    assert!(outcome.error().contains("does not end"), "{}", outcome.error());
}
