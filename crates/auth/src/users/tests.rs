use access::{Action, Credentials, Identity, Rates, Validity};
use configstore::{Applied, View};
use mqtt::{QoS, ReasonCode};

use super::*;
use crate::link::{Attempt, CacheKey, Link, Outcome, ScramRecord, ScramSource};

/// Cheap hash of `secret`.
const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg";
const PBKDF2: &str = "$7$1$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcY=";
const SCRAM: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

fn with(hash: &str) -> UserRecord {
    UserRecord { hash: Some(hash.to_owned()), ..UserRecord::new(1) }
}

fn credentials<'a>(username: &'a str, password: &'a str) -> Credentials<'a> {
    Credentials { username: Some(username), password: Some(password.as_bytes()), ..Credentials::default() }
}

fn ask(users: &Users, username: &str, password: &str) -> Outcome {
    let credentials = credentials(username, password);
    users.check_immediately(credentials).unwrap_or_else(|| Link::work(users, &Attempt::of(credentials)))
}

const WRONG: Outcome = Outcome::Refuse(ReasonCode::BadUserNameOrPassword);

#[test]
fn a_user_logs_in_with_the_password_and_gets_the_rights_of_the_record() {
    let users = Users::in_memory(10).unwrap();
    let (hash, _) = hash_password("secret", None).unwrap();
    let rates = RatesRecord { messages_per_second: 5, ..RatesRecord::default() };
    let record = UserRecord {
        superuser: true,
        tenant: Some("acme".into()),
        attributes: [("class".to_owned(), "gold".to_owned())].into(),
        rates: Some(rates),
        rules: vec!["deny everyone publish secret/#".into()],
        ..with(&hash)
    };
    users.add("alice", &record).unwrap();
    let Outcome::Admit(admission) = ask(&users, "alice", "secret") else { panic!("she is refused") };
    let principal = admission.principal.clone().unwrap();
    assert!(principal.superuser && principal.mountpoint.as_deref() == Some("acme/"));
    assert_eq!(principal.attributes, [("class".into(), "gold".into())]);
    assert_eq!(principal.rates, Some(Rates { messages_per_second: 5, ..Rates::default() }));
    let action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
    let decides = |topic| principal.grants.as_ref().unwrap().decide(Identity::default(), action, topic);
    assert_eq!((decides("secret/a"), decides("other")), (Some(false), None));
    assert_eq!(*admission, users.admission("alice"));
    assert_eq!(ask(&users, "alice", "wrong"), WRONG);
    assert_eq!(ask(&users, "alice", ""), WRONG);
    assert_eq!(ask(&users, "eve", "secret"), Outcome::NotMine);
    assert_eq!(users.check_immediately(Credentials::default()), Some(Outcome::NotMine));
}

#[test]
fn a_user_without_a_password_or_disabled_is_refused_and_no_other_link_is_asked() {
    let users = Users::in_memory(10).unwrap();
    let (hash, scram) = hash_password("secret", Some(4096)).unwrap();
    users.add("off", &UserRecord { enabled: false, scram: scram.clone(), ..with(&hash) }).unwrap();
    users.add("none", &UserRecord::new(1)).unwrap();
    users.add("scram", &UserRecord { scram, ..UserRecord::new(1) }).unwrap();
    assert_eq!(ask(&users, "off", "secret"), WRONG);
    assert_eq!(ScramSource::scram(&users, "off"), ScramRecord::NoScramKeys);
    assert_eq!(ask(&users, "none", ""), WRONG);
    let plain = ask(&users, "scram", "secret");
    assert!(matches!(plain, Outcome::Admit(_)), "its keys verify a plain password too: {plain:?}");
    assert!(matches!(ScramSource::scram(&users, "scram"), ScramRecord::Keys(_)));
    assert_eq!(ScramSource::scram(&users, "nobody"), ScramRecord::UnknownUser);
}

/// Otherwise a remembered success would outlive the record that it depended on.
#[test]
fn every_change_of_a_user_invalidates_remembered_successes() {
    let users = Users::in_memory(10).unwrap();
    users.add("alice", &with(HASH)).unwrap();
    let cache_key = || users.cache_key(credentials("alice", "secret"));
    let mut seen = vec![cache_key()];
    users.change("alice", Connected::Close, |record| UserRecord { superuser: true, ..record }).unwrap();
    seen.push(cache_key());
    users.change("alice", Connected::Close, |record| UserRecord { enabled: false, ..record }).unwrap();
    seen.push(cache_key());
    users.remove("alice", Connected::Close).unwrap();
    seen.push(cache_key());
    assert_eq!(seen[3], CacheKey::Password(Vec::new()));
    assert!((0..4).all(|a| (0..a).all(|b| seen[a] != seen[b])), "{seen:?}");
}

#[test]
fn unknown_users_cost_as_much_as_known_ones() {
    let users = Users::in_memory(100).unwrap();
    assert!(users.decoy().is_none() && users.decoy_keys("eve").is_none());
    for n in 0..9 {
        users.add(&format!("a{n}"), &with(if n < 6 { HASH } else { PBKDF2 })).unwrap();
    }
    let decoy = |name: &str| {
        let kinds = users.view.kinds();
        kinds.decoy(users.view.number(name)).unwrap().as_str().to_owned()
    };
    assert_eq!(decoy("eve"), decoy("eve"));
    let cheap = (0..900).filter(|n| decoy(&format!("eve{n}")) == PBKDF2).count();
    assert!((200..400).contains(&cheap), "a third of the users have such a hash: {cheap} of 900");
    users.decoy().unwrap().work(&Attempt::of(credentials("eve", "x")));
    for n in 6..9 {
        users.remove(&format!("a{n}"), Connected::Keep).unwrap();
    }
    assert!((0..99).all(|n| decoy(&format!("eve{n}")) == HASH));
}

#[test]
fn scram_answers_to_unknown_users_look_like_others_and_survive_a_restart() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    let users = Users::open(config_store.clone(), 10).unwrap();
    users.add("carol", &UserRecord { scram: Some(SCRAM.into()), ..UserRecord::new(1) }).unwrap();
    let decoy_keys = users.decoy_keys("eve").unwrap();
    assert_eq!((decoy_keys.iterations, decoy_keys.salt.len()), (4096, 16));
    assert_ne!(users.decoy_keys("eva").unwrap().salt, decoy_keys.salt);
    users.add("dave", &with(SCRAM)).unwrap();
    assert_eq!(Users::open(config_store, 10).unwrap().decoy_keys("eve"), Some(decoy_keys));
}

#[test]
fn errors_of_a_user_name_each_invalid_field() {
    let users = Users::in_memory(1).unwrap();
    #[track_caller]
    fn refused(users: &Users, name: &str, record: UserRecord, says: &str) {
        let error = users.add(name, &record).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(!error.contains("plain"), "an error never shows a password: {error}");
    }
    let new = || UserRecord::new(1);
    refused(&users, "", new(), "name: it is empty");
    refused(&users, &"x".repeat(1025), new(), "1024");
    refused(&users, "a\0", new(), "control");
    refused(&users, "a", with("plain"), "password_hash: expected a hash");
    refused(&users, "a", UserRecord { scram: Some(HASH.into()), ..new() }, "scram: ");
    for tenant in ["", "/a", "a/", "a/b", "a//b", "$SYS", "a/+", "#"] {
        refused(&users, "a", UserRecord { tenant: Some(tenant.into()), ..new() }, "tenant: ");
    }
    refused(&users, "a", UserRecord { rules: vec!["nonsense".into()], ..new() }, "rules: rule 1: ");
    let attributes = [(String::new(), String::new())].into();
    refused(&users, "a", UserRecord { attributes, ..new() }, "attributes: ");
    users.add("a", &new()).unwrap();
    assert_eq!(users.add("a", &new()), Err(UserError::TooMany { maximum: 1 }));
    for connected in [Connected::Close, Connected::Keep] {
        assert_eq!(users.remove("b", connected), Err(UserError::Unknown("b".into())));
        let unknown = users.change("b", connected, |record| record);
        assert_eq!(unknown.unwrap_err(), UserError::Unknown("b".into()));
    }
    users.remove("a", Connected::Close).unwrap();
    users.add("b", &new()).unwrap();
}

/// Tenant `a` reads everything below `a/`.
#[test]
fn a_tenant_within_another_is_kept_but_cannot_be_created() {
    let config_store = Arc::new(configstore::LocalStore::in_memory());
    let old = UserRecord { tenant: Some("a/b".into()), ..with(HASH) };
    config_store.propose(vec![old.put("old").unwrap()]).unwrap();
    let users = Users::open(config_store, 10).unwrap();
    assert!(users.admission("old").principal.unwrap().mountpoint.as_deref() == Some("a/b/"));
    let describe = |record| UserRecord { description: "x".into(), ..record };
    users.change("old", Connected::Keep, describe).unwrap();
    let other = |record| UserRecord { tenant: Some("a/c".into()), ..record };
    let error = users.change("old", Connected::Keep, other).unwrap_err().to_string();
    assert!(error.contains("tenant: "), "{error}");
    let error =
        users.import(&[("new".into(), old)], Existing::Keep, Connected::Close).unwrap_err().to_string();
    assert!(error.contains("tenant"), "{error}");
}

#[test]
fn an_import_adds_all_users_or_none() {
    let users = Users::in_memory(10).unwrap();
    users.add("a", &with(HASH)).unwrap();
    let list = |names: &[&str]| names.iter().map(|name| (name.to_string(), with(PBKDF2))).collect::<Vec<_>>();
    assert_eq!(
        users.import(&list(&["b", "a"]), Existing::Refuse, Connected::Close),
        Err(UserError::Exists("a".into()))
    );
    assert_eq!(
        users.import(&list(&["b", "b"]), Existing::Keep, Connected::Close),
        Err(UserError::Twice("b".into()))
    );
    let mut bad = list(&["b", "c"]);
    bad[1].1.tenant = Some("#".into());
    assert!(
        users
            .import(&bad, Existing::Keep, Connected::Close)
            .unwrap_err()
            .to_string()
            .starts_with("user `c`: tenant")
    );
    assert_eq!(users.len(), 1);
    let kept = Imported { added: 1, kept: 1, ..Imported::default() };
    assert_eq!(users.import(&list(&["b", "a"]), Existing::Keep, Connected::Close), Ok(kept));
    assert_eq!(users.get("a").unwrap().unwrap().hash.as_deref(), Some(HASH));
    let replaced = Imported { added: 1, replaced: 1, kept: 0 };
    assert_eq!(users.import(&list(&["c", "a"]), Existing::Replace, Connected::Close), Ok(replaced));
    assert_eq!(users.get("a").unwrap().unwrap().hash.as_deref(), Some(PBKDF2));
    let names: Vec<String> = users.page(Some("a"), 9).into_iter().map(|(name, _)| name.into()).collect();
    assert_eq!(names, ["b", "c"]);
    let many: Vec<_> = (0..8).map(|n| (format!("n{n}"), with(HASH))).collect();
    assert_eq!(
        users.import(&many, Existing::Keep, Connected::Close),
        Err(UserError::TooMany { maximum: 10 })
    );
}

#[test]
fn an_invalid_record_admits_no_client() {
    let config_store: Arc<dyn ConfigStore> = Arc::new(LocalStore::in_memory());
    config_store.propose(vec![Change::put(TABLE, "eve", &"superuser").unwrap()]).unwrap();
    let mut record = with(HASH);
    record.rules = vec!["from a later version".into()];
    config_store.propose(vec![record.put("adam").unwrap()]).unwrap();
    let users = Users::open(config_store, 10).unwrap();
    for name in ["eve", "adam"] {
        assert_eq!(ask(&users, name, "secret"), WRONG, "{name}");
    }
    assert!(matches!(users.get("eve"), Err(UserError::Damaged { .. })));
}

#[test]
fn neither_debug_nor_errors_show_a_hash() {
    let text = format!("{:?} {:?}", with(HASH), with(HASH).put("a").unwrap());
    assert!(!text.contains("argon2"), "{text}");
}

/// Returns the validity of an admission of this user.
fn validity(users: &Users, name: &str) -> Arc<Validity> {
    users.admission(name).validity.expect("there is such a user")
}

/// Checks whether a change ends earlier admissions, on the node that makes it and on another one.
#[track_caller]
fn ends<T>(expected: bool, change: impl Fn(&Users) -> T) {
    let users = Users::in_memory(10).unwrap();
    users.add("alice", &with(HASH)).unwrap();
    users.add("bob", &with(HASH)).unwrap();
    let other = Users::open(users.config_store.clone(), 10).unwrap();
    let nodes = [&users, &other];
    let [hers, his] = ["alice", "bob"].map(|name| nodes.map(|node| validity(node, name)));
    change(&users);
    assert_eq!(hers.map(|validity| validity.has_ended()), [expected; 2]);
    assert_eq!(nodes.map(Users::revocations), [u64::from(expected); 2]);
    assert!(!his.iter().any(|validity| validity.has_ended()), "another user is not affected");
}

#[test]
fn clients_of_a_changed_or_removed_user_are_disconnected_on_every_node() {
    use Connected::{Close, Keep};
    let password = |record| UserRecord { hash: Some(PBKDF2.into()), ..record };
    let disabled = |record| UserRecord { enabled: false, ..record };
    let words = |record| UserRecord { description: "of the house".into(), changed_ms: 9, ..record };
    ends(true, |users| users.change("alice", Close, password).unwrap());
    ends(true, |users| users.change("alice", Close, disabled).unwrap());
    ends(false, |users| users.change("alice", Close, words).unwrap());
    ends(false, |users| users.change("alice", Keep, password).unwrap());
    ends(true, |users| users.remove("alice", Close).unwrap());
    ends(false, |users| users.remove("alice", Keep).unwrap());
    let again = || [("alice".to_owned(), with(PBKDF2))];
    ends(true, |users| users.import(&again(), Existing::Replace, Close).unwrap());
    ends(false, |users| users.import(&again(), Existing::Replace, Keep).unwrap());
    ends(false, |users| users.import(&again(), Existing::Keep, Close).unwrap());
    // An earlier version omits unknown fields, and a later one may write a record that is invalid here.
    let earlier = UserRecord { changed_ms: 2, ..with(HASH) };
    ends(true, |users| users.config_store.propose(vec![earlier.put("alice").unwrap()]).unwrap());
    let nonsense = || Change::put(TABLE, "alice", &"superuser").unwrap();
    ends(true, |users| users.config_store.propose(vec![nonsense()]).unwrap());
}

#[test]
fn kept_clients_are_disconnected_by_the_next_change_that_keeps_none() {
    let users = Users::in_memory(10).unwrap();
    users.add("alice", &with(HASH)).unwrap();
    let first = validity(&users, "alice");
    users.change("alice", Connected::Keep, |record| UserRecord { superuser: true, ..record }).unwrap();
    let second = validity(&users, "alice");
    users.change("alice", Connected::Keep, |record| UserRecord { superuser: false, ..record }).unwrap();
    assert!(!first.has_ended() && !second.has_ended());
    users.change("alice", Connected::Close, |record| UserRecord { enabled: false, ..record }).unwrap();
    assert!(first.has_ended() && second.has_ended() && !validity(&users, "alice").has_ended());
    // A removed user leaves no state, whichever clients stay.
    users.remove("alice", Connected::Keep).unwrap();
    assert_eq!(users.get("alice"), Ok(None));
    assert_eq!(users.config_store.figures().records, [("users".into(), 0)]);
}

#[test]
fn clients_of_a_removed_user_are_disconnected_with_the_next_user_of_that_name() {
    use Connected::{Close, Keep};
    let users = Users::in_memory(10).unwrap();
    let other = Users::open(users.config_store.clone(), 10).unwrap();
    let nodes = [&users, &other];
    let superuser = |record| UserRecord { superuser: true, ..record };
    let ends: [fn(&Users); 2] = [
        |users| users.remove("alice", Close).unwrap(),
        |users| drop(users.change("alice", Close, |record| UserRecord { enabled: false, ..record })),
    ];
    for end in ends {
        drop(users.remove("alice", Close));
        users.add("alice", &with(HASH)).unwrap();
        let before = nodes.map(|node| validity(node, "alice"));
        for _ in 0..2 {
            users.remove("alice", Keep).unwrap();
            users.add("alice", &with(PBKDF2)).unwrap();
        }
        users.change("alice", Keep, superuser).unwrap();
        let since = nodes.map(|node| validity(node, "alice"));
        assert!(before.iter().chain(&since).all(|validity| !validity.has_ended()));
        end(&users);
        assert!(before.iter().chain(&since).all(|validity| validity.has_ended()));
    }
}

/// A node that was cut off for long gets a complete copy instead of the changes.
#[test]
fn a_complete_copy_ends_the_same_admissions_as_the_changes() {
    let users = Users::in_memory(10).unwrap();
    let names = ["changed", "kept", "other", "removed"];
    names.iter().for_each(|name| users.add(name, &with(HASH)).unwrap());
    let lagging = view::UserView::default();
    let catch_up = || {
        let records = users.config_store.page(TABLE, None, 10);
        let of = |(key, stored): &(Box<str>, Stored)| (key.clone(), stored.value.clone(), stored.revision);
        let records: Vec<_> = records.iter().map(of).collect();
        let applied = records.iter().map(|(key, value, revision)| Applied {
            key,
            value: Some(value),
            revision: *revision,
        });
        lagging.reset(&mut { applied }).unwrap();
    };
    catch_up();
    assert_eq!(lagging.revocations(), 0);
    let standings = names.map(|name| lagging.get(name).unwrap().admission().validity.unwrap());
    let disabled = |record| UserRecord { enabled: false, ..record };
    users.change("changed", Connected::Close, disabled).unwrap();
    users.change("kept", Connected::Keep, disabled).unwrap();
    users.remove("removed", Connected::Close).unwrap();
    catch_up();
    assert_eq!(standings.each_ref().map(|validity| validity.has_ended()), [true, false, false, true]);
    assert_eq!(lagging.revocations(), 1);
    catch_up();
    assert_eq!(lagging.revocations(), 1);
    // A client that stayed after its user was removed is disconnected in any case, because the user may have been
    // created and removed again meanwhile.
    let [_, kept, ..] = standings;
    let left = UserRecord { leaves_clients: true, ..users.get("kept").unwrap().unwrap() };
    let left = serde_json::to_string(&left).unwrap();
    let batch = [Some(&*left), None].map(|value| Applied { key: "kept", value, revision: Revision(9) });
    lagging.apply(&batch);
    assert!(!kept.has_ended());
    users.remove("kept", Connected::Close).unwrap();
    catch_up();
    assert!(kept.has_ended());
}
