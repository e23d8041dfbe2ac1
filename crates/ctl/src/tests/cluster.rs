//! Commands `cluster` and `links`.

use super::*;

#[test]
fn the_cluster_is_shown_with_all_alarms_and_links_with_those_of_links() {
    let mock = Mock::serve(|request| {
        Reply::json(&if request.path() == "/api/v1/alarms" { alarms() } else { cluster("n1", 4) })
    });
    let notes = ctl(&mock, "cluster").notes;
    assert_eq!(
        notes,
        "! n3 is dead: start it again\n! n4 (10.0.0.4:7883): silent for 12s; no route\\u{1b}\n! there is no \
         API key\n! links do not use BBR\n"
    );
    let notes = ctl(&mock, "links").notes;
    assert_eq!(notes.lines().count(), 2, "{notes}");
    assert_eq!(mock.requests().iter().filter(|request| request.path() == "/api/v1/alarms").count(), 2);
}

#[test]
fn a_node_of_an_earlier_version_has_no_list_of_alarms_and_is_shown_all_the_same() {
    let mock = Mock::serve(|request| match request.path() {
        "/api/v1/alarms" => Reply::problem(404, "not-found", "there is no such path"),
        _ => Reply::json(&cluster("n1", 4)),
    });
    let outcome = ctl(&mock, "cluster");
    assert_eq!((outcome.code(), &outcome.notes[..]), (0, ""));
}

#[test]
fn links_are_a_line_each() {
    let mock = Mock::serve(|_| Reply::json(&cluster("n1", 4)));
    let outcome = ctl(&mock, "links");
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", outcome.out);
    for part in ["n2", "core", "up", "1m", "0.25ms", "4/4", "2.0 KiB", "0.50 %", "assured 1.5 KiB (1.5s)"] {
        assert!(lines[1].contains(part), "{part}: {}", outcome.out);
    }
    assert!(lines[2].contains("suspect") && lines[2].contains("south"), "{}", outcome.out);
    assert_eq!(ctl(&mock, "links --json").json()["items"][1]["node"], "n3");
}

#[test]
fn a_clock_that_differs_is_a_column_of_links() {
    let with = |n2: f64| {
        let mock = Mock::serve(move |_| {
            let mut view = cluster("n1", 4);
            view["links"][0]["clock_ahead_s"] = n2.into();
            Reply::json(&view)
        });
        ctl(&mock, "links").out
    };
    let links = with(-3600.5);
    let cell = |line: usize| links.lines().nth(line).unwrap().contains(" -1h ");
    assert!(cell(1) && !cell(2) && links.contains("CLOCK"), "{links}");
    let links = with(0.25);
    assert!(links.contains("+250ms"), "{links}");
}

#[test]
fn the_cluster_is_shown_in_short() {
    let mock = Mock::serve(|_| Reply::json(&cluster("n1", 4)));
    let outcome = ctl(&mock, "cluster");
    for part in [
        "n1 (replicant, region north)",
        "core n2",
        "no: publishers",
        "1 of 2 reached, a majority is 2",
        "12 filters",
        "3 wait",
        "2,000 of QoS 0",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert_eq!(ctl(&mock, "cluster --json").json()["attached_to"], "n2");
    let alone = Mock::always(Reply::problem(404, "not-found", "cluster.listen is not set"));
    let outcome = ctl(&alone, "cluster");
    assert_eq!(outcome.code(), 4);
    assert!(outcome.error().contains("cluster.listen"), "{}", outcome.error());
}

#[test]
fn the_shards_are_shown_with_leader_replicas_and_change() {
    let mut view = replicated(true);
    view["shards"] = Value::Null;
    let led = json!({
        "shard": 0, "sessions": 1200, "queued_messages": 5, "retained_messages": 7,
        "replicas": [{"node": "n1", "behind": 4000, "silent_s": 0.1}, {"node": "n3", "behind": 100, "silent_s": 2}],
    });
    let nodes = json!({"items": [
        {"name": "n1", "cluster": null},
        {"name": "n2", "cluster": {"shards": [led]}},
        {"name": "n3", "cluster": {"shards": [{"shard": 0}]}},
    ]});
    let shown = |view: &Value, line: &str| {
        let (view, nodes) = (view.clone(), nodes.clone());
        ctl(
            &Mock::serve(move |request| {
                Reply::json(if request.path() == "/api/v1/nodes" { &nodes } else { &view })
            }),
            line,
        )
        .out
    };
    assert!(shown(&view, "cluster shards").contains("cluster.replicas = 0"));
    assert!(!shown(&view, "cluster").contains("shards "));
    view["shards"] = json!({"replicas": 3, "index": 9, "items": [
        {"shard": 0, "leader": "n2", "replicas": ["n1", "n2"], "joining": null, "leaving": null},
        {"shard": 1, "leader": null, "replicas": ["n1", "n3"], "joining": "n2", "leaving": "n3"},
    ]});
    let out = shown(&view, "cluster shards");
    let words = |line: usize| out.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
    let columns = ["SHARD", "LEADER", "REPLICAS", "BEHIND", "SESSIONS", "QUEUED", "RETAINED", "CHANGE"];
    assert_eq!(words(0), columns);
    assert_eq!(words(1), ["0", "n2", "n1,", "n2", "n1", "by", "4,000", "1,200", "5", "7", "-"]);
    assert_eq!(words(2), ["1", "-", "n1,", "n3", "-", "-", "-", "-", "n2", "joins,", "n3", "leaves"]);
    let document: Value = serde_json::from_str(&shown(&view, "cluster shards --json")).unwrap();
    assert_eq!(document["items"][0]["figures"]["sessions"], 1200);
    assert!(document["items"][1]["figures"].is_null());
    let status = shown(&view, "cluster");
    assert!(status.contains("2: 1 have a leader, 1 change; 3 replicas each"), "{status}");
}

#[test]
fn the_members_are_shown_with_their_leader() {
    let mock = Mock::serve(|_| Reply::json(&replicated(true)));
    let outcome = ctl(&mock, "cluster status");
    for part in [
        "yes: n2 leads since term 1,234; 3 vote, a majority is 2; change 40 of 41",
        "3: 2 alive, 0 suspect, 1 dead",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    let row = |node: &str| {
        let line = outcome.out.lines().find(|line| line.starts_with(&format!("{node} ")));
        line.unwrap_or_else(|| panic!("{node}: {}", outcome.out)).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("NODE"), ["NODE", "ROLE", "REGION", "ADDRESS", "STATE", "VOTE", "INCARNATION"]);
    assert_eq!(row("n1"), ["n1", "core", "-", "n1:7883", "alive", "no", "7"]);
    assert_eq!(row("n2"), ["n2", "core", "-", "n2:7883", "alive", "leads", "7"]);
    assert_eq!(row("n3"), ["n3", "core", "-", "n3:7883", "dead", "votes", "7"]);
    assert_eq!(ctl(&mock, "cluster").out, outcome.out, "without a verb it is the same");
    let by_another = Mock::serve(|_| {
        let mut view = replicated(true);
        view["membership"]["replica"]["leader_via"] = "n3".into();
        Reply::json(&view)
    });
    let outcome = ctl(&by_another, "cluster status");
    assert!(outcome.out.contains("n2 leads, reached through n3 since"), "{}", outcome.out);
}

#[test]
fn dead_nodes_are_not_suspect_and_leases_are_named() {
    let mock = Mock::serve(|_| {
        let mut view = replicated(true);
        view["links"][1]["state"] = "dead".into();
        view["acknowledging"] = true.into();
        view["lease_s"] = 1.5.into();
        view["lease_granted_by"] = json!([{"node": "n2", "left_s": 1.5}, {"node": "n4", "left_s": 1.6}]);
        view["leases_granted"] = json!([{"node": "n5", "left_s": 2.0}]);
        Reply::json(&view)
    });
    let out = ctl(&mock, "cluster").out;
    for part in ["3: 2 up, 1 dead (n3)", "by leases of n2, n4, for 1.5s", "n5"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains("1 suspect"), "{out}");
}

#[test]
fn a_node_without_a_majority_shows_the_last_known_leader_and_members() {
    let mock = Mock::serve(|_| {
        let mut view = replicated(false);
        view["membership"]["stale"] = true.into();
        Reply::json(&view)
    });
    let out = ctl(&mock, "cluster").out;
    for part in [
        "NO: n2 led, as last known, since",
        "3: 2 alive, 0 suspect, 1 dead (as last known)",
        "alive (as last known)  led (as last known)",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let mock = Mock::serve(|_| {
        let mut view = replicated(false);
        view["membership"]["stale"] = true.into();
        view["membership"]["replica"] = Value::Null;
        Reply::json(&view)
    });
    assert!(ctl(&mock, "cluster").out.contains("NO: this node reaches no majority of cores"));
}

#[test]
fn a_node_that_is_no_member_shows_the_reason() {
    let outcome = ctl(&Mock::serve(|_| Reply::json(&replicated(false))), "cluster status");
    assert!(outcome.out.contains("NO: n2 led"), "{}", outcome.out);
    let waiting = Mock::serve(|_| {
        let mut view = replicated(false);
        view["membership"]["waits_for"] = "2 of 3 cores have met".into();
        view["membership"]["members"] = json!([]);
        Reply::json(&view)
    });
    let outcome = ctl(&waiting, "cluster status");
    assert!(outcome.out.contains("2 of 3 cores have met"), "{}", outcome.out);
    assert!(!outcome.out.contains("INCARNATION"), "{}", outcome.out);
}

#[test]
fn a_node_is_removed_after_confirmation() {
    let mock = Mock::always(Reply::empty());
    let outcome = ctl(&mock, "cluster remove n/3");
    assert_eq!((outcome.code(), mock.requests().len()), (2, 0), "nobody can be asked");
    assert!(outcome.error().contains("n/3") && outcome.error().contains("--yes"), "{}", outcome.error());
    let outcome = ctl(&mock, "--yes cluster remove n/3");
    assert_eq!(outcome.out(), "node n/3 is removed\n");
    let requests = mock.requests();
    assert_eq!((&requests[0].method[..], requests[0].path()), ("DELETE", "/api/v1/cluster/nodes/n%2F3"));
    assert_eq!(requests[0].target, "/api/v1/cluster/nodes/n%2F3", "it is the node that is asked who does it");
    let alive = Mock::always(Reply::problem(409, "conflict", "node `n2` is alive: stop it first"));
    let outcome = ctl(&alive, "--yes cluster remove n2");
    assert!(outcome.code() != 0 && outcome.error().contains("stop it first"), "{}", outcome.error());
}

#[test]
fn a_node_leaves_after_confirmation_and_the_consequence_is_shown() {
    let mock = Mock::serve(|request| match request.method.as_str() {
        "GET" => Reply::json(&replicated(true)),
        _ => Reply::empty(),
    });
    let outcome = ctl(&mock, "cluster leave");
    assert_eq!(outcome.code(), 2, "nobody can be asked");
    assert!(
        outcome.error().contains("Stop node n1") && outcome.error().contains("--yes"),
        "{}",
        outcome.error()
    );
    // The consequence of a core's leave depends on the number of cores; for a replicant there is none.
    for (role, cores, meaning) in [
        ("core", 2, "One core is left"),
        ("core", 3, "Two cores are left"),
        ("core", 4, ""),
        ("replicant", 2, ""),
    ] {
        let mock = Mock::serve(move |_| {
            let member = json!({"node": "n", "role": "core", "state": "alive"});
            Reply::json(&json!({"node": "n1", "role": role, "membership": {"members": vec![member; cores]}}))
        });
        let asked = ctl(&mock, "cluster leave").error();
        let expected = format!(
            "and remove it from the cluster?{}",
            if meaning.is_empty() { String::new() } else { format!(" {meaning}") }
        );
        assert!(asked.contains(&expected), "{asked}");
        assert_eq!(asked.contains("left then"), !meaning.is_empty(), "{asked}");
    }
    let outcome = ctl(&mock, "--yes cluster leave --discard-sessions");
    assert!(outcome.out().contains("node n1 stops and leaves"));
    let last = mock.requests().remove(2);
    assert_eq!((&last.method[..], last.path()), ("POST", "/api/v1/cluster/leave"));
    assert_eq!(last.json(), json!({"discard_sessions": true}));
}

#[test]
fn an_address_that_cannot_be_one_is_not_sent() {
    for (address, says) in
        [("http://h:1", "a scheme is not allowed: write h:1"), ("h", "write h:PORT"), ("[::1", "brackets")]
    {
        let error =
            Line::try_parse_from(["ctl", "cluster", "join", "a:1", address]).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn changes_of_a_cluster_are_sent_to_the_node() {
    let cases = [
        ("cluster transfer n2", "PUT", "/api/v1/cluster/leader", json!({"node": "n2"}), "node n2 leads"),
        (
            "cluster join h:1 i:2",
            "POST",
            "/api/v1/cluster/join",
            json!({"addresses": ["h:1", "i:2"]}),
            "connects there",
        ),
        ("cluster balance", "POST", "/api/v1/cluster/balance", Value::Null, "cluster nodes"),
    ];
    for (line, method, path, body, said) in cases {
        let mock = Mock::always(Reply::empty());
        assert!(ctl(&mock, line).out().contains(said), "{line}");
        let request = mock.requests().pop().unwrap();
        assert_eq!((&request.method[..], request.path()), (method, path), "{line}");
        assert_eq!(if body.is_null() { Value::Null } else { request.json() }, body, "{line}");
    }
}

#[test]
fn nodes_of_a_cluster_are_listed_with_their_core() {
    let mock = Mock::always(Reply::json(&json!({
        "items": [{"name": "n1", "state": "ready", "connections": 4, "cluster": {"role": "replicant", "attached_to": "n2"}}],
        "next": null, "missing": ["n3"]})));
    let outcome = ctl(&mock, "cluster nodes");
    assert!(outcome.out.contains("ATTACHED TO") && outcome.out.contains("n2"), "{}", outcome.out);
    assert!(outcome.out.contains("no answer"), "{}", outcome.out);
    assert_eq!(mock.requests()[0].path(), "/api/v1/nodes");
    assert_eq!(ctl(&mock, "--json cluster nodes").json()["items"][0]["name"], "n1");
}

#[test]
fn a_rebalance_shows_what_the_node_has_computed() {
    let answer = |keep: Value| {
        json!({ "mean": 170, "tolerance_percent": 10, "nodes": [
            { "node": "n1", "connections": 300, "accepts_clients": true, "keep": keep },
            { "node": "n2", "connections": 40, "accepts_clients": true, "keep": null },
            { "node": "n3", "connections": null, "accepts_clients": false, "keep": null },
        ] })
    };
    let mock = Mock::always(Reply::json(&answer(170.into())));
    let outcome = ctl(&mock, "cluster rebalance --rate 20");
    assert_eq!(outcome.notes, "no answer from n3: it does not count\n");
    assert!(outcome.out().contains("nodes that have too many: n1 to 170; "));
    let sent =
        json!({ "tolerance_percent": 10, "dry_run": false, "pace": { "within_s": 300, "rate": 20.0 } });
    assert_eq!(mock.requests()[0].json(), sent);

    assert_eq!(ctl(&mock, "cluster rebalance --dry-run").out(), "clients would leave: n1 to 170\n");
    assert_eq!(mock.requests()[1].json()["dry_run"], true);
    assert_eq!(ctl(&mock, "cluster rebalance --json").json()["nodes"][0]["keep"], 170);
    let even = Mock::always(Reply::json(&answer(Value::Null)));
    let outcome = ctl(&even, "cluster rebalance --tolerance 20");
    assert_eq!(outcome.out(), "no node has more than 20 % above the mean\n");
}

#[test]
fn a_drain_names_the_nodes_that_get_its_clients() {
    let mock = Mock::serve(|request| match &request.method[..] {
        "PUT" => Reply::empty(),
        _ => Reply::json(
            &json!({ "items": [{ "node": "n2", "kind": "drain", "to": ["n3", "n4"], "state": "waiting" }] }),
        ),
    });
    let outcome = ctl(&mock, "cluster drain n2 --to n3,n4 --wait 0s --detach");
    assert_eq!(outcome.code(), 0, "{}", outcome.notes);
    let body = mock.requests()[0].json();
    assert_eq!(body, json!({ "within_s": 300, "wait_s": 0, "to": ["n3", "n4"] }));
    let shown = ctl(&mock, "cluster drains").out;
    assert!(shown.contains("n3, n4"), "{shown}");
}
