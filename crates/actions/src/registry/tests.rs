use configstore::{Change, LocalStore};
use definitions::Source;
use serde_json::json;
use settings::Section as _;

use super::*;

fn targets() -> Targets {
    let check: fn(&ConnectorSettings, &ActionSettings, Guard) -> _ =
        |connector, action, _| match (connector.url.as_deref(), action.path.as_str()) {
            (Some("bad"), _) => Err(SinkProblem::new("url", "it is bad")),
            (Some("strict"), "/loose") => Err(SinkProblem::new("path", "it is too loose")),
            _ => Ok(()),
        };
    let settings =
        ActionsSettings { tenant_directory: Some("/tenants".into()), ..ActionsSettings::default() };
    Targets { settings, secrets: SecretsDirectory::default(), target: check }
}

fn open_at(config_store: Arc<dyn ConfigStore>) -> Registry {
    Registry::open_with(config_store, Vec::new(), Vec::new(), targets()).unwrap()
}

fn in_memory() -> Registry {
    open_at(Arc::new(LocalStore::in_memory()))
}

fn by() -> Authorship {
    Authorship { author: "ops".into(), now_ms: 7 }
}

fn object(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(object) => object,
        other => panic!("{other} is not an object"),
    }
}

/// Settings of an action that publishes, with others.
fn republish(more: Json) -> Map<String, Json> {
    let mut settings = object(json!({"rule": "SELECT * FROM \"a/#\"", "topic": "b"}));
    settings.extend(object(more));
    settings
}

#[test]
fn entries_are_added_replaced_and_removed() {
    let registry = in_memory();
    let before = registry.changes();
    let url = object(json!({"url": "http://h/", "timeout": "3s"}));
    assert_eq!(registry.put_connector("http", &url, &by()), Ok(true));
    assert_eq!(registry.put_action("a", &republish(json!({})), &by()), Ok(true));
    assert_eq!(registry.put_action("a", &republish(json!({"connector": "http"})), &by()), Ok(false));
    assert!(registry.changes() > before);

    let definitions = registry.definitions();
    let action = &definitions.actions["a"];
    assert_eq!((action.source, action.author.as_str(), action.changed_ms), (Source::Store, "ops", Some(7)));
    assert_eq!(definitions.connector_of(&action.settings).unwrap().settings.name, "http");
    assert_eq!(settings_to_json(&definitions.connectors["http"].settings), url);

    let used = registry.remove_connector("http").unwrap_err();
    assert_eq!(
        used.to_string(),
        "the connector `http` is used by the actions `a`; change or remove them first"
    );
    assert_eq!(registry.remove_action("a"), Ok(()));
    assert_eq!(registry.remove_connector("http"), Ok(()));
    let gone = registry.remove_action("a").unwrap_err();
    assert_eq!(gone, RegistryError::Entry(EntryError::Unknown { noun: "action", name: "a".into() }));
}

#[test]
fn wrong_settings_are_refused_with_the_key_and_the_fix() {
    let registry = in_memory();
    registry.put_action("last", &republish(json!({})), &by()).unwrap();
    registry.put_action("first", &republish(json!({"fallback": "last"})), &by()).unwrap();
    registry.put_connector("strict", &object(json!({"url": "strict"})), &by()).unwrap();
    for (name, more, expected) in [
        ("", json!({}), "name: \"\" is not a name; write 1 to 64 letters"),
        ("a/b", json!({}), "name: \"a/b\" is not a name"),
        ("test", json!({}), "name: the API uses the name \"test\" itself; choose another one"),
        ("-a", json!({}), "name: \"-a\" is not a name"),
        ("x", json!({"name": "y"}), "name: it is \"y\" here and \"x\" in the path"),
        ("x", json!({"rul": "SELECT 1"}), "rul: there is no such setting; did you mean `rule`?"),
        ("x", json!({"in_flight": 0}), "in_flight: the number 0 is out of range, allowed is 1 to 65535"),
        ("x", json!({"enabled": "yes"}), "enabled: expected true or false"),
        ("x", json!({"batch_max": 1.5}), "batch_max: expected a whole number"),
        ("x", json!({"rule": ""}), "rule: the action has no rule; write one such as"),
        ("x", json!({"rule": "SELEC"}), "rule: "),
        ("x", json!({"topic": "b/${x"}), "topic: the placeholder after 2 bytes has no closing brace"),
        ("x", json!({"topic": "b/#"}), "topic: "),
        ("x", json!({"topic": ""}), "topic: the action publishes at this broker and has no topic"),
        ("x", json!({"publish_qos": "3"}), "publish_qos: \"3\" is not a QoS; write 0, 1, 2"),
        ("x", json!({"publish_retain": "no"}), "publish_retain: \"no\" is neither true nor false"),
        ("x", json!({"headers": "a: 1\nb"}), "headers: \"b\" is not a header; write NAME: TEMPLATE"),
        ("x", json!({"headers": "a: ${"}), "headers: a: the placeholder"),
        ("x", json!({"dead_letter": "d/${payload}"}), "dead_letter: it has other values than ${action}"),
        ("x", json!({"dead_letter": "d/+"}), "dead_letter: "),
        ("x", json!({"retry_min": "1m"}), "retry_min: it is longer than retry_max"),
        ("x", json!({"connector": "none"}), "connector: there is no connector \"none\"; create it first"),
        ("x", json!({"connector": "strict", "path": "/loose"}), "path: it is too loose"),
        ("x", json!({"fallback": "none"}), "fallback: there is no action \"none\"; create it first"),
        ("x", json!({"fallback": "x"}), "fallback: the fallbacks make a cycle: x -> x"),
        ("last", json!({"fallback": "first"}), "fallback: the fallbacks make a cycle: last -> first -> last"),
    ] {
        let changes = registry.changes();
        let error = registry.put_action(name, &republish(more.clone()), &by()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{more}: {error}");
        assert_eq!(registry.changes(), changes, "{more}");
    }
    for good in [
        json!({"topic": "b/${clientid}", "publish_qos": "${qos}", "publish_retain": "${flags.retain}"}),
        json!({"headers": "a: ${x?}\n\nb: c:d", "dead_letter": "dead/${action}/${reason}/${topic}"}),
        json!({"connector": "strict", "topic": "", "description": null}),
    ] {
        registry.put_action("x", &republish(good.clone()), &by()).unwrap_or_else(|e| panic!("{good}: {e}"));
    }
    let error = registry.put_connector("x", &object(json!({"url": "bad"})), &by()).unwrap_err();
    assert_eq!(error.to_string(), "url: it is bad");
}

#[test]
fn a_connector_is_tested_with_settings_that_replace_its_own() {
    let registry = in_memory();
    registry.put_connector("c", &object(json!({"url": "any", "timeout": "3s"})), &by()).unwrap();
    let other = object(json!({"url": "other"}));
    let both = registry.connector_to_test(Some("c"), Some(&other)).unwrap();
    assert_eq!((both.url.as_deref(), both.timeout), (Some("other"), std::time::Duration::from_secs(3)));
    assert_eq!(registry.connector_to_test(Some("c"), None).unwrap().url.as_deref(), Some("any"));
    assert_eq!(registry.connector_to_test(None, Some(&other)).unwrap().url.as_deref(), Some("other"));
    let error = registry.connector_to_test(Some("d"), None).unwrap_err().to_string();
    assert_eq!(error, "there is no connector `d`");
    let error =
        registry.connector_to_test(None, Some(&object(json!({"url": "bad"})))).unwrap_err().to_string();
    assert_eq!(error, "url: it is bad");
}

#[test]
fn a_change_of_a_connector_must_suit_its_actions() {
    let registry = in_memory();
    registry.put_connector("c", &object(json!({"url": "any"})), &by()).unwrap();
    registry.put_action("a", &republish(json!({"connector": "c", "path": "/loose"})), &by()).unwrap();
    let error =
        registry.put_connector("c", &object(json!({"url": "strict"})), &by()).unwrap_err().to_string();
    assert!(
        error.starts_with("the action `a` uses this connector, and could not run any more: path: "),
        "{error}"
    );
    assert_eq!(registry.definitions().connectors["c"].settings.url.as_deref(), Some("any"));
}

#[test]
fn a_fallback_is_not_removed() {
    let registry = in_memory();
    registry.put_action("last", &republish(json!({})), &by()).unwrap();
    registry.put_action("first", &republish(json!({"fallback": "last"})), &by()).unwrap();
    assert!(matches!(registry.remove_action("last"), Err(RegistryError::Used { .. })));
    registry.remove_action("first").unwrap();
    registry.remove_action("last").unwrap();
}

#[test]
fn the_number_of_entries_is_limited() {
    let registry = in_memory();
    let settings = republish(json!({}));
    for n in 0..ACTIONS_MAX {
        registry.put_action(&format!("a{n}"), &settings, &by()).unwrap();
    }
    let error = registry.put_action("more", &settings, &by()).unwrap_err();
    assert_eq!(error.to_string(), "there are 1000 actions already, which is the maximum; remove some");
    assert_eq!(registry.put_action("a7", &settings, &by()), Ok(false), "a present one can be replaced");
}

#[test]
fn entries_of_the_file_take_precedence_and_do_not_change() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    let registry = open_at(config_store.clone());
    registry.put_action("a", &republish(json!({"topic": "stored"})), &by()).unwrap();
    registry.put_action("b", &republish(json!({"topic": "stored"})), &by()).unwrap();

    let of_file = settings_of_json("a", &republish(json!({"topic": "of_file"}))).unwrap();
    let registry = Registry::open_with(config_store, Vec::new(), vec![of_file], targets()).unwrap();
    let definitions = registry.definitions();
    let (a, b) = (&definitions.actions["a"], &definitions.actions["b"]);
    assert_eq!((a.settings.topic.as_str(), a.source, a.hides_stored), ("of_file", Source::File, true));
    assert_eq!((b.settings.topic.as_str(), b.source, b.hides_stored), ("stored", Source::Store, false));
    for changed in
        [registry.put_action("a", &republish(json!({})), &by()).map(drop), registry.remove_action("a")]
    {
        assert_eq!(changed, Err(EntryError::OfFile { noun: "action", name: "a".into() }.into()));
    }
}

#[test]
fn entries_survive_a_restart() {
    let directory = std::env::temp_dir().join(format!("meridian-actions-{}", std::process::id()));
    let open = || open_at(Arc::new(LocalStore::open(&directory).unwrap()));
    let registry = open();
    registry
        .put_connector("c", &object(json!({"kind": "kafka", "address": "h:9092", "tls": true})), &by())
        .unwrap();
    registry
        .put_action("a", &republish(json!({"connector": "c", "batch_bytes_max": "2MiB"})), &by())
        .unwrap();
    let (before, after) = (registry.definitions(), open().definitions());
    assert_eq!(after.actions, before.actions);
    assert_eq!(after.connectors, before.connectors);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn records_that_cannot_be_used_are_shown_with_their_fault() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    let registry = open_at(config_store.clone());
    registry.put_action("good", &republish(json!({})), &by()).unwrap();
    let put = |table, key: &str, value: Json| {
        config_store.propose(vec![Change::put(table, key, &value).unwrap()]).unwrap();
    };
    let newer =
        json!({"settings": {"rule": "SELECT * FROM \"x\"", "topic": "t", "later": 1}, "changed_ms": 9});
    put(Actions::TABLE, "newer", newer);
    put(Actions::TABLE, "text", json!("nonsense"));
    put(Actions::TABLE, "a b", json!({"settings": {}, "changed_ms": 1}));
    put(Connectors::TABLE, "c", json!({"settings": {"kind": "pigeon"}, "changed_ms": 1}));
    let using = json!({"rule": "SELECT * FROM \"x\"", "connector": "c"});
    put(Actions::TABLE, "using", json!({"settings": using, "changed_ms": 1}));
    let look = |registry: &Registry| {
        let definitions = registry.definitions();
        let fault = |name: &str| definitions.actions[name].fault.clone().unwrap_or_default();
        assert!(fault("newer").starts_with("later: there is no such setting"), "{}", fault("newer"));
        assert_eq!(definitions.actions["newer"].settings.topic, "t", "what can be read is shown");
        assert!(fault("text").starts_with("the record cannot be read: "), "{}", fault("text"));
        assert!(fault("a b").starts_with("name: "), "{}", fault("a b"));
        assert!(fault("using").starts_with("connector: the connector \"c\" cannot be used: kind: "));
        let usable: Vec<_> =
            definitions.usable_actions().map(|action| action.settings.name.as_str()).collect();
        assert_eq!(usable, ["good"]);
    };
    look(&registry);
    look(&open_at(config_store.clone()));
    // A repaired connector repairs its action.
    registry.put_connector("c", &object(json!({"url": "any"})), &by()).unwrap();
    assert_eq!(registry.definitions().actions["using"].fault, None);
    registry.remove_action("a b").unwrap();
    assert!(!registry.definitions().actions.contains_key("a b"));
}

/// The view of a second registry sees what the first one writes, as the nodes of a cluster do.
#[test]
fn a_decision_about_outdated_entries_is_repeated() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    let (one, other) = (open_at(config_store.clone()), open_at(config_store));
    one.put_connector("c", &object(json!({"url": "any"})), &by()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(one.remove_connector("c")));
        scope.spawn(|| drop(other.put_action("a", &republish(json!({"connector": "c"})), &by())));
    });
    let definitions = one.definitions();
    let has_both = definitions.actions.contains_key("a") && definitions.connectors.contains_key("c");
    let has_none = !definitions.actions.contains_key("a") && !definitions.connectors.contains_key("c");
    assert!(has_both || has_none, "{definitions:?}");
    assert_eq!(other.definitions().actions, definitions.actions);
}

#[test]
fn a_file_is_checked_as_a_whole() {
    let connector = |name: &str, url: &str| ConnectorSettings {
        name: name.into(),
        url: Some(url.into()),
        ..ConnectorSettings::default()
    };
    let action =
        |name: &str, more: Json| -> ActionSettings { settings_of_json(name, &republish(more)).unwrap() };
    let connectors = [
        connector("c", "any"),
        connector("c", "any"),
        connector("", "any"),
        connector("d", "bad"),
        connector("s", "strict"),
    ];
    let actions = [
        action("a", json!({"connector": "c"})),
        action("a", json!({})),
        action("b", json!({"connector": "none"})),
        action("d", json!({"connector": "d"})),
        action("s", json!({"connector": "s", "path": "/loose"})),
        action("e", json!({"fallback": "f"})),
        action("f", json!({"fallback": "e"})),
    ];
    let problems = check::check_with(&connectors, &actions, &targets());
    let begins = [
        "connector.1.name: another connector has the name \"c\"",
        "connector.2.name: \"\" is not a name",
        "connector.3.url: it is bad",
        "action.1.name: another action has the name \"a\"",
        "action.2.connector: there is no connector \"none\"",
        "action.4.path: it is too loose",
        "action.5.fallback: the fallbacks make a cycle: e -> f -> e",
        "action.6.fallback: the fallbacks make a cycle: f -> e -> f",
    ];
    assert_eq!(problems.len(), begins.len(), "{problems:?}");
    for (problem, begin) in problems.iter().zip(begins) {
        assert!(problem.starts_with(begin), "{problem}");
    }
}

#[test]
fn a_tenant_uses_its_own_entries_only() {
    let registry = in_memory();
    let url = |tenant: &str| object(json!({"url": "any", "tenant": tenant}));
    registry.put_connector("x", &url("x"), &by()).unwrap();
    registry.put_connector("shared", &url(""), &by()).unwrap();
    let put = |name: &str, more: Json| {
        registry.put_action(name, &republish(more), &by()).map_err(|error| error.to_string())
    };
    put("of-x", json!({"tenant": "x", "connector": "x"})).unwrap();
    put("of-nobody", json!({})).unwrap();
    put("of-y", json!({"tenant": "y"})).unwrap();
    put("chain", json!({"tenant": "y", "fallback": "of-y"})).unwrap();
    for (name, more, expected) in [
        ("a", json!({"tenant": "y", "connector": "x"}), "connector: \"x\" belongs to the tenant \"x\", and"),
        ("a", json!({"tenant": "x", "connector": "shared"}), "connector: \"shared\" belongs to no tenant"),
        (
            "a",
            json!({"connector": "x"}),
            "connector: \"x\" belongs to the tenant \"x\", and the action to no",
        ),
        ("a", json!({"tenant": "y", "fallback": "of-x"}), "fallback: \"of-x\" belongs to"),
        ("a", json!({"tenant": "y", "fallback": "of-nobody"}), "fallback: \"of-nobody\" belongs to no"),
        ("a", json!({"fallback": "of-y"}), "fallback: \"of-y\" belongs to the tenant"),
        ("of-x", json!({"tenant": "y", "connector": "x"}), "connector: \"x\" belongs to"),
        ("of-y", json!({"tenant": "x"}), "tenant: the action \"chain\" has this one as its fallback"),
        ("a", json!({"tenant": "$SYS"}), "tenant: \"$SYS\" is not a tenant"),
        ("a", json!({"tenant": "x/#"}), "tenant: \"x/#\" is not a tenant"),
        (
            "a",
            json!({"tenant": "x", "rule": "SELECT * FROM \"$events/sys/alarm\""}),
            "rule: $events/sys/alarm is about nodes",
        ),
    ] {
        let error = put(name, more.clone()).unwrap_err();
        assert!(error.starts_with(expected), "{more}: {error}");
    }
    let error = registry.put_connector("x", &url("y"), &by()).unwrap_err().to_string();
    assert!(error.contains("connector: \"x\" belongs to the tenant \"y\""), "{error}");
}

#[test]
fn files_of_a_tenant_are_below_its_directory() {
    let registry = in_memory();
    let put = |tenant: &str, setting: &str, path: &str| {
        let settings = object(json!({"url": "any", "tenant": tenant, setting: path}));
        registry.put_connector("c", &settings, &by()).map(drop).map_err(|error| error.to_string())
    };
    for (tenant, path) in [("x", "/tenants/x/out"), ("a/b", "/tenants/a/b/out"), ("", "/etc/passwd")] {
        assert_eq!(put(tenant, "directory", path), Ok(()), "{path}");
    }
    for (tenant, setting, path) in [
        ("x", "directory", "/tenants/y/out"),
        ("x", "directory", "/tenants/x"),
        ("x", "directory", "/tenants/x/../y"),
        ("x", "directory", "/tenants/xy/out"),
        ("x", "directory", "tenants/x/out"),
        ("..", "directory", "/tenants/../etc"),
        ("x", "password_file", "/etc/shadow"),
        ("x", "token_file", "/run/secrets/token"),
        ("x", "tls_key", "/etc/key.pem"),
    ] {
        let error = put(tenant, setting, path).unwrap_err();
        assert!(error.starts_with(&format!("{setting}: ")), "{path}: {error}");
    }
    let targets = Targets { settings: ActionsSettings::default(), ..targets() };
    let config_store = Arc::new(LocalStore::in_memory());
    let registry = Registry::open_with(config_store, Vec::new(), Vec::new(), targets).unwrap();
    let settings = object(json!({"url": "any", "tenant": "x", "directory": "/tenants/x/out"}));
    let error = registry.put_connector("c", &settings, &by()).unwrap_err().to_string();
    assert!(error.contains("actions.tenant_directory, which is not set"), "{error}");
}

/// An admin of the API names the file, and the address that gets its first line.
#[test]
fn secrets_are_below_the_directory_of_secrets() {
    let secrets = SecretsDirectory::new(Some("/secrets".into()));
    let targets = Targets { secrets, ..targets() };
    let config_store = Arc::new(LocalStore::in_memory());
    let registry = Registry::open_with(config_store, Vec::new(), Vec::new(), targets.clone()).unwrap();
    let put = |setting: &str, path: &str| {
        let settings = object(json!({"url": "any", setting: path}));
        registry.put_connector("c", &settings, &by()).map(drop).map_err(|error| error.to_string())
    };
    for (setting, path) in [
        ("token_file", "/secrets/token"),
        ("tls_key", "/secrets/a/key.pem"),
        ("tls_ca", "/etc/ca.pem"),
        ("directory", "/var/out"),
    ] {
        assert_eq!(put(setting, path), Ok(()), "{path}");
    }
    for setting in ["password_file", "token_file", "signature_file", "tls_key"] {
        for path in
            ["/var/lib/meridian/cluster.secret", "/secrets", "/secrets/../etc/shadow", "secrets/token"]
        {
            let error = put(setting, path).unwrap_err();
            assert!(error.starts_with(&format!("{setting}: {path} is not below /secrets")), "{error}");
        }
    }
    let of_file = settings_of_json("c", &object(json!({"url": "any", "token_file": "/token"}))).unwrap();
    assert_eq!(check::check_with(&[of_file], &[], &targets).len(), 1);
}

/// The node may have got its directory of secrets after it.
#[test]
fn a_stored_connector_with_a_secret_elsewhere_has_a_fault() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    let before = open_at(config_store.clone());
    before.put_connector("c", &object(json!({"url": "any", "token_file": "/etc/token"})), &by()).unwrap();
    before.put_action("a", &republish(json!({"connector": "c"})), &by()).unwrap();
    let targets = Targets { secrets: SecretsDirectory::new(Some("/secrets".into())), ..targets() };
    let registry = Registry::open_with(config_store, Vec::new(), Vec::new(), targets).unwrap();
    let elsewhere = "token_file: /etc/token is not below /secrets";
    let definitions = registry.definitions();
    let fault = definitions.connectors["c"].fault.clone().unwrap_or_default();
    assert!(fault.starts_with(elsewhere), "{fault}");
    assert_eq!(definitions.usable_actions().count(), 0);
    for refused in [
        registry.put_action("a", &republish(json!({"connector": "c"})), &by()).map(drop),
        registry.connector_to_test(Some("c"), Some(&object(json!({"url": "other"})))).map(drop),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(elsewhere), "{error}");
    }
    registry
        .put_connector("c", &object(json!({"url": "any", "token_file": "/secrets/token"})), &by())
        .unwrap();
    assert_eq!(registry.definitions().usable_actions().count(), 1);
}

/// A setting with a path that is left out would let a tenant read any file of the node.
#[test]
fn all_paths_of_a_connector_are_known() {
    let mut settings = ConnectorSettings::default();
    let keys: Vec<&str> = settings.description().fields.iter().map(|field| field.key).collect();
    let names_file = |key: &&&str| key.ends_with("_file") || key.starts_with("tls_") || **key == "directory";
    for key in keys.iter().filter(names_file) {
        settings.set(key, &settings::Raw::String("/x".to_owned())).expect(key);
    }
    let paths: Vec<_> = definitions::paths(&settings).collect();
    assert_eq!(paths.len(), 7);
    assert!(paths.iter().all(|(_, path)| path == std::path::Path::new("/x")));
}

#[test]
fn a_tenant_has_limits_of_its_own() {
    let settings = ActionsSettings {
        tenant_actions_max: 2,
        tenant_connectors_max: 1,
        tenant_queue_bytes_max: settings::ByteSize::gib(3),
        ..ActionsSettings::default()
    };
    let targets = Targets { settings, ..targets() };
    let config_store = Arc::new(LocalStore::in_memory());
    let registry = Registry::open_with(config_store, Vec::new(), Vec::new(), targets.clone()).unwrap();
    let put = |name: &str, more: Json| {
        registry.put_action(name, &republish(more), &by()).map_err(|error| error.to_string())
    };
    put("a", json!({"tenant": "x"})).unwrap();
    let error = put("b", json!({"tenant": "x", "queue_bytes_max": "2049MiB"})).unwrap_err();
    assert!(error.starts_with("queue_bytes_max: the queues of all actions of \"x\" may have"), "{error}");
    put("b", json!({"tenant": "x", "queue_bytes_max": "2GiB"})).unwrap();
    let error = put("c", json!({"tenant": "x", "queue_bytes_max": "1KiB"})).unwrap_err();
    assert!(error.starts_with("tenant: \"x\" has 2 actions"), "{error}");
    put("b", json!({"tenant": "x", "queue_bytes_max": "1GiB"})).unwrap();
    for free in [json!({"tenant": "y"}), json!({"queue_bytes_max": "100GiB"})] {
        put("c", free).unwrap();
    }
    let connector = object(json!({"url": "any", "tenant": "x"}));
    registry.put_connector("one", &connector, &by()).unwrap();
    registry.put_connector("one", &connector, &by()).unwrap();
    let error = registry.put_connector("two", &connector, &by()).unwrap_err().to_string();
    assert!(error.starts_with("tenant: \"x\" has 1 connectors"), "{error}");

    let of_file = |name: &str| settings_of_json(name, &republish(json!({"tenant": "x"}))).unwrap();
    let problems = check::check_with(&[], &["a", "b", "c"].map(of_file), &targets);
    assert_eq!(problems.len(), 3);
    assert!(problems[0].starts_with("action.0.tenant: "), "{problems:?}");
}
