//! The chain with scripted links.

use std::collections::VecDeque;
use std::sync::Mutex;

use access::{Admission, ClientCertificate, Principal};

use super::*;
use crate::link::{Attempt, CacheKey, Decoy, Outcome, Threads};
use crate::settings::{ChainNames, OnFailure, Protection as ProtectionSettings};
use settings::{Raw, Value as _};

/// Link that answers from a list, then always "not mine". Records its calls.
struct Scripted {
    name: &'static str,
    threads: Threads,
    cache_key: CacheKey,
    decoys: bool,
    check_immediately: Mutex<VecDeque<Outcome>>,
    works: Mutex<VecDeque<Work>>,
    calls: Arc<Mutex<Vec<String>>>,
}

enum Work {
    Answer(Outcome),
    /// Reports that it has begun, and answers when it may.
    Wait(std::sync::mpsc::Sender<()>, Receiver<()>, Outcome),
    Panic,
}

/// Calls that a link has received.
type CallLog = Arc<Mutex<Vec<String>>>;

impl Scripted {
    fn new(name: &'static str, calls: &CallLog) -> Self {
        Self {
            name,
            threads: Threads::Network,
            cache_key: CacheKey::Password(Vec::new()),
            decoys: false,
            check_immediately: Mutex::default(),
            works: Mutex::default(),
            calls: calls.clone(),
        }
    }

    fn check_immediately(self, outcome: Outcome) -> Self {
        self.check_immediately.lock().unwrap().push_back(outcome);
        self
    }

    fn works(self, work: Work) -> Self {
        self.works.lock().unwrap().push_back(work);
        self
    }

    fn answers(self, outcome: Outcome) -> Self {
        self.works(Work::Answer(outcome))
    }

    fn note(&self, what: &str) {
        self.calls.lock().unwrap().push(format!("{} {what}", self.name));
    }
}

impl Link for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        if credentials.username.is_none() && credentials.password.is_none() {
            return Some(Outcome::NotMine);
        }
        self.check_immediately.lock().unwrap().pop_front().inspect(|_| self.note("at once"))
    }

    fn work(&self, attempt: &Attempt) -> Outcome {
        self.note(attempt.username.as_deref().unwrap_or("-"));
        let work = self.works.lock().unwrap().pop_front();
        match work {
            None => Outcome::NotMine,
            Some(Work::Answer(outcome)) => outcome,
            Some(Work::Panic) => panic!("panic of the test"),
            Some(Work::Wait(began, go, outcome)) => {
                began.send(()).unwrap();
                go.recv().unwrap();
                outcome
            }
        }
    }

    fn threads(&self) -> Threads {
        self.threads
    }

    fn cache_key(&self, _: Credentials<'_>) -> CacheKey {
        self.cache_key.clone()
    }

    fn decoy(&self) -> Option<&dyn Decoy> {
        self.decoys.then_some(self)
    }
}

impl Decoy for Scripted {
    fn work(&self, _: &Attempt) {
        self.note("decoy");
    }
}

const UNAVAILABLE: AuthResult = AuthResult::Deny(ReasonCode::ServerUnavailable);

fn names(text: &str) -> Option<ChainNames> {
    Some(ChainNames::from_raw(&Raw::Text(text.to_owned())).unwrap())
}

fn settings() -> Auth {
    Auth { workers: 1, network_workers: 1, timeout: Duration::from_secs(60), ..Auth::default() }
}

fn open(settings: &Auth, links: Vec<Scripted>) -> Guard {
    let links = links.into_iter().map(|link| Arc::new(link) as Arc<dyn Link>).collect();
    Guard::open_with(settings, &ProtectionSettings::default(), links).unwrap()
}

fn admitted(username: &str) -> Outcome {
    Outcome::Admit(Box::new(Admission { username: Some(username.into()), ..Admission::default() }))
}

fn plain() -> Outcome {
    Outcome::Admit(Box::default())
}

fn taken(calls: &CallLog) -> Vec<String> {
    std::mem::take(&mut calls.lock().unwrap())
}

fn figures(guard: &Guard, name: &str) -> LinkFigures {
    guard.link_figures().into_iter().find(|link| link.name == name).unwrap()
}

#[test]
fn links_are_asked_in_order_until_one_knows_the_client() {
    let calls = CallLog::default();
    let links = || {
        vec![
            Scripted::new("users", &calls),
            Scripted::new("jwt", &calls).answers(admitted("from jwt")),
            Scripted::new("http", &calls).answers(plain()),
        ]
    };
    let guard = open(&settings(), links());
    assert!(
        matches!(login(&guard, "a", "b"), AuthResult::Admit(admission) if admission.username.as_deref() == Some("from jwt"))
    );
    assert_eq!(taken(&calls), ["users a", "jwt a"]);
    assert_eq!((figures(&guard, "users").not_mine, figures(&guard, "jwt").accepted), (1, 1));
    assert_eq!(figures(&guard, "jwt").works, 1);

    let guard = open(&Auth { chain: names("http, users"), ..settings() }, links());
    assert_eq!(login(&guard, "a", "b"), AuthResult::Allow);
    assert_eq!(taken(&calls), ["http a"], "the order is that of auth.chain");
}

#[test]
fn a_refusal_of_a_link_is_final() {
    let calls = CallLog::default();
    let users = Scripted::new("users", &calls).answers(Outcome::Refuse(ReasonCode::NotAuthorized));
    let guard = open(&settings(), vec![users, Scripted::new("http", &calls).answers(plain())]);
    assert_eq!(login(&guard, "a", "b"), NOT_AUTHORIZED);
    assert_eq!(taken(&calls), ["users a"]);
}

#[test]
fn an_immediate_answer_needs_no_thread_and_keeps_its_position_in_the_chain() {
    let calls = CallLog::default();
    let users = Scripted::new("users", &calls).check_immediately(Outcome::NotMine);
    let jwt = Scripted::new("jwt", &calls).check_immediately(plain());
    let guard = open(&settings(), vec![users, jwt]);
    assert_eq!(ask(&guard, Some("a"), Some("b")).0, Some(AuthResult::Allow));
    assert_eq!(taken(&calls), ["users at once", "jwt at once"]);
    assert_eq!(figures(&guard, "jwt").works, 0);
}

#[test]
fn a_client_that_no_link_knows_is_refused() {
    let calls = CallLog::default();
    let guard = open(&settings(), vec![Scripted::new("users", &calls), Scripted::new("http", &calls)]);
    assert_eq!(login(&guard, "a", "b"), BAD);
    assert_eq!(ask(&guard, None, None).0, Some(NOT_AUTHORIZED));
    let open_to_all = Auth { allow_anonymous: Some(true), ..settings() };
    let guard = open(&open_to_all, vec![Scripted::new("users", &calls)]);
    assert_eq!(login(&guard, "a", "b"), BAD, "an unknown name is not anonymous");
    assert_eq!(ask(&guard, None, None).0, Some(AuthResult::Allow));
}

/// Otherwise the response time would reveal which users exist.
#[test]
fn a_decoy_works_when_no_link_had_to() {
    let calls = CallLog::default();
    let users =
        || Scripted { decoys: true, ..Scripted::new("users", &calls).check_immediately(Outcome::NotMine) };
    let guard = open(&settings(), vec![users()]);
    assert_eq!(login(&guard, "a", "b"), BAD);
    assert_eq!(taken(&calls), ["users at once", "users decoy"]);
    let guard = open(&settings(), vec![users(), Scripted::new("http", &calls)]);
    assert_eq!(login(&guard, "a", "b"), BAD);
    assert_eq!(taken(&calls), ["users at once", "http a"]);
}

#[test]
fn a_link_that_fails_refuses_unless_configured_otherwise() {
    let calls = CallLog::default();
    let failing = || Scripted::new("users", &calls).answers(Outcome::Failed("no route".to_owned()));
    let guard = open(&settings(), vec![failing(), Scripted::new("http", &calls).answers(plain())]);
    assert_eq!(login(&guard, "a", "b"), UNAVAILABLE);
    assert_eq!(taken(&calls), ["users a"]);
    assert_eq!((figures(&guard, "users").failed, guard.figures().failed), (1, 1));

    let next = Auth { on_failure: OnFailure::Next, ..settings() };
    let guard = open(&next, vec![failing(), Scripted::new("http", &calls).answers(plain())]);
    assert_eq!(login(&guard, "a", "b"), AuthResult::Allow);
    let guard = open(&next, vec![failing(), Scripted::new("http", &calls)]);
    assert_eq!(login(&guard, "a", "b"), UNAVAILABLE, "the failed link might have known the client");
    assert_eq!(guard.protection_figures().failures, 0, "and it is not the client's fault");
}

#[test]
fn a_link_that_panics_has_failed_and_its_thread_goes_on() {
    let calls = CallLog::default();
    let users = Scripted::new("users", &calls).works(Work::Panic).answers(plain());
    let guard = open(&settings(), vec![users]);
    assert_eq!(login(&guard, "a", "b"), UNAVAILABLE);
    assert_eq!(login(&guard, "a", "b"), AuthResult::Allow);
}

#[test]
fn a_client_is_answered_when_its_time_is_over_and_a_late_success_is_remembered() {
    let calls = CallLog::default();
    let (began, beginning) = channel();
    let (go, wait) = channel();
    let users = Scripted::new("users", &calls).works(Work::Wait(began, wait, plain()));
    let guard = open(&Auth { timeout: Duration::from_millis(10), ..settings() }, vec![users]);
    let (check_immediately, verdict) = ask(&guard, Some("a"), Some("b"));
    assert_eq!(check_immediately, None);
    beginning.recv().unwrap();
    assert_eq!(verdict.recv(), Ok(UNAVAILABLE));
    assert_eq!((figures(&guard, "users").timed_out, guard.figures().timed_out), (1, 1));
    go.send(()).unwrap();
    while ask(&guard, Some("a"), Some("b")).0 != Some(AuthResult::Allow) {
        std::thread::yield_now();
    }
    assert_eq!(taken(&calls)[0], "users a");
}

/// A slow service must not delay password checks.
#[test]
fn links_that_wait_and_links_that_compute_have_separate_threads() {
    let calls = CallLog::default();
    let (began, beginning) = channel();
    let (go, wait) = channel();
    let hashing = Scripted { threads: Threads::Hashing, ..Scripted::new("users", &calls) }
        .check_immediately(Outcome::NotMine)
        .answers(plain());
    let waiting = Scripted::new("http", &calls).works(Work::Wait(began, wait, plain()));
    let guard = open(&settings(), vec![hashing, waiting]);
    let (_, slow) = ask(&guard, Some("slow"), Some("b"));
    beginning.recv().unwrap();
    assert_eq!(figures(&guard, "http").waiting, 1);
    assert_eq!(login(&guard, "quick", "b"), AuthResult::Allow);
    go.send(()).unwrap();
    assert_eq!(slow.recv(), Ok(AuthResult::Allow));
}

#[test]
fn an_attempt_moves_from_one_kind_of_threads_to_the_other() {
    let calls = CallLog::default();
    let users = Scripted { threads: Threads::Hashing, ..Scripted::new("users", &calls) };
    let jwt = Scripted::new("jwt", &calls);
    let http = Scripted { threads: Threads::Hashing, ..Scripted::new("http", &calls) }.answers(plain());
    let guard = open(&settings(), vec![users, jwt, http]);
    assert_eq!(login(&guard, "a", "b"), AuthResult::Allow);
    assert_eq!(taken(&calls), ["users a", "jwt a", "http a"]);
    for name in ["users", "jwt", "http"] {
        assert_eq!(figures(&guard, name).waiting, 0, "{name}");
    }
}

#[test]
fn each_kind_of_threads_has_a_bounded_queue() {
    let calls = CallLog::default();
    let (began, beginning) = channel();
    let (go, wait) = channel();
    let http = Scripted::new("http", &calls).works(Work::Wait(began, wait, plain()));
    let guard = open(&Auth { network_waiting_max: 1, ..settings() }, vec![http]);
    let (_, first) = ask(&guard, Some("a"), Some("b"));
    beginning.recv().unwrap();
    let (_, second) = ask(&guard, Some("b"), Some("b"));
    let (_, third) = ask(&guard, Some("c"), Some("b"));
    assert_eq!(third.recv(), Ok(AuthResult::Deny(ReasonCode::ServerBusy)));
    assert_eq!((figures(&guard, "http").busy, guard.figures().busy), (1, 1));
    go.send(()).unwrap();
    assert_eq!((first.recv(), second.recv()), (Ok(AuthResult::Allow), Ok(BAD)));
}

#[test]
fn a_success_is_remembered_under_everything_that_it_depends_on() {
    let calls = CallLog::default();
    let principal = Arc::new(Principal { superuser: true, ..Principal::default() });
    let admission = Admission { principal: Some(principal.clone()), ..Admission::default() };
    let outcome = Outcome::Admit(Box::new(admission.clone()));
    let http = Scripted { cache_key: CacheKey::Everything, ..Scripted::new("http", &calls) }.answers(outcome);
    let guard = open(&settings(), vec![http]);
    let expected = AuthResult::Admit(Box::new(admission));
    assert_eq!(login(&guard, "a", "b"), expected);
    assert_eq!(
        ask(&guard, Some("a"), Some("b")).0,
        Some(expected),
        "the same principal, and no link is asked"
    );
    assert_eq!(guard.figures().remembered, 1);
    let certificate = Arc::new(ClientCertificate { fingerprint: [7; 32], ..ClientCertificate::default() });
    let same =
        Credentials { client_id: "c", username: Some("a"), password: Some(b"b"), ..Credentials::default() };
    for other in [
        Credentials { client_id: "d", ..same },
        Credentials { password: Some(b"c"), ..same },
        Credentials { username: Some("d"), ..same },
        Credentials { listener: "tls", ..same },
        Credentials { certificate: Some(&certificate), ..same },
    ] {
        let answer = guard.authenticate(other, &mut || AuthReply::new(|_| {}));
        assert_eq!(answer, None, "{other:?}");
    }
}

#[test]
fn a_success_is_not_remembered_when_its_link_forbids_it() {
    let calls = CallLog::default();
    let http = Scripted { cache_key: CacheKey::Nothing, ..Scripted::new("http", &calls) };
    let guard = open(&settings(), vec![http.answers(plain()).answers(plain())]);
    assert_eq!(login(&guard, "a", "b"), AuthResult::Allow);
    let (check_immediately, verdict) = ask(&guard, Some("a"), Some("b"));
    assert_eq!((check_immediately, verdict.recv()), (None, Ok(AuthResult::Allow)));
}

/// A link that was removed from the chain admits no more clients.
#[test]
fn results_of_replaced_settings_are_discarded() {
    let calls = CallLog::default();
    let (began, beginning) = channel();
    let (go, wait) = channel();
    let users = Scripted::new("users", &calls).works(Work::Wait(began, wait, plain()));
    let guard = open(&settings(), vec![users, Scripted::new("http", &calls)]);
    let (_, verdict) = ask(&guard, Some("a"), Some("b"));
    beginning.recv().unwrap();
    guard.read(&Auth { chain: names("http"), ..settings() }).unwrap().apply();
    go.send(()).unwrap();
    assert_eq!(verdict.recv(), Ok(BAD));
    assert_eq!(taken(&calls), ["users a", "http a"]);
}

#[test]
fn a_chain_names_only_what_is_configured() {
    let error = Guard::open(&Auth { chain: names("http"), ..settings() }).unwrap_err().to_string();
    assert!(error.contains("`auth.chain` names `http`, which is not configured"), "{error}");
    let error = Guard::open(&Auth { chain: names("password_file"), ..settings() }).unwrap_err().to_string();
    assert!(error.contains("set `auth.password_file`"), "{error}");
}

/// Guessing costs a bounded number of hashes, however often it is tried.
#[test]
fn ten_thousand_wrong_logins_cost_few_hashes() {
    let calls = CallLog::default();
    let users = Scripted { decoys: true, threads: Threads::Hashing, ..Scripted::new("users", &calls) };
    let guard = open(&settings(), vec![users]);
    let mut reasons = std::collections::BTreeMap::<u8, u32>::new();
    for n in 0..10_000_u32 {
        let password = n.to_string();
        let credentials = Credentials {
            client_id: "c",
            username: Some("alice"),
            password: Some(password.as_bytes()),
            peer: Some([192, 0, 2, 1].into()),
            ..Credentials::default()
        };
        let (send, receive) = channel();
        let answer = guard.authenticate(credentials, &mut || {
            let send = send.clone();
            AuthReply::new(move |verdict| send.send(verdict).unwrap())
        });
        let AuthResult::Deny(reason) = answer.unwrap_or_else(|| receive.recv().unwrap()) else {
            panic!("no client is admitted")
        };
        *reasons.entry(reason as u8).or_default() += 1;
    }
    // Ten before the first wait. A machine that takes longer than a wait allows ten more after each.
    let works = figures(&guard, "users").works;
    let waits = guard.protection_figures().backoffs / 2;
    assert_eq!(works, u64::from(reasons[&0x86]));
    assert!(works <= 10 * (waits + 1) && waits < 10, "{works} hashes, {waits} waits");
    assert_eq!(reasons[&0x9F], 10_000 - works as u32);
    assert_eq!(guard.figures().backed_off, u64::from(reasons[&0x9F]));
}

#[test]
fn a_remembered_client_is_admitted_while_others_back_off() {
    let calls = CallLog::default();
    let users = Scripted::new("users", &calls).answers(plain());
    let guard = open(&settings(), vec![users]);
    let ask = |username: &'static str| {
        let (send, receive) = channel();
        let credentials = Credentials {
            client_id: "c",
            username: Some(username),
            password: Some(b"b"),
            peer: Some([192, 0, 2, 1].into()),
            ..Credentials::default()
        };
        let answer = guard.authenticate(credentials, &mut || {
            let send = send.clone();
            AuthReply::new(move |verdict| send.send(verdict).unwrap())
        });
        answer.unwrap_or_else(|| receive.recv().unwrap())
    };
    assert_eq!(ask("good"), AuthResult::Allow);
    (0..10).for_each(|_| assert_eq!(ask("guess"), BAD));
    assert_eq!(ask("guess"), AuthResult::Deny(ReasonCode::ConnectionRateExceeded));
    assert_eq!(ask("other"), BAD, "other names of the address do not wait yet");
    assert_eq!(ask("good"), AuthResult::Allow);
    let off = ProtectionSettings { failures_max: 0, ..ProtectionSettings::default() };
    guard.protect(&off);
    assert_eq!(ask("guess"), BAD, "a reload takes effect");
}

/// Asks as alice from this address. The receiver gets an answer that is not known at once.
fn alice(guard: &Guard, address: [u8; 4], password: &str) -> Receiver<AuthResult> {
    let (send, receive) = channel();
    let credentials = Credentials {
        client_id: "c",
        username: Some("alice"),
        password: Some(password.as_bytes()),
        peer: Some(address.into()),
        ..Credentials::default()
    };
    let check_immediately = guard.authenticate(credentials, &mut || {
        let send = send.clone();
        // A test that has finished has dropped the receiver.
        AuthReply::new(move |verdict| _ = send.send(verdict))
    });
    if let Some(verdict) = check_immediately {
        send.send(verdict).unwrap();
    }
    receive
}

const STRANGER: [u8; 4] = [192, 0, 2, 66];
const OWNER: [u8; 4] = [198, 51, 100, 1];
const TOO_OFTEN: AuthResult = AuthResult::Deny(ReasonCode::ConnectionRateExceeded);

/// Returns a guard whose only user, alice, had the maximum number of wrong logins from the address [`STRANGER`].
fn attacked(files: &Files, protection: &ProtectionSettings) -> Guard {
    let guard = Guard::open_with(&files.settings, protection, Vec::new()).unwrap();
    for n in 0..protection.failures_max {
        assert_eq!(alice(&guard, STRANGER, "guess").recv().unwrap(), BAD, "{n}");
    }
    guard
}

#[test]
fn wrong_passwords_from_one_address_do_not_lock_out_others() {
    let delay = Duration::from_millis(1);
    let protection = ProtectionSettings { failures_delay: delay, ..ProtectionSettings::default() };
    let files = Files::new("lock-out").users(USERS);
    let guard = attacked(&files, &protection);
    assert_eq!(alice(&guard, STRANGER, "guess").recv().unwrap(), TOO_OFTEN);
    assert_eq!(alice(&guard, STRANGER, "wonderland").recv().unwrap(), TOO_OFTEN, "unchecked");
    assert_eq!(alice(&guard, OWNER, "guess").recv().unwrap(), BAD, "checked, a little later");
    assert_eq!(alice(&guard, OWNER, "wonderland").recv().unwrap(), AuthResult::Allow);
    assert_eq!(guard.protection_figures().delayed, 2);
    assert_eq!(guard.figures().backed_off, 2);
}

/// Delayed logins have the bound of the queue for threads, and a limit for each pair of address and name.
#[test]
fn logins_that_are_delayed_are_bounded() {
    let protection = ProtectionSettings {
        failures_max: 2,
        failures_delay: Duration::from_secs(10),
        failures_backoff: Duration::from_secs(600),
        ..ProtectionSettings::default()
    };
    let mut files = Files::new("delayed").users(USERS);
    files.settings.waiting_max = 3;
    let guard = attacked(&files, &protection);
    let waiting = [alice(&guard, OWNER, "wonderland"), alice(&guard, OWNER, "wonderland")];
    assert_eq!(alice(&guard, OWNER, "wonderland").recv().unwrap(), TOO_OFTEN);
    let another = alice(&guard, [198, 51, 100, 2], "wonderland");
    let busy = AuthResult::Deny(ReasonCode::ServerBusy);
    assert_eq!(alice(&guard, [198, 51, 100, 3], "wonderland").recv().unwrap(), busy);
    assert!(waiting.iter().chain([&another]).all(|receive| receive.try_recv().is_err()));
}
