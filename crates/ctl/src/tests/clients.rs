//! Commands `client` and `clients`.

use super::*;

#[test]
fn a_client_with_any_name_is_found() {
    let mock = Mock::always(Reply::json(&json!({
        "client_id": "a/b c", "connected": true, "address": "127.0.0.1:4", "version": "5.0", "durable": true,
        "connected_at": "2026-01-31T12:00:00Z", "keep_alive_s": 60, "queued_messages": 3, "queued_bytes": 2048,
        "connection": {
            "worker": 1, "receive_maximum": 10, "unsent_bytes": 0, "publisher_blocked": true, "mountpoint_usage": null,
            "user_usage": {
                "connections": 7, "sessions": 5, "session_bytes": 1024, "queued_bytes": 0, "retained_messages": 12,
                "retained_bytes": 3072,
            },
        },
        "session": {"expiry_s": null, "waiting_publishers": 2},
    })));
    let text = run(&mock.url, &["client", "a/b c"]).out();
    assert_eq!(mock.request().target, "/api/v1/clients/a%2Fb%20c");
    for part in ["a/b c", "127.0.0.1:4", "keep alive", "2.0 KiB", "CONNECTION", "blocked", "SESSION", "never"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let has = "its user has";
    assert!(text.contains(has) && !text.contains("its mountpoint has"), "{text}");
    for part in ["7 connections", "5 sessions (1.0 KiB)", "12 retained messages (3.0 KiB)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_session_is_shown_with_its_shard_and_its_owner() {
    let mut client = json!({
        "client_id": "c", "connected": true, "subscriptions": 2, "node": "n4", "owner": {"node": "n4", "connection": "0.3.1"},
        "connection": {"worker": 0},
        "session": {
            "shard": 7, "leader": "n2", "replicas": ["n1", "n2", "n3"], "epoch": 3, "inbound": 1, "inflight": 4,
            "queued_messages": 5, "queued_bytes": 2048, "expiry_s": null,
        },
    });
    let shown = |client: &Value| ctl(&Mock::always(Reply::json(client)), "session c").out();
    let text = shown(&client);
    for part in ["shard", "n2", "n1, n2, n3", "n4, connection 0.3.1", "epoch", "inbound", "5, 2.0 KiB"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    client["owner"] = Value::Null;
    assert!(shown(&client).contains("n4, reactor 0"));
    (client["connected"], client["connection"]) = (false.into(), Value::Null);
    assert!(shown(&client).contains("not connected"));
    client["session"] = Value::Null;
    assert!(shown(&client).contains("c has no durable session"));
}

#[test]
fn a_client_that_is_not_there_has_its_exit_code() {
    let mock = Mock::always(Reply::problem(404, "not-found", "no client ghost"));
    let outcome = ctl(&mock, "client ghost");
    assert_eq!((outcome.code(), outcome.error()), (4, "no client ghost".to_owned()));
    assert_eq!(ctl(&mock, "kick ghost").code(), 4);
}

#[test]
fn a_verb_after_the_client_is_explained() {
    let mock = Mock::always(Reply::empty());
    let outcome = ctl(&mock, "client ghost kick x");
    assert_eq!(outcome.code(), 2);
    assert!(outcome.error().contains("the verb comes first"));
}

#[test]
fn irreversible_actions_ask_first() {
    let mock =
        Mock::always(Reply::json(&json!({"connection_closed": false, "session_ended": true, "deleted": 7})));
    for arguments in ["kick c --session", "retained delete a/#", "config rollback 3"] {
        let outcome = ctl(&mock, arguments);
        assert_eq!(outcome.code(), 2, "{arguments}");
        assert!(outcome.error().contains("--yes"), "{}", outcome.error());
    }
    assert!(mock.requests().is_empty());
    assert!(ctl(&mock, "kick c --session --yes").out().contains("session ended"));
    assert_eq!(ctl(&mock, "--yes retained delete a/#").out(), "7 deleted\n");
    let targets: Vec<String> =
        mock.requests().into_iter().map(|r| format!("{} {}", r.method, r.target)).collect();
    assert_eq!(targets, ["DELETE /api/v1/clients/c?session=true", "DELETE /api/v1/retained?filter=a%2F%23"]);
}

/// Flags of a list have no effect before a verb; flags of every command do not count.
#[test]
fn flags_of_a_list_do_not_go_with_a_verb() {
    let mock = Mock::always(Reply::json(&json!({"level": "info"})));
    for arguments in
        ["retained --filter x get y", "log --follow level", "slow --limit 3 clear", "ban --all remove 1"]
    {
        assert_eq!(ctl(&mock, arguments).code(), 2, "{arguments}");
    }
    for arguments in
        ["log --json level", "log level --json", "--json log level", "log --timeout 4s level --json"]
    {
        assert_eq!(ctl(&mock, arguments).json()["level"], "info", "{arguments}");
    }
}
