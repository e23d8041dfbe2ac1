use super::*;

fn rule(text: &str) -> NewRule {
    NewRule { text: text.into(), enabled: true, description: String::new() }
}

fn by() -> Authorship {
    Authorship { author: "ops".into(), now_ms: 7 }
}

fn topics(table: &RuleTable) -> String {
    table.list().iter().map(|rule| rule.text.rsplit(' ').next().unwrap_or_default()).collect()
}

#[test]
fn rules_keep_their_positions() {
    let table = RuleTable::in_memory().unwrap();
    let add = |topic: &str, position| {
        table.add(&rule(&format!("allow everyone publish {topic}")), position, &by()).unwrap()
    };
    add("b", None);
    add("d", None);
    assert_eq!(add("a", Some(1)).0, 1);
    assert_eq!(add("c", Some(3)).0, 3);
    assert_eq!(add("e", Some(99)).0, 5);
    assert_eq!(topics(&table), "abcde");
    let (_, last) = table.get(RuleId(5)).unwrap();
    assert_eq!((last.author.as_str(), last.changed_ms), ("ops", 7));
    assert_eq!(table.move_to(last.id, 1, &by()).unwrap().0, 1);
    assert_eq!(topics(&table), "eabcd");
    table.replace(last.id, &rule("deny everyone publish z"), &by()).unwrap();
    assert_eq!(topics(&table), "zabcd");
    assert_eq!(table.remove(last.id).unwrap().text, "deny everyone publish z");
    assert_eq!(table.remove(last.id), Err(RuleTableError::Unknown(last.id)));
    assert_eq!(topics(&table), "abcd");
}

/// Ranks run out after repeated halving, and the order must be kept.
#[test]
fn rules_can_be_inserted_before_the_first_without_limit() {
    let table = RuleTable::in_memory().unwrap();
    for n in 0..80 {
        table.add(&rule(&format!("deny everyone publish t{n}")), Some(1), &by()).unwrap();
    }
    let expected: String = (0..80).rev().map(|n| format!("t{n}")).collect();
    assert_eq!(topics(&table), expected);
}

#[test]
fn an_invalid_rule_is_refused_with_the_reason() {
    let table = RuleTable::in_memory().unwrap();
    let refused = |text: &str| table.add(&rule(text), None, &by()).unwrap_err();
    assert!(matches!(refused("permit everyone publish a"), RuleTableError::Rule(_)));
    assert_eq!(refused("  "), RuleTableError::Blank);
    assert_eq!(refused("# allow everyone publish a"), RuleTableError::Blank);
    assert_eq!(refused("allow everyone publish a\nallow everyone publish b"), RuleTableError::Lines);
    let many = [rule("allow everyone publish a"), rule("nonsense")];
    let error = table.replace_all(&many, &by()).unwrap_err().to_string();
    assert!(error.starts_with("rule 2: "), "{error}");
    assert!(table.list().is_empty());
}

#[test]
fn the_listener_gets_the_enabled_rules_after_every_change() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    let table = RuleTable::open(config_store.clone()).unwrap();
    let counts = Arc::new(Mutex::new(Vec::new()));
    let recorder = counts.clone();
    table.on_change(move |rules| recorder.lock().unwrap().push(rules.len()));
    let (_, first) = table.add(&rule("allow everyone publish a"), None, &by()).unwrap();
    table.replace_all(&[rule("allow everyone publish a"), rule("deny everyone publish b")], &by()).unwrap();
    assert!(table.get(first.id).is_none(), "an id is not reused");
    let id = table.list()[0].id;
    table.replace(id, &NewRule { enabled: false, ..rule("allow everyone publish a") }, &by()).unwrap();
    assert_eq!(*counts.lock().unwrap(), [0, 1, 2, 1]);
    // An invalid record of another writer changes nothing.
    config_store.propose(vec![Change::put(TABLE, record::key(RuleId(99)), &"nonsense").unwrap()]).unwrap();
    assert_eq!(table.list().len(), 2);
    assert!(RuleTable::open(config_store).is_err(), "and a node does not start without them");
}

#[test]
fn rules_survive_a_restart() {
    let directory = std::env::temp_dir().join(format!("meridian-rule-table-{}", std::process::id()));
    let open = || RuleTable::open(Arc::new(LocalStore::open(&directory).unwrap())).unwrap();
    let table = open();
    let all: Vec<_> = ["a", "b", "c"].map(|topic| rule(&format!("deny everyone publish {topic}"))).to_vec();
    table.replace_all(&all, &by()).unwrap();
    table.move_to(table.list()[2].id, 1, &by()).unwrap();
    assert_eq!(*open().list(), *table.list());
    assert_eq!(topics(&open()), "cab");
    std::fs::remove_dir_all(directory).unwrap();
}
