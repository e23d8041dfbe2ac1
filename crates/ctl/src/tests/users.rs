//! Commands `users`, `rules`, `keys` and `accounts`.

use super::*;

#[test]
fn a_new_key_is_its_token_and_nothing_else() {
    let mock = Mock::always(Reply::json(
        &json!({"name": "g", "role": "viewer", "expires_at": null, "token": "mrd_x"}),
    ));
    let outcome = ctl(&mock, "keys add g --role viewer --expires 1h");
    assert_eq!(outcome.out, "mrd_x\n");
    assert!(outcome.notes.contains("not shown again"));
    assert_eq!(mock.request().json(), json!({"name": "g", "role": "viewer", "expires_in_s": 3600}));
}

#[test]
fn a_password_comes_from_a_file_and_never_from_the_command_line() {
    let path = std::env::temp_dir().join(format!("meridian-ctl-password-{}", std::process::id()));
    std::fs::write(&path, "hunter2\nmore\n").unwrap();
    let file = path.to_str().unwrap();
    let mock = Mock::always(Reply::json(&json!({"name": "a"})));
    let outcome =
        ctl(&mock, &format!("users add a --password-file {file} --scram --tenant t --attribute k=v=w"));
    assert_eq!(outcome.out(), "user a\n");
    let expected = json!({
        "name": "a", "password": "hunter2", "scram_iterations": 16384, "tenant": "t", "attributes": {"k": "v=w"}
    });
    assert_eq!(mock.requests().pop().unwrap().json(), expected);
    let outcome = ctl(&mock, &format!("users passwd a --password-file {file} --keep-connected"));
    assert_eq!(outcome.out(), "the password of user a is changed\n");
    let request = mock.requests().pop().unwrap();
    assert_eq!((&request.method[..], &request.target[..]), ("PATCH", "/api/v1/users/a?keep_connected=true"));
    std::fs::write(&path, "").unwrap();
    assert!(ctl(&mock, &format!("users passwd a --password-file {file}")).error().contains("empty"));
    std::fs::remove_file(&path).unwrap();
    assert!(ctl(&mock, &format!("users passwd a --password-file {file}")).error().contains("password-file"));
    let line = ["ctl", "users", "add", "a", "--password", "hunter2"];
    assert!(Line::try_parse_from(line).is_err());
}

#[test]
fn an_account_is_made_changed_and_listed() {
    let path = std::env::temp_dir().join(format!("meridian-ctl-account-{}", std::process::id()));
    std::fs::write(&path, "correct horse\n").unwrap();
    let file = path.to_str().unwrap();
    let mock = Mock::always(Reply::json(&json!({"name": "a", "role": "viewer"})));
    let outcome = ctl(&mock, &format!("accounts add a --role viewer --password-file {file}"));
    assert_eq!(outcome.out(), "account a, viewer\n");
    let expected = json!({"name": "a", "role": "viewer", "password": "correct horse"});
    assert_eq!(mock.request().json(), expected);
    ctl(&mock, &format!("accounts passwd a --password-file {file}")).out();
    let request = mock.requests().pop().unwrap();
    assert_eq!((&request.method[..], &request.target[..]), ("PATCH", "/api/v1/accounts/a"));
    assert_eq!(request.json(), json!({"password": "correct horse"}));
    ctl(&mock, "accounts role a admin").out();
    assert_eq!(mock.requests().pop().unwrap().json(), json!({"role": "admin"}));
    std::fs::remove_file(&path).unwrap();
    let row = json!({
        "name": "a", "role": "viewer", "sessions": 2,
        "created_at": "2026-01-31T12:00:00.000Z", "changed_at": "2026-01-31T12:00:00.000Z"
    });
    let mock = Mock::always(Reply::json(&json!({"items": [row], "next": null})));
    let out = ctl(&mock, "accounts").out();
    assert!(out.contains("SESSIONS") && out.lines().nth(1).unwrap().contains("viewer"), "{out}");
}

#[test]
fn the_first_user_is_made_after_a_warning_about_other_clients() {
    let path = std::env::temp_dir().join(format!("meridian-ctl-first-{}", std::process::id()));
    std::fs::write(&path, "hunter2\n").unwrap();
    let add = format!("users add a --password-file {}", path.display());
    let node = |is_open: bool, cluster: Value| {
        Mock::serve(move |request| {
            Reply::json(&match request.path() {
                "/api/v1/node" => {
                    json!({"open_until_first_user": is_open, "connections": 42, "cluster": cluster})
                }
                _ => json!({"name": "a"}),
            })
        })
    };
    let asked = |mock: &Mock| {
        let requests = mock.requests();
        requests.iter().map(|it| format!("{} {}", it.method, it.path())).collect::<Vec<_>>()
    };
    let mock = node(true, Value::Null);
    let outcome = ctl(&mock, &add);
    for part in
        ["first user", "refused (0x87)", "42 are connected", "--allow-anonymous", "auth.allow_anonymous=true"]
    {
        assert!(outcome.notes.contains(part), "{part}: {}", outcome.notes);
    }
    assert_eq!(outcome.out(), "user a\n");
    assert_eq!(asked(&mock), ["GET /api/v1/node", "POST /api/v1/users"]);

    let outcome = ctl(&node(false, Value::Null), &add);
    assert_eq!(outcome.notes, "");

    for (cluster, scope) in [(Value::Null, "node"), (json!({"role": "core"}), "cluster")] {
        let mock = node(true, cluster);
        let outcome = ctl(&mock, &format!("{add} --allow-anonymous"));
        assert_eq!(outcome.notes, "");
        assert_eq!(
            asked(&mock),
            ["GET /api/v1/node", "PATCH /api/v1/config", "POST /api/v1/users"],
            "clients may go on before there is a user"
        );
        let change = mock.requests()[1].json();
        assert_eq!(
            (&change["changes"], &change["scope"]),
            (&json!({"auth.allow_anonymous": "true"}), &json!(scope))
        );
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_first_rule_is_made_after_a_warning_about_refusals() {
    let node = |is_open: bool| {
        Mock::serve(move |request| {
            Reply::json(&match request.path() {
                "/api/v1/node" => json!({"open_until_first_rule": is_open, "connections": 42}),
                _ => json!({"id": "3", "position": 1, "rule": "allow everyone publish a", "enabled": false}),
            })
        })
    };
    let add = "rules add x";
    for line in [add, "rules set 3 --enabled"] {
        let mock = node(true);
        let outcome = ctl(&mock, line);
        for part in ["first rule", "refused (0x87)", "Clients connected now: 42", "auth.no_match=allow"] {
            assert!(outcome.notes.contains(part), "{line}: {part}: {}", outcome.notes);
        }
        assert!(outcome.out().contains("rule 3"));
        let requests = mock.requests();
        let at = |method: &str| requests.iter().position(|request| request.method == method);
        let asked = requests.iter().position(|request| request.path() == "/api/v1/node");
        assert!(asked.is_some() && asked < at("POST").or(at("PUT")), "it is said before");
        assert_eq!(ctl(&node(false), line).notes, "");
    }
    for line in [&format!("{add} --disabled"), "rules set 3 --description x"] {
        assert_eq!(ctl(&node(true), line).notes, "", "{line}: nothing is in force yet");
    }
}

/// Fields without an option stay: the node replaces a user as a whole.
#[test]
fn setting_one_thing_of_a_user_sends_the_others_as_they_are() {
    let user = json!({
        "name": "a", "enabled": true, "superuser": true, "tenant": "t", "attributes": {"k": "v", "l": "w"},
        "rates": null, "rules": ["allow publish x"], "description": "d", "created_at": "x"
    });
    let mock = Mock::always(Reply::json(&user));
    ctl(&mock, "users set a --disabled --attribute k= --messages-per-second 5").out();
    let put = mock.requests().pop().unwrap();
    assert_eq!(put.method, "PUT");
    let expected = json!({
        "enabled": false, "superuser": true, "tenant": "t", "attributes": {"l": "w"},
        "rates": {"messages_per_second": 5}, "rules": ["allow publish x"], "description": "d"
    });
    assert_eq!(put.json(), expected);
}

#[test]
fn rules_are_changed_by_their_id() {
    let rule = json!({"id": "3", "position": 1, "rule": "allow all x", "enabled": true, "description": "d"});
    let mock = Mock::always(Reply::json(&rule));
    let outcome = run(&mock.url, &["rules", "add", "allow all x", "--position", "1", "--disabled"]);
    assert_eq!(outcome.out(), "rule 3, position 1: allow all x\n");
    let expected = json!({"rule": "allow all x", "enabled": false, "description": "", "position": 1});
    assert_eq!(mock.requests().pop().unwrap().json(), expected);
    ctl(&mock, "rules move 3 2").out();
    let request = mock.requests().pop().unwrap();
    assert_eq!((&request.target[..], request.json()), ("/api/v1/rules/3/position", json!({"position": 2})));
    assert!(ctl(&mock, "rules remove 3").error().contains("--yes"));
}
