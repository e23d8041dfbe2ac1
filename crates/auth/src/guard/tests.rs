use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use mqtt::QoS;

use super::*;
use crate::bans::{BanKind, BanTarget, NewBan};
use crate::password_file::PasswordFileEdit;
use crate::password_hash::PasswordHash;
use crate::settings::{ChainNames, LinkName};

mod admission;
mod chain;

/// alice:wonderland and bob:pass:word, written by mosquitto_passwd 2.0.11.
const USERS: &str = "\
alice:$7$101$8rC3COp401qO7A/N$BWmYz0ZVJJllJtqxM+NJki5gNcYnlJzEsUhmW2Z8M0Jf8z+bYGdowivmp+N4XDkl9XYOeLzGD/bulvak0iBt2Q==
bob:$7$101$Xje/baODuQ4jUOM6$0todXdv8juxYwu2vnz5UlE2qNu7ZmOknBh0DoQN5r8vGCezxgvbXGddLkd6zaWXHmx0NCB1W3CIhCpZDCyDvPA==
";

/// Files of one test, removed at its end.
struct Files {
    directory: PathBuf,
    settings: Auth,
}

impl Files {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("meridian-guard-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self { directory, settings: Auth { workers: 1, ..Auth::default() } }
    }

    fn users(mut self, text: &str) -> Self {
        let path = self.directory.join("users");
        std::fs::write(&path, text).unwrap();
        self.settings.password_file = Some(path);
        self
    }

    fn acl(mut self, text: &str) -> Self {
        let path = self.directory.join("acl");
        std::fs::write(&path, text).unwrap();
        self.settings.acl_file = Some(path);
        self
    }

    fn anonymous(mut self, allowed: bool) -> Self {
        self.settings.allow_anonymous = Some(allowed);
        self
    }

    fn open(&self) -> Guard {
        Guard::open(&self.settings).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

const BAD: AuthResult = AuthResult::Deny(ReasonCode::BadUserNameOrPassword);
const NOT_AUTHORIZED: AuthResult = AuthResult::Deny(ReasonCode::NotAuthorized);

fn ask(
    guard: &Guard,
    username: Option<&str>,
    password: Option<&str>,
) -> (Option<AuthResult>, Receiver<AuthResult>) {
    let (send, receive) = channel();
    let password = password.map(str::as_bytes);
    let credentials = Credentials { client_id: "c", username, password, ..Default::default() };
    let immediate = guard.authenticate(credentials, &mut || {
        let send = send.clone();
        // A test that has finished has dropped the receiver.
        AuthReply::new(move |verdict| {
            let _ = send.send(verdict);
        })
    });
    (immediate, receive)
}

fn login(guard: &Guard, username: &str, password: &str) -> AuthResult {
    let (immediate, later) = ask(guard, Some(username), Some(password));
    immediate.unwrap_or_else(|| later.recv_timeout(Duration::from_secs(60)).unwrap())
}

fn may(guard: &Guard, identity: Identity<'_>, action: Action) -> bool {
    guard.authorize(identity, action, "a", &mut || unreachable!("files answer at once")).unwrap().allowed
}

#[test]
fn without_files_every_client_may_do_everything() {
    let files = Files::new("open");
    let guard = files.open();
    assert_eq!(ask(&guard, None, None).0, Some(AuthResult::Allow));
    assert_eq!(ask(&guard, Some("x"), Some("y")).0, Some(AuthResult::Allow));
    assert!(!guard.guards_topics());
    assert_eq!(ask(&files.anonymous(false).open(), Some("x"), Some("y")).0, Some(NOT_AUTHORIZED));
}

/// The first user makes a login necessary, and removing the last one ends that, as with API keys. WebSocket listeners
/// use this for requests of web pages.
#[test]
fn a_listener_reports_whether_it_accepts_clients_without_a_login() {
    assert!(Guard::open(&Auth::default()).unwrap().allows_anonymous("a"));
    let files = Files::new("listener-open").users(USERS);
    assert!(!files.open().allows_anonymous("a"));
    assert!(files.anonymous(true).open().allows_anonymous("a"));
    let mut files = Files::new("listener-anonymous").users(USERS);
    files.settings.anonymous_listeners = ListenerNames(vec!["b".into()]);
    let guard = files.open();
    assert_eq!((guard.allows_anonymous("a"), guard.allows_anonymous("b")), (false, true));
}

#[test]
fn a_node_reports_that_everything_is_allowed_until_the_first_rule() {
    use crate::rules::RuleSet;
    use crate::settings::NoMatch;
    let files = Files::new("first-rule");
    let open = |settings: &Auth| Guard::open_with(settings, &Default::default(), vec![]).unwrap();
    let guard = open(&files.settings);
    assert!(guard.is_open_until_first_rule());
    guard.set_database_rules(RuleSet::parse("allow everyone publish a").unwrap());
    assert!(!guard.is_open_until_first_rule());
    guard.set_database_rules(RuleSet::parse("").unwrap());
    assert!(guard.is_open_until_first_rule());
    for no_match in [NoMatch::Allow, NoMatch::Deny] {
        let said = open(&Auth { no_match: Some(no_match), ..files.settings.clone() });
        assert!(!said.is_open_until_first_rule(), "a configured value stays");
    }
}

#[test]
fn an_empty_user_database_is_no_way_to_authenticate() {
    use crate::users::{Connected, UserRecord, Users, hash_password};
    let files = Files::new("database");
    let users = Arc::new(Users::in_memory(10).unwrap());
    let open = |settings: &Auth| {
        Guard::open_with(settings, &Default::default(), vec![users.clone() as Arc<dyn crate::Link>]).unwrap()
    };
    let guard = open(&files.settings);
    assert_eq!(ask(&guard, Some("x"), Some("y")).0, Some(AuthResult::Allow));
    assert!(guard.is_open_until_first_user());
    for allowed in [true, false] {
        let said = open(&Auth { allow_anonymous: Some(allowed), ..files.settings.clone() });
        assert!(!said.is_open_until_first_user(), "a configured value stays");
    }
    let named = open(&Auth { chain: Some(ChainNames(vec![LinkName::Users])), ..files.settings.clone() });
    assert_eq!(
        ask(&named, None, None).0,
        Some(NOT_AUTHORIZED),
        "a named link is a way to authenticate even without users"
    );
    assert!(!named.is_open_until_first_user());
    let (hash, _) = hash_password("secret", None).unwrap();
    users.add("alice", &UserRecord { hash: Some(hash), superuser: true, ..UserRecord::new(1) }).unwrap();
    assert_eq!(ask(&guard, None, None).0, Some(NOT_AUTHORIZED));
    assert!(!guard.is_open_until_first_user());
    assert_eq!(login(&guard, "x", "y"), BAD);
    for _ in 0..2 {
        let AuthResult::Admit(admission) = login(&guard, "alice", "secret") else { panic!("she is refused") };
        assert!(admission.principal.is_some_and(|principal| principal.superuser));
    }
    assert_eq!(guard.figures().remembered, 1);
    let before = guard.revocations();
    users.change("alice", Connected::Close, |record| UserRecord { enabled: false, ..record }).unwrap();
    assert_eq!(guard.revocations(), before + 1);
    assert_eq!(login(&guard, "alice", "secret"), BAD, "remembered successes are forgotten");
    users.remove("alice", Connected::Close).unwrap();
    assert_eq!(ask(&guard, None, None).0, Some(AuthResult::Allow));
}

#[test]
fn users_of_mosquitto_log_in_with_their_password() {
    let guard = Files::new("login").users(USERS).open();
    assert_eq!(login(&guard, "alice", "wonderland"), AuthResult::Allow);
    assert_eq!(login(&guard, "bob", "pass:word"), AuthResult::Allow);
    assert_eq!(login(&guard, "alice", "pass:word"), BAD);
    assert_eq!(login(&guard, "eve", "wonderland"), BAD);
    let (immediate, later) = ask(&guard, Some("alice"), None);
    assert_eq!((immediate, later.recv()), (None, Ok(BAD)));
    assert_eq!(guard.figures(), Figures { accepted: 2, refused: 3, ..Figures::default() });
}

#[test]
fn with_a_password_file_clients_need_a_name_by_default() {
    let files = Files::new("anonymous").users(USERS);
    let guard = files.open();
    assert_eq!(ask(&guard, None, None).0, Some(NOT_AUTHORIZED));
    assert_eq!(guard.figures().anonymous_refused, 1);
    let guard = files.anonymous(true).open();
    assert_eq!(ask(&guard, None, None).0, Some(AuthResult::Allow));
    assert_eq!(login(&guard, "alice", "wrong"), BAD, "a wrong password is not anonymous");
}

/// Otherwise the response time would reveal which users exist.
#[test]
fn an_unknown_user_costs_as_much_work_as_a_known_one() {
    let guard = Files::new("decoy").users(USERS).open();
    assert_eq!(ask(&guard, Some("eve"), Some("x")).0, None);
    let nobody = Files::new("nobody").users("").open();
    assert_eq!(ask(&nobody, Some("eve"), Some("x")).0, Some(BAD));
}

#[test]
fn a_password_is_hashed_once_and_then_remembered() {
    let files = Files::new("remember").users(USERS);
    let guard = files.open();
    assert_eq!(login(&guard, "alice", "wonderland"), AuthResult::Allow);
    assert_eq!(ask(&guard, Some("alice"), Some("wonderland")).0, Some(AuthResult::Allow));
    assert_eq!(ask(&guard, Some("alice"), Some("wrong")).0, None, "wrong ones are never remembered");
    assert_eq!(guard.figures().remembered, 1);
    guard.read(&files.settings).unwrap().apply();
    assert_eq!(ask(&guard, Some("alice"), Some("wonderland")).0, None, "a reload forgets");
}

#[test]
fn too_many_waiting_clients_are_refused_as_server_busy() {
    // The answer of the first client waits until the test releases it, so the only thread is in use.
    let mut files = Files::new("busy").users(USERS);
    files.settings.waiting_max = 1;
    let guard = files.open();
    let (go, wait) = channel::<()>();
    let (working, at_work) = channel();
    let credentials = Credentials {
        client_id: "c",
        username: Some("alice"),
        password: Some(b"wonderland"),
        ..Default::default()
    };
    let mut wait = Some(wait);
    let answer = guard.authenticate(credentials, &mut || {
        let (working, wait) = (working.clone(), wait.take().unwrap());
        AuthReply::new(move |_| {
            working.send(()).unwrap();
            wait.recv().unwrap();
        })
    });
    assert_eq!(answer, None);
    at_work.recv().unwrap();
    let (_, second) = ask(&guard, Some("alice"), Some("x"));
    let (_, third) = ask(&guard, Some("alice"), Some("y"));
    assert_eq!(third.recv(), Ok(AuthResult::Deny(ReasonCode::ServerBusy)));
    assert_eq!(guard.figures().busy, 1);
    go.send(()).unwrap();
    assert_eq!(second.recv(), Ok(BAD));
}

#[test]
fn a_reload_brings_new_users_and_rules_and_a_new_generation() {
    let files = Files::new("reload").users(USERS).acl("user alice\ntopic read a\n");
    let guard = files.open();
    let alice = Identity { client_id: "c", username: Some("alice"), ..Default::default() };
    let publish = Action::Publish { qos: QoS::AtMostOnce, retain: false };
    assert!(guard.guards_topics());
    assert!(may(&guard, alice, Action::Receive) && !may(&guard, alice, publish));
    assert_eq!(login(&guard, "carol", "new"), BAD);

    let path = files.settings.password_file.as_ref().unwrap();
    let mut edit = PasswordFileEdit::read(path).unwrap();
    edit.set("carol", &PasswordHash::create(b"new").unwrap());
    edit.write(path).unwrap();
    std::fs::write(files.settings.acl_file.as_ref().unwrap(), "user alice\ntopic write a\n").unwrap();
    let before = guard.generation();
    guard.read(&files.settings).unwrap().apply();
    assert!(guard.generation() > before);
    assert!(!may(&guard, alice, Action::Receive) && may(&guard, alice, publish));
    assert_eq!(login(&guard, "carol", "new"), AuthResult::Allow);
}

#[test]
fn a_bad_file_changes_nothing() {
    let files = Files::new("bad").users(USERS).acl("user alice\ntopic read a\n");
    let guard = files.open();
    std::fs::write(files.settings.acl_file.as_ref().unwrap(), "user alice\ntopic raed a\n").unwrap();
    std::fs::write(files.settings.password_file.as_ref().unwrap(), "").unwrap();
    let error = guard.read(&files.settings).map(drop).unwrap_err().to_string();
    assert!(error.contains("acl:2: unknown access `raed`"), "{error}");
    assert_eq!(guard.generation(), 0);
    assert_eq!(login(&guard, "alice", "wonderland"), AuthResult::Allow);
    assert!(Guard::open(&files.settings).is_err());
}

/// Otherwise a client that may name a file in the configuration, and not read it, could read its first word.
#[test]
fn errors_name_an_unusable_file_and_do_not_quote_it() {
    let secret = "s3cret";
    let files = [
        ("password_file", format!("{secret}\n")),
        ("password_file", format!("{secret}:x\n")),
        ("password_file", format!("{USERS}{USERS}").replace("alice", secret)),
        ("acl_file", format!("{secret} x\n")),
        ("acl_file", format!("topic {secret} a/b\n")),
        ("acl_file", format!("topic read {secret}/#/b\n")),
        ("rules_file", format!("{secret}\n")),
        ("rules_file", format!("allow {secret} all #\n")),
        ("rules_file", format!("allow everyone all {secret}/#/b\n")),
    ];
    for (setting, text) in files {
        let mut files = Files::new("unquoted");
        let path = files.directory.join("chosen");
        std::fs::write(&path, &text).unwrap();
        match setting {
            "password_file" => files.settings.password_file = Some(path.clone()),
            "acl_file" => files.settings.acl_file = Some(path.clone()),
            _ => files.settings.rules_file = Some(path.clone()),
        }
        let Err(OpenError::Policy(error)) = Guard::open(&files.settings) else { panic!("{text} is usable") };
        let said = error.without_contents();
        assert!(said.contains(&*path.to_string_lossy()) && !said.contains(secret), "{said}");
    }
    let missing = Auth { acl_file: Some("/nonexistent/acl".into()), ..Auth::default() };
    let Err(OpenError::Policy(error)) = Guard::open(&missing) else { panic!("there is no such file") };
    assert_eq!(error.without_contents(), error.to_string());
}

#[test]
fn a_banned_client_is_refused_before_any_link_is_asked() {
    let files = Files::new("banned").users(USERS);
    let bans = Arc::new(Bans::in_memory(10));
    let guard = files.open().with_bans(bans.clone());
    let target = BanTarget::parse(BanKind::Username, "alice").unwrap();
    let ban = NewBan { target, reason: String::new(), by: String::new(), until: None };
    let ban = bans.add(ban, SystemTime::now()).unwrap();
    const BANNED: AuthResult = AuthResult::Deny(ReasonCode::Banned);
    assert_eq!(ask(&guard, Some("alice"), Some("wonderland")).0, Some(BANNED));
    assert_eq!(guard.figures(), Figures { banned: 1, ..Figures::default() });
    assert_eq!(login(&guard, "bob", "pass:word"), AuthResult::Allow);
    guard.read(&files.settings).unwrap().apply();
    assert_eq!(ask(&guard, Some("alice"), Some("wonderland")).0, Some(BANNED), "a reload keeps bans");
    bans.remove(ban.id, SystemTime::now()).unwrap();
    assert_eq!(login(&guard, "alice", "wonderland"), AuthResult::Allow);
}

#[test]
fn a_banned_client_is_refused_in_an_enhanced_authentication_too() {
    let guard = Files::new("banned-enhanced").open();
    let target = BanTarget::parse(BanKind::Address, "10.0.0.0/8").unwrap();
    let ban = NewBan { target, reason: String::new(), by: String::new(), until: None };
    guard.bans().add(ban, SystemTime::now()).unwrap();
    let credentials =
        |peer: [u8; 4]| Credentials { client_id: "c", peer: Some(peer.into()), ..Default::default() };
    assert!(guard.mechanism("SCRAM-SHA-256", credentials([11, 0, 0, 1])).is_none());
    let mut refusal = guard.mechanism("SCRAM-SHA-256", credentials([10, 0, 0, 1])).unwrap();
    assert_eq!(refusal.step(None), Step::Failure(ReasonCode::Banned));
    assert_eq!(guard.figures().banned, 1);
}

#[test]
fn a_ban_made_while_a_password_waits_applies_to_its_client() {
    let guard = Files::new("banned-meanwhile").users(USERS).open();
    // The answer of the first client keeps the only thread until the test releases it.
    let (go, wait) = channel::<()>();
    let credentials = Credentials {
        client_id: "c",
        username: Some("alice"),
        password: Some(b"wonderland"),
        ..Default::default()
    };
    let mut wait = Some(wait);
    let answer = guard.authenticate(credentials, &mut || {
        let wait = wait.take().unwrap();
        AuthReply::new(move |_| wait.recv().unwrap())
    });
    assert_eq!(answer, None);
    let (_, bob) = ask(&guard, Some("bob"), Some("pass:word"));
    let target = BanTarget::parse(BanKind::Username, "bob").unwrap();
    let ban = NewBan { target, reason: String::new(), by: String::new(), until: None };
    guard.bans().add(ban, SystemTime::now()).unwrap();
    go.send(()).unwrap();
    assert_eq!(bob.recv(), Ok(AuthResult::Deny(ReasonCode::Banned)));
    assert_eq!(guard.figures().banned, 1);
}

#[test]
fn a_password_file_that_does_not_exist_is_an_error_with_the_command_that_makes_it() {
    let settings = Auth { password_file: Some("/nonexistent/passwords".into()), ..Auth::default() };
    let error = Guard::open(&settings).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        error.contains("auth.password_file") && error.contains("`meridian passwd -c FILE USER`"),
        "{error}"
    );
}
